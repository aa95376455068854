"""The loop over directions: each is made once, dotted with g if coefficients are wanted, and added to u if that is.

One program does all of `project`, `reconstruct`, `descend` and `directions`: what is wanted are arguments, so the bits
of `descend` are those of the other two, and XLA compiles once for a family and a size. Sizes are rounded up to a few,
see `bucket`: entries beyond the end meet zeros of g, count in no square, and are cut off u. d is an argument too.
Specification: docs/specification.md, sections 5 to 7. Tests: tests/test_jax_backend.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rbd_jax import families
from rbd_jax.families import FamilyParameters, add_multiple, dot
from rbd_jax.rounding import Array, product, stored, tree_sum, zeros

CHUNK = 64  # directions of one call
SMALL = (256, 1024, 4096)  # buckets; above there are eight from one power of two to the next
LEAST_COEFFICIENT = 2.0**-64
PAIRS = ("normal", "uniform")
DENSE = {"normal": families.normal, "uniform": families.uniform, "bits": families.bits}


class Wanted(NamedTuple):
    """Directions `first` .. `first` + `count` - 1, their coefficients if `measure`, their sum if `rebuild`; `divisor`
    is N, or 0 for each direction's own square; `size` is the number of elements or, of pairs, of floats."""

    first: Any
    count: Any
    size: Any
    divisor: Any
    measure: Any
    rebuild: Any


def bucket(n: int) -> int:
    """The least of a few sizes that is not below n: above the small ones at most 12.5 % more, and n if 2^m."""
    for size in SMALL:
        if n <= size:
            return size
    step = (1 << (n - 1).bit_length()) // 16
    return -(-n // step) * step


def flush(a: Array) -> Array:
    """+0 for what is below 2^-64 in magnitude."""
    return jnp.where(jnp.abs(a) < LEAST_COEFFICIENT, jnp.float32(0), a)


def square(phi: Array, size: Array, zero: Array) -> Array:
    """|phi|^2 of the first `size` floats."""
    if jnp.iscomplexobj(phi):
        j = 2 * jnp.arange(phi.size, dtype=jnp.uint32)
        phi = lax.complex(jnp.where(j < size, phi.real, 0), jnp.where(j + 1 < size, phi.imag, 0))
    else:
        phi = jnp.where(jnp.arange(phi.size, dtype=jnp.uint32) < size, phi, 0)
    return dot(phi, phi, zero)


def of_dense(
    kind: str, family: FamilyParameters, wanted: Wanted, i: Array, a: Array, g: Array, u: Array
) -> tuple[Array, Array]:
    """Coefficient and update of direction i, given `a` where none is to be measured."""
    blocks = g.size // families.BITS if kind == "bits" else g.size
    phi = stored(DENSE[kind](family, i, blocks))

    def own() -> Array:
        return square(phi, wanted.size, family.zero)

    def measured() -> Array:
        return dot(phi, g, family.zero) / lax.cond(wanted.divisor == 0, own, lambda: wanted.divisor)

    a = flush(lax.cond(wanted.measure, measured, lambda: a))
    return a, lax.cond(wanted.rebuild, lambda: add_multiple(a, phi, u, family.zero), lambda: u)


def of_sparse(
    blocks: int, family: FamilyParameters, wanted: Wanted, i: Array, a: Array, g: Array, u: Array
) -> tuple[Array, Array]:
    """As `of_dense`, touching only one element of each window."""
    place, sign = families.sparse(family, i, blocks)

    def measured() -> Array:
        found = g.at[place].get(mode="fill", fill_value=0)
        return tree_sum(product(found, sign, family.zero)) / wanted.divisor

    def rebuilt() -> Array:
        return u.at[place].add(product(a, sign, family.zero), mode="drop")

    a = flush(lax.cond(wanted.measure, measured, lambda: a))
    return a, lax.cond(wanted.rebuild, rebuilt, lambda: u)


@partial(jax.jit, static_argnums=(0, 1))
def sweep(
    kind: str, blocks: int, family: FamilyParameters, wanted: Wanted, g: Array, a: Array, u: Array
) -> tuple[Array, Array]:
    """(a, u) after all directions that are wanted, in order; `blocks` matters to `sparse` only."""

    def body(t: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        coefficients, update = state
        i = wanted.first + t.astype(jnp.uint32)
        if kind == "sparse":
            a_i, update = of_sparse(blocks, family, wanted, i, coefficients[t], g, update)
        else:
            a_i, update = of_dense(kind, family, wanted, i, coefficients[t], g, update)
        return coefficients.at[t].set(a_i), update

    found: tuple[Array, Array] = lax.fori_loop(0, wanted.count, body, (a, u))
    return found


def floats_of(x: Array) -> Array:
    """The floats of a vector of pairs, or the vector itself."""
    return jnp.stack([x.real, x.imag], axis=1).reshape(-1) if jnp.iscomplexobj(x) else x


def swept(kind: str, blocks: int, family: FamilyParameters, wanted: Wanted, g: Array, a: Array) -> tuple[Array, Array]:
    """`sweep` of a vector of floats, with an update that starts from +0."""
    nothing = zeros(g.size, family.zero)
    vector, update = ((lax.complex(x[0::2], x[1::2]) if kind in PAIRS else x) for x in (g, nothing))
    a, u = sweep(kind, blocks, family, wanted, vector, a, update)
    return a, floats_of(stored(u))


@jax.jit
def words(key: Array, counter: Array) -> Array:
    """Threefry of each column."""
    return jnp.stack(families.threefry(key, counter[0], counter[1]))


def on_device(x: Array) -> Array:
    """x where the programs run, so that every call finds it there."""
    return jax.device_put(x)
