"""Rows to everyone in two levels: within a node through its memory, between nodes by their first ranks alone.

So a node receives every row once, however many ranks it has, and the ranks of one node send each other nothing.

    table   all rows, once in each node: those of its first rank, of its next ranks, of the next node's
    result  the table itself if that is the order of ranks, else a copy in that order

Ranks that share no memory are nodes of one: then all ranks are first ranks, and all of it is one Allgather among them.
Tests: tests/test_mpi.py, tests/test_communicator.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from rbd_mpi.memory import NodeMemory
from rbd_mpi.waiting import Waiting
from rbd_ref._types import Float32Array

TABLES = ("rows 0", "rows 1")  # by turns, as slower ranks still read one when others write to the next


class Layout(NamedTuple):
    """Where rows lie in the table: the first one of each rank; how many each node has, one node after the other; and
    the places of all rows in the order of ranks, None if they lie in that order."""

    rank_starts: list[int]
    node_counts: list[int]
    places: np.ndarray[Any, np.dtype[np.int64]] | None


def lay_out(nodes: Sequence[Sequence[int]], counts: Sequence[int]) -> Layout:
    """The layout of a table for these ranks of each node, of which rank r has counts[r] rows."""
    sequence = [rank for node in nodes for rank in node]
    starts = accumulate((counts[rank] for rank in sequence), initial=0)
    by_rank = dict(zip(sequence, starts, strict=False))
    rank_starts = [by_rank[rank] for rank in range(len(counts))]
    node_counts = [sum(counts[rank] for rank in node) for node in nodes]
    places = [start + k for start, count in zip(rank_starts, counts, strict=True) for k in range(count)]
    ordered = places == list(range(len(places)))
    return Layout(rank_starts, node_counts, None if ordered else np.array(places))


class RowExchange:
    """The ranks of each node, the memory of this one, and the communicator of the first ranks (of others: null)."""

    def __init__(
        self, rank: int, nodes: Sequence[Sequence[int]], memory: NodeMemory, leaders: Any, waiting: Waiting
    ) -> None:
        self.rank = rank
        self.nodes = nodes
        self.memory = memory
        self.leaders = leaders
        self.waiting = waiting
        self.layouts: dict[tuple[int, ...], Layout] = {}
        self.table = 0
        self.bytes_received = 0

    def allgather(self, rows: Float32Array, counts: Sequence[int]) -> Float32Array:
        """The rows of all ranks in their order, where rank r has counts[r] of them."""
        layout = self._layout(tuple(counts))
        self.table = 1 - self.table
        table = self.memory.array(TABLES[self.table], (sum(counts), rows.shape[1]))
        start = layout.rank_starts[self.rank]
        table[start : start + len(rows)] = rows
        self.memory.arrive()
        if len(self.nodes) == 1:
            self.memory.wait_for_all()
        else:
            self._between_nodes(table, layout)
        return table if layout.places is None else table[layout.places]

    def _between_nodes(self, table: Float32Array, layout: Layout) -> None:
        """The first rank fetches what is missing when its node's rows are there; the others wait for it."""
        if self.memory.rank == 0:
            self.memory.wait_for_all()
            columns = table.shape[1]
            counts = [columns * count for count in layout.node_counts]
            in_place = self.memory.mpi.IN_PLACE
            self.waiting.wait(self.leaders.Iallgatherv(in_place, (table, counts)))
            self.bytes_received += table.nbytes - 4 * counts[self.leaders.rank]
        self.memory.arrive()
        self.memory.wait_for_first()

    def _layout(self, counts: tuple[int, ...]) -> Layout:
        """That of these counts, which hardly ever change."""
        if counts not in self.layouts:
            self.layouts[counts] = lay_out(self.nodes, counts)
        return self.layouts[counts]
