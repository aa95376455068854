"""The ranks of MPI as a pool: rank 0 hands out tasks, by mpi4py.futures, and all others take them.

Tests: tests/test_sweep.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

from rbd_mpi.start import start
from rbd_ref.runs.files import RunError
from rbd_ref.training.communicator import World
from rbd_ref.training.pools import POLL, Context, Function, Pool, Progress
from rbd_ref.training.trainer import StopRequest

T = TypeVar("T")
R = TypeVar("R")
CONTEXTS: list[Context] = []  # this rank's, once it serves


def call(function: Function[T, R], task: T) -> R:
    """A task, on the rank that has taken it."""
    return function(task, CONTEXTS[-1])


class Ranks:
    """All ranks but the first, as rank 0 sees them."""

    def __init__(self, executor: Any, size: int, stop: StopRequest) -> None:
        self.executor = executor
        self.size = size
        self.stop = stop

    def run(
        self, function: Function[T, R], tasks: Sequence[T], progress: Progress[T]
    ) -> Iterator[tuple[T, R | RunError]]:
        """As many at a time as there are ranks. Signals reach every rank by its launcher; here they end the waiting."""
        futures: dict[Future[R], T] = {self.executor.submit(call, function, task): task for task in tasks}
        while futures:
            if self.stop.reason:
                futures = {future: task for future, task in futures.items() if not future.cancel()}
            for future in wait(futures, POLL, FIRST_COMPLETED).done:
                yield futures.pop(future), future.result()


def lead(world: World, stop: StopRequest, body: Callable[[Pool], int]) -> int:
    """What `body` gives on rank 0; the other ranks take its tasks until it has ended."""
    from mpi4py.futures import MPICommExecutor

    CONTEXTS.append(Context(stop, world.node.threads, lambda share: None))
    status = 0
    with MPICommExecutor(start().mpi.COMM_WORLD, root=0) as executor:
        if executor is not None:
            status = body(Ranks(executor, world.communicator.size - 1, stop))
    return world.communicator.broadcast(status)
