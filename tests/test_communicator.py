"""Who plays which worker, and the process that plays them all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbd_mpi.exchange import lay_out
from rbd_ref._launch import LAUNCHERS
from rbd_ref.methods.base import GradientSum
from rbd_ref.runs.files import RunError, SharedError
from rbd_ref.training import communicator
from rbd_ref.training.communicator import (
    Options,
    SingleProcess,
    collectively,
    diverging_ranks,
    gather_errors,
    share,
)

COUNTS = st.integers(1, 200)


@given(workers=st.integers(0, 1000), ranks=COUNTS)
def test_shares_are_neighbours_and_cover_all_workers_once(workers: int, ranks: int) -> None:
    assert [w for rank in range(ranks) for w in share(workers, rank, ranks)] == list(range(workers))


@given(workers=st.integers(0, 1000), ranks=COUNTS)
def test_shares_are_even_and_the_larger_ones_come_first(workers: int, ranks: int) -> None:
    sizes = [len(share(workers, rank, ranks)) for rank in range(ranks)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_a_share_is_given_by_example() -> None:
    assert [share(5, rank, 3) for rank in range(3)] == [range(2), range(2, 4), range(4, 5)]
    assert [len(share(2, rank, 4)) for rank in range(4)] == [1, 1, 0, 0]


@given(rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12))
def test_rows_come_in_the_order_of_ranks_however_these_lie_on_nodes(rows: list[tuple[int, int]]) -> None:
    """For every rank how many rows it has, and on which node it is."""
    counts = [count for count, _ in rows]
    places = sorted({place for _, place in rows}, key=[place for _, place in rows].index)
    nodes = [[rank for rank, (_, place) in enumerate(rows) if place == wanted] for wanted in places]
    layout = lay_out(nodes, counts)
    table = np.full(sum(counts), -1)
    for rank, start in enumerate(layout.rank_starts):
        table[start : start + counts[rank]] = rank
    by_node = np.split(table, np.cumsum(layout.node_counts)[:-1])
    assert [set(block) <= set(node) for block, node in zip(by_node, nodes, strict=True)] == [True] * len(nodes)
    ordered = table if layout.places is None else table[layout.places]
    assert ordered.tolist() == [rank for rank, count in enumerate(counts) for _ in range(count)]


def test_the_table_of_neighbouring_ranks_is_read_in_place() -> None:
    assert lay_out([[0, 1], [2, 3]], [2, 1, 1, 1]) == ([0, 2, 3, 4], [3, 2], None)
    assert lay_out([[0, 2], [1]], [2, 1, 1])[:2] == ([0, 3, 2], [3, 1])


class Several(SingleProcess):
    """As if there were several ranks, whose values are known."""

    def __init__(self, *values: object) -> None:
        self.values = list(values)
        self.size = len(values)

    def allgather(self, value: object) -> list:
        return [value if known is ... else known for known in self.values]


def test_one_process_is_rank_0_of_1_and_sends_nothing() -> None:
    alone = SingleProcess()
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (alone.rank, alone.size, alone.bytes_sent, alone.bytes_received) == (0, 1, 0, 0)
    assert alone.allgather_rows(rows, [2]) is rows
    assert alone.allgather("value") == ["value"]
    assert alone.share_memory(rows) is rows
    assert alone.broadcast(rows) is rows
    assert alone.bytes_sent == 0


def test_one_process_agrees_with_itself() -> None:
    alone = SingleProcess()
    alone.configure(Options())
    alone.barrier()
    assert gather_errors(alone, None) == []
    assert gather_errors(alone, "a fault") == ["a fault"]
    assert diverging_ranks(alone, b"digest") == []


def test_different_errors_are_gathered_once_each_in_the_order_of_ranks() -> None:
    assert gather_errors(Several(None, "b", ..., "b"), "a") == ["b", "a"]


@pytest.mark.parametrize(
    ("digests", "expected"),
    [((b"x", b"x", b"y"), [2]), ((b"y", b"x", b"x"), [0]), ((b"x", b"y"), [1]), ((b"x", b"y", b"z", b"y"), [0, 2])],
)
def test_the_ranks_that_differ_from_most(digests: tuple[bytes, ...], expected: list[int]) -> None:
    """Of equals, from the lowest rank."""
    assert diverging_ranks(Several(*digests), b"") == expected


def test_an_expected_error_on_any_rank_is_raised_on_all() -> None:
    with pytest.raises(SharedError, match="elsewhere"):
        collectively(Several(..., "elsewhere"), lambda: 7, ValueError)
    with pytest.raises(SharedError, match="here"):
        collectively(SingleProcess(), lambda: int("here"), ValueError)
    with pytest.raises(KeyError):
        collectively(SingleProcess(), lambda: {}["no mistake of the user's"], ValueError)
    assert collectively(SingleProcess(), lambda: 7, ValueError) == 7


def test_one_process_is_first_on_its_node_and_loses_nobody() -> None:
    turns: list[int] = []
    SingleProcess().first_on_each_node(lambda: turns.append(1))
    assert turns == [1]
    assert SingleProcess().recover().communicator.size == 1


def test_what_one_process_raises_stays_as_it_is() -> None:
    def fails() -> int:
        raise KeyError("as it was")

    assert SingleProcess().abort_on_error(lambda: 7) == 7
    with pytest.raises(KeyError, match="as it was"):
        SingleProcess().abort_on_error(fails)
    with pytest.raises(SystemExit) as end:
        SingleProcess().abort(3)
    assert end.value.code == 3


def test_one_process_adds_updates_in_order() -> None:
    """In float32 2^24 + 1 + 1 is 2^24, but 1 + 1 + 2^24 is not."""
    updates = np.array([[2.0**24], [1], [1]], dtype=np.float32)

    def total(order: list[int]) -> float:
        return float(SingleProcess().sum_updates(GradientSum(updates[order]))[0])

    assert total([0, 1, 2]) == 2.0**24
    assert total([1, 2, 0]) == 2.0**24 + 2


def test_without_a_launcher_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(communicator, "entry_points", lambda **_: pytest.fail("nobody should look for a world"))
    assert isinstance(communicator.find_world().communicator, SingleProcess)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_without_a_world_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(communicator, "entry_points", lambda **_: ())
    with pytest.raises(RunError, match=r"expected rbd_mpi to be installed: pip install rbd-ref\[mpi\]"):
        communicator.find_world()
