"""Families: kernels against their NumPy definitions, and the exact properties that the laws promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbd_ref.kernels.families import normal_pair
from rbd_ref.kernels.tiles import SCRATCH, family_code, fill, tile_words
from rbd_ref.spec import families as definition
from rbd_ref.spec.families import Family, parse_family
from rbd_ref.spec.operations import TILE
from rbd_ref.spec.prng import root_key
from strategies import LARGEST_SIZE, families, numbers, seeds
from tools import bits

EDGES = np.array(
    [0, 1, 2, 3, 254, 255, 256, 2**31 - 1, 2**31, 2**32 - 512, 2**32 - 257, 2**32 - 256, 2**32 - 1], np.uint32
)
ANGLES = np.concatenate([np.array([0, 0xFF, 0x100, 0x3FFFFFFF], np.uint32) + np.uint32(q << 30) for q in range(4)])


def filled(family: Family, key: np.ndarray, i: int, size: int) -> np.ndarray:
    """A direction by the kernel, tile by tile."""
    code = family_code(family)
    scratch, out = np.empty(SCRATCH, np.uint32), np.full(size, np.nan, np.float32)
    with np.errstate(over="ignore"):
        held = np.empty(tile_words(code, size), np.uint32)
        for first in range(0, size, TILE):
            fill(code, (key[0], key[1]), i, first, size, scratch, held, out[first : first + TILE])
    return out


@given(families.filter(lambda name: name != "srht"), seeds, numbers, st.integers(1, LARGEST_SIZE))
def test_kernel_has_the_bits_of_the_definition(name: str, seed: int, i: int, size: int) -> None:
    family, key = parse_family(name), root_key(seed)
    assert np.array_equal(bits(filled(family, key, i, size)), bits(definition.direction_entries(family, key, i, size)))


@pytest.mark.compiled
@pytest.mark.parametrize(
    "name", ["normal", "uniform", "rademacher", "bernoulli-graphcore", "sparse", "sparse:1", "sparse:256"]
)
@pytest.mark.parametrize("size", [TILE - 1, TILE, TILE + 1, 3 * TILE + 77])
def test_tiles_join_without_a_seam(name: str, size: int) -> None:
    family, key = parse_family(name), root_key(11)
    assert np.array_equal(bits(filled(family, key, 5, size)), bits(definition.direction_entries(family, key, 5, size)))


def test_box_muller_at_the_ends_of_both_words() -> None:
    """Kernel and definition agree on the extreme radii in every quadrant; no zero, no infinity, no NaN."""
    x0, x1 = (grid.reshape(-1) for grid in np.meshgrid(EDGES, ANGLES))
    expected = definition.normal_pairs(np.stack([x0, x1]))
    with np.errstate(over="ignore"):
        got = np.array([normal_pair(*pair) for pair in zip(x0, x1, strict=True)], dtype=np.float32).T
    assert np.array_equal(bits(got), bits(expected))
    assert np.isfinite(expected).all()
    assert (expected != 0).all()


def test_box_muller_range_is_what_the_specification_says() -> None:
    radii = definition.radius(EDGES)
    assert radii[0] == radii.max() == np.float32(6.5555415)
    assert radii[-1] == radii.min() == np.float32(3.452695e-04)
    assert abs(float(radii[0]) - np.sqrt(62 * np.log(2))) < 1e-6


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=200))
def test_box_muller_is_within_5e_6_of_the_true_function(words: list[tuple[int, int]]) -> None:
    """Against float64 on the same lattice of radius and angle."""
    x = np.array(words, dtype=np.uint32).T
    u = np.minimum(x[0] >> 1 | 1, definition.LARGEST).astype(np.int32).astype(np.float32).astype(np.float64) * 2.0**-31
    f = (2.0 * (x[1] >> 8 & 0x3FFFFF) + 1) * 2.0**-22 - 1
    r, c, s = np.sqrt(-2 * np.log(u)), np.cos(np.pi / 4 * f), np.sin(np.pi / 4 * f)
    a, b = np.where(x[1] >> 31 == 1, -r * c, r * c), r * s
    swap = x[1] >> 30 & 1 == 1
    truth = np.stack([np.where(swap, b, a), np.where(swap, a, b)])
    assert np.abs(definition.normal_pairs(x) - truth).max() < 5e-6


def test_uniform_is_exact_symmetric_and_never_zero() -> None:
    x = np.array([0, 255, 256, 2**31 - 1, 2**31, 2**32 - 1], dtype=np.uint32)
    expected = [-(2**24) + 1, -(2**24) + 1, -(2**24) + 3, -1, 1, 2**24 - 1]
    assert (definition.uniform_pairs(np.stack([x, x])) * 2.0**24).tolist() == [expected, expected]


@pytest.mark.parametrize(("name", "clear", "set_"), [("rademacher", 1.0, -1.0), ("bernoulli-graphcore", 0.5, -1.5)])
def test_bit_families_take_bits_from_the_lowest_up(name: str, clear: float, set_: float) -> None:
    key = root_key(5)
    x0, x1 = (int(word) for word in definition.block_words(key, 9, 1)[:, 0])
    places = [x0 >> b & 1 for b in range(32)] + [x1 >> b & 1 for b in range(32)]
    expected = [set_ if bit else clear for bit in places]
    assert definition.direction_entries(parse_family(name), key, 9, 64).tolist() == expected


@given(st.integers(1, 256), st.integers(1, 900), seeds)
def test_sparse_has_one_entry_in_each_window(window: int, size: int, seed: int) -> None:
    """Windows as even as can be: no direction is zero, and no element is met much more often than another."""
    phi = definition.direction_entries(Family("sparse", window), root_key(seed), 3, size)
    starts = definition.window_starts(size, window)
    lengths = np.diff(starts)
    assert all(np.count_nonzero(part) == 1 for part in np.split(phi, starts[1:-1]))
    assert set(np.abs(phi).tolist()) <= {0.0, 1.0}
    assert float(phi @ phi) == Family("sparse", window).expected_square(size) == len(lengths) == -(-size // window)
    assert lengths.max() <= window
    assert lengths.max() - lengths.min() <= 1
    assert lengths.tolist() == sorted(lengths, reverse=True)


def test_family_names() -> None:
    assert parse_family("sparse") == parse_family("sparse:100") == Family("sparse", 100)
    assert [str(parse_family(name)) for name in ("normal", "sparse", "sparse:7")] == [
        "normal",
        "sparse:100",
        "sparse:7",
    ]
