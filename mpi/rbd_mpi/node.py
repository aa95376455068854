"""The ranks of one node: weights that they hold once, and updates that they rebuild together, to the same bits.

Tests: tests/test_mpi.py.
"""

from __future__ import annotations

from collections.abc import Callable

from rbd_mpi.communicator import MpiCommunicator
from rbd_mpi.memory import NodeMemory
from rbd_ref._machine import cores
from rbd_ref._types import Float32Array
from rbd_ref.methods.base import PendingUpdate, sum_updates
from rbd_ref.training.communicator import share

TABLE_FLOATS = 2**24  # floats in the window through which updates are added, at most


class MpiNode:
    """This rank's node."""

    def __init__(self, communicator: MpiCommunicator, memory: NodeMemory) -> None:
        self.communicator = communicator
        self.memory = memory
        self.rank = memory.rank
        self.size = memory.size
        self.threads = max(1, cores() // memory.processes)
        self.cooperate = True
        self.theta_buffer = 0

    def first_on_each_node(self, body: Callable[[], object]) -> None:
        """The first rank of each node, then its others."""
        try:
            if self.rank == 0:
                body()
        finally:
            self.memory.barrier()
        if self.rank > 0:
            body()

    def sum_updates(self, pending: PendingUpdate) -> Float32Array:
        """By the ranks of the node together, or by each rank for itself."""
        if not self.cooperate or self.size == 1:
            return sum_updates(pending)
        if pending.terms < self.size:
            return self._sum_by_parts(pending)
        return self._sum_by_terms(pending)

    def share_memory(self, theta: Float32Array) -> Float32Array:
        """theta once for the node: each rank writes a part, none while another still reads the one before."""
        if not self.cooperate or self.size == 1:
            return theta
        self.theta_buffer = 1 - self.theta_buffer
        shared = self.memory.array(f"theta {self.theta_buffer}", theta.shape)
        mine = self._slice(theta.size)
        shared[mine] = theta[mine]
        self.memory.barrier()
        return shared

    def _slice(self, length: int) -> slice:
        """This rank's part of so many elements."""
        return slice(length * self.rank // self.size, length * (self.rank + 1) // self.size)

    def _my_terms(self, terms: int) -> list[int]:
        """The updates that this rank makes for its node: its own workers', and a share of those on other nodes."""
        rank, size = self.communicator.rank, self.communicator.size
        here = {j for member in self.communicator.node_ranks for j in share(terms, member, size)}
        elsewhere = [j for j in range(terms) if j not in here]
        return [*share(terms, rank, size), *elsewhere[self.rank :: self.size]]

    def _sum_by_parts(self, pending: PendingUpdate) -> Float32Array:
        """Each rank rebuilds a part of the elements of every update."""
        total = self.memory.array("total", (pending.D,))
        first, part = pending.part(0, self.rank, self.size)
        for j in range(1, pending.terms):
            part = part + pending.part(j, self.rank, self.size)[1]
        self.memory.barrier()
        total[first : first + part.size] = part
        self.memory.barrier()
        return total

    def _sum_by_terms(self, pending: PendingUpdate) -> Float32Array:
        """Each rank lays some of the updates before all; then each adds a part of the elements, in order."""
        updates = {j: pending.term(j) for j in self._my_terms(pending.terms)}
        width = max(1, min(pending.D, TABLE_FLOATS // pending.terms))
        table = self.memory.array("table", (pending.terms, width))
        total = self.memory.array("total", (pending.D,))
        for start in range(0, pending.D, width):
            n = min(width, pending.D - start)
            for j, u in updates.items():
                table[j, :n] = u[start : start + n]
            self.memory.barrier()
            part = self._slice(n)
            added = table[0, part].copy()
            for j in range(1, pending.terms):
                added += table[j, part]
            total[start + part.start : start + part.stop] = added
            self.memory.barrier()
        return total
