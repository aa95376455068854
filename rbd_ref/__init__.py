"""rbd-ref: the reference implementation of random bases descent.

Directions are pure functions of (seed, step, worker, compartment, direction, element) and the same bits on every
backend: see docs/specification.md. Start with `Basis` and `compartments`.
"""

from rbd_ref.basis import Basis
from rbd_ref.spec import compartments, prng

__version__ = "0.1.0"
__all__ = ["Basis", "__version__", "compartments", "prng"]
