"""The operations on a basis by machine code: the twin of spec/operations.py.

Kernels hold tiles of a few directions at a time (tiles.py), so memory is O(D + d), and no thread count changes a bit:
each element of an update and each coefficient is computed by one thread in one order.
Tests: tests/test_operations.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from rbd_ref._types import Float32Array, Float64Array, Indices, Words
from rbd_ref.kernels import hadamard
from rbd_ref.kernels._jit import borrowed, kernel, parallel_kernel, prange
from rbd_ref.kernels._pointers import address, caller
from rbd_ref.kernels.families import FamilyCode, KeyPair
from rbd_ref.kernels.tiles import (
    KEY,
    MOST_TILE_WORDS,
    READ_FLOATS,
    SCRATCH,
    STRETCH,
    Sums,
    add,
    dot,
    hold,
    stretch,
    tile_words,
)
from rbd_ref.spec.compartments import Layout
from rbd_ref.spec.operations import LEAST_COEFFICIENT, TILE


@kernel
def coefficient(inner: float, square: float, divisor: float) -> np.float32:
    """a = inner / N, rounded to float32, +0 where it is below 2^-64; N is `divisor` or, where that is 0, `square`."""
    a = np.float32(inner / (square if divisor == 0 else divisor))
    return np.float32(0) if abs(a) < LEAST_COEFFICIENT else a


@kernel
def dot_direction(
    family: FamilyCode,
    key: KeyPair,
    i: int,
    g: Float32Array,
    divisor: float,
    scratch: Words,
    sums: Sums,
    held: Words,
    stride: int,
) -> np.float32:
    """The coefficient of direction i: the sums of its tiles are added in float64, from the first tile on.

    The stretches are held `stride` words apart; where that is 0, each is written over the one before.
    """
    g, scratch, sums, held = borrowed(g), borrowed(scratch), borrowed(sums), borrowed(held)
    inner = 0.0
    square = 0.0
    span = stretch(family) * TILE
    for b in range((g.size + span - 1) // span):
        part, here = g[b * span : (b + 1) * span], held[b * stride :]
        hold(family, key, i, b * span, part.size, g.size, scratch, here)
        dot(family, here, part, divisor == 0, sums[:, 0])
        for t in range((part.size + TILE - 1) // TILE):
            inner += sums[t, 0, 0]
            square += sums[t, 0, 1]
    return coefficient(inner, square, divisor)


@parallel_kernel
def project(
    family: FamilyCode,
    keys: Words,
    layout: Layout,
    owners: Indices,
    divisors: Float64Array,
    g: Float32Array,
    a: Float32Array,
) -> None:
    """Each coefficient in one thread."""
    for q in prange(a.size):
        k = owners[q]
        part = g[layout.bounds[k] : layout.bounds[k + 1]]
        scratch, held = np.empty(SCRATCH, np.uint32), np.empty(MOST_TILE_WORDS, np.uint32)
        i, sums = q - layout.offsets[k], np.empty((STRETCH, 1, 2))
        a[q] = dot_direction(family, (keys[0, k], keys[1, k]), i, part, divisors[k], scratch, sums, held, 0)


@kernel
def rebuild_tile(
    family: FamilyCode,
    key: KeyPair,
    first: int,
    size: int,
    a: Float32Array,
    u: Float32Array,
    scratch: Words,
    held: Words,
) -> None:
    """The elements of u, those from `first` on of a compartment of `size`, take all directions in order."""
    a, u, scratch, held = borrowed(a), borrowed(u), borrowed(scratch), borrowed(held)
    for i in range(a.size):
        hold(family, key, i, first, u.size, size, scratch, held)
        add(family, a[i], held, u)


@parallel_kernel
def reconstruct(
    family: FamilyCode, keys: Words, layout: Layout, tiles: Indices, a: Float32Array, u: Float32Array
) -> None:
    """Each tile of the update in one thread."""
    for q in prange(tiles.shape[1]):
        k, first = tiles[0, q], tiles[1, q]
        start, stop = layout.bounds[k], layout.bounds[k + 1]
        part, some = u[start + first : min(start + first + TILE, stop)], a[layout.offsets[k] : layout.offsets[k + 1]]
        scratch, held = np.empty(SCRATCH, np.uint32), np.empty(MOST_TILE_WORDS, np.uint32)
        rebuild_tile(family, (keys[0, k], keys[1, k]), first, stop - start, some, part, scratch, held)


@kernel
def descend_compartment(
    family: FamilyCode,
    key: KeyPair,
    divisor: float,
    g: Float32Array,
    a: Float32Array,
    u: Float32Array,
    scratch: Words,
    sums: Sums,
    held: Words,
) -> None:
    """u from 0 on: each direction is made once, dotted with g, and added while it is at hand."""
    g, a, u, scratch = borrowed(g), borrowed(a), borrowed(u), borrowed(scratch)
    sums, held = borrowed(sums), borrowed(held)
    span, stride = stretch(family) * TILE, stretch(family) * tile_words(family, g.size)
    u[:] = np.float32(0)
    for i in range(a.size):
        a[i] = dot_direction(family, key, i, g, divisor, scratch, sums, held, stride)
        for b in range((g.size + span - 1) // span):
            add(family, a[i], held[b * stride :], u[b * span : (b + 1) * span])


@parallel_kernel
def descend_per_compartment(
    family: FamilyCode,
    keys: Words,
    layout: Layout,
    chosen: Indices,
    divisors: Float64Array,
    g: Float32Array,
    a: Float32Array,
    u: Float32Array,
) -> None:
    """Small compartments, each in one thread."""
    for q in prange(chosen.size):
        k = chosen[q]
        here = slice(layout.bounds[k], layout.bounds[k + 1])
        there = slice(layout.offsets[k], layout.offsets[k + 1])
        part, key = g[here], (keys[0, k], keys[1, k])
        scratch, sums = np.empty(SCRATCH, np.uint32), np.empty((STRETCH, 1, 2))
        held = np.empty((part.size + TILE - 1) // TILE * tile_words(family, part.size), np.uint32)
        descend_compartment(family, key, divisors[k], part, a[there], u[here], scratch, sums, held)


@kernel
def place(t: int, s: int, tiles: int, batch: int, threads: int) -> int:
    """Where the directions of tile t are held at turn s: at t or, if threads share the tile, at every other turn behind
    all tiles, so that none writes over what another still reads."""
    k = 1
    while tiles * batch * k // threads <= t * batch:
        k += 1
    shared = tiles * batch * k // threads < (t + 1) * batch
    return tiles + k - 1 if shared and s % 2 == 1 else t


@kernel
def turn(
    family: FamilyCode,
    key: KeyPair,
    s: int,
    share: tuple[int, int],
    a: Float32Array,
    rows: Words,
    sums: Sums,
    g: Float32Array,
    u: Float32Array,
    square: bool,
    scratch: Words,
) -> None:
    """What one thread, k of n = `share`, does at turn s with its pairs of tile and direction, numbered tile by tile.

    Tiles of which it has all pairs are taken by stretches. Where a tile begins, u is set to 0 or takes the directions
    of the turn before, whose coefficients are known by then. Then each of the next directions is held, and its sums
    are kept at sums[t, r], for tile t and row r.
    """
    tiles = sums.shape[0]
    batch, words = rows.shape[1:]
    k, n = share
    a, flat, sums, g, u = borrowed(a), borrowed(rows.reshape(-1)), borrowed(sums), borrowed(g), borrowed(u)
    scratch = borrowed(scratch)
    begin = tiles * batch * k // n
    end = tiles * batch * (k + 1) // n
    t = begin // batch
    while t * batch < end:
        first, last = max(begin - t * batch, 0), min(end - t * batch, batch)
        count = min(stretch(family), end // batch - t) if last - first == batch else 1
        here, stride = slice(t * TILE, (t + count) * TILE), count * words
        if first == 0 and s == 0:
            u[here] = np.float32(0)
        elif first == 0:
            old = flat[place(t, s - 1, tiles, batch, n) * batch * words :]
            for r in range(min(batch, a.size - (s - 1) * batch)):
                add(family, a[(s - 1) * batch + r], old[r * stride :], u[here])
        part, new = g[here], flat[place(t, s, tiles, batch, n) * batch * words :]
        for r in range(first, min(last, a.size - s * batch)):
            hold(family, key, s * batch + r, t * TILE, part.size, g.size, scratch, new[r * stride :])
            dot(family, new[r * stride :], part, square, sums[t:, r])
        t += count


@kernel
def coefficients(sums: Sums, divisor: float, a: Float32Array) -> None:
    """The coefficients of some directions from the sums of their tiles, added from the first tile on."""
    for t in range(1, sums.shape[0]):
        for r in range(a.size):
            sums[0, r, 0] += sums[t, r, 0]
            sums[0, r, 1] += sums[t, r, 1]
    for r in range(a.size):
        a[r] = coefficient(sums[0, r, 0], sums[0, r, 1], divisor)


@parallel_kernel
def descend_cooperative(
    family: FamilyCode,
    key: KeyPair,
    divisor: float,
    threads: int,
    rows: Words,
    sums: Sums,
    g: Float32Array,
    a: Float32Array,
    u: Float32Array,
) -> None:
    """One large compartment: the threads share its tiles, some directions (`rows`) at a turn, and meet once a turn."""
    batch = rows.shape[1]
    for s in range((a.size + batch - 1) // batch + 1):
        for k in prange(threads):
            scratch = np.empty(SCRATCH, np.uint32)
            turn(family, key, s, (k, threads), a, rows, sums, g, u, divisor == 0, scratch)
        coefficients(sums, divisor, a[s * batch : (s + 1) * batch])


@kernel
def srht_compartment(
    key: KeyPair, divisor: float, size: int, g: Float32Array, a: Float32Array, u: Float32Array
) -> None:
    """One compartment of `srht` in one thread: g into a unless g is empty, then a into u unless u is empty."""
    rows = hadamard.rows(key, size, a.size)
    x = np.empty(hadamard.padded(size), np.float32)
    if g.size > 0:
        inner = hadamard.analyse(key, rows, g, x)
        for i in range(a.size):
            a[i] = coefficient(float(inner[i]), 1.0, divisor)
    if u.size > 0:
        hadamard.synthesise(key, rows, a, u, x)


SRHT_COMPARTMENT: Any = types.void(KEY, types.float64, types.int64, READ_FLOATS, types.float32[::1], types.float32[::1])
call_srht = caller(lambda *_: SRHT_COMPARTMENT)


@cache
def srht_address() -> int:
    """Where `srht_compartment` is."""
    return address(srht_compartment, SRHT_COMPARTMENT)


@parallel_kernel
def srht_per_compartment(
    where: int,
    keys: Words,
    layout: Layout,
    chosen: Indices,
    divisors: Float64Array,
    g: Float32Array,
    a: Float32Array,
    u: Float32Array,
) -> None:
    """Small compartments, each in one thread: the kernel at `where` is `srht_compartment`."""
    for q in prange(chosen.size):
        k = chosen[q]
        here = slice(layout.bounds[k], layout.bounds[k + 1])
        part, key = a[layout.offsets[k] : layout.offsets[k + 1]], (keys[0, k], keys[1, k])
        call_srht(where, (key, divisors[k], here.stop - here.start, g[here], part, u[here]))


@kernel
def srht_cooperative(
    key: KeyPair, divisor: float, scratch: Words, g: Float32Array, a: Float32Array, u: Float32Array
) -> None:
    """`srht_compartment` of one large compartment, by all threads together; `scratch` has a place for each row, for the
    words of rows first and then for what is transformed."""
    rows = hadamard.rows_cooperative(key, a.size, scratch)
    x = scratch.view(np.float32)
    if g.size > 0:
        hadamard.clear_cooperative(x)
        hadamard.add_signed_cooperative(key, g, x[: g.size])
        hadamard.transform_cooperative(x)
        for i in range(a.size):
            a[i] = coefficient(float(x[rows[i]]), 1.0, divisor)
    if u.size > 0:
        hadamard.clear_cooperative(x)
        hadamard.put(a, rows, x)
        hadamard.transform_cooperative(x)
        hadamard.add_signed_cooperative(key, x, u)
