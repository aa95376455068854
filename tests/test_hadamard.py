"""The structured family: transform, rows and signs, kernels against definitions and definitions against the formula."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbd_ref.conformance.cases import pseudo_random
from rbd_ref.kernels import hadamard as kernels
from rbd_ref.spec import hadamard
from rbd_ref.spec.prng import root_key
from strategies import LARGEST_SIZE, seeds
from tools import bits


def entries(key: np.ndarray, size: int, d: int) -> np.ndarray:
    """phi (d, size)."""
    return np.stack([hadamard.row_entries(key, size, int(row)) for row in hadamard.rows(key, size, d)])


@given(st.integers(0, 8), st.integers(0, 1000))
def test_transform_is_the_walsh_hadamard_matrix(m: int, label: int) -> None:
    """H[r, j] = (-1)^popcount(r & j)."""
    n = 2**m
    index = np.arange(n)
    matrix = 1.0 - 2.0 * (np.bitwise_count(index[:, None] & index) & 1)
    x = pseudo_random(label, n)
    assert np.allclose(hadamard.transform(x), matrix @ x, atol=1e-5 * n)


@given(st.integers(0, 12 if LARGEST_SIZE > 100 else 6), st.integers(0, 1000))
def test_the_kernel_of_the_transform_has_the_bits_of_the_definition(m: int, label: int) -> None:
    x = pseudo_random(label, 2**m)
    got = x.copy()
    kernels.transform(got)
    assert np.array_equal(bits(got), bits(hadamard.transform(x)))


def test_transform_adds_the_nearest_first() -> None:
    """With h = 1 first, (1 + 2^-24) is lost before the rest is added; any other order keeps it."""
    x = np.array([1, 2.0**-24, 2.0**-24, 2.0**-24], dtype=np.float32)
    assert hadamard.transform(x)[0] == np.float32(1 + 2.0**-23)
    assert hadamard.transform(x[[0, 1, 2, 2]] * np.array([1, 1, 0, 0], np.float32))[0] == 1


@given(seeds, st.integers(1, LARGEST_SIZE), st.data())
def test_rows_are_distinct_ascending_and_the_kernel_agrees(seed: int, size: int, data: st.DataObject) -> None:
    d, key = data.draw(st.integers(1, size)), root_key(seed)
    rows = hadamard.rows(key, size, d)
    assert rows.size == d
    assert (np.diff(rows) > 0).all()
    assert 0 <= rows[0] <= rows[-1] < hadamard.padded(size)
    with np.errstate(over="ignore"):
        assert np.array_equal(kernels.rows((key[0], key[1]), size, d), rows)


def test_equal_words_go_to_the_lower_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ties are too rare to meet by chance, so the definition is shown words that tie."""
    tied = np.array([[5, 5, 1, 5], [9, 5, 5, 9]], dtype=np.uint32)
    monkeypatch.setattr(hadamard, "block_words", lambda key, direction, blocks: tied)
    assert hadamard.rows(root_key(0), 8, 4).tolist() == [0, 2, 3, 4]


def test_the_kernel_takes_the_lower_row_too() -> None:
    words = np.array([5, 9, 5, 5, 1, 5, 5, 9], dtype=np.uint32)
    for places in (np.arange(8), np.arange(2)):  # all of them, or too few by chance
        assert kernels.smallest(words, 4, places).tolist() == [0, 2, 3, 4]
        assert kernels.smallest(words, 8, places).tolist() == list(range(8))


@pytest.mark.compiled
@pytest.mark.parametrize("m", [14, 15, 18, 21])
def test_all_threads_in_cooperation_have_the_bits_of_one(m: int) -> None:
    """With levels left over above the blocks or not, and blocks of both sizes."""
    x = pseudo_random(m, 2**m)
    got, expected = x.copy(), x.copy()
    kernels.transform_cooperative(got)
    kernels.transform(expected)
    assert np.array_equal(bits(got), bits(expected))
    key = tuple(root_key(m))
    for size, d in ((2**m, 2**m), (2**m - 5, 1), (2**m - 4095, 1000)):
        words = np.empty(kernels.padded(size), np.uint32)
        assert np.array_equal(kernels.rows_cooperative(key, d, words), kernels.rows(key, size, d))
        signed, once = np.zeros(size, np.float32), np.zeros(size, np.float32)
        kernels.add_signed_cooperative(key, x[:size], signed)
        kernels.add_signed(key, x[:size], once)
        assert np.array_equal(bits(signed), bits(once))


@given(st.integers(1, 70), seeds)
def test_directions_follow_the_formula(size: int, seed: int) -> None:
    """phi_ij = s_j (-1)^popcount(r_i & j), and every norm is sqrt(size)."""
    key = root_key(seed)
    rows = hadamard.rows(key, size, size)
    parity = np.bitwise_count(rows[:, None] & np.arange(size)) & 1
    phi = entries(key, size, size)
    assert np.array_equal(phi, hadamard.signs(key, size) * (1.0 - 2.0 * parity))
    assert (np.sum(phi * phi, axis=1) == size).all()


@pytest.mark.parametrize("size", [1, 2, 4, 64])
def test_powers_of_two_are_exactly_orthogonal(size: int) -> None:
    phi = entries(root_key(3), size, size)
    assert np.array_equal(phi @ phi.T, size * np.eye(size))
