"""Stretches of tiles as families hold them: sums and multiples have the bits of all entries as floats."""

from __future__ import annotations

import numpy as np
import pytest

from rbd_ref.conformance.cases import pseudo_random
from rbd_ref.kernels.tiles import (
    LANES,
    MOST_TILE_WORDS,
    SCRATCH,
    STRETCH,
    add,
    dot,
    family_code,
    hold,
    stretch,
    tile_words,
)
from rbd_ref.spec.families import direction_entries, parse_family
from rbd_ref.spec.operations import TILE
from rbd_ref.spec.prng import root_key
from tools import COMPILED, bits

SPARSE = ["sparse", "sparse:1", "sparse:7", "sparse:16", "sparse:64", "sparse:256"]
FAMILIES = ["normal", "uniform", "rademacher", "bernoulli-graphcore", *SPARSE]
TILES = [TILE - 1, TILE, TILE + 1, TILE + 300, 3 * TILE + 77, 8 * TILE - 64, 8 * TILE, 8 * TILE + 1, 11 * TILE + 5]
SIZES = [1, 31, 32, 33, 63, 64, 65, 130, *(TILES if COMPILED else [])]


def lane_sum(x: np.ndarray, y: np.ndarray) -> float:
    """Section 6 of the specification over one tile, every entry multiplied and added."""
    product = x * y
    lanes = np.zeros(LANES, dtype=np.float32)
    for row in np.pad(product, (0, -product.size % LANES)).reshape(-1, LANES):
        lanes = lanes + row
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    return float(lanes[0])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("size", SIZES)
def test_sums_and_multiples_have_the_bits_of_all_entries(name: str, size: int) -> None:
    """Zeros of both signs among g and u, and tiles that start and end within a window."""
    family, key = parse_family(name), root_key(size)
    phi, g = direction_entries(family, key, 6, size), pseudo_random(1, size)
    g[::3] = -0.0
    u = np.where(np.arange(size) % 5 == 0, np.float32(0), pseudo_random(2, size))
    expected, a = u + np.float32(-0.3) * phi, np.float32(-0.3)
    code, scratch = family_code(family), np.empty(SCRATCH, np.uint32)
    with np.errstate(over="ignore"):
        held = np.empty(stretch(code) * tile_words(code, size), np.uint32)
        length = stretch(code) * TILE
        for first in range(0, size, length):
            here = slice(first, min(first + length, size))
            hold(code, (key[0], key[1]), 6, first, here.stop - first, size, scratch, held)
            parts = [slice(j, min(j + TILE, size)) for j in range(first, here.stop, TILE)]
            sums = np.empty((len(parts), 1, 2))
            dot(code, held, g[here], True, sums[:, 0])
            assert sums[:, 0].tolist() == [[lane_sum(phi[p], g[p]), lane_sum(phi[p], phi[p])] for p in parts]
            add(code, a, held, u[here])
    assert np.array_equal(bits(u), bits(expected))


@pytest.mark.parametrize("window", [1, 2, 3, 16, 100, 255, 256])
def test_no_family_needs_more_room_than_there_is(window: int) -> None:
    code = family_code(parse_family(f"sparse:{window}"))
    assert stretch(code) == {1: 1, 2: 1, 3: 1, 16: 2}.get(window, STRETCH)
    for size in (*range(1, 300), TILE, 10 * TILE + 1):
        assert tile_words(code, size) <= MOST_TILE_WORDS
    assert tile_words(family_code(parse_family("normal")), 1) == TILE <= MOST_TILE_WORDS
    assert tile_words(family_code(parse_family("rademacher")), 10**6) == TILE // 32
