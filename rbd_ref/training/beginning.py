"""What the ranks of a run begin with, and what is said where they are stopped before they have begun.

Tests: tests/test_memory_resume.py, tests/test_train.py.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rbd_ref.methods.base import Local, Replica, State
from rbd_ref.runs.files import SharedError
from rbd_ref.runs.journal import Record


class Interrupted(SharedError):
    """A signal came while the journal of a run of so many steps was replayed to resume it; nothing was changed."""

    def __init__(self, reason: int, done: int, steps: int) -> None:
        super().__init__(reason, done, steps)  # what a copy on another rank is made from
        self.reason = reason
        self.text = (
            f"stopped by {signal.Signals(reason).name} while the journal was replayed, after step {done} of {steps}"
        )

    def __str__(self) -> str:
        return self.text


class Beginning(NamedTuple):
    """A replica, and the journaled steps after it, which all ranks take again before they go on.

    They do so where workers keep something: only the gradients of these steps tell what was kept at the end of them.
    `load` gives what each worker kept at the replica's step; without it nothing had been kept there.
    """

    replica: Replica[State]
    steps: int = 0
    records: Iterator[Record] = iter(())
    load: Callable[[int], Local] | None = None
