"""Events of files in a process that writes a run: counted, or the n-th of them the last thing that it lives to see.

Opening, renaming, removing, truncating and making folders are what Python audits; writes to the journal and syncs are
seen by standing in for the functions. A process that installs any of this is a fork, and ends soon.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

AUDITED = {"open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "fcntl.flock"}
Seen = Callable[[], object]


def _watch(folder: Path, seen: Seen) -> None:
    """Call `seen` before every event in a folder."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in AUDITED and (event == "fcntl.flock" or str(arguments[0]).startswith(str(folder))):
            seen()

    sys.addaudithook(hook)
    for name in ("fsync", "ftruncate"):
        _stand_in(name, lambda true, *arguments: (seen(), true(*arguments))[1])


def _stand_in(name: str, body: Callable[..., Any]) -> None:
    """Replace a function of os by one that is given it."""
    true = getattr(os, name)
    setattr(os, name, lambda *arguments: body(true, *arguments))


def counted(folder: Path, log: Path) -> None:
    """A byte in the log for each event."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    write = os.write

    def count(true: Callable[..., Any], target: int, data: bytes) -> Any:
        write(handle, b".")
        return true(target, data)

    _watch(folder, lambda: write(handle, b"."))
    _stand_in("write", count)


def killed(folder: Path, number: int, event: int, part: float) -> None:
    """This signal at the n-th event; where that is a write, after this part of it."""
    left = [event]

    def seen() -> bool:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), number)
        return left[0] == 0

    def cut(true: Callable[..., Any], target: int, data: bytes) -> Any:
        if left[0] == 1 and number == signal.SIGKILL:
            true(target, data[: int(part * len(data))])
        seen()
        return true(target, data)

    _watch(folder, seen)
    _stand_in("write", cut)
