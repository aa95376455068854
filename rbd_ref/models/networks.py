"""Networks: the paper's architectures as pure functions of one flat float32 vector theta.

Random bases descent sees a network as D numbers, so here it is that: `make` names an architecture, `initialise` makes
theta from a seed, `loss_and_gradient` takes theta to a number and D numbers. There is no state beside theta.

Batch norm takes mean and variance from the batch in training. For evaluation it takes them from a fixed `calibration`
batch, computed anew from theta: moving averages would be a second state that neither theta nor coefficients carry, so
replicas that exchange coefficients, and a run repeated from them, would hold the same weights and differ in accuracy.
Tests: tests/test_networks.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from autograd import value_and_grad
from numpy.typing import NDArray

from rbd_ref._check import integer, member, vector
from rbd_ref._types import F32, TWO_32, Float32Array
from rbd_ref.models.layers import (
    Array,
    average_pool,
    batch_norm,
    conv2d,
    cross_entropy,
    dense,
    max_pool,
    moments,
    normalise,
    relu,
    split,
)
from rbd_ref.spec.families import Family, direction_entries
from rbd_ref.spec.prng import fold_in, stream_key

Shape = tuple[int, ...]
Layer = tuple[Shape, ...]
Norm = Callable[[Array, Array, Array], Array]  # (x, scale, shift) to x normalised
Forward = Callable[[Iterator[Array], Array, Norm], Array]  # (tensors in order, images, norm) to logits
Statistics = tuple[tuple[Array, Array], ...]  # mean and variance of each batch norm in order
Labels = NDArray[np.int64]
Gradient = Callable[..., tuple[float, Float32Array]]

NAMES = ("fc", "cnn", "resnet8", "resnet32")
HIDDEN = 128  # of fc
STAGES = (16, 32, 64)  # channels of the residual networks
LEAST_SIDE = 18  # pixels that the convolutions and poolings of cnn leave one of
BATCH = 256  # images at a time where no gradient is needed


@dataclass(frozen=True)
class Network:
    """An architecture. `layers` holds the shapes of each layer's tensors, in the order in which they lie in theta."""

    name: str
    input_shape: Shape
    classes: int
    layers: tuple[Layer, ...]
    forward: Forward = field(repr=False, compare=False)

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape of every tensor."""
        return tuple(shape for layer in self.layers for shape in layer)

    @cached_property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """The sizes of each layer's tensors, as `compartments.by_layer` and `by_tensor` take them."""
        return tuple(tuple(math.prod(shape) for shape in layer) for layer in self.layers)

    @cached_property
    def D(self) -> int:
        """Number of parameters, which are all trainable."""
        return sum(sum(layer) for layer in self.sizes)

    @property
    def has_batch_norm(self) -> bool:
        """Whether evaluation needs a calibration batch."""
        return any(_is_batch_norm(layer) for layer in self.layers)

    def unflatten(self, theta: Array) -> tuple[Array, ...]:
        """theta (D) as the tensors it consists of; `np.concatenate` of their `ravel`s is theta again."""
        tensors: tuple[Array, ...] = split(theta, self.shapes)
        return tensors

    def apply(self, theta: Array, x: Array, norm: Norm = batch_norm) -> Array:
        """Logits (n, classes) of images (n, *input_shape); `norm` does batch norm, by default as in training."""
        tensors = self.unflatten(theta)
        return self.forward((tensors[i] for i in range(len(self.shapes))), x, norm)


def _is_batch_norm(layer: Layer) -> bool:
    """Scale and shift; every other layer has a tensor of weights."""
    return all(len(shape) == 1 for shape in layer)


# Architectures: each a list of layers and the function that uses their tensors in the same order.


def _mlp(widths: Sequence[int]) -> tuple[tuple[Layer, ...], Forward]:
    """Fully connected layers with relu between them: sum of (width + 1) next width parameters."""

    def forward(tensors: Iterator[Array], x: Array, norm: Norm) -> Array:
        x = dense(x.reshape(x.shape[0], -1), next(tensors), next(tensors))
        for _ in widths[2:]:
            x = dense(relu(x), next(tensors), next(tensors))
        return x

    return tuple(((before, after), (after,)) for before, after in pairwise(widths)), forward


