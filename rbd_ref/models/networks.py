"""Networks: the paper's architectures as pure functions of one flat float32 vector theta.

Random bases descent sees a network as D numbers, and so does this module: `make` finds an architecture by name,
`initialise` makes theta from a seed, `loss_and_gradient` maps theta to the loss and its D derivatives. Nothing else is
state.

Batch norm takes mean and variance from the batch in training. For evaluation it takes them from a fixed `calibration`
batch, computed anew from theta: moving averages would be a second state that neither theta nor coefficients carry, so
replicas that exchange coefficients, and a run repeated from them, would hold the same weights and differ in accuracy.
Tests: tests/test_networks.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rbd_ref._check import integer, vector
from rbd_ref._types import F32, TWO_32, Float32Array, Indices
from rbd_ref.models.architectures import NAMES, Layer, Layers, Network, Shape, is_batch_norm
from rbd_ref.models.layers import AutogradLayers, moments, normalise, split
from rbd_ref.models.names import make
from rbd_ref.models.operations import softmax
from rbd_ref.models.plan import PLANS
from rbd_ref.models.product import Array
from rbd_ref.spec.families import Family, direction_entries
from rbd_ref.spec.prng import fold_in, stream_key

__all__ = [
    "NAMES",
    "Network",
    "accuracy",
    "apply",
    "gradient_of",
    "initialise",
    "logits",
    "loss",
    "loss_and_gradient",
    "make",
    "mean_cross_entropy",
    "predictions",
    "statistics",
    "unflatten",
]

Statistics = tuple[tuple[Array, Array], ...]  # mean and variance of each batch norm in order
Gradient = Callable[..., tuple[float, Float32Array]]

BATCH = 256  # images at a time where no gradient is needed
TRAINING = AutogradLayers()


# Where theta starts


def glorot_limit(shape: Shape) -> np.float32:
    """sqrt(6 / (fan_in + fan_out)), rounded once: of weights (fan_in, fan_out), and of kernels (k, k, in, out) with
    fan_in = k k in and fan_out = k k out."""
    field_size = math.prod(shape[:-2])
    return F32(math.sqrt(6 / (field_size * (shape[-2] + shape[-1]))))


def initialise(network: Network, seed: int) -> Float32Array:
    """theta0, a function of the seed: weights Glorot uniform, biases 0, batch-norm scale 1 and shift 0.

    Weight j of tensor t is limit * entry j of `uniform` (specification, section 4.2) with the key
    fold_in(stream_key(seed, "initialisation"), t) and the counters (0, block), the product rounded once;
    limit = sqrt(6 / (fan_in + fan_out)).

    Args:
        network: whose tensors, in the order of its layers, make up theta.
        seed: any integer from 0 to 2^64 - 1.

    Returns:
        D floats, the same on every machine.

    >>> theta = initialise(make("mlp:2-2-2"), seed=0)
    >>> theta.size, theta.dtype, theta[4:6].tolist()
    (12, dtype('float32'), [0.0, 0.0])
    """
    key = stream_key(seed, "initialisation")
    places = ((layer, position) for layer in network.layers for position in range(len(layer)))
    return np.concatenate([_tensor0(layer, position, fold_in(key, t)) for t, (layer, position) in enumerate(places)])


def _tensor0(layer: Layer, position: int, key: Any) -> Float32Array:
    """The tensor at this position of a layer as it starts, flat: its role follows from where it is."""
    shape = layer[position]
    if len(shape) > 1:
        return glorot_limit(shape) * direction_entries(Family("uniform"), key, 0, math.prod(shape))
    is_scale = is_batch_norm(layer) and position == 0
    return np.full(shape, 1 if is_scale else 0, dtype=F32)


# Loss and gradient


def _images(network: Network, x: Any) -> Float32Array:
    """`x` as float32 images (n, *input_shape) with n >= 1."""
    array = np.asarray(x)
    if not np.issubdtype(array.dtype, np.floating):
        raise TypeError(f"x has dtype {array.dtype}, expected a floating type: scale it and use astype(np.float32)")
    if array.shape[1:] != network.input_shape or array.ndim == 0 or not len(array):
        expected = ", ".join(["n", *map(str, network.input_shape)])
        raise ValueError(f"x has shape {array.shape}, expected ({expected}) with n >= 1: reshape it")
    return np.ascontiguousarray(array, dtype=F32)


def _labels(network: Network, y: Any, n: int) -> Indices:
    """`y` as n class numbers."""
    array = np.asarray(y)
    if not np.issubdtype(array.dtype, np.integer) or array.shape != (n,):
        raise ValueError(f"y is {array.dtype} of shape {array.shape}, expected {n} integers: one class for each image")
    if array.min() < 0 or array.max() >= network.classes:
        raise ValueError(
            f"y has classes from {array.min()} to {array.max()}, expected 0 to {network.classes - 1}: "
            "make a network with more classes or number them from 0"
        )
    return array.astype(np.int64)


def unflatten(network: Network, theta: Array) -> tuple[Array, ...]:
    """theta (D) as the tensors it consists of; `np.concatenate` of their `ravel`s is theta again."""
    tensors: tuple[Array, ...] = split(theta, network.shapes)
    return tensors


def _in_order(network: Network, theta: Array) -> Iterator[Array]:
    """The tensors one by one; by index, as autograd's stand-in for a tuple cannot be iterated over."""
    tensors = unflatten(network, theta)
    return (tensors[i] for i in range(len(network.shapes)))


