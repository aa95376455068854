"""What the statistical tests need: p-values, one rule that judges them, and compiled loops that draw in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray
from scipy import fft, special, stats

from rbd_ref import Basis, compartments
from rbd_ref._types import Float32Array
from rbd_ref.kernels.families import FamilyCode, KeyPair
from rbd_ref.kernels.hadamard import rows
from rbd_ref.kernels.prng import threefry2x32
from rbd_ref.kernels.tiles import LARGEST_ROOM, SCRATCH, fill
from rbd_ref.spec.operations import TILE

# A right generator fails one test (one case of a parametrised test) with probability LEVEL at most.
LEVEL = 1e-4
Counts = NDArray[np.int64]
Reals = NDArray[np.float64]


# p-values: two-sided, except where largeness alone is a fault. NaN stays NaN, which is refused.


def refused(p_values: Mapping[str, float]) -> set[str]:
    """The names with a p-value below LEVEL divided by the number of names (Bonferroni); NaN is refused as well."""
    return {name for name, p in p_values.items() if not p * len(p_values) >= LEVEL}


def judge(p_values: Mapping[str, float]) -> None:
    """Assert that nothing is refused; `pytest -s` shows the p-values."""
    print(*(f"\n    {name}: p = {p:.3g}" for name, p in p_values.items()))
    assert refused(p_values) == set()


def least(p_values: Any) -> float:
    """One p-value of many: the least, times their number (Bonferroni)."""
    return float(np.minimum(1, np.min(p_values) * np.size(p_values)))


def from_z(z: Any) -> float:
    """The two-sided p-value of a score that is N(0, 1), or of the worst of several."""
    return least(special.erfc(np.abs(z) / np.sqrt(2)))


def two_sided(below: Any, above: Any) -> float:
    """Twice the smaller tail, or the worst of several."""
    return least(2 * np.minimum(below, above))


def chi_square(counts: NDArray[Any], expected: Any = None) -> float:
    """Pearson's test, of equal counts unless `expected` are given; a fit that is too good is refused as well."""
    if counts.size == 1:
        return 1.0
    mean = np.full(counts.shape, counts.mean()) if expected is None else expected
    law = stats.chi2(counts.size - 1)
    statistic = float(np.sum((counts - mean) ** 2 / mean))
    return two_sided(law.cdf(statistic), law.sf(statistic))


def balance(negative: NDArray[np.bool_]) -> float:
    """Whether half of the entries are negative."""
    return from_z(2 * (np.count_nonzero(negative) - negative.size / 2) / np.sqrt(negative.size))


def binomial(counts: Any, n: int, share: float) -> float:
    """Whether each count is that of n trials which succeed with probability `share`."""
    return two_sided(stats.binom.cdf(counts, n, share), stats.binom.sf(counts - 1, n, share))


def kolmogorov_smirnov(below: Reals, cdf: Reals, n: int) -> float:
    """From the shares of n draws `below` some points and the law's; points fewer than the draws make it lenient."""
    return float(special.kolmogorov(np.sqrt(n) * np.max(np.abs(below - cdf))))


def correlation(x: NDArray[Any], y: NDArray[Any], lags: Iterable[int] = (0,)) -> list[float]:
    """r sqrt(n) of x moved by `lags` elements against y, without what leaves the end: N(0, 1) for independent draws."""
    a, b = x - x.mean(dtype=np.float64), y - y.mean(dtype=np.float64)
    scale = np.sqrt(x.size / ((a @ a) * (b @ b)))
    return [float(a[lag:] @ b[: b.size - lag] * scale) for lag in lags]


def correlation_at_all_lags(x: Float32Array, y: Float32Array) -> Reals:
    """The same for y moved by 0 .. n-1 and by -(n-1) .. -1 elements, without what leaves the ends."""
    a, b = x - x.mean(), y - y.mean()
    products = fft.irfft(fft.rfft(a, 2 * a.size).conj() * fft.rfft(b, 2 * b.size))
    return np.delete(products, a.size) / np.sqrt((a @ a) * (b @ b)) * np.sqrt(a.size)


# Correlation between places: two directions that differ in seed, step, worker, compartment or direction.


class Place(NamedTuple):
    """Where a direction stands."""

    seed: int
    step: int
    worker: int
    compartment: int
    direction: int


HOME = Place(seed=1000, step=4, worker=3, compartment=2, direction=1)
LENGTH = 2**20  # elements of each direction
LAGGED = 2**18  # of them, those that are compared at all lags


