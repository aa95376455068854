"""Processes that take one task after the other: started once, so that imports and kernels are not paid for each task.

    ThisProcess   one task after the other, here
    Processes     some processes of this machine, which divide its threads
    (found)       the ranks of an MPI launcher, by a function in the entry-point group `rbd_ref.pools`

A task is a function that modules have by name, and its argument. The processes of `Processes` hear from the first one
by a pipe each, and leave no trace in the system when all are killed. They ignore the signals that ask a program to end:
the first process tells them to stop. Where the pipe is closed because the first process is gone, they stop too.
Tests: tests/test_sweep.py.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import entry_points
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from rbd_ref._machine import cores
from rbd_ref._progress import Bar
from rbd_ref.runs.files import RunError
from rbd_ref.training.communicator import World
from rbd_ref.training.trainer import StopRequest

GROUP = "rbd_ref.pools"
POLL = 0.2  # seconds between two looks at requests to stop, and between two reports
READY = "ready"
SIGNALS = (signal.SIGINT, signal.SIGTERM)
T = TypeVar("T")
R = TypeVar("R")


class Context(NamedTuple):
    """What a process has for its tasks: requests to stop, how many threads (0: all), and who is told how far it is."""

    stop: StopRequest
    threads: int
    report: Callable[[float], object]


Function = Callable[[T, Context], R]
Progress = Callable[[T, float], object]  # a task, and the share of it that is done


class Pool(Protocol):
    """Who takes tasks."""

    size: int  # how many at a time

    def run(
        self, function: Function[T, R], tasks: Sequence[T], progress: Progress[T]
    ) -> Iterator[tuple[T, R | RunError]]:
        """Each task with what the function gives for it, or with why its process ended, in the order of their ends.

        After a request to stop no task is begun.
        """


class ThisProcess:
    """One task after the other, here."""

    size = 1

    def __init__(self, stop: StopRequest) -> None:
        self.stop = stop

    def run(
        self, function: Function[T, R], tasks: Sequence[T], progress: Progress[T]
    ) -> Iterator[tuple[T, R | RunError]]:
        """In their order."""
        for task in tasks:
            if self.stop.reason:
                return
            yield task, function(task, Context(self.stop, 0, partial(progress, task)))


class RemoteRequest(StopRequest):
    """A request to stop that comes by the pipe, looked for now and then; a closed pipe is one too."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.received = 0
        self.looked = 0.0

    @property
    def reason(self) -> int:
        """The number of a signal, 0 without one."""
        now = time.monotonic()
        if not self.received and now - self.looked > POLL:
            self.looked = now
            self.received = self._receive()
        return self.received

    @reason.setter
    def reason(self, value: int) -> None:
        self.received = value

    def _receive(self) -> int:
        """What the first process has sent, which while a task runs is nothing but a signal's number."""
        try:
            return int(self.connection.recv()) if self.connection.poll() else 0
        except (EOFError, OSError):
            return int(signal.SIGTERM)


class Reporter:
    """Tells the first process how far a task is, now and then."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.last = time.monotonic()

    def __call__(self, share: float) -> None:
        """Such a share of it is done."""
        now = time.monotonic()
        if now - self.last > POLL:
            self.last = now
            with suppress(OSError):  # the request to stop will say that nobody listens
                self.connection.send(share)


def serve(connection: Connection, threads: int) -> None:
    """What a process does until the pipe is closed or a request to stop comes."""
    for kind in SIGNALS:
        signal.signal(kind, signal.SIG_IGN)
    Bar.set_lock(threading.RLock())  # tqdm's own is a semaphore of the system, which a process that is killed leaves
    context = Context(RemoteRequest(connection), threads, Reporter(connection))
    with suppress(EOFError, OSError):
        connection.send(READY)
        while not isinstance(message := _received(connection), int):
            connection.send((message if isinstance(message, RunError) else message[0](message[1], context),))


def _received(connection: Connection) -> Any:
    """A function and its task, or a signal's number; an error where this process cannot rebuild the task."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        raise
    except Exception as error:
        return RunError(
            f"the run cannot be rebuilt in another process ({error}), expected a problem of a class in a module that "
            "can be imported: move it there, or use one job"
        )


@contextmanager
def _quiet_start(threads: int) -> Iterator[None]:
    """Processes that are started meanwhile ignore the usual signals from birth, have so many threads, and import
    nothing from the current folder."""
    changes = {"NUMBA_NUM_THREADS": str(threads), "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in changes}
    main = threading.current_thread() is threading.main_thread()
    handlers = {kind: signal.signal(kind, signal.SIG_IGN) for kind in SIGNALS} if main else {}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})
        for kind, handler in handlers.items():
            signal.signal(kind, handler)


