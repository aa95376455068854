"""Operations of networks: what each layer computes, its gradient, and the arrays that it needs, made once.

An operation is made for shapes. `forward` takes arrays of these shapes and returns an array that belongs to the
operation: the next `forward` overwrites it. `backward` takes the gradient with respect to that result, which it may
overwrite, and writes the gradients with respect to the arguments where it is told. layers.py makes autograd's
primitives of them, which make an operation for every call; plan.py makes each operation of a network once and runs it
at every step. So both have the same bits, and a step allocates nothing.

Every sum is taken in the order that its docstring says, and work is divided among threads only where nothing is added
up: the bits are the same with any number of threads. No kernel allocates: memory that is missing inside a parallel
loop would go unnoticed. Images are (n, height, width, channels), in float32; float64 is how gradients are checked.
Tests: tests/test_networks.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from rbd_ref.kernels._jit import kernel, parallel_kernel, prange
from rbd_ref.models.architectures import Shape, margins
from rbd_ref.models.elementary import exp, log
from rbd_ref.models.product import Array, Product, transposed

CHUNK = 2**14  # numbers that one thread takes at a time
Into = Sequence[Array | None]  # an array for each argument's gradient, None where nobody asks for it


@kernel
def close_part(y: Array, g: Array, out: Array) -> None:
    """out_i = +0 where y_i <= 0, else g_i."""
    zero = y.dtype.type(0)
    for i in range(g.size):
        value = g[i]
        out[i] = zero if y[i] <= zero else value


@parallel_kernel
def close_in_parallel(y: Array, g: Array, out: Array) -> None:
    """`close_part`, divided among threads."""
    for t in prange((g.size + CHUNK - 1) // CHUNK):
        first = t * CHUNK
        last = min(first + CHUNK, g.size)
        close_part(y[first:last], g[first:last], out[first:last])


def close(y: Array, g: Array, out: Array) -> None:
    """out = +0 where y <= 0, else g; out may be g."""
    run = close_in_parallel if g.size > CHUNK else close_part
    run(y.reshape(-1), g.reshape(-1), out.reshape(-1))


class Operation:
    """What operations have in common: the shape and type of the result, and whether relu follows.

    relu after an operation costs no pass of its own: results are at least `floor`, which is 0 or -infinity, and `gate`
    takes the gradient to 0 where they are 0.
    """

    def __init__(self, dtype: Any, shape: Shape) -> None:
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self.floor = -math.inf

    @cached_property
    def out(self) -> Array:
        """Where results go."""
        return np.empty(self.shape, dtype=self.dtype)

    def gate(self, g: Array) -> Array:
        """g, with +0 where relu follows and its result is 0."""
        if self.floor == 0:
            close(self.out, g, g)
        return g

    def forward(self, *arguments: Array) -> Array:
        """The result."""
        raise NotImplementedError

    def backward(self, g: Array, into: Into) -> None:
        """The gradients with respect to the arguments, from that with respect to the result."""
        raise NotImplementedError


# Sums


@parallel_kernel
def sums_by_image(x: Array, out: Array) -> None:
    """out_nc = sum over p of x_npc, in order of p from +0, in binary64."""
    whole = x.shape[1] - x.shape[1] % 4
    for n in prange(x.shape[0]):
        out[n] = 0.0
        for p in range(0, whole, 4):
            for c in range(x.shape[2]):
                total = out[n, c] + x[n, p, c]
                total = total + x[n, p + 1, c]
                total = total + x[n, p + 2, c]
                out[n, c] = total + x[n, p + 3, c]
        for p in range(whole, x.shape[1]):
            for c in range(x.shape[2]):
                out[n, c] += x[n, p, c]


@kernel
def sum_rows(x: Array, out: Array) -> None:
    """out_c = x_0c + x_1c + ..., from the left, in the type of x and rounded to that of out at the end."""
    for c in range(x.shape[1]):
        total = x[0, c]
        for n in range(1, x.shape[0]):
            total = total + x[n, c]
        out[c] = total


def by_image(x: Array) -> Array:
    """(n, ..., c) as (n, p, c)."""
    return x.reshape(x.shape[0], -1, x.shape[-1])


# Dense layers


class Dense(Operation):
    """y_nj = b_j + sum over i of x_ni w_ij, by fma in order of i, of x (n, i), w (i, j) and b (j).

    dx_ni = sum over j of g_nj w_ij in order of j, dw_ij = sum over n of x_ni g_nj in order of n, both by fma from +0;
    db_j = g_0j + g_1j + ...
    """

    def __init__(self, dtype: Any, x: Shape, w: Shape, b: Shape) -> None:
        n, i = x
        j = w[1]
        super().__init__(dtype, (n, j))
        self.product = Product(np.arange(n) * i, np.arange(i), np.arange(n) * j)
        self.to_weights = Product(*transposed(i, n), np.arange(i) * j)
        self.to_images = Product(np.arange(n) * j, np.arange(j), np.arange(n) * i)
        self.zeros = np.zeros(max(i, j), dtype=self.dtype)

    @cached_property
    def _turned(self) -> Array:
        """Room for w transposed."""
        return np.empty((1, self.shape[1], len(self.to_weights.indices[0])), dtype=self.dtype)

    def forward(self, x: Array, w: Array, b: Array) -> Array:
        """b + x w."""
        self.x = x
        self.w = w
        self.product(x, w[np.newaxis], self.out.reshape(-1), b, floor=self.floor)
        return self.out

    def backward(self, g: Array, into: Into) -> None:
        """g w^T, x^T g, and the sum of g."""
        dx, dw, db = into
        self.gate(g)
        if dw is not None:
            self.to_weights(self.x, g[np.newaxis], dw.reshape(-1), self.zeros)
        if db is not None:
            sum_rows(g, db)
        if dx is not None:
            np.copyto(self._turned[0], self.w.T)
            self.to_images(g, self._turned, dx.reshape(-1), self.zeros)


# Convolutions


@parallel_kernel
def enter(x: Array, wide: Array, top: int, left: int) -> None:
    """Images (n, height, width * channels) go inside larger ones."""
    for n in prange(x.shape[0]):
        for y in range(x.shape[1]):
            for i in range(x.shape[2]):
                wide[n, top + y, left + i] = x[n, y, i]


@parallel_kernel
def leave(wide: Array, x: Array, top: int, left: int) -> None:
    """And out of them."""
    for n in prange(x.shape[0]):
        for y in range(x.shape[1]):
            for i in range(x.shape[2]):
                x[n, y, i] = wide[n, top + y, left + i]


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
        self.to_images = Product(
            rows, np.arange(j), window.pixels, taps=(np.zeros_like(window.taps), window.taps), count=window.n,
            images=(size, window.image),
        )  # fmt: skip
        self.zeros = np.zeros(j, dtype=self.dtype)

    @cached_property
    def _wide(self) -> Array:
        """Room for images with zeros around them, which stay."""
        return np.zeros(self.window.padded, dtype=self.dtype)

    @cached_property
    def _slopes(self) -> Array:
        """Room for the gradients of such images."""
        return np.empty(self.window.padded, dtype=self.dtype)

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
            self._to_images(rows, dx)

    def _to_images(self, g: Array, dx: Array) -> None:
        wide = self._slopes if self.padded else dx
        np.copyto(self._turned, self.w.reshape(-1, *self.w.shape[2:]).transpose(0, 2, 1))
        self.to_images(g, self._turned, wide.reshape(-1))
        if self.padded:
            leave(by_row(wide), by_row(dx), self.window.top, self.window.left * self.window.channels)


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


# One number at a time


class Relu(Operation):
    """max(x, 0), which leaves what is no number as it is; its derivative at 0 is 0."""

    def __init__(self, dtype: Any, x: Shape) -> None:
        super().__init__(dtype, x)
        self.floor = 0.0

    def forward(self, x: Array) -> Array:
        """+0 where x <= 0."""
        close(x, x, self.out)
        return self.out

    def backward(self, g: Array, into: Into) -> None:
        """+0 where the result is 0."""
        if into[0] is not None:
            close(self.out, g, into[0])


@parallel_kernel
def add_up(x: Array, y: Array, floor: Any, out: Array) -> None:
    """x + y, or `floor` where that is not above it."""
    for n in prange(x.shape[0]):
        for i in range(x.shape[1]):
            total = x[n, i] + y[n, i]
            out[n, i] = floor if total <= floor else total


class Add(Operation):
    """x + y."""

    def __init__(self, dtype: Any, x: Shape, y: Shape) -> None:
        super().__init__(dtype, x)

    def forward(self, x: Array, y: Array) -> Array:
        """The sum."""
        rows = [array.reshape(len(array), -1) for array in (x, y, self.out)]
        add_up(rows[0], rows[1], self.dtype.type(self.floor), rows[2])
        return self.out

    def backward(self, g: Array, into: Into) -> None:
        """To both."""
        for target in into:
            if target is not None and self.floor == 0:
                close(self.out, g, target)
            elif target is not None:
                np.copyto(target, g)


class Flatten(Operation):
    """(n, ...) as (n, i)."""

    def __init__(self, dtype: Any, x: Shape) -> None:
        super().__init__(dtype, (x[0], math.prod(x[1:])))

    def forward(self, x: Array) -> Array:
        """The same numbers."""
        return x.reshape(self.shape)

    def backward(self, g: Array, into: Into) -> None:
        """The same numbers."""
        if into[0] is not None:
            np.copyto(into[0], g.reshape(into[0].shape))


# The loss


@kernel
def softmax(logits: Array, y: Array, slopes: Array) -> float:
    """The mean cross entropy, and slopes_nj = softmax(logits_n)_j - [j = y_n], in binary64."""
    loss = 0.0
    for n in range(logits.shape[0]):
        most = np.float64(logits[n, 0])
        for j in range(1, logits.shape[1]):
            most = max(most, np.float64(logits[n, j]))
        total = 0.0
        for j in range(logits.shape[1]):
            slopes[n, j] = exp(np.float64(logits[n, j]) - most)
            total += slopes[n, j]
        for j in range(logits.shape[1]):
            slopes[n, j] /= total
        loss += log(total) - (np.float64(logits[n, y[n]]) - most)
        slopes[n, y[n]] -= 1.0
    mean: float = loss / logits.shape[0]
    return mean


class CrossEntropy(Operation):
    """The mean of -log softmax(logits_n)[y_n] over n = 0 .. N - 1, in binary64 and rounded once.

    With m the largest logit of a row, it takes log(sum over j of exp(logit_j - m)) - (logit_y - m), sums in order of j
    and of n. The gradient is (softmax(logits_n)_j - [j = y_n]) (g / N), in binary64 and rounded once. exp and log are
    those of elementary.py."""

    def __init__(self, dtype: Any, logits: Shape, y: Shape) -> None:
        super().__init__(dtype, ())
        self.slopes = np.empty(logits)

    def forward(self, logits: Array, y: Array) -> Array:
        """The loss."""
        return self.dtype.type(softmax(logits, y, self.slopes))

    def backward(self, g: Array, into: Into) -> None:
        """With respect to the logits."""
        if into[0] is not None:
            np.multiply(self.slopes, np.float64(g) / len(self.slopes), out=self.slopes)
            np.copyto(into[0], self.slopes, casting="same_kind")
