"""Batch norm: each channel of a batch to mean 0 and variance 1, then a scale and a shift that are learned.

All sums are over the pixels of an image in order, in binary64, then over images in order; means of them are divided in
binary64 and rounded once. With relu after it, which costs no pass of its own.
Tests: tests/test_networks.py.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from rbd_ref.kernels._jit import device, parallel_kernel, prange
from rbd_ref.models.architectures import EPSILON, Shape
from rbd_ref.models.operations import Into, Operation, by_image, sum_rows, sums_by_image
from rbd_ref.models.product import Array


@device
def square(x: Any, mean: Any) -> Any:
    """(x - mean)^2, difference and square rounded once each."""
    centred = x - mean
    return centred * centred


@parallel_kernel
def squares_by_image(x: Array, mean: Array, out: Array) -> None:
    """out_nc = sum over p of (x_npc - mean_c)^2, in order and in binary64; four at a time, as out is in memory."""
    whole = x.shape[1] - x.shape[1] % 4
    for n in prange(x.shape[0]):
        out[n] = 0.0
        for p in range(0, whole, 4):
            for c in range(x.shape[2]):
                total = out[n, c] + square(x[n, p, c], mean[c])
                total = total + square(x[n, p + 1, c], mean[c])
                total = total + square(x[n, p + 2, c], mean[c])
                out[n, c] = total + square(x[n, p + 3, c], mean[c])
        for p in range(whole, x.shape[1]):
            for c in range(x.shape[2]):
                out[n, c] += square(x[n, p, c], mean[c])


@parallel_kernel
def scale_and_shift(x: Array, mean: Array, r: Array, scale: Array, shift: Array, floor: Any, out: Array) -> None:
    """(((x - mean) r) scale) + shift, each operation rounded once, and at least `floor`."""
    for n in prange(x.shape[0]):
        for p in range(x.shape[1]):
            for c in range(x.shape[2]):
                y = (x[n, p, c] - mean[c]) * r[c] * scale[c] + shift[c]
                out[n, p, c] = floor if y <= floor else y


@parallel_kernel
def slopes_by_image(x: Array, mean: Array, r: Array, g: Array, out: Array) -> None:
    """With z = (x - mean) r: out_n0c = sum over p of g, out_n1c = sum over p of g z, in order and in binary64."""
    whole = x.shape[1] - x.shape[1] % 4
    for n in prange(x.shape[0]):
        out[n] = 0.0
        for p in range(0, whole, 4):
            for c in range(x.shape[2]):
                total = out[n, 0, c] + g[n, p, c]
                total = total + g[n, p + 1, c]
                total = total + g[n, p + 2, c]
                out[n, 0, c] = total + g[n, p + 3, c]
                total = out[n, 1, c] + g[n, p, c] * ((x[n, p, c] - mean[c]) * r[c])
                total = total + g[n, p + 1, c] * ((x[n, p + 1, c] - mean[c]) * r[c])
                total = total + g[n, p + 2, c] * ((x[n, p + 2, c] - mean[c]) * r[c])
                out[n, 1, c] = total + g[n, p + 3, c] * ((x[n, p + 3, c] - mean[c]) * r[c])
        for p in range(whole, x.shape[1]):
            for c in range(x.shape[2]):
                out[n, 0, c] += g[n, p, c]
                out[n, 1, c] += g[n, p, c] * ((x[n, p, c] - mean[c]) * r[c])


@parallel_kernel
def slopes_to_images(
    x: Array, mean: Array, r: Array, factor: Array, dshift: Array, dscale: Array, g: Array, out: Array
) -> None:
    """factor ((g - dshift) - z dscale) with z = (x - mean) r, each operation rounded once."""
    for n in prange(x.shape[0]):
        for p in range(x.shape[1]):
            for c in range(x.shape[2]):
                z = (x[n, p, c] - mean[c]) * r[c]
                out[n, p, c] = factor[c] * ((g[n, p, c] - dshift[c]) - z * dscale[c])


def inverse_deviation(variance: Array) -> Array:
    """1 / sqrt(variance + EPSILON)."""
    return (1 / np.sqrt(variance.astype(np.float64) + EPSILON)).astype(variance.dtype)


class BatchNorm(Operation):
    """(x - mean) / sqrt(variance + EPSILON) * scale + shift, channel by channel, with mean and variance of the batch.

    With z = (x - mean) r, r = 1 / sqrt(variance + EPSILON) and the sums over the m numbers of a channel:
    dshift = sum g, dscale = sum g z, dx = scale r (g - dshift / m - z dscale / m)."""

    def __init__(self, dtype: Any, x: Shape, scale: Shape, shift: Shape) -> None:
        super().__init__(dtype, x)
        n, height, width, channels = x
        self.m = n * height * width
        self.sums = np.empty((n, channels))
        self.total = np.empty(channels)

    @cached_property
    def _slopes(self) -> tuple[Array, Array]:
        """Room for the sums of the gradient: of each image, and of all."""
        n, channels = self.sums.shape
        return np.empty((n, 2, channels)), np.empty((2, channels))

    def moments(self, x: Array) -> tuple[Array, Array]:
        """Mean and variance (the mean square distance from the mean) of each channel over images and pixels."""
        rows = by_image(x)
        sums_by_image(rows, self.sums)
        mean = self._mean()
        squares_by_image(rows, mean, self.sums)
        return mean, self._mean()

    def _mean(self) -> Array:
        sum_rows(self.sums, self.total)
        return (self.total / self.m).astype(self.dtype)

    def normalise(self, x: Array, scale: Array, shift: Array, mean: Array, variance: Array) -> Array:
        """With the mean and variance given."""
        self.x = x
        self.scale = scale
        self.mean = mean
        self.r = inverse_deviation(variance)
        floor = self.dtype.type(self.floor)
        scale_and_shift(by_image(x), mean, self.r, scale, shift, floor, by_image(self.out))
        return self.out

    def forward(self, x: Array, scale: Array, shift: Array) -> Array:
        """With the mean and variance of the batch."""
        return self.normalise(x, scale, shift, *self.moments(x))

    def backward(self, g: Array, into: Into) -> None:
        """Through mean and variance too."""
        dx, dscale, dshift = into
        each, both = self._slopes
        rows = by_image(self.x)
        slopes_by_image(rows, self.mean, self.r, by_image(self.gate(g)), each)
        sum_rows(each.reshape(len(each), -1), both.reshape(-1))
        for target, total in ((dshift, both[0]), (dscale, both[1])):
            if target is not None:
                np.copyto(target, total, casting="same_kind")
        if dx is not None:
            first, second = (both / self.m).astype(self.dtype)
            slopes_to_images(rows, self.mean, self.r, self.scale * self.r, first, second, by_image(g), by_image(dx))
