"""Networks by name: the paper's four, and those whose name lists their layers.

    mlp:64-32-10                            inputs, hidden layers, classes
    cnn:32-64-64/64                         channels of 3 x 3 convolutions with 2 x 2 max pooling between them, then the
                                            widths of hidden layers; this one is `cnn`
    layers:conv32-norm-relu-pool-dense64    any layers one after the other; one to the classes follows by itself

What `layers:` may list: `convN` is a convolution to N channels, 3 x 3 without padding; `k5` after it changes the side
of its kernels, `s2` its stride, and `same` puts zeros around images, so that only the stride makes them smaller
(conv32k5s2same). `denseN` is fully connected, to N numbers. `norm` is batch norm, `pool` the largest of each 2 x 2
pixels, `mean` the mean over all pixels, and `relu`.
Needs no library, as architectures.py.
Tests: tests/test_networks.py.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rbd_ref._check import integer, member
from rbd_ref._types import TWO_32
from rbd_ref.models.architectures import ARCHITECTURES, NAMES, A, Architecture, Builder, Cnn, Mlp, Network

MOST_LAYERS = 1000  # in a name: they are taken one after the other, and thousands of them for ever
MOST_DIGITS = 10  # of a number: one that has more is no side of a tensor
FORMS = ("mlp:64-32-10", "cnn:32-64-64/64", "layers:conv32-relu-pool-dense64-relu")
CONVOLUTION = re.compile(r"conv(\d{1,10})(?:k(\d{1,3}))?(?:s(\d{1,3}))?(same)?", re.ASCII)
DENSE = re.compile(r"dense(\d{1,10})", re.ASCII)


@dataclass(frozen=True)
class Sequential:
    """Layers one after the other, as the words of a name list them, and one to the classes."""

    words: tuple[str, ...]

    def __call__(self, net: Builder[A], x: A, /) -> A:
        """Through all of them."""
        for word in self.words:
            x = _apply(net, x, word)
        return net.dense(net.flatten(x), net.classes)


def _apply(net: Builder[A], x: A, word: str) -> A:
    """One layer."""
    if found := CONVOLUTION.fullmatch(word):
        channels, k, stride, same = found.groups()
        side = integer("the side of kernels", int(k or 3), 1, TWO_32)
        step = integer("stride", int(stride or 1), 1, TWO_32)
        return net.conv2d(x, int(channels), side, step, "same" if same else "valid")
    if found := DENSE.fullmatch(word):
        return net.dense(net.flatten(x), int(found[1]))
    return {"norm": net.batch_norm, "pool": net.max_pool, "mean": net.average_pool, "relu": net.relu}[word](x)


def _refuse(name: str, what: str, expected: str) -> ValueError:
    """One sentence about a name that cannot be read."""
    return ValueError(f"network {reprlib.repr(name)} has {what} that can be read, expected {expected}")


def _widths(name: str, text: str, least: int, expected: str) -> tuple[int, ...]:
    """Numbers from 1 up with hyphens between them."""
    texts = text.split("-") if text else []
    readable = all(text.isdecimal() and len(text) <= MOST_DIGITS and int(text) > 0 for text in texts)
    if not least <= len(texts) <= MOST_LAYERS or not readable:
        numbers = (
            f"{least} to {MOST_LAYERS} numbers from 1 up, of {MOST_DIGITS} digits at most, with hyphens between them"
        )
        raise _refuse(name, "no widths", expected.format(numbers=numbers))
    return tuple(int(text) for text in texts)


def _cnn(name: str, text: str) -> Architecture:
    """`32-64-64/64`; without a slash there are no hidden layers."""
    channels, _, hidden = text.partition("/")
    expected = "cnn: and {numbers}, and after a slash those of hidden layers, as in cnn:32-64-64/64"
    return Cnn(_widths(name, channels, 1, expected), _widths(name, hidden, 1 if "/" in text else 0, expected))


def _layers(name: str, text: str) -> Architecture:
    """`conv32-relu-pool-dense64`."""
    words = tuple(text.split("-")) if text else ()
    known = ("norm", "pool", "mean", "relu")
    for word in words:
        if word not in known and not CONVOLUTION.fullmatch(word) and not DENSE.fullmatch(word):
            raise _refuse(
                name, f"no layer {reprlib.repr(word)}", "conv32, conv32k5s2same, dense64, norm, pool, mean or relu"
            )
    if len(words) > MOST_LAYERS:
        raise _refuse(name, f"{len(words)} layers, more", f"{MOST_LAYERS} at most")
    return Sequential(words)


def _make_mlp(name: str, input_shape: Sequence[int] | None, classes: int | None) -> Network:
    """The name says it all; what is given beside it has to fit."""
    expected = "mlp: and {numbers}, as in mlp:64-32-10: inputs, hidden layers, classes"
    widths = _widths(name, name.removeprefix("mlp:"), 2, expected)
    shape = widths[:1] if input_shape is None else tuple(input_shape)
    network = Network(name, shape, widths[-1], Mlp(hidden=widths[1:-1]))
    if math.prod(shape) != widths[0] or classes not in (None, widths[-1]):
        raise ValueError(
            f"network {name!r} goes from {widths[0]} numbers to {widths[-1]} classes, expected it to fit what else is "
            f"given, input_shape {shape} and classes {classes}: change the first or the last width"
        )
    return network


def _architecture(name: Any) -> Architecture:
    """The architecture of any name but that of an mlp."""
    kind, colon, text = name.partition(":") if isinstance(name, str) else (name, "", "")
    if colon and kind in ("cnn", "layers"):
        return _cnn(name, text) if kind == "cnn" else _layers(name, text)
    if name not in ARCHITECTURES:
        member("network", name, (*NAMES, *FORMS))
    return ARCHITECTURES[name]


def make(name: str, input_shape: Sequence[int] | None = None, classes: int | None = None) -> Network:
    """The network of this name.

    Args:
        name: one of the paper's networks, `fc` (128 hidden), `cnn`, `resnet8` or `resnet32`; or a list of layers:
            `mlp:64-32-10` (inputs, hidden layers, classes), `cnn:32-64-64/64` (channels of convolutions, hidden
            layers) or `layers:conv32-norm-relu-pool-dense64` (see rbd_ref/models/names.py).
        input_shape: the shape of one image, (height, width, channels); optional for an mlp.
        classes: the number of classes; optional for an mlp.

    Returns:
        The `Network`: its layers and their shapes, its number of parameters D, no weights.

    >>> make("cnn", (32, 32, 3), 10).D, make("cnn:32-64-64/64", (32, 32, 3), 10).D
    (122570, 122570)
    >>> make("mlp:64-32-10").layers
    (((64, 32), (32,)), ((32, 10), (10,)))
    >>> make("layers:conv8k5s2same-norm-relu-mean", (28, 28, 1), 10).layers
    (((5, 5, 1, 8), (8,)), ((8,), (8,)), ((8, 10), (10,)))
    """
    if isinstance(name, str) and name.startswith("mlp:"):
        return _make_mlp(name, input_shape, classes)
    architecture = _architecture(name)
    if not input_shape:
        raise ValueError(
            f"input_shape of {name} is {input_shape}, expected (height, width, channels), as in (32, 32, 3): "
            "give the shape of one image"
        )
    return Network(name, tuple(input_shape), integer("classes", classes, 2, TWO_32), architecture)
