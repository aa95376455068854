"""L0: words. Threefry2x32-20 to the bit, for any key and counter.

Tests: tests/test_broken_backends.py.
"""

from __future__ import annotations

import numpy as np

from rbd_ref.backend import Backend
from rbd_ref.conformance.golden import read
from rbd_ref.conformance.suite import check, same_bits
from rbd_ref.spec.prng import root_key, threefry2x32


def _pair(text: list[str]) -> np.ndarray:
    return np.array([int(word, 16) for word in text], dtype=np.uint32)


@check("L0", "words equal the golden vectors, Random123's known answers among them")
def golden(backend: Backend) -> None:
    """Each row of words.json on its own."""
    for row in read("words")["cases"]:
        key, counter, expected = (_pair(row[name]) for name in ("key", "counter", "words"))
        got = backend.words(key, counter[:, None])
        same_bits(f"words of key {row['key']} and counter {row['counter']}", got, expected[:, None])


@check("L0", "words of many counters at once equal the definition")
def many(backend: Backend) -> None:
    """Lengths around the widths of vector registers, and one long run across the end of the counter."""
    for n in (0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 1000, 100_003):
        key = root_key(0x0123456789ABCDEF + n)
        counter = np.stack([np.full(n, n, np.uint32), np.arange(n, dtype=np.uint32) - np.uint32(n // 2)])
        first, expected = backend.words(key, counter), threefry2x32(key, counter)
        same_bits(f"words of {n} counters", first, expected)
        backend.words(key ^ np.uint32(1), counter)
        same_bits("words after a further call", first, expected)
