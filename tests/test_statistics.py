"""Laws: whether the draws of each family have the distribution that is promised, and whether any are correlated.

Every seed is fixed, so a pass is permanent. A test fails a right generator with probability LEVEL = 1e-4 at most:
a test of m p-values refuses those below LEVEL / m. Fewer than 50 tests and cases have p-values, so the chance that
a right generator fails any of them is below 0.5 %; the others are exact, or show that a wrong generator is refused.
Scores of sums are taken as normal, which at these numbers of draws changes a probability near the threshold by less
than a third of it. `pytest -s tests/test_statistics.py` shows all p-values.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numba
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from rbd_ref import Basis, compartments
from rbd_ref._types import Float32Array
from rbd_ref.kernels import hadamard
from rbd_ref.kernels.backend import NumbaBackend
from rbd_ref.kernels.families import KeyPair
from rbd_ref.kernels.tiles import family_code
from rbd_ref.spec.families import Family, block_words, direction_entries, parse_family
from rbd_ref.spec.operations import TILE
from rbd_ref.spec.prng import basis_keys, fold_in, root_key
from statistics_tools import (
    LENGTH,
    LEVEL,
    Counts,
    Place,
    Reals,
    Stream,
    balance,
    binomial,
    chi_square,
    correlation,
    correlation_at_all_lags,
    draws,
    from_z,
    judge,
    kolmogorov_smirnov,
    least,
    normal_stream,
    pair_p_value,
    place_p_values,
    refused,
    sets_of_rows,
    sparse_places,
)

pytestmark = pytest.mark.compiled

DRAWS = 2**24
MANY = 2**28  # draws of `normal` that are counted but not kept; benchmarks/normal_quality.py takes more
CELLS = 1024  # cells of a unit, in which they are counted


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Many small calls, which threads that wait for each other only slow down."""
    before = numba.get_num_threads()
    NumbaBackend().set_threads(1)
    yield
    NumbaBackend().set_threads(before)


# the p-values themselves


def test_p_values_are_those_of_scipy() -> None:
    """Catches a slip in the tests' own arithmetic, on draws that are not the library's."""
    x = np.sort(np.random.Generator(np.random.Philox(0)).standard_normal(10_000))
    counts = np.histogram(x, bins=[-9, -1, 0, 1, 9])[0]
    right = stats.chisquare(counts).pvalue
    assert chi_square(counts) == pytest.approx(2 * min(right, 1 - right))
    shares = np.arange(10_001) / 10_000
    sides = [kolmogorov_smirnov(below, special.ndtr(x), 10_000) for below in (shares[:-1], shares[1:])]
    assert min(sides) == pytest.approx(stats.kstest(x, "norm", mode="asymp").pvalue, rel=0.01)
    assert correlation(x, x**3) == pytest.approx([100 * stats.pearsonr(x, x**3).statistic])
    assert correlation_at_all_lags(x, x**3)[[0, 7]] == pytest.approx(correlation(x**3, x, (0, 7)))
    assert from_z(1.959964) == pytest.approx(0.05, rel=1e-5)
    assert binomial(np.array([480]), 1000, 0.5) == pytest.approx(stats.binomtest(480, 1000).pvalue)


def test_nan_is_refused() -> None:
    """Catches a verdict that a NaN among the draws turns into a pass."""
    spoilt = np.array([0.1, np.nan, 0.3])
    p_values = {
        "score": from_z(spoilt),
        "counts": chi_square(spoilt),
        "distance": kolmogorov_smirnov(spoilt, np.zeros(3), 3),
        "lags": from_z(correlation(spoilt, spoilt, [1])),
    }
    assert refused(p_values) == set(p_values)


# normal


