"""How what each worker found reaches all: the protocol, and the process that plays all workers by itself.

A worker is a logical thing, a basis and a share of the batches; a rank is a process that plays some of them. What
reaches everyone does not depend on who plays whom, so neither do the weights.
An exchange over several processes is found by an entry point in the group `rbd_ref.exchanges`.
May import: numpy, descent (the order of sums), distributions (types). Tests: tests/test_training.py.
"""

from __future__ import annotations

from typing import Protocol

from rbd_ref.descent import Rebuild, in_order
from rbd_ref.distributions import Vector

GROUP = "rbd_ref.exchanges"


def share(workers: int, rank: int, ranks: int) -> range:
    """The workers that a rank plays: neighbours, as evenly as can be, the first ranks one more."""
    quotient, rest = divmod(workers, ranks)
    first = rank * quotient + min(rank, rest)
    return range(first, first + quotient + (rank < rest))


class Exchange(Protocol):
    """What the trainer asks of the processes that train together."""

    rank: int
    ranks: int

    def gather(self, rows: Vector, workers: int, stop: bool) -> tuple[Vector, bool]:
        """The rows of all workers in their order from those of this rank's, and whether any rank wants to stop."""

    def total(self, count: int, rebuild: Rebuild) -> Vector:
        """`descent.in_order`, to the bit, by whatever division of the work."""


class Alone:
    """One process plays all workers."""

    rank = 0
    ranks = 1

    def gather(self, rows: Vector, workers: int, stop: bool) -> tuple[Vector, bool]:
        """They are all here."""
        return rows, stop

    def total(self, count: int, rebuild: Rebuild) -> Vector:
        """One after the other."""
        return in_order(count, rebuild)
