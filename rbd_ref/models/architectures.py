"""Architectures: what a network computes, written once and run by every library.

An architecture is one function of a `Builder`, which stands for the layers, and of the images. This is a whole one:

>>> def tiny(net, x):
...     x = net.relu(net.max_pool(net.conv2d(x, 4, k=3)))
...     return net.dense(net.flatten(x), net.classes)
>>> network = Network("tiny", (6, 6, 1), 3, tiny)
>>> network.layers
(((3, 3, 1, 4), (4,)), ((16, 3), (3,)))
>>> network.D
91

The function runs first on shapes alone, which is how a `Network` knows its tensors, their order in theta and their
number D, and then on arrays: autograd's (layers.py), torch's (rbd_torch) or JAX's (rbd_jax). Each library brings the
operations of `Layers` and knows no architecture, so a new one works on all of them.
To add one, write its function here and name it in `ARCHITECTURES`. This file needs no library at all.
Tests: tests/test_networks.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Generic, Protocol, TypeVar

from rbd_ref._check import integer, member
from rbd_ref._types import TWO_32

Shape = tuple[int, ...]
Layer = tuple[Shape, ...]  # the shapes of the tensors of one layer
A = TypeVar("A")  # what a library computes with: its arrays, or stand-ins for them while it traces or differentiates

EPSILON = 1.001e-5  # added to a variance before its root is taken, as in keras-applications
HIDDEN = 128  # of fc
STAGES = (16, 32, 64)  # channels of the residual networks


class Layers(Protocol[A]):
    """What a library brings: layers as functions of their input and their tensors.

    Images have whatever layout the library prefers; flattened, they run pixel by pixel, channels fastest.
    """

    def features(self, x: A) -> int:
        """The number of channels of images, or of numbers in each row of a matrix."""

    def dense(self, x: A, w: A, b: A) -> A:
        """x w + b, of x (n, i), w (i, j) and b (j)."""

    def conv2d(self, x: A, w: A, b: A | None, *, stride: int, padding: str) -> A:
        """The convolution of images with kernels w (k, k, i, j), plus b (j); zeros around images as `margins` says."""

    def batch_norm(self, x: A, scale: A, shift: A) -> A:
        """(x - mean) / sqrt(variance + EPSILON) * scale + shift, channel by channel."""

    def max_pool(self, x: A) -> A:
        """The largest of each 2 x 2 pixels; a last odd row or column is left out."""

    def average_pool(self, x: A) -> A:
        """The mean of each channel over all pixels."""

    def relu(self, x: A) -> A:
        """max(x, 0), with derivative 0 at 0."""

    def flatten(self, x: A) -> A:
        """One row of numbers for each image."""

    def add(self, x: A, y: A) -> A:
        """x + y."""


@dataclass(frozen=True)
class Builder(Generic[A]):
    """The layers of a network under construction, as architectures call them.

    Layers with weights say how many features come out and take their tensors from `tensors`, in the order of the calls:
    that is the order in which the tensors lie in theta.
    """

    layers: Layers[A]
    tensors: Callable[[Layer], tuple[A, ...]]
    classes: int

    def dense(self, x: A, width: int) -> A:
        """Fully connected, to `width` numbers."""
        w, b = self.tensors(((self.layers.features(x), width), (width,)))
        return self.layers.dense(x, w, b)

    def conv2d(self, x: A, channels: int, k: int, stride: int = 1, padding: str = "valid", *, bias: bool = True) -> A:
        """A convolution with k x k kernels to `channels` channels."""
        kernels = (k, k, self.layers.features(x), channels)
        w, *b = self.tensors((kernels, (channels,)) if bias else (kernels,))
        return self.layers.conv2d(x, w, b[0] if bias else None, stride=stride, padding=padding)

    def batch_norm(self, x: A) -> A:
        """Batch norm with a scale and a shift for each channel: a layer of its own."""
        channels = self.layers.features(x)
        scale, shift = self.tensors(((channels,), (channels,)))
        return self.layers.batch_norm(x, scale, shift)

    def max_pool(self, x: A) -> A:
        """The largest of each 2 x 2 pixels."""
        return self.layers.max_pool(x)

    def average_pool(self, x: A) -> A:
        """The mean of each channel over all pixels."""
        return self.layers.average_pool(x)

    def relu(self, x: A) -> A:
        """max(x, 0)."""
        return self.layers.relu(x)

    def flatten(self, x: A) -> A:
        """One row of numbers for each image."""
        return self.layers.flatten(x)

    def add(self, x: A, y: A) -> A:
        """x + y."""
        return self.layers.add(x, y)


class Architecture(Protocol):
    """A function from images to logits. Two that are equal compute the same: a function, or a frozen dataclass."""

    def __call__(self, net: Builder[A], x: A, /) -> A:
        """Logits (n, net.classes) of the images x."""


@dataclass(frozen=True)
class Network:
    """An architecture for images of one shape and a number of classes: all that there is to know but theta.

    Networks are equal if their four fields are. Then they have the same tensors and compute the same, so that what a
    library compiled for one serves the other.
    """

    name: str
    input_shape: Shape
    classes: int
    forward: Architecture = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse here, in one sentence, what no library could run."""
        if not callable(self.forward):
            raise TypeError(
                f"forward of network {self.name!r} is {self.forward!r}, expected a function of a Builder and images: "
                "see rbd_ref/models/architectures.py"
            )
        object.__setattr__(self, "input_shape", _sides("input_shape", self.input_shape))
        object.__setattr__(self, "classes", integer("classes", self.classes, 2, TWO_32))
        self._check_hash()
        _ = self.layers  # follows the architecture once

    def _check_hash(self) -> None:
        """What is compiled for a network is found again by its hash."""
        try:
            hash(self)
        except TypeError as error:
            raise TypeError(
                f"network {self.name!r} has no hash ({error}), expected a forward that has one: "
                "write a function or a dataclass with frozen=True"
            ) from error

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The shapes of each layer's tensors, in the order in which they lie in theta."""
        found: list[Layer] = []

        def declare(layer: Layer) -> Layer:
            found.append(tuple(_sides("a tensor", shape) for shape in layer))
            return found[-1]

        try:
            logits = self.forward(Builder(Shapes(), declare, self.classes), self.input_shape)
        except MemoryError:
            raise
        except Exception as error:  # a function of the user's can raise anything
            raise self._unusable(f"{error or type(error).__name__}") from error
        if logits != (self.classes,) or not found:
            raise self._unusable(f"it ends in the shape {logits}, with {len(found)} layers that have tensors")
        return tuple(found)

    def _unusable(self, reason: str) -> ValueError:
        return ValueError(
            f"network {self.name!r} cannot be built for input_shape {self.input_shape} ({reason}), expected layers "
            f"that lead from there to {self.classes} logits: give another shape or correct the architecture"
        )

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
        return any(is_batch_norm(layer) for layer in self.layers)

    def apply(self, layers: Layers[A], tensors: Iterable[A], x: A) -> A:
        """Logits (n, classes) of images (n, *input_shape), by a library's layers from the tensors of theta in order."""
        source = iter(tensors)
        return self.forward(Builder(layers, lambda layer: tuple(islice(source, len(layer))), self.classes), x)


