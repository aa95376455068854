"""Keys within a compiled program: seeds, steps and workers may be numbers or traced values.

A number of 64 bits is a pair of words here, the high one first, since JAX has no uint64 unless it is told to.
Specification: docs/specification.md, section 2. Tests: tests/test_jax_functional.py.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rbd_jax.families import Word, threefry
from rbd_jax.rounding import Array
from rbd_ref._check import integer
from rbd_ref._types import TWO_32, TWO_64
from rbd_ref.spec.prng import STREAMS


def is_array(value: Any) -> bool:
    """Whether a value is an array of JAX, traced or not, and no number."""
    return isinstance(value, jax.Array)


def word_pair(name: str, value: Any, high: int = TWO_64) -> Array:
    """A number below `high` as uint32 (2,), the high word first.

    An array of JAX may be a scalar of any integer type or, for a number of 64 bits, (2,) of uint32: a pair of words
    already. What it holds cannot be checked."""
    if not is_array(value):
        number = integer(name, value, 0, high)
        return np.array([number >> 32, number % TWO_32], dtype=np.uint32)
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{name} is an array of {value.dtype}, expected integers: convert it with astype(jnp.uint32)")
    wide = high > TWO_32
    if wide and value.shape == (2,) and value.dtype == jnp.uint32:
        return value
    if value.shape != ():
        expected = "one integer, or two words of uint32" if wide else "one integer"
        raise ValueError(f"{name} has shape {value.shape} and dtype {value.dtype}, expected {expected}: pass a scalar")
    upper = (value >> 32).astype(jnp.uint32) if value.dtype.itemsize == 8 else jnp.zeros((), jnp.uint32)
    return jnp.stack([upper, value.astype(jnp.uint32)])


def word(name: str, value: Any) -> Array:
    """A number below 2^32, as steps, workers and streams are, as one word."""
    return word_pair(name, value, TWO_32)[1]


def fold_in(key: Array, n: Array) -> Array:
    """The key (2,) from a key and a word."""
    return jnp.stack(threefry(key, jnp.zeros((), jnp.uint32), jnp.asarray(n, jnp.uint32)))


def basis_keys(seed: Array, step: Array, worker: Array, compartments: int) -> Array:
    """Keys (2, K) of one basis, from a pair of words and two words."""
    key = jnp.asarray(seed, jnp.uint32)
    for number in (Word(STREAMS["bases"]), step, worker):
        key = fold_in(key, number)
    numbers = jnp.arange(compartments, dtype=jnp.uint32)
    return jnp.stack(threefry(key, jnp.zeros_like(numbers), numbers))


def number_key(seed: Array, stream: Array) -> Array:
    """The key (2,) of a stream of portable random numbers."""
    own = fold_in(fold_in(jnp.asarray(seed, jnp.uint32), Word(STREAMS["numbers"])), stream)
    return basis_keys(own, Word(0), Word(0), 1)[:, 0]
