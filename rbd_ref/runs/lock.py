"""A lock on the folder of a run: one process writes, and who comes second is told who that is.

The file `lock` in the folder says who holds it and is there for as long as someone does. The lock itself is the
system's (flock), so that of a process that died is no obstacle. Where a file system has none, the file stands for
the lock: one of a process of this machine that is gone is taken over, one of another machine has to be removed by hand.
Readers take no lock: replay and report can look at a run while it is trained.
Tests: tests/test_lock.py.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rbd_ref.runs.files import RunError, disk, quoted

HELD = (errno.EWOULDBLOCK, errno.EACCES)
PATIENCE = 1.0  # seconds in which who has just locked a file writes its name into it
UNSUPPORTED = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)


class FolderLock:
    """The lock of a folder, held from the moment it is made until `release`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "lock"
        with disk(folder, "made"):
            folder.mkdir(parents=True, exist_ok=True)
        with disk(self.path, "written"):
            self.handle = self._acquire()
            os.ftruncate(self.handle, 0)
            os.write(self.handle, json.dumps(_holder()).encode())

    def _acquire(self) -> int:
        """An open file that is locked, and still the one that the name stands for."""
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)  # a link may lead anywhere
            try:
                self._lock(handle)
                if _same_file(handle, self.path):
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)  # the one before removed it while this one waited to open it

    def _lock(self, handle: int) -> None:
        """Lock the file, or say who has."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in HELD:
                if self._holder_named(handle):
                    raise self._refused() from error
                return  # released meanwhile
            if error.errno not in UNSUPPORTED:
                raise
            self._take_over()

    def _holder_named(self, handle: int) -> bool:
        """Whether the file that another has locked is still there, once it says who that is or has had time to."""
        deadline = time.monotonic() + PATIENCE
        while _same_file(handle, self.path) and not _read(self.path) and time.monotonic() < deadline:
            time.sleep(PATIENCE / 100)
        return _same_file(handle, self.path)

    def _take_over(self) -> None:
        """Without locks of the system: refuse unless the file is new, or of a process of this machine that is gone."""
        holder = _read(self.path)
        if holder and not (holder.get("host") == socket.gethostname() and _is_gone(holder.get("pid"))):
            raise self._refused(f", or remove {self.path} if it is gone")

    def _refused(self, more: str = "") -> RunError:
        """The sentence for who comes second."""
        holder = _read(self.path)
        said = f"process {holder.get('pid', '?')} on {holder.get('host', '?')} since {holder.get('since', '?')}"
        return RunError(
            f"{self.folder} is being written by {quoted(said)}, expected nobody: wait until it ends, stop it{more}, or "
            "choose another folder with --out"
        )

    def release(self) -> None:
        """Others may write now."""
        with suppress(OSError):
            self.path.unlink()  # while it is still locked: who opens it later makes a new one
        os.close(self.handle)


def _holder() -> dict[str, Any]:
    """Who this is."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}


def _read(path: Path) -> dict[str, Any]:
    """Who holds a lock, as far as the file says; it may be written at this moment."""
    with suppress(OSError, ValueError):
        found = json.loads(path.read_bytes()[:1000])
        if isinstance(found, dict):
            return found
    return {}


def _same_file(handle: int, path: Path) -> bool:
    """Whether an open file is the one of this name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False


def _is_gone(pid: object) -> bool:
    """Whether no process of this number lives on this machine."""
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
