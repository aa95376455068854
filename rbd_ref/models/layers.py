"""Layers: what networks are made of, each with its gradient, as primitives of HIPS autograd.

Three parts for each: a kernel that does the arithmetic, a function that autograd calls with plain arrays, and the
gradient with respect to each argument. `AutogradLayers`, at the end, is what architectures.py is bound to.

Autograd brings no convolution layer, pooling or batch norm, and the bits of a BLAS may change with the number of its
threads (OpenBLAS 0.3.31 was seen to, at 32 x 784 by 784 x 128, the first product of fc). So the kernels here are
written out: every sum is taken in the order that its docstring says, each product and each sum rounded once and none
fused, and work is divided among threads only where nothing is added up, or into groups that do not depend on how many
threads there are. The bits are the same with any number of threads. Arrays are float32, images (n, height, width,
channels); kernels take float64 as well, which is how the gradients are checked.
Tests: tests/test_networks.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from autograd.extend import defvjp, defvjp_argnums, primitive

from rbd_ref.kernels._jit import kernel, parallel_kernel, prange
from rbd_ref.models.architectures import EPSILON, margins

Array = Any  # a float array, or autograd's box around one
Backward = Callable[[Array], Array]

DEPTH = 256  # terms of a matrix product that are taken at a time: so many rows of b stay near
ROWS = 16  # rows of a matrix product that one thread takes at a time
GROUP = 4  # images that one thread takes at a time, whose gradients with respect to weights it adds up
GRAIN = 2**18  # products that are worth a second thread


@kernel
def four_rows(a: Array, b: Array, c: Array, i: int, k0: int, k1: int) -> None:
    """Rows i .. i + 3 of c take the terms k0 .. k1 - 1 of a b, whose number is a multiple of four."""
    c0, c1, c2, c3 = c[i], c[i + 1], c[i + 2], c[i + 3]
    for k in range(k0, k1, 4):
        a00, a01, a02, a03 = a[i, k], a[i, k + 1], a[i, k + 2], a[i, k + 3]
        a10, a11, a12, a13 = a[i + 1, k], a[i + 1, k + 1], a[i + 1, k + 2], a[i + 1, k + 3]
        a20, a21, a22, a23 = a[i + 2, k], a[i + 2, k + 1], a[i + 2, k + 2], a[i + 2, k + 3]
        a30, a31, a32, a33 = a[i + 3, k], a[i + 3, k + 1], a[i + 3, k + 2], a[i + 3, k + 3]
        for j in range(c.shape[1]):
            b0, b1, b2, b3 = b[k, j], b[k + 1, j], b[k + 2, j], b[k + 3, j]
            c0[j] = (((c0[j] + a00 * b0) + a01 * b1) + a02 * b2) + a03 * b3
            c1[j] = (((c1[j] + a10 * b0) + a11 * b1) + a12 * b2) + a13 * b3
            c2[j] = (((c2[j] + a20 * b0) + a21 * b1) + a22 * b2) + a23 * b3
            c3[j] = (((c3[j] + a30 * b0) + a31 * b1) + a32 * b2) + a33 * b3


@kernel
def one_by_one(a: Array, b: Array, c: Array, i0: int, i1: int, k0: int, k1: int) -> None:
    """Rows i0 .. i1 - 1 of c take the terms k0 .. k1 - 1 of a b: what is left over when others were taken by four."""
    for i in range(i0, i1):
        for k in range(k0, k1):
            factor = a[i, k]
            for j in range(c.shape[1]):
                c[i, j] = c[i, j] + factor * b[k, j]


@kernel
def multiply(a: Array, b: Array, c: Array) -> None:
    """c = c + a b: c_ij takes a_ik b_kj for k = 0, 1, 2, ... in this order, whatever is taken together."""
    rows = a.shape[0] - a.shape[0] % 4
    for k0 in range(0, a.shape[1], DEPTH):
        k1 = min(k0 + DEPTH, a.shape[1])
        left = k1 - (k1 - k0) % 4
        for i in range(0, rows, 4):
            four_rows(a, b, c, i, k0, left)
            one_by_one(a, b, c, i, i + 4, left, k1)
        one_by_one(a, b, c, rows, a.shape[0], k0, k1)


@parallel_kernel
def multiply_in_parallel(a: Array, b: Array, c: Array) -> None:
    """`multiply`, its rows divided among threads."""
    for t in prange((a.shape[0] + ROWS - 1) // ROWS):
        first = t * ROWS
        last = min(first + ROWS, a.shape[0])
        multiply(a[first:last], b, c[first:last])


def product(a: Array, b: Array, start: Array | None = None) -> Array:
    """start + a b, or 0 + a b, by `multiply`; `start` is one row for all."""
    c = np.zeros((a.shape[0], b.shape[1]), dtype=b.dtype)
    if start is not None:
        c += start
    run = multiply if a.size * b.shape[1] < GRAIN else multiply_in_parallel
    run(a, np.ascontiguousarray(b), c)
    return c


@parallel_kernel
def sums_by_image(x: Array, out: Array) -> None:
    """out_nc = sum over p of x_npc, in order of p, in binary64."""
    for n in prange(x.shape[0]):
        total = out[n]
        for p in range(x.shape[1]):
            for c in range(x.shape[2]):
                total[c] += np.float64(x[n, p, c])


def by_image(x: Array) -> Array:
    """(n, ..., c) as (n, p, c)."""
    return np.ascontiguousarray(x).reshape(x.shape[0], -1, x.shape[-1])


def in_order(parts: Array) -> Array:
    """parts[0] + parts[1] + ..., from the left."""
    return reduce(np.add, parts)


def image_sums(x: Array) -> Array:
    """The sums (n, channels) over the pixels of each image, in binary64."""
    sums = np.zeros((x.shape[0], x.shape[-1]))
    sums_by_image(by_image(x), sums)
    return sums


def channel_sums(x: Array) -> Array:
    """The sum over all axes but the last, in binary64: of each image in order, then of the images in order."""
    return in_order(image_sums(x))


def _dense(x: Array, w: Array, b: Array) -> Array:
    return product(x, w, start=b)


def _dense_backward(argnums: tuple[int, ...], ans: Array, args: tuple[Array, ...], kwargs: Any) -> Any:
    """dx = g w^T, dw = x^T g, db = sum over n of g."""
    x, w, _ = args
    parts: tuple[Backward, ...] = (
        lambda g: product(g, w.T),
        lambda g: product(x.T, g),
        in_order,
    )
    return lambda g: tuple(parts[argnum](g) for argnum in argnums)


dense = primitive(_dense)
dense.__doc__ = """y_nj = b_j + sum over i of x_ni w_ij, of x (n, i), w (i, j) and b (j)."""
defvjp_argnums(dense, _dense_backward)


def _relu(x: Array) -> Array:
    return np.maximum(x, x.dtype.type(0))


relu = primitive(_relu)
relu.__doc__ = """max(x, 0); its derivative at 0 is 0."""
defvjp(relu, lambda ans, x: lambda g: g * (ans > 0))


@kernel
def gather(x: Array, channels: int, k: int, stride: int, width: int, patches: Array) -> None:
    """Patches of k x k pixels of an image (height, pixels * channels): one row each, `width` of them side by side.

    A row is k k channels long and may have more room, which is left as it is."""
    run = k * channels
    for p in range(patches.shape[0]):
        top = p // width * stride
        left = p % width * stride * channels
        for dy in range(k):
            source = x[top + dy, left : left + run]
            target = patches[p, dy * run : dy * run + run]
            for j in range(run):
                target[j] = source[j]


@kernel
def scatter(patches: Array, channels: int, k: int, stride: int, width: int, x: Array) -> None:
    """The reverse of `gather`: every pixel takes the patches it is in, in their order."""
    run = k * channels
    for p in range(patches.shape[0]):
        top = p // width * stride
        left = p % width * stride * channels
        for dy in range(k):
            source = patches[p, dy * run : dy * run + run]
            target = x[top + dy, left : left + run]
            for j in range(run):
                target[j] += source[j]


@parallel_kernel
def convolve(x: Array, w: Array, b: Array, channels: int, k: int, stride: int, width: int, out: Array) -> None:
    """out (n, pixels, channels) = b + the patches of x times w (k k channels, channels)."""
    for t in prange((x.shape[0] + GROUP - 1) // GROUP):
        patches = np.zeros((out.shape[1], w.shape[0]), dtype=x.dtype)
        for n in range(t * GROUP, min(t * GROUP + GROUP, x.shape[0])):
            gather(x[n], channels, k, stride, width, patches)
            out[n] = b
            multiply(patches, w, out[n])


@parallel_kernel
def convolve_to_weights(x: Array, g: Array, channels: int, k: int, stride: int, width: int, out: Array) -> None:
    """out (groups, k k channels, channels): of each group of images, the patches of x, transposed, times g."""
    for t in prange(out.shape[0]):
        patches = np.zeros((g.shape[1], out.shape[1]), dtype=x.dtype)
        for n in range(t * GROUP, min(t * GROUP + GROUP, x.shape[0])):
            gather(x[n], channels, k, stride, width, patches)
            multiply(patches.T, g[n], out[t])


@parallel_kernel
def convolve_to_images(g: Array, w: Array, channels: int, k: int, stride: int, width: int, out: Array) -> None:
    """out, of the form of x, takes g times w (channels, k k channels), the product's rows being patches."""
    for t in prange((g.shape[0] + GROUP - 1) // GROUP):
        patches = np.empty((g.shape[1], w.shape[1]), dtype=g.dtype)
        for n in range(t * GROUP, min(t * GROUP + GROUP, g.shape[0])):
            patches[:] = 0
            multiply(g[n], w, patches)
            scatter(patches, channels, k, stride, width, out[n])


class Window:
    """Where the patches of a convolution lie in its images, with the zeros around them."""

    def __init__(self, x: Array, w: Array, stride: int, padding: str) -> None:
        self.n, self.height, self.width, self.channels = x.shape
        self.top, below, self.rows = margins(self.height, w.shape[0], stride, padding)
        self.left, beyond, self.columns = margins(self.width, w.shape[0], stride, padding)
        self.padded = (self.n, self.height + self.top + below, self.width + self.left + beyond, self.channels)
        self.geometry = (self.channels, w.shape[0], stride, self.columns)

    def pad(self, x: Array) -> Array:
        """Images with zeros around them, (n, height, pixels * channels)."""
        if self.padded != x.shape:
            wide = np.zeros(self.padded, dtype=x.dtype)
            self.cut(wide)[:] = x
            x = wide
        return np.ascontiguousarray(x).reshape(*self.padded[:2], -1)

    def cut(self, x: Array) -> Array:
        """Images without the zeros around them."""
        inner = x.reshape(self.padded)
        return inner[:, self.top : self.top + self.height, self.left : self.left + self.width]


def by_fours(w: Array) -> Array:
    """Kernels (k, k, channels, j) as a matrix (k k channels, j) with rows of zeros to a multiple of four, as
    `multiply` is fastest with four terms at a time."""
    rows = w.reshape(-1, w.shape[3])
    return np.concatenate([rows, np.zeros((-len(rows) % 4, w.shape[3]), dtype=w.dtype)])


def _conv2d(x: Array, w: Array, b: Array | None = None, stride: int = 1, padding: str = "valid") -> Array:
    window = Window(x, w, stride, padding)
    out = np.empty((window.n, window.rows * window.columns, w.shape[3]), dtype=x.dtype)
    start = np.zeros(w.shape[3], dtype=x.dtype) if b is None else b
    convolve(window.pad(x), by_fours(w), start, *window.geometry, out)
    return out.reshape(window.n, window.rows, window.columns, -1)


def _conv2d_backward(argnums: tuple[int, ...], ans: Array, args: tuple[Array, ...], kwargs: Any) -> Any:
    """dx: g w^T put back where the patches were; dw: patches^T g; db: the sum of g over images and pixels."""
    x, w = args[:2]
    window = Window(x, w, kwargs.get("stride", 1), kwargs.get("padding", "valid"))

    def to_images(g: Array) -> Array:
        out = np.zeros(window.padded, dtype=g.dtype)
        rows = np.ascontiguousarray(w.reshape(-1, w.shape[3]).T)
        convolve_to_images(by_image(g), rows, *window.geometry, out.reshape(*window.padded[:2], -1))
        return window.cut(out)

    def to_weights(g: Array) -> Array:
        out = np.zeros((-(-window.n // GROUP), *by_fours(w).shape), dtype=g.dtype)
        convolve_to_weights(window.pad(x), by_image(g), *window.geometry, out)
        return in_order(out)[: w[..., 0].size].reshape(w.shape)

    parts = (to_images, to_weights, lambda g: channel_sums(g).astype(g.dtype))
    return lambda g: tuple(parts[argnum](g) for argnum in argnums)


conv2d = primitive(_conv2d)
conv2d.__doc__ = """y[n, u, v, j] = b[j] + the sum over p, q, c of x[n, s u + p - top, s v + q - left, c] w[p, q, c, j].

The terms are taken with c running fastest, then q, then p. x (n, height, width, channels), w (k, k, channels, j),
b (j) or None; stride s; padding `valid` (top = left = 0) or `same`, with zeros around x as `margins` says."""
defvjp_argnums(conv2d, _conv2d_backward)


@parallel_kernel
def pool(x: Array, out: Array) -> None:
    """The largest of each 2 x 2 pixels."""
    for n in prange(out.shape[0]):
        for u in range(out.shape[1]):
            for v in range(out.shape[2]):
                for c in range(out.shape[3]):
                    upper = max(x[n, 2 * u, 2 * v, c], x[n, 2 * u, 2 * v + 1, c])
                    lower = max(x[n, 2 * u + 1, 2 * v, c], x[n, 2 * u + 1, 2 * v + 1, c])
                    out[n, u, v, c] = max(upper, lower)


@parallel_kernel
def unpool(x: Array, y: Array, g: Array, out: Array) -> None:
    """g to the first of each 2 x 2 pixels of x that equals y, row by row, zero to the others."""
    zero = g.dtype.type(0)
    for n in prange(y.shape[0]):
        for u in range(y.shape[1]):
            for v in range(y.shape[2]):
                for c in range(y.shape[3]):
                    top = y[n, u, v, c]
                    share = g[n, u, v, c]
                    first = x[n, 2 * u, 2 * v, c] == top
                    second = x[n, 2 * u, 2 * v + 1, c] == top
                    third = x[n, 2 * u + 1, 2 * v, c] == top
                    out[n, 2 * u, 2 * v, c] = share if first else zero
                    out[n, 2 * u, 2 * v + 1, c] = share if second and not first else zero
                    out[n, 2 * u + 1, 2 * v, c] = share if third and not (first or second) else zero
                    out[n, 2 * u + 1, 2 * v + 1, c] = zero if first or second or third else share


def _max_pool(x: Array) -> Array:
    out = np.empty((x.shape[0], x.shape[1] // 2, x.shape[2] // 2, x.shape[3]), dtype=x.dtype)
    pool(np.ascontiguousarray(x), out)
    return out


def _max_pool_backward(ans: Array, x: Array) -> Backward:
    def back(g: Array) -> Array:
        out = np.zeros(x.shape, dtype=x.dtype)
        unpool(np.ascontiguousarray(x), ans, np.ascontiguousarray(g), out)
        return out

    return back


max_pool = primitive(_max_pool)
max_pool.__doc__ = """The largest of each 2 x 2 pixels; a last odd row or column is left out.

The gradient goes to the first of equals, row by row."""
defvjp(max_pool, _max_pool_backward)


def _average_pool(x: Array) -> Array:
    return (image_sums(x) / (x.shape[1] * x.shape[2])).astype(x.dtype)


def _average_pool_backward(ans: Array, x: Array) -> Backward:
    count = x.dtype.type(x.shape[1] * x.shape[2])
    return lambda g: np.broadcast_to((g / count)[:, None, None, :], x.shape).copy()


average_pool = primitive(_average_pool)
average_pool.__doc__ = """The mean of each channel over all pixels, (n, channels)."""
defvjp(average_pool, _average_pool_backward)


def moments(x: Array) -> tuple[Array, Array]:
    """Mean and variance (the mean square distance from the mean) of each channel over images and pixels."""
    count = x.size // x.shape[-1]
    mean = (channel_sums(x) / count).astype(x.dtype)
    centred = x - mean
    return mean, (channel_sums(centred * centred) / count).astype(x.dtype)


def inverse_deviation(variance: Array) -> Array:
    """1 / sqrt(variance + EPSILON)."""
    return (1 / np.sqrt(variance.astype(np.float64) + EPSILON)).astype(variance.dtype)


def normalise(x: Array, scale: Array, shift: Array, mean: Array, variance: Array) -> Array:
    """(x - mean) / sqrt(variance + EPSILON) * scale + shift, of channels with the mean and variance given."""
    return (x - mean) * inverse_deviation(variance) * scale + shift


def _batch_norm(x: Array, scale: Array, shift: Array) -> Array:
    return normalise(x, scale, shift, *moments(x))


def _batch_norm_backward(argnums: tuple[int, ...], ans: Array, args: tuple[Array, ...], kwargs: Any) -> Any:
    """With z = (x - mean) r, r = 1 / sqrt(variance + EPSILON) and the sums over m numbers of each channel:
    dshift = sum g, dscale = sum g z, dx = scale r (g - dshift / m - z dscale / m)."""
    x, scale, _ = args
    mean, variance = moments(x)
    r = inverse_deviation(variance)
    z = (x - mean) * r
    m = x.size // x.shape[-1]

    def back(g: Array) -> tuple[Array, ...]:
        dshift = channel_sums(g)
        dscale = channel_sums(g * z)
        dx = scale * r * (g - (dshift / m).astype(g.dtype) - z * (dscale / m).astype(g.dtype))
        parts = (dx, dscale.astype(g.dtype), dshift.astype(g.dtype))
        return tuple(parts[argnum] for argnum in argnums)

    return back


batch_norm = primitive(_batch_norm)
batch_norm.__doc__ = """`normalise` with the mean and variance of this batch, through which the gradient goes too."""
defvjp_argnums(batch_norm, _batch_norm_backward)


def _probabilities(logits: Array) -> tuple[Array, Array]:
    """Softmax of each row, and the logarithm of its denominator with the largest logit at 0, in binary64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    powers = np.exp(shifted)
    total = powers.sum(axis=1, keepdims=True)
    return powers / total, shifted - np.log(total)


def _cross_entropy(logits: Array, y: Array) -> Array:
    logarithms = _probabilities(logits)[1]
    return logits.dtype.type(-np.mean(logarithms[np.arange(y.size), y]))


def _cross_entropy_backward(ans: Array, logits: Array, y: Array) -> Backward:
    def back(g: Array) -> Array:
        slope = _probabilities(logits)[0]
        slope[np.arange(y.size), y] -= 1
        return (slope * (np.float64(g) / y.size)).astype(logits.dtype)

    return back


cross_entropy = primitive(_cross_entropy)
cross_entropy.__doc__ = """The mean of -log softmax(logits_n)[y_n] over n = 0 .. N - 1.

Its gradient is (softmax(logits_n)_j - [j = y_n]) / N. Both are computed in binary64 and rounded once,
so that the exp of another machine hardly ever changes a bit."""
defvjp(cross_entropy, _cross_entropy_backward, argnums=(0,))


def _split(theta: Array, shapes: tuple[tuple[int, ...], ...]) -> tuple[Array, ...]:
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
        return x.reshape(x.shape[0], -1)

    def add(self, x: Array, y: Array) -> Array:
        """x + y."""
        return x + y
