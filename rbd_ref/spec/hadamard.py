"""The structured family `srht`: rows of a Walsh-Hadamard matrix under fresh signs; d directions cost one transform.

    phi_ij = s_j (-1)^popcount(r_i & j),  j < size,  rows r_0 < r_1 < ... drawn without replacement from n = 2^m >= size

Specification: docs/specification.md, section 4.6. Twin: kernels/hadamard.py. Tests: tests/test_hadamard.py.
"""

from __future__ import annotations

import numpy as np

from rbd_ref._types import F32, Float32Array, Indices, Words
from rbd_ref.spec.families import Family, block_words, direction_entries

# The first counter word, which is the number of the direction in other families.
SIGN_COUNTER = 0
ROW_COUNTER = 1


def padded(size: int) -> int:
    """The least power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()


def signs(key: Words, size: int) -> Float32Array:
    """s: a `rademacher` direction."""
    return direction_entries(Family("rademacher"), key, SIGN_COUNTER, size)


def rows(key: Words, size: int, d: int) -> Indices:
    """The rows with the d smallest of n words, the lower row first among equal words, in ascending order."""
    n = padded(size)
    words = block_words(key, ROW_COUNTER, -(-n // 2)).T.reshape(-1)[:n]
    return np.sort(np.argsort(words, kind="stable")[:d])


def transform(x: Float32Array) -> Float32Array:
    """H x for a power of two: levels h = 1, 2, 4, ..., each (x_j, x_j+h) <- (x_j + x_j+h, x_j - x_j+h)."""
    y, h = x.astype(F32), 1
    while h < y.size:
        pair = y.reshape(-1, 2, h)
        y = np.stack([pair[:, 0] + pair[:, 1], pair[:, 0] - pair[:, 1]], axis=1).reshape(-1)
        h *= 2
    return y


def row_entries(key: Words, size: int, row: int) -> Float32Array:
    """phi_i of one row r_i: the transform of a unit vector, under the signs."""
    unit = np.zeros(padded(size), dtype=F32)
    unit[row] = 1
    return signs(key, size) * transform(unit)[:size]
