"""Names for the arrays that travel through the package, and the two powers of two that bound its integers.

Tests: every test; there is nothing here but names.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = np.float32

Float32Array = NDArray[np.float32]  # theta, gradients, coefficients, updates, directions: vectors and matrices
Float64Array = NDArray[np.float64]
Words = NDArray[np.uint32]  # unsigned 32-bit integers, what the generator takes and gives
Indices = NDArray[np.int64]
Bytes = NDArray[np.uint8]

TWO_32 = 2**32  # steps, workers, sizes and directions are numbered below this: they fit into a word
TWO_64 = 2**64  # seeds are below this
