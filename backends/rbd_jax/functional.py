"""The operations on a basis for arrays of JAX: `project`, `reconstruct`, `descend`, `directions`.

    a_i = <phi_i, g> / N_i                           u = sum_i a_i phi_i

A basis is named by a plan (`rbd_ref.compartments`), a seed, a step and a worker. The plan, the family and the
normalisation are static; seed, step and worker may be traced, and all may be called within `jax.jit`.

Compartments whose padded length is the same are one group, and a group is one loop: XLA compiles as many programs for
directions as there are lengths, whatever the number of compartments. The backend `jax` calls the same programs.
Specification: docs/specification.md, sections 5 to 7. Tests: tests/test_jax_functional.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rbd_jax.compartment import Compartment
from rbd_jax.families import FamilyParameters, Word, hidden_zero
from rbd_jax.hadamard import structured
from rbd_jax.keys import basis_keys, word, word_pair
from rbd_jax.rounding import Array, as_floats, as_words, zeros
from rbd_jax.sweep import Wanted, bucket, swept
from rbd_ref._check import integer, member, several
from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.families import Family, parse_family
from rbd_ref.spec.hadamard import padded
from rbd_ref.spec.operations import NORMALIZATIONS, Draw

MOST_ELEMENTS = 2**31  # JAX numbers elements by int32


class Place(NamedTuple):
    """Where a basis is: a pair of words for the seed, a word each for step and worker."""

    seed: Any
    step: Any
    worker: Any


class Group(NamedTuple):
    """Compartments of one padded `length`, and what they differ in as arrays: an entry for each."""

    length: int
    blocks: int
    most: int
    number: Any
    start: Any
    first: Any
    size: Any
    d: Any
    divisor: Any
    clear: Any
    set_: Any
    windows: Any
    shortest: Any
    longer: Any


class Wish(NamedTuple):
    """What is wanted of a basis: static."""

    plan: Plan
    family: Family
    normalize: str
    measure: bool
    rebuild: bool


def padded_length(part: Compartment) -> int:
    """The length of the vectors that a compartment's program takes."""
    return bucket(padded(part.size) if part.kind == "srht" else part.size)


