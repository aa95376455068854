"""Stretches: one tile of TILE elements of a direction or some in a row, as its family holds them, and what is done
with them.

`hold` makes a stretch, `dot` takes its inner products and `add` adds a multiple of it to an update. What is held is
words:

    normal, uniform                     the entries, as the bits of floats
    rademacher, bernoulli-graphcore     x0 and x1 of its blocks: one bit an element
    sparse                              where each tile's non-zeros begin in what follows: 2 place + sign of each

A stretch has one tile, of `sparse` several, since one has too few non-zeros to be made with wide vectors.

A multiple of +-1 is a flipped sign bit, and adding a zero changes no bit, as no sum here is ever -0: so all families
have the bits of docs/specification.md, sections 6 and 7, where every entry is multiplied and added.
Tests: tests/test_tiles.py, tests/test_operations.py.
"""

from __future__ import annotations

import numpy as np

from rbd_ref._types import Float32Array, Float64Array, Words
from rbd_ref.kernels._jit import device, kernel, on_stack, widest
from rbd_ref.kernels.families import (
    BERNOULLI,
    NORMAL,
    RADEMACHER,
    SPARSE,
    UNIFORM,
    FamilyCode,
    KeyPair,
    bernoulli_value,
    fill_normal,
    fill_sparse,
    fill_uniform,
    fill_words,
    flip,
    window_of,
)
from rbd_ref.spec.families import ONE
from rbd_ref.spec.operations import LANES, TILE

Sums = Float64Array  # (tiles, directions, 2): the inner product of a tile with g, and with itself

BLOCKS = TILE // 64  # of 64 signs each
STRETCH = 8  # tiles of a stretch at most
ENTRIES = STRETCH + 1  # where the non-zeros are in what `sparse` holds
STRIDE = 16  # blocks of words that `sparse` makes at a time, so that no vector is cut short
MOST_BLOCKS = TILE // 2 + STRIDE
SCRATCH = 2 * MOST_BLOCKS  # words that `hold` needs to work in
MOST_TILE_WORDS = ENTRIES + TILE + 2 * STRIDE


