"""The journal of a run: what all workers sent at each step, in one file that is only ever appended to.

theta at any step is theta0, or a checkpoint, and the records after it. Integers and floats are little-endian:

    file    "RBDJRNL2", digest (32 bytes), records
    record  "STEP", step (u64), rows (u32), columns (u32), crc32 of these 20 bytes (u32),
            rows x columns floats, chain value (32 bytes)

`digest` is that of the configuration; record t = 0, 1, ... holds step t, a row for each worker, its loss last. What a
worker sent in fewer bits (methods/codes.py) is in the same words here: floats in name, of which every bit is kept.
The chain value before the first record is the sha256 of the file's first 40 bytes, and that of a record

    sha256(chain value before, head, floats)

so no record can be replaced, dropped, moved or taken from another run unless all chain values after it are made anew.
The last one stands for the whole run: it covers the configuration by its digest, and every number that was sent; theta
follows from these. Checkpoints and result.json hold the chain value of their step, and who has that of the end from
elsewhere, its 64 digits, needs to trust nothing in the folder: `replay --verify` compares all and prints it.
A process that is killed leaves the beginning of a record at most, at the end, and a machine without power a last
record with some of its numbers missing, or zeros from somewhere in it to the end of the file, where pages were never
written: such an end is torn, it is cut off and said. Everything else that is not as it was written is named by its
step and place, and nothing is changed.
Tests: tests/test_journal.py.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rbd_ref._types import Float32Array
from rbd_ref.runs.files import RunError, disk, reading, refuse_special
from rbd_ref.runs.layouts import CHAIN, HEAD, Layout, Layouts

MAGIC = b"RBDJRNL2"
EARLIER = b"RBDJRNL1"
START = len(MAGIC) + 32
CRC = struct.Struct("<I")
CHUNK = 1 << 20  # bytes that are looked through at once


class Place(NamedTuple):
    """Where the record of step t begins or will begin, and the chain value before it."""

    t: int
    offset: int
    chain: bytes


class Record(NamedTuple):
    """What the workers sent at step t, a row each with its loss last; where the record ends, and its chain value."""

    t: int
    rows: Float32Array
    end: int
    chain: bytes

    @property
    def payloads(self) -> Float32Array:
        """What each worker sent, (workers, payload_size); (workers, 0) where that was too much to be kept."""
        return self.rows[:, :-1]

    @property
    def losses(self) -> Float32Array:
        """The loss of each worker."""
        losses: Float32Array = self.rows[:, -1]
        return losses

    @property
    def loss(self) -> float:
        """The mean over workers; in binary64, as float32 losses may be too large to be added."""
        return float(self.losses.mean(dtype=np.float64))

    @property
    def next(self) -> Place:
        """The place after it."""
        return Place(self.t + 1, self.end, self.chain)


def chain_start(digest: str) -> bytes:
    """The chain value before the first record of a configuration's journal."""
    return hashlib.sha256(MAGIC + bytes.fromhex(digest)).digest()


def _chained(before: bytes, head: bytes, body: bytes) -> bytes:
    """The chain value of a record."""
    found = hashlib.sha256(before)
    found.update(head)
    found.update(body)
    return found.digest()


def encode(t: int, rows: Float32Array, before: bytes) -> bytes:
    """A record as it stands in the file after one with the chain value `before`; it ends with its own."""
    fields = struct.pack("<4sQII", b"STEP", t, *rows.shape)
    head = fields + CRC.pack(zlib.crc32(fields))
    body = np.ascontiguousarray(rows, dtype="<f4").tobytes()
    return head + body + _chained(before, head, body)


def _damaged(path: Path, at: Place, what: str) -> RunError:
    return RunError(
        f"{path} is damaged at step {at.t}, offset {at.offset}: {what}, expected the record as it was written: restore "
        f"the file, or give up what follows with `truncate -s {at.offset} {path}` and continue from there with --resume"
    )


