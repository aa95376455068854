"""Stretches: one tile of TILE elements of a direction or some in a row, as its family holds them, and what is done
with them.

`hold` makes a stretch, `dot` takes its inner products and `add` adds a multiple of it to an update. What is held is
words:

    normal, uniform                     the entries, as the bits of floats
    rademacher, bernoulli-graphcore     x0 and x1 of its blocks: one bit an element
    sparse                              where each tile's non-zeros begin in what follows: 2 place + sign of each

A stretch has one tile, of `sparse` several, since one has too few non-zeros to be made with wide vectors.

Each family has three kernels, which are called at their addresses (_pointers.py): `family_code` compiles those of one
family and no others.

A multiple of +-1 is a flipped sign bit, and adding a zero changes no bit, as no sum here is ever -0: so all families
have the bits of docs/specification.md, sections 6 and 7, where every entry is multiplied and added.
Tests: tests/test_tiles.py, tests/test_operations.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from rbd_ref._types import Float32Array, Float64Array, Words
from rbd_ref.kernels._jit import device, kernel, on_stack, widest
from rbd_ref.kernels._pointers import address, caller
from rbd_ref.kernels.families import (
    BERNOULLI,
    CODES,
    RADEMACHER,
    SPARSE,
    SRHT,
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
from rbd_ref.spec.families import ONE, Family
from rbd_ref.spec.operations import LANES, TILE

Sums = Float64Array  # (tiles, directions, 2): the inner product of a tile with g, and with itself

BLOCKS = TILE // 64  # of 64 signs each
STRETCH = 8  # tiles of a stretch at most
ENTRIES = STRETCH + 1  # where the non-zeros are in what `sparse` holds
STRIDE = 16  # blocks of words that `sparse` makes at a time, so that no vector is cut short
MOST_BLOCKS = TILE // 2 + STRIDE
SCRATCH = 2 * MOST_BLOCKS  # words that `hold` needs to work in
MOST_TILE_WORDS = ENTRIES + TILE + 2 * STRIDE

# What kernels at an address take. Arrays that they only read may be read-only.
typeof: Any = numba.typeof  # which has no types
FAMILY = typeof(FamilyCode(0, 0, 0, 0, 0, 0))
KEY = typeof((np.uint32(0), np.uint32(0)))
WRITTEN: Any = types.Array(types.uint32, 1, "C")
READ: Any = types.Array(types.uint32, 1, "C", readonly=True)
READ_FLOATS: Any = types.Array(types.float32, 1, "C", readonly=True)
INT: Any = types.int64
WORDS: Any = types.void(KEY, INT, INT, WRITTEN, WRITTEN)
HOLD: Any = types.void(FAMILY, KEY, INT, INT, INT, INT, WRITTEN, WRITTEN)
DOT: Any = types.void(READ, READ_FLOATS, types.boolean, types.float64[:, :])
ADD: Any = types.void(types.float32, READ, types.float32[::1])
call_words = caller(lambda *_: WORDS)
call_hold = caller(lambda *_: HOLD)
call_dot = caller(lambda *_: DOT)
call_add = caller(lambda *_: ADD)


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
def hold_sparse(
    family: FamilyCode, key: KeyPair, i: int, first: int, n: int, size: int, scratch: Words, held: Words
) -> None:
    """The non-zeros of all windows that meet elements first .. first + n - 1, and where those of each tile begin."""
    windows = (size + family.window - 1) // family.window
    length = size // windows
    longer = size - windows * length
    low, high = window_of(first, length, longer), window_of(first + n - 1, length, longer)
    even = low - low % 2
    blocks = ((high - even) // 2 // STRIDE + 1) * STRIDE
    x0, x1 = scratch[:blocks], scratch[MOST_BLOCKS : MOST_BLOCKS + blocks]
    call_words(family.words, (key, i, even // 2, x0, x1))
    fill_sparse(x0, x1, even, length, longer, first, held[ENTRIES:])
    for t in range((n + TILE - 1) // TILE + 1):
        bound = min(t * TILE, n)
        q = ENTRIES + window_of(first + max(bound - 1, 0), length, longer) - even
        held[t] = q + (np.int32(held[q]) < np.int32(2 * bound))


@kernel
def hold_normal(
    family: FamilyCode, key: KeyPair, i: int, first: int, n: int, size: int, scratch: Words, held: Words
) -> None:
    """The entries, two of each block."""
    blocks = (n + 1) // 2
    x0, x1 = scratch[:blocks], scratch[MOST_BLOCKS : MOST_BLOCKS + blocks]
    call_words(family.words, (key, i, first // 2, x0, x1))
    fill_normal(x0, x1, held.view(np.float32))


@kernel
def hold_uniform(
    family: FamilyCode, key: KeyPair, i: int, first: int, n: int, size: int, scratch: Words, held: Words
) -> None:
    """The entries, two of each block."""
    blocks = (n + 1) // 2
    x0, x1 = scratch[:blocks], scratch[MOST_BLOCKS : MOST_BLOCKS + blocks]
    call_words(family.words, (key, i, first // 2, x0, x1))
    fill_uniform(x0, x1, held.view(np.float32))


@kernel
def hold_bits(
    family: FamilyCode, key: KeyPair, i: int, first: int, n: int, size: int, scratch: Words, held: Words
) -> None:
    """The words of blocks with 64 signs each."""
    blocks = (n + 63) // 64
    call_words(family.words, (key, i, first // 64, held[:blocks], held[BLOCKS : BLOCKS + blocks]))


@kernel
def hold(family: FamilyCode, key: KeyPair, i: int, first: int, n: int, size: int, scratch: Words, held: Words) -> None:
    """The stretch of direction i over `size` elements from `first`, a multiple of TILE, into `held`: n elements.

    `scratch` has SCRATCH places, `held` what `tile_words` says for each tile, or MOST_TILE_WORDS. All of both may be
    written.
    """
    call_hold(family.hold, (family, key, i, first, n, size, scratch, held))


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
def dot_floats(held: Words, g: Float32Array, square: bool, sums: Sums) -> None:
    """`dot` of entries."""
    phi = held.view(np.float32)
    sums[0, 0] = lane_sum(phi, g)
    sums[0, 1] = lane_sum(phi, phi[: g.size]) if square else 0.0


@kernel
def dot_signs(held: Words, g: Float32Array, square: bool, sums: Sums) -> None:
    """`dot` of signs."""
    sums[0, 0] = lane_sum_signs(held[:BLOCKS], held[BLOCKS:], g)
    sums[0, 1] = g.size


@kernel
def dot_bernoulli(held: Words, g: Float32Array, square: bool, sums: Sums) -> None:
    """`dot` of signs less 1/2."""
    lane_sums_bernoulli(held[:BLOCKS], held[BLOCKS:], g, sums[0])


@kernel
def dot_sparse(held: Words, g: Float32Array, square: bool, sums: Sums) -> None:
    """`dot` of non-zeros."""
    for t in range((g.size + TILE - 1) // TILE):
        sums[t, 0] = lane_sum_sparse(held[held[t] : held[t + 1]], g)
        sums[t, 1] = held[t + 1] - held[t]


@kernel
def dot(family: FamilyCode, held: Words, g: Float32Array, square: bool, sums: Sums) -> None:
    """The sums of each tile of a stretch with g, the part of a vector that it lies over, and if asked with itself."""
    call_dot(family.dot, (held, g, square, sums))


@kernel
def add_multiple(a: np.float32, phi: Float32Array, u: Float32Array) -> None:
    """u <- u + a phi, product and sum each rounded once."""
    widest()
    for j in range(u.size):
        u[j] = u[j] + np.float32(a * phi[j])


@kernel
def add_floats(a: np.float32, held: Words, u: Float32Array) -> None:
    """`add` of entries."""
    add_multiple(a, held.view(np.float32), u)


@kernel
def add_signs(a: np.float32, held: Words, u: Float32Array) -> None:
    """`add` of signs."""
    widest()
    x0, x1 = held[:BLOCKS], held[BLOCKS:]
    whole = u.size // 64
    for p in range(whole):
        for b in range(32):
            u[64 * p + b] += flip(a, x0[p], b)
        for b in range(32):
            u[64 * p + 32 + b] += flip(a, x1[p], b)
    for b in range(u.size - 64 * whole):
        u[64 * whole + b] += flip(a, x0[whole] if b < 32 else x1[whole], b % 32)


@kernel
def add_bernoulli(a: np.float32, held: Words, u: Float32Array) -> None:
    """`add` of signs less 1/2."""
    widest()
    x0, x1 = held[:BLOCKS], held[BLOCKS:]
    whole = u.size // 64
    for p in range(whole):
        for b in range(32):
            u[64 * p + b] += np.float32(a * bernoulli_value(x0[p], b))
        for b in range(32):
            u[64 * p + 32 + b] += np.float32(a * bernoulli_value(x1[p], b))
    for b in range(u.size - 64 * whole):
        u[64 * whole + b] += np.float32(a * bernoulli_value(x0[whole] if b < 32 else x1[whole], b % 32))


@kernel
def add_sparse(a: np.float32, held: Words, u: Float32Array) -> None:
    """`add` of non-zeros."""
    entries = held[held[0] : held[(u.size + TILE - 1) // TILE]]
    for q in range(entries.size):
        u[entries[q] >> np.uint32(1)] += flip(a, entries[q], 0)


@kernel
def add(family: FamilyCode, a: np.float32, held: Words, u: Float32Array) -> None:
    """u <- u + a phi over a stretch, product and sum each rounded once; u is the part that the stretch lies over."""
    call_add(family.add, (a, held, u))


@kernel
def fill(
    family: FamilyCode, key: KeyPair, i: int, first: int, size: int, scratch: Words, held: Words, phi: Float32Array
) -> None:
    """The entries of a stretch as floats: phi.size of them, from `first` on."""
    hold(family, key, i, first, phi.size, size, scratch, held)
    phi[:] = np.float32(0)
    add(family, ONE, held, phi)


class Kernels(NamedTuple):
    """The three kernels of a family."""

    hold: Any
    dot: Any
    add: Any


KERNELS = {
    "normal": Kernels(hold_normal, dot_floats, add_floats),
    "uniform": Kernels(hold_uniform, dot_floats, add_floats),
    "rademacher": Kernels(hold_bits, dot_signs, add_signs),
    "bernoulli-graphcore": Kernels(hold_bits, dot_bernoulli, add_bernoulli),
    "sparse": Kernels(hold_sparse, dot_sparse, add_sparse),
}


@cache
def family_code(family: Family) -> FamilyCode:
    """A family as kernels take it; its kernels are compiled, or loaded, at the first call."""
    code = CODES[family.name]
    if code == SRHT:  # has no stretches: hadamard.py
        return FamilyCode(code, family.window, 0, 0, 0, 0)
    found = KERNELS[family.name]
    return FamilyCode(
        code,
        family.window,
        words=address(fill_words, WORDS),
        hold=address(found.hold, HOLD),
        dot=address(found.dot, DOT),
        add=address(found.add, ADD),
    )
