"""What the workers of a rank find at a step, kept in as little memory as the step needs.

A proposal has vectors of D floats, its gradient and perhaps its update, and a process may play hundreds of workers. So
each is taken apart as soon as it is made: what is sent goes into the row that is sent, updates are added up where
nobody needs them one by one, and the rest is dropped.
Tests: tests/test_training.py, tests/test_memory.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rbd_ref._types import F32, Float32Array
from rbd_ref.methods.base import EMPTY, Proposal

BESIDE = 2  # floats that a worker sends beside its payload: its loss, and its request to stop


VECTORS = 8  # of D floats that a step takes at its peak, whoever proposes: weights, gradient, update, sum, directions


class Keep(NamedTuple):
    """What is kept beside the rows.

    updates   of each worker by itself, as ranks that rebuild together take them; else their sum
    gradient  the sum of the gradients
    whole     the proposals as they are, for callbacks
    """

    updates: bool
    gradient: bool
    whole: bool


class RunningSum:
    """((x_0 + x_1) + x_2) + ... in float32, added as they come: the bits of `methods.base.sum_rows`.

    One alone is its own sum, not a copy: it belongs to whoever made it, so the second begins an array of its own.
    """

    def __init__(self) -> None:
        self.total = EMPTY
        self.count = 0

    def add(self, x: Float32Array) -> None:
        """One more; one that is empty counts for nothing."""
        if not x.size:
            return
        if self.count > 1:
            self.total += x
        else:
            self.total = self.total + x if self.count else x
        self.count += 1


class Proposals:
    """The proposals of some workers, of whom each sends `payload_size` floats."""

    def __init__(self, workers: int, payload_size: int, keep: Keep) -> None:
        self.keep = keep
        self.rows: Float32Array = np.empty((workers, payload_size + BESIDE), dtype=F32)
        self.count = 0
        self.updates: dict[int, Float32Array] = {}
        self.update = RunningSum()
        self.gradient = RunningSum()
        self.whole: dict[int, Proposal] = {}

    def add(self, worker: int, proposal: Proposal) -> None:
        """The next worker's."""
        row = self.rows[self.count]
        row[:-BESIDE] = proposal.payload
        row[-BESIDE] = proposal.loss
        self.count += 1
        if self.keep.updates and proposal.update.size:
            self.updates[worker] = proposal.update
        if not self.keep.updates:
            self.update.add(proposal.update)
        if self.keep.gradient:
            self.gradient.add(proposal.gradient.copy())  # a problem may give the same array again
        if self.keep.whole:
            self.whole[worker] = proposal

    @property
    def total(self) -> Float32Array | None:
        """The sum of all updates, if every worker had one and they were added up."""
        return self.update.total if 0 < self.update.count == self.count else None
