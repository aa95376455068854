"""Random bases for optax: what optax asks of every transformation, and theta with the bits of the reference.

The first half asks what optax's tests of contributed optimizers ask: targets are reached, hyperparameters can be
injected, gradients accumulated, types and structure are kept, nothing is compiled twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rbd_jax
import rbd_ref
from rbd_jax.transform import Settings, checked_settings
from rbd_ref._types import Float32Array
from rbd_ref.spec.plan_names import parse_cut, parse_dims, plan_of_tensors
from tools import bits, run_python

pytestmark = pytest.mark.compiled
Tree = Any


def tree_of(dtype: Any = jnp.float32) -> Tree:
    return {"w": jnp.full((4, 5), 0.5, dtype), "b": [jnp.ones(3, dtype), jnp.ones((), dtype)]}


def train(tx: optax.GradientTransformationExtraArgs, params: Tree, loss: Callable[[Tree], Any], steps: int) -> Tree:
    """`steps` steps in one program."""

    def step(carry: tuple[Tree, Any], _: None) -> tuple[tuple[Tree, Any], None]:
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.jit(lambda carry: jax.lax.scan(step, carry, length=steps)[0])((params, tx.init(params)))[0]


def settings(**given: Any) -> Settings:
    usual = {"dims": 8, "family": "srht", "compartments": "whole", "normalize": "unit", "memory": None, "seed": 0}
    rest = {"redraw": 1, "axis_name": None, "exchange": "shared", "combine": "mean"}
    return checked_settings({**usual, **rest, **given})


# What optax asks of an optimizer.


def parabola(params: Tree) -> Any:
    return jnp.sum((params - jnp.array([1.0, -1.0, 1.0])) ** 2)


def rosenbrock(params: Tree) -> Any:
    return (1 - params[0]) ** 2 + 100 * (params[1] - params[0] ** 2) ** 2


def mixed(params: Tree) -> Any:
    return jnp.sum((params[0] - 2) ** 2) + jnp.sum((params[1] + 1) ** 2)


TARGETS = {
    "parabola": (parabola, jnp.array([-1.0, 10.0, 1.0]), jnp.array([1.0, -1.0, 1.0])),
    "rosenbrock": (rosenbrock, jnp.zeros(2), jnp.ones(2)),
    "mixed": (mixed, (jnp.zeros(3), jnp.zeros((2, 2))), (jnp.full(3, 2.0), jnp.full((2, 2), -1.0))),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "options",
    [{"dims": 250}, {"dims": "each:1", "compartments": "tensor", "family": "normal", "memory": 0.5}],
    ids=["all dimensions", "one of each tensor"],
)
def test_targets_are_reached(target: str, options: dict[str, Any]) -> None:
    """Tensors of two to four elements, to which the number of directions is clipped."""
    loss, first, last = TARGETS[target]
    found = train(rbd_jax.rbd(1e-3, **options), first, loss, 30_000)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(last), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=3e-2, atol=3e-2)


def test_unknown_arguments_are_accepted_and_nothing_is_compiled_twice() -> None:
    tx = rbd_jax.rbd(1e-2, dims=4, memory=0.9)

    @jax.jit
    def step(params: Tree, state: Any) -> Any:
        updates, state = tx.update(params, state, params, unexpected=1)
        return optax.apply_updates(params, updates), state

    params, state = step(tree_of(), tx.init(tree_of()))
    for _ in range(3):
        params, state = step(params, state)
    assert step._cache_size() == 1
    assert state.step == 4


def test_hyperparameters_can_be_injected() -> None:
    given = {"learning_rate": 0.1, "dims": 3, "memory": 0.9, "seed": 5, "redraw": 2}
    plain, injected = rbd_jax.rbd(**given), optax.inject_hyperparams(rbd_jax.rbd, static_args=("dims",))(**given)
    params = tree_of()
    expected, state = jax.jit(plain.update)(params, plain.init(params), params)
    found, inner = jax.jit(injected.update)(params, jax.jit(injected.init)(params), params)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    jax.tree.map(np.testing.assert_array_equal, inner.inner_state, state)
    assert inner.hyperparams["learning_rate"] == np.float32(0.1)


def test_injected_dims_are_refused_in_one_sentence() -> None:
    tx = optax.inject_hyperparams(rbd_jax.rbd)(learning_rate=0.1, dims=3)
    with pytest.raises(TypeError, match=r"dims is an array of JAX, expected .* static_args=\('dims',\)"):
        tx.init(tree_of())


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("make", [rbd_jax.scale_by_random_bases, lambda **given: rbd_jax.rbd(0.1, **given)])
def test_types_and_structure_are_kept(dtype: Any, make: Callable[..., Any]) -> None:
    tx = make(dims=3, memory=0.9)
    params = tree_of(dtype)
    state = jax.jit(tx.init)(params)
    updates, after = jax.jit(tx.update)(params, state, params)
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), updates) == jax.tree.map(lambda x: (x.shape, x.dtype), params)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert {leaf.dtype for leaf in jax.tree.leaves(after.memory)} == {jnp.dtype(jnp.float32)}


def test_doubles_are_kept() -> None:
    with jax.enable_x64(True):
        tx = rbd_jax.rbd(0.1, dims=3)
        params = tree_of(jnp.float64)
        updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        assert {leaf.dtype for leaf in jax.tree.leaves(updates)} == {jnp.dtype(jnp.float64)}
        assert state.step.dtype == jnp.int32


def test_mixed_types_in_one_tree() -> None:
    params = {"a": jnp.ones(5, jnp.bfloat16), "b": jnp.ones(5, jnp.float32), "empty": jnp.zeros((0, 3))}
    tx = rbd_jax.rbd(0.1, dims=4, compartments="tensor")
    updates, _ = tx.update(params, tx.init(params))
    assert [leaf.dtype for leaf in jax.tree.leaves(updates)] == [jnp.bfloat16, jnp.float32, jnp.float32]


def test_gradients_can_be_accumulated() -> None:
    """The basis advances with the optimizer's step, not with that of the accumulation."""
    params, tx = tree_of(), rbd_jax.rbd(0.1, dims=3)
    steps = optax.MultiSteps(tx, every_k_schedule=2)
    state, update = steps.init(params), jax.jit(steps.update)
    for number in range(4):
        updates, state = update(params, state, params)
        assert bool(optax.tree.norm(updates) == 0) == (number % 2 == 0)
    assert state.inner_opt_state.step == 2


