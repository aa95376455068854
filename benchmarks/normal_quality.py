"""How good and how fast the portable Box-Muller transform of rbd_ref.spec.families is, beside other degrees.

The transform makes two float32 normals from two words with float32 operations, each rounded once. Its radius takes
some 6e7 values and its angle 2^22 (times four symmetries), so the law of a draw follows by enumeration, without
sampling. For several degrees of its three polynomials (Q of the logarithm: degree; S of the sine and C of the cosine:
number of terms) and for float64 functions of the same words, the first table shows

    error, bound  the largest error found against float64, and what it cannot exceed
    z^2 .. z^8    shift of the moment, and `squares` of cov(z0^2, z1^2), in standard deviations of a sample of n draws
    KS            sqrt(n) sup |F - Phi| on a grid of step 1/32; a sample is rejected at 5 % beyond 1.358
    AD            n int (F - Phi)^2 / (Phi (1 - Phi)) dPhi on that grid; 2.492 at 5 %
    tail          the largest shift of the count of |z| > x, 3 < x <= 6.5 on that grid, in Poisson standard deviations
    normals/us    speed on one thread: the transform alone, and with the words

The row of the chosen degrees, marked *, is measured on the kernels of rbd_ref, as is the sample of n draws that ends
the report. The other rows are compiled here, from coefficients that are fitted here.

    python benchmarks/normal_quality.py                 # everything, n = 1e9: a few minutes, 3 GB
    python benchmarks/normal_quality.py --draws 1e8     # another n
    python benchmarks/normal_quality.py --json FILE     # the figures also as JSON
    python benchmarks/normal_quality.py --fit           # only the coefficients, against the constants of rbd_ref
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import get_num_threads, njit, parallel_chunksize, prange
from numpy.typing import NDArray
from scipy import special, stats
from scipy.optimize import linprog

from rbd_ref._types import Words
from rbd_ref.kernels import families as kernels
from rbd_ref.spec import families as rbd
from rbd_ref.spec.operations import TILE
from rbd_ref.spec.prng import basis_keys

Array = NDArray[Any]
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Figures = dict[str, Any]
Name = tuple[str, str, str]  # degree of Q, terms of S, terms of C

CHOSEN: Name = ("5", "3", "4")
CANDIDATES: tuple[Name, ...] = (
    ("4", "2", "3"),
    ("4", "3", "3"),
    ("4", "3", "4"),
    ("5", "2", "3"),
    ("5", "3", "3"),
    CHOSEN,
    ("5 free", "3", "4"),
    ("5", "4", "4"),
    ("6", "3", "4"),
    ("6", "4", "4"),
    ("6", "4", "5"),
    ("7", "4", "5"),
)
ANGLES = 1 << 22
END = 2**31 + 1  # the odd number after the last v
GRID = np.arange(1, 209) / 32  # up to 6.5
TAILS = (4.0, 4.5, 5.0, 5.25, 5.5, 5.75, 6.0, 6.25, 6.5)
REACH, BINS = 7, 1 << 14  # the histogram of the sample covers [-REACH, REACH) with BINS a unit
PAIRS = TILE // 2
TILES = 256  # of one direction of the sample
compiled = njit(nogil=True, error_model="numpy")
compiled_parallel = njit(parallel=True, error_model="numpy")


# ---- coefficients


@dataclass(frozen=True)
class Fit:
    """A weighted minimax problem: basis columns, target, weight, and perhaps a linear condition row @ c = value."""

    basis: Floats
    target: Floats
    weight: Floats
    row: Floats | None = None
    value: float = 0.0


def correction(fit: Fit, found: Floats) -> Floats:
    """What to add to the coefficients: a linear programme on the residual, scaled since tolerances are absolute."""
    columns = fit.basis * fit.weight[:, None]
    scale, size = np.abs(columns).max(axis=0), columns.shape[1]
    columns = np.c_[columns / scale, -np.ones(fit.target.size)]
    residual = fit.weight * (fit.target - fit.basis @ found)
    unit = np.abs(residual).max()
    condition = {}
    if fit.row is not None:
        condition = {"A_eq": [[*(fit.row / scale), 0.0]], "b_eq": [(fit.value - fit.row @ found) / unit]}
    answer = linprog(
        np.r_[np.zeros(size), 1.0],
        A_ub=np.r_[columns, columns * np.r_[-np.ones(size), 1.0]],
        b_ub=np.r_[residual, -residual] / unit,
        bounds=[(None, None)] * size + [(0, None)],
        **condition,
    )
    return np.asarray(answer.x[:size] / scale * unit)


def minimax(fit: Fit) -> Floats:
    """Coefficients of least weighted maximum error, from a least-squares start."""
    start = np.linalg.lstsq(fit.basis * fit.weight[:, None], fit.target * fit.weight, rcond=None)[0]
    found = np.asarray(start, np.float64)
    for _ in range(2):
        found = found + correction(fit, found)
    return found


def rounded_minimax(fit: Fit) -> tuple[list[np.float32], float]:
    """Coefficients, highest order first, and their error: each is rounded in turn from the lowest, the rest refitted.

    The condition is dropped for the last coefficient, which alone could not be both best and exact.
    """
    size = fit.basis.shape[1]
    fixed = np.zeros(size)
    for j in range(size):
        row, value = None, 0.0
        if fit.row is not None and j < size - 1:
            row, value = fit.row[j:], fit.value - float(fit.row[:j] @ fixed[:j])
        rest = fit.target - fit.basis[:, :j] @ fixed[:j]
        fixed[j] = np.float32(minimax(Fit(fit.basis[:, j:], rest, fit.weight, row, value))[0])
    error = np.abs(fit.weight * (fit.target - fit.basis @ fixed)).max()
    return [np.float32(c) for c in fixed[::-1]], float(error)


def chebyshev(low: float, high: float, size: int = 900) -> Floats:
    """Chebyshev points of an interval."""
    cosines = np.cos(np.pi * (np.arange(size) + 0.5) / size)
    return np.asarray((low + high) / 2 - (high - low) / 2 * cosines)


def log_fit(degree: int) -> Fit:
    """Q(z) ~ -2 ln(1 + z) / z, weighted by the error it causes in the radius."""
    t = float(np.float32(2 / 3))
    z = np.r_[chebyshev(t - 1, 0), chebyshev(0, 2 * t - 1)]
    exact = -2 * np.log1p(z)
    weight = np.abs(z) / (2 * np.sqrt(np.where(z < 0, 0.0, 2 * math.log(2)) + exact))
    return Fit(z[:, None] ** np.arange(degree + 1), exact / z, weight)


def keeping_variance(fit: Fit) -> Fit:
    """The same with the mean of z Q(z) + E TWO_LN_2, which is 2 E z^2, as that of -2 ln u; z has density 2 below 0."""
    t = float(np.float32(2 / 3))
    node, share = np.polynomial.legendre.leggauss(40)
    node = np.r_[(t - 1) * (1 + node) / 2, (2 * t - 1) * (1 + node) / 2]
    share = np.r_[(1 - t) * share, (2 * t - 1) / 2 * share]
    row = share @ node[:, None] ** np.arange(1, fit.basis.shape[1] + 1)
    mean_exponent = sum(min(1.0, 2 * t * 2.0**-j) for j in range(1, 60))
    rounding = mean_exponent * (2 * math.log(2) - float(rbd.TWO_LN_2))
    return Fit(fit.basis, fit.target, fit.weight, row, float(share @ (-2 * np.log1p(node))) + rounding)


def sine_fit(terms: int) -> Fit:
    """S(w) ~ sin(pi/4 f) / f with w = f^2, absolute error of the sine."""
    w = chebyshev(0, 1)
    f = np.sqrt(w)
    return Fit(w[:, None] ** np.arange(terms), np.sin(np.pi / 4 * f) / f, f)


def cosine_fit(terms: int) -> Fit:
    """C(w) ~ cos(pi/4 f) with w = f^2, absolute error."""
    w = chebyshev(0, 1)
    return Fit(w[:, None] ** np.arange(terms), np.cos(np.pi / 4 * np.sqrt(w)), np.ones_like(w))


Coefficients = dict[str, tuple[list[np.float32], float]]


def fitted() -> Coefficients:
    """Coefficients and largest weighted error of every polynomial: `Q 5`, `S 3`, ..."""
    fits = {f"Q {d}": keeping_variance(log_fit(d)) for d in (4, 5, 6, 7)} | {"Q 5 free": log_fit(5)}
    fits |= {f"S {n}": sine_fit(n) for n in (2, 3, 4)} | {f"C {n}": cosine_fit(n) for n in (3, 4, 5)}
    return {name: rounded_minimax(fit) for name, fit in fits.items()}


def fit_agrees(coefficients: Coefficients) -> bool:
    """Whether the fits of the chosen degrees are the constants of rbd_ref, bit for bit."""
    q = [rbd.Q5, rbd.Q4, rbd.Q3, rbd.Q2, rbd.Q1, rbd.Q0]
    constants = q, [rbd.S2, rbd.S1, rbd.S0], [rbd.C3, rbd.C2, rbd.C1, rbd.ONE]
    fits = [coefficients[f"{letter} {size}"][0] for letter, size in zip("QSC", CHOSEN, strict=True)]
    return np.float32(2 * math.log(2)) == rbd.TWO_LN_2 and list(constants) == fits


# ---- transforms


@dataclass(frozen=True)
class Transform:
    """Compiled: the radius of a word, and pairs of normals from arrays of words."""

    radius: Any
    fill: Any


def horner(coefficients: Sequence[np.float32]) -> Any:
    """Compiled Horner evaluation, highest order first."""
    last = coefficients[-1]
    if len(coefficients) == 1:
        return compiled(lambda x: last)
    inner = horner(coefficients[:-1])
    return compiled(lambda x: inner(x) * x + last)


def make_radius(q: Any) -> Any:
    """`radius` of rbd_ref.kernels with another polynomial."""
    largest, one, two_ln_2, threshold = np.int32(rbd.LARGEST), rbd.ONE, rbd.TWO_LN_2, rbd.THRESHOLD

    @compiled
    def radius(x0: np.uint32) -> np.float32:
        v = np.int32(np.uint32(x0 >> np.uint32(1)) | np.uint32(1))
        i = np.float32(min(v, largest)).view(np.int32)
        e = np.int32(np.int32(i - threshold) >> np.int32(23))
        z = np.float32(np.int32(i - np.int32(e << np.int32(23))).view(np.float32) - one)
        return np.float32(np.sqrt(q(z) * z + np.float32(np.int32(np.int32(31) - e)) * two_ln_2))

    return radius


def make_fill(radius: Any, s: Any, c: Any) -> Any:
    """`fill_normal` of rbd_ref with other polynomials."""
    one, step = rbd.ONE, rbd.STEP_22

    @compiled
    def fill(x0: Array, x1: Array, phi: Array) -> None:
        for p in range(x0.size):
            k = np.int32(np.uint32(np.uint32(x1[p] >> np.uint32(7)) & np.uint32(0x7FFFFE)) | np.uint32(1))
            f = np.float32(np.float32(k) * step - one)
            w, r = f * f, radius(x0[p])
            cosine = -c(w) if x1[p] >> np.uint32(31) else c(w)
            a, b = np.float32(r * cosine), np.float32(r * (s(w) * f))
            swap = np.uint32(x1[p] & np.uint32(0x40000000)) != np.uint32(0)
            phi[2 * p] = b if swap else a
            phi[2 * p + 1] = a if swap else b

    return fill


def build(name: Name, coefficients: Coefficients) -> Transform:
    """The transform of these degrees, compiled here."""
    q, s, c = (horner(coefficients[f"{letter} {size}"][0]) for letter, size in zip("QSC", name, strict=True))
    radius = make_radius(q)
    return Transform(radius, make_fill(radius, s, c))


def all_transforms(coefficients: Coefficients) -> dict[Name, Transform]:
    """Every candidate; the chosen one is that of rbd_ref."""
    transforms = {name: build(name, coefficients) for name in CANDIDATES}
    return transforms | {CHOSEN: Transform(kernels.radius, kernels.fill_normal)}


def pairs(transform: Transform, x0: Array, x1: Array) -> tuple[Array, Array]:
    """The two outputs for arrays of words."""
    phi = np.empty(2 * x0.size, np.float32)
    transform.fill(x0, x1, phi)
    return phi[0::2], phi[1::2]


# ---- enumeration


@compiled
def first_of_each_float() -> Words:
    """The odd numbers v at which min(v, LARGEST), rounded to float32, takes a new value: 2^30 numbers, 6e7 values."""
    first = np.empty(1 << 26, np.uint32)
    size, last = 0, np.float32(0)
    for v in range(1, END, 2):
        y = np.float32(np.int32(min(v, rbd.LARGEST)))
        if y != last:
            first[size] = v
            size += 1
            last = y
    return first[:size]


def weights(first: Words) -> Array:
    """How many of the 2^30 odd numbers each float32 stands for."""
    return np.asarray(np.diff(first, append=np.uint32(END)) >> 1).view(np.int32)


@dataclass(frozen=True)
class Lattice:
    """Radii, one for each float32 of the words, and the cosines and sines of the angles in [-pi/4, pi/4]."""

    radii: Array
    cosines: Array
    sines: Array


def true_lattice(first: Words) -> Lattice:
    """The lattice of the words with float64 functions."""
    u = np.minimum(first, rbd.LARGEST).astype(np.float32) * 2.0**-31
    angle = math.pi / 4 * ((2.0 * np.arange(ANGLES) + 1.0) * 2.0**-22 - 1.0)
    return Lattice(np.sqrt(-2.0 * np.log(u.astype(np.float64))), np.cos(angle), np.sin(angle))


def float32_lattice(transform: Transform, first: Words) -> Lattice:
    """The lattice that a transform makes, by running it: a radius of exactly 2 shows its cosine and sine."""
    radius = transform.radius

    @compiled
    def run(first: Words, radii: Array) -> None:
        for j in range(radii.size):
            radii[j] = radius(np.uint32(first[j] << np.uint32(1)))

    radii = np.empty(first.size, np.float32)
    run(first, radii)
    x0 = np.full(ANGLES, first[np.argmax(radii == 2)] << 1, np.uint32)
    cosines, sines = pairs(transform, x0, np.arange(ANGLES, dtype=np.uint32) << np.uint32(8))
    return Lattice(radii, cosines / 2, sines / 2)


@compiled_parallel
def words_that_differ(first: Words, radii: Array) -> int:
    """How many of all 2^32 words have another radius in rbd_ref than the float32 they fall on."""
    wrong = 0
    for j in prange(first.size):
        end = np.int64(first[j + 1]) if j + 1 < first.size else END
        for x0 in range(2 * np.int64(first[j]) - 2, 2 * end - 2):
            wrong += kernels.radius(np.uint32(x0)) != radii[j]
    return wrong


def symmetric(transform: Transform, lattice: Lattice) -> bool:
    """Whether the two top bits and the angle give each sign and order alike: then odd moments and E z0 z1 are 0."""
    turned = np.array_equal(lattice.sines, -lattice.sines[::-1])
    turned &= np.array_equal(lattice.cosines, lattice.cosines[::-1])
    x0, x1 = np.random.default_rng(1).integers(1 << 32, size=(2, 1 << 20), dtype=np.uint32)
    a, b = pairs(transform, x0, x1 & np.uint32(0x3FFFFFFF))
    for sign, top in ((1, 0), (-1, 2)):
        plain = pairs(transform, x0, x1 & np.uint32(0x3FFFFFFF) | np.uint32(top << 30))
        swapped = pairs(transform, x0, x1 & np.uint32(0x3FFFFFFF) | np.uint32((top | 1) << 30))
        turned &= np.array_equal(plain, (sign * a, b)) and np.array_equal(swapped, (b, sign * a))
    return bool(turned)


# ---- exact figures


@compiled
def peaks(got: Array, true: Array, parts: int) -> Counts:
    """The place of the largest error in each of so many equal parts."""
    places = np.empty(parts, np.int64)
    for part in range(parts):
        low, high = part * got.size // parts, (part + 1) * got.size // parts
        places[part] = low + np.argmax(np.abs(got[low:high] - true[low:high]))
    return places


@compiled_parallel
def product_error(radii: Array, true_radii: Floats, sides: Array, true_sides: Floats) -> float:
    """The largest error of radius times side over all pairs."""
    worst = np.zeros(radii.size)
    for j in prange(radii.size):
        for k in range(sides.size):
            error = abs(radii[j] * sides[k] - true_radii[j] * true_sides[k])
            worst[j] = max(worst[j], error)
    return float(worst.max())


@compiled
def error_bound(got: Array, true: Floats, side_error: float) -> float:
    """The most that |fl(got side) - true side| can be, with |side| <= 1: errors of radius, side and last rounding."""
    bound = 0.0
    for j in range(got.size):
        bound = max(bound, abs(got[j] - true[j]) + true[j] * side_error + got[j] * 2.0**-24)
    return bound


def errors(got: Lattice, true: Lattice) -> Figures:
    """The largest error found, among the worst radii and sides of many parts, and a bound on the largest."""
    sides, true_sides = np.r_[got.cosines, got.sines], np.r_[true.cosines, true.sines]
    j = np.r_[peaks(got.radii, true.radii, 4096), np.arange(4096)]  # and the largest radii
    k = peaks(sides, true_sides, 4096)
    found = product_error(got.radii[j], true.radii[j], sides[k], true_sides[k])
    bound = error_bound(got.radii, true.radii, float(np.abs(sides - true_sides).max()))
    return {"error": found, "bound": bound}


def normal_moment(order: int) -> float:
    """E z^order of N(0, 1)."""
    return float(special.factorial2(order - 1)) if order % 2 == 0 else 0.0


def moment_deviation(order: int, draws: float) -> float:
    """Standard deviation of a sample moment of N(0, 1)."""
    return math.sqrt((normal_moment(2 * order) - normal_moment(order) ** 2) / draws)


@compiled
def gather(values: Array, weight: Array) -> tuple[Array, Array]:
    """Positive float32 values in order, equal ones as one, by counting their bits; the weights sum to 2^30."""
    places = values.view(np.int32)
    low = places.min()
    counts = np.zeros(places.max() - low + 1, np.int32)
    for j in range(places.size):
        counts[places[j] - low] += weight[j]
    kept = np.empty((2, np.count_nonzero(counts)), np.int32)
    n = 0
    for place in range(counts.size):
        if counts[place] > 0:
            kept[0, n], kept[1, n] = low + place, counts[place]
            n += 1
    return kept[0].view(np.float32), kept[1]


def ascending(lattice: Lattice, weight: Array) -> tuple[Array, Array, Array]:
    """The distinct radii, their weights, and all |cosines| and |sines|; radii of float64 are distinct but descend."""
    sides = np.sort(np.abs(np.r_[lattice.cosines, lattice.sines]))
    if lattice.radii.dtype == np.float32:
        return *gather(lattice.radii, weight), sides
    return lattice.radii[::-1].copy(), weight[::-1].copy(), sides


@compiled
def mean_powers(values: Array, weight: Array) -> Floats:
    """Weighted means of the powers 2, 4, 6, 8, in float64 and in blocks for the sake of rounding."""
    sums, part = np.zeros(4), np.zeros(4)
    for j in range(values.size):
        square = float(values[j]) ** 2
        power = float(weight[j])
        for order in range(4):
            power *= square
            part[order] += power
        if j % 4096 == 4095 or j == values.size - 1:
            sums += part
            part[:] = 0.0
    return np.asarray(sums / weight.sum())


def moment_shifts(radii: Array, weight: Array, lattice: Lattice, draws: float) -> Figures:
    """Shift of E z^2, 4, 6, 8 and of cov(z0^2, z1^2) in standard deviations of the sample statistic."""
    sides = np.r_[lattice.cosines, lattice.sines]
    power = mean_powers(radii, weight)
    moments = power * mean_powers(sides, np.ones(sides.size, np.int32))
    shifts = {}
    for order, moment in zip((2, 4, 6, 8), moments, strict=True):
        shifts[f"z^{order}"] = float(moment - normal_moment(order)) / moment_deviation(order, draws)
    product = np.mean((lattice.cosines.astype(np.float64) * lattice.sines) ** 2)
    covariance = float(power[1] * product - moments[0] ** 2)
    return shifts | {"squares": covariance / (2 / math.sqrt(draws / 2))}


@compiled_parallel
def count_beyond(radii: Array, weight: Array, sides: Array, points: Array) -> Counts:
    """Weight of the pairs with radius side > point; both ascend, and the product rounds as in the transform."""
    counts = np.zeros(points.size, np.int64)
    for i in prange(points.size):
        start, left, total = int(np.searchsorted(radii, points[i])), sides.size, 0
        while start > 0 and radii[start - 1] * sides[-1] > points[i]:
            start -= 1
        for j in range(start, radii.size):
            while left > 0 and radii[j] * sides[left - 1] > points[i]:
                left -= 1
            total += (sides.size - left) * int(weight[j])
        counts[i] = total
    return counts


def shares(radii: Array, weight: Array, sides: Array, points: Array) -> tuple[Floats, Floats]:
    """Exact P(|z| <= x) and P(|z| > x) at the points."""
    with parallel_chunksize(1):
        counts = count_beyond(radii, weight, sides, points)
    total = int(weight.sum()) * sides.size  # 2^53
    return (total - counts) / total, counts / total


def distances(points: Array, inside: Floats, outside: Floats, draws: float) -> Figures:
    """KS, AD and the largest tail shift. F is constant between neighbouring float32: both ends count."""
    x = after = points.astype(np.float64)
    if points.dtype == np.float32:
        after = np.nextafter(points, np.float32(9)).astype(np.float64)
    ks = max(np.abs(inside - special.erf(p / 2**0.5)).max() / 2 for p in (x, after))
    x = (x + after) / 2
    upper = special.ndtr(-x)
    gap = np.where(x < 1, inside - special.erf(x / 2**0.5), 2 * upper - outside) / 2
    height = gap**2 / (upper * (1 - upper)) * stats.norm.pdf(x)
    ad = 2 * np.trapezoid(np.r_[0.0, height], np.r_[0.0, x])
    tail = np.abs(outside / 2 - upper) * np.sqrt(2 * draws / upper)
    return {"KS": math.sqrt(draws) * float(ks), "AD": draws * float(ad), "tail": float(tail[x > 3].max())}


def tail_figures(x: Floats, outside: Floats, draws: float) -> Figures:
    """Mean number of |z| > x in so many draws, and that of N(0, 1)."""
    normal = draws * special.erfc(x / 2**0.5)
    shift = (draws * outside - normal) / np.sqrt(normal)
    rows = zip(x, draws * outside, normal, shift, strict=True)
    return {f"{p:.2f}": {"mean": float(m), "normal": float(n), "shift": float(s)} for p, m, n, s in rows}


def exact_figures(lattice: Lattice, true: Lattice, weight: Array, draws: float) -> Figures:
    """All exact figures of one transform."""
    figures = errors(lattice, true) if lattice is not true else {"error": 0.0, "bound": 0.0}
    radii, weight, sides = ascending(lattice, weight)
    figures |= moment_shifts(radii, weight, lattice, draws)
    points = np.r_[GRID, TAILS].astype(lattice.radii.dtype)
    inside, outside = shares(radii, weight, sides, points)
    figures |= distances(points[: GRID.size], inside[: GRID.size], outside[: GRID.size], draws)
    figures |= {"largest |z|": float(radii[-1] * sides[-1])}
    figures |= {"least |z|": float(radii[0] * sides[0])}
    return figures | {"tails": tail_figures(np.array(TAILS), outside[GRID.size :], draws)}


# ---- speed


def best_time(run: Any, arguments: tuple[Any, ...], repeats: int) -> float:
    """Shortest of several calls, in seconds."""
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        run(*arguments)
        best = min(best, time.perf_counter() - start)
    return best


def speeds(transforms: dict[Name, Transform], size: int = 1 << 15, rounds: int = 60) -> dict[Name, Figures]:
    """Million normals per second on one thread; in turns, so that a busy machine hits all alike."""
    x0, x1, phi = np.empty(size, np.uint32), np.empty(size, np.uint32), np.empty(2 * size, np.float32)
    key, words, best = (np.uint32(0), np.uint32(0)), math.inf, dict.fromkeys(transforms, math.inf)
    for _ in range(rounds):
        words = min(words, best_time(kernels.fill_words, (key, 0, 0, x0, x1), 5))
        for name, transform in transforms.items():
            best[name] = min(best[name], best_time(transform.fill, (x0, x1, phi), 5))
    speed = 2e-6 * size
    return {name: {"transform": speed / t, "with words": speed / (t + words)} for name, t in best.items()}


# ---- sample


@compiled
def add_tile(z: Array, counts: Counts, sums: Floats) -> None:
    """Count the pairs of a tile, and sum powers 1 to 8 and the two products within a pair."""
    for p in range(0, z.size, 2):
        a, b = float(z[p]), float(z[p + 1])
        counts[0, math.floor((a + REACH) * BINS)] += 1
        counts[1, math.floor((b + REACH) * BINS)] += 1
        x, y = a, b
        for order in range(8):
            sums[order] += x + y
            x, y = x * a, y * b
        sums[8] += a * b
        sums[9] += (a * a - 1.0) * (b * b - 1.0) / 2


@compiled_parallel
def tally(key: kernels.KeyPair, tiles: int, workers: int) -> tuple[Counts, Floats]:
    """Histograms and sums of a sample made by the kernels of rbd_ref, TILES tiles from each direction."""
    counts, sums = np.zeros((workers, 2, 2 * REACH * BINS), np.int64), np.zeros((workers, 10))
    for worker in prange(workers):
        x0, x1 = np.empty(PAIRS, np.uint32), np.empty(PAIRS, np.uint32)
        z, part = np.empty(2 * PAIRS, np.float32), np.zeros(10)
        for tile in range(worker, tiles, workers):
            kernels.fill_words(key, tile // TILES, tile % TILES * PAIRS, x0, x1)
            kernels.fill_normal(x0, x1, z)
            part[:] = 0.0
            add_tile(z, counts[worker], part)
            sums[worker] += part
    return counts, sums


def anderson_darling_tail(a2: float) -> float:
    """P(A^2 > a2) in the limit of many draws (Marsaglia and Marsaglia, 2004)."""
    if a2 < 2.0:
        series = (2.00012, 0.247105, -0.0649821, 0.0347962, -0.0116720, 0.00168691)
        total = sum(c * a2**j for j, c in enumerate(series))
        return 1.0 - math.exp(-1.2337141 / a2) / math.sqrt(a2) * total
    series = (1.0776, -2.30695, 0.43424, -0.082433, 0.008056, -0.0003146)
    return -math.expm1(-math.exp(sum(c * a2**j for j, c in enumerate(series))))


def distribution_tests(label: str, counts: Counts) -> dict[str, tuple[float, float]]:
    """KS, AD and chi-square over 1000 bins of near equal share: statistic and p."""
    draws, edges = int(counts.sum()), np.arange(-REACH * BINS, REACH * BINS + 1) / BINS
    phi, upper = special.ndtr(edges), special.ndtr(-edges)
    gap = np.r_[0, np.cumsum(counts)] / draws - phi
    ks = math.sqrt(draws) * float(np.abs(gap).max())
    ad = draws * float(np.trapezoid(gap**2 / (phi * upper), phi))
    cuts = np.searchsorted(phi, np.arange(1, 1000) / 1000)
    share = np.diff(np.r_[0.0, phi[cuts], 1.0]) * draws
    chi2 = float(((np.add.reduceat(counts, np.r_[0, cuts]) - share) ** 2 / share).sum())
    return {
        f"KS {label}": (ks, float(special.kolmogorov(ks))),
        f"AD {label}": (ad, anderson_darling_tail(ad)),
        f"chi2 999 {label}": (chi2, float(stats.chi2.sf(chi2, 999))),
    }


def tail_tests(counts: Counts) -> dict[str, tuple[float, float]]:
    """How many draws lie beyond some |z|, and p against N(0, 1)."""
    draws, centre, tests = int(counts.sum()), REACH * BINS, {}
    for x in (3.0, *TAILS):
        edge = int(x * BINS)
        seen = int(counts[: centre - edge].sum() + counts[centre + edge :].sum())
        mean = draws * math.erfc(x / 2**0.5)
        p = min(1.0, 2 * min(stats.poisson.cdf(seen, mean), stats.poisson.sf(seen - 1, mean)))
        tests[f"|z| > {x:.2f}, {mean:.1f} expected"] = (float(seen), float(p))
    return tests


def moment_tests(sums: Floats, draws: int) -> dict[str, tuple[float, float]]:
    """Moments 1 to 8 and the correlations within a pair: value and p."""
    tests = {}
    for order in range(1, 9):
        mean = float(sums[order - 1]) / draws
        score = (mean - normal_moment(order)) / moment_deviation(order, draws)
        tests[f"E z^{order}"] = (mean, 2 * float(special.ndtr(-abs(score))))
    for label, value in (("z0, z1", sums[8]), ("z0^2, z1^2", sums[9])):
        score = float(value) / math.sqrt(draws / 2)
        tests[f"corr {label}"] = (float(value) * 2 / draws, 2 * float(special.ndtr(-abs(score))))
    return tests


def sample_tests(draws: float, seed: int) -> Figures:
    """Every test on a sample of rbd_ref: {test: {value, p}}, and its size."""
    key = basis_keys(seed, 0, 0, 1)[:, 0]
    tiles = max(1, round(draws / TILE))
    parts, sums = tally((key[0], key[1]), tiles, get_num_threads())
    counts = parts.sum(axis=0)
    tests = distribution_tests("z0 and z1", counts.sum(axis=0))
    tests |= distribution_tests("z0", counts[0]) | distribution_tests("z1", counts[1])
    tests |= moment_tests(sums.sum(axis=0), int(counts.sum())) | tail_tests(counts.sum(axis=0))
    results = {name: {"value": value, "p": p} for name, (value, p) in tests.items()}
    return {"draws": int(counts.sum()), "seed": seed, "tests": results}


# ---- report

COLUMNS = {"error": "8.1e", "bound": "8.1e", "z^2": "+8.4f", "z^4": "+8.4f", "z^6": "+8.4f", "z^8": "+8.4f"}
COLUMNS |= {"squares": "+8.4f", "KS": "8.5f", "AD": "8.1e", "tail": "6.3f"}


def print_row(label: str, figures: Figures, speed: Figures | None = None) -> None:
    """One line of the table."""
    cells = [format(figures[name], form) for name, form in COLUMNS.items()]
    cells += [f"{value:6.0f}" for value in (speed or {}).values()]
    print(f"{label:>12} " + " ".join(cells), flush=True)


def table(transforms: dict[Name, Transform], first: Words, draws: float) -> Figures:
    """Print and return the exact figures and the speeds of float64 and of every transform."""
    true, weight, speed = true_lattice(first), weights(first), speeds(transforms)
    widths = ((name, int(form.strip("+")[0])) for name, form in COLUMNS.items())
    print(f"\nn = {draws:.0e}; moments and tail in standard deviations\n{'Q, S, C':>12} ", end="")
    print(" ".join(f"{name:>{width}}" for name, width in widths), "  normals/us")
    rows: Figures = {"float64": exact_figures(true, true, weight, draws)}
    print_row("float64", rows["float64"])
    for name, transform in transforms.items():
        label = ", ".join(name)
        rows[label] = exact_figures(float32_lattice(transform, first), true, weight, draws) | {"speed": speed[name]}
        print_row("* " * (name == CHOSEN) + label, rows[label], speed[name])
    return rows


def print_tails(rows: Figures) -> None:
    """Print the reach of the chosen transform and of the words alone."""
    chosen, true = rows[", ".join(CHOSEN)], rows["float64"]
    print(f"\nLargest |z| {chosen['largest |z|']:.4f}, least {chosen['least |z|']:.3e}. Mean number of |z| > x:")
    for x, figures in chosen["tails"].items():
        exact = true["tails"][x]["mean"]
        print(f"{x:>12} {figures['mean']:12.3f}, with float64 {exact:12.3f}, N(0, 1) {figures['normal']:12.3f}", end="")
        print(f", shift {figures['shift']:+.3f}")


def checks(transform: Transform, first: Words, coefficients: Coefficients) -> dict[str, bool]:
    """Print and return what the enumeration rests on, seen on the kernels of rbd_ref."""
    lattice = float32_lattice(transform, first)
    built = build(CHOSEN, coefficients)
    x0, x1 = np.random.default_rng(2).integers(1 << 32, size=(2, 1 << 20), dtype=np.uint32)
    same = np.array_equal(float32_lattice(built, first).radii, lattice.radii)
    with parallel_chunksize(1 << 16):
        differ = words_that_differ(first, lattice.radii)
    seen = {
        "the fit of the chosen degrees gives the constants of rbd_ref": fit_agrees(coefficients),
        "all 2^32 words have the radius of the float32 they fall on": differ == 0,
        "the law is symmetric": symmetric(transform, lattice),
        "no radius, cosine or sine is 0": bool(all(np.all(a != 0) for a in vars(lattice).values())),
        "compiled here, the chosen degrees have the bits of rbd_ref": same
        and np.array_equal(pairs(built, x0, x1), pairs(transform, x0, x1)),
    }
    for what, holds in seen.items():
        print(f"{'yes' if holds else 'NO':>4}  {what}", flush=True)
    return seen


def print_sample(sample: Figures) -> None:
    """Print every test of the sample and the smallest p."""
    tests = sample["tests"]
    print(f"\nSample of rbd_ref: {sample['draws']} draws, seed {sample['seed']}")
    for name, test in tests.items():
        print(f"{name:>30} {test['value']:14.9g}   p {test['p']:.3f}")
    least = min(test["p"] for test in tests.values())
    print(f"The smallest of {len(tests)} p is {least:.4f}; times their number: {min(1.0, least * len(tests)):.2f}")


def print_fits(coefficients: Coefficients) -> None:
    """Print every polynomial, highest order first, and whether the chosen ones are those of rbd_ref."""
    for name, (values, error) in coefficients.items():
        print(f"{name}: largest weighted error {error:.2e}")
        print("".join(f"    {float(value).hex()}\n" for value in values), end="")
    print(f"The chosen ones are {'' if fit_agrees(coefficients) else 'NOT '}the constants of rbd_ref.")


def study(draws: float, seed: int) -> Figures:
    """Print and return everything."""
    coefficients = fitted()
    transforms = all_transforms(coefficients)
    first = first_of_each_float()
    print(f"{first.size} distinct radius words of 2^30, greatest weight {weights(first).max()}")
    figures: Figures = {"draws": draws, "checks": checks(transforms[CHOSEN], first, coefficients)}
    figures["coefficients"] = {name: [float(c).hex() for c in values] for name, (values, _) in coefficients.items()}
    figures["exact"] = table(transforms, first, draws)
    print_tails(figures["exact"])
    figures["sample"] = sample_tests(draws, seed)
    print_sample(figures["sample"])
    return figures


def main() -> int:
    """Parse the options and print what they ask for; 1 if a check failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=float, default=1e9, help="size of the sample")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument("--fit", action="store_true", help="only derive the coefficients")
    options = parser.parse_args()
    if options.fit:
        coefficients = fitted()
        print_fits(coefficients)
        return 0 if fit_agrees(coefficients) else 1
    figures = study(options.draws, options.seed)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if all(figures["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
