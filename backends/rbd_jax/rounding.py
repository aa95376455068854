"""Products and sums whose bits XLA leaves alone: no product is fused with a sum, and every sum has one order.

XLA on a CPU contracts `x * y + z` into one operation with one rounding, and has no switch for it in a program. What
stops it is an exclusive or between the product and the sum, with a word that is zero when the program runs but that the
compiler cannot know. A reduction of XLA has an order of its own, so sums are written out as trees here.
Tests: tests/test_jax_backend.py.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

Array = Any  # of JAX, or of NumPy where it is an argument or a constant


def as_words(x: Array) -> Array:
    """The bits of floats."""
    return lax.bitcast_convert_type(x, jnp.uint32)


def as_floats(x: Array) -> Array:
    """The floats of bits."""
    return lax.bitcast_convert_type(x, jnp.float32)


def product(x: Array, y: Array, zero: Array) -> Array:
    """x y rounded once, whatever is added to it; `zero` is a word that is an argument of the compiled program."""
    return as_floats(as_words(x * y) ^ zero)


def zeros(n: int, zero: Array) -> Array:
    """n floats +0; they vary over devices if what `zero` was made of does, as loops within `shard_map` need it."""
    return jnp.broadcast_to(as_floats(zero), (n,))


def stored(x: Array) -> Array:
    """x, written to memory, so that whoever uses it twice does not compute it twice."""
    return lax.optimization_barrier(x)  # type: ignore[no-untyped-call]


def tree_sum(x: Array) -> Array:
    """The sum of a vector: its upper half is added to its lower half until one number is left; an odd one waits."""
    while x.size > 1:
        half = x.size // 2
        low = x[:half] + x[half : 2 * half]
        x = jnp.concatenate([low, x[2 * half :]]) if x.size % 2 else low
    return x[0]
