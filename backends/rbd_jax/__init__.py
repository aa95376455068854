"""Random bases descent in JAX, for models of your own and on any device that XLA names.

    randn, rand, signs                              portable random numbers: the bits of rbd_ref.random as arrays

`rbd_ref` finds the backend `jax` here too (`python -m rbd_ref.conformance --rbd-backend jax`): `backend` holds its
class; `rounding`, `families`, `sweep` and `hadamard` hold what XLA compiles, and `networks` gradients by `jax.grad`.
Names are loaded when they are first asked for, so that importing this package does not import JAX.
Tests: tests/test_jax_backend.py, tests/test_random.py.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rbd_jax.random import rand, randn, signs

__all__ = ["rand", "randn", "signs"]

HOMES = {
    "rand": "random",
    "randn": "random",
    "signs": "random",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'rbd_jax' has no attribute {name!r}")
    from importlib import import_module

    try:
        import jax  # noqa: F401
    except ImportError as error:
        raise ImportError(f"JAX is not there ({error}), expected it: pip install 'rbd-ref[jax]'") from error
    return getattr(import_module(f"rbd_jax.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
