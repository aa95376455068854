"""The matrix product of all layers, by fused multiply-add: one kernel for dense layers and convolutions.

The specification, whatever the CPU, its vectors and the number of threads: an element of the result starts from its
bias, from +0 or from what was there, and takes

    c_ij <- fma(a_ik, b_kj, c_ij)                                  for k = 0, 1, 2, ...

each rounded once. The rows of a and of the result may lie anywhere: an index says where. So the patches of a
convolution are never copied, a transposed matrix is not either, and every product of a network is this one.
Tests: tests/test_product.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

from rbd_ref._types import Indices
from rbd_ref.kernels._fma import BYTES, ROWS, WIDE, check_hardware, edge_tile, tile, wide_tile
from rbd_ref.kernels._jit import kernel, parallel_kernel, prange, widest
from rbd_ref.kernels._pointers import address, caller

Array = Any  # a float array, or autograd's box around one

BLOCK = 24  # rows that are taken together, so that their results are near one another
GRAIN = 2**17  # products that are worth a second thread


@kernel
def multiply(
    a: Array, rows: Array, terms: Array, b: Array, start: Array, c: Array, places: Array, taps: Array, images: Array,
    keep: bool, floor: Any, first: int, last: int, low: int, high: int,
) -> None:  # fmt: skip
    """Of the images first .. last - 1 and the rows low .. high - 1, see `Product`; from `start`, or from +0."""
    widest()
    lanes = BYTES // a.itemsize
    left = b.shape[2] % lanes
    whole = b.shape[2] - left
    wide = whole - whole % (2 * lanes) if WIDE else 0
    for n in range(first, last):
        if keep:
            c[n * images[1] : (n + 1) * images[1]] = 0
        for t in range(b.shape[0]):
            shift = n * images[0] + taps[0, t]
            to = n * images[1] + taps[1, t]
            more = keep or t > 0
            least = floor if t == b.shape[0] - 1 else b.dtype.type(-np.inf)
            for block in range(low, high, BLOCK):
                end = min(block + BLOCK, high)
                for j in range(0, wide, 2 * lanes):
                    for i in range(block, end, ROWS):
                        wide_tile(
                            a, rows, i, end - 1, shift, terms, b[t], j, start, c, places, to, more, least, 2 * lanes
                        )
                for j in range(wide, whole, lanes):
                    for i in range(block, end, ROWS):
                        tile(a, rows, i, end - 1, shift, terms, b[t], j, start, c, places, to, more, least, lanes)
                for i in range(block, end if left else block, ROWS):
                    edge_tile(a, rows, i, end - 1, shift, terms, b[t], whole, start, c, places, to, more, least, left)


def _signature(number: Any) -> Any:
    """What `multiply` takes, of floats of this type. Arrays that it only reads may be read-only."""
    floats, places, taps, b = (
        types.Array(kind, dimensions, "C", readonly=True)
        for kind, dimensions in ((number, 1), (types.int64, 1), (types.int64, 2), (number, 3))
    )
    arrays = (floats, places, places, b, floats, types.Array(number, 1, "C"), places, taps, places)
    return types.void(*arrays, types.boolean, number, *(types.int64,) * 4)


call_multiply = caller(lambda a, *_: _signature(a.dtype))


@cache
def _address(dtype: Any) -> int:
    """Where `multiply` is, for floats of this type."""
    return address(multiply, _signature(numba.from_dtype(dtype)))


@parallel_kernel
def multiply_in_parallel(
    where: int, a: Array, rows: Array, terms: Array, b: Array, start: Array, c: Array, places: Array, taps: Array,
    images: Array, keep: bool, floor: Any, count: int, parts: int,
) -> None:  # fmt: skip
    """`multiply`, which is at `where`, of `count` images, which are divided among threads, or if there is but one its
    rows; one part is computed at once, as threads would take longer to wake."""
    height = rows.shape[0]
    by_image = count > 1
    units = count if by_image else (height + ROWS - 1) // ROWS
    if parts == 1:
        call_multiply(where, (a, rows, terms, b, start, c, places, taps, images, keep, floor, 0, count, 0, height))
        return
    for p in prange(parts):
        low = units * p // parts
        high = units * (p + 1) // parts
        first = low if by_image else 0
        last = high if by_image else 1
        top = 0 if by_image else low * ROWS
        bottom = height if by_image else min(high * ROWS, height)
        call_multiply(where, (a, rows, terms, b, start, c, places, taps, images, keep, floor, first, last, top, bottom))


class Product:
    """Where the operands of a product lie.

    With a and c as flat arrays and b (taps, terms, columns), for every image n, tap t, row m and column j:

        c[n images_1 + taps_1t + places_m + j] takes a[n images_0 + taps_0t + rows_m + terms_k] b_tkj for k = 0, 1, ...

    taps one after the other; images may be taken in any order, and so may rows. The first tap starts from a row that is
    the same for all, or else all of c starts from +0, so that rows of several taps may be the same place.
    """

    def __init__(
        self, rows: Indices, terms: Indices, places: Indices, *, taps: Any = ((0,), (0,)), count: int = 1,
        images: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        check_hardware()
        self.indices = [np.ascontiguousarray(index, dtype=np.int64) for index in (rows, terms, places, taps, images)]
        self.count = count
        self.work = count * len(rows) * len(terms) * len(taps[0])
        self.most = count if count > 1 else -(-len(rows) // ROWS)

    def __call__(self, a: Array, b: Array, c: Array, start: Array | None = None, *, floor: float = -np.inf) -> None:
        """c from `start`, a row for all, or from +0; at the end nothing of it is below `floor`."""
        rows, terms, places, taps, images = self.indices
        keep = start is None
        arrays = (a.reshape(-1), rows, terms, b, b[0, 0] if start is None else start, c, places, taps, images)
        most = self.count if keep else self.most
        parts = max(1, min(numba.get_num_threads(), most, self.work * b.shape[2] // GRAIN))
        multiply_in_parallel(_address(c.dtype), *arrays, keep, c.dtype.type(floor), self.count, parts)


def transposed(m: int, k: int) -> tuple[Indices, Indices]:
    """Rows and terms of the transpose of a matrix (k, m): where its columns begin, and how far its rows are apart."""
    return np.arange(m), np.arange(k) * m


def product(a: Array, b: Array, start: Array | None = None) -> Array:
    """start + a b, or 0 + a b, of a (m, k) and b (k, j); `start` is one row for all."""
    (m, k), j = a.shape, b.shape[1]
    c = np.empty((m, j), dtype=b.dtype)
    row = np.zeros(j, dtype=b.dtype) if start is None else np.ascontiguousarray(start)
    turned = a.flags.f_contiguous and not a.flags.c_contiguous
    rows, terms = transposed(m, k) if turned else (np.arange(m) * k, np.arange(k))
    flat = a.T if turned else np.ascontiguousarray(a)
    Product(rows, terms, np.arange(m) * j)(flat, np.ascontiguousarray(b)[np.newaxis], c.reshape(-1), row)
    return c
