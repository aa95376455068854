"""Numba's CUDA simulator, mended: shared memory that is shared, and barriers that nobody polls for.

The simulator's threads look for the array of a line, and one that finds none makes it: of two that look at once each
makes its own, and what the one writes the other never sees. Here they look one after the other. And the simulator asks
all its threads in a loop whether they have come to a barrier, which takes most of its time; here they say so.
Tests: tests/test_cuda_backend.py.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
from numba.cuda.simulator import kernel, kernelapi
from numba.np.numpy_support import as_dtype

LOCK = threading.Lock()


def array(self: Any, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """The array of the line that asks for it, the same for all threads of a CUDA block."""
    caller = sys._getframe(1)
    line = caller.f_code, caller.f_lineno
    with LOCK:
        if line not in self._allocations:
            self._allocations[line] = np.empty(shape, as_dtype(dtype))
        return np.asarray(self._allocations[line])


class Thread(kernel.BlockThread):
    """A thread of a CUDA block, which tells the block when it comes to a barrier or to its end."""

    def run(self) -> None:
        """To the end, where an exception is kept."""
        super().run()  # type: ignore[no-untyped-call]
        self._manager.come.release()

    def syncthreads(self) -> None:
        """Wait until all threads that have not ended are here."""
        self.syncthreads_blocked = True
        self._manager.come.release()
        self.syncthreads_event.wait()
        self.syncthreads_event.clear()
        if self.abort:
            raise RuntimeError("another thread has failed")


class Block(kernel.BlockManager):
    """A CUDA block: all threads run at once from barrier to barrier."""

    def run(self, grid_point: tuple[int, ...], *arguments: Any) -> None:
        """One block of the grid; the first exception of a thread ends it."""
        self.come = threading.Semaphore(0)
        make: Any = Thread
        places = np.ndindex(*self._block_dim)
        running = [make(lambda: self._f(*arguments), self, grid_point, place, self._debug) for place in places]
        for thread in running:
            thread.start()
        while running:
            for _ in running:
                self.come.acquire()
            failed = [thread.exception for thread in running if thread.exception]
            running = [thread for thread in running if thread.syncthreads_blocked]
            for thread in running:
                thread.abort, thread.syncthreads_blocked = bool(failed), False
                thread.syncthreads_event.set()
            if failed:
                raise failed[0][0].with_traceback(failed[0][1])


def mend() -> None:
    """From now on the simulator's shared arrays and blocks are these."""
    simulated: Any = kernelapi.FakeCUDAShared
    simulated.array = array
    launched: Any = kernel
    launched.BlockManager = Block
