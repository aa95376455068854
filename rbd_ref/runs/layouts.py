"""How long each record of a journal is, and so where in the file that of any step begins.

A record is a head, floats and a chain value (journal.py). How many floats there are follows from the method of the
step, so places are arithmetic: no index is kept, and no record before has to be read.
Tests: tests/test_journal.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from rbd_ref._types import Float32Array

HEAD = struct.Struct("<4sQIII")
CHAIN = 32  # bytes of a chain value
LOSS = 1  # columns where nothing else was sent


def unknown(payloads: Float32Array) -> Float32Array:
    """No numbers are known to be in what was sent."""
    return payloads[:, :0]


class Layout(NamedTuple):
    """What a record has to be like: a row for each worker, and columns; None where there is one at least, the loss.

    `decode` has the numbers in what the workers sent, which need not be floats (methods/base.py)."""

    rows: int
    columns: int | None = None
    decode: Callable[[Float32Array], Float32Array] = unknown

    def finite(self, rows: Float32Array) -> bool:
        """Whether all numbers of a record that fits are finite: losses, and those in what was sent."""
        return bool(np.isfinite(rows[:, -1]).all() and np.isfinite(self.decode(rows[:, :-1])).all())

    def misfit(self, rows: int, columns: int) -> str:
        """What is wrong with a record of this size, if anything."""
        if rows == self.rows and (columns == self.columns or (self.columns is None and columns > 0)):
            return ""
        wanted = "1 or more" if self.columns is None else self.columns
        return f"it has {rows} rows of {columns} numbers where {self.rows} of {wanted} were sent"

    @property
    def dtype(self) -> np.dtype[np.void]:
        """A record as an element of an array."""
        assert self.columns is not None, "the place of a record follows from its columns"
        rows = ("rows", "<f4", (self.rows, self.columns))
        return np.dtype([("head", f"V{HEAD.size}"), rows, ("chain", f"V{CHAIN}")])


class Stretch(NamedTuple):
    """The layout of all records from a step on or, where workers send at each `every`-th step only, of those steps'."""

    first: int
    layout: Layout
    every: int = 1

    def at(self, t: int) -> Layout:
        """Of the record of step t."""
        return self.layout if (t + 1) % self.every == 0 else Layout(self.layout.rows, LOSS)

    def counts(self, last: int) -> Iterator[tuple[int, Layout]]:
        """How many records of one layout follow each other, from the first step up to `last`."""
        if self.every == 1:
            yield last - self.first, self.layout
            return
        for layout, steps in groupby(range(self.first, last), self.at):
            yield len(list(steps)), layout


class Layouts:
    """The layout of each step's record, in stretches in the order of their first steps; the first begins at 0."""

    def __init__(self, *stretches: Stretch) -> None:
        self.stretches = stretches

    def at(self, t: int) -> Layout:
        """Of the record of step t."""
        return [stretch for stretch in self.stretches if stretch.first <= t][-1].at(t)

    def counts(self, steps: int) -> Iterator[tuple[int, Layout]]:
        """How many of the first records follow each other with one layout."""
        bounds = [*(min(stretch.first, steps) for stretch in self.stretches), steps]
        for (first, last), stretch in zip(pairwise(bounds), self.stretches, strict=True):
            yield from stretch._replace(first=first).counts(last)

    def length(self, steps: int) -> int:
        """Bytes of the first records."""
        return sum(count * layout.dtype.itemsize for count, layout in self.counts(steps))
