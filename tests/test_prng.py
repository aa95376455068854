"""Words and keys: against Random123's published answers, against JAX, and kernel against definition."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.random import threefry_2x32

from rbd_ref import prng
from rbd_ref.conformance.golden import RANDOM123
from rbd_ref.kernels import prng as kernels
from strategies import numbers, seeds


def words(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


@pytest.mark.parametrize(("counter", "key", "answer"), RANDOM123)
def test_random123_known_answers(counter: tuple, key: tuple, answer: tuple) -> None:
    assert tuple(prng.threefry2x32(words(*key), words(*counter))) == answer
    with np.errstate(over="ignore"):
        assert tuple(kernels.threefry2x32(*words(*key), *words(*counter))) == answer


@given(seeds, seeds, st.integers(1, 40))
def test_words_equal_jax(key_seed: int, counter_seed: int, n: int) -> None:
    """JAX takes all first counter words, then all second ones, in one vector."""
    key, start = prng.root_key(key_seed), prng.root_key(counter_seed)
    counter = np.stack([np.full(n, start[0]), start[1] + np.arange(n, dtype=np.uint32)])
    theirs = np.asarray(threefry_2x32(jax.numpy.asarray(key), jax.numpy.asarray(counter.reshape(-1)))).reshape(2, n)
    assert np.array_equal(prng.threefry2x32(key, counter), theirs)


@given(st.integers(0, 2**31 - 1), numbers)
def test_root_key_and_fold_in_equal_jax(seed: int, n: int) -> None:
    key = jax.random.key(seed, impl="threefry2x32")
    assert np.array_equal(prng.root_key(seed), jax.random.key_data(key))
    assert np.array_equal(prng.fold_in(prng.root_key(seed), n), jax.random.key_data(jax.random.fold_in(key, n)))


def test_root_key_of_a_wide_seed_equals_jax() -> None:
    """Seeds of more than 32 bits need JAX's 64-bit mode to reach it whole."""
    seed = 0xFEDCBA9876543210
    with jax.enable_x64(True):
        theirs = jax.random.key_data(jax.random.key(np.uint64(seed), impl="threefry2x32"))
    assert np.array_equal(prng.root_key(seed), theirs)


@given(seeds, numbers, numbers)
def test_kernel_equals_definition(seed: int, c0: int, c1: int) -> None:
    key = prng.root_key(seed)
    with np.errstate(over="ignore"):
        got = kernels.threefry2x32(key[0], key[1], np.uint32(c0), np.uint32(c1))
    assert tuple(got) == tuple(prng.threefry2x32(key, words(c0, c1)))


def test_one_counter_or_many() -> None:
    """Shapes (2,) and (2, n) give the same words."""
    key, counter = prng.root_key(3), np.arange(10, dtype=np.uint32).reshape(2, 5)
    together = prng.threefry2x32(key, counter)
    assert together.shape == (2, 5)
    assert all(np.array_equal(prng.threefry2x32(key, counter[:, p]), together[:, p]) for p in range(5))


def test_fold_in_uses_all_64_bits() -> None:
    key = prng.root_key(0)
    folded = {tuple(prng.fold_in(key, n)) for n in (0, 1, 2**31, 2**32, 2**32 + 1, 2**64 - 1)}
    assert len(folded) == 6


@given(seeds, numbers, numbers, st.integers(1, 9))
def test_basis_keys_are_nested_folds(seed: int, step: int, worker: int, count: int) -> None:
    """Stream, step, worker, compartment, in this order."""
    key = prng.fold_in(prng.fold_in(prng.fold_in(prng.root_key(seed), prng.STREAMS["bases"]), step), worker)
    expected = np.stack([prng.fold_in(key, k) for k in range(count)], axis=1)
    assert np.array_equal(prng.basis_keys(seed, step, worker, count), expected)
    with np.errstate(over="ignore"):
        assert np.array_equal(kernels.basis_keys(divmod(seed, 2**32), step, worker, count), expected)


def test_no_two_addresses_share_a_key() -> None:
    """Additive seeds would give (step, worker) and (step + 1, worker - 1) the same key."""
    keys = {
        tuple(prng.basis_keys(seed, step, worker, 1)[:, 0])
        for seed in range(8)
        for step in range(8)
        for worker in range(8)
    }
    streams = {tuple(prng.stream_key(seed, stream)) for seed in range(8) for stream in prng.STREAMS}
    assert len(keys) == 8**3
    assert len(streams) == 8 * len(prng.STREAMS)
