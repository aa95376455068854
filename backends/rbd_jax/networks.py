"""Gradients of networks by JAX: its layers for the one description of each in rbd_ref/models/architectures.py.

Shapes and their order in theta are those of the `Network`; here is only what XLA does with the tensors. Gradients agree
with the reference's to a tolerance, so sums have whatever order XLA gives them.

On a CPU, XLA reads theta where it lies if it begins at a multiple of 64 bytes, and copies it otherwise. It cannot be
told where to put the gradient, nor may NumPy write to what it made, so that is copied once, into an array that is used
again for a later step.
Tests: tests/test_jax_backend.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from rbd_jax.rounding import Array
from rbd_ref._types import Float32Array
from rbd_ref.models.architectures import EPSILON, Network
from rbd_ref.models.plan import gradient_array

EXACT = lax.Precision.HIGHEST  # float32 as on a CPU, where a device has something cheaper
LAYOUT = ("NHWC", "HWIO", "NHWC")  # of images, kernels and what comes out


def larger(x: Array, y: Array) -> Array:
    """max(x, y); the gradient goes to x where they are equal."""
    return jnp.where(x >= y, x, y)


class JaxLayers:
    """`architectures.Layers` of JAX; images are (n, height, width, channels)."""

    def features(self, x: Array) -> int:
        """The length of the last axis."""
        return int(x.shape[-1])

    def dense(self, x: Array, w: Array, b: Array) -> Array:
        """x w + b."""
        return jnp.matmul(x, w, precision=EXACT) + b

    def conv2d(self, x: Array, w: Array, b: Array | None, *, stride: int, padding: str) -> Array:
        """A convolution with kernels (k, k, in, out); XLA's `SAME` has the odd zero after, as `margins` has it."""
        y = lax.conv_general_dilated(x, w, (stride, stride), padding.upper(), dimension_numbers=LAYOUT, precision=EXACT)
        return y if b is None else y + b

    def batch_norm(self, x: Array, scale: Array, shift: Array) -> Array:
        """Each channel with mean and variance of the batch, through which the gradient goes too."""
        centred = x - jnp.mean(x, axis=(0, 1, 2))
        variance = jnp.mean(centred * centred, axis=(0, 1, 2))
        return centred * lax.rsqrt(variance + EPSILON) * scale + shift

    def max_pool(self, x: Array) -> Array:
        """The largest of each 2 x 2 pixels; a last odd row or column is left out; the gradient goes to the first."""
        rows = x.shape[1] // 2 * 2
        columns = x.shape[2] // 2 * 2
        upper = x[:, 0:rows:2, :columns]
        lower = x[:, 1:rows:2, :columns]
        return larger(
            larger(upper[:, :, 0::2], upper[:, :, 1::2]),
            larger(lower[:, :, 0::2], lower[:, :, 1::2]),
        )

    def average_pool(self, x: Array) -> Array:
        """The mean of each channel over all pixels."""
        return jnp.mean(x, axis=(1, 2))

    def relu(self, x: Array) -> Array:
        """max(x, 0); its derivative at 0 is 0."""
        return jnp.where(x > 0, x, 0)

    def flatten(self, x: Array) -> Array:
        """(n, ...) as (n, i)."""
        return x.reshape(x.shape[0], -1)

    def add(self, x: Array, y: Array) -> Array:
        """x + y."""
        return x + y


def tensors_of(network: Network, theta: Array) -> Iterator[Array]:
    """The tensors of theta in order."""
    start = 0
    for shape in network.shapes:
        size = math.prod(shape)
        yield theta[start : start + size].reshape(shape)
        start += size


def loss(network: Network, theta: Array, x: Array, y: Array) -> Array:
    """The mean softmax cross entropy, batch norm as in training."""
    logits = network.apply(JaxLayers(), tensors_of(network, theta), x)
    logarithms = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(logarithms, y[:, None], axis=1))


@partial(jax.jit, static_argnums=0)
def value_and_gradient(network: Network, theta: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """The loss and its gradient with respect to theta; compiled once for a network and a shape of batch."""
    found: tuple[Array, Array] = jax.value_and_grad(partial(loss, network))(theta, x, y)
    return found


def platform() -> str:
    """Of the device that JAX computes on by default: cpu, gpu or tpu."""
    return str(jax.default_backend())


def loss_and_gradient(
    network: Network, theta: Float32Array, x: Float32Array, y: NDArray[Any]
) -> tuple[float, Float32Array]:
    """`value_and_gradient` of NumPy's arrays, the gradient in one that the caller may keep."""
    value, found = value_and_gradient(network, theta, x, y)
    gradient = gradient_array(network.D)
    np.copyto(gradient, found)
    return float(value), gradient
