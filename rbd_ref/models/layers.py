"""Layers for HIPS autograd: every operation of operations.py as a primitive with its gradient.

This is how the gradient of a network is defined: architectures.py calls these layers, and autograd applies the chain
rule. plan.py gives the same bits without a tape, and is what training runs.
Tests: tests/test_networks.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from autograd.extend import defvjp, defvjp_argnums, primitive

from rbd_ref.models import convolution, operations
from rbd_ref.models.architectures import Shape
from rbd_ref.models.normalisation import BatchNorm
from rbd_ref.models.product import Array


def _prepare(kind: Any, args: tuple[Array, ...], options: Any) -> tuple[Any, list[Array]]:
    """An operation for these arguments, and the arguments as it takes them."""
    arrays: list[Array] = [None if array is None else np.ascontiguousarray(array) for array in args]
    shapes = [None if array is None else array.shape for array in arrays]
    return kind(arrays[0].dtype, *shapes, **options), arrays


def as_primitive(kind: Any) -> Any:
    """Autograd's primitive of an operation, which is made anew for every call."""

    def call(*args: Array, **options: Any) -> Array:
        operation, arrays = _prepare(kind, args, options)
        return operation.forward(*arrays)

    def backward(argnums: tuple[int, ...], ans: Array, args: tuple[Array, ...], options: Any) -> Any:
        def back(g: Array) -> tuple[Array, ...]:
            operation, arrays = _prepare(kind, args, options)
            operation.forward(*arrays)
            into = [np.empty_like(array) if i in argnums else None for i, array in enumerate(arrays)]
            operation.backward(np.array(g, dtype=operation.dtype, order="C"), into)
            return tuple(into[argnum] for argnum in argnums)

        return back

    made = primitive(call)
    made.__doc__ = kind.__doc__
    defvjp_argnums(made, backward)
    return made


dense = as_primitive(operations.Dense)
conv2d = as_primitive(convolution.Conv2d)
batch_norm = as_primitive(BatchNorm)
max_pool = as_primitive(convolution.MaxPool)
average_pool = as_primitive(convolution.AveragePool)
relu = as_primitive(operations.Relu)
flatten = as_primitive(operations.Flatten)
add = as_primitive(operations.Add)
cross_entropy = as_primitive(operations.CrossEntropy)


def moments(x: Array) -> tuple[Array, Array]:
    """Mean and variance of each channel over images and pixels."""
    channels: Shape = x.shape[-1:]
    return BatchNorm(x.dtype, x.shape, channels, channels).moments(x)


def normalise(x: Array, scale: Array, shift: Array, mean: Array, variance: Array) -> Array:
    """(x - mean) / sqrt(variance + EPSILON) * scale + shift, of channels with the mean and variance given."""
    return BatchNorm(x.dtype, x.shape, scale.shape, shift.shape).normalise(x, scale, shift, mean, variance)


def _split(theta: Array, shapes: tuple[Shape, ...]) -> tuple[Array, ...]:
    sizes = [int(np.prod(shape)) for shape in shapes]
    pieces = np.split(theta, np.cumsum(sizes)[:-1])
    return tuple(piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True))


split = primitive(_split)
split.__doc__ = """The flat vector cut into tensors of these shapes, in order; the gradient is put together again."""
defvjp(split, lambda ans, theta, shapes: lambda g: np.concatenate([np.ravel(piece) for piece in g]), argnums=(0,))


class AutogradLayers:
    """`architectures.Layers` of autograd: the primitives above, batch norm as in training."""

    def features(self, x: Array) -> int:
        """The length of the last axis."""
        return int(x.shape[-1])

    def dense(self, x: Array, w: Array, b: Array) -> Array:
        """`dense`."""
        return dense(x, w, b)

    def conv2d(self, x: Array, w: Array, b: Array | None, *, stride: int, padding: str) -> Array:
        """`conv2d`."""
        return conv2d(x, w, b, stride=stride, padding=padding)

    def batch_norm(self, x: Array, scale: Array, shift: Array) -> Array:
        """`batch_norm`, with the mean and variance of the batch."""
        return batch_norm(x, scale, shift)

    def max_pool(self, x: Array) -> Array:
        """`max_pool`."""
        return max_pool(x)

    def average_pool(self, x: Array) -> Array:
        """`average_pool`."""
        return average_pool(x)

    def relu(self, x: Array) -> Array:
        """`relu`."""
        return relu(x)

    def flatten(self, x: Array) -> Array:
        """(n, ...) as (n, i)."""
        return flatten(x)

    def add(self, x: Array, y: Array) -> Array:
        """x + y."""
        return add(x, y)