@kernel
def stretch(family: FamilyCode) -> int:
    """Tiles of a stretch: one, or as many as have some hundreds of non-zeros."""
    return max(1, min(STRETCH, family.window // 8))


@kernel
def tile_words(family: FamilyCode, size: int) -> int:
    """Words that a tile takes, in a compartment of `size` elements; a stretch takes no more than its tiles would."""
    if family.code == RADEMACHER or family.code == BERNOULLI:
        return 2 * BLOCKS
    if family.code == SPARSE:
        length = size // ((size + family.window - 1) // family.window)
        return ENTRIES + min(TILE, TILE // length + 2) + 2 * STRIDE
    return TILE


@kernel
def hold_sparse(window: int, key: KeyPair, i: int, first: int, n: int, size: int, scratch: Words, held: Words) -> None:
    """The non-zeros of all windows that meet elements first .. first + n - 1, and where those of each tile begin."""
    windows = (size + window - 1) // window
    length = size // windows
    longer = size - windows * length
    low, high = window_of(first, length, longer), window_of(first + n - 1, length, longer)
    even = low - low % 2
    blocks = ((high - even) // 2 // STRIDE + 1) * STRIDE
    x0, x1 = scratch[:blocks], scratch[MOST_BLOCKS : MOST_BLOCKS + blocks]
    fill_words(key, i, even // 2, x0, x1)
    fill_sparse(x0, x1, even, length, longer, first, held[ENTRIES:])
    for t in range((n + TILE - 1) // TILE + 1):
        bound = min(t * TILE, n)
        q = ENTRIES + window_of(first + max(bound - 1, 0), length, longer) - even
        held[t] = q + (np.int32(held[q]) < np.int32(2 * bound))


@kernel
def hold_pairs(family: FamilyCode, key: KeyPair, i: int, first: int, n: int, scratch: Words, held: Words) -> None:
    """The entries of a family with two elements a block."""
    blocks = (n + 1) // 2
    x0, x1 = scratch[:blocks], scratch[MOST_BLOCKS : MOST_BLOCKS + blocks]
    fill_words(key, i, first // 2, x0, x1)
    if family.code == NORMAL:
        fill_normal(x0, x1, held.view(np.float32))
    else:
        fill_uniform(x0, x1, held.view(np.float32))


@kernel
def hold(family: FamilyCode, key: KeyPair, i: int, first: int, n: int, size: int, scratch: Words, held: Words) -> None:
    """The stretch of direction i over `size` elements from `first`, a multiple of TILE, into `held`: n elements.

    `scratch` has SCRATCH places, `held` what `tile_words` says for each tile, or MOST_TILE_WORDS. All of both may be
    written.
    """
    if family.code == SPARSE:
        hold_sparse(family.window, key, i, first, n, size, scratch, held)
    elif family.code <= UNIFORM:
        hold_pairs(family, key, i, first, n, scratch, held)
    else:
        blocks = (n + 63) // 64
        fill_words(key, i, first // 64, held[:blocks], held[BLOCKS : BLOCKS + blocks])


@device
def halves(lanes: Float32Array) -> float:
    """The sum of the lanes: lane l takes lane l + 32, then l + 16, ..., l + 1."""
    half = LANES // 2
    while half > 0:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return float(lanes[0])


@kernel
def lane_sum(x: Float32Array, y: Float32Array) -> float:
    """sum_j x_j y_j over one tile, j < y.size: element j goes to lane j mod 64, and the lanes are added by halves."""
    widest()
    lanes = on_stack(LANES)
    lanes[:] = np.float32(0)
    whole = y.size - y.size % LANES
    for first in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += x[first + lane] * y[first + lane]
    for lane in range(y.size - whole):
        lanes[lane] += x[whole + lane] * y[whole + lane]
    return halves(lanes)


@kernel
def lane_sum_signs(x0: Words, x1: Words, g: Float32Array) -> float:
    """`lane_sum` of g with the signs of these blocks."""
    widest()
    lanes = on_stack(LANES)
    lanes[:] = np.float32(0)
    whole = g.size // LANES
    for p in range(whole):
        for b in range(32):
            lanes[b] += flip(g[64 * p + b], x0[p], b)
        for b in range(32):
            lanes[32 + b] += flip(g[64 * p + 32 + b], x1[p], b)
    for b in range(g.size - LANES * whole):
        lanes[b] += flip(g[LANES * whole + b], x0[whole] if b < 32 else x1[whole], b % 32)
    return halves(lanes)


@kernel
def lane_sums_bernoulli(x0: Words, x1: Words, g: Float32Array, sums: Float64Array) -> None:
    """`lane_sum` of g with the entries of these blocks, and of the entries with themselves."""
    widest()
    lanes = on_stack(LANES)
    squares = on_stack(LANES)
    lanes[:] = np.float32(0)
    squares[:] = np.float32(0)
    whole = g.size // LANES
    for p in range(whole):
        for b in range(32):
            phi = bernoulli_value(x0[p], b)
            lanes[b] += phi * g[64 * p + b]
            squares[b] += phi * phi
        for b in range(32):
            phi = bernoulli_value(x1[p], b)
            lanes[32 + b] += phi * g[64 * p + 32 + b]
            squares[32 + b] += phi * phi
    for b in range(g.size - LANES * whole):
        phi = bernoulli_value(x0[whole] if b < 32 else x1[whole], b % 32)
        lanes[b] += phi * g[LANES * whole + b]
        squares[b] += phi * phi
    sums[0], sums[1] = halves(lanes), halves(squares)


@kernel
def lane_sum_sparse(entries: Words, g: Float32Array) -> float:
    """`lane_sum` of g with these non-zeros."""
    lanes = on_stack(LANES)
    lanes[:] = np.float32(0)
    for q in range(entries.size):
        place = np.int64(entries[q] >> np.uint32(1))
        lanes[place % LANES] += flip(g[place], entries[q], 0)
    return halves(lanes)


@kernel
def dot(family: FamilyCode, held: Words, g: Float32Array, square: bool, sums: Sums) -> None:
    """The sums of each tile of a stretch with g, the part of a vector that it lies over, and if asked with itself."""
    if family.code == SPARSE:
        for t in range((g.size + TILE - 1) // TILE):
            sums[t, 0] = lane_sum_sparse(held[held[t] : held[t + 1]], g)
            sums[t, 1] = held[t + 1] - held[t]
    elif family.code == RADEMACHER:
        sums[0, 0], sums[0, 1] = lane_sum_signs(held[:BLOCKS], held[BLOCKS:], g), g.size
    elif family.code == BERNOULLI:
        lane_sums_bernoulli(held[:BLOCKS], held[BLOCKS:], g, sums[0])
    else:
        phi = held.view(np.float32)
        sums[0, 0], sums[0, 1] = lane_sum(phi, g), (lane_sum(phi, phi[: g.size]) if square else 0.0)


@kernel
def add_multiple(a: np.float32, phi: Float32Array, u: Float32Array) -> None:
    """u <- u + a phi, product and sum each rounded once."""
    widest()
    for j in range(u.size):
        u[j] = u[j] + np.float32(a * phi[j])


@kernel
def add_signs(a: np.float32, x0: Words, x1: Words, u: Float32Array) -> None:
    """u <- u + a phi of the signs of these blocks."""
    widest()
    whole = u.size // 64
    for p in range(whole):
        for b in range(32):
            u[64 * p + b] += flip(a, x0[p], b)
        for b in range(32):
            u[64 * p + 32 + b] += flip(a, x1[p], b)
    for b in range(u.size - 64 * whole):
        u[64 * whole + b] += flip(a, x0[whole] if b < 32 else x1[whole], b % 32)


@kernel
def add_bernoulli(a: np.float32, x0: Words, x1: Words, u: Float32Array) -> None:
    """u <- u + a phi of the entries of these blocks."""
    widest()
    whole = u.size // 64
    for p in range(whole):
        for b in range(32):
            u[64 * p + b] += np.float32(a * bernoulli_value(x0[p], b))
        for b in range(32):
            u[64 * p + 32 + b] += np.float32(a * bernoulli_value(x1[p], b))
    for b in range(u.size - 64 * whole):
        u[64 * whole + b] += np.float32(a * bernoulli_value(x0[whole] if b < 32 else x1[whole], b % 32))


@kernel
def add_sparse(a: np.float32, entries: Words, u: Float32Array) -> None:
    """u <- u + a phi at these non-zeros."""
    for q in range(entries.size):
        u[entries[q] >> np.uint32(1)] += flip(a, entries[q], 0)


@kernel
def add(family: FamilyCode, a: np.float32, held: Words, u: Float32Array) -> None:
    """u <- u + a phi over a stretch, product and sum each rounded once; u is the part that the stretch lies over."""
    if family.code == SPARSE:
        add_sparse(a, held[held[0] : held[(u.size + TILE - 1) // TILE]], u)
    elif family.code == RADEMACHER:
        add_signs(a, held[:BLOCKS], held[BLOCKS:], u)
    elif family.code == BERNOULLI:
        add_bernoulli(a, held[:BLOCKS], held[BLOCKS:], u)
    else:
        add_multiple(a, held.view(np.float32), u)


@kernel
def fill(
    family: FamilyCode, key: KeyPair, i: int, first: int, size: int, scratch: Words, held: Words, phi: Float32Array
) -> None:
    """The entries of a stretch as floats: phi.size of them, from `first` on."""
    hold(family, key, i, first, phi.size, size, scratch, held)
    phi[:] = np.float32(0)
    add(family, ONE, held, phi)
