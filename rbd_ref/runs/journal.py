"""The journal of a run: what all workers sent at each step, in one file that is only ever appended to.

theta at any step is theta0, or a checkpoint, and the records after it. Integers and floats are little-endian:

    file    "RBDJRNL1", digest (32 bytes), records
    record  "STEP", step (u64), rows (u32), columns (u32), crc32 of these 20 bytes (u32),
            rows x columns floats, crc32 of them (u32)

`digest` is that of the configuration; record t = 0, 1, ... holds step t, a row for each worker, its loss last.
A process that is killed leaves the beginning of a record at most, at the end, and a machine without power a last
record with some of its numbers missing, or zeros from somewhere in it to the end of the file, where pages were never
written: such an end is torn, it is cut off and said. Everything else that is not as it was written is named by its
step and place, and nothing is changed.
Tests: tests/test_journal.py.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rbd_ref._types import Float32Array
from rbd_ref.runs.files import RunError, disk, reading, refuse_special

MAGIC = b"RBDJRNL1"
START = len(MAGIC) + 32
HEAD = struct.Struct("<4sQIII")
CRC = struct.Struct("<I")
CHUNK = 1 << 20  # bytes that are looked through at once


class Record(NamedTuple):
    """What the workers sent at step t, a row each with its loss last, and where the record ends in the file."""

    t: int
    rows: Float32Array
    end: int

    @property
    def payloads(self) -> Float32Array:
        """What each worker sent, (workers, payload_size); (workers, 0) where that was too much to be kept."""
        return self.rows[:, :-1]

    @property
    def losses(self) -> Float32Array:
        """The loss of each worker."""
        losses: Float32Array = self.rows[:, -1]
        return losses


class Layout(NamedTuple):
    """What a record has to be like: a row for each worker, and columns; None where there is one at least, the loss."""

    rows: int
    columns: int | None = None

    def misfit(self, rows: int, columns: int) -> str:
        """What is wrong with a record of this size, if anything."""
        if rows == self.rows and (columns == self.columns or (self.columns is None and columns > 0)):
            return ""
        wanted = "1 or more" if self.columns is None else self.columns
        return f"it has {rows} rows of {columns} numbers where {self.rows} of {wanted} were sent"


Layouts = Callable[[int], Layout]  # that of step t


def encode(t: int, rows: Float32Array) -> bytes:
    """A record as it stands in the file."""
    fields = struct.pack("<4sQII", b"STEP", t, *rows.shape)
    body = np.ascontiguousarray(rows, dtype="<f4").tobytes()
    return fields + CRC.pack(zlib.crc32(fields)) + body + CRC.pack(zlib.crc32(body))


def _damaged(path: Path, t: int, offset: int, what: str) -> RunError:
    return RunError(
        f"{path} is damaged at step {t}, offset {offset}: {what}, expected the record as it was written: restore the "
        f"file, or give up what follows with `truncate -s {offset} {path}` and continue from there with --resume"
    )


class Journal:
    """Reads a journal's records, one after the other; with `layouts`, only such as these, of finite numbers."""

    def __init__(self, path: Path, digest: str | None = None, layouts: Layouts | None = None) -> None:
        self.path, self.end, self.steps = path, START, 0
        self.layouts = layouts
        refuse_special(path)
        with reading(path):
            self.size = path.stat().st_size
            with path.open("rb") as file:
                head = file.read(START)
        if len(head) < START or head[: len(MAGIC)] != MAGIC:
            raise RunError(f"{path} is no journal: it does not begin with {MAGIC.decode()}; restore or remove it")
        if digest is not None and head[len(MAGIC) :].hex() != digest:
            raise RunError(f"{path} is the journal of another configuration, expected that of config.toml beside it")

    def records(self) -> Iterator[Record]:
        """All whole records in order; a torn one at the end is left out."""
        self.end, self.steps = START, 0
        with self.path.open("rb") as file:
            file.seek(self.end)
            while (record := self._next(file.read, self.end, self.steps)) is not None:
                self.end, self.steps = record.end, self.steps + 1
                yield record

    @property
    def torn(self) -> int:
        """Bytes after the last whole record, once all were read."""
        return self.size - self.end

    def _only_zeros(self, offset: int) -> bool:
        """Whether nothing but zeros, or nothing at all, follows there."""
        with self.path.open("rb") as file:
            file.seek(offset)
            return not any(chunk.strip(b"\0") for chunk in iter(lambda: file.read(CHUNK), b""))

    def _next(self, read: Callable[[int], bytes], offset: int, t: int) -> Record | None:
        head = read(HEAD.size)
        if len(head) < HEAD.size:
            return None
        kind, step, rows, columns, crc = HEAD.unpack(head)
        if kind != b"STEP" or crc != zlib.crc32(head[: -CRC.size]) or step != t:
            if head.endswith(b"\0") and self._only_zeros(offset + HEAD.size):
                return None
            raise _damaged(self.path, t, offset, "its head is not that of the step")
        if self.layouts is not None and (misfit := self.layouts(t).misfit(rows, columns)):
            raise _damaged(self.path, t, offset, misfit)
        length = 4 * rows * columns
        end = offset + HEAD.size + length + CRC.size
        if end > self.size:
            return None
        body = read(length + CRC.size)
        if CRC.unpack(body[length:])[0] != zlib.crc32(body[:length]):
            if end == self.size or self._only_zeros(end):
                return None
            raise _damaged(self.path, t, offset, "its numbers have another checksum")
        numbers = np.frombuffer(body, dtype="<f4", count=rows * columns).reshape(rows, columns)
        if self.layouts is not None and not np.isfinite(numbers).all():
            raise _damaged(self.path, t, offset, "some of its numbers are not finite")
        return Record(t, numbers.astype(np.float32, copy=False), end)


class Writer:
    """Appends records; a record that finds no room is taken back."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path, self.handle = path, handle
        self.end = os.fstat(handle).st_size

    @classmethod
    def create(cls, path: Path, digest: str) -> Writer:
        """A new journal."""
        with disk(path, "made"):
            writer = cls(path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644))
        writer._write(MAGIC + bytes.fromhex(digest))
        return writer

    @classmethod
    def reopen(cls, path: Path, end: int) -> Writer:
        """A journal that ends at `end`; what comes after is cut off."""
        with disk(path, "written"):
            os.truncate(path, end)
            return cls(path, os.open(path, os.O_WRONLY | os.O_APPEND))

    def append(self, t: int, rows: Float32Array) -> None:
        """The record of step t."""
        self._write(encode(t, rows))

    def _write(self, data: bytes) -> None:
        with disk(self.path, "written"):
            try:
                done = 0
                while done < len(data):
                    done += os.write(self.handle, data[done:])
            except OSError:
                os.ftruncate(self.handle, self.end)
                raise
        self.end += len(data)

    def sync(self) -> None:
        """What was appended is on the disk."""
        with disk(self.path, "synced"):
            os.fsync(self.handle)

    def close(self) -> None:
        """No more records."""
        os.close(self.handle)