def test_masked_parameters_stay_out() -> None:
    params = {"w": jnp.ones(8), "table": jnp.ones(8)}
    tx = optax.masked(rbd_jax.rbd(1.0, dims=8), {"w": True, "table": False})
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_array_equal(updates["table"], params["table"])
    alone = rbd_jax.rbd(1.0, dims=8)
    np.testing.assert_array_equal(updates["w"], alone.update({"w": params["w"]}, alone.init(params))[0]["w"])


def test_parameters_of_the_state_can_be_mapped() -> None:
    tx, params = rbd_jax.rbd(0.1, dims=3, memory=0.9), tree_of()
    state = optax.tree.map_params(tx, lambda leaf: leaf + 1, tx.init(params))
    assert state.step == 0
    assert all(bool((leaf == 1).all()) for leaf in jax.tree.leaves(state.memory))


def test_schedules_are_functions_of_the_step() -> None:
    params = tree_of()
    schedule = optax.linear_schedule(1.0, 0.0, 10)
    tx, plain = rbd_jax.rbd(schedule, dims=3), rbd_jax.scale_by_random_bases(dims=3)
    state, other = tx.init(params), plain.init(params)
    for step in range(3):
        scaled, state = tx.update(params, state)
        u, other = plain.update(params, other)
        jax.tree.map(lambda x, y, s=step: np.testing.assert_allclose(x, -schedule(s) * y, rtol=1e-6), scaled, u)


def test_any_optimizer_may_follow() -> None:
    tx = optax.chain(rbd_jax.scale_by_random_bases(dims=3, seed=1), optax.clip_by_global_norm(1.0), optax.adam(0.1))
    found = train(tx, jnp.array([-1.0, 10.0, 1.0]), parabola, 2_000)
    np.testing.assert_allclose(found, [1.0, -1.0, 1.0], atol=3e-2)


def test_no_parameters_at_all() -> None:
    tx = rbd_jax.rbd(0.1, memory=0.9)
    updates, state = tx.update({}, tx.init({}))
    assert updates == {}
    assert state.step == 1


# The reference's bits.


def flat(tree: Tree) -> Float32Array:
    return np.concatenate([np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(tree)])


def quadratic(params: Tree) -> Any:
    return sum(jnp.sum((leaf - 0.3) ** 2 * (1 + jnp.arange(leaf.size).reshape(leaf.shape))) for leaf in params.values())


