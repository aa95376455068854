"""The paper's networks as JAX functions of the same flat theta as `rbd_ref.networks`, for their gradients.

The shapes and their order are those of the `Network` that is given; only what is done with the tensors is written
again. Gradients agree with the reference's to a tolerance, so here sums have whatever order XLA gives them.
Tests: tests/test_jax_backend.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from rbd_jax.rounding import Array
from rbd_ref.models.layers import EPSILON
from rbd_ref.models.networks import STAGES, Network

EXACT = lax.Precision.HIGHEST  # float32 as on a CPU, where a device has something cheaper
BLOCKS = {"resnet8": 1, "resnet32": 5}


def tensors_of(network: Network, theta: Array) -> Iterator[Array]:
    """The tensors of theta in order."""
    start = 0
    for shape in network.shapes:
        size = math.prod(shape)
        yield theta[start : start + size].reshape(shape)
        start += size


def dense(x: Array, w: Array, b: Array) -> Array:
    """x w + b."""
    return jnp.matmul(x, w, precision=EXACT) + b


def relu(x: Array) -> Array:
    """max(x, 0); its derivative at 0 is 0."""
    return jnp.where(x > 0, x, 0)


def conv2d(x: Array, w: Array, stride: int = 1, padding: str = "VALID") -> Array:
    """Images (n, height, width, channels) and kernels (k, k, in, out), without bias."""
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=layout, precision=EXACT)


def larger(x: Array, y: Array) -> Array:
    """max(x, y); the gradient goes to x where they are equal."""
    return jnp.where(x >= y, x, y)


def max_pool(x: Array) -> Array:
    """The largest of each 2 x 2 pixels; a last odd row or column is left out; the gradient goes to the first."""
    rows, columns = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    upper, lower = x[:, 0:rows:2, :columns], x[:, 1:rows:2, :columns]
    return larger(
        larger(upper[:, :, 0::2], upper[:, :, 1::2]),
        larger(lower[:, :, 0::2], lower[:, :, 1::2]),
    )


def batch_norm(x: Array, scale: Array, shift: Array) -> Array:
    """Each channel with mean and variance of the batch, through which the gradient goes too."""
    centred = x - jnp.mean(x, axis=(0, 1, 2))
    variance = jnp.mean(centred * centred, axis=(0, 1, 2))
    return centred * lax.rsqrt(variance + EPSILON) * scale + shift


def mlp(network: Network, tensors: Iterator[Array], x: Array) -> Array:
    """Fully connected layers with relu between them."""
    x = dense(x.reshape(x.shape[0], -1), next(tensors), next(tensors))
    for _ in network.layers[1:]:
        x = dense(relu(x), next(tensors), next(tensors))
    return x


def cnn(tensors: Iterator[Array], x: Array) -> Array:
    """Three convolutions, the first two pooled, and two fully connected layers."""
    for _ in range(2):
        x = relu(max_pool(conv2d(x, next(tensors)) + next(tensors)))
    x = relu(conv2d(x, next(tensors)) + next(tensors))
    x = relu(dense(x.reshape(x.shape[0], -1), next(tensors), next(tensors)))
    return dense(x, next(tensors), next(tensors))


def resnet(blocks: int, tensors: Iterator[Array], x: Array) -> Array:
    """Stages of blocks relu(shortcut(x) + convolutions(x)), the mean over all pixels, logits."""

    def convolution(x: Array, stride: int = 1) -> Array:
        return batch_norm(conv2d(x, next(tensors), stride, "SAME"), next(tensors), next(tensors))

    x = relu(convolution(x))
    for stage in range(len(STAGES)):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            shortcut = convolution(x, stride) if block == 0 else x
            x = relu(shortcut + convolution(relu(convolution(x, stride))))
    return dense(jnp.mean(x, axis=(1, 2)), next(tensors), next(tensors))


def logits(network: Network, theta: Array, x: Array) -> Array:
    """Logits (n, classes), batch norm as in training."""
    tensors = tensors_of(network, theta)
    if network.name == "cnn":
        return cnn(tensors, x)
    if network.name in BLOCKS:
        return resnet(BLOCKS[network.name], tensors, x)
    return mlp(network, tensors, x)


def loss(network: Network, theta: Array, x: Array, y: Array) -> Array:
    """The mean softmax cross entropy."""
    logarithms = jax.nn.log_softmax(logits(network, theta, x))
    return -jnp.mean(jnp.take_along_axis(logarithms, y[:, None], axis=1))


@partial(jax.jit, static_argnums=0)
def value_and_gradient(network: Network, theta: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """The loss and its gradient with respect to theta; compiled once for a network and a shape of batch."""
    found: tuple[Array, Array] = jax.value_and_grad(partial(loss, network))(theta, x, y)
    return found