def is_batch_norm(layer: Layer) -> bool:
    """Scale and shift; every other layer has a tensor of weights, which has two axes or more."""
    return all(len(shape) == 1 for shape in layer)


# Shapes


def _sides(name: str, shape: Iterable[int]) -> Shape:
    """A shape of plain integers from 1 up."""
    return tuple(integer(f"a side of {name}", side, 1, TWO_32) for side in shape)


def margins(size: int, k: int, stride: int, padding: str) -> tuple[int, int, int]:
    """Zeros before and after `size` pixels, and how many pixels come out.

    `valid`: no zeros, (size - k) div stride + 1. `same`: as many as give ceil(size / stride), the odd one after.
    """
    if padding == "valid":
        return 0, 0, (size - k) // stride + 1
    out = -(-size // stride)
    total = max((out - 1) * stride + k - size, 0)
    return total // 2, total - total // 2, out


def _image(layer: str, x: Shape) -> Shape:
    """The shape of an image, or one sentence."""
    if len(x) != 3:
        raise ValueError(f"{layer} meets an input of shape {x}, expected (height, width, channels)")
    return x


def _left(layer: str, before: Shape, after: Shape) -> Shape:
    """The shape after a layer, in which pixels must be left."""
    if min(after) < 1:
        raise ValueError(f"{layer} meets an image of {before[0]} x {before[1]} pixels, of which it leaves none")
    return after


class Shapes:
    """`Layers` of shapes: an image is the tuple (height, width, channels), a row of numbers (i,), and tensors are their
    shapes. Nothing is computed; what does not fit together is refused."""

    def features(self, x: Shape) -> int:
        """The last side."""
        return x[-1]

    def dense(self, x: Shape, w: Shape, b: Shape) -> Shape:
        """(i,) to (j,)."""
        if len(x) != 1:
            raise ValueError(f"dense meets an input of shape {x}, expected a row of numbers: call flatten before it")
        return b

    def conv2d(self, x: Shape, w: Shape, b: Shape | None, *, stride: int, padding: str) -> Shape:
        """Height and width as `margins` says."""
        member("padding", padding, ("same", "valid"))
        height, width = (margins(side, w[0], stride, padding)[2] for side in _image("conv2d", x)[:2])
        return _left("conv2d", x, (height, width, w[3]))

    def batch_norm(self, x: Shape, scale: Shape, shift: Shape) -> Shape:
        """Of images only."""
        return _image("batch_norm", x)

    def max_pool(self, x: Shape) -> Shape:
        """Half of height and width."""
        height, width, channels = _image("max_pool", x)
        return _left("max_pool", x, (height // 2, width // 2, channels))

    def average_pool(self, x: Shape) -> Shape:
        """Channels only."""
        return _image("average_pool", x)[2:]

    def relu(self, x: Shape) -> Shape:
        """The same."""
        return x

    def flatten(self, x: Shape) -> Shape:
        """One side."""
        return (math.prod(x),)

    def add(self, x: Shape, y: Shape) -> Shape:
        """The same, of two that are alike."""
        if x != y:
            raise ValueError(f"add meets the shapes {x} and {y}, expected equal ones")
        return x


# The paper's networks


@dataclass(frozen=True)
class Mlp:
    """Fully connected layers with relu between them: sum of (width + 1) next width parameters."""

    hidden: tuple[int, ...]

    def __call__(self, net: Builder[A], x: A, /) -> A:
        """Through the hidden layers to logits."""
        x = net.flatten(x)
        for width in self.hidden:
            x = net.relu(net.dense(x, width))
        return net.dense(x, net.classes)


@dataclass(frozen=True)
class Cnn:
    """3 x 3 convolutions without padding, relu after each and 2 x 2 max pooling between them, then fully connected
    layers with relu, logits. All have biases.

    The paper's five layers have 32, 64 and 64 channels and one hidden layer of 64: D = 93,322 for 28 x 28 x 1,
    122,570 for 32 x 32 x 3. relu after pooling is relu before pooling, on a quarter of the numbers."""

    channels: tuple[int, ...]
    hidden: tuple[int, ...]

    def __call__(self, net: Builder[A], x: A, /) -> A:
        """Through the convolutions and the hidden layers to logits."""
        for channels in self.channels[:-1]:
            x = net.relu(net.max_pool(net.conv2d(x, channels, k=3)))
        x = net.relu(net.conv2d(x, self.channels[-1], k=3))
        return Mlp(self.hidden)(net, x)


@dataclass(frozen=True)
class ResNet:
    """A residual network of 6 blocks + 2 layers: a 3 x 3 convolution, three stages of 16, 32 and 64 channels with
    `blocks` blocks of two 3 x 3 convolutions, the mean over all pixels, logits.

    The first block of *every* stage has a 1 x 1 convolution on its shortcut; batch norm follows every convolution,
    those on shortcuts too; convolutions have no biases. Counted are kernels, scale and shift of each batch norm, and
    the last layer: all trainable, no moving averages. For 32 x 32 x 3 and 10 classes D is 78,330 (ResNet-8) and 467,194
    (ResNet-32). No ResNet code was released with the paper; this layout was found from what it prints: both
    counts, and 21 layers of ResNet-8 (d = 42 by layer where d = 2 without).
    """

    blocks: int

    def __call__(self, net: Builder[A], x: A, /) -> A:
        """Each block is relu(shortcut(x) + convolutions(x)); the first of stages two and three halve the sides."""
        x = net.relu(_normed(net, x, STAGES[0], k=3))
        for stage, channels in enumerate(STAGES):
            for block in range(self.blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                shortcut = _normed(net, x, channels, k=1, stride=stride) if block == 0 else x
                x = net.relu(_normed(net, x, channels, k=3, stride=stride))
                x = net.relu(net.add(shortcut, _normed(net, x, channels, k=3)))
        return net.dense(net.average_pool(x), net.classes)


def _normed(net: Builder[A], x: A, channels: int, k: int, stride: int = 1) -> A:
    """A convolution without bias and the batch norm that follows it: two layers."""
    return net.batch_norm(net.conv2d(x, channels, k, stride, "same", bias=False))


ARCHITECTURES: dict[str, Architecture] = {
    "fc": Mlp(hidden=(HIDDEN,)),
    "cnn": Cnn(channels=(32, 64, 64), hidden=(64,)),
    "resnet8": ResNet(blocks=1),
    "resnet32": ResNet(blocks=5),
}
NAMES = tuple(ARCHITECTURES)
