"""Random bases descent for optax: `scale_by_random_bases`, for any optimizer after it, and the optimizer `rbd`.

    a = project(g),  u = reconstruct(a)              g: all gradients of the pytree as one vector of float32

A step of the transformation replaces gradients by their part in a random subspace. Bases are redrawn within the
compiled program, from the step that the state counts. With `axis_name`, devices exchange coefficients and nothing else.
Specification: docs/specification.md, sections 11 and 11.3. Tests: tests/test_jax_optax.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from rbd_jax.families import hidden_zero
from rbd_jax.functional import descend, project, reconstruct
from rbd_jax.gathering import all_gather, axis_size, in_order
from rbd_jax.keys import is_array, word_pair
from rbd_jax.rounding import Array, product
from rbd_jax.sweep import flush
from rbd_ref._check import integer, member, number
from rbd_ref._types import TWO_32
from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.families import parse_family
from rbd_ref.spec.operations import NORMALIZATIONS
from rbd_ref.spec.plan_names import Cut, Dims, parse_cut, parse_dims, plan_of_tensors

EXCHANGES = ("shared", "independent")
COMBINATIONS = ("mean", "sum")
Rate = float | Array | Callable[[Array], Any]


class RandomBasesState(NamedTuple):
    """What is kept from step to step: the number of the step, and with `memory` the running average of gradients.

    The memory is a tree like the parameters', always of float32, and a device's own; without it, None."""

    step: Any
    memory: Any


def checked_dims(dims: Any) -> Dims:
    """How many directions, known when the program is compiled."""
    if is_array(dims):
        raise TypeError(
            "dims is an array of JAX, expected a number that is known when the program is compiled: with "
            "optax.inject_hyperparams, pass static_args=('dims',)"
        )
    return parse_dims(dims)


make_plan = lru_cache(maxsize=64)(plan_of_tensors)  # tensors of these sizes, none of them 0


@dataclass(frozen=True)
class Settings:
    """The arguments of `scale_by_random_bases`, checked."""

    dims: Dims
    family: str
    compartments: Cut
    normalize: str
    memory: Any
    seed: Any
    redraw: Any
    axis_name: Any
    exchange: str
    combine: str

    def plan(self, leaves: Sequence[Array]) -> Plan:
        """The plan of tensors, of which empty ones have no compartment."""
        return make_plan(tuple(leaf.size for leaf in leaves if leaf.size), self.dims, self.compartments)


def checked_memory(memory: Any) -> Any:
    """beta, or None where nothing is kept."""
    if memory is None or is_array(memory):
        return memory
    beta = number("memory", memory)
    if not 0 <= beta < 1:
        raise ValueError(f"memory is {memory}, expected a number from 0, which keeps nothing, up to 1, 1 excluded")
    return beta or None


def checked_rate(learning_rate: Any) -> Rate:
    """A rate that is a number, an array of JAX or a schedule."""
    if callable(learning_rate) or is_array(learning_rate):
        found: Rate = learning_rate
        return found
    eta = number("learning_rate", learning_rate)
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(eta)):
            raise ValueError(f"learning_rate is {eta}, expected one that a float32 can hold: choose another")
    return eta


def checked_settings(given: dict[str, Any]) -> Settings:
    """Settings from arguments by name; mistakes show here and not at the first step."""
    redraw = given["redraw"]
    settings = Settings(
        **{
            **given,
            "dims": checked_dims(given["dims"]),
            "compartments": parse_cut(given["compartments"]),
            "family": str(parse_family(given["family"])),
            "normalize": member("normalize", given["normalize"], NORMALIZATIONS),
            "memory": checked_memory(given["memory"]),
            "redraw": redraw if is_array(redraw) else integer("redraw", redraw, 1, TWO_32),
            "exchange": member("exchange", given["exchange"], EXCHANGES),
            "combine": member("combine", given["combine"], COMBINATIONS),
        }
    )
    word_pair("seed", settings.seed)
    return settings


def flatten(leaves: Sequence[Array]) -> Array:
    """All numbers of the tensors one after the other, as float32."""
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"a gradient has dtype {leaf.dtype}, expected floats: leave such parameters out with optax.masked"
            )
    return jnp.concatenate([leaf.astype(jnp.float32).reshape(-1) for leaf in leaves])


def unflatten(x: Array, leaves: Sequence[Array], dtype: Any = None) -> list[Array]:
    """The vector as tensors with the shapes of these, and with their types if none is given."""
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = jnp.split(x, ends[:-1])
    return [part.reshape(leaf.shape).astype(dtype or leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)]


def remember(beta: Any, memory: Array, g: Array) -> Array:
    """m <- (b * m) + (c * g) with b = float(beta) and c = float(1 - b); +0 for what is below 2^-64 in magnitude."""
    zero = hidden_zero(g)
    b = jnp.asarray(beta, jnp.float32)
    return flush(product(b, memory, zero) + product(jnp.float32(1) - b, g, zero))


def update_of(settings: Settings, plan: Plan, g: Array, step: Array) -> Array:
    """u of the coefficients of all workers, who are one without `axis_name`."""
    name = settings.axis_name
    options = (settings.family, settings.normalize)
    if name is None:
        return descend(plan, g, settings.seed, step, 0, *options)[1]
    if settings.exchange == "shared":
        gathered = all_gather(project(plan, g, settings.seed, step, 0, *options), name)
        return reconstruct(plan, in_order(gathered), settings.seed, step, 0, *options)
    gathered = all_gather(project(plan, g, settings.seed, step, lax.axis_index(name), *options), name)

    def add(worker: Array, u: Array) -> Array:
        return u + reconstruct(plan, gathered[worker], settings.seed, step, worker, *options)

    return lax.fori_loop(0, gathered.shape[0], add, jnp.zeros(plan.D, jnp.float32))


def rate_at(settings: Settings, learning_rate: Rate | None, step: Array) -> Array | None:
    """What the update is multiplied with, as one float32: -eta, divided by the number of workers for the mean."""
    mean = settings.axis_name is not None and settings.combine == "mean"
    workers = axis_size(settings.axis_name) if mean else 1
    if learning_rate is None:
        return None if workers == 1 else jnp.float32(1 / workers)
    eta: Any = learning_rate(step) if callable(learning_rate) else learning_rate
    if is_array(eta):
        return -(eta.astype(jnp.float32) / jnp.float32(workers))
    return jnp.float32(-(eta / workers))


def transformation(settings: Settings, learning_rate: Rate | None) -> optax.GradientTransformationExtraArgs:
    """The transformation of these settings; with a rate it is a whole optimizer."""

    def init(params: Any) -> RandomBasesState:
        kept = None
        if settings.memory is not None:
            kept = jax.tree.map(lambda leaf: jnp.zeros_like(leaf, dtype=jnp.float32), params)
        return RandomBasesState(jnp.zeros((), jnp.int32), kept)

    def update(updates: Any, state: RandomBasesState, params: Any = None, **extra: Any) -> Any:
        del params, extra
        leaves, tree = jax.tree.flatten(updates)
        after = optax.safe_increment(state.step)
        if not sum(leaf.size for leaf in leaves):
            return updates, RandomBasesState(after, state.memory)
        g = flatten(leaves)
        kept = state.memory
        if settings.memory is not None:
            g = remember(settings.memory, flatten(jax.tree.leaves(kept)), g)
            kept = jax.tree.unflatten(tree, unflatten(g, leaves, jnp.float32))
        u = update_of(settings, settings.plan(leaves), g, state.step // settings.redraw)
        rate = rate_at(settings, learning_rate, state.step)
        if rate is not None:
            u = product(rate, u, hidden_zero(u))  # rounded once, whatever it is added to
        return jax.tree.unflatten(tree, unflatten(u, leaves)), RandomBasesState(after, kept)

    return optax.GradientTransformationExtraArgs(init, update)


def scale_by_random_bases(
    dims: int | str = 250,
    *,
    family: str = "srht",
    compartments: str = "whole",
    normalize: str = "unit",
    memory: float | Array | None = None,
    seed: int | Array = 0,
    redraw: int | Array = 1,
    axis_name: Any = None,
    exchange: str = "shared",
    combine: str = "mean",
) -> optax.GradientTransformationExtraArgs:
    """Gradients become their part along d random directions, which are redrawn at every step: u = sum_i a_i phi_i.

    Put any optimizer after it with `optax.chain`. The gradients of all leaves form one vector of float32; the update is
    cast to each gradient's type at the very end.

    Args:
        dims: directions in all, split over compartments by size, or `each:N`; clipped to what there is room for.
        family: the law of the entries, as `rbd_ref.Basis` takes it.
        compartments: `whole`, `tensor` (one for each leaf), `even:K`, or `proportional:R`, where a leaf of n elements
            has n / R directions.
        normalize: the divisor of a coefficient, as `rbd_ref.Basis` takes it.
        memory: beta of the running average m <- beta m + (1 - beta) g that is projected in place of g; None for none.
        seed: 0 <= seed < 2^64, or an array of JAX.
        redraw: steps that share a basis.
        axis_name: within `shard_map` or `pmap`, the axis over whose devices coefficients are exchanged.
        exchange: `shared`, one basis and the sum of all coefficients, or `independent`, a basis for each device.
        combine: `mean` or `sum` of the devices' updates.

    Returns:
        An `optax.GradientTransformationExtraArgs` with a `RandomBasesState`.

    Raises:
        ValueError, TypeError: one sentence of what is wrong, what was expected and what to do.

    Examples:
        >>> import jax, jax.numpy as jnp, optax, rbd_jax
        >>> tx = optax.chain(rbd_jax.scale_by_random_bases(dims=4, family="rademacher", seed=0), optax.sgd(1.0))
        >>> params = {"w": jnp.ones((3, 4)), "b": jnp.ones(2)}
        >>> state = tx.init(params)
        >>> updates, state = jax.jit(tx.update)(params, state)    # the gradient of |params|^2 / 2
        >>> bool(optax.tree.norm(optax.apply_updates(params, updates)) < optax.tree.norm(params))
        True
    """
    return transformation(checked_settings(dict(locals())), None)


def rbd(
    learning_rate: Rate,
    dims: int | str = 250,
    *,
    family: str = "srht",
    compartments: str = "whole",
    normalize: str = "unit",
    memory: float | Array | None = None,
    seed: int | Array = 0,
    redraw: int | Array = 1,
    axis_name: Any = None,
    exchange: str = "shared",
    combine: str = "mean",
) -> optax.GradientTransformationExtraArgs:
    """Random bases descent: theta <- theta - eta u, with the bits of `rbd_ref` for the same coefficients.

    As `scale_by_random_bases` followed by the learning rate, but the product eta u is rounded once in float32, also
    where XLA would fuse it with the sum that `optax.apply_updates` takes.

    Args:
        learning_rate: eta, a number, an array of JAX, or a schedule, which is a function of the step.
        dims: as for `scale_by_random_bases`.
        family: as there.
        compartments: as there.
        normalize: as there.
        memory: as there; 0.99 with a rate of some 64 is a good beginning (docs/memory.md).
        seed: as there.
        redraw: as there.
        axis_name: as there.
        exchange: as there.
        combine: as there; the rate is divided by the number of devices for the mean.

    Returns:
        An `optax.GradientTransformationExtraArgs` with a `RandomBasesState`.

    Examples:
        >>> import jax, jax.numpy as jnp, optax, rbd_jax
        >>> tx = rbd_jax.rbd(0.5, dims=16, compartments="tensor")
        >>> params = {"w": jnp.ones((8, 8)), "b": jnp.ones(8)}
        >>> state = tx.init(params)
        >>> for _ in range(100):
        ...     updates, state = tx.update(params, state)
        ...     params = optax.apply_updates(params, updates)
        >>> bool(optax.tree.norm(params) < 0.01)
        True
    """
    given = dict(locals())
    del given["learning_rate"]
    return transformation(checked_settings(given), checked_rate(learning_rate))
