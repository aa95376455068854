"""Numba at work: how long it has been compiling, and whom to tell.

The first run after an installation compiles the kernels that it uses; later ones find them on disk (_jit.py). Numba
announces every function that it compiles, and when it takes and gives back the lock under which it compiles, loads from
disk and writes to it.
Tests: tests/test_compiling.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

FUNCTION = "numba:compile"
LOCK = "numba:compiler_lock"
events: Any = event  # which has no types
ABOUT = 10  # seconds that the kernels of a run take on a usual core


def _nobody(_: Compiling) -> None:
    """Told of nothing."""


class Compiling(event.Listener):
    """A stopwatch that runs while Numba has its lock; `tell` is called with it when a function is begun or done."""

    def __init__(self) -> None:
        self.tell: Callable[[Compiling], None] = _nobody
        self.count = 0  # functions done
        self.depth = 0  # functions that are being compiled, each for the one before
        self.locks = 0  # times that the lock was taken
        self.before = 0.0
        self.began = 0.0

    @property
    def seconds(self) -> float:
        """How long it has been compiling, or loading what was compiled."""
        return self.before + (time.perf_counter() - self.began if self.locks else 0.0)

    def on_start(self, event: Any) -> None:
        """The lock is taken, or a function begun."""
        if event.kind == LOCK:
            self.began = self.began if self.locks else time.perf_counter()
            self.locks += 1
        else:
            self.depth += 1
            self.tell(self)

    def on_end(self, event: Any) -> None:
        """The lock is given back, or a function done."""
        if event.kind == LOCK:
            self.before = self.before if self.locks > 1 else self.seconds
            self.locks -= 1
        else:
            self.count += 1
            self.depth -= 1
            self.tell(self)


@contextmanager
def watch_compiling() -> Iterator[Compiling]:
    """A stopwatch of what is compiled meanwhile."""
    watch = Compiling()
    for kind in (FUNCTION, LOCK):
        events.register(kind, watch)
    try:
        yield watch
    finally:
        for kind in (FUNCTION, LOCK):
            events.unregister(kind, watch)
