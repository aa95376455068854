"""Waits that end: every wait is a poll that gives up after the timeout, calls the roll, and names who does not answer.

MPI itself waits for ever for a rank that hangs.
Tests: tests/test_mpi.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rbd_ref.runs.files import RunError
from rbd_ref.training.communicator import RanksLost

SPINS = 50  # polls before a waiting rank sleeps between them
NAP = 0.0002  # seconds of such a sleep
BETWEEN = 512  # polls between two looks at the clock and at who calls the roll
YIELD = getattr(os, "sched_yield", lambda: time.sleep(0))  # not every system has it
ROLL_CALL = 2.0  # seconds in which the living answer
FAILURES = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")


class SilentRanks(RunError):
    """Some ranks do not answer."""


class Waiting:
    """Waits for the ranks of a communicator; `roll` is a communicator of the same ranks for roll calls alone."""

    def __init__(self, mpi: Any, world: Any) -> None:
        self.mpi = mpi
        self.rank: int = world.rank
        self.size: int = world.size
        self.roll = world.Dup()
        self.timeout = 600.0
        self.failures = {getattr(mpi, name, None) for name in FAILURES}

    def wait(self, request: Any) -> None:
        """Until a request is done."""
        self.until(request.Test)

    def until(self, done: Callable[[], bool]) -> None:
        """Polls, then naps; a roll call after the timeout or when another rank calls it."""
        polls = 0
        began = time.monotonic()
        while not self._unless_lost(done):
            polls += 1
            if polls < SPINS:
                YIELD()
                continue
            time.sleep(NAP)
            if polls % BETWEEN == 0 and (time.monotonic() - began > self.timeout or self._is_called()):
                self._call_the_roll()

    def _is_called(self) -> bool:
        """Whether another rank calls the roll. Who only looks at memory hears from MPI here that ranks are lost."""
        return self._unless_lost(self.roll.Iprobe)

    def _unless_lost(self, ask: Callable[[], bool]) -> bool:
        """The answer to a question; MPI may say instead that ranks are lost."""
        try:
            return ask()
        except self.mpi.Exception as error:
            if error.Get_error_class() not in self.failures:
                raise
            raise RanksLost(f"ranks were lost of the {self.size} that there were") from error

    def _call_the_roll(self) -> None:
        """Name those who do not answer when everyone who waits calls everyone; the first who does answer speaks."""
        here = np.array([self.rank], dtype=np.int32)
        heard = np.full((self.size, 1), -1, dtype=np.int32)
        calls = [self.roll.Isend(here, rank) for rank in range(self.size)]
        answers = [self.roll.Irecv(heard[rank], rank) for rank in range(self.size)]
        end = time.monotonic() + ROLL_CALL
        while time.monotonic() < end and not all(answer.Test() for answer in answers):
            time.sleep(0.01)
        missing = [rank for rank in range(self.size) if heard[rank, 0] != rank]
        del calls  # kept until here: MPI reads `here` until they are done
        if any(rank not in missing for rank in range(self.rank)):
            time.sleep(ROLL_CALL)
        who = f"rank {', '.join(map(str, missing))} does not answer" if missing else "no exchange comes about"
        raise SilentRanks(
            f"{who} after {self.timeout:g} s, expected every rank to take part in each step: the run ends here and "
            "loses no step that was completed; continue with --resume, with other ranks if need be, or raise --timeout"
        )

    def free(self) -> None:
        """Collectively."""
        self.roll.Free()
