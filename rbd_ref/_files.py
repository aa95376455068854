"""Files that are there complete or not at all, even after a crash or a power cut.

Downloads, run folders and the report all write this way. The one function for it stands at the bottom of the import
graph, below data/ and runs/, because neither may import the other. It raises what the system raises (`OSError`); who
calls it says what that means for its user: runs/files.py a `RunError`, data/downloads.py a `DataError`.
May import: nothing of rbd_ref.
Tests: tests/test_files.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PART = re.compile(r"\..+\.[0-9]+-[0-9a-f]{8}\.part")  # .NAME.PID-HEX.part


def leftovers(folder: Path) -> list[Path]:
    """The files in a folder that were being written when their process was killed, or are being written now."""
    return [path for path in folder.glob(".*.part") if PART.fullmatch(path.name) and path.is_file()]


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk: a rename is not, before that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replace_when_complete(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `path` when the block ends without an error, and else leaves no trace.

    It is written beside `path` under a name of its own, so that two writers at once are not in each other's way, and
    synced before it is renamed, so that the name never stands for half of the content.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.part")
    try:
        with part.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)
