"""Files that are there whole or not at all, and faults of a disk as one sentence.

Tests: tests/test_runs.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


class RunError(Exception):
    """What ends a run and is not a fault of the program, as one sentence for its user."""


class SharedError(RunError):
    """One that every rank finds in the same way at the same moment."""


@contextmanager
def disk(path: Path, what: str) -> Iterator[None]:
    """Faults of the system while `what` is done with a file or folder become one sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} cannot be {what} ({error.strerror or error}), expected a folder with room that can be written to: "
            "nothing that was complete is lost; make room or choose another folder with --out"
        ) from error


def sync_folder(folder: Path) -> None:
    """What was renamed in a folder stays so, even when the power goes."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file beside `path`, sync it and only then give it that name."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with disk(path, "written"):
        try:
            with part.open("wb") as out:
                write(out)
                out.flush()
                os.fsync(out.fileno())
            part.replace(path)
            sync_folder(path.parent)
        finally:
            part.unlink(missing_ok=True)