class Processes:
    """Some processes of this machine."""

    def __init__(self, size: int, stop: StopRequest) -> None:
        self.size = size
        self.stop = stop
        self.told = False  # whether the processes know of a request to stop
        self.threads = max(1, cores() // size)
        self.processes: dict[Connection, BaseProcess] = {}
        self.idle: list[Connection] = []

    def _start(self) -> None:
        """One more; it says when it is ready."""
        context = get_context("spawn")
        mine, other = context.Pipe()
        process = context.Process(target=serve, args=(other, self.threads))
        with _quiet_start(self.threads):
            process.start()
        other.close()
        self.processes[mine] = process

    def run(
        self, function: Function[T, R], tasks: Sequence[T], progress: Progress[T]
    ) -> Iterator[tuple[T, R | RunError]]:
        """As many at a time as there are processes."""
        self._prepare(tasks)
        waiting = deque(tasks)
        busy: dict[Connection, T] = {}
        while waiting or busy:
            if self.stop.reason and not self.told:
                waiting.clear()
                self._tell(busy)
            while waiting and self.idle:
                self._hand_out(function, waiting.popleft(), busy)
            for connection in cast(list[Connection], wait(self._awaited(), POLL)):
                message = self._message(connection, started=connection in busy)
                if isinstance(message, float):
                    progress(busy[connection], message)
                elif message is not READY:
                    yield busy.pop(connection), message

    def _prepare(self, tasks: Sequence[T]) -> None:
        """Start the processes, if there are tasks, and these can be sent to them."""
        try:
            pickle.dumps(tasks[:1])
        except Exception as error:
            raise RunError(
                f"a run cannot be sent to another process ({error}), expected a problem that can be pickled: leave out "
                "what cannot, or use one job"
            ) from error
        while tasks and len(self.processes) < self.size:
            self._start()

    def _awaited(self) -> list[Connection]:
        """Those that have something to say: a result, or that they are ready."""
        return [connection for connection in self.processes if connection not in self.idle]

    def _hand_out(self, function: Function[T, R], task: T, busy: dict[Connection, T]) -> None:
        """Give a task to a process that has none."""
        connection = self.idle.pop()
        busy[connection] = task
        with suppress(OSError):  # it is gone, as its end of the pipe will say
            connection.send((function, task))

    def _message(self, connection: Connection, started: bool) -> Any:
        """A share, READY, or what a task has given; a process that ends is replaced, if it ended in a task."""
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return self._bury(connection, started)
        if isinstance(message, float):
            return message
        self.idle.append(connection)
        return READY if message == READY else message[0]

    def _bury(self, connection: Connection, started: bool) -> RunError:
        """What became of a process that has closed its pipe."""
        process = self.processes.pop(connection)
        process.join()
        connection.close()
        status = process.exitcode or 0
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        if not started:
            raise RunError(
                f"a process for the runs ended {how} before it was ready, expected one that starts: call from a "
                'program below `if __name__ == "__main__":`, or use one job'
            )
        self._start()
        return RunError(f"the process of the run ended {how}, expected it to train to the end: look at memory limits")

    def _tell(self, busy: dict[Connection, T]) -> None:
        """Ask those who work, once, to stop after their step."""
        self.told = True
        for connection in busy:
            with suppress(OSError):
                connection.send(self.stop.reason)

    def close(self) -> None:
        """End all processes; one that works ends after its step, with a checkpoint."""
        for connection, process in self.processes.items():
            connection.close()
            process.join()
        self.processes.clear()


@contextmanager
def local_pool(size: int, stop: StopRequest) -> Iterator[Pool]:
    """So many processes, or where one is enough, this one."""
    if size <= 1:
        yield ThisProcess(stop)
        return
    pool = Processes(size, stop)
    try:
        yield pool
    finally:
        pool.close()


def lead_ranks(world: World, stop: StopRequest, body: Callable[[Pool], int]) -> int:
    """What `body` gives on rank 0 with all other ranks as its pool, on every rank."""
    points = list(entry_points(group=GROUP))
    if not points:
        raise RunError("no pool of MPI ranks is installed, expected rbd_mpi: pip install rbd-ref[mpi]")
    return cast(int, points[0].load()(world, stop, body))
