"""The ranks of one node: memory that they share, and updates that they rebuild together, to the same bits.

RBD_REF_RANKS_PER_NODE=n makes each n neighbouring ranks a node of their own, to see on one machine what several do.
Tests: tests/test_mpi.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from rbd_ref._types import F32, Float32Array
from rbd_ref.methods.descent import Rebuild

ROOM = 2**24  # floats in the window through which updates are added, at most


class Shared:
    """An array in memory that all ranks of a node see."""

    def __init__(self, mpi: Any, comm: Any, shape: tuple[int, ...]) -> None:
        size = int(np.prod(shape)) * 4
        self.window = mpi.Win.Allocate_shared(size if comm.rank == 0 else 0, 4, comm=comm)
        buffer, _ = self.window.Shared_query(0)
        self.array: Float32Array = np.ndarray(shape, dtype=F32, buffer=buffer)
        self.window.Lock_all()

    def free(self) -> None:
        """Collectively."""
        self.array = np.empty(0, dtype=F32)
        self.window.Unlock_all()
        self.window.Free()


class Node:
    """This rank's node."""

    def __init__(self, mpi: Any, comm: Any, wait: Callable[[Any], None]) -> None:
        self.mpi, self.wait = mpi, wait
        group = int(os.environ.get("RBD_REF_RANKS_PER_NODE") or 0)
        self.comm = comm.Split_type(mpi.COMM_TYPE_SHARED)
        if group:
            whole, self.comm = self.comm, self.comm.Split(comm.rank // group, comm.rank)
            whole.Free()
        self.rank, self.size = self.comm.rank, self.comm.size
        self.members: list[int] = self.comm.allgather(comm.rank)
        self.arrays: dict[str, Shared] = {}

    def shared(self, name: str, shape: tuple[int, ...]) -> Float32Array:
        """The node's array of this name and shape; asked for by all its ranks at once."""
        if name not in self.arrays or self.arrays[name].array.shape != shape:
            if name in self.arrays:
                self.arrays.pop(name).free()
            self.arrays[name] = Shared(self.mpi, self.comm, shape)
        return self.arrays[name].array

    def barrier(self) -> None:
        """What any rank of the node wrote before, all see afterwards."""
        for shared in self.arrays.values():
            shared.window.Sync()
        self.wait(self.comm.Ibarrier())
        for shared in self.arrays.values():
            shared.window.Sync()

    def slice(self, length: int) -> slice:
        """This rank's part of so many elements."""
        return slice(length * self.rank // self.size, length * (self.rank + 1) // self.size)

    def by_parts(self, rebuild: Rebuild) -> Float32Array:
        """Each rank rebuilds a part of the elements of every update."""
        total = self.shared("total", (rebuild.D,))
        first, part = rebuild.part(0, self.rank, self.size)
        for j in range(1, rebuild.bases):
            part = part + rebuild.part(j, self.rank, self.size)[1]
        self.barrier()
        total[first : first + part.size] = part
        self.barrier()
        return total

    def by_workers(self, rebuild: Rebuild, mine: list[int]) -> Float32Array:
        """Each rank lays the updates of some workers before all; then each adds a part of the elements, in order."""
        updates = {j: rebuild.whole(j) for j in mine}
        width = max(1, min(rebuild.D, ROOM // rebuild.bases))
        table, total = self.shared("table", (rebuild.bases, width)), self.shared("total", (rebuild.D,))
        for start in range(0, rebuild.D, width):
            n = min(width, rebuild.D - start)
            for j, u in updates.items():
                table[j, :n] = u[start : start + n]
            self.barrier()
            part = self.slice(n)
            added = table[0, part].copy()
            for j in range(1, rebuild.bases):
                added += table[j, part]
            total[start + part.start : start + part.stop] = added
            self.barrier()
        return total

    def keep(self, theta: Float32Array) -> Float32Array:
        """theta in one place for the node: each rank writes a part, none while another still reads the one before."""
        self.turn = 1 - getattr(self, "turn", 0)
        kept, part = self.shared(f"theta {self.turn}", theta.shape), self.slice(theta.size)
        kept[part] = theta[part]
        self.barrier()
        return kept

    def close(self) -> None:
        """Free all windows, in the same order everywhere."""
        for name in list(self.arrays):
            self.arrays.pop(name).free()
        self.comm.Free()
