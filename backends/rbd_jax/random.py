"""Portable random numbers as arrays of JAX: `randn`, `rand` and `signs` with the bits of `rbd_ref.random`.

They may be called within `jax.jit`, with a traced seed, stream and offset. Every number is a function of its index
alone, so XLA makes numbers where they are needed.
Specification: docs/specification.md, section 15. Tests: tests/test_random.py.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rbd_jax.families import Word, normal_pairs, threefry, uniform_value, zero_of
from rbd_jax.keys import is_array, number_key, word, word_pair
from rbd_jax.rounding import Array
from rbd_ref._check import Shape, checked_place, checked_shape
from rbd_ref._types import TWO_32
from rbd_ref.spec.families import HALF, ONE, STEP_24
from rbd_ref.spec.random import LAWS


def normal_number(n: Array, x0: Array, x1: Array) -> Array:
    """Number n of the normals of its block."""
    pair = normal_pairs(x0, x1, zero_of(x0))
    return jnp.where((n & Word(1)) == 0, pair.real, pair.imag)


def uniform_number(n: Array, x0: Array, x1: Array) -> Array:
    """Number n of the uniforms of its block, in [0, 1): every operation is exact."""
    return (uniform_value(jnp.where((n & Word(1)) == 0, x0, x1)) - STEP_24) * HALF + HALF


def sign(n: Array, x0: Array, x1: Array) -> Array:
    """Number n of the signs of its block."""
    odd = jnp.where((n & Word(32)) == 0, x0, x1) >> (n & Word(31)) & Word(1)
    return jnp.where(odd == 0, ONE, -ONE)


NUMBERS = {"normal": normal_number, "uniform": uniform_number, "signs": sign}


@partial(jax.jit, static_argnums=(0, 1))
def numbers(law: str, count: int, seed: Array, stream: Array, offset: Array) -> Array:
    """`count` numbers from `offset` on; seed and offset are pairs of words.

    Each number has its block made for itself. That repeats work, but nothing has to be moved: on a CPU it was measured
    to be three times as fast as taking blocks apart, and XLA can divide it among devices."""
    n = offset[1] + jnp.arange(count, dtype=jnp.uint32)
    direction = offset[0] + (n < offset[1]).astype(jnp.uint32)  # the next one where numbers run over the end of one
    block = n >> Word(LAWS[law].per_block.bit_length() - 1)
    return NUMBERS[law](n, *threefry(number_key(seed, stream), direction, block))


def checked_count(sizes: tuple[int, ...]) -> int:
    """How many numbers an array has; JAX numbers the elements of one by 32 bits."""
    count = math.prod(sizes)
    if count >= TWO_32 // 2:
        raise ValueError(
            f"shape {sizes} has {count} elements, expected fewer than 2^31 in one array of JAX: make it in shards, "
            "with offset= for each"
        )
    return count


def draw(law: str, count: int, seed: Any, stream: Any, offset: Any) -> Array:
    """`numbers` of a place that is not checked: seed, stream and offset are numbers or arrays."""
    return numbers(law, count, word_pair("seed", seed), word("stream", stream), word_pair("offset", offset))


def _filled(law: str, shape: Shape, seed: Any, stream: Any, offset: Any) -> Array:
    """The numbers of an array."""
    sizes = checked_shape(shape)
    count = checked_count(sizes)
    checked_place(0, 0, 0 if is_array(offset) else offset, count)
    return draw(law, count, seed, stream, offset).reshape(sizes)


def randn(shape: Shape, seed: Any, *, stream: Any = 0, offset: Any = 0) -> Array:
    """N(0, 1) numbers: element j of the array is number offset + j of the stream (seed, stream), on every device.

    Args:
        shape: of the array, static; a number n stands for (n,).
        seed: 0 <= seed < 2^64, or an array: an integer, or two words of uint32, the high one first.
        stream: 0 <= stream < 2^32, or an array; streams of one seed are unrelated, so name one for each use.
        offset: the number of the stream that the array begins with, below 2^64, or an array as for `seed`.

    Returns:
        A float32 array with the bits of `rbd_ref.random.normal`.

    Raises:
        ValueError, TypeError: one sentence of what is wrong, what was expected and what to do.

    Examples:
        >>> import jax, rbd_jax
        >>> w = rbd_jax.randn((1000, 64), seed=7)
        >>> shard = jax.jit(lambda first: rbd_jax.randn((500, 64), seed=7, offset=64 * first))(500)
        >>> bool((shard == w[500:]).all())
        True
    """
    return _filled("normal", shape, seed, stream, offset)


def rand(shape: Shape, seed: Any, *, stream: Any = 0, offset: Any = 0) -> Array:
    """Numbers uniform on [0, 1), multiples of 2^-24, with the bits of `rbd_ref.random.uniform`.

    Args:
        shape: of the array, static; a number n stands for (n,).
        seed: 0 <= seed < 2^64, or an array.
        stream: 0 <= stream < 2^32, or an array.
        offset: the number of the stream that the array begins with, or an array.

    Returns:
        A float32 array.

    Examples:
        >>> import rbd_jax
        >>> u = rbd_jax.rand(1000, seed=7)
        >>> bool(u.min() >= 0 and u.max() < 1)
        True
    """
    return _filled("uniform", shape, seed, stream, offset)


def signs(shape: Shape, seed: Any, *, stream: Any = 0, offset: Any = 0) -> Array:
    """+1 or -1, each as likely as the other, with the bits of `rbd_ref.random.signs`.

    Args:
        shape: of the array, static; a number n stands for (n,).
        seed: 0 <= seed < 2^64, or an array.
        stream: 0 <= stream < 2^32, or an array.
        offset: the number of the stream that the array begins with, or an array.

    Returns:
        A float32 array.

    Examples:
        >>> import rbd_jax
        >>> rbd_jax.signs((2, 3), seed=7)
        Array([[ 1., -1.,  1.],
               [ 1.,  1.,  1.]], dtype=float32)
    """
    return _filled("signs", shape, seed, stream, offset)
