"""The family `srht` as programs for XLA: which rows are drawn, and the transform under the signs.

The vectors are as long as a power of two, which may be longer than the specification's n: zeros beyond n change no
bit of the first n numbers. Rows are a mask over 0 .. n - 1, so that no shape depends on d.
Specification: docs/specification.md, section 4.6. Tests: tests/test_jax_backend.py.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rbd_jax.families import BITS, FamilyParameters, Word, bits, word_vector
from rbd_jax.rounding import Array, as_floats, product, stored, zeros
from rbd_jax.sweep import Wanted, flush
from rbd_ref.spec.hadamard import ROW_COUNTER, SIGN_COUNTER

NEVER = Word(2**32 - 1)


def smallest(x: Array, k: Array, width: int) -> Array:
    """The k-th smallest of numbers of `width` bits, k from 1: the largest number that fewer than k are below."""

    def body(t: Array, limit: Array) -> Array:
        trial = limit | Word(1) << (Word(width - 1) - t.astype(jnp.uint32))
        return jnp.where(jnp.sum(x < trial, dtype=jnp.int32) < k, trial, limit)

    return lax.fori_loop(0, width, body, x[0] & Word(0))


@partial(jax.jit, static_argnums=0)
def chosen(length: int, key: Array, n: Array, d: Array) -> Array:
    """Whether each row is among those with the d smallest words of n, the lower row first among equal words."""
    row = jnp.arange(length, dtype=jnp.uint32)
    word = stored(jnp.where(row < n, word_vector(key, Word(ROW_COUNTER), length // 2), NEVER))
    limit = smallest(word, d, 32)
    missing = d - jnp.sum(word < limit, dtype=jnp.int32)
    last = smallest(jnp.where(word == limit, row, Word(length)), missing, length.bit_length())
    return (word < limit) | ((word == limit) & (row <= last))


def transform(x: Array) -> Array:
    """H x: each turn does the level of the lowest bit of the places and then makes it the highest."""

    def turn(_: Array, y: Array) -> Array:
        return jnp.concatenate([y[0::2] + y[1::2], y[0::2] - y[1::2]])

    return lax.fori_loop(0, x.size.bit_length() - 1, turn, x)


def signed(family: FamilyParameters, x: Array) -> Array:
    """s_j x_j."""
    signs = stored(bits(family, np.uint32(SIGN_COUNTER), x.size // BITS))
    return product(signs, x, family.zero)


@jax.jit
def analyse(family: FamilyParameters, rows: Array, divisor: Array, g: Array) -> Array:
    """The coefficients of the chosen rows, each at its row, and zeros elsewhere."""
    return jnp.where(rows, flush(transform(signed(family, g)) / divisor), jnp.float32(0))


@jax.jit
def synthesise(family: FamilyParameters, z: Array) -> Array:
    """u of the coefficients at their rows. The sum with zero leaves no -0; XLA would drop it, were zero known."""
    return as_floats(family.zero) + signed(family, transform(flush(z)))


def row_numbers(rows: Array, most: int) -> Array:
    """The chosen rows in ascending order, `most` at most, and numbers beyond all rows where there are fewer."""
    return jnp.searchsorted(jnp.cumsum(rows, dtype=jnp.int32), jnp.arange(1, most + 1), side="left")


def structured(
    measure: bool, rebuild: bool, family: FamilyParameters, wanted: Wanted, g: Array, a: Array
) -> tuple[Array, Array]:
    """Coefficients of g, or else those given, and their update if asked for: of all directions of a compartment."""
    n = jnp.uint32(1) << (Word(32) - lax.clz(wanted.size - Word(1)))
    rows = row_numbers(chosen(g.size, family.key, n, wanted.count), a.size)
    if measure:
        everywhere = flush(transform(signed(family, g)) / wanted.divisor)
        a = everywhere.at[rows].get(mode="fill", fill_value=0)
    placed = zeros(g.size, family.zero).at[rows].set(a, mode="drop")
    return a, synthesise(family, placed) if rebuild else placed
