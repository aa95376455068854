"""Memory: never D x d. The peak of a large `descend` in a process of its own, and the rule by which it allocates."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from rbd_ref import compartments
from rbd_ref.conformance.cases import draw_at, pseudo_random
from rbd_ref.conformance.memory import peak_growth
from rbd_ref.kernels.backend import ROOM, SUMS, NumbaBackend, rows_held
from rbd_ref.kernels.families import family_code
from rbd_ref.kernels.tiles import LARGEST_ROOM, room
from rbd_ref.spec.families import parse_family
from rbd_ref.spec.operations import TILE
from tools import run_python

PEAK = """
import numpy as np
import rbd_ref as rbd
from rbd_ref.conformance.memory import peak, reset_peak
small = rbd.Basis(rbd.compartments.whole(20_000, d=2), family={family!r})
small.descend(np.ones(20_000, dtype=np.float32), step=0)
basis = rbd.Basis(rbd.compartments.whole(1_000_000, d=10_000), family={family!r})
g = np.ones(1_000_000, dtype=np.float32)
reset_peak()
before = peak()
a, u = basis.descend(g, step=0)
assert a.shape == (10_000,) and u.shape == (1_000_000,)
print((peak() - before) / 1e6)
"""


@pytest.mark.compiled
@pytest.mark.parametrize("family", ["normal", "sparse", "srht"])
def test_descend_of_a_million_by_ten_thousand_stays_small(family: str) -> None:
    """40 GB if it were stored; everything beside g and the plan counts, the result too."""
    result = run_python("-c", PEAK.format(family=family))
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < 200


def allocated(family: str, D: int, d: int) -> int:
    """Peak of what NumPy hands out during `descend`."""
    draw, g = draw_at(compartments.whole(D, d=d), family, "unit", 0, 0, 0), pseudo_random(0, D)
    NumbaBackend().descend(draw, g)  # compiles the kernels and makes what the draw and its plan keep
    tracemalloc.start()
    NumbaBackend().descend(draw, g)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.compiled
@pytest.mark.parametrize("family", ["normal", "rademacher", "sparse", "sparse:1"])
def test_the_allocation_rule(family: str) -> None:
    """The update, room for some directions (two vectors, or ROOM) and for a tile more between two threads, sums of
    tiles, and the coefficients."""
    for D in (50_000, 400_000):
        tiles, words = -(-D // TILE), room(family_code(parse_family(family)), D)
        held = rows_held(D, 10_000, tiles * (words + SUMS))
        rule = 4 * D + 4 * held * (tiles * (words + SUMS) + words * (NumbaBackend().set_threads(0) - 1))
        for d in (50, 500):
            assert allocated(family, D, d) <= rule + 4 * d + 50_000
        assert held * tiles * (words + SUMS) <= max(2 * tiles * (LARGEST_ROOM + SUMS), ROOM)


def test_rows_held_never_grow_with_d() -> None:
    """Two long directions, more of those that are held in fewer words than they have elements, many short ones."""
    assert {rows_held(10**6, d, 10**6) for d in (2, 10, 10**5)} == {2}
    assert {rows_held(10**6, d, 10**6 // 32) for d in (64, 10**5)} == {64}
    assert rows_held(10**6, 1, 10**6) == 1
    assert rows_held(1000, 10**5, 1000) == ROOM // 1000


def test_memory_that_was_freed_before_hides_nothing() -> None:
    """50 MB that an earlier call left to the allocator do not count as room for the call that is measured."""

    def many() -> list[np.ndarray]:
        return [np.ones(12_500) for _ in range(500)]

    left = many()
    last = left.pop()  # what is above it in memory stays with the allocator
    del left
    assert 45e6 < peak_growth(lambda: None, many) < 60e6
    assert last.size


def test_the_measure_sees_a_large_array() -> None:
    """64 MB more are seen as such: the check that relies on it can fail."""
    growth = peak_growth(lambda: np.ones(10), lambda: np.ones(8_000_000))
    assert 60e6 < growth < 80e6
