"""Random bases descent in torch, for models of your own and on any device that torch names.

    RBD                                             a torch.optim.Optimizer
    RBDState, rbd_hook                              for DistributedDataParallel.register_comm_hook
    replay                                          a model from its base checkpoint and a journal of coefficients
    project, reconstruct, descend, directions       the operations on torch tensors
    randn, rand, signs                              portable random numbers: the bits of rbd_ref.random as tensors

`rbd_ref` finds the backend `torch` here too (`python -m rbd_ref.conformance --rbd-backend torch`); RBD_TORCH_DEVICE
names its device (cpu), RBD_TORCH_COMPILE=1 compiles its generator. Names are loaded when they are first asked for, so
that nothing is imported before it is needed. Tests: tests/test_torch_functional.py.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rbd_torch.functional import descend, directions, project, reconstruct
    from rbd_torch.hook import RBDState, rbd_hook
    from rbd_torch.optimizer import RBD
    from rbd_torch.random import rand, randn, signs
    from rbd_torch.replaying import replay

__all__ = [
    "RBD",
    "RBDState",
    "descend",
    "directions",
    "project",
    "rand",
    "randn",
    "rbd_hook",
    "reconstruct",
    "replay",
    "signs",
]

HOMES = {
    "RBD": "optimizer",
    "RBDState": "hook",
    "descend": "functional",
    "directions": "functional",
    "project": "functional",
    "rand": "random",
    "randn": "random",
    "rbd_hook": "hook",
    "reconstruct": "functional",
    "replay": "replaying",
    "signs": "random",
}


def __getattr__(name: str) -> Any:
    from rbd_ref._lazy import attribute

    return attribute(__name__, HOMES, name, "torch")


def __dir__() -> list[str]:
    return __all__