def _cnn(input_shape: Shape, classes: int) -> tuple[tuple[Layer, ...], Forward]:
    """The paper's five layers: 3 x 3 convolutions to 32, 64 and 64 channels without padding, 2 x 2 max pooling after
    the first two, 64 fully connected, logits. All have biases: D = 93,322 for 28 x 28 x 1, 122,570 for 32 x 32 x 3."""
    height, width, channels = input_shape
    left = [((size - 2) // 2 - 2) // 2 - 2 for size in (height, width)]
    flat = left[0] * left[1] * 64
    kernels = ((3, 3, channels, 32), (3, 3, 32, 64), (3, 3, 64, 64), (flat, 64), (64, classes))
    return tuple((shape, shape[-1:]) for shape in kernels), _cnn_forward


def _cnn_forward(tensors: Iterator[Array], x: Array, norm: Norm) -> Array:
    """relu after pooling is relu before pooling, on a quarter of the numbers."""
    for _ in range(2):
        x = relu(max_pool(conv2d(x, next(tensors), next(tensors))))
    x = relu(conv2d(x, next(tensors), next(tensors)))
    x = relu(dense(x.reshape(x.shape[0], -1), next(tensors), next(tensors)))
    return dense(x, next(tensors), next(tensors))


def _convolution(k: int, before: int, after: int) -> tuple[Layer, Layer]:
    """A convolution without bias and the batch norm that follows it: two layers."""
    return ((k, k, before, after),), ((after,), (after,))


def _resnet(input_shape: Shape, classes: int, blocks: int) -> tuple[tuple[Layer, ...], Forward]:
    """A residual network of 6 blocks + 2 layers: a 3 x 3 convolution, three stages of 16, 32 and 64 channels with
    `blocks` blocks of two 3 x 3 convolutions, the mean over all pixels, logits.

    The first block of *every* stage has a 1 x 1 convolution on its shortcut; batch norm follows every convolution,
    those on shortcuts too; convolutions have no biases. Counted are kernels, scale and shift of each batch norm, and
    the last layer: all trainable, no moving averages. For 32 x 32 x 3 and 10 classes D is 78,330 (ResNet-8) and 467,194
    (ResNet-32). No ResNet code was released with the paper; this layout was found from what it prints: both
    counts, and 21 layers of ResNet-8 (d = 42 by layer where d = 2 without).
    """
    found: list[Layer] = [*_convolution(3, input_shape[2], STAGES[0])]
    before = STAGES[0]
    for channels in STAGES:
        for block in range(blocks):
            if block == 0:
                found += _convolution(1, before, channels)
            found += _convolution(3, before, channels)
            found += _convolution(3, channels, channels)
            before = channels
    found.append(((before, classes), (classes,)))
    return tuple(found), lambda tensors, x, norm: _resnet_forward(blocks, tensors, x, norm)


def _resnet_forward(blocks: int, tensors: Iterator[Array], x: Array, norm: Norm) -> Array:
    """Each block is relu(shortcut(x) + convolutions(x)); the first of stages two and three halve height and width."""

    def convolution(x: Array, stride: int = 1) -> Array:
        x = conv2d(x, next(tensors), stride=stride, padding="same")
        return norm(x, next(tensors), next(tensors))

    x = relu(convolution(x))
    for stage in range(len(STAGES)):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            shortcut = convolution(x, stride) if block == 0 else x
            x = relu(shortcut + convolution(relu(convolution(x, stride))))
    return dense(average_pool(x), next(tensors), next(tensors))


def _widths(name: str) -> tuple[int, ...]:
    """The widths in a name like `mlp:64-32-10`: inputs, hidden layers, classes."""
    texts = name.removeprefix("mlp:").split("-")
    if len(texts) < 2 or not all(text.isdecimal() and int(text) > 0 for text in texts):
        raise ValueError(
            f"network {name!r} has no widths that can be read, expected mlp: and two or more numbers from 1 up with "
            "hyphens between them, as in mlp:64-32-10: inputs, hidden layers, classes"
        )
    return tuple(int(text) for text in texts)


def _input_shape(name: str, value: Any) -> Shape:
    """`value` as a shape that the named architecture can take: any for fully connected ones, else an image."""
    shape = tuple(integer("a side of input_shape", side, 1, TWO_32) for side in (value if value is not None else ()))
    if not shape or (name in NAMES[1:] and len(shape) != 3):
        raise ValueError(
            f"input_shape of {name} is {value}, expected (height, width, channels), as in (32, 32, 3): "
            "give the shape of one image"
        )
    if name == "cnn" and min(shape[:2]) < LEAST_SIDE:
        raise ValueError(
            f"input_shape of cnn is {shape}, expected height and width of {LEAST_SIDE} at least: "
            "smaller images do not last through its convolutions and poolings; take fc or mlp:..."
        )
    return shape


def _make_mlp(name: str, input_shape: Any, classes: Any) -> Network:
    """The name says it all; what is given beside it has to fit."""
    widths = _widths(name)
    shape = _input_shape(name, input_shape) if input_shape is not None else widths[:1]
    if math.prod(shape) != widths[0] or classes not in (None, widths[-1]):
        raise ValueError(
            f"network {name!r} goes from {widths[0]} numbers to {widths[-1]} classes, expected it to fit what else is "
            f"given, input_shape {shape} and classes {classes}: change the first or the last width"
        )
    return Network(name, shape, integer("classes", widths[-1], 2, TWO_32), *_mlp(widths))


def make(name: str, input_shape: Sequence[int] | None = None, classes: int | None = None) -> Network:
    """The network of this name: `fc` (128 hidden), `cnn`, `resnet8`, `resnet32`, or `mlp:64-32-10` and the like, whose
    name says inputs, hidden layers and classes. `input_shape` is that of one image, (height, width, channels)."""
    if isinstance(name, str) and name.startswith("mlp:"):
        return _make_mlp(name, input_shape, classes)
    known = member("network", name, (*NAMES, "mlp:64-32-10")) if name not in NAMES else name
    shape, count = _input_shape(known, input_shape), integer("classes", classes, 2, TWO_32)
    if known == "fc":
        return Network(known, shape, count, *_mlp((math.prod(shape), HIDDEN, count)))
    if known == "cnn":
        return Network(known, shape, count, *_cnn(shape, count))
    return Network(known, shape, count, *_resnet(shape, count, blocks={"resnet8": 1, "resnet32": 5}[known]))


def glorot_limit(shape: Shape) -> np.float32:
    """sqrt(6 / (fan_in + fan_out)), rounded once: of weights (fan_in, fan_out), and of kernels (k, k, in, out) with
    fan_in = k k in and fan_out = k k out."""
    field_size = math.prod(shape[:-2])
    return F32(math.sqrt(6 / (field_size * (shape[-2] + shape[-1]))))


def initialise(network: Network, seed: int) -> Float32Array:
    """theta0, a function of the seed: weights Glorot uniform, biases 0, batch-norm scale 1 and shift 0.

    Weight j of tensor t is limit * entry j of `uniform` (specification, section 4.2) with the key
    fold_in(stream_key(seed, "initialisation"), t) and the counters (0, block), the product rounded once.
    """
    key, uniform = stream_key(seed, "initialisation"), Family("uniform")
    pieces: list[Float32Array] = []
    for layer in network.layers:
        for shape in layer:
            if len(shape) > 1:
                entries = direction_entries(uniform, fold_in(key, len(pieces)), 0, math.prod(shape))
                pieces.append(glorot_limit(shape) * entries)
            else:
                scale = _is_batch_norm(layer) and shape is layer[0]
                pieces.append(np.full(shape, 1 if scale else 0, dtype=F32))
    return np.concatenate(pieces)


def _images(network: Network, x: Any) -> Float32Array:
    """`x` as float32 images (n, *input_shape) with n >= 1."""
    array = np.asarray(x)
    if not np.issubdtype(array.dtype, np.floating):
        raise TypeError(f"x has dtype {array.dtype}, expected a floating type: scale it and use astype(np.float32)")
    if array.shape[1:] != network.input_shape or array.ndim == 0 or not len(array):
        expected = ", ".join(["n", *map(str, network.input_shape)])
        raise ValueError(f"x has shape {array.shape}, expected ({expected}) with n >= 1: reshape it")
    return np.ascontiguousarray(array, dtype=F32)


def _labels(network: Network, y: Any, n: int) -> Labels:
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


def loss(network: Network, theta: Any, x: Any, y: Any) -> float:
    """The mean softmax cross entropy of a batch, batch norm as in training."""
    images = _images(network, x)
    labels, point = _labels(network, y, len(images)), vector("theta", theta, network.D)
    return float(cross_entropy(network.apply(point, images), labels))


def loss_and_gradient(network: Network, theta: Any, x: Any, y: Any) -> tuple[float, Float32Array]:
    """`loss` and its gradient with respect to theta, D floats, by autograd."""
    images = _images(network, x)
    labels, point = _labels(network, y, len(images)), vector("theta", theta, network.D)
    value, gradient = value_and_grad(lambda t: cross_entropy(network.apply(t, images), labels))(point)
    return float(value), gradient


def gradient_of(backend: object) -> Gradient:
    """A backend's own `loss_and_gradient`, or that of this module where it has none."""
    own: Gradient = getattr(backend, "loss_and_gradient", loss_and_gradient)
    return own


def statistics(network: Network, theta: Any, x: Any) -> Statistics:
    """Mean and variance that each batch norm meets when the images `x` go through as one batch."""
    found: list[tuple[Array, Array]] = []

    def record(x: Array, scale: Array, shift: Array) -> Array:
        found.append(moments(x))
        return normalise(x, scale, shift, *found[-1])

    network.apply(vector("theta", theta, network.D), _images(network, x), record)
    return tuple(found)


def _fixed_norm(network: Network, theta: Float32Array, calibration: Any) -> Callable[[], Norm]:
    """What makes, for each batch, the batch norm that takes the statistics of `calibration`, one after the other."""
    if not network.has_batch_norm:
        return lambda: batch_norm  # nothing asks for it
    if calibration is None:
        raise ValueError(
            f"{network.name} has batch norm and calibration is missing, expected images whose mean and variance "
            "it takes: pass a fixed batch of training images, a thousand or so"
        )
    known = statistics(network, theta, calibration)

    def fresh() -> Norm:
        pairs = iter(known)
        return lambda x, scale, shift: normalise(x, scale, shift, *next(pairs))

    return fresh


def logits(network: Network, theta: Any, x: Any, calibration: Any = None, batch: int = BATCH) -> Float32Array:
    """Logits (n, classes) for evaluation, `batch` images at a time, which does not change them; see `predictions`."""
    images, point = _images(network, x), vector("theta", theta, network.D)
    size, norm = integer("batch", batch, 1, TWO_32), _fixed_norm(network, point, calibration)
    return np.concatenate([network.apply(point, images[i : i + size], norm()) for i in range(0, len(images), size)])


def predictions(network: Network, theta: Any, x: Any, calibration: Any = None, batch: int = BATCH) -> Labels:
    """The class of each image, the first of equals. Networks with batch norm need `calibration`, a fixed batch of
    images whose statistics they take; others leave it aside."""
    classes: Labels = np.argmax(logits(network, theta, x, calibration, batch), axis=1)
    return classes


def accuracy(network: Network, theta: Any, x: Any, y: Any, calibration: Any = None, batch: int = BATCH) -> float:
    """The part of the images whose class is predicted."""
    predicted = predictions(network, theta, x, calibration, batch)
    return float(np.mean(predicted == _labels(network, y, predicted.size)))
