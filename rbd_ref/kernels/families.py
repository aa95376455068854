"""Families by machine code: the twin of spec/families.py.

Every float operation is float32, rounded once and never fused, in the order of the definitions. tiles.py puts these
kernels together, and hadamard.py has `srht`.
Tests: tests/test_families.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rbd_ref._types import Float32Array, Words
from rbd_ref.kernels._jit import borrowed, device, kernel, widest
from rbd_ref.kernels._lockstep import COUNTERS, fill_counters
from rbd_ref.kernels.prng import threefry2x32
from rbd_ref.spec.families import (
    C1,
    C2,
    C3,
    HALF,
    LARGEST,
    MIDDLE,
    ONE,
    Q0,
    Q1,
    Q2,
    Q3,
    Q4,
    Q5,
    S0,
    S1,
    S2,
    STEP_22,
    STEP_23,
    STEP_24,
    THRESHOLD,
    TWO_LN_2,
)

KeyPair = tuple[np.uint32, np.uint32]

NORMAL, UNIFORM, RADEMACHER, BERNOULLI, SPARSE, SRHT = range(6)
CODES = {
    "normal": NORMAL,
    "uniform": UNIFORM,
    "rademacher": RADEMACHER,
    "bernoulli-graphcore": BERNOULLI,
    "sparse": SPARSE,
    "srht": SRHT,
}


class FamilyCode(NamedTuple):
    """A family as kernels take it: its number, the window of `sparse`, and where its machine code is (tiles.py)."""

    code: int
    window: int
    words: int
    hold: int
    dot: int
    add: int


SIGN_BIT = np.uint32(2**31)


@device
def radius(x0: np.uint32) -> np.float32:
    """`radius` of one word: the exponent is read from the bits of the float."""
    v = np.int32(np.uint32(x0 >> np.uint32(1)) | np.uint32(1))
    i = np.float32(min(v, np.int32(LARGEST))).view(np.int32)
    e = np.int32(np.int32(i - THRESHOLD) >> np.int32(23))
    z = np.float32(np.int32(i - np.int32(e << np.int32(23))).view(np.float32) - ONE)
    q = Q5 * z + Q4
    q = q * z + Q3
    q = q * z + Q2
    q = q * z + Q1
    q = q * z + Q0
    return np.float32(np.sqrt(q * z + np.float32(np.int32(np.int32(31) - e)) * TWO_LN_2))


@device
def normal_pair(x0: np.uint32, x1: np.uint32) -> tuple[np.float32, np.float32]:
    """`normal_pairs` of one block."""
    k = np.int32(np.uint32(np.uint32(x1 >> np.uint32(7)) & np.uint32(0x7FFFFE)) | np.uint32(1))
    f = np.float32(np.float32(k) * STEP_22 - ONE)
    w = f * f
    sine = ((S2 * w + S1) * w + S0) * f
    cosine = ((C3 * w + C2) * w + C1) * w + ONE
    r = radius(x0)
    sign = np.uint32(x1 & np.uint32(0x80000000))
    a = np.uint32(np.float32(r * cosine).view(np.uint32) ^ sign).view(np.float32)
    b = np.float32(r * sine)
    swap = np.uint32(x1 & np.uint32(0x40000000)) != np.uint32(0)
    return (b if swap else a), (a if swap else b)


@device
def uniform_value(x: np.uint32) -> np.float32:
    """`uniform_pairs` of one word."""
    return np.float32((np.float32(np.int32(x >> np.uint32(8))) - MIDDLE) * STEP_23 + STEP_24)


@kernel
def fill_words(key: KeyPair, i: int, first: int, x0: Words, x1: Words) -> None:
    """Words of direction i for the blocks first, first + 1, ... into x0 and x1."""
    x0, x1 = borrowed(x0), borrowed(x1)
    k0, k1 = np.uint32(key[0]), np.uint32(key[1])
    direction = np.uint32(i)
    origin = np.uint32(first)
    whole = x0.size - x0.size % COUNTERS
    for p in range(0, whole, COUNTERS):
        fill_counters((k0, k1), direction, np.uint32(origin + np.uint32(p)), x0, x1, p)
    for p in range(whole, x0.size):
        x0[p], x1[p] = threefry2x32(k0, k1, direction, np.uint32(origin + np.uint32(p)))


@kernel
def fill_normal(x0: Words, x1: Words, phi: Float32Array) -> None:
    """Elements 2p and 2p + 1 from block p."""
    widest()
    for p in range(x0.size):
        phi[2 * p], phi[2 * p + 1] = normal_pair(x0[p], x1[p])


@kernel
def fill_uniform(x0: Words, x1: Words, phi: Float32Array) -> None:
    """Elements 2p and 2p + 1 from block p."""
    widest()
    for p in range(x0.size):
        phi[2 * p] = uniform_value(x0[p])
        phi[2 * p + 1] = uniform_value(x1[p])


@device
def flip(x: np.float32, word: np.uint32, b: int) -> np.float32:
    """x, or -x if bit b of the word is set: an exclusive or with the sign bit."""
    sign = np.uint32(np.uint32(word << np.uint32(31 - b)) & SIGN_BIT)
    return np.uint32(np.float32(x).view(np.uint32) ^ sign).view(np.float32)


@device
def bernoulli_value(word: np.uint32, b: int) -> np.float32:
    """+-1 as bit b of the word is, less 1/2."""
    return np.float32(flip(ONE, word, b) - HALF)


@device
def window_of(j: int, length: int, longer: int) -> int:
    """The window of element j, where the first `longer` windows have length + 1 elements and the others length."""
    return j // (length + 1) if j < longer * (length + 1) else longer + (j - longer * (length + 1)) // length


@device
def sparse_entry(x: np.uint32, v: np.uint32, length: np.uint32, longer: np.uint32, first: np.uint32) -> np.uint32:
    """The non-zero of window v from its word x: twice its place, counted from element `first`, and the bit of its sign.

    `sparse_entries` of one window.
    """
    scaled = np.uint32(np.uint32(x >> np.uint32(8)) * np.uint32(length + np.uint32(v < longer)))
    start = np.uint32(np.uint32(v * length) + min(v, longer))
    place = np.uint32(np.uint32(start - first) + np.uint32(scaled >> np.uint32(24)))
    return np.uint32(np.uint32(place << np.uint32(1)) | np.uint32(x & np.uint32(1)))


@kernel
def fill_sparse(x0: Words, x1: Words, v: int, length: int, longer: int, first: int, entries: Words) -> None:
    """The non-zeros of the windows v + 2p and v + 2p + 1 from block p; v is even."""
    widest()
    for p in range(x0.size):
        here = np.uint32(v + 2 * p)
        size = np.uint32(length)
        more = np.uint32(longer)
        origin = np.uint32(first)
        entries[2 * p] = sparse_entry(x0[p], here, size, more, origin)
        entries[2 * p + 1] = sparse_entry(x1[p], np.uint32(here + np.uint32(1)), size, more, origin)
