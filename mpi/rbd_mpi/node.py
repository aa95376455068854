"""The ranks of one node: memory that they share, and updates that they rebuild together, to the same bits.

RBD_REF_RANKS_PER_NODE=n makes each n neighbouring ranks a node of their own, to see on one machine what several do.
Tests: tests/test_mpi.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from rbd_mpi.communicator import MpiCommunicator
from rbd_mpi.start import free_memory
from rbd_mpi.watchdog import Watchdog
from rbd_mpi.watcher import SHARED
from rbd_ref._machine import cores
from rbd_ref._types import F32, Float32Array
from rbd_ref.methods.base import PendingUpdate, sum_updates
from rbd_ref.runs.files import RunError
from rbd_ref.training.communicator import share

TABLE_FLOATS = 2**24  # floats in the window through which updates are added, at most


def check_room(size: int) -> None:
    """Refuse an array that shared memory has no room for: it could be allocated, and writing to it would be fatal."""
    if not SHARED.is_dir():
        return
    free = free_memory()
    if size > free:
        raise RunError(
            f"{SHARED} has {free / 1e6:.1f} MB free, expected {size / 1e6:.1f} MB for what the ranks of a node share: "
            "enlarge it (Docker: --shm-size 1g), or use --reconstruct replicate"
        )


class SharedArray:
    """An array in memory that all ranks of a node see."""

    def __init__(self, mpi: Any, comm: Any, shape: tuple[int, ...]) -> None:
        size = 4 * math.prod(shape)
        self.window = mpi.Win.Allocate_shared(size if comm.rank == 0 else 0, 4, comm=comm)
        buffer, _ = self.window.Shared_query(0)
        self.array: Float32Array = np.ndarray(shape, dtype=F32, buffer=buffer)
        self.window.Lock_all()

    def free(self) -> None:
        """Collectively."""
        self.array = np.empty(0, dtype=F32)
        self.window.Unlock_all()
        self.window.Free()


class MpiNode:
    """This rank's node."""

    def __init__(self, mpi: Any, communicator: MpiCommunicator, watchdog: Watchdog) -> None:
        self.mpi = mpi
        self.communicator = communicator
        self.watchdog = watchdog
        self.comm = _ranks_of_node(mpi, communicator.comm)
        self.rank: int = self.comm.rank
        self.size: int = self.comm.size
        self.members: list[int] = self.comm.allgather(communicator.rank)
        self.threads = max(1, cores() // self.size)
        self.cooperate = True
        self.arrays: dict[str, SharedArray] = {}
        self.theta_buffer = 0

    def first_on_each_node(self, body: Callable[[], object]) -> None:
        """The first rank of each node, then its others."""
        try:
            if self.rank == 0:
                body()
        finally:
            self.barrier()
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
        shared = self._shared(f"theta {self.theta_buffer}", theta.shape)
        mine = self._slice(theta.size)
        shared[mine] = theta[mine]
        self.barrier()
        return shared

    def barrier(self) -> None:
        """What any rank of the node wrote before, all see afterwards."""
        for shared in self.arrays.values():
            shared.window.Sync()
        self.communicator.waiting.wait(self.comm.Ibarrier())
        for shared in self.arrays.values():
            shared.window.Sync()

    def free(self) -> None:
        """Free all windows, in the same order everywhere."""
        for name in list(self.arrays):
            self._free(name)
        with self.watchdog.guard("MPI_Comm_free"):
            self.comm.Free()

    def _free(self, name: str) -> None:
        """Free the window of this name, with all ranks of the node."""
        with self.watchdog.guard("MPI_Win_free"):
            self.arrays.pop(name).free()

    def _shared(self, name: str, shape: tuple[int, ...]) -> Float32Array:
        """The node's array of this name and shape; asked for by all its ranks at once."""
        if name not in self.arrays or self.arrays[name].array.shape != shape:
            if name in self.arrays:
                self._free(name)
            if self.rank == 0:
                check_room(4 * math.prod(shape))
            with self.watchdog.guard("MPI_Win_allocate_shared"):
                self.arrays[name] = SharedArray(self.mpi, self.comm, shape)
        return self.arrays[name].array

    def _slice(self, length: int) -> slice:
        """This rank's part of so many elements."""
        return slice(length * self.rank // self.size, length * (self.rank + 1) // self.size)

    def _my_terms(self, terms: int) -> list[int]:
        """The updates that this rank makes for its node: its own workers', and a share of those on other nodes."""
        rank, size = self.communicator.rank, self.communicator.size
        here = {j for member in self.members for j in share(terms, member, size)}
        elsewhere = [j for j in range(terms) if j not in here]
        return [*share(terms, rank, size), *elsewhere[self.rank :: self.size]]

    def _sum_by_parts(self, pending: PendingUpdate) -> Float32Array:
        """Each rank rebuilds a part of the elements of every update."""
        total = self._shared("total", (pending.D,))
        first, part = pending.part(0, self.rank, self.size)
        for j in range(1, pending.terms):
            part = part + pending.part(j, self.rank, self.size)[1]
        self.barrier()
        total[first : first + part.size] = part
        self.barrier()
        return total

    def _sum_by_terms(self, pending: PendingUpdate) -> Float32Array:
        """Each rank lays some of the updates before all; then each adds a part of the elements, in order."""
        updates = {j: pending.term(j) for j in self._my_terms(pending.terms)}
        width = max(1, min(pending.D, TABLE_FLOATS // pending.terms))
        table = self._shared("table", (pending.terms, width))
        total = self._shared("total", (pending.D,))
        for start in range(0, pending.D, width):
            n = min(width, pending.D - start)
            for j, u in updates.items():
                table[j, :n] = u[start : start + n]
            self.barrier()
            part = self._slice(n)
            added = table[0, part].copy()
            for j in range(1, pending.terms):
                added += table[j, part]
            total[start + part.start : start + part.stop] = added
            self.barrier()
        return total


def _ranks_of_node(mpi: Any, comm: Any) -> Any:
    """The communicator of the ranks that share memory, or of as many neighbours as the environment says."""
    group = int(os.environ.get("RBD_REF_RANKS_PER_NODE") or 0)
    whole = comm.Split_type(mpi.COMM_TYPE_SHARED)
    if not group:
        return whole
    part = whole.Split(comm.rank // group, comm.rank)
    whole.Free()
    return part
