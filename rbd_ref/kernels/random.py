"""Portable random numbers by machine code: the twin of spec/random.py.

The blocks of a stream are cut into tiles of `BLOCKS`, counted from the stream's beginning. No tile reaches from one
direction into the next, and tiles are divided among threads.
Tests: tests/test_random.py.
"""

from __future__ import annotations

import numpy as np

from rbd_ref._types import TWO_32, Float32Array, Words
from rbd_ref.kernels._jit import kernel, parallel_kernel, prange, widest
from rbd_ref.kernels.families import KeyPair, fill_normal, fill_uniform, fill_words, flip
from rbd_ref.kernels.prng import basis_keys, threefry2x32
from rbd_ref.spec.families import HALF, ONE, STEP_24
from rbd_ref.spec.prng import STREAMS
from rbd_ref.spec.random import LAWS

NORMAL, UNIFORM, SIGNS = range(3)
CODES = {"normal": NORMAL, "uniform": UNIFORM, "signs": SIGNS}
NUMBERS = STREAMS["numbers"]
MANY = 8  # tiles that are worth starting threads for
BLOCKS = 2048  # of a tile; a divisor of the blocks of a direction, whatever the law


@kernel
def fill_signs(x0: Words, x1: Words, phi: Float32Array) -> None:
    """Elements 64p .. 64p + 63 from block p."""
    widest()
    for p in range(x0.size):
        for b in range(32):
            phi[64 * p + b] = flip(ONE, x0[p], b)
            phi[64 * p + 32 + b] = flip(ONE, x1[p], b)


@kernel
def fill_zero_to_one(x0: Words, x1: Words, phi: Float32Array) -> None:
    """`from_zero_to_one` of elements 2p and 2p + 1 from block p."""
    widest()
    fill_uniform(x0, x1, phi)
    for j in range(phi.size):
        phi[j] = np.float32(np.float32(np.float32(phi[j] - STEP_24) * HALF) + HALF)


@kernel
def fill_entries(law: int, x0: Words, x1: Words, phi: Float32Array) -> None:
    """All numbers of the blocks whose words are given."""
    if law == NORMAL:
        fill_normal(x0, x1, phi)
    elif law == UNIFORM:
        fill_zero_to_one(x0, x1, phi)
    else:
        fill_signs(x0, x1, phi)


@kernel
def fill_tile(law: int, key: KeyPair, direction: int, first: int, blocks: int, start: int, out: Float32Array) -> None:
    """Numbers from `start` on of the blocks first .. first + blocks - 1 of a direction, as many as `out` has."""
    x0 = np.empty(blocks, np.uint32)
    x1 = np.empty(blocks, np.uint32)
    fill_words(key, direction, first, x0, x1)
    each = 64 if law == SIGNS else 2
    if out.size == each * blocks:
        fill_entries(law, x0, x1, out)
        return
    phi = np.empty(each * blocks, np.float32)
    fill_entries(law, x0, x1, phi)
    out[:] = phi[start : start + out.size]


@kernel
def fill_nth(law: int, key: KeyPair, place: tuple[int, int, int], t: int, out: Float32Array) -> None:
    """What tile t has of `out`, the first of whose tiles is tile 0; of its blocks only those that are wanted."""
    direction, tile, before = place
    each = 64 if law == SIGNS else 2
    tiles_of_direction = TWO_32 // each // BLOCKS
    length = each * BLOCKS
    low = max(0, t * length - before)
    high = min(out.size, (t + 1) * length - before)
    start = low + before - t * length
    skipped = start // each
    blocks = (start + high - low + each - 1) // each - skipped
    first = (tile + t) % tiles_of_direction * BLOCKS + skipped
    number = direction + (tile + t) // tiles_of_direction
    fill_tile(law, key, number, first, blocks, start - skipped * each, out[low:high])


@kernel
def fill_few(law: int, key: KeyPair, place: tuple[int, int, int], tiles: int, out: Float32Array) -> None:
    """All of `out`; `place` is the direction of its first number, its tile in that direction, and its place in that."""
    for t in range(tiles):
        fill_nth(law, key, place, t, out)


@parallel_kernel
def fill_many(law: int, key: KeyPair, place: tuple[int, int, int], tiles: int, out: Float32Array) -> None:
    """`fill_few`, by threads."""
    for t in prange(tiles):
        fill_nth(law, key, place, t, out)


@kernel
def number_key(seed: tuple[int, int], stream: int) -> KeyPair:
    """The key of a stream; the seed is given as its high and its low word."""
    k0, k1 = threefry2x32(np.uint32(seed[0]), np.uint32(seed[1]), np.uint32(0), np.uint32(NUMBERS))
    k0, k1 = threefry2x32(k0, k1, np.uint32(0), np.uint32(stream))
    keys = basis_keys((int(k0), int(k1)), 0, 0, 1)
    return keys[0, 0], keys[1, 0]


def fill(law: str, seed: int, stream: int, offset: int, out: Float32Array) -> None:
    """Numbers offset, offset + 1, ... of a stream into a contiguous vector, in place."""
    key = number_key(divmod(seed, TWO_32), stream)
    direction, element = divmod(offset, TWO_32)
    length = LAWS[law].per_block * BLOCKS
    tile, before = divmod(element, length)
    tiles = -(-(before + out.size) // length)
    work = fill_few if tiles < MANY else fill_many
    work(CODES[law], key, (direction, tile, before), tiles, out)


def numbers(law: str, seed: int, stream: int, offset: int, count: int) -> Float32Array:
    """Numbers offset .. offset + count - 1 of a stream."""
    out = np.empty(count, dtype=np.float32)
    fill(law, seed, stream, offset, out)
    return out
