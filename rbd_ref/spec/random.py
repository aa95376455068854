"""Portable random numbers: streams of normals, uniforms and signs with the same bits everywhere, from any offset on.

A stream is a basis of its own, whose seed is the key of (seed, stream). Number n of it is element n mod 2^32 of
direction n div 2^32, so every backend that makes directions makes these numbers too.
Specification: docs/specification.md, section 15. Twin: kernels/random.py. Tests: tests/test_random.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rbd_ref._types import F32, TWO_32, Float32Array, Words
from rbd_ref.spec.families import HALF, ONE, STEP_24, TWO, bits, normal_pairs, uniform_pairs
from rbd_ref.spec.prng import basis_keys, fold_in, stream_key, threefry2x32


class Law(NamedTuple):
    """What the numbers of a stream are: the family of directions that they come from, and how many a block gives."""

    family: str
    per_block: int


LAWS = {"normal": Law("normal", 2), "uniform": Law("uniform", 2), "signs": Law("rademacher", 64)}


def stream_seed(seed: int, stream: int) -> int:
    """The seed of the basis that a stream is: the words of fold_in(fold_in(root_key(seed), 6), stream), high first."""
    high, low = fold_in(stream_key(seed, "numbers"), stream)
    return int(high) << 32 | int(low)


def number_key(seed: int, stream: int) -> Words:
    """The key (2,) of a stream: that of compartment 0 of step 0 and worker 0 of its basis."""
    return basis_keys(stream_seed(seed, stream), step=0, worker=0, compartments=1)[:, 0]


def counters(first: int, blocks: int, per_block: int) -> Words:
    """The counters (2, blocks) of the blocks first, first + 1, ... of a stream: direction, and block within it."""
    number = np.uint64(first) + np.arange(blocks, dtype=np.uint64)
    direction, block = np.divmod(number, np.uint64(TWO_32 // per_block))
    return np.stack([direction, block]).astype(np.uint32)


def from_zero_to_one(u: Float32Array) -> Float32Array:
    """Numbers of the family `uniform`, odd multiples of 2^-24 in (-1, 1), as multiples of 2^-24 in [0, 1): exact."""
    return (u - STEP_24) * HALF + HALF


def entries(law: str, x: Words) -> Float32Array:
    """All numbers of the blocks whose words (2, blocks) are given."""
    if law == "normal":
        return normal_pairs(x).T.reshape(-1)
    if law == "uniform":
        return from_zero_to_one(uniform_pairs(x).T.reshape(-1))
    return ONE - TWO * bits(x).astype(F32)


def numbers(law: str, seed: int, stream: int, offset: int, count: int) -> Float32Array:
    """Numbers offset .. offset + count - 1 of a stream, by the definition.

    Args:
        law: one of LAWS.
        seed: 0 <= seed < 2^64.
        stream: 0 <= stream < 2^32.
        offset: the first number, 0 <= offset < 2^64.
        count: how many, offset + count <= 2^64.

    Returns:
        float32 (count,).

    Examples:
        >>> from rbd_ref.spec.random import numbers
        >>> numbers("signs", seed=7, stream=0, offset=0, count=6)
        array([ 1., -1.,  1.,  1.,  1.,  1.], dtype=float32)
        >>> numbers("signs", seed=7, stream=0, offset=1, count=2)
        array([-1.,  1.], dtype=float32)
    """
    each = LAWS[law].per_block
    first, before = divmod(offset, each)
    x = threefry2x32(number_key(seed, stream), counters(first, -(-(before + count) // each), each))
    return entries(law, x)[before : before + count]
