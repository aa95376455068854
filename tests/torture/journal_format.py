"""All that the campaigns know of the journal's bytes. Who changes rbd_ref/runs/journal.py has to look here and nowhere
else."""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rbd_ref.runs.journal import CRC, MAGIC, START, chain_start, encode
from rbd_ref.runs.layouts import CHAIN, HEAD

DIGEST = range(len(MAGIC), START)  # the places of the configuration's digest


class Step(NamedTuple):
    """A record: the step that it says to be of, and its numbers."""

    t: int
    rows: np.ndarray


def ends(content: bytes) -> list[int]:
    """Where the head ends, and then each whole record; checksums are not looked at."""
    found = [START]
    while found[-1] + HEAD.size <= len(content):
        _, _, rows, columns, _ = HEAD.unpack_from(content, found[-1])
        end = found[-1] + HEAD.size + 4 * rows * columns + CHAIN
        if end > len(content):
            break
        found.append(end)
    return found


def parsed(content: bytes) -> list[Step]:
    """The whole records."""
    places = ends(content)
    return [_step(content[start:end]) for start, end in pairwise(places)]


def _step(record: bytes) -> Step:
    _, t, rows, columns, _ = HEAD.unpack_from(record)
    return Step(t, np.frombuffer(record, "<f4", rows * columns, HEAD.size).reshape(rows, columns))


def composed(content: bytes, steps: list[Step]) -> bytes:
    """A journal with the head of another and these records, all checksums as they should be."""
    chain = chain_start(content[DIGEST.start : DIGEST.stop].hex())
    records = []
    for t, rows in steps:
        records.append(encode(t, rows, chain))
        chain = records[-1][-CHAIN:]
    return content[:START] + b"".join(records)


def promising(t: int, rows: int, columns: int) -> bytes:
    """The head of a record that says to have so many numbers, its checksum as it should be, and a few bytes more."""
    fields = struct.pack("<4sQII", b"STEP", t, rows, columns)
    return fields + CRC.pack(zlib.crc32(fields)) + b"1234"


def numbers(content: bytes, t: int) -> range:
    """The places of the numbers of a whole record."""
    places = ends(content)
    return range(places[t] + HEAD.size, places[t + 1] - CRC.size)


def whole(content: bytes) -> bytes:
    """What a process that was killed has journaled: everything but a torn last record."""
    return content[: ends(content)[-1]] if len(content) >= START else b""
