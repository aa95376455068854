"""What the workers of this rank keep to themselves between two steps, and how it comes to and from rank 0's files.

Nothing of it is sent while training. At a checkpoint, and where a run is resumed, the states of one worker after the
other pass by all ranks, so that only rank 0 has to reach the run's folder and none ever holds the states of all.
Tests: tests/test_memory_resume.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rbd_ref._types import F32, Float32Array
from rbd_ref.methods.base import Local, Method, NoLocal, State, size_of
from rbd_ref.training.communicator import Communicator, share


class LocalStates:
    """The local states of the workers that this rank plays, of `count` workers in all."""

    def __init__(self, count: int, communicator: Communicator) -> None:
        self.communicator = communicator
        self.shares = [share(count, rank, communicator.size) for rank in range(communicator.size)]
        self.blank: Local = NoLocal()
        self.states: dict[int, Any] = {}

    def reset(self, method: Method[State, Any]) -> None:
        """From here on the workers use this method, and have kept nothing."""
        self.blank = method.init_local()
        self.states = dict.fromkeys(self.shares[self.communicator.rank], self.blank)

    @property
    def workers(self) -> range:
        """All workers that keep something, here or elsewhere."""
        return range(self.shares[-1].stop if size_of(self.blank) else 0)

    def collect(self, worker: int) -> Any:
        """What a worker keeps, to be called by all ranks."""
        owner = next(rank for rank, workers in enumerate(self.shares) if worker in workers)
        return self._spread(owner, self.states.get(worker))

    def place(self, worker: int, local: Local | None) -> None:
        """A worker keeps what rank 0 has, to be called by all ranks."""
        found = self._spread(0, local)
        if worker in self.states:
            self.states[worker] = found

    def _spread(self, rank: int, local: Local | None) -> Any:
        """What a rank has, on all of them."""
        counts = [int(other == rank) for other in range(self.communicator.size)]
        kind: Any = type(self.blank)
        arrays = [] if local is None else list(local._asdict().values())
        return kind(*(self._row(i, counts, arrays) for i in range(len(kind._fields))))

    def _row(self, i: int, counts: list[int], arrays: list[Float32Array]) -> Float32Array:
        """Array i of the rank that counts."""
        expected = list(self.blank._asdict().values())[i]
        mine = arrays[i].reshape(1, -1) if counts[self.communicator.rank] else np.empty((0, expected.size), dtype=F32)
        found = self.communicator.allgather_rows(mine, counts)
        return found.reshape(expected.shape).copy()  # the next exchange writes over what was found
