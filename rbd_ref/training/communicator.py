"""How processes train together: protocols with MPI's words, the single process, and how others are found.

A worker is a logical thing, a basis and a share of the batches; a rank is a process that plays some of them. What
reaches everyone does not depend on who plays whom, so neither do the weights.

    Communicator   rank, size, allgather, broadcast, barrier, abort
    Node           the ranks that share memory: they rebuild updates together and hold theta once
    Lifecycle      from the start to the end of all ranks, whatever happens to one of them
    World          the three of them

A world of several processes is a function in the entry-point group `rbd_ref.exchanges`.
Tests: tests/test_communicator.py, tests/test_mpi.py.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar, cast

from rbd_ref._launch import launched
from rbd_ref._types import Float32Array
from rbd_ref.methods.base import PendingUpdate, sum_updates
from rbd_ref.runs.files import RunError, SharedError

GROUP = "rbd_ref.exchanges"
T = TypeVar("T")


class RanksLost(RunError):
    """Some ranks are gone, and the others can continue without them."""


class Communicator(Protocol):
    """The processes that train together. All but `abort` is called by all of them."""

    rank: int
    size: int
    bytes_sent: int  # rows handed over so far, for benchmarks

    @property
    def bytes_received(self) -> int:
        """Rows that came in messages to this process so far; summed over a host, what the host received."""

    def allgather(self, value: T) -> list[T]:
        """The values of all ranks, in their order."""

    def allgather_rows(self, rows: Float32Array, counts: Sequence[int]) -> Float32Array:
        """The rows of all ranks, in their order, where rank r has counts[r] of them; they stay until the next call."""

    def broadcast(self, value: T) -> T:
        """What rank 0 has."""

    def barrier(self) -> None:
        """Nobody goes on before all are here."""

    def abort(self, status: int) -> NoReturn:
        """End every rank, at once."""


class Node(Protocol):
    """The ranks of one machine. All is called by all of them."""

    threads: int  # for each rank, 0 for as many as there are

    def first_on_each_node(self, body: Callable[[], object]) -> None:
        """`body` on one rank of each node first, then on its others: what the first leaves on disk, others find."""

    def sum_updates(self, pending: PendingUpdate) -> Float32Array:
        """`methods.base.sum_updates`, to the bit, by whatever division of the work."""

    def share_memory(self, theta: Float32Array) -> Float32Array:
        """The same weights, in memory that ranks may share."""


class Options(NamedTuple):
    """What a world is told once a configuration is known."""

    timeout: float = 600.0  # seconds after which a silent rank is given up
    cooperate: bool = True  # whether the ranks of a node rebuild updates together
    faults: str = ""  # the folder in which faults are written down


class Lifecycle(Protocol):
    """From the start to the end of all ranks."""

    terminal: bool | None  # whether stderr ends on a terminal; None where it can be asked itself

    def configure(self, options: Options) -> None:
        """From now on."""

    def abort_on_error(self, body: Callable[[], T]) -> T:
        """What `body` gives; what it raises on one rank only ends them all, with a message, none is left waiting."""

    def close(self, status: int = 0) -> None:
        """All ranks leave together; where the process has to end with that, its exit status."""

    def recover(self) -> World:
        """After `RanksLost`: the world of the ranks that are left, which have new numbers and play all workers."""


class World(NamedTuple):
    """The processes that train together."""

    communicator: Communicator
    node: Node
    lifecycle: Lifecycle


def share(workers: int, rank: int, size: int) -> range:
    """The workers that a rank plays: neighbours, as evenly as can be, the first ranks one more."""
    quotient, rest = divmod(workers, size)
    first = rank * quotient + min(rank, rest)
    return range(first, first + quotient + (rank < rest))


def gather_errors(communicator: Communicator, error: str | None) -> list[str]:
    """The different errors of all ranks, in the order of ranks."""
    return list(dict.fromkeys(text for text in communicator.allgather(error) if text is not None))


def collectively(communicator: Communicator, body: Callable[[], T], *expected: type[Exception]) -> T:
    """What `body` gives on this rank; where it raises an expected error on any, all ranks raise all of them."""
    error, value = None, None
    try:
        value = body()
    except expected as found:
        error = str(found)
    if errors := gather_errors(communicator, error):
        raise SharedError("\n".join(errors))
    return cast(T, value)


def diverging_ranks(communicator: Communicator, digest: bytes) -> list[int]:
    """The ranks whose digest is not that of most (of equals: of the lowest rank)."""
    digests = communicator.allgather(digest)
    usual = Counter(digests).most_common(1)[0][0]
    return [rank for rank, found in enumerate(digests) if found != usual]


class SingleProcess:
    """One process that plays all workers: communicator, node and lifecycle at once."""

    rank = 0
    size = 1
    bytes_sent = 0
    bytes_received = 0
    threads = 0
    terminal: bool | None = None

    def allgather(self, value: T) -> list[T]:
        """Its own."""
        return [value]

    def allgather_rows(self, rows: Float32Array, counts: Sequence[int]) -> Float32Array:
        """They are all here."""
        return rows

    def broadcast(self, value: T) -> T:
        """It has it."""
        return value

    def barrier(self) -> None:
        """All are here."""

    def abort(self, status: int) -> NoReturn:
        """Leave."""
        sys.exit(status)

    def first_on_each_node(self, body: Callable[[], object]) -> None:
        """At once."""
        body()

    def sum_updates(self, pending: PendingUpdate) -> Float32Array:
        """One after the other."""
        return sum_updates(pending)

    def share_memory(self, theta: Float32Array) -> Float32Array:
        """Here."""
        return theta

    def configure(self, options: Options) -> None:
        """Nothing to be told."""

    def abort_on_error(self, body: Callable[[], T]) -> T:
        """Nobody waits."""
        return body()

    def close(self, status: int = 0) -> None:
        """Nothing is open."""

    def recover(self) -> World:
        """Nobody is lost."""
        return single_process()


def single_process() -> World:
    """The world of this process alone."""
    alone = SingleProcess()
    return World(alone, alone, alone)


def find_world() -> World:
    """The processes of an MPI launcher if one started this, or else this process alone."""
    if not launched():
        return single_process()
    points: list[Any] = list(entry_points(group=GROUP))
    if not points:
        raise RunError(
            "this was started by an MPI launcher, expected rbd_mpi to be installed: pip install rbd-ref[mpi]"
        )
    return cast(World, points[0].load()())
