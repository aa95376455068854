"""The communicator over MPI: coefficients by Allgather, sums by everyone in the same order.

Nothing is reduced by MPI, which may add floats in another order on each rank.
Tests: tests/test_mpi.py.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from rbd_mpi.waiting import Waiting
from rbd_ref._types import F32, Float32Array

T = TypeVar("T")


class MpiCommunicator:
    """All ranks of a world of MPI's."""

    def __init__(self, world: Any, waiting: Waiting) -> None:
        self.world = world
        self.waiting = waiting
        self.comm = world.Dup()
        self.rank: int = world.rank
        self.size: int = world.size
        self.bytes_sent = 0

    def allgather(self, value: T) -> list[T]:
        """The values of all ranks, of any kind: their lengths first, then their bytes."""
        mine = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
        sizes = np.empty(self.size, dtype=np.int64)
        self.waiting.wait(self.comm.Iallgather(np.array([mine.size], dtype=np.int64), sizes))
        received = np.empty(int(sizes.sum()), dtype=np.uint8)
        self.waiting.wait(self.comm.Iallgatherv(mine, (received, sizes.tolist())))
        return [pickle.loads(part.tobytes()) for part in np.split(received, np.cumsum(sizes)[:-1])]

    def allgather_rows(self, rows: Float32Array, counts: Sequence[int]) -> Float32Array:
        """The rows of all ranks by one Allgather."""
        columns = rows.shape[1]
        received = np.empty((sum(counts), columns), dtype=F32)
        self.waiting.wait(self.comm.Iallgatherv(rows, (received, [columns * count for count in counts])))
        self.bytes_sent += rows.nbytes
        return received

    def broadcast(self, value: T) -> T:
        """What rank 0 has."""
        return self.allgather(value if self.rank == 0 else None)[0]  # type: ignore[return-value]

    def barrier(self) -> None:
        """Nobody goes on before all are here."""
        self.waiting.wait(self.comm.Ibarrier())

    def abort(self, status: int) -> NoReturn:
        """End every rank, at once."""
        self.world.Abort(status)
        os._exit(status)  # where MPI comes back

    def free(self) -> None:
        """Collectively."""
        self.comm.Free()
