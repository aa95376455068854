"""rbd-ref: the reference implementation of random bases descent.

Directions are pure functions of (seed, step, worker, compartment, direction, element) and the same bits on every
backend: see docs/specification.md.

    Basis, compartments, prng     random directions that are never stored, and the operations on them
    Config, fit, open_run         training from Python, and reading a run; RunError is what stops one
    random                        numbers with the same bits in every library and on every device
    minimize                      the same for a function of your own, in one call
    suggest                       family, rate and costs, from the rate of SGD
    fit_grid                      many runs of it side by side

The second half is loaded when it is first asked for: who only wants directions need not wait for networks.
"""

from typing import TYPE_CHECKING, Any

from rbd_ref._path import forget_current_folder

forget_current_folder()  # before NumPy or anything else could be imported from there

from rbd_ref._launch import start_command  # noqa: E402

start_command()  # before anything else could fail

from rbd_ref.basis import Basis  # noqa: E402
from rbd_ref.spec import compartments, prng  # noqa: E402

if TYPE_CHECKING:
    from rbd_ref import random
    from rbd_ref.runs.config import Config
    from rbd_ref.runs.files import RunError
    from rbd_ref.training.fit import fit
    from rbd_ref.training.grid import fit_grid
    from rbd_ref.training.guidance import suggest
    from rbd_ref.training.minimize import minimize
    from rbd_ref.training.recorded import open_run

__version__ = "0.1.0"
__all__ = [
    "Basis",
    "Config",
    "RunError",
    "__version__",
    "compartments",
    "fit",
    "fit_grid",
    "minimize",
    "open_run",
    "prng",
    "random",
    "suggest",
]

LATER = {
    "Config": "rbd_ref.runs.config",
    "RunError": "rbd_ref.runs.files",
    "fit": "rbd_ref.training.fit",
    "fit_grid": "rbd_ref.training.grid",
    "minimize": "rbd_ref.training.minimize",
    "open_run": "rbd_ref.training.recorded",
    "random": "rbd_ref.random",
    "suggest": "rbd_ref.suggest",  # a module that can be called, as the command has the same name
}


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module 'rbd_ref' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(LATER[name])
    return module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
