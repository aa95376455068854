"""What a run says when a file or folder fails it: one sentence, a `RunError`, in place of the system's `OSError`.

The writing itself is `rbd_ref._files`, which downloads share.
Tests: tests/test_runs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rbd_ref._files import replace_when_complete

LONGEST = 300  # characters of a file that a sentence repeats


class RunError(Exception):
    """What ends a run and is not a fault of the program, as one sentence for its user."""


class SharedError(RunError):
    """One that every rank finds in the same way at the same moment."""


def quoted(text: object) -> str:
    """What a file has said, as it can stand in a sentence: printable, on one line and not too long."""
    said = str(text)
    short = said if len(said) <= LONGEST else f"{said[:LONGEST]}..."
    return "".join(sign if sign.isprintable() else "?" for sign in short)


@contextmanager
def disk(path: Path, what: str, flag: str = "--out") -> Iterator[None]:
    """Faults of the system while `what` is done with a file or folder become one sentence; `flag` names another."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} cannot be {what} ({error.strerror or error}), expected a folder with room that can be written to: "
            f"nothing that was complete is lost; make room or choose another folder with {flag}"
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Faults of the system while a file or folder of a run is read become one sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} cannot be read ({error.strerror or error}), expected the folder of a run: correct the path or "
            "the permissions"
        ) from error


def refuse_special(path: Path) -> None:
    """Refuse a pipe or a device where a file should be: who opens a pipe waits for ever."""
    with reading(path):
        special = path.exists() and not path.is_file() and not path.is_dir()
    if special:
        raise RunError(f"{path} is a pipe or a device, expected a file: remove it")


def write_whole(path: Path, write: Callable[[BinaryIO], object], flag: str = "--out") -> None:
    """Let `write` fill a file that becomes `path` when it is complete and synced."""
    with disk(path, "written", flag), replace_when_complete(path) as out:
        write(out)
