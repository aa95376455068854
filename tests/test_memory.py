"""Memory: never D x d. The peak of a large `descend` in a process of its own, and the rule by which it allocates."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from rbd_ref import compartments
from rbd_ref.conformance.cases import draw_at, pseudo_random
from rbd_ref.conformance.memory import peak_growth
from rbd_ref.kernels.backend import HELD_WORDS, SUMS, NumbaBackend, directions_per_turn
from rbd_ref.kernels.tiles import MOST_TILE_WORDS, family_code, tile_words
from rbd_ref.spec.families import parse_family
from rbd_ref.spec.operations import TILE
from tools import run_python

PEAK = """
import numpy as np
import rbd_ref as rbd
from rbd_ref.conformance.memory import peak, reset_peak
small = rbd.Basis(rbd.compartments.whole(20_000, d=2), family={family!r})
small.descend(np.ones(20_000, dtype=np.float32), step=0)
basis = rbd.Basis(rbd.compartments.whole(1_000_000, d={d}), family={family!r})
g = np.ones(1_000_000, dtype=np.float32)
reset_peak()
before = peak()
a, u = basis.descend(g, step=0)
assert a.shape == ({d},) and u.shape == (1_000_000,)
print((peak() - before) / 1e6)
"""


@pytest.mark.compiled
@pytest.mark.parametrize(("family", "d"), [("normal", 1_000), ("sparse", 10_000), ("srht", 10_000)])
def test_descend_along_thousands_of_directions_stays_small(family: str, d: int) -> None:
    """4 and 40 GB if they were stored; everything beside g and the plan counts, the result too."""
    result = run_python("-c", PEAK.format(family=family, d=d))
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < 200


TRAINING = """
import numpy as np
import rbd_ref
from rbd_ref.conformance.memory import peak, reset_peak

class Cheap:
    def __init__(self, D):
        self.D = D
    def initial(self, seed):
        return np.ones(self.D, dtype=np.float32)
    def loss_and_gradient(self, theta, step, worker):
        theta[worker] += 1  # a copy
        return float(theta[0]), theta

def vectors(method, family, workers, *callbacks):
    along = {} if method == "sgd" else {"family": family, "dims": 2}
    config = rbd_ref.Config(method=method, **along, lr=0.01, steps=3, workers=workers)
    rbd_ref.fit(config, Cheap(5000))  # compiles
    reset_peak()
    before = peak()
    rbd_ref.fit(config, Cheap(1_000_000), callbacks=callbacks)
    return (peak() - before) / 4_000_000

for method, family in (("rbd", "sparse"), ("rbd", "srht"), ("fpd", "sparse"), ("sgd", "sparse")):
    vectors(method, family, 1)
    print(vectors(method, family, 1), vectors(method, family, 32))
print(0, vectors("rbd", "sparse", 32, lambda record: None))
"""


@pytest.mark.compiled
def test_many_workers_of_one_process_take_hardly_more_than_one() -> None:
    """Vectors of D floats at the peak. 128 more, were the gradients and updates of two steps kept: what they add up to
    is one. `sgd` keeps what its workers send, once; callbacks see the gradient and the update of each worker."""
    result = run_python("-c", TRAINING)
    assert result.returncode == 0, result.stderr
    *usual, sgd, seen = [[float(text) for text in line.split()] for line in result.stdout.splitlines()]
    assert [one for one, _ in usual if not 3 < one < 9] == []
    assert [many - one for one, many in usual if many - one > 3] == []
    assert sgd[0] < 6
    assert 32 < sgd[1] < 32 + 4
    assert 64 < seen[1] < 64 + 8


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
    """The update, some directions (two vectors, or HELD_WORDS) and a tile more between two threads, sums of tiles, and
    the coefficients."""
    for D in (50_000, 400_000):
        tiles, words = -(-D // TILE), tile_words(family_code(parse_family(family)), D)
        held = directions_per_turn(D, 10_000, tiles * (words + SUMS))
        rule = 4 * D + 4 * held * (tiles * (words + SUMS) + words * (NumbaBackend().set_threads(0) - 1))
        for d in (50, 500):
            assert allocated(family, D, d) <= rule + 4 * d + 50_000
        assert held * tiles * (words + SUMS) <= max(2 * tiles * (MOST_TILE_WORDS + SUMS), HELD_WORDS)


def test_rows_held_never_grow_with_d() -> None:
    """Two long directions, more of those that are held in fewer words than they have elements, many short ones."""
    assert {directions_per_turn(10**6, d, 10**6) for d in (2, 10, 10**5)} == {2}
    assert {directions_per_turn(10**6, d, 10**6 // 32) for d in (64, 10**5)} == {64}
    assert directions_per_turn(10**6, 1, 10**6) == 1
    assert directions_per_turn(1000, 10**5, 1000) == HELD_WORDS // 1000


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