class Journal:
    """Reads a journal's records, one after the other; with `layouts`, only such as these, of finite numbers.

    `last` is the place that reading has come to.
    """

    def __init__(self, path: Path, digest: str | None = None, layouts: Layouts | None = None) -> None:
        self.path = path
        self.layouts = layouts
        self.doubts: dict[int, str] = {}  # what contradicts the chain value after so many steps
        refuse_special(path)
        with reading(path):
            self.size = path.stat().st_size
            with path.open("rb") as file:
                head = file.read(START)
        _check_head(path, head, digest)
        self.first = Place(0, START, hashlib.sha256(head).digest())
        self.last = self.first

    def records(self, start: Place | None = None) -> Iterator[Record]:
        """All whole records in order, from a place on; a torn one at the end is left out."""
        self.last = start or self.first
        with self.path.open("rb") as file:
            file.seek(self.last.offset)
            while (record := self._next(file.read, self.last)) is not None:
                self.last = record.next
                if record.next.t in self.doubts:  # a whole record: it or what contradicts it was forged
                    raise RunError(self.doubts[record.next.t])
                yield record

    def place(self, t: int) -> Place | None:
        """Where the record of step t begins, if those before it were all whole; None where the file ends before."""
        if t == 0:
            return self.first
        assert self.layouts is not None
        offset = START + self.layouts.length(t)
        if offset > self.size:
            return None
        with reading(self.path), self.path.open("rb") as file:
            file.seek(offset - CHAIN)
            return Place(t, offset, file.read(CHAIN))

    def losses(self, steps: int) -> list[float]:
        """The mean loss of each of the first steps, read where it stands; nothing is checked."""
        assert self.layouts is not None
        found: list[float] = []
        offset = START
        with reading(self.path), np.errstate(over="ignore", invalid="ignore"):
            for count, layout in self.layouts.counts(steps):
                if count:
                    found += _mean_losses(self.path, offset, count, layout)
                    offset += count * layout.dtype.itemsize
        return found

    @property
    def torn(self) -> int:
        """Bytes after the last whole record, once all were read."""
        return self.size - self.last.offset

    def _only_zeros(self, offset: int) -> bool:
        """Whether nothing but zeros, or nothing at all, follows there."""
        with self.path.open("rb") as file:
            file.seek(offset)
            return not any(chunk.strip(b"\0") for chunk in iter(lambda: file.read(CHUNK), b""))

    def _next(self, read: Callable[[int], bytes], at: Place) -> Record | None:
        """The record at a place, or None where the file ends or is torn."""
        head = read(HEAD.size)
        shape = self._shape(head, at)
        length = 4 * math.prod(shape or ())
        end = at.offset + HEAD.size + length + CHAIN
        if shape is None or end > self.size:
            return None
        body = read(length)
        chain = read(CHAIN)
        if chain != _chained(at.chain, head, body):
            if end == self.size or self._only_zeros(end):
                return None
            raise _damaged(self.path, at, "it has another checksum, or does not follow the record before it")
        rows = np.frombuffer(body, dtype="<f4").reshape(shape).astype(np.float32, copy=False)
        if self.layouts is not None and not self.layouts.at(at.t).finite(rows):
            raise _damaged(self.path, at, "some of its numbers are not finite")
        return Record(at.t, rows, end, chain)

    def _shape(self, head: bytes, at: Place) -> tuple[int, int] | None:
        """Rows and columns of the record with this head, or None where the head is torn."""
        if len(head) < HEAD.size:
            return None
        kind, step, rows, columns, crc = HEAD.unpack(head)
        if kind != b"STEP" or crc != zlib.crc32(head[: -CRC.size]) or step != at.t:
            if head.endswith(b"\0") and self._only_zeros(at.offset + HEAD.size):
                return None
            raise _damaged(self.path, at, "its head is not that of the step")
        if self.layouts is not None and (misfit := self.layouts.at(at.t).misfit(rows, columns)):
            raise _damaged(self.path, at, misfit)
        return rows, columns


def _check_head(path: Path, head: bytes, digest: str | None) -> None:
    """Refuse what is no journal, or not one of this version and of the configuration with this digest."""
    if head.startswith(EARLIER):
        raise RunError(
            f"{path} is the journal of an earlier version, {EARLIER.decode()}, expected {MAGIC.decode()}: start a new "
            "run in another folder"
        )
    if len(head) < START or not head.startswith(MAGIC):
        raise RunError(f"{path} is no journal: it does not begin with {MAGIC.decode()}; restore or remove it")
    if digest is not None and head[len(MAGIC) :].hex() != digest:
        raise RunError(f"{path} is the journal of another configuration, expected that of config.toml beside it")


def _mean_losses(path: Path, offset: int, count: int, layout: Layout) -> list[float]:
    """Over workers, of so many records from a place on that are all alike."""
    records = np.memmap(path, layout.dtype, "r", offset, (count,))
    losses = np.ascontiguousarray(records["rows"][:, :, -1], dtype=np.float32)
    means: list[float] = losses.mean(axis=1, dtype=np.float64).tolist()  # as `Record.loss`: workers side by side
    return means


class Writer:
    """Appends records; a record that finds no room is taken back. `chain` is the chain value of the last one, and
    `flag` what users choose another file with."""

    def __init__(self, path: Path, handle: int, chain: bytes, flag: str) -> None:
        self.path = path
        self.handle = handle
        self.chain = chain
        self.flag = flag
        self.end = os.fstat(handle).st_size

    @classmethod
    def create(cls, path: Path, digest: str, flag: str = "--out") -> Writer:
        """A new journal."""
        with disk(path, "made", flag):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        writer = cls(path, handle, chain_start(digest), flag)
        writer._write(MAGIC + bytes.fromhex(digest))
        return writer

    @classmethod
    def reopen(cls, path: Path, place: Place, flag: str = "--out") -> Writer:
        """A journal that goes on at a place; what comes after it is cut off."""
        with disk(path, "written", flag):
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)  # a link may lead anywhere
            os.ftruncate(handle, place.offset)
            return cls(path, handle, place.chain, flag)

    def append(self, t: int, rows: Float32Array) -> None:
        """The record of step t."""
        record = encode(t, rows, self.chain)
        self._write(record)
        self.chain = record[-CHAIN:]

    def _write(self, data: bytes) -> None:
        with disk(self.path, "written", self.flag):
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
        with disk(self.path, "synced", self.flag):
            os.fsync(self.handle)

    def close(self) -> None:
        """No more records."""
        os.close(self.handle)