def apply(network: Network, theta: Array, x: Array, layers: Layers[Array] = TRAINING) -> Array:
    """Logits (n, classes) of images (n, *input_shape), differentiable by autograd; batch norm as `layers` does it."""
    return network.apply(layers, _in_order(network, theta), x)


def loss(network: Network, theta: Any, x: Any, y: Any) -> float:
    """The mean softmax cross entropy of a batch: the mean over n of -log softmax(logits_n)[y_n].

    Args:
        network: what computes the logits; its batch norms take mean and variance from the batch.
        theta: D floats.
        x: images (n, *input_shape) in floats.
        y: n class numbers.

    Returns:
        The loss, computed in float32.

    >>> network = make("mlp:2-2-2")
    >>> loss(network, np.zeros(network.D, dtype=F32), [[1.0, 2.0]], [0])  # log 2, rounded
    0.6931471824645996
    """
    images = _images(network, x)
    labels = _labels(network, y, len(images))
    point = vector("theta", theta, network.D)
    return PLANS.find(network, len(images)).forward(point, images, labels)


def loss_and_gradient(network: Network, theta: Any, x: Any, y: Any) -> tuple[float, Float32Array]:
    """`loss` and its gradient with respect to theta, with the bits that autograd gives (plan.py).

    Args:
        network, theta, x, y: as `loss` takes them.

    Returns:
        The loss, and D floats in the order of theta. Their bits do not depend on the number of threads.

    >>> network = make("mlp:2-2")
    >>> value, gradient = loss_and_gradient(network, np.zeros(network.D, dtype=F32), [[1.0, 2.0]], [0])
    >>> gradient.tolist()  # x_i (softmax_j - [j = y]), then softmax_j - [j = y]
    [-0.5, 0.5, -1.0, 1.0, -0.5, 0.5]
    """
    images = _images(network, x)
    labels = _labels(network, y, len(images))
    point = vector("theta", theta, network.D)
    plan = PLANS.find(network, len(images))
    return plan.forward(point, images, labels), plan.backward()


def mean_cross_entropy(logits: Float32Array, y: Any) -> float:
    """`loss` of logits (n, classes) that are known, in float64: each log(sum of exp(logit - m)) - (logit_y - m), with m
    the largest of the row."""
    return float(softmax(logits, np.asarray(y, dtype=np.int64), np.empty(logits.shape)))


