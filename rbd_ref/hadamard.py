"""The structured family `srht`: rows of a Walsh-Hadamard matrix under fresh signs; d directions cost one transform.

    phi_ij = s_j (-1)^popcount(r_i & j),  j < size,  rows r_0 < r_1 < ... drawn without replacement from n = 2^m >= size

A plain NumPy definition of the rows, signs and transform, and the kernels held to it.
Specification: docs/specification.md, section 4.6.
May import: numpy, _jit, prng, distributions. Tests: tests/test_hadamard.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rbd_ref._jit import kernel
from rbd_ref.distributions import (
    CODES,
    F32,
    TILE,
    Family,
    KeyPair,
    Law,
    Vector,
    block_words,
    direction_entries,
    fill,
)
from rbd_ref.prng import Words, threefry

SIGN_COUNTER, ROW_COUNTER = 0, 1  # the first counter word, which is the direction in other families
SIGNS = Law(CODES["rademacher"], 0)


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
    words = np.empty(n, dtype=np.uint32)
    for p in range((n + 1) // 2):
        x0, x1 = threefry(key[0], key[1], np.uint32(ROW_COUNTER), np.uint32(p))
        words[2 * p] = x0
        if 2 * p + 1 < n:
            words[2 * p + 1] = x1
    return words


@kernel
def smallest(words: Words, d: int) -> NDArray[np.int64]:
    """Places of the d smallest words, ascending: those below the d-th smallest, and the first of those equal to it."""
    limit = np.partition(words, d - 1)[d - 1]
    equal = d - np.sum(words < limit)
    chosen = np.empty(d, dtype=np.int64)
    i = 0
    for r in range(words.size):
        if words[r] < limit or (words[r] == limit and equal > 0):
            equal -= words[r] == limit
            chosen[i] = r
            i += 1
    return chosen


@kernel
def rows_kernel(key: KeyPair, size: int, d: int) -> NDArray[np.int64]:
    """The kernel of `rows`."""
    return smallest(row_words(key, padded_kernel(size)), d)


@kernel
def transform_kernel(x: Vector) -> None:
    """The kernel of `transform`, in place."""
    h = 1
    while h < x.size:
        for start in range(0, x.size, 2 * h):
            low, high = x[start : start + h], x[start + h : start + 2 * h]
            for j in range(h):
                low[j], high[j] = low[j] + high[j], low[j] - high[j]
        h *= 2


@kernel
def add_signed(key: KeyPair, x: Vector, out: Vector) -> None:
    """out_j <- out_j + s_j x_j."""
    scratch, s = np.empty(TILE, np.uint32), np.empty(TILE, np.float32)
    for first in range(0, out.size, TILE):
        n = min(TILE, out.size - first)
        fill(SIGNS, key, SIGN_COUNTER, first, n, out.size, scratch, s)
        for j in range(n):
            out[first + j] += s[j] * x[first + j]


@kernel
def analyse(key: KeyPair, chosen: NDArray[np.int64], g: Vector) -> Vector:
    """<phi_i, g> of the chosen rows: signs, transform, and those rows of the result."""
    x = np.zeros(padded_kernel(g.size), dtype=np.float32)
    add_signed(key, g, x[: g.size])
    transform_kernel(x)
    return x[chosen]


@kernel
def synthesise(key: KeyPair, chosen: NDArray[np.int64], a: Vector, u: Vector) -> None:
    """u <- u + sum_i a_i phi_i of the chosen rows: the coefficients at their rows, transform, signs."""
    x = np.zeros(padded_kernel(u.size), dtype=np.float32)
    x[chosen] = a
    transform_kernel(x)
    add_signed(key, x, u)