@pytest.mark.parametrize(
    ("family", "compartments"), [("srht", "whole"), ("normal", "even:3"), ("sparse:7", "tensor"), ("uniform", "whole")]
)
def test_theta_has_the_bits_of_the_reference(family: str, compartments: str) -> None:
    """Ten steps whose sums with theta XLA could fuse with products, beside the reference, which is given the
    coefficients of the same gradients."""
    params = {"w": jnp.linspace(-1, 1, 300).reshape(20, 15), "b": jnp.linspace(0, 1, 33)}
    tx = rbd_jax.rbd(0.003, dims=12, family=family, compartments=compartments, seed=9, redraw=2)
    plan = plan_of_tensors((33, 300), parse_dims(12), parse_cut(compartments))
    basis = rbd_ref.Basis(plan, seed=9, family=family)

    gradient = jax.jit(jax.grad(quadratic))

    @jax.jit
    def step(params: Tree, grads: Tree, state: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    theta, state = flat(params), tx.init(params)
    for number in range(10):
        grads = gradient(params)
        a = rbd_jax.project(plan, flat(grads), 9, number // 2, 0, family)
        params, state = step(params, grads, state)
        theta = theta - np.float32(0.003) * basis.reconstruct(np.asarray(a), step=number // 2)
        assert np.array_equal(bits(flat(params)), bits(theta)), number


def test_memory_is_the_references() -> None:
    """m <- b m + c g, each operation rounded once, in a program that could fuse them."""
    params = {"w": jnp.linspace(-1, 1, 300)}
    tx = rbd_jax.rbd(0.01, dims=7, family="rademacher", memory=0.9)
    update = jax.jit(lambda params, state: tx.update(jax.grad(quadratic)(params), state, params))
    m, state = np.zeros(300, dtype=np.float32), tx.init(params)
    b = np.float32(0.9)
    for _ in range(4):
        g = np.asarray(jax.jit(jax.grad(quadratic))(params)["w"])
        updates, state = update(params, state)
        m = b * m + (np.float32(1) - b) * g
        np.testing.assert_allclose(state.memory["w"], m, rtol=1e-5, atol=1e-7)
        params = optax.apply_updates(params, updates)
    fused = jax.jit(lambda m, g: tx.update(g, rbd_jax.RandomBasesState(jnp.int32(0), m)))
    g = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    kept = fused({"w": g[::-1].copy()}, {"w": g})[1].memory["w"]
    assert np.array_equal(bits(np.asarray(kept)), bits(b * g[::-1] + (np.float32(1) - b) * g))


# Devices that exchange coefficients.


def per_device(options: dict[str, Any], grads: Float32Array, rate: float) -> tuple[Float32Array, list[Any]]:
    """The updates of all devices, simulated by `vmap`."""
    tx = rbd_jax.rbd(rate, axis_name="devices", **options)
    state = tx.init(jnp.zeros(grads.shape[1]))
    updates = jax.jit(jax.vmap(lambda g: tx.update(g, state)[0], axis_name="devices"))(grads)
    return np.asarray(updates), [tx, state]


@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("exchange", ["shared", "independent"])
def test_devices_have_one_update_and_it_is_the_references(exchange: str, combine: str) -> None:
    """Three devices, so that neither the order of sums nor a division by their number goes unnoticed."""
    grads = np.random.default_rng(1).standard_normal((3, 200)).astype(np.float32)
    options = {"dims": 6, "family": "normal", "exchange": exchange, "combine": combine, "seed": 4}
    updates, _ = per_device(options, grads, 0.7)
    assert np.array_equal(bits(updates[1]), bits(updates[0]))
    assert np.array_equal(bits(updates[2]), bits(updates[0]))
    plan = rbd_ref.compartments.whole(200, d=6)
    basis = rbd_ref.Basis(plan, seed=4)
    sent = [np.asarray(rbd_jax.project(plan, g, 4, 0, w * (exchange == "independent"))) for w, g in enumerate(grads)]
    if exchange == "shared":
        u = basis.reconstruct(sent[0] + sent[1] + sent[2], step=0)
    else:
        first, second, third = (basis.reconstruct(a, step=0, worker=w) for w, a in enumerate(sent))
        u = first + second + third
    eta = np.float32(0.7 / 3 if combine == "mean" else 0.7)
    assert np.array_equal(bits(updates[0]), bits(-(eta * u)))


ON_DEVICES = """
import hashlib
import jax, jax.numpy as jnp, numpy as np, optax, rbd_jax
from jax import shard_map
from jax.sharding import Mesh, PartitionSpec as P

assert jax.device_count() == 4
params = {"w": jnp.ones((30, 7)), "b": jnp.zeros(5)}
mesh = Mesh(np.array(jax.devices()), ("i",))
batches = np.random.default_rng(0).standard_normal((3, 8, 30)).astype(np.float32)

def loss(params, x):
    return jnp.mean((x @ params["w"]) ** 2) + jnp.sum(params["b"] * jnp.mean(x))

def trained(exchange):
    tx = rbd_jax.rbd(0.3, dims=20, axis_name="i", exchange=exchange, seed=3, compartments="tensor", memory=0.9)

    def on_device(params, state, x):
        mine = jax.lax.pcast(params, "i", to="varying")
        memory = jax.tree.map(lambda leaf: leaf[0], state.memory)
        updates, state = tx.update(jax.grad(loss)(mine, x), state._replace(memory=memory))
        kept = jax.tree.map(lambda leaf: leaf[None], state.memory)
        return optax.apply_updates(params, updates), state._replace(memory=kept)

    specs = rbd_jax.RandomBasesState(P(), P("i"))
    step = jax.jit(shard_map(on_device, mesh=mesh, in_specs=(P(), specs, P("i")), out_specs=(P(), specs)))
    theta, state = params, tx.init(params)
    state = state._replace(memory=jax.tree.map(lambda leaf: jnp.zeros((4, *leaf.shape)), state.memory))
    for x in batches:
        theta, state = step(theta, state, x)
    copies = {np.asarray(part.data).tobytes() for part in theta["w"].addressable_shards}
    return len(copies), step, (theta, state, batches[0])

for exchange in ("shared", "independent"):
    copies, step, arguments = trained(exchange)
    text = step.lower(*arguments).compile().as_text()
    lines = [line for line in text.splitlines() if "all-gather(" in line or "all-reduce(" in line]
    moved = [line.split("=")[1].split()[0] for line in lines]
    print(exchange, copies, *moved)
"""


def test_real_devices_exchange_coefficients_and_nothing_else() -> None:
    """Four devices of the host under `shard_map`, each with a memory of its own: one theta, and 20 floats of each."""
    result = run_python("-c", ON_DEVICES, XLA_FLAGS="--xla_force_host_platform_device_count=4")
    assert result.returncode == 0, result.stderr[-2000:]
    lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    for exchange in ("shared", "independent"):
        copies, *moved = lines[exchange].split()
        assert copies == "1"
        assert moved, "nothing was exchanged"
        assert all(shape.startswith(("f32[4,20]", "f32[80]")) for shape in moved), moved


# Plans and mistakes.


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dims": 0}, "dims '0' cannot be read, expected N directions in all"),
        ({"dims": "many"}, "dims 'many' cannot be read, expected N directions in all"),
        ({"family": "gauss"}, "gauss.*expected one of"),
        ({"compartments": "layer"}, "compartments 'layer' cannot be read, expected whole, tensor"),
        ({"compartments": "even:0"}, "compartments 'even:0' cannot be read"),
        ({"compartments": "proportional:x"}, "compartments 'proportional:x' cannot be read"),
        ({"normalize": "l2"}, "normalize 'l2' is unknown"),
        ({"memory": 1.0}, "memory is 1.0, expected a number from 0"),
        ({"seed": -1}, "seed is -1, expected"),
        ({"redraw": 0}, "redraw is 0, expected 1 <= redraw"),
        ({"exchange": "split"}, "exchange 'split' is unknown, expected one of independent, shared"),
        ({"combine": "max"}, "combine 'max' is unknown"),
    ],
)
def test_mistakes_show_when_the_optimizer_is_made(given: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        rbd_jax.rbd(0.1, **given)


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (None, "learning_rate is None of type NoneType, expected a number"),
        ("fast", "learning_rate is 'fast' of type str, expected a number"),
        (float("nan"), "learning_rate is nan, expected one that a float32 can hold"),
    ],
)
def test_a_rate_is_a_number_an_array_or_a_schedule(rate: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        rbd_jax.rbd(rate)


@pytest.mark.parametrize("dtype", [jnp.complex64, jnp.int32])
def test_other_types_than_floats_are_refused(dtype: Any) -> None:
    tx = rbd_jax.rbd(0.1)
    with pytest.raises(TypeError, match=r"a gradient has dtype \w+, expected floats: .* optax.masked"):
        tx.update(jnp.ones(3, dtype), tx.init(jnp.ones(3)))


WITHOUT_OPTAX = """
import sys
sys.modules["optax"] = None
import rbd_jax
rbd_jax.randn(3, seed=0)
rbd_jax.rbd
"""


def test_without_optax_the_rest_works() -> None:
    result = run_python("-c", WITHOUT_OPTAX)
    assert "ImportError: optax is not there" in result.stderr
    assert "pip install 'rbd-ref[optax]'" in result.stderr