def gradient_of(backend: object) -> Gradient:
    """A backend's own `loss_and_gradient`, or that of this module where it has none."""
    own: Gradient = getattr(backend, "loss_and_gradient", loss_and_gradient)
    return own


# Evaluation


class Recording(AutogradLayers):
    """Layers as in training that note the mean and variance that each batch norm meets."""

    def __init__(self) -> None:
        self.found: list[tuple[Array, Array]] = []

    def batch_norm(self, x: Array, scale: Array, shift: Array) -> Array:
        """With the statistics of the batch, which are noted."""
        self.found.append(moments(x))
        return normalise(x, scale, shift, *self.found[-1])


class Calibrated(AutogradLayers):
    """Layers for evaluation, once through a network: each batch norm takes the next of the statistics given."""

    def __init__(self, known: Statistics) -> None:
        self.known = iter(known)

    def batch_norm(self, x: Array, scale: Array, shift: Array) -> Array:
        """With statistics that do not depend on the batch."""
        return normalise(x, scale, shift, *next(self.known))


def statistics(network: Network, theta: Any, x: Any) -> Statistics:
    """Mean and variance that each batch norm meets when the images `x` go through as one batch."""
    recording = Recording()
    apply(network, vector("theta", theta, network.D), _images(network, x), recording)
    return tuple(recording.found)


def _calibration(network: Network, theta: Float32Array, images: Any) -> Statistics:
    """The statistics of the calibration images; none for networks that need none."""
    if not network.has_batch_norm:
        return ()
    if images is None:
        raise ValueError(
            f"{network.name} has batch norm and calibration is missing, expected images whose mean and variance "
            "it takes: pass a fixed batch of training images, a thousand or so"
        )
    return statistics(network, theta, images)


def logits(network: Network, theta: Any, x: Any, calibration: Any = None, batch: int = BATCH) -> Float32Array:
    """Logits (n, classes) for evaluation, `batch` images at a time, which does not change them; see `predictions`."""
    images = _images(network, x)
    point = vector("theta", theta, network.D)
    size = integer("batch", batch, 1, TWO_32)
    known = _calibration(network, point, calibration)
    starts = range(0, len(images), size)
    return np.concatenate([apply(network, point, images[i : i + size], Calibrated(known)) for i in starts])


def predictions(network: Network, theta: Any, x: Any, calibration: Any = None, batch: int = BATCH) -> Indices:
    """The class of each image: where its logits are largest, the first of equals.

    Args:
        network, theta, x: as `loss` takes them.
        calibration: a fixed batch of images from which batch norm takes mean and variance; ignored by networks without.
        batch: images at a time, which changes no prediction.

    Returns:
        n class numbers.

    >>> network = make("mlp:2-2")
    >>> theta = np.array([1, 0, 0, 1, 0, 0], dtype=F32)  # logits are the inputs
    >>> predictions(network, theta, [[1.0, 2.0], [3.0, 2.0], [5.0, 5.0]]).tolist()
    [1, 0, 0]
    """
    classes: Indices = np.argmax(logits(network, theta, x, calibration, batch), axis=1)
    return classes


def accuracy(network: Network, theta: Any, x: Any, y: Any, calibration: Any = None, batch: int = BATCH) -> float:
    """The share of the images whose class is predicted: the mean over n of [prediction_n = y_n].

    Args:
        network, theta, x, calibration, batch: as `predictions` takes them.
        y: n class numbers.

    Returns:
        A number from 0 to 1.

    >>> accuracy(make("mlp:2-2"), np.array([1, 0, 0, 1, 0, 0], dtype=F32), [[1.0, 2.0], [3.0, 2.0]], [1, 1])
    0.5
    """
    predicted = predictions(network, theta, x, calibration, batch)
    return float(np.mean(predicted == _labels(network, y, predicted.size)))
