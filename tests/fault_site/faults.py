"""What can happen to a rank in the tests: an error, an exit, a signal, an endless sleep. Standard library only.

RBD_TEST_FAULT names faults as `KIND RANK PLACE, ...`; RBD_TEST_REACHED is a file that is made just before one.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

RANK = int(os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
LONG = 100.0  # seconds after which what is waited for does not come
LATE = 4.0  # seconds by which a rank is late, longer than the living have to answer a roll call


def reached() -> None:
    """Let the test know that the fault comes now."""
    if path := os.environ.get("RBD_TEST_REACHED"):
        Path(path).touch()


def fail() -> None:
    """An error of the program."""
    reached()
    raise ZeroDivisionError("this rank divides by zero")


def leave(status: int) -> Callable[[], None]:
    """An exit that nobody expects."""

    def now() -> None:
        reached()
        sys.exit(status)

    return now


def vanish() -> None:
    """An exit that Python does not notice."""
    reached()
    os._exit(0)


def send(number: int) -> Callable[[], None]:
    """A signal to this process itself."""

    def now() -> None:
        reached()
        os.kill(os.getpid(), number)

    return now


def wait_for_signal() -> None:
    """Return as soon as a signal was received here, which its handler has seen then."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    reached()
    assert select.select([reader], [], [], LONG)[0], "no signal came"
    signal.set_wakeup_fd(before)


def sleep_for_ever() -> None:
    """No sign of life."""
    reached()
    while True:
        time.sleep(LONG)


def fill_disk() -> None:
    """From now on no file can grow, as on a disk without room."""
    reached()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def starve() -> None:
    """From now on this process gets hardly any memory, nor has it any that it has used before and could use again."""
    reached()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, resource.RLIM_INFINITY))
    with suppress(MemoryError):
        while True:
            HELD.append(bytearray(2**20))


def be_late() -> None:
    """This rank needs some seconds more than others."""
    reached()
    time.sleep(LATE)


HELD: list[bytearray] = []
FAULTS: dict[str, Callable[[], None]] = {
    "raise": fail,
    "exit": leave(3),
    "exit0": leave(0),
    "vanish": vanish,
    "kill": send(signal.SIGKILL),
    "stop": send(signal.SIGSTOP),
    "sleep": sleep_for_ever,
    "signal": wait_for_signal,
    "full": fill_disk,
    "starve": starve,
    "late": be_late,
}


def mine() -> Iterator[tuple[str, str]]:
    """Kind and place of the faults of this rank."""
    for text in filter(None, os.environ.get("RBD_TEST_FAULT", "").split(",")):
        kind, rank, place = text.split()
        if int(rank) == RANK:
            yield kind, place
