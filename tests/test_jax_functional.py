"""The operations on arrays of JAX: the reference's bits, within programs and with traced seeds, steps and workers."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rbd_jax
from rbd_jax import functional
from rbd_jax.backend import JaxBackend
from rbd_jax.keys import word_pair
from rbd_ref import compartments, random
from rbd_ref.conformance.cases import draw_at, pseudo_random
from rbd_ref.conformance.operations import bound
from rbd_ref.kernels.backend import NumbaBackend
from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.families import FAMILIES
from rbd_ref.spec.operations import Draw, directions, exact_project
from tools import bits

pytestmark = pytest.mark.compiled
REFERENCE = NumbaBackend()
SEED, STEP, WORKER = 2**40 + 7, 3, 5
MIXED = compartments.explicit(5_350, [(0, 1, 1), (1, 250, 3), (250, 251, 1), (251, 350, 70), (350, 5_350, 5)])


def draw_of(plan: Plan, family: str, normalize: str = "unit") -> Draw:
    return draw_at(plan, family, normalize, SEED, STEP, WORKER)


def same(mine: object, theirs: np.ndarray) -> None:
    assert np.array_equal(bits(np.asarray(mine)), bits(theirs))


@pytest.mark.parametrize("family", [*FAMILIES, "sparse:7"])
def test_bits_are_the_references(family: str) -> None:
    """Compartments of four sizes and two padded lengths, from one element to more than a tile."""
    g = pseudo_random(1, MIXED.D)
    draw = draw_of(MIXED, family)
    a, u = rbd_jax.descend(MIXED, g, SEED, STEP, WORKER, family)
    same(u, REFERENCE.reconstruct(draw, np.asarray(a)))
    same(JaxBackend().project(draw, g), np.asarray(a))
    error = np.abs(np.asarray(a, dtype=np.float64) - exact_project(draw, g))
    assert np.all(error <= bound(draw, directions(draw).astype(np.float64), g))


@pytest.mark.parametrize("family", ["normal", "sparse", "srht"])
def test_descend_is_project_and_reconstruct(family: str) -> None:
    plan = compartments.even(501, k=2, d=6)
    g = pseudo_random(1, plan.D)
    a, u = rbd_jax.descend(plan, g, SEED, STEP, WORKER, family)
    same(rbd_jax.project(plan, g, SEED, STEP, WORKER, family), np.asarray(a))
    same(rbd_jax.reconstruct(plan, a, SEED, STEP, WORKER, family), np.asarray(u))


@pytest.mark.parametrize("family", FAMILIES)
def test_directions_are_the_references(family: str) -> None:
    indices = [MIXED.d - 1, 0, 4, 40]
    rows = rbd_jax.directions(MIXED, indices, SEED, STEP, WORKER, family)
    same(rows, REFERENCE.directions(draw_of(MIXED, family), indices))
    assert rbd_jax.directions(MIXED, [], SEED, STEP, WORKER, family).shape == (0, MIXED.D)


@pytest.mark.parametrize("normalize", ["expected", "none", "graphcore"])
def test_normalisations(normalize: str) -> None:
    plan = compartments.even(101, k=4, d=3)
    g = pseudo_random(1, plan.D)
    a = rbd_jax.project(plan, g, SEED, STEP, WORKER, "uniform", normalize)
    expected = JaxBackend().project(draw_of(plan, "uniform", normalize), g)
    same(a, expected)
    np.testing.assert_allclose(a, REFERENCE.project(draw_of(plan, "uniform", normalize), g), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["normal", "srht"])
def test_traced_seed_step_and_worker(family: str) -> None:
    """One program for all of them, and the bits of those that are known when it is compiled."""
    plan = compartments.whole(200, d=6)
    g = pseudo_random(1, plan.D)
    traced = jax.jit(lambda g, seed, step, worker: rbd_jax.descend(plan, g, seed, step, worker, family))
    for seed, step, worker in ((SEED, STEP, WORKER), (2**64 - 1, 2**32 - 1, 0)):
        words = (jnp.asarray(word_pair("seed", seed)), jnp.uint32(step), jnp.uint32(worker))
        a, u = traced(g, *words)
        same(u, REFERENCE.reconstruct(draw_at(plan, family, "unit", seed, step, worker), np.asarray(a)))
        known = rbd_jax.descend(plan, g, seed, step, worker, family)
        same(a, np.asarray(known[0]))
    assert traced._cache_size() == 1


@pytest.mark.parametrize("family", ["normal", "sparse", "srht"])
def test_programs_where_everything_is_known(family: str) -> None:
    """XLA knows the basis, and in the second program the coefficients too: it must not fuse products with sums."""
    plan = compartments.whole(1_000, d=6)
    a = pseudo_random(2, plan.d)
    expected = REFERENCE.reconstruct(draw_of(plan, family), a)
    same(jax.jit(lambda a: rbd_jax.reconstruct(plan, a, SEED, STEP, WORKER, family))(a), expected)
    same(jax.jit(lambda: rbd_jax.reconstruct(plan, jnp.asarray(a), SEED, STEP, WORKER, family))(), expected)


def test_integers_of_64_bits_may_be_traced_where_jax_has_them() -> None:
    """And nothing becomes float64 on the way."""
    seed = (5 << 40) + 77
    plan = compartments.whole(50, d=4)
    a = np.array([1, 0.5, 2, -1], dtype=np.float32)
    with jax.enable_x64(True):
        u = jax.jit(lambda traced: rbd_jax.reconstruct(plan, a, traced, 3))(jnp.asarray(seed, jnp.uint64))
        drawn = jax.jit(lambda traced: rbd_jax.randn(9, traced))(jnp.asarray(seed, jnp.uint64))
    assert u.dtype == drawn.dtype == jnp.float32
    same(u, REFERENCE.reconstruct(draw_at(plan, "normal", "unit", seed, 3, 0), a))
    same(drawn, random.normal(9, seed))


def test_an_update_is_not_fused_with_what_follows() -> None:
    """theta - u in the same program, u the sum of one product: a fused one would have other bits."""
    plan = compartments.whole(20_000, d=1)
    a = pseudo_random(2, 1)
    theta = pseudo_random(3, plan.D)
    apply = jax.jit(lambda theta, a: theta - rbd_jax.reconstruct(plan, a, SEED, STEP, WORKER))
    same(apply(theta, a), theta - REFERENCE.reconstruct(draw_of(plan, "normal"), a))


def test_many_compartments_are_one_loop() -> None:
    plan = compartments.even(3_000, k=600, d=1)
    assert len(functional.groups(plan, draw_of(plan, "normal").family, "unit")) == 1
    g = pseudo_random(1, plan.D)
    a, u = rbd_jax.descend(plan, g, SEED, STEP, WORKER)
    same(u, REFERENCE.reconstruct(draw_of(plan, "normal"), np.asarray(a)))


def test_a_change_of_seed_or_step_compiles_nothing() -> None:
    plan = compartments.whole(300, d=2)
    rbd_jax.descend(plan, jnp.ones(300), 0, 0)
    before = functional.run._cache_size()
    for seed, step, worker in ((1, 2, 3), (2**63, 0, 1)):
        rbd_jax.descend(plan, jnp.ones(300), seed, step, worker)
    assert functional.run._cache_size() == before


def test_maps_over_workers() -> None:
    """What `vmap` makes of it: the bases of three workers side by side."""
    plan = compartments.whole(300, d=4)
    a = pseudo_random(2, 12).reshape(3, 4)
    updates = jax.vmap(lambda a, worker: rbd_jax.reconstruct(plan, a, 7, 1, worker))(a, jnp.arange(3))
    for worker in range(3):
        same(updates[worker], REFERENCE.reconstruct(draw_at(plan, "normal", "unit", 7, 1, worker), a[worker]))


def test_other_float_types_are_rounded() -> None:
    plan = compartments.whole(64, d=4)
    g = pseudo_random(1, 64)
    narrow = jnp.asarray(g, jnp.bfloat16)
    same(rbd_jax.project(plan, narrow, 0, 0), np.asarray(rbd_jax.project(plan, narrow.astype(jnp.float32), 0, 0)))


def test_small_coefficients_count_as_zero() -> None:
    plan = compartments.whole(70, d=3)
    a = np.array([2.0**-65, -1e-40, 2.0**-64], dtype=np.float32)
    for family in ("normal", "srht"):
        same(rbd_jax.reconstruct(plan, a, SEED, STEP, WORKER, family), REFERENCE.reconstruct(draw_of(plan, family), a))


PLAN = compartments.whole(10, d=2)
ONES = np.ones(10, dtype=np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rbd_jax.project(PLAN, np.ones(9, np.float32), 0, 0), r"g has shape \(9,\), expected \(10,\)"),
        (lambda: rbd_jax.project(PLAN, np.ones(10, np.int32), 0, 0), "g has dtype int32, expected a floating type"),
        (lambda: rbd_jax.reconstruct(PLAN, ONES, 0, 0), r"a has shape \(10,\), expected \(2,\)"),
        (lambda: rbd_jax.project("whole", ONES, 0, 0), "plan is str, expected a Plan"),
        (lambda: rbd_jax.project(PLAN, ONES, -1, 0), "seed is -1, expected 0 <= seed"),
        (lambda: rbd_jax.project(PLAN, ONES, 0, 2**32), "step is 4294967296, expected 0 <= step"),
        (lambda: rbd_jax.project(PLAN, ONES, 0, jnp.float32(1)), "step is an array of float32, expected integers"),
        (lambda: rbd_jax.project(PLAN, ONES, 0, jnp.zeros(2, jnp.uint32)), r"step has shape \(2,\) .* one integer: "),
        (lambda: rbd_jax.project(PLAN, ONES, 0, 0, family="gauss"), "gauss.*expected one of"),
        (lambda: rbd_jax.project(PLAN, ONES, 0, 0, normalize="l2"), "normalize 'l2' is unknown, expected one of"),
        (lambda: rbd_jax.directions(PLAN, [2], 0, 0), "a direction's index is 2, expected"),
    ],
)
def test_mistakes_are_one_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_larger_plans_than_jax_can_number_are_refused() -> None:
    with pytest.raises(ValueError, match=r"D = 2147483648, expected fewer than 2\^31"):
        functional.make_wish(compartments.whole(2**31, d=1), "normal", "unit", True, True)
