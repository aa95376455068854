"""The communicator over MPI: all coefficients to all ranks, sums by everyone in the same order.

Nothing is reduced by MPI, which may add floats in another order on each rank.
Tests: tests/test_mpi.py.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from rbd_mpi.exchange import TABLES, RowExchange
from rbd_mpi.memory import NodeMemory
from rbd_mpi.waiting import Waiting
from rbd_ref._types import Float32Array

T = TypeVar("T")


class MpiCommunicator:
    """All ranks of a world of MPI's."""

    def __init__(self, mpi: Any, world: Any, waiting: Waiting, memory: NodeMemory) -> None:
        self.world = world
        self.waiting = waiting
        self.memory = memory
        self.rank: int = world.rank
        self.size: int = world.size
        self.bytes_sent = 0
        with memory.watchdog.guard("MPI_Comm_dup"):
            self.comm = world.Dup()
            self.leaders = self.comm.Split(0 if memory.rank == 0 else mpi.UNDEFINED, self.rank)
            firsts: list[int] = self.comm.allgather(memory.comm.bcast(self.rank))
        nodes: dict[int, list[int]] = {}  # the ranks of each by its first one, in that order
        for rank, first in enumerate(firsts):
            nodes.setdefault(first, []).append(rank)
        self.node_ranks = nodes[firsts[self.rank]]
        alone = NodeMemory(mpi, mpi.COMM_SELF, waiting, memory.watchdog)
        self.by_rank = RowExchange(self.rank, [[rank] for rank in range(self.size)], alone, self.comm, waiting)
        self.by_node = RowExchange(self.rank, list(nodes.values()), memory, self.leaders, waiting)
        self.exchange = self.by_rank
        self.shape = (0, 0)

    @property
    def bytes_received(self) -> int:
        """Of rows, by messages to this rank."""
        return self.by_rank.bytes_received + self.by_node.bytes_received

    def allgather(self, value: T) -> list[T]:
        """The values of all ranks, of any kind: their lengths first, then their bytes."""
        mine = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
        sizes = np.empty(self.size, dtype=np.int64)
        self.waiting.wait(self.comm.Iallgather(np.array([mine.size], dtype=np.int64), sizes))
        received = np.empty(int(sizes.sum()), dtype=np.uint8)
        self.waiting.wait(self.comm.Iallgatherv(mine, (received, sizes.tolist())))
        return [pickle.loads(part.tobytes()) for part in np.split(received, np.cumsum(sizes)[:-1])]

    def allgather_rows(self, rows: Float32Array, counts: Sequence[int]) -> Float32Array:
        """The rows of all ranks, where there is room for it once in each node."""
        shape = (sum(counts), rows.shape[1])
        if shape != self.shape:
            self.exchange = self._choose(shape)
            self.shape = shape
        self.bytes_sent += rows.nbytes
        return self.exchange.allgather(rows, counts)

    def _choose(self, shape: tuple[int, int]) -> RowExchange:
        """Through the memory of nodes if all of them have room for it and get it, else from rank to rank."""
        size = 4 * math.prod(shape) * len(TABLES)
        self.memory.release(*TABLES)
        if all(self.allgather(self.memory.rank > 0 or self.memory.offers(size))):
            if all(self.allgather(self.memory.obtain(TABLES, shape))):
                return self.by_node
            self.memory.release(*TABLES)
        return self.by_rank

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

    def revoke(self) -> None:
        """Have all who wait for messages of these ranks give up, where ranks were lost."""
        for comm in (self.memory.comm, self.leaders, self.comm, self.waiting.roll, self.world):
            if comm:
                comm.Revoke()

    def free(self) -> None:
        """Collectively."""
        if self.leaders:
            self.leaders.Free()
        self.comm.Free()
