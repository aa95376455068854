"""Random bases descent in torch, on any device that torch names: `rbd_ref` finds it as the backend `torch`.

    python -m rbd_ref.conformance --rbd-backend torch

    randn, rand, signs                              portable random numbers: the bits of rbd_ref.random as tensors

RBD_TORCH_DEVICE names the device (cpu), RBD_TORCH_COMPILE=1 compiles the generator. Names are loaded when they are
first asked for, so that nothing is imported before it is needed. Tests: tests/test_torch_backend.py.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rbd_torch.random import rand, randn, signs

__all__ = ["rand", "randn", "signs"]

HOMES = {
    "rand": "random",
    "randn": "random",
    "signs": "random",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'rbd_torch' has no attribute {name!r}")
    from importlib import import_module

    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ImportError(f"torch is not there ({error}), expected it: pip install 'rbd-ref[torch]'") from error
    return getattr(import_module(f"rbd_torch.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
