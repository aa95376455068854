"""What the commands have in common that run on ranks: flags read by all and answered by one, one end for all.

Tests: tests/test_train.py, tests/test_sweep.py, tests/test_mpi.py.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import NamedTuple

from rbd_ref._launch import first_on_node
from rbd_ref.runs.files import RunError, SharedError
from rbd_ref.training.communicator import World, find_world
from rbd_ref.training.logbook import stderr
from rbd_ref.training.trainer import StopRequest


class Command(NamedTuple):
    """A command: what reads its flags (and may answer them with a status), what does its work, what Ctrl-C leaves."""

    name: str
    parse: Callable[[Sequence[str] | None], argparse.Namespace | int]
    work: Callable[[argparse.Namespace, World], int]
    interrupted: str

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """0, 2 after a sentence of what is wrong, or 128 + the number of the signal that ended it."""
        try:
            return self.on_all_ranks(arguments)
        except RunError as error:
            if first_on_node():
                stderr(f"{self.name}: {error}")
            return 2
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads: nothing more is to be said
            return 128 + signal.SIGPIPE
        except KeyboardInterrupt:
            stderr(f"{self.name}: interrupted; {self.interrupted}")
            return 130

    def on_all_ranks(self, arguments: Sequence[str] | None) -> int:
        """The command on the processes that were started together, which leave together."""
        world = find_world()

        def body() -> int:
            status = self.on_one_rank(arguments, world)
            world.lifecycle.close(status)
            return status

        return world.lifecycle.abort_on_error(body)

    def on_one_rank(self, arguments: Sequence[str] | None, world: World) -> int:
        """What one rank does."""
        flags = self._flags(arguments, world)
        if isinstance(flags, int):
            return flags
        try:
            return self.work(flags, world)
        except SharedError as error:
            if world.communicator.rank == 0:
                stderr(f"{self.name}: {error}")
            return 2

    def _flags(self, arguments: Sequence[str] | None, world: World) -> argparse.Namespace | int:
        """The flags, or the exit status where they are wrong or have been answered; rank 0 does the talking."""
        out = [sys.stdout, sys.stderr] if world.communicator.rank == 0 else [io.StringIO(), io.StringIO()]
        with redirect_stdout(out[0]), redirect_stderr(out[1]):
            try:
                return self.parse(arguments)
            except SystemExit as end:
                return int(end.code or 0)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """A request that the signals which ask a program to end are written into; the second of them ends it at once."""
    request = StopRequest()
    kinds = (signal.SIGINT, signal.SIGTERM)

    def receive(number: int, _: object) -> None:
        if request.reason:
            raise KeyboardInterrupt
        request.reason = number

    before = [signal.signal(kind, receive) for kind in kinds]
    try:
        yield request
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)
