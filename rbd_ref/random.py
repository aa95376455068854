"""Portable random numbers: the same bits in NumPy, torch, JAX, CUDA and ONNX, for ever.

    rbd_ref.random.normal((1000, 1000), seed=7)

A stream of numbers is a function of (seed, stream) and nothing else; `offset` says where in it an array begins, so that
shards are parts of the whole. `rbd_torch` and `rbd_jax` have the same as `randn`, `rand` and `signs`.
Specification: docs/specification.md, section 15. Tests: tests/test_random.py.
"""

from __future__ import annotations

import math

from rbd_ref._check import Shape, checked_place, checked_shape
from rbd_ref._types import Float32Array
from rbd_ref.kernels.random import numbers

__all__ = ["normal", "signs", "uniform"]


def _filled(law: str, shape: Shape, seed: int, stream: int, offset: int) -> Float32Array:
    """The numbers of an array."""
    sizes = checked_shape(shape)
    count = math.prod(sizes)
    return numbers(law, *checked_place(seed, stream, offset, count), count).reshape(sizes)


def normal(shape: Shape, seed: int, *, stream: int = 0, offset: int = 0) -> Float32Array:
    """N(0, 1) numbers: element j of the array, in C order, is number offset + j of the stream (seed, stream).

    Args:
        shape: of the array; a number n stands for (n,).
        seed: 0 <= seed < 2^64.
        stream: 0 <= stream < 2^32; streams of one seed are unrelated, so name one for each use.
        offset: the number of the stream that the array begins with, 0 <= offset < 2^64.

    Returns:
        float32 of that shape, no element of which is 0 or beyond +-6.6.

    Raises:
        ValueError, TypeError: one sentence of what is wrong, what was expected and what to do.

    Examples:
        >>> import numpy as np, rbd_ref as rbd
        >>> w = rbd.random.normal((1000, 64), seed=7)
        >>> [f"{word:08x}" for word in w[0, :2].view(np.uint32)]
        ['3f144869', '3fc93d78']

        Rows 500 to 999, made on another machine:

        >>> shard = rbd.random.normal((500, 64), seed=7, offset=500 * 64)
        >>> bool(np.array_equal(shard, w[500:]))
        True
    """
    return _filled("normal", shape, seed, stream, offset)


def uniform(shape: Shape, seed: int, *, stream: int = 0, offset: int = 0) -> Float32Array:
    """Numbers uniform on [0, 1): multiples of 2^-24, each as likely as any other.

    Args:
        shape: of the array; a number n stands for (n,).
        seed: 0 <= seed < 2^64.
        stream: 0 <= stream < 2^32.
        offset: the number of the stream that the array begins with, 0 <= offset < 2^64.

    Returns:
        float32 of that shape.

    Examples:
        >>> import rbd_ref as rbd
        >>> u = rbd.random.uniform(1000, seed=7)
        >>> bool(0 <= u.min() and u.max() < 1)
        True
    """
    return _filled("uniform", shape, seed, stream, offset)


def signs(shape: Shape, seed: int, *, stream: int = 0, offset: int = 0) -> Float32Array:
    """+1 or -1, each as likely as the other.

    Args:
        shape: of the array; a number n stands for (n,).
        seed: 0 <= seed < 2^64.
        stream: 0 <= stream < 2^32.
        offset: the number of the stream that the array begins with, 0 <= offset < 2^64.

    Returns:
        float32 of that shape.

    Examples:
        >>> import rbd_ref as rbd
        >>> rbd.random.signs((2, 3), seed=7)
        array([[ 1., -1.,  1.],
               [ 1.,  1.,  1.]], dtype=float32)
    """
    return _filled("signs", shape, seed, stream, offset)
