"""With this folder in PYTHONPATH, faults happen to a rank before it trains, in the command itself:

python   as soon as Python is there, before MPI and before any watchdog
init     when mpi4py is about to start MPI
import   when NumPy is imported, the first that is after MPI is started
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from typing import Any

from faults import FAULTS, mine

MODULES = {"init": "mpi4py.MPI", "import": "numpy"}


class Trap(MetaPathFinder):
    """Does something when a module is about to be imported."""

    def __init__(self, module: str, body: Callable[[], None]) -> None:
        self.module = module
        self.body = body

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == self.module:
            self.body()


for kind, place in mine():
    if place == "python":
        FAULTS[kind]()
    elif place in MODULES:
        sys.meta_path.insert(0, Trap(MODULES[place], FAULTS[kind]))
