"""Who plays which worker, and the process that plays them all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbd_ref.methods.descent import Rebuild
from rbd_ref.runs.files import RunError
from rbd_ref.training import communicator as exchange
from rbd_ref.training.communicator import LAUNCHERS, Alone, share

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


def test_one_process_is_rank_0_of_1_and_sends_nothing() -> None:
    alone = Alone()
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (alone.rank, alone.ranks, alone.sent) == (0, 1, 0)
    assert alone.gather(rows, 2, 15) == (pytest.approx(rows), 15)
    assert alone.keep(rows) is rows
    assert alone.spread(rows) is rows
    assert alone.sent == 0


def test_one_process_agrees_with_itself() -> None:
    alone = Alone()
    alone.options(1.0, "node", "")
    assert alone.agree(None) == []
    assert alone.agree("a fault") == ["a fault"]
    assert alone.different(b"digest") == []


def test_one_process_has_its_turn_at_once_and_loses_nobody() -> None:
    turns: list[int] = []
    Alone().in_turn(lambda: turns.append(1))
    Alone().recover()
    assert turns == [1]


def test_one_process_is_not_guarded() -> None:
    def fails() -> int:
        raise KeyError("as it was")

    assert Alone().guard(lambda: 7) == 7
    with pytest.raises(KeyError, match="as it was"):
        Alone().guard(fails)


def test_one_process_adds_updates_in_order() -> None:
    """In float32 2^24 + 1 + 1 is 2^24, but 1 + 1 + 2^24 is not."""
    updates = np.array([[2.0**24], [1], [1]], dtype=np.float32)

    def total(order: list[int]) -> float:
        rows = updates[order]
        return float(Alone().total(Rebuild(1, 3, lambda j: rows[j], lambda j, k, n: (0, rows[j])))[0])

    assert total([0, 1, 2]) == 2.0**24
    assert total([1, 2, 0]) == 2.0**24 + 2


def test_without_a_launcher_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(exchange, "entry_points", lambda **_: pytest.fail("nobody should look for an exchange"))
    assert isinstance(exchange.find(), Alone)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_without_an_exchange_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(exchange, "entry_points", lambda **_: ())
    with pytest.raises(RunError, match=r"expected rbd_mpi to be installed: pip install rbd-ref\[mpi\]"):
        exchange.find()
