"""Convolutions and pooling: operations on the pixels of images; see operations.py for what an operation is.

A convolution is the product of product.py, whose indices say where the pixels of each patch lie: none is copied, on the
way there or back. Only images and slopes that need zeros around them are copied, to where there are zeros.
Tests: tests/test_convolution.py, tests/test_networks.py.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rbd_ref._types import Indices
from rbd_ref.kernels._jit import parallel_kernel, prange
from rbd_ref.models.architectures import Shape, margins
from rbd_ref.models.operations import Into, Operation, by_image, sum_rows, sums_by_image
from rbd_ref.models.product import Array, Product

# Convolutions


@parallel_kernel
def enter(x: Array, wide: Array, top: int, left: int) -> None:
    """Images (n, height, width * channels) go inside larger ones."""
    for n in prange(x.shape[0]):
        for y in range(x.shape[1]):
            for i in range(x.shape[2]):
                wide[n, top + y, left + i] = x[n, y, i]


def by_row(x: Array) -> Array:
    """(n, height, width, channels) as (n, height, width * channels)."""
    return x.reshape(*x.shape[:2], -1)


class Window:
    """Where the patches of a convolution lie in its images, with the zeros around them."""

    def __init__(self, x: Shape, w: Shape, stride: int, padding: str) -> None:
        self.n, self.height, self.width, self.channels = x
        k = w[0]
        self.top, below, self.rows = margins(self.height, k, stride, padding)
        self.left, beyond, self.columns = margins(self.width, k, stride, padding)
        self.padded = (self.n, self.height + self.top + below, self.width + self.left + beyond, self.channels)
        line = self.padded[2]
        self.image = math.prod(self.padded[1:])
        self.pixels = _grid(self.rows, self.columns, line) * (stride * self.channels)
        self.taps = _grid(k, k, line) * self.channels
        self.places = (self.taps[:, np.newaxis] + np.arange(self.channels)).ravel()


def _grid(rows: int, columns: int, line: int) -> Array:
    """The numbers of pixels (0 .. rows - 1, 0 .. columns - 1) of an image with `line` pixels in each row."""
    return (np.arange(rows)[:, np.newaxis] * line + np.arange(columns)).ravel()


class Conv2d(Operation):
    """y[n, u, v, j] = b[j] + the sum over p, q, c of x[n, s u + p - top, s v + q - left, c] w[p, q, c, j].

    By fma, from b or +0, with c running fastest, then q, then p; the zeros around an image are terms as others are.
    x (n, height, width, channels), w (k, k, channels, j), b (j) or None; stride s; padding `valid` (top = left = 0) or
    `same`, with zeros around x as `margins` says. Gradients, by fma from +0:

        dw[p, q, c, j]  takes x[n, s u + p - top, s v + q - left, c] g[n, u, v, j] in order of n, then u, then v
        dx[n, y, x, c]  takes w[p, q, c, j] g[n, u, v, j] for s u + p - top = y, s v + q - left = x, in order of p, q, j
        db[j]           the sum of g over pixels, in order and in binary64, then over images in order
    """

    def __init__(
        self, dtype: Any, x: Shape, w: Shape, b: Shape | None = None, *, stride: int = 1, padding: str = "valid"
    ) -> None:
        window = Window(x, w, stride, padding)
        j = w[3]
        super().__init__(dtype, (window.n, window.rows, window.columns, j))
        self.window = window
        self.kernels = w
        self.padded = window.padded != x
        rows = np.arange(len(window.pixels)) * j
        size = len(rows) * j
        starts = np.arange(window.n) * window.image
        self.product = Product(window.pixels, window.places, rows, count=window.n, images=(window.image, size))
        self.to_weights = Product(
            window.places, window.pixels, np.arange(len(window.places)) * j, taps=(starts, np.zeros_like(starts))
        )
        self.to_images = Gather(self, stride) if self.padded else Scatter(self)
        self.zeros = np.zeros(j, dtype=self.dtype)

    @cached_property
    def _wide(self) -> Array:
        """Room for images with zeros around them, which stay."""
        return np.zeros(self.window.padded, dtype=self.dtype)

    @cached_property
    def _turned(self) -> Array:
        """Room for kernels (k k, j, channels)."""
        k, _, channels, j = self.kernels
        return np.empty((k * k, j, channels), dtype=self.dtype)

    @cached_property
    def _sums(self) -> Array:
        """Room for sums by image."""
        return np.empty((self.window.n, self.shape[3]))

    def forward(self, x: Array, w: Array, b: Array | None = None) -> Array:
        """b + the patches of x times w."""
        if self.padded:
            enter(by_row(x), by_row(self._wide), self.window.top, self.window.left * self.window.channels)
            x = self._wide
        self.x = x
        self.w = w
        start = self.zeros if b is None else b
        self.product(x, w.reshape(1, -1, w.shape[3]), self.out.reshape(-1), start, floor=self.floor)
        return self.out

    def backward(self, g: Array, into: Into) -> None:
        """g w^T where the patches were, the patches transposed times g, and the sum of g."""
        dx, dw, db = (*into, None)[:3]
        self.gate(g)
        rows = by_image(g)
        if dw is not None:
            self.to_weights(self.x, rows, dw.reshape(-1), self.zeros)
        if db is not None:
            sums_by_image(rows, self._sums)
            sum_rows(self._sums, db)
        if dx is not None:
            np.copyto(self._turned, self.w.reshape(-1, *self.w.shape[2:]).transpose(0, 2, 1))
            self.to_images(g, self._turned, dx)


class Scatter:
    """dx without zeros around the images: tap by tap, every pixel of g adds to the pixel that it came from.

    Each tap reads dx and writes it again; but no term is one of a pixel of g that is not there."""

    def __init__(self, layer: Conv2d) -> None:
        window = layer.window
        j = layer.shape[3]
        rows = np.arange(len(window.pixels)) * j
        taps = (np.zeros_like(window.taps), window.taps)
        images = (len(rows) * j, window.image)
        self.product = Product(rows, np.arange(j), window.pixels, taps=taps, count=window.n, images=images)

    def __call__(self, g: Array, kernels: Array, dx: Array) -> None:
        """dx from g and the kernels (k k, j, channels)."""
        self.product(g, kernels, dx.reshape(-1))


class Phase(NamedTuple):
    """Along an axis, the pixels first, first + s, ...: all of them have the same taps.

    Tap p of pixel first + s i meets the slope i + shift_p, counted with the zeros before the slopes."""

    first: int
    pixels: int
    taps: Array
    shifts: Array


class Axis:
    """An axis of `size` pixels, with `before` zeros, whose slopes are `out`."""

    def __init__(self, size: int, k: int, stride: int, before: int, out: int) -> None:
        self.zeros = max(0, -((before - k + 1) // stride))  # before the slopes, so that there is one for every tap
        self.length = self.zeros + max(out, (size - 1 + before) // stride + 1)
        self.phases = []
        for first in range(min(stride, size)):
            taps = np.arange((first + before) % stride, k, stride)
            shifts = (first + before - taps) // stride + self.zeros
            self.phases.append(Phase(first, len(range(first, size, stride)), taps, shifts))


class Gather:
    """dx with zeros around the images: every pixel of dx takes all of its terms, while its sum stays in registers.

    With stride s there are s s kinds of pixels, which have unlike taps. Slopes that are not there are zeros: such a
    term, +0 or -0, changes no bit of a sum that began at +0."""

    def __init__(self, layer: Conv2d, stride: int) -> None:
        window = layer.window
        k = layer.kernels[0]
        self.layer = layer
        self.down = Axis(window.height, k, stride, window.top, window.rows)
        self.across = Axis(window.width, k, stride, window.left, window.columns)
        self.parts = [self._part(y, x, k, stride) for y in self.down.phases for x in self.across.phases]
        self.zeros = np.zeros(window.channels, dtype=layer.dtype)

    def _part(self, y: Phase, x: Phase, k: int, stride: int) -> tuple[Indices, Product]:
        """The taps of one kind of pixels, and their product."""
        window = self.layer.window
        j = self.layer.shape[3]
        line = self.across.length
        shifts = (y.shifts[:, np.newaxis] * line + x.shifts).ravel() * j
        pixels = _grid(y.pixels, x.pixels, window.width) * stride + (y.first * window.width + x.first)
        product = Product(
            _grid(y.pixels, x.pixels, line) * j,
            (shifts[:, np.newaxis] + np.arange(j)).ravel(),
            pixels * window.channels,
            count=window.n,
            images=(self.down.length * line * j, window.height * window.width * window.channels),
        )
        return (y.taps[:, np.newaxis] * k + x.taps).ravel(), product

    @cached_property
    def _wide(self) -> Array:
        """Room for slopes with zeros around them, which stay."""
        return np.zeros(
            (self.layer.window.n, self.down.length, self.across.length, self.layer.shape[3]), self.zeros.dtype
        )

    @cached_property
    def _chosen(self) -> list[Array]:
        """Room for the kernels of each kind of pixels."""
        j = self.layer.shape[3]
        return [np.empty((len(taps), j, self.zeros.size), dtype=self.zeros.dtype) for taps, _ in self.parts]

    def __call__(self, g: Array, kernels: Array, dx: Array) -> None:
        """dx from g and the kernels (k k, j, channels)."""
        enter(by_row(g), by_row(self._wide), self.down.zeros, self.across.zeros * g.shape[3])
        for (taps, product), chosen in zip(self.parts, self._chosen, strict=True):
            np.take(kernels, taps, axis=0, out=chosen, mode="clip")  # any other mode makes a copy first
            product(self._wide, chosen.reshape(1, -1, self.zeros.size), dx.reshape(-1), self.zeros)


# Pooling


@parallel_kernel
def pool(x: Array, out: Array, which: Array, floor: Any) -> None:
    """The largest of each 2 x 2 pixels, `which` of them it is, and 4 where that is not above `floor`."""
    for n in prange(out.shape[0]):
        for u in range(out.shape[1]):
            for v in range(out.shape[2]):
                for c in range(out.shape[3]):
                    most = x[n, 2 * u, 2 * v, c]
                    place = 0
                    if x[n, 2 * u, 2 * v + 1, c] > most:
                        most = x[n, 2 * u, 2 * v + 1, c]
                        place = 1
                    if x[n, 2 * u + 1, 2 * v, c] > most:
                        most = x[n, 2 * u + 1, 2 * v, c]
                        place = 2
                    if x[n, 2 * u + 1, 2 * v + 1, c] > most:
                        most = x[n, 2 * u + 1, 2 * v + 1, c]
                        place = 3
                    out[n, u, v, c] = floor if most <= floor else most
                    which[n, u, v, c] = 4 if most <= floor else place


@parallel_kernel
def unpool(g: Array, which: Array, out: Array) -> None:
    """g to the pixel that was the largest, +0 to the others; rows and columns that were left out stay as they are."""
    zero = g.dtype.type(0)
    for n in prange(g.shape[0]):
        for u in range(g.shape[1]):
            for v in range(g.shape[2]):
                for c in range(g.shape[3]):
                    share = g[n, u, v, c]
                    place = which[n, u, v, c]
                    out[n, 2 * u, 2 * v, c] = share if place == 0 else zero
                    out[n, 2 * u, 2 * v + 1, c] = share if place == 1 else zero
                    out[n, 2 * u + 1, 2 * v, c] = share if place == 2 else zero
                    out[n, 2 * u + 1, 2 * v + 1, c] = share if place == 3 else zero


class MaxPool(Operation):
    """The largest of each 2 x 2 pixels; a last odd row or column is left out.

    The gradient goes to the first of equals, row by row."""

    def __init__(self, dtype: Any, x: Shape) -> None:
        n, height, width, channels = x
        super().__init__(dtype, (n, height // 2, width // 2, channels))
        self.which = np.empty(self.shape, dtype=np.uint8)

    def forward(self, x: Array) -> Array:
        """Numbers, and where they were."""
        pool(x, self.out, self.which, self.dtype.type(self.floor))
        return self.out

    def backward(self, g: Array, into: Into) -> None:
        """To where they were."""
        dx = into[0]
        if dx is None:
            return
        _, rows, columns, _ = self.shape
        dx[:, 2 * rows :] = 0
        dx[:, :, 2 * columns :] = 0
        unpool(g, self.which, dx)


class AveragePool(Operation):
    """The mean of each channel over all pixels, (n, channels): their sum in order and in binary64, divided, rounded.

    dx is g / pixels everywhere."""

    def __init__(self, dtype: Any, x: Shape) -> None:
        super().__init__(dtype, (x[0], x[3]))
        self.pixels = x[1] * x[2]
        self.sums = np.empty(self.shape)

    def forward(self, x: Array) -> Array:
        """The means."""
        sums_by_image(by_image(x), self.sums)
        np.divide(self.sums, self.pixels, out=self.sums)
        np.copyto(self.out, self.sums, casting="same_kind")
        return self.out

    def backward(self, g: Array, into: Into) -> None:
        """The same to all pixels."""
        dx = into[0]
        if dx is not None:
            np.copyto(dx, np.divide(g, self.dtype.type(self.pixels), out=g)[:, np.newaxis, np.newaxis])
