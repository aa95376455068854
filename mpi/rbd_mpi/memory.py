"""Memory that the ranks of a node share, and turns by which they wait for each other in it.

A barrier of MPI's takes log2(n) rounds of messages, and where ranks outnumber cores each round has to wait for its
senders to be scheduled. Here every rank has a number in shared memory, the turns that it has taken, which the others
read: one round, whatever n is.
RBD_REF_RANKS_PER_NODE=n makes each n neighbouring ranks a node of their own, to see on one machine what several do.
Tests: tests/test_mpi.py, tests/test_hangs.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from rbd_mpi.start import free_memory
from rbd_mpi.waiting import Waiting
from rbd_mpi.watchdog import Watchdog
from rbd_mpi.watcher import SHARED
from rbd_ref._types import F32, Float32Array
from rbd_ref.runs.files import RunError

APART = 8  # int64s from one rank's turns to the next: a cache line, so that no two ranks write to the same
SPARE = 3  # times what is asked for has to be free where there is another way: weights need memory too


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


def ranks_of_node(mpi: Any, comm: Any) -> Any:
    """The communicator of the ranks that share memory, or of as many neighbours as the environment says."""
    group = int(os.environ.get("RBD_REF_RANKS_PER_NODE") or 0)
    whole = comm.Split_type(mpi.COMM_TYPE_SHARED)
    if not group:
        return whole
    part = whole.Split(comm.rank // group, comm.rank)
    whole.Free()
    return part


class SharedArray:
    """An array in memory that all ranks of a node see."""

    def __init__(self, mpi: Any, comm: Any, shape: tuple[int, ...], dtype: type[np.generic] = F32) -> None:
        size = np.dtype(dtype).itemsize
        self.window = mpi.Win.Allocate_shared(size * math.prod(shape) if comm.rank == 0 else 0, size, comm=comm)
        buffer, _ = self.window.Shared_query(0)
        self.array: np.ndarray[Any, Any] = np.ndarray(shape, dtype=dtype, buffer=buffer)
        self.window.Lock_all()

    def free(self) -> None:
        """Collectively."""
        self.array = np.empty(0, dtype=F32)
        self.window.Unlock_all()
        self.window.Free()


class NodeMemory:
    """What the ranks of a node share. All is called by all of them.

    A rank alone has arrays of its own. Where MPI refuses to share memory, every rank of the node is one alone.
    """

    def __init__(self, mpi: Any, comm: Any, waiting: Waiting, watchdog: Watchdog) -> None:
        self.mpi = mpi
        self.waiting = waiting
        self.watchdog = watchdog
        self.arrays: dict[str, SharedArray] = {}
        self.processes: int = comm.size  # of this node, whether they share memory or not
        self.turn = 0
        self.taken = np.zeros(1, dtype=np.int64)  # turns by rank
        self.comm = self._share_turns(comm) if comm.size > 1 else comm
        self.rank: int = self.comm.rank
        self.size: int = self.comm.size

    def _share_turns(self, comm: Any) -> Any:
        """The communicator of those that have each other's turns in sight: all of this one, or each by itself."""
        with self.watchdog.guard("MPI_Win_allocate_shared"):
            try:
                turns = SharedArray(self.mpi, comm, (comm.size, APART), np.int64)
            except self.mpi.Exception:
                alone = comm.Split(comm.rank)
                comm.Free()
                return alone
            self.arrays["turns"] = turns
            self.taken = turns.array[:, 0]
            self.taken[comm.rank] = 0
            turns.window.Sync()
            comm.Barrier()
        return comm

    def arrive(self) -> None:
        """What this rank wrote before, all see who have waited for this turn of its."""
        self._sync()
        self.turn += 1
        self.taken[self.rank] = self.turn  # one aligned store: others see this number or the one before

    def wait_for_all(self) -> None:
        """Until every rank has arrived as often as this one."""
        self.waiting.until(lambda: bool(self.taken.min() >= self.turn))
        self._sync()

    def wait_for_first(self) -> None:
        """Until the first rank has."""
        self.waiting.until(lambda: bool(self.taken[0] >= self.turn))
        self._sync()

    def barrier(self) -> None:
        """What any rank of the node wrote before, all see afterwards."""
        self.arrive()
        self.wait_for_all()

    def _sync(self) -> None:
        """No load or store of this rank is moved across this by compiler or processor."""
        for shared in self.arrays.values():
            shared.window.Sync()

    def array(self, name: str, shape: tuple[int, ...]) -> Float32Array:
        """The node's array of this name and shape; a rank alone has a new one each time."""
        if self.size == 1:
            return np.empty(shape, dtype=F32)
        if name not in self.arrays or self.arrays[name].array.shape != shape:
            self.release(name)
            if self.rank == 0:
                check_room(4 * math.prod(shape))
            self._allocate(name, shape)
        return self.arrays[name].array

    def _allocate(self, name: str, shape: tuple[int, ...]) -> None:
        """A window of this name."""
        with self.watchdog.guard("MPI_Win_allocate_shared"):
            self.arrays[name] = SharedArray(self.mpi, self.comm, shape)

    def offers(self, size: int) -> bool:
        """Whether so many bytes can be taken and more than that are left."""
        return self.size == 1 or not SHARED.is_dir() or SPARE * size <= free_memory()

    def obtain(self, names: Sequence[str], shape: tuple[int, ...]) -> bool:
        """Whether there are now arrays of these names and this shape."""
        try:
            for name in names if self.size > 1 else ():
                self._allocate(name, shape)
        except self.mpi.Exception:
            return False
        return True

    def release(self, *names: str) -> None:
        """Free the windows of these names, where there are any, in the same order everywhere."""
        for name in names:
            if name in self.arrays:
                with self.watchdog.guard("MPI_Win_free"):
                    self.arrays.pop(name).free()

    def free(self) -> None:
        """Free all windows, in the same order everywhere."""
        self.taken = np.zeros(self.size, dtype=np.int64)
        self.release(*self.arrays)
        with self.watchdog.guard("MPI_Comm_free"):
            self.comm.Free()
