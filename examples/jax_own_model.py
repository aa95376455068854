"""Your own model in JAX: a pytree of parameters, optax, and two lines to change.

    python examples/jax_own_model.py

A network of 64-128-10 learns the embedded digits four times: by SGD, by random bases descent along d = 100 of its 9,610
directions, by the same with a memory of gradients, and with Adam behind random bases. All of training is one compiled
program; bases are drawn within it. Last, four devices are simulated that exchange 100 coefficients a step and nothing
else.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import rbd_jax
from rbd_ref.data.datasets import load

STEPS = 1_500
BATCH = 64
DIMS = 100
DIGITS = load("digits")
X = jnp.asarray(DIGITS.train_images.reshape(-1, 64) / np.float32(DIGITS.train_images.max()))
Y = jnp.asarray(DIGITS.train_labels, jnp.int32)
TEST_X = jnp.asarray(DIGITS.test_images.reshape(-1, 64) / np.float32(DIGITS.train_images.max()))
TEST_Y = jnp.asarray(DIGITS.test_labels, jnp.int32)
Params = dict[str, Any]


def init(seed: int) -> Params:
    """Initial weights: portable random numbers, so they are the same in torch and NumPy."""
    return {
        "hidden": {"w": rbd_jax.randn((64, 128), seed) / 8, "b": jnp.zeros(128)},
        "output": {"w": rbd_jax.randn((128, 10), seed, stream=1) / 12, "b": jnp.zeros(10)},
    }


def logits(params: Params, x: jax.Array) -> jax.Array:
    """One hidden layer."""
    hidden = jax.nn.relu(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["output"]["w"] + params["output"]["b"]


def loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """The mean cross entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()


def batch(step: Any, device: Any = 0) -> tuple[jax.Array, jax.Array]:
    """Images drawn with replacement; which ones is a function of step and device."""
    chosen = (rbd_jax.rand(BATCH, seed=step, stream=device) * X.shape[0]).astype(jnp.int32)
    return X[chosen], Y[chosen]


@partial(jax.jit, static_argnums=0)
def train(tx: optax.GradientTransformationExtraArgs, params: Params) -> Params:
    """STEPS steps of any optimizer of optax."""

    def step(carry: Any, number: jax.Array) -> Any:
        params, state = carry
        gradients = jax.grad(loss)(params, *batch(number))
        updates, state = tx.update(gradients, state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), jnp.arange(STEPS))
    return params


def train_on_four_devices(tx: optax.GradientTransformationExtraArgs, params: Params) -> Params:
    """The same on an axis of four devices, which `vmap` simulates here; `shard_map` and `pmap` take the same step."""

    def on_device(device: jax.Array) -> Params:
        def step(carry: Any, number: jax.Array) -> Any:
            mine, state = carry
            updates, state = tx.update(jax.grad(loss)(mine, *batch(number, device)), state, mine)
            return (optax.apply_updates(mine, updates), state), None

        (mine, _), _ = jax.lax.scan(step, (params, tx.init(params)), jnp.arange(STEPS))
        return mine

    return jax.jit(jax.vmap(on_device, axis_name="devices"))(jnp.arange(4))


def accuracy(params: Params) -> float:
    """On the test images."""
    return float(jnp.mean(jnp.argmax(logits(params, TEST_X), axis=1) == TEST_Y))


def main() -> None:
    """All of it."""
    params = init(seed=0)
    D = sum(leaf.size for leaf in jax.tree.leaves(params))
    decay = partial(optax.linear_schedule, end_value=0.0, transition_steps=STEPS)
    optimizers = {
        "optax.sgd(0.2)": optax.sgd(decay(0.2)),
        "rbd_jax.rbd(4.0)": rbd_jax.rbd(decay(4.0), dims=DIMS, seed=0),
        "rbd_jax.rbd(32.0, memory=0.95)": rbd_jax.rbd(decay(32.0), dims=DIMS, memory=0.95, seed=0),
        "random bases, optax.adam": optax.chain(
            rbd_jax.scale_by_random_bases(dims=DIMS, compartments="tensor", seed=0), optax.adam(decay(3e-3))
        ),
    }
    print(f"D = {D:,}, d = {DIMS}, {STEPS:,} steps; test accuracy:")
    for name, tx in optimizers.items():
        print(f"{accuracy(train(tx, params)):8.1%}  {name}")
    tx = rbd_jax.rbd(decay(4.0), dims=DIMS, exchange="independent", axis_name="devices", seed=0)
    replicas = train_on_four_devices(tx, params)
    equal = all(bool((leaf == leaf[0]).all()) for leaf in jax.tree.leaves(replicas))
    first = jax.tree.map(lambda leaf: leaf[0], replicas)
    print(f"{accuracy(first):8.1%}  four devices, a basis each; their weights are equal to the bit: {equal}")


if __name__ == "__main__":
    main()
