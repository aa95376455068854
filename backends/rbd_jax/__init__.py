"""Random bases descent in JAX, for models of your own and on any device that XLA names.

    rbd, scale_by_random_bases                      an optimizer and a transformation for optax
    project, reconstruct, descend, directions       the operations on arrays of JAX, also within jit
    randn, rand, signs                              portable random numbers: the bits of rbd_ref.random as arrays

`rbd_ref` finds the backend `jax` here too (`python -m rbd_ref.conformance --rbd-backend jax`): `backend` holds its
class; `rounding`, `families`, `sweep` and `hadamard` hold what XLA compiles, and `networks` gradients by `jax.grad`.
Names are loaded when they are first asked for, so that importing this package does not import JAX.
Tests: tests/test_jax_backend.py, tests/test_random.py.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rbd_jax.functional import descend, directions, project, reconstruct
    from rbd_jax.random import rand, randn, signs
    from rbd_jax.transform import RandomBasesState, rbd, scale_by_random_bases

__all__ = [
    "RandomBasesState",
    "descend",
    "directions",
    "project",
    "rand",
    "randn",
    "rbd",
    "reconstruct",
    "scale_by_random_bases",
    "signs",
]

HOMES = {
    "RandomBasesState": "transform",
    "descend": "functional",
    "directions": "functional",
    "project": "functional",
    "rand": "random",
    "randn": "random",
    "rbd": "transform",
    "reconstruct": "functional",
    "scale_by_random_bases": "transform",
    "signs": "random",
}


def __getattr__(name: str) -> Any:
    from rbd_ref._lazy import attribute

    return attribute(__name__, HOMES, name, "optax" if HOMES.get(name) == "transform" else "jax")


def __dir__() -> list[str]:
    return __all__