def group_of(parts: Sequence[Compartment]) -> Group:
    """Compartments of one length as one group."""
    plan = parts[0].draw.plan
    fields = [part.parameters for part in parts]
    blocks = max(bucket(part.windows) // 2 for part in parts) if parts[0].kind == "sparse" else 0
    numbers = np.array([part.k for part in parts], dtype=np.int32)
    return Group(
        padded_length(parts[0]),
        blocks,
        max(part.d for part in parts),
        numbers,
        plan.layout.bounds[numbers].astype(np.int32),
        plan.layout.offsets[numbers].astype(np.int32),
        np.array([part.size for part in parts], dtype=np.uint32),
        np.array([part.d for part in parts], dtype=np.int32),
        np.array([part.divisor for part in parts]),
        *(np.array([each[name] for each in fields]) for name in ("clear", "set_", "windows", "length", "longer")),
    )


@lru_cache(maxsize=64)
def groups(plan: Plan, family: Family, normalize: str) -> tuple[Group, ...]:
    """All compartments, the groups in the order in which their first compartments are."""
    draw = Draw(plan, family, normalize, 0, 0, 0)
    found: dict[int, list[Compartment]] = {}
    for k in range(plan.K):
        part = Compartment(draw, k)
        found.setdefault(padded_length(part), []).append(part)
    return tuple(group_of(parts) for parts in found.values())


def one_of(group: Group, t: Array) -> Group:
    """A group's compartment t, with a number in place of each array."""
    return Group(*group[:3], *(jnp.asarray(values)[t] for values in group[3:]))


def parameters(part: Group, keys: Array, zero: Array) -> FamilyParameters:
    """What the entries of one compartment depend on."""
    windows = (part.windows, part.shortest, part.longer)
    return FamilyParameters(keys[:, part.number], zero, part.clear, part.set_, *windows)


def work(wish: Wish, part: Group, family: FamilyParameters, first: Array, g: Array, a: Array) -> tuple[Array, Array]:
    """Coefficients and update of one compartment from direction `first` on, as many as `a` has or the compartment."""
    # XLA would divide by a number that it knows by multiplying with its reciprocal, which has other bits.
    divisor = as_floats(as_words(part.divisor) ^ family.zero)
    wanted = Wanted(first, part.d, part.size, divisor, np.bool_(wish.measure), np.bool_(wish.rebuild))
    if wish.family.name == "srht":
        return structured(wish.measure, wish.rebuild, family, wanted, g, a)
    return swept(Compartment.kind_of(wish.family), part.blocks, family, wanted, g, a)


def cut(x: Array, start: Array, length: int, n: Array) -> Array:
    """`length` numbers of x from `start` on, with zeros after the first n."""
    found = lax.dynamic_slice(x, (start,), (length,))
    return jnp.where(jnp.arange(length) < n, found, jnp.float32(0))


def paste(x: Array, part: Array, start: Array, n: Array) -> Array:
    """x with the first n numbers of `part` from `start` on."""
    there = lax.dynamic_slice(x, (start,), (part.size,))
    return lax.dynamic_update_slice(x, jnp.where(jnp.arange(part.size) < n, part, there), (start,))


def run_group(wish: Wish, group: Group, keys: Array, zero: Array, vectors: tuple[Array, Array, Array]) -> Any:
    """All compartments of a group, one after the other: (a, u) of padded (g, a, u)."""
    g, a, u = vectors

    def body(t: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        part = one_of(group, t)
        family = parameters(part, keys, zero)
        mine = cut(g, part.start, group.length, part.size)
        given = cut(state[0], part.first, group.most, part.d)
        coefficients, update = work(wish, part, family, Word(0), mine, given)
        return (
            paste(state[0], coefficients, part.first, part.d),
            paste(state[1], update, part.start, part.size) if wish.rebuild else state[1],
        )

    return lax.fori_loop(0, group.number.size, body, (a, u))


def longer(x: Array, length: int) -> Array:
    """x with zeros behind it."""
    return jnp.pad(x, (0, length - x.size))


@partial(jax.jit, static_argnums=0)
def run(wish: Wish, place: Place, x: Array) -> tuple[Array, Array]:
    """(a, u) of a gradient or, where nothing is to be measured, of coefficients."""
    plan = wish.plan
    parts = groups(plan, wish.family, wish.normalize)
    zero = hidden_zero(x)
    keys = basis_keys(*place, plan.K)
    size = max(int(group.start.max()) + group.length for group in parts)
    number = max(int(group.first.max()) + group.most for group in parts)
    g = longer(x, size) if wish.measure else zeros(size, zero)
    a = zeros(number, zero) if wish.measure else longer(x, number)
    u = zeros(size if wish.rebuild else 0, zero)
    for group in parts:
        a, u = run_group(wish, group, keys, zero, (g, a, u))
    return a[: plan.d], u[: plan.D]


@partial(jax.jit, static_argnums=(0, 1))
def one_direction(wish: Wish, number: int, t: Array, i: Array, place: Place, one: Array) -> Array:
    """phi_i of compartment t of a group, over its padded length; `one` has the number 1."""
    group = groups(wish.plan, wish.family, wish.normalize)[number]
    part = one_of(group, t)
    family = parameters(part, basis_keys(*place, wish.plan.K), hidden_zero(one))
    nothing = zeros(group.length, family.zero)
    if wish.family.name == "srht":
        unit = jnp.where(jnp.arange(group.most) == i, one[0], jnp.float32(0))
        return work(wish, part, family, Word(0), nothing, unit)[1]
    return work(wish, part._replace(d=jnp.int32(1)), family, i.astype(jnp.uint32), nothing, one)[1]


def make_wish(plan: Plan, family: str, normalize: str, measure: bool, rebuild: bool) -> Wish:
    """What is wanted, or one sentence of what is wrong with it."""
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is {type(plan).__name__}, expected a Plan: make one with rbd_ref.compartments")
    if plan.D >= MOST_ELEMENTS:
        raise ValueError(f"the plan has D = {plan.D}, expected fewer than 2^31 elements in one array of JAX: divide it")
    return Wish(plan, parse_family(family), member("normalize", normalize, NORMALIZATIONS), measure, rebuild)


def make_place(seed: Any, step: Any, worker: Any) -> Place:
    """Where the basis is, or one sentence of what is wrong with that."""
    return Place(word_pair("seed", seed), word("step", step), word("worker", worker))


def as_vector(name: str, value: Any, length: int) -> Array:
    """`value` as a float32 vector of this length."""
    array = jnp.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name} has dtype {array.dtype}, expected a floating type: convert it with astype")
    if array.shape != (length,):
        raise ValueError(f"{name} has shape {array.shape}, expected ({length},): flatten it or change the plan")
    return array.astype(jnp.float32)


def project(
    plan: Plan, g: Any, seed: Any, step: Any, worker: Any = 0, family: str = "normal", normalize: str = "unit"
) -> Array:
    """a_i = <phi_i, g> / N_i: the coefficients of a gradient, which are all that is sent.

    Args:
        plan: sizes and numbers of directions of the compartments, static; make one with `rbd_ref.compartments`.
        g: the gradient, plan.D finite floats; other float types are rounded to float32.
        seed: 0 <= seed < 2^64, or an array: an integer, or two words of uint32, the high one first.
        step: the step whose basis is used, or an array.
        worker: the worker whose basis is used, or an array.
        family: the law of the entries, as `rbd_ref.Basis` takes it.
        normalize: the divisor N_i, as `rbd_ref.Basis` takes it.

    Returns:
        float32 of length plan.d, not finite where an inner product overflows.

    Raises:
        ValueError, TypeError: one sentence of what is wrong, what was expected and what to do.

    Examples:
        >>> import jax, jax.numpy as jnp, rbd_ref, rbd_jax
        >>> plan = rbd_ref.compartments.whole(4, d=4)
        >>> at = jax.jit(lambda g, step: rbd_jax.project(plan, g, 0, step, family="srht"))
        >>> at(jnp.array([1.0, 2.0, 3.0, 4.0]), 0)
        Array([-1. ,  2. , -0.5, -1.5], dtype=float32)
    """
    wish = make_wish(plan, family, normalize, measure=True, rebuild=False)
    return run(wish, make_place(seed, step, worker), as_vector("g", g, plan.D))[0]


def reconstruct(
    plan: Plan, a: Any, seed: Any, step: Any, worker: Any = 0, family: str = "normal", normalize: str = "unit"
) -> Array:
    """u = sum_i a_i phi_i: the update of the coefficients, the same bits on every device and in every program.

    Args:
        plan: sizes and numbers of directions of the compartments, static.
        a: plan.d finite coefficients; those below 2^-64 in magnitude count as 0.
        seed: 0 <= seed < 2^64, or an array.
        step: the step whose basis is used, or an array.
        worker: the worker whose basis is used, or an array.
        family: the law of the entries, as `rbd_ref.Basis` takes it.
        normalize: has no effect here, and is checked.

    Returns:
        float32 of length plan.D.

    Examples:
        >>> import jax.numpy as jnp, rbd_ref, rbd_jax
        >>> plan = rbd_ref.compartments.whole(6, d=2)
        >>> rbd_jax.reconstruct(plan, jnp.array([1.0, 0.5]), seed=0, step=0, family="rademacher")
        Array([-0.5, -0.5,  0.5, -0.5,  0.5, -1.5], dtype=float32)
    """
    wish = make_wish(plan, family, normalize, measure=False, rebuild=True)
    return run(wish, make_place(seed, step, worker), as_vector("a", a, plan.d))[1]


def descend(
    plan: Plan, g: Any, seed: Any, step: Any, worker: Any = 0, family: str = "normal", normalize: str = "unit"
) -> tuple[Array, Array]:
    """a = project(g) and u = reconstruct(a), where each direction is generated only once.

    Args:
        plan: sizes and numbers of directions of the compartments, static.
        g: the gradient, plan.D finite floats.
        seed: 0 <= seed < 2^64, or an array.
        step: the step whose basis is used, or an array.
        worker: the worker whose basis is used, or an array.
        family: the law of the entries, as `rbd_ref.Basis` takes it.
        normalize: the divisor N_i, as `rbd_ref.Basis` takes it.

    Returns:
        a, float32 of length plan.d, and u, float32 of length plan.D.

    Examples:
        >>> import jax.numpy as jnp, rbd_ref, rbd_jax
        >>> plan = rbd_ref.compartments.whole(100, d=9)
        >>> a, u = rbd_jax.descend(plan, jnp.ones(100), seed=0, step=0)
        >>> bool((u == rbd_jax.reconstruct(plan, a, seed=0, step=0)).all())
        True
    """
    wish = make_wish(plan, family, normalize, measure=True, rebuild=True)
    found: tuple[Array, Array] = run(wish, make_place(seed, step, worker), as_vector("g", g, plan.D))
    return found


def directions(
    plan: Plan, indices: Sequence[int], seed: Any, step: Any, worker: Any = 0, family: str = "normal"
) -> Array:
    """phi_i of some directions, as `reconstruct` uses them; meant for a few, as each takes plan.D floats.

    Args:
        plan: sizes and numbers of directions of the compartments, static.
        indices: numbers of directions, 0 <= index < plan.d, in any order; static.
        seed: 0 <= seed < 2^64, or an array.
        step: the step whose basis is used, or an array.
        worker: the worker whose basis is used, or an array.
        family: the law of the entries, as `rbd_ref.Basis` takes it.

    Returns:
        float32 of shape (len(indices), plan.D), zero outside each direction's compartment, not normalised.

    Examples:
        >>> import rbd_ref, rbd_jax
        >>> plan = rbd_ref.compartments.even(6, k=2, d=1)
        >>> rbd_jax.directions(plan, [1, 0], seed=0, step=0, family="rademacher")
        Array([[ 0.,  0.,  0., -1., -1.,  1.],
               [-1., -1.,  1.,  0.,  0.,  0.]], dtype=float32)
    """
    wish = make_wish(plan, family, "none", measure=False, rebuild=True)
    numbers = [integer("a direction's index", index, 0, plan.d) for index in several("indices", indices)]
    place = make_place(seed, step, worker)
    rows = [_row(wish, index, place) for index in numbers]
    return jnp.stack(rows) if rows else jnp.zeros((0, plan.D), jnp.float32)


def _row(wish: Wish, index: int, place: Place) -> Array:
    """One direction over all elements."""
    k, i = wish.plan.locate(index)
    parts = groups(wish.plan, wish.family, wish.normalize)
    number = next(n for n, group in enumerate(parts) if k in group.number)
    t = int(np.searchsorted(parts[number].number, k))
    phi = one_direction(wish, number, t, i, place, jnp.ones(1, jnp.float32))
    here = wish.plan.elements(k)
    return jnp.zeros(wish.plan.D, jnp.float32).at[here].set(phi[: here.stop - here.start])
