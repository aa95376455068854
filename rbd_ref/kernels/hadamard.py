"""`srht` by machine code: the twin of spec/hadamard.py, alone in a thread or by all threads in cooperation.

Tests: tests/test_hadamard.py.
"""

from __future__ import annotations

import numpy as np

from rbd_ref._types import Float32Array, Indices, Words
from rbd_ref.kernels._butterflies import LANES, first_levels
from rbd_ref.kernels._jit import device, kernel, parallel_kernel, prange, reading, widest
from rbd_ref.kernels.families import KeyPair, fill_words, flip
from rbd_ref.spec.hadamard import ROW_COUNTER, SIGN_COUNTER
from rbd_ref.spec.operations import TILE

NEAR, FAR = 2**13, 2**17  # elements of a block that stays in the first cache of a core, and in the second
PIECE = 2**11  # pairs, quadruples or words that are worth a thread; divides NEAR


@kernel
def padded(size: int) -> int:
    """The least power of two that is not below `size`."""
    n = 1
    while n < size:
        n *= 2
    return n


@kernel
def fill_row_words(key: KeyPair, first: int, words: Words) -> None:
    """The words of rows from `first` on; `first` and the number of words are even."""
    widest()
    blocks = words.size // 2
    x0, x1 = np.empty(blocks, np.uint32), np.empty(blocks, np.uint32)
    fill_words(key, ROW_COUNTER, first // 2, x0, x1)
    for p in range(blocks):
        words[2 * p] = x0[p]
        words[2 * p + 1] = x1[p]


@kernel
def row_words(key: KeyPair, n: int) -> Words:
    """The word of each of n rows."""
    words = np.empty(n + n % 2, dtype=np.uint32)
    fill_row_words(key, 0, words)
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
def places_up_to(words: Words, top: np.uint32) -> Indices:
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
def nth(words: Words, d: int) -> np.uint32:
    """The d-th smallest word: the least that has d words up to it, bit by bit."""
    below = np.uint32(0)
    for b in range(31, -1, -1):
        trial = np.uint32(below | np.uint32(1 << b))
        if count_up_to(words, np.uint32(trial - np.uint32(1))) < d:
            below = trial
    return below


@kernel
def margin(d: int) -> float:
    """How far the number of words up to a bound may be from d, as good as always."""
    return float(8 * np.sqrt(d) + 8)


@kernel
def smallest(words: Words, d: int, places: Indices) -> Indices:
    """Places of the d smallest words, ascending: those below the d-th smallest, and the first of those equal to it.

    `places` are those of the words up to the bound of d + margin(d), where the d-th is as good as always; if it is not,
    all are looked at.
    """
    if places.size < d:
        places = np.arange(words.size)
    candidates = words[places]
    limit = nth(candidates, d)
    equal = d - (count_up_to(candidates, np.uint32(limit - np.uint32(1))) if limit > 0 else 0)
    chosen = np.empty(d, dtype=np.int64)
    i = 0
    for q in range(places.size):
        if candidates[q] < limit or (candidates[q] == limit and equal > 0):
            equal -= candidates[q] == limit
            chosen[i] = places[q]
            i += 1
    return chosen


@kernel
def rows(key: KeyPair, size: int, d: int) -> Indices:
    """The rows of the d smallest words, ascending."""
    words = row_words(key, padded(size))
    return smallest(words, d, places_up_to(words, bound(d + margin(d), words.size)))


@device
def four(a: np.float32, b: np.float32, c: np.float32, d: np.float32) -> tuple[np.float32, ...]:
    """Two levels of four numbers: the pairs (a, b) and (c, d), then (a, c) and (b, d)."""
    ab, ba, cd, dc = a + b, a - b, c + d, c - d
    return ab + cd, ba + dc, ab - cd, ba - dc


@kernel
def pairs(x: Float32Array, h: int, q: int, n: int) -> None:
    """Level h for n pairs from pair q on, all of one block of 2 h elements."""
    widest()
    start = q // h * 2 * h + q % h
    low, high = x[start : start + n], x[start + h : start + h + n]
    for j in range(n):
        low[j], high[j] = low[j] + high[j], low[j] - high[j]


@kernel
def quadruples(x: Float32Array, h: int, q: int, n: int) -> None:
    """Levels h and 2 h in one pass for n quadruples from quadruple q on, all of one block of 4 h elements."""
    widest()
    start = q // h * 4 * h + q % h
    a, b = x[start : start + n], x[start + h : start + h + n]
    c, d = x[start + 2 * h : start + 2 * h + n], x[start + 3 * h : start + 3 * h + n]
    for j in range(n):
        a[j], b[j], c[j], d[j] = four(a[j], b[j], c[j], d[j])


@kernel
def levels(x: Float32Array, h: int) -> None:
    """Level h and all above it."""
    while 4 * h <= x.size:
        for q in range(0, x.size // 4, h):
            quadruples(x, h, q, h)
        h *= 4
    if h < x.size:
        pairs(x, h, 0, h)


@kernel
def block_levels(x: Float32Array) -> None:
    """All levels of a block that stays in the second cache: first those of its parts that stay in the first."""
    widest()
    near = min(x.size, NEAR)
    for start in range(0, x.size, near):
        part = x[start : start + near]
        whole = near - near % LANES
        for j in range(0, whole, LANES):
            first_levels(part, j)
        levels(part, LANES if whole else 1)
    levels(x, near)


@kernel
def transform(x: Float32Array) -> None:
    """H x in place: all levels of one block after the other, then those above."""
    far = min(x.size, FAR)
    for start in range(0, x.size, far):
        block_levels(x[start : start + far])
    levels(x, far)


@kernel
def add_flipped(x0: Words, x1: Words, x: Float32Array, out: Float32Array) -> None:
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
def add_signed_tile(key: KeyPair, first: int, x: Float32Array, out: Float32Array) -> None:
    """out_j <- out_j + s_j x_j for a tile from `first` on."""
    x0, x1 = np.empty(TILE // 64, np.uint32), np.empty(TILE // 64, np.uint32)
    fill_words(key, SIGN_COUNTER, first // 64, x0, x1)
    add_flipped(x0, x1, x, out)


@kernel
def add_signed(key: KeyPair, x: Float32Array, out: Float32Array) -> None:
    """out_j <- out_j + s_j x_j."""
    for first in range(0, out.size, TILE):
        add_signed_tile(key, first, x[first : first + TILE], out[first : first + TILE])


@kernel
def analyse(key: KeyPair, chosen: Indices, g: Float32Array, x: Float32Array) -> Float32Array:
    """<phi_i, g> of the chosen rows: signs, transform, and those rows of the result; x has as many places as rows."""
    x[:] = np.float32(0)
    add_signed(key, g, x[: g.size])
    transform(x)
    return x[chosen]


@kernel
def put(a: Float32Array, chosen: Indices, x: Float32Array) -> None:
    """The coefficients at their rows. `x[chosen] = a` would compile what checks and prints shapes."""
    for i in range(a.size):
        x[chosen[i]] = a[i]


@kernel
def synthesise(key: KeyPair, chosen: Indices, a: Float32Array, u: Float32Array, x: Float32Array) -> None:
    """u <- u + sum_i a_i phi_i of the chosen rows: the coefficients at their rows, transform, signs."""
    x[:] = np.float32(0)
    put(a, chosen, x)
    transform(x)
    add_signed(key, reading(x), u)


# By all threads in cooperation, for one large compartment: the same words, butterflies and signs, so the same bits.


@parallel_kernel
def rows_cooperative(key: KeyPair, d: int, words: Words) -> Indices:
    """`rows`; `words` has a place for each row, and they are left there."""
    pieces, top = words.size // PIECE, bound(d + margin(d), words.size)
    ends = np.zeros(pieces + 1, dtype=np.int64)
    for p in prange(pieces):
        part = words[p * PIECE : (p + 1) * PIECE]
        fill_row_words(key, p * PIECE, part)
        ends[p + 1] = count_up_to(part, top)
    ends = np.cumsum(ends)
    places = np.empty(ends[pieces], dtype=np.int64)
    for p in prange(pieces):
        places[ends[p] : ends[p + 1]] = p * PIECE + places_up_to(words[p * PIECE : (p + 1) * PIECE], top)
    return smallest(words, d, places)


@parallel_kernel
def clear_cooperative(x: Float32Array) -> None:
    """x = +0."""
    for p in prange(x.size // PIECE):
        x[p * PIECE : (p + 1) * PIECE] = np.float32(0)


@parallel_kernel
def transform_cooperative(x: Float32Array) -> None:
    """`transform`: blocks that stay in a cache, then the levels above, pieces of them at a time."""
    h = FAR if x.size >= 16 * FAR else NEAR
    for p in prange(x.size // h):
        block_levels(x[p * h : (p + 1) * h])
    while 4 * h <= x.size:
        for p in prange(x.size // 4 // PIECE):
            quadruples(x, h, p * PIECE, PIECE)
        h *= 4
    if h < x.size:
        for p in prange(x.size // 2 // PIECE):
            pairs(x, h, p * PIECE, PIECE)


@parallel_kernel
def add_signed_cooperative(key: KeyPair, x: Float32Array, out: Float32Array) -> None:
    """`add_signed`."""
    for t in prange((out.size + TILE - 1) // TILE):
        add_signed_tile(key, t * TILE, x[t * TILE : (t + 1) * TILE], out[t * TILE : (t + 1) * TILE])