def neighbours() -> dict[str, Place]:
    """Each number one up, each pair of numbers one up and one down, each pair of numbers exchanged."""
    changes = [{name: 1} for name in Place._fields] + [{"seed": 2**32}]
    changes += [{up: 1, down: -1} for up, down in combinations(Place._fields, 2)]
    places = {}
    for change in changes:
        name = " ".join(f"{number}{by:+}" for number, by in change.items())
        places[name] = HOME._replace(**{number: getattr(HOME, number) + by for number, by in change.items()})
    for one, other in combinations(Place._fields[1:], 2):
        places[f"{one}<->{other}"] = HOME._replace(**{one: getattr(HOME, other), other: getattr(HOME, one)})
    return places


def pair_p_value(x: Float32Array, y: Float32Array, squares: bool) -> float:
    """The worst of: values, squares where asked, values at every lag."""
    p_values = [from_z(correlation(x, y)), from_z(correlation_at_all_lags(x[:LAGGED], y[:LAGGED]))]
    return least([*p_values, from_z(correlation(x * x, y * y))] if squares else p_values)


def place_p_values(source: Callable[[Place], Float32Array], squares: bool) -> dict[str, float]:
    """Home against each of its neighbours."""
    home = source(HOME)
    return {name: pair_p_value(home, source(place), squares) for name, place in neighbours().items()}


# Draws in bulk.


def draws(family: str, size: int, seed: int, count: int = 1) -> Float32Array:
    """Directions (count, size), each of a compartment of its own."""
    basis = Basis(compartments.even(count * size, count, d=1), seed, family)
    return basis.reconstruct(np.ones(count, dtype=np.float32), step=0).reshape(count, size)


class Stream(NamedTuple):
    """What is known of draws that are not kept; `bad` are 0, 8 and more, or no number, and end the counting."""

    powers: Reals  # sums of z^k, k = 1 .. 6
    counts: Counts  # in equal cells from -8 to 8
    table: Counts  # of pairs (a, b): radius (equal shares of exp(-r^2 / 2)), quadrant, |a| / (|a| + |b|) (equal cells)
    largest: float
    bad: int


@numba.njit
def normal_stream(law: FamilyCode, key: KeyPair, tiles: int, cells: int) -> Stream:
    """Direction 0 over `tiles` tiles, with 1 / `cells` for the width of a cell."""
    scratch, held, z = np.empty(SCRATCH, np.uint32), np.empty(LARGEST_ROOM, np.uint32), np.empty(TILE, np.float32)
    powers, counts, table = np.zeros(6), np.zeros(16 * cells, np.int64), np.zeros((8, 4, 64), np.int64)
    bounds, largest, bad = -2 * np.log(np.arange(1, 8) / 8), 0.0, 0
    for t in range(tiles):
        fill(law, key, 0, t * TILE, tiles * TILE, scratch, held, z)
        bad += TILE - np.sum((np.abs(z) > 0) & (np.abs(z) < 8))
        if bad > 0:
            break
        largest = max(largest, z.max(), -z.min())
        for p in range(TILE // 2):
            a, b = np.float64(z[2 * p]), np.float64(z[2 * p + 1])
            for x in (a, b):
                counts[int((x + 8) * cells)] += 1
                power = 1.0
                for k in range(6):
                    power *= x
                    powers[k] += power
            radius = 0
            for bound in bounds:
                radius += a * a + b * b > bound
            slope = min(int(abs(a) / (abs(a) + abs(b)) * 64), 63)
            table[radius, 2 * (a < 0) + (b < 0), slope] += 1
    return Stream(powers, counts, table, largest, bad)


@numba.njit
def sparse_places(law: FamilyCode, key: KeyPair, size: int, directions: int) -> NDArray[np.int64]:
    """How often each place of a window of law.window elements, with each sign, has the non-zero; size a multiple."""
    counts = np.zeros((law.window, 2), np.int64)
    scratch, held, phi = np.empty(SCRATCH, np.uint32), np.empty(LARGEST_ROOM, np.uint32), np.empty(size, np.float32)
    for i in range(directions):
        fill(law, key, i, 0, size, scratch, held, phi)
        for j in range(size):
            if phi[j] != 0:
                counts[j % law.window, int(phi[j] < 0)] += 1
    return counts


@numba.njit
def sets_of_rows(key: KeyPair, size: int, d: int, steps: int) -> NDArray[np.int64]:
    """How often each set of d rows of `srht`, as a number with a bit for each row, is chosen in so many steps."""
    counts = np.zeros(1 << size, np.int64)
    for step in range(steps):
        x0, x1 = threefry2x32(key[0], key[1], np.uint32(0), np.uint32(step))
        code = 0
        for row in rows((x0, x1), size, d):
            code |= 1 << row
        counts[code] += 1
    return counts
