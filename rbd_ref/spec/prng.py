"""Words: Threefry2x32 with 20 rounds, the keys made with it, and nothing else random in the project.

Specification: docs/specification.md, sections 1 and 2. Twin: kernels/prng.py. Tests: tests/test_prng.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rbd_ref._check import integer
from rbd_ref._types import TWO_32, TWO_64, Words

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)

# One stream of keys for each use of randomness: two uses never share a word.
STREAMS = {
    "bases": 0,
    "initialisation": 1,
    "order": 2,
    "augmentation": 3,
    "split": 4,
    "offspring": 5,
    "numbers": 6,
}


def _rotate(x: Words, r: int) -> Words:
    return (x << np.uint32(r)) | (x >> np.uint32(32 - r))


def _words(name: str, value: ArrayLike) -> Words:
    """`value` as uint32 words with a first axis of two."""
    array = np.asarray(value)
    if array.dtype != np.uint32:
        raise TypeError(f"{name} has dtype {array.dtype}, expected uint32: convert it with astype(np.uint32)")
    if array.ndim not in (1, 2) or array.shape[0] != 2:
        raise ValueError(f"{name} has shape {array.shape}, expected (2,) or (2, n): one row for each of the two words")
    return array


def threefry2x32(key: ArrayLike, counter: ArrayLike) -> Words:
    """Threefry2x32 with 20 rounds (Salmon et al. 2011): a key and counters to words.

    Args:
        key: uint32 (2,).
        counter: uint32 (2,), or (2, n) for n counters.

    Returns:
        uint32 of the counter's shape.

    Examples:
        >>> import numpy as np
        >>> from rbd_ref import prng
        >>> [f"{word:08x}" for word in prng.threefry2x32(np.zeros(2, np.uint32), np.zeros(2, np.uint32))]
        ['6b200159', '99ba4efe']
    """
    k, x = _words("key", key), _words("counter", counter)
    keys = (k[0], k[1], k[0] ^ k[1] ^ PARITY)
    with np.errstate(over="ignore"):
        x0, x1 = x[0] + keys[0], x[1] + keys[1]
        for group in range(5):
            for r in ROTATIONS[group % 2]:
                x0 = x0 + x1
                x1 = _rotate(x1, r) ^ x0
            x0 = x0 + keys[(group + 1) % 3]
            x1 = x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return np.array([x0, x1], dtype=np.uint32)


def root_key(seed: int) -> Words:
    """(seed >> 32, seed mod 2^32): the key of a seed, which is `jax.random.key(seed)`.

    Args:
        seed: 0 <= seed < 2^64.

    Returns:
        uint32 (2,).

    Examples:
        >>> from rbd_ref import prng
        >>> prng.root_key(2**32 + 7)
        array([1, 7], dtype=uint32)
    """
    number = integer("seed", seed, 0, TWO_64)
    return np.array([number >> 32, number % TWO_32], dtype=np.uint32)


def fold_in(key: ArrayLike, n: int) -> Words:
    """threefry(key, (n >> 32, n mod 2^32)): a new key from a key and a number.

    For n < 2^32 this is `jax.random.fold_in`.

    Args:
        key: uint32 (2,).
        n: 0 <= n < 2^64.

    Returns:
        uint32 (2,).

    Examples:
        >>> from rbd_ref import prng
        >>> [f"{word:08x}" for word in prng.fold_in(prng.root_key(42), 0)]
        ['6d3e048f', '1022172d']
    """
    number = integer("n", n, 0, TWO_64)
    return threefry2x32(key, np.array([number >> 32, number % TWO_32], dtype=np.uint32))


def stream_key(seed: int, stream: str) -> Words:
    """fold_in(root_key(seed), tag): the key of one use of randomness, so that two uses never share a word.

    Args:
        seed: 0 <= seed < 2^64.
        stream: one of STREAMS, whose values are the tags.

    Returns:
        uint32 (2,).

    Examples:
        >>> from rbd_ref import prng
        >>> sorted(prng.STREAMS)
        ['augmentation', 'bases', 'initialisation', 'numbers', 'offspring', 'order', 'split']
        >>> [f"{word:08x}" for word in prng.stream_key(42, "bases")]
        ['6d3e048f', '1022172d']
    """
    return fold_in(root_key(seed), STREAMS[stream])


def basis_keys(seed: int, step: int, worker: int, compartments: int) -> Words:
    """The stream `bases` folded with step, then worker, then each compartment 0 .. K - 1: the keys of one basis.

    Args:
        seed: 0 <= seed < 2^64.
        step: 0 <= step < 2^32.
        worker: 0 <= worker < 2^32.
        compartments: K, how many keys are wanted.

    Returns:
        uint32 (2, K), a column for each compartment.

    Examples:
        >>> from rbd_ref import prng
        >>> keys = prng.basis_keys(seed=42, step=3, worker=1, compartments=2)
        >>> [f"{word:08x}" for word in keys[:, 0]]
        ['7a7349a7', '8a005022']
    """
    base = fold_in(fold_in(stream_key(seed, "bases"), step), worker)
    numbers = np.arange(compartments, dtype=np.uint32)
    return threefry2x32(base, np.stack([np.zeros_like(numbers), numbers]))
