"""The rank's side of its watcher: calls of MPI that block are made under `guard`, and end after the timeout.

Waits that can be polled are not made here but in waiting.py, which can name any rank of any node.
May import: nothing but the standard library and watcher, as MPI is started before anything else is imported.
Tests: tests/test_hangs.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rbd_mpi.watcher import Member, Roll

TIMEOUT = 600.0  # seconds, until the settings are known
SOON = 5.0  # seconds that MPI_Abort may take


class Watchdog:
    """A watcher process, and this rank's slot in its node's roll. If the process cannot be started, nobody watches."""

    def __init__(self, rank: int, size: int, local: int, roll: Roll | None) -> None:
        self.rank = rank
        self.roll = roll
        self.timeout = TIMEOUT
        self.stage = 0
        script = str(Path(__file__).with_name("watcher.py"))
        arguments = [str(number) for number in (rank, size, local)]
        arguments += [roll.path, str(roll.handle)] if roll else []
        self.process: subprocess.Popen[bytes] | None = None
        with suppress(OSError):
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", script, *arguments],
                pass_fds=[roll.handle] if roll else [],  # by then the file may have lost its name
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # what ends the ranks leaves it alone
            )

    def send(self, line: str) -> None:
        """Tell the watcher."""
        if self.process is not None and self.process.stdin is not None:
            with suppress(OSError):  # someone has killed it
                os.write(self.process.stdin.fileno(), f"{line}\n".encode())

    @contextmanager
    def guard(self, place: str, seconds: float | None = None) -> Iterator[None]:
        """A call of MPI that all ranks of this node make together, and that ends in time or ends the rank."""
        self.stage += 1
        if self.roll is not None:
            self.roll.enter(self.rank, Member(os.getpid(), self.stage))
        self.send(f"arm {seconds or self.timeout:g} {place}")
        try:
            yield
        finally:
            self.send("off")

    def claim(self) -> bool:
        """Whether it is for this rank to say what is wrong; its watcher is silent from now on."""
        return self.roll is None or self.roll.claim()

    def dismiss(self) -> None:
        """All ranks have left together."""
        self.send("bye")
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()
