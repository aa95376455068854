"""Numba at work: how long it has been compiling, and whom to tell.

The first run after an installation compiles the kernels that it uses; later ones find them on disk (_jit.py). Numba
announces every function that it compiles, and none that it loads.
Tests: tests/test_compiling.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

KIND = "numba:compile"
events: Any = event  # which has no types
ABOUT = 20  # seconds that the kernels of a run take on a usual core


def _nobody(_: Compiling) -> None:
    """Told of nothing."""


class Compiling(event.Listener):
    """A stopwatch that runs while Numba compiles; `tell` is called with it whenever a function is begun or done."""

    def __init__(self) -> None:
        self.tell: Callable[[Compiling], None] = _nobody
        self.count = 0  # functions done
        self.depth = 0  # functions that are being compiled, each for the one before
        self.before = 0.0
        self.began = 0.0

    @property
    def seconds(self) -> float:
        """How long it has been compiling."""
        return self.before + (time.perf_counter() - self.began if self.depth else 0.0)

    def on_start(self, _: Any) -> None:
        """A function is begun."""
        if self.depth == 0:
            self.began = time.perf_counter()
        self.depth += 1
        self.tell(self)

    def on_end(self, _: Any) -> None:
        """A function is done."""
        self.count += 1
        self.before = self.seconds if self.depth == 1 else self.before
        self.depth -= 1
        self.tell(self)


@contextmanager
def watch_compiling() -> Iterator[Compiling]:
    """A stopwatch of what is compiled meanwhile."""
    watch = Compiling()
    events.register(KIND, watch)
    try:
        yield watch
    finally:
        events.unregister(KIND, watch)
