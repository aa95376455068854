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
from rbd_ref.models.architectures import Shape
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
