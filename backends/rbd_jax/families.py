"""Words, and how they become the entries of one direction: the families but `srht`, as programs for XLA.

XLA computes a result of two arrays twice, once for each. So the two elements of a block of `normal` or `uniform` are
the parts of one complex number: a vector of n / 2 such pairs is, in memory, the vector of n floats. Nothing is ever
multiplied as a complex number.
Specification: docs/specification.md, sections 1 and 4.
Tests: tests/test_jax_backend.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from rbd_jax.rounding import Array, as_floats, as_words, product, stored, tree_sum
from rbd_ref.spec.families import (
    C1,
    C2,
    C3,
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
from rbd_ref.spec.prng import PARITY, ROTATIONS

PAIR, BITS = 2, 64  # elements that a block of two words gives
Word = np.uint32


class FamilyParameters(NamedTuple):
    """What the entries of a compartment's directions depend on, beside their number; none of it makes XLA compile anew.

    `zero` is the word of `rounding.product`; `clear` and `set_` are the entries that bits stand for; of the `windows`
    of `sparse` the first `longer` have `length` + 1 elements and the others `length`.
    """

    key: Any
    zero: Any
    clear: Any
    set_: Any
    windows: Any
    length: Any
    longer: Any


def rotate(x: Array, r: int) -> Array:
    """x rotated left by r bits."""
    return (x << Word(r)) | (x >> Word(32 - r))


def threefry(key: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Threefry2x32 with 20 rounds."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for group in range(5):
        for r in ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = rotate(x1, r) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + Word(group + 1)
    return x0, x1


def block_words(key: Array, i: Array, blocks: int) -> tuple[Array, Array]:
    """Both words of the blocks 0, 1, ... of direction i."""
    block = jnp.arange(blocks, dtype=jnp.uint32)
    return threefry(key, jnp.full_like(block, i), block)


def word_vector(key: Array, i: Array, blocks: int) -> Array:
    """The words of direction i one after the other, written to memory so that nothing computes them twice."""
    return stored(jnp.stack(block_words(key, i, blocks), axis=1)).reshape(-1)


def mantissa(x0: Array) -> tuple[Array, Array]:
    """z = m - 1 and the exponent e of the integer that a radius is made of; both are read from the bits of a float."""
    v = jnp.minimum(x0 >> Word(1) | Word(1), Word(LARGEST)).astype(jnp.int32)
    i = lax.bitcast_convert_type(v.astype(jnp.float32), jnp.int32)
    e = (i - THRESHOLD) >> 23
    return lax.bitcast_convert_type(i - (e << 23), jnp.float32) - ONE, e


def zero_of(x0: Array) -> Array:
    """The word 0 of any word, in a way that no compiler sees through: bit 30 of a float below 2, and |z| <= 1/3.

    For `rounding.product` where no argument of the program is zero."""
    return (as_words(mantissa(x0)[0]) << Word(1)) >> Word(31)


def hidden_zero(x: Array) -> Array:
    """The word 0 as one number, made of a vector of floats; hidden from XLA also where it knows all of them.

    XLA does not compute in advance what follows from indices, so the largest of many zeros stays unknown to it."""
    return jnp.max(zero_of(as_words(x[0]) + jnp.arange(64, dtype=jnp.uint32)))


def radius(x0: Array, zero: Array) -> Array:
    """sqrt(-2 ln u)."""
    z, e = mantissa(x0)
    q = jnp.full_like(z, Q5)
    for constant in (Q4, Q3, Q2, Q1, Q0):
        q = product(q, z, zero) + constant
    return jnp.sqrt(product(q, z, zero) + product((31 - e).astype(jnp.float32), TWO_LN_2, zero))


def normal_pairs(x0: Array, x1: Array, zero: Array) -> Array:
    """Box-Muller pairs of blocks."""
    k = (x1 >> Word(7) & Word(0x7FFFFE) | Word(1)).astype(jnp.int32)
    f = k.astype(jnp.float32) * STEP_22 - ONE
    w = f * f
    sine = (product(product(w, S2, zero) + S1, w, zero) + S0) * f
    cosine = product(product(product(w, C3, zero) + C2, w, zero) + C1, w, zero) + ONE
    r = radius(x0, zero)
    a, b = as_floats(as_words(r * cosine) ^ (x1 & Word(0x80000000))), r * sine
    swap = (x1 & Word(0x40000000)) != 0
    return lax.complex(jnp.where(swap, b, a), jnp.where(swap, a, b))


def normal(family: FamilyParameters, i: Array, blocks: int) -> Array:
    """Box-Muller pairs of direction i."""
    return normal_pairs(*block_words(family.key, i, blocks), family.zero)


def uniform_value(x: Array) -> Array:
    """An odd multiple of 2^-24 in (-1, 1), exact."""
    return ((x >> Word(8)).astype(jnp.int32).astype(jnp.float32) - MIDDLE) * STEP_23 + STEP_24


def uniform(family: FamilyParameters, i: Array, blocks: int) -> Array:
    """Pairs of direction i."""
    x0, x1 = block_words(family.key, i, blocks)
    return lax.complex(uniform_value(x0), uniform_value(x1))


def bits(family: FamilyParameters, i: Array, blocks: int) -> Array:
    """`clear` or `set_` as each bit of direction i is, 64 of a block."""
    places = jnp.arange(32, dtype=jnp.uint32)
    odd = word_vector(family.key, i, blocks)[:, None] >> places & Word(1)
    return jnp.where(odd == 0, family.clear, family.set_).reshape(-1)


def sparse(family: FamilyParameters, i: Array, blocks: int) -> tuple[Array, Array]:
    """Place and sign of each window's entry; windows that are not there have no place in any vector, and sign 0."""
    x, v = word_vector(family.key, i, blocks), jnp.arange(2 * blocks, dtype=jnp.uint32)
    scaled = (x >> Word(8)) * (family.length + (v < family.longer).astype(jnp.uint32))
    place = v * family.length + jnp.minimum(v, family.longer) + (scaled >> Word(24))
    sign = jnp.where((x & Word(1)) == 0, ONE, -ONE)
    there = v < family.windows
    return jnp.where(there, place, Word(2**32 - 1)), jnp.where(there, sign, np.float32(0))


def dot(x: Array, y: Array, zero: Array) -> Array:
    """sum_j x_j y_j of floats, or of pairs."""
    if jnp.iscomplexobj(x):
        return tree_sum(product(x.real, y.real, zero) + product(x.imag, y.imag, zero))
    return tree_sum(product(x, y, zero))


def add_multiple(a: Array, phi: Array, u: Array, zero: Array) -> Array:
    """u + a phi of floats, or of pairs."""
    if jnp.iscomplexobj(phi):
        return u + lax.complex(product(a, phi.real, zero), product(a, phi.imag, zero))
    return u + product(a, phi, zero)