@pytest.fixture(scope="module")
def stream() -> Stream:
    key = basis_keys(seed=1, step=0, worker=0, compartments=1)[:, 0]
    return normal_stream(family_code(Family("normal")), (key[0], key[1]), MANY // TILE, CELLS)


def moment_p_values(stream: Stream, variance: float) -> dict[str, float]:
    """The first six moments against those of N(0, 1), were the variance of the draws this number of times as large."""
    moment = [0.0 if k % 2 else float(special.factorial2(k - 1)) for k in range(13)]
    p_values = {}
    for k, total in enumerate(stream.powers, start=1):
        error = total / MANY * variance ** (k / 2) - moment[k]
        p_values[f"moment {k}"] = from_z(error / np.sqrt((moment[2 * k] - moment[k] ** 2) / MANY))
    return p_values


def distance_p_value(stream: Stream, variance: float) -> float:
    """Kolmogorov-Smirnov against N(0, 1) at the edges of the cells, were the variance this number of times as large."""
    edges = np.arange(1, 16 * CELLS) / CELLS - 8
    return kolmogorov_smirnov(np.cumsum(stream.counts)[:-1] / MANY, special.ndtr(edges * np.sqrt(variance)), MANY)


def test_normal_moments(stream: Stream) -> None:
    """Catches a wrong scale, a lopsided quadrant, tails too light or too heavy; has power at a variance of 1.001."""
    judge(moment_p_values(stream, 1.0))
    assert {"moment 2", "moment 4"} <= refused(moment_p_values(stream, 1.001))


def test_normal_distribution_function(stream: Stream) -> None:
    """Catches what moves the distribution function by 2e-4, or spoils a cell; has power at a variance of 1.002."""
    inner = slice(4 * CELLS, 12 * CELLS)
    edges = np.arange(inner.start, inner.stop + 1) / CELLS - 8
    expected = MANY * np.array([special.ndtr(-4), *np.diff(special.ndtr(edges)), special.ndtr(-4)])
    counts = np.array([stream.counts[: inner.start].sum(), *stream.counts[inner], stream.counts[inner.stop :].sum()])
    judge({"Kolmogorov-Smirnov": distance_p_value(stream, 1.0), "cells": chi_square(counts, expected)})
    assert distance_p_value(stream, 1.002) < LEVEL / 2


def test_normal_tails(stream: Stream) -> None:
    """Catches 0, infinity, no number, a radius beyond sqrt(62 ln 2) or clamped at 5, and tails that are not alike."""
    assert stream.bad == 0
    assert stream.largest <= 6.5556
    p_values = {}
    for bound in (4, 4.25, 4.5, 4.75, 5, 5.25, 5.5, 5.75):
        low, high = stream.counts[: round((8 - bound) * CELLS)].sum(), stream.counts[round((8 + bound) * CELLS) :].sum()
        share = float(special.ndtr(-bound))
        p_values |= {f"below -{bound}": binomial(low, MANY, share), f"above {bound}": binomial(high, MANY, share)}
    judge(p_values)


def test_normal_angles_and_radii(stream: Stream) -> None:
    """Catches a quadrant drawn too often, a sine that does not fit the cosine, an angle that depends on the radius."""
    edges = np.linspace(0, 1, 65)
    expected = np.tile(MANY / 2 / 8 * np.diff(np.arctan2(edges, 1 - edges)) / (2 * np.pi), (8, 4, 1))
    angle = chi_square(stream.table.sum(0), expected.sum(0))
    judge({"angle": angle, "radius": chi_square(stream.table.sum((1, 2))), "both": chi_square(stream.table, expected)})


# uniform


def test_uniform() -> None:
    """Catches a zero, a rounded sum, a wrong range, and low-order bits lost by a conversion that rounds.

    That x = (2 m + 1) 2^-24 - 1 is exact; then m has 24 fair bits.
    """
    x = draws("uniform", DRAWS, seed=3)[0]
    odd = (x * np.float32(2**24)).astype(np.int64)
    assert np.array_equal(odd * np.float32(2**-24), x)
    assert (odd & 1 == 1).all()
    assert np.abs(odd).max() < 2**24
    m = odd + (2**24 - 1) >> 1
    high = np.bincount(m >> 12, minlength=2**12)
    p_values = {
        "Kolmogorov-Smirnov": kolmogorov_smirnov(np.cumsum(high) / DRAWS, np.arange(1, 4097) / 4096, DRAWS),
        "24 bits": least([balance(m & 1 << b != 0) for b in range(24)]),
        "high 12": chi_square(high),
        "low 8": chi_square(np.bincount(m & 0xFF, minlength=2**8)),
        "low 16": chi_square(np.bincount(m & 0xFFFF, minlength=2**16)),
        "low 6 of a pair": chi_square(np.bincount((m[::2] & 63) << 6 | m[1::2] & 63, minlength=2**12)),
        "high 6 of a pair": chi_square(np.bincount(m[::2] >> 18 << 6 | m[1::2] >> 18, minlength=2**12)),
    }
    judge(p_values)


def test_low_bits_see_a_conversion_that_rounds() -> None:
    """The test of low-order bits has power: float32(x) 2^-32 loses the last bit of the upper half to rounding."""
    words = block_words(root_key(4), 0, 2**20)[0]
    m = (words.astype(np.float32).astype(np.float64) / 2**7).astype(np.int64)
    assert chi_square(np.bincount(m & 0xFF, minlength=2**8)) < LEVEL / 7


# rademacher and bernoulli-graphcore


def bit_p_values(negative: NDArray[np.bool_]) -> dict[str, float]:
    """Fair and independent bits: alone, by place in the block of 64, in bytes and words, between places."""
    blocks = np.where(negative.reshape(-1, 64), np.float32(-1), np.float32(1))
    same, next_ = blocks.T @ blocks, blocks[1:].T @ blocks[:-1]
    octets = np.packbits(negative)
    return {
        "balance": balance(negative),
        "64 places": from_z(blocks.sum(0) / np.sqrt(len(blocks))),
        "bytes": chi_square(np.bincount(octets, minlength=256)),
        "words of 16": chi_square(np.bincount(octets.view(np.uint16), minlength=2**16)),
        "places of a block": from_z(same[np.triu_indices(64, 1)] / np.sqrt(len(blocks))),
        "places of two blocks": from_z(next_ / np.sqrt(len(blocks) - 1)),
    }


def test_rademacher() -> None:
    """Catches a bit that is read twice or never, a wrong order of the two words, a value that is not +-1.

    It has power: where place 63 of each block takes the bit of place 62, no share of ones changes, but it is refused.
    """
    x = draws("rademacher", DRAWS, seed=5)[0]
    assert (np.abs(x) == 1).all()
    negative = x < 0
    judge(bit_p_values(negative))
    negative[63::64] = negative[62::64]
    assert refused(bit_p_values(negative)) == {"bytes", "words of 16", "places of a block"}


def test_bernoulli_graphcore() -> None:
    """Catches a repair of the released code's law, a sign less 1/2 with mean -1/2, kept as it is to reproduce it."""
    x, sign = (draws(name, DRAWS, seed=5) for name in ("bernoulli-graphcore", "rademacher"))
    assert np.array_equal(x, sign - np.float32(0.5))


# sparse


def window_lengths(size: int, window: int) -> Counts:
    """Elements of each window: as many windows as `window` makes needed, as even as can be, the longer ones first."""
    windows = -(-size // window)
    return np.array([size // windows + (v < size % windows) for v in range(windows)])


def window_p_values(place: Counts, negative: NDArray[np.bool_], lengths: Counts) -> dict[str, float]:
    """Places and signs (directions, windows): even, independent of each other and of those of the next windows."""
    p_values = {"sign": balance(negative), "next sign": balance(negative.flat[1:] != negative.flat[:-1])}
    for length in np.unique(lengths).tolist():
        both = (2 * place + negative)[:, lengths == length]
        table = np.bincount(both.ravel(), minlength=2 * length).reshape(-1, 2)
        assert len(table) == length
        p_values |= {f"places of {length}": chi_square(table.sum(1)), f"and signs of {length}": chi_square(table)}
        p_values[f"a place of {length}"] = binomial(table.sum(1), table.sum(), 1 / length)
    if lengths.max() > 1:
        centred = ((2 * place + 1) / lengths - 1).ravel()
        p_values["next places"] = from_z(correlation(centred, centred, (1, 2, 3)))
    return p_values


@pytest.mark.parametrize(
    ("window", "size"), [(1, 5000), (2, 7), (7, 45), (100, 250), (100, 3 * TILE + 77), (256, 3 * TILE + 77)]
)
def test_sparse(window: int, size: int) -> None:
    """Catches a window with no or two non-zeros (at a seam between tiles, at the end), and places that are uneven.

    All but window 1 have windows of two lengths: places drawn for the other length fall outside, or never on the last.
    """
    lengths = window_lengths(size, window)
    phi = draws(f"sparse:{window}", size, seed=window + size, count=min(2**23 // size, 2**16))
    assert set(np.unique(phi).tolist()) <= {-1.0, 0.0, 1.0}
    row, column = np.nonzero(phi)
    assert np.array_equal(row, np.repeat(np.arange(len(phi)), lengths.size))
    place = column.reshape(len(phi), -1) - (np.cumsum(lengths) - lengths)
    assert (place >= 0).all()
    assert (place < lengths).all()
    judge(window_p_values(place, phi[row, column].reshape(place.shape) < 0, lengths))


@pytest.mark.parametrize("window", [2, 7, 100, 256])
def test_sparse_at_ten_million(window: int) -> None:
    """Catches a place or sign that is met a thousandth too often."""
    key, size = fold_in(root_key(21), window), TILE // window * window
    table = sparse_places(family_code(Family("sparse", window)), (key[0], key[1]), size, -(-(10**7) * window // size))
    assert table.sum() >= 10**7
    judge({"places": chi_square(table.sum(1)), "signs": chi_square(table.sum(0)), "both": chi_square(table)})


def test_places_see_a_word_of_8_bits() -> None:
    """The test of places has power: 8 bits do not divide evenly into 100 places, by modulo or by product."""
    word = block_words(root_key(9), 0, 2**16)[0].astype(np.int64)[:, None]
    for place in ((word >> 24) % 100, (word >> 24) * 100 >> 8):
        assert "places of 100" in refused(window_p_values(place, word % 2 == 1, np.array([100])))


# srht


def keys_of_steps(seed: int, count: int) -> list[KeyPair]:
    """Keys of the compartments of 64 steps."""
    keys = np.concatenate([basis_keys(seed, step, 0, count // 64) for step in range(64)], axis=1)
    return list(zip(*keys, strict=True))


def row_p_values(rows: Counts, n: int) -> dict[str, float]:
    """How often each row, pair and set of rows was chosen from n; and each set after each, where they are few."""
    assert (np.diff(rows, axis=1) > 0).all()
    count, d = rows.shape
    sets = np.sort([sum(1 << r for r in chosen) for chosen in combinations(range(n), d)])
    codes = np.sum(1 << rows, axis=1)
    chosen = (codes[:, None] >> np.arange(n) & 1).astype(np.float64)
    number = np.searchsorted(sets, codes)
    p_values = {
        "rows": binomial(chosen.sum(0), count, d / n),
        "pairs": binomial((chosen.T @ chosen)[np.triu_indices(n, 1)], count, d * (d - 1) / (n * (n - 1))),
        "sets": chi_square(np.bincount(number, minlength=sets.size)),
    }
    if sets.size < 100:
        p_values["next set"] = chi_square(np.bincount(number[::2] * sets.size + number[1::2], minlength=sets.size**2))
    return p_values


@pytest.mark.parametrize(("size", "d"), [(16, 3), (6, 3)])
def test_srht_chooses_rows_evenly(size: int, d: int) -> None:
    """Catches rows that are favoured, drawn together or in dependence on the last, or left out beyond the size."""
    rows = np.array([hadamard.rows(key, size, d) for key in keys_of_steps(size, 2**19)])
    judge(row_p_values(rows, hadamard.padded(size)))


def test_srht_at_ten_million() -> None:
    """Catches a set of rows that is met a little too often: all 560 sets of three rows from 16."""
    key = root_key(22)
    counts = sets_of_rows((key[0], key[1]), 16, 3, -(-(10**7) // 3))
    sets = [sum(1 << r for r in chosen) for chosen in combinations(range(16), 3)]
    assert counts[sets].sum() == counts.sum() >= 10**7 / 3
    judge({"sets": chi_square(counts[sets])})


def test_pairs_of_rows_see_neighbouring_rows() -> None:
    """The test of pairs has power: three rows in sequence from a random one on favour no row, but do favour pairs."""
    first = np.random.Generator(np.random.Philox(12)).integers(0, 16, 2**19)
    rows = np.sort((first[:, None] + np.arange(3)) % 16, axis=1)
    assert refused(row_p_values(rows, 16)) == {"pairs", "sets"}


def test_srht_signs() -> None:
    """Catches signs that are uneven, repeat from key to key, or share a word with rows: 64 signs against 64 rows."""
    keys, signs = keys_of_steps(15, 2**17), np.zeros((2**17, 64), dtype=np.float32)
    rows = np.array([hadamard.rows(key, 64, 8) for key in keys])
    row_0, one, x = np.zeros(1, np.int64), np.ones(1, np.float32), np.empty(64, np.float32)
    for key, out in zip(keys, signs, strict=True):
        hadamard.synthesise(key, row_0, one, out, x)  # row 0 is the signs
    chosen = np.full(signs.shape, np.float32(-1 / 8))
    np.put_along_axis(chosen, rows, np.float32(7 / 8), axis=1)
    together = from_z(signs.T @ chosen / np.sqrt(len(rows) * 7 / 64))
    judge({"signs and rows": together, **bit_p_values(signs.ravel() < 0)})


# correlation; the directions of bernoulli-graphcore are those of rademacher, moved

FAMILIES = ["normal", "uniform", "rademacher", "sparse:4", "srht"]
SQUARES = ("normal", "uniform")  # families whose squares are not fixed by their values' law


@pytest.mark.parametrize("family", FAMILIES)
def test_neighbouring_places_are_uncorrelated(family: str) -> None:
    """Catches additive seeding: step t of worker k against step t+1 of worker k-1, and every similar neighbour.

    |r| sqrt(n) stays below 4.8 for each pair of places, and below 7.0 at each of 2^19 lags.
    """
    plan = compartments.even(5 * LENGTH, 5, d=8)

    def source(place: Place) -> Float32Array:
        basis, index = Basis(plan, place.seed, family), 8 * place.compartment + place.direction
        return basis.directions([index], place.step, place.worker)[0, plan.elements(place.compartment)]

    judge(place_p_values(source, squares=family in SQUARES))


def additive(place: Place) -> Float32Array:
    """Directions with the seed that some code uses: seed + step + worker."""
    key = fold_in(root_key(place.seed + place.step + place.worker), place.compartment)
    return direction_entries(Family("normal"), key, place.direction, LENGTH)


def test_additive_seeding_is_refused() -> None:
    """The test of neighbouring places has power: it finds the places that additive seeding confuses, and no other."""
    confused = {"seed+1 step-1", "seed+1 worker-1", "step+1 worker-1", "step<->worker"}
    assert refused(place_p_values(additive, squares=True)) == confused


def test_overlapping_streams_are_refused() -> None:
    """The test at all lags has power: it finds places that read one stream, 1000 elements apart."""
    stream = draws("normal", LENGTH + 1000, seed=17)[0]
    assert pair_p_value(stream[:LENGTH], stream[1000:], squares=False) < LEVEL / 100


@pytest.mark.parametrize("family", FAMILIES)
def test_elements_are_uncorrelated(family: str) -> None:
    """Catches a block that is used twice, at any distance: lags 1, 2, 64, 4096, and up to 2^20 of fewer elements."""
    x = draws(family, DRAWS, seed=16)[0]
    lags = (1, 2, 64, 4096)
    p_values = {"lags": from_z(correlation(x, x, lags))}
    if family in SQUARES:
        p_values["squares"] = from_z(correlation(x * x, x * x, lags))
    start = x[:LENGTH]
    judge({**p_values, "all lags": from_z(correlation_at_all_lags(start, start)[1:LENGTH])})


# norms and expectations


@pytest.mark.parametrize("name", [*FAMILIES, "bernoulli-graphcore", "sparse:7"])
def test_squares(name: str) -> None:
    """Catches a divisor that is not E |phi|^2, or that stands for directions whose squares do differ."""
    family, phi = parse_family(name), draws(name, 1000, seed=18, count=10_000)
    errors = np.sum(phi * phi, axis=1, dtype=np.float64) - family.expected_square(1000)
    if family.square_is_constant:
        assert not errors.any()
    else:
        judge({"square": from_z(errors.mean() / errors.std() * np.sqrt(errors.size))})


def second_moments(family: Family, size: int) -> Reals:
    """E phi phi^T: the identity times the variance, and what a mean or windows of two lengths make of it."""
    if family.name == "sparse":
        lengths = window_lengths(size, family.window)
        return np.diag(1 / np.repeat(lengths, lengths))
    mean = 0.5 if family.name == "bernoulli-graphcore" else 0.0
    return np.eye(size) * (1 / 3 if family.name == "uniform" else 1.0) + mean**2


def expectation_p_values(u: Float32Array, g: Float32Array, expected: Reals) -> dict[str, float]:
    """The mean update against the expected one: in each element, and along g."""
    along = u.astype(np.float64) @ g
    scores = (u.mean(0, dtype=np.float64) - expected) / u.std(0, dtype=np.float64) * np.sqrt(len(u))
    score = (along.mean() - expected @ g) / along.std() * np.sqrt(len(u))
    return {"elements": from_z(scores), "along g": from_z(score)}


UNBIASED = [("normal", 64), ("normal", 37), ("uniform", 37), ("rademacher", 64), ("srht", 64), ("srht", 48)]
UNBIASED += [("sparse:8", 64), ("sparse", 64)]
BIASED = [("bernoulli-graphcore", 64), ("sparse:7", 64), ("sparse:10", 64)]


@pytest.mark.parametrize(("name", "size"), [*UNBIASED, *BIASED])
def test_the_expected_update(name: str, size: int) -> None:
    """Catches a wrong divisor and any bias between elements but the known: E reconstruct(project(g)) = (d / size) g.

    A mean adds the sum of g, and windows of two lengths L give d g_j / (W L_j); for these (d / size) g is refused,
    so that the test has power. d = 8, over 64 steps and 512 compartments that all have the same g.
    """
    g, family = np.cos(np.arange(size)).astype(np.float32) + np.float32(0.5), parse_family(name)
    basis = Basis(compartments.even(512 * size, 512, d=8), seed=19, family=name, normalize="expected")
    u = np.concatenate([basis.descend(np.tile(g, 512), step)[1].reshape(512, size) for step in range(64)])
    moments = second_moments(family, size)
    expected = 8 / np.trace(moments) * (moments @ g)
    judge(expectation_p_values(u, g, expected))
    if (name, size) in UNBIASED:
        assert expected == pytest.approx(8 / size * g)
    else:
        assert "elements" in refused(expectation_p_values(u, g, 8 / size * g.astype(np.float64)))
