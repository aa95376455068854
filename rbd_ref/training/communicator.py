"""How what each worker found reaches all: the protocol, the process that plays all workers, and how others are found.

A worker is a logical thing, a basis and a share of the batches; a rank is a process that plays some of them. What
reaches everyone does not depend on who plays whom, so neither do the weights.
An exchange over several processes is a function in the entry-point group `rbd_ref.exchanges`.
Tests: tests/test_exchange.py, tests/test_mpi.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeVar, cast

from rbd_ref._types import Float32Array
from rbd_ref.methods.descent import Rebuild, in_order
from rbd_ref.runs.files import RunError

GROUP = "rbd_ref.exchanges"
LAUNCHERS = ("PMI_SIZE", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE")  # what MPI's launchers set
T = TypeVar("T")


def share(workers: int, rank: int, ranks: int) -> range:
    """The workers that a rank plays: neighbours, as evenly as can be, the first ranks one more."""
    quotient, rest = divmod(workers, ranks)
    first = rank * quotient + min(rank, rest)
    return range(first, first + quotient + (rank < rest))


class RanksLost(RunError):
    """Some ranks are gone, and the others can go on without them."""


class Exchange(Protocol):
    """What the trainer asks of the processes that train together. All but `guard` is called by all of them."""

    rank: int
    ranks: int
    threads: int  # for each rank, 0 for as many as there are
    sent: int  # bytes handed over so far
    terminal: bool | None  # whether stderr ends on a terminal; None where it can be asked itself

    def guard(self, body: Callable[[], int]) -> int:
        """The exit status of `body`; what it raises ends all ranks, with a message, none is left waiting."""

    def recover(self) -> None:
        """After `RanksLost`: the ranks that are left close up; they have new numbers, and play all workers."""

    def options(self, timeout: float, reconstruct: str, faults: str) -> None:
        """After how many seconds a silent rank is given up, how updates are rebuilt, where faults are written down."""

    def agree(self, fault: str | None) -> list[str]:
        """The different faults of all ranks."""

    def spread(self, value: T) -> T:
        """What rank 0 has."""

    def in_turn(self, body: Callable[[], object]) -> None:
        """`body` on one rank of each node first, then on its others: what the first leaves on disk, others find."""

    def gather(self, rows: Float32Array, workers: int, stop: int) -> tuple[Float32Array, int]:
        """The rows of all workers in their order from those of this rank's, and the greatest `stop`."""

    def total(self, rebuild: Rebuild) -> Float32Array:
        """`descent.in_order`, to the bit, by whatever division of the work."""

    def keep(self, theta: Float32Array) -> Float32Array:
        """The same weights, in memory that ranks may share."""

    def different(self, digest: bytes) -> list[int]:
        """The ranks whose digest is not that of most (of equals: of the lowest rank)."""


class Alone:
    """One process plays all workers."""

    rank, ranks, threads, sent = 0, 1, 0, 0
    terminal: bool | None = None

    def guard(self, body: Callable[[], int]) -> int:
        """Nobody waits."""
        return body()

    def recover(self) -> None:
        """Nobody is lost."""

    def options(self, timeout: float, reconstruct: str, faults: str) -> None:
        """Nothing to be told."""

    def agree(self, fault: str | None) -> list[str]:
        """Its own."""
        return [] if fault is None else [fault]

    def spread(self, value: T) -> T:
        """It has it."""
        return value

    def in_turn(self, body: Callable[[], object]) -> None:
        """At once."""
        body()

    def gather(self, rows: Float32Array, workers: int, stop: int) -> tuple[Float32Array, int]:
        """They are all here."""
        return rows, stop

    def total(self, rebuild: Rebuild) -> Float32Array:
        """One after the other."""
        return in_order(rebuild)

    def keep(self, theta: Float32Array) -> Float32Array:
        """Here."""
        return theta

    def different(self, digest: bytes) -> list[int]:
        """There is nobody to differ from."""
        return []


def find() -> Exchange:
    """The exchange over the processes of an MPI launcher if one started this, or else this process alone."""
    if not any(name in os.environ for name in LAUNCHERS):
        return Alone()
    points: list[Any] = list(entry_points(group=GROUP))
    if not points:
        raise RunError(
            "this was started by an MPI launcher, expected rbd_mpi to be installed: pip install rbd-ref[mpi]"
        )
    return cast(Exchange, points[0].load()())
