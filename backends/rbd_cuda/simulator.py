"""Shared memory of Numba's CUDA simulator, mended.

The simulator's threads look for the array of a line, and one that finds none makes it: of two that look at once each
makes its own, and what the one writes the other never sees. Here they look one after the other. It also asks Python for
the caller's line alone, where the simulator asks for the whole stack, which takes most of its time.
May import: numpy, numba.cuda's simulator. Tests: tests/test_cuda_backend.py.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
from numba.cuda.simulator import kernelapi
from numba.np.numpy_support import as_dtype

LOCK = threading.Lock()


def array(self: Any, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """The array of the line that asks for it, the same for all threads of a CUDA block."""
    caller = sys._getframe(1)
    line = caller.f_code, caller.f_lineno
    with LOCK:
        if line not in self._allocations:
            self._allocations[line] = np.empty(shape, as_dtype(dtype))
        return np.asarray(self._allocations[line])


def mend() -> None:
    """From now on the simulator's shared arrays are these."""
    shared: Any = kernelapi.FakeCUDAShared
    shared.array = array
