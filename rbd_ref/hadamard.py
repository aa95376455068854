"""The structured family `srht`: rows of a Walsh-Hadamard matrix under fresh signs; d directions cost one transform.

    phi_ij = s_j (-1)^popcount(r_i & j),  j < size,  rows r_0 < r_1 < ... drawn without replacement from n = 2^m >= size

A plain NumPy definition of the rows, signs and transform, and the kernels held to it.
Specification: docs/specification.md, section 4.6.
May import: numpy, _jit, prng, distributions. Tests: tests/test_hadamard.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rbd_ref._jit import device, kernel, widest
from rbd_ref.distributions import (
    F32,
    TILE,
    Family,
    KeyPair,
    Vector,
    block_words,
    direction_entries,
    fill_words,
    flip,
)
from rbd_ref.prng import Words, threefry

SIGN_COUNTER, ROW_COUNTER = 0, 1  # the first counter word, which is the direction in other families
NEAR, FAR = 2**13, 2**17  # elements of a block that stays in the first cache of a core, and in the second


def padded(size: int) -> int:
    """The least power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()


def signs(key: Words, size: int) -> Vector:
    """s: a `rademacher` direction."""
    return direction_entries(Family("rademacher"), key, SIGN_COUNTER, size)


def rows(key: Words, size: int, d: int) -> NDArray[np.int64]:
    """The rows with the d smallest of n words, the lower row first among equal words, in ascending order."""
    n = padded(size)
    words = block_words(key, ROW_COUNTER, -(-n // 2)).T.reshape(-1)[:n]
    return np.sort(np.argsort(words, kind="stable")[:d])


def transform(x: Vector) -> Vector:
    """H x for a power of two: levels h = 1, 2, 4, ..., each (x_j, x_j+h) <- (x_j + x_j+h, x_j - x_j+h)."""
    y, h = x.astype(F32), 1
    while h < y.size:
        pair = y.reshape(-1, 2, h)
        y = np.stack([pair[:, 0] + pair[:, 1], pair[:, 0] - pair[:, 1]], axis=1).reshape(-1)
        h *= 2
    return y


def row_entries(key: Words, size: int, row: int) -> Vector:
    """phi_i of one row r_i: the transform of a unit vector, under the signs."""
    unit = np.zeros(padded(size), dtype=F32)
    unit[row] = 1
    return signs(key, size) * transform(unit)[:size]


@kernel
def padded_kernel(size: int) -> int:
    """The kernel of `padded`."""
    n = 1
    while n < size:
        n *= 2
    return n


@kernel
def row_words(key: KeyPair, n: int) -> Words:
    """The word of each of n rows."""
    widest()
    words = np.empty(n + n % 2, dtype=np.uint32)
    for p in range(words.size // 2):
        words[2 * p], words[2 * p + 1] = threefry(key[0], key[1], np.uint32(ROW_COUNTER), np.uint32(p))
    return words[:n]


@kernel
def count_up_to(words: Words, top: np.uint32) -> int:
    """How many words are not above `top`."""
    widest()
    count = 0
    for r in range(words.size):
        count += words[r] <= top
    return count


@kernel
def places_up_to(words: Words, top: np.uint32) -> NDArray[np.int64]:
    """Where the words that are not above `top` are, ascending; no branch depends on a word."""
    places = np.empty(count_up_to(words, top) + 1, dtype=np.int64)
    i = 0
    for r in range(words.size):
        places[i] = r
        i += words[r] <= top
    return places[:i]


@kernel
def bound(d: float, n: int) -> np.uint32:
    """The word up to which d of n are expected: they are spread evenly over 0 .. 2^32 - 1."""
    return np.uint32(min(max(d / n, 0.0), 1.0) * 0xFFFFFFFF)


@kernel
def nth(words: Words, d: int, low: np.uint32) -> np.uint32:
    """The d-th smallest word, which is quickly found if it is above `low` and most words are not."""
    above = words[words > low]
    rest = d - (words.size - above.size)
    if rest < 1:
        above, rest = words, d
    limit: np.uint32 = np.partition(above, rest - 1)[rest - 1]
    return limit


@kernel
def smallest(words: Words, d: int) -> NDArray[np.int64]:
    """Places of the d smallest words, ascending: those below the d-th smallest, and the first of those equal to it.

    The d-th is looked for between the bounds of d - 8 sqrt(d) and d + 8 sqrt(d) words, where it is as good as always.
    """
    spread = 8 * np.sqrt(d) + 8
    places = places_up_to(words, bound(d + spread, words.size))
    if places.size < d:
        places = np.arange(words.size)
    candidates = words[places]
    limit = nth(candidates, d, bound(d - spread, words.size))
    equal = d - np.sum(candidates < limit)
    chosen = np.empty(d, dtype=np.int64)
    i = 0
    for q in range(places.size):
        if candidates[q] < limit or (candidates[q] == limit and equal > 0):
            equal -= candidates[q] == limit
            chosen[i] = places[q]
            i += 1
    return chosen


@kernel
def rows_kernel(key: KeyPair, size: int, d: int) -> NDArray[np.int64]:
    """The kernel of `rows`."""
    return smallest(row_words(key, padded_kernel(size)), d)


@device
def four(a: np.float32, b: np.float32, c: np.float32, d: np.float32) -> tuple[np.float32, ...]:
    """Two levels of four numbers: the pairs (a, b) and (c, d), then (a, c) and (b, d)."""
    ab, ba, cd, dc = a + b, a - b, c + d, c - d
    return ab + cd, ba + dc, ab - cd, ba - dc


@kernel
def first_levels(x: Vector) -> None:
    """Levels 1, 2 and 4."""
    for j in range(0, x.size, 8):
        a, b, c, d = four(x[j], x[j + 1], x[j + 2], x[j + 3])
        e, f, g, h = four(x[j + 4], x[j + 5], x[j + 6], x[j + 7])
        x[j], x[j + 1], x[j + 2], x[j + 3] = a + e, b + f, c + g, d + h
        x[j + 4], x[j + 5], x[j + 6], x[j + 7] = a - e, b - f, c - g, d - h


@kernel
def one_level(x: Vector, h: int) -> None:
    """Level h."""
    widest()
    for start in range(0, x.size, 2 * h):
        low, high = x[start : start + h], x[start + h : start + 2 * h]
        for j in range(h):
            low[j], high[j] = low[j] + high[j], low[j] - high[j]


@kernel
def two_levels(x: Vector, h: int) -> None:
    """Levels h and 2 h in one pass."""
    widest()
    for start in range(0, x.size, 4 * h):
        a, b = x[start : start + h], x[start + h : start + 2 * h]
        c, d = x[start + 2 * h : start + 3 * h], x[start + 3 * h : start + 4 * h]
        for j in range(h):
            a[j], b[j], c[j], d[j] = four(a[j], b[j], c[j], d[j])


@kernel
def levels(x: Vector, h: int) -> None:
    """Level h and all above it."""
    while 4 * h <= x.size:
        two_levels(x, h)
        h *= 4
    if h < x.size:
        one_level(x, h)


@kernel
def block_levels(x: Vector) -> None:
    """All levels of a block that stays in the second cache: first those of its parts that stay in the first."""
    near = min(x.size, NEAR)
    for start in range(0, x.size, near):
        part = x[start : start + near]
        if near >= 8:
            first_levels(part)
        levels(part, 8 if near >= 8 else 1)
    levels(x, near)


@kernel
def transform_kernel(x: Vector) -> None:
    """The kernel of `transform`, in place: all levels of one block after the other, then those above."""
    far = min(x.size, FAR)
    for start in range(0, x.size, far):
        block_levels(x[start : start + far])
    levels(x, far)


@kernel
def add_flipped(x0: Words, x1: Words, x: Vector, out: Vector) -> None:
    """out_j <- out_j + s_j x_j with the signs of these blocks."""
    widest()
    whole = out.size // 64
    for p in range(whole):
        for b in range(32):
            out[64 * p + b] += flip(x[64 * p + b], x0[p], b)
        for b in range(32):
            out[64 * p + 32 + b] += flip(x[64 * p + 32 + b], x1[p], b)
    for b in range(out.size - 64 * whole):
        out[64 * whole + b] += flip(x[64 * whole + b], x0[whole] if b < 32 else x1[whole], b % 32)


@kernel
def add_signed(key: KeyPair, x: Vector, out: Vector) -> None:
    """out_j <- out_j + s_j x_j."""
    x0, x1 = np.empty(TILE // 64, np.uint32), np.empty(TILE // 64, np.uint32)
    for first in range(0, out.size, TILE):
        fill_words(key, SIGN_COUNTER, first // 64, x0, x1)
        add_flipped(x0, x1, x[first : first + TILE], out[first : first + TILE])


@kernel
def analyse(key: KeyPair, chosen: NDArray[np.int64], g: Vector, x: Vector) -> Vector:
    """<phi_i, g> of the chosen rows: signs, transform, and those rows of the result; x has as many places as rows."""
    x[:] = np.float32(0)
    add_signed(key, g, x[: g.size])
    transform_kernel(x)
    return x[chosen]


@kernel
def synthesise(key: KeyPair, chosen: NDArray[np.int64], a: Vector, u: Vector, x: Vector) -> None:
    """u <- u + sum_i a_i phi_i of the chosen rows: the coefficients at their rows, transform, signs."""
    x[:] = np.float32(0)
    x[chosen] = a
    transform_kernel(x)
    add_signed(key, x, u)
