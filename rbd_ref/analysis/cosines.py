"""How nearly orthogonal two random directions are: |cosine| of pairs against D, and its expectation for each family.

Two directions of one basis, phi and psi, over D elements. E |cos| is

    normal        Gamma(D/2) / (sqrt(pi) Gamma((D+1)/2)), exactly: one coordinate of a random point on the sphere
    uniform       sqrt(2 / (pi D)) (1 + (6k - k^2 - 3) / (24 D)) with k = 9/5, the kurtosis of an entry, to order 1/D
    rademacher    Gamma(m + 1/2) / (sqrt(pi) Gamma(m + 1)) 2m / D with m = ceil(D/2), exactly: a walk of D steps
    sparse        E |X| / W, exactly: X adds +-1 for each of W windows in which both have their entry at one place
    srht          n / (D (n - 1)) sum_k 2^-k dist(D, 2^k Z), k = 1 .. log2 n, exactly: rows of length n, cut to D
    bernoulli-graphcore   folded normal of mean 1/5 - 28/(125 D) and variance 528/(625 D), to order 1/D

The first three are sqrt(2 / (pi D)) for large D, as for any independent entries of mean 0. The entries +1/2 and -3/2 of
the last have mean m = -1/2 and mean square 5/4, so that any two directions have a cosine near m^2 / (5/4) = 1/5 at any
D: they all lean towards (-1, -1, ..., -1). Rows of srht share their signs, which cancel in the product; what is left is
a sum of a Walsh function over the first D of n = 2^m places: 0 where D = n, and otherwise of the order of log2(D) / D.
Tests: tests/test_analysis.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rbd_ref._check import integer, several
from rbd_ref._types import TWO_32, Float64Array
from rbd_ref.basis import Basis
from rbd_ref.spec.families import FAMILIES, Family, parse_family, window_starts
from rbd_ref.spec.hadamard import padded
from rbd_ref.training.guidance import log_gamma_ratio
from rbd_ref.training.logbook import cosine

SIZES = (10, 32, 100, 316, 1000, 3162, 10_000, 31_623, 100_000, 316_228, 1_000_000)
PAIRS = 100  # as in the paper
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
UNIFORM_KURTOSIS = 9 / 5
BIASED_MEAN = 1 / 5
BIASED_SHIFT = -28 / 125
BIASED_VARIANCE = 528 / 625


@dataclass(frozen=True)
class PairCosines:
    """|cosine| of pairs of directions of one family and size.

    mean, standard_error  over the pairs
    quantiles             at QUANTILES
    expected              E |cos|
    """

    family: str
    D: int
    pairs: int
    mean: float
    standard_error: float
    quantiles: tuple[float, ...]
    expected: float


def sphere(D: int) -> float:
    """E |cos| of two random points on the sphere in D dimensions, which is that of `normal`."""
    return math.exp(-log_gamma_ratio(D / 2)) / math.sqrt(math.pi)


def expected_cosine_of_pair(D: int, family: str) -> float:
    """E |cos| of two directions of one basis: the formulas stand at the head of this file.

    Args:
        D: number of elements, 2 at least.
        family: its name, as `Basis` takes it.

    Returns:
        a number from 0 to 1.

    Examples:
        >>> [round(expected_cosine_of_pair(100_000, family), 6) for family in ("normal", "rademacher")]
        [0.002523, 0.002523]
        >>> round(expected_cosine_of_pair(100_000, "bernoulli-graphcore"), 4), expected_cosine_of_pair(2**17, "srht")
        (0.2, 0.0)
    """
    D = integer("D", D, 2, TWO_32)
    known = parse_family(family)
    if known.name == "normal":
        return sphere(D)
    if known.name == "uniform":
        k = UNIFORM_KURTOSIS
        return math.sqrt(2 / (math.pi * D)) * (1 + (6 * k - k * k - 3) / (24 * D))
    if known.name == "rademacher":
        return _walk(D)
    if known.name == "sparse":
        return _sparse(D, known)
    return _srht(D) if known.name == "srht" else _biased(D)


def _walk(D: int) -> float:
    """E |S| / D of a walk of D steps +-1."""
    m = -(-D // 2)
    return math.exp(log_gamma_ratio(m) - math.log(m)) / math.sqrt(math.pi) * 2 * m / D


def _sparse(D: int, family: Family) -> float:
    """E |X| / W of the sum X over windows of L elements of +-1 with probability 1 / L, else 0.

    For a whole number x, |x| is the mean over 0 < t < pi of (1 - cos(x t)) / (1 - cos t), so E |X| is that of
    (1 - prod_w E cos(X_w t)) / (1 - cos t); a polynomial in cos t, of which W points give the mean exactly.
    """
    lengths, counts = np.unique(np.diff(window_starts(D, family.window)), return_counts=True)
    W = int(counts.sum())
    t = (np.arange(W) + 0.5) * (math.pi / W)
    lost = 2 * np.sin(t / 2) ** 2  # 1 - cos t
    both: Float64Array = np.prod([(1 - lost / L) ** n for L, n in zip(lengths, counts, strict=True)], axis=0)
    return float(np.mean((1 - both) / lost)) / W


def _srht(D: int) -> float:
    """Of n - 1 pairs of rows n / 2^k differ first in bit k - 1: their sum over D places is as large as D is far from a
    multiple of 2^k."""
    n = padded(D)
    far = [min(D % 2**k, -D % 2**k) / 2**k for k in range(1, n.bit_length())]
    return float(n * sum(far) / (D * (n - 1)))


def _biased(D: int) -> float:
    """E |Z| of a normal Z, whose mean is not 0."""
    mean = BIASED_MEAN + BIASED_SHIFT / D
    variance = BIASED_VARIANCE / D
    spread = math.sqrt(2 * variance / math.pi) * math.exp(-(mean**2) / (2 * variance))
    return spread + mean * math.erf(mean / math.sqrt(2 * variance))


def measure_cosines(
    families: Sequence[str] = FAMILIES, sizes: Sequence[int] = SIZES, pairs: int = PAIRS, seed: int = 0
) -> list[PairCosines]:
    """|<phi, psi>| / (|phi| |psi|) of pairs of directions of one basis, for each family and number of elements.

    Each pair is the basis of a step of its own, of two directions, so that pairs are independent.

    Args:
        families: their names.
        sizes: the values of D, 2 at least.
        pairs: how many pairs for each, 2 at least.
        seed: of the directions.

    Returns:
        a `PairCosines` for each family and size, with what is expected of it.

    Examples:
        >>> [found] = measure_cosines(["rademacher"], [1000], pairs=50)
        >>> round(found.expected, 4), abs(found.mean - found.expected) < 4 * found.standard_error
        (0.0252, True)
    """
    known = [str(parse_family(family)) for family in several("families", families)]
    lengths = [integer("D", D, 2, TWO_32) for D in several("sizes", sizes)]
    count = integer("pairs", pairs, 2, TWO_32)
    return [_measured(family, D, count, seed) for family in known for D in lengths]


def _measured(family: str, D: int, pairs: int, seed: int) -> PairCosines:
    """Of one family and size."""
    basis = Basis(D=D, d=2, seed=seed, family=family)
    found = [abs(cosine(*basis.directions([0, 1], step))) for step in range(pairs)]
    error = float(np.std(found, ddof=1)) / math.sqrt(pairs)
    quantiles = tuple(float(value) for value in np.quantile(found, QUANTILES))
    return PairCosines(family, D, pairs, float(np.mean(found)), error, quantiles, expected_cosine_of_pair(D, family))
