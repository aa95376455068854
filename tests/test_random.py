"""Portable random numbers: one definition, and the same bits from every library, on every device, at every offset."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import rbd_jax
import rbd_ref
import rbd_torch
from ptx_interpreter import PtxBackend
from rbd_ipu.backend import IpuBackend
from rbd_ref import prng
from rbd_ref.backend import Backend
from rbd_ref.conformance import golden
from rbd_ref.conformance.random import from_directions
from rbd_ref.kernels import random as kernels
from rbd_ref.spec import random as definition
from rbd_ref.spec.families import Family, direction_entries
from rbd_ref.spec.random import LAWS, number_key, numbers
from rbd_torch.random import fill_on_device, runs
from strategies import numbers as words
from strategies import seeds
from tools import COMPILED, bits

TWO_32 = 2**32
MOST = 50_000 if COMPILED else 300  # numbers, of more tiles than one thread makes
NAMES = {"normal": "randn", "uniform": "rand", "signs": "signs"}
laws = pytest.mark.parametrize("law", LAWS)
offsets = st.one_of(
    st.integers(0, 200),
    st.integers(TWO_32 - MOST, TWO_32),
    st.integers(5 * TWO_32 - MOST, 5 * TWO_32),
    st.integers(0, 2**64 - MOST),
)


def of_torch(law: str, count: int, seed: int, stream: int, offset: int) -> np.ndarray:
    return np.asarray(getattr(rbd_torch, NAMES[law])(count, seed, stream=stream, offset=offset))


def of_torch_operations(law: str, count: int, seed: int, stream: int, offset: int) -> np.ndarray:
    """What a device other than the CPU runs."""
    out = torch.empty(count)
    fill_on_device(law, seed, stream, offset, out)
    return out.numpy()


def of_jax(law: str, count: int, seed: int, stream: int, offset: int) -> np.ndarray:
    return np.asarray(getattr(rbd_jax, NAMES[law])(count, seed, stream=stream, offset=offset))


def same(law: str, got: np.ndarray, expected: np.ndarray) -> None:
    assert got.dtype == np.float32
    assert np.array_equal(bits(got), bits(expected)), law


# The definition.


@laws
def test_a_number_is_an_entry_of_a_direction(law: str) -> None:
    """Numbers of the first three directions, each from its beginning."""
    seed, stream = 7, 5
    basis = rbd_ref.Basis(rbd_ref.compartments.whole(131, d=3), definition.stream_seed(seed, stream), LAWS[law].family)
    for i, phi in enumerate(basis.directions([0, 1, 2], step=0)):
        expected = definition.from_zero_to_one(phi) if law == "uniform" else phi
        same(law, numbers(law, seed, stream, i * TWO_32, 131), expected)


def test_the_key_of_a_stream_is_derived_as_the_specification_says() -> None:
    x0, x1 = prng.fold_in(prng.fold_in(prng.root_key(2**40 + 7), 6), 9)
    key = prng.root_key(int(x0) * TWO_32 + int(x1))
    for number in (0, 0, 0, 0):
        key = prng.fold_in(key, number)
    assert np.array_equal(number_key(2**40 + 7, 9), key)


def test_uniform_numbers_are_the_upper_bits_of_words() -> None:
    x = prng.threefry2x32(number_key(3, 0), np.stack([np.zeros(50, np.uint32), np.arange(50, dtype=np.uint32)]))
    expected = (x.T.reshape(-1) >> 8).astype(np.float64) * 2.0**-24
    assert np.array_equal(numbers("uniform", 3, 0, 0, 100), expected)


def test_uniform_numbers_reach_zero_but_not_one() -> None:
    """The two ends of the family `uniform`."""
    ends = np.array([-1 + 2.0**-24, 1 - 2.0**-24], dtype=np.float32)
    assert definition.from_zero_to_one(ends).tolist() == [0.0, 1 - 2.0**-24]


@laws
def test_streams_share_nothing_with_bases_or_each_other(law: str) -> None:
    keys = {tuple(number_key(seed, stream)) for seed in range(4) for stream in range(4)}
    keys |= {tuple(prng.basis_keys(seed, step, 0, 1)[:, 0]) for seed in range(4) for step in range(4)}
    assert len(keys) == 32
    first = direction_entries(Family(LAWS[law].family), prng.basis_keys(0, 0, 0, 1)[:, 0], 0, 64)
    assert not np.array_equal(numbers(law, 0, 0, 0, 64), first)


def test_moments_and_distribution() -> None:
    x = rbd_ref.random.normal(MOST, seed=1)
    assert stats.kstest(x, "norm").pvalue > 1e-4
    u = rbd_ref.random.uniform(MOST, seed=1)
    assert stats.kstest(u, "uniform").pvalue > 1e-4
    s = rbd_ref.random.signs(MOST, seed=1)
    assert set(s.tolist()) == {1.0, -1.0}
    assert abs(s.sum()) < 4 * np.sqrt(MOST)


# The same bits everywhere.


@laws
@settings(max_examples=50)
@given(seed=seeds, stream=words, offset=offsets, count=st.integers(0, MOST))
def test_kernel_equals_definition(law: str, seed: int, stream: int, offset: int, count: int) -> None:
    same(law, kernels.numbers(law, seed, stream, offset, count), numbers(law, seed, stream, offset, count))


@given(seed=seeds, stream=words)
def test_key_of_the_kernel_equals_definition(seed: int, stream: int) -> None:
    assert tuple(kernels.number_key(divmod(seed, TWO_32), stream)) == tuple(number_key(seed, stream))


@laws
@pytest.mark.parametrize("make", [of_torch, of_torch_operations])
@settings(max_examples=15)
@given(seed=seeds, stream=words, offset=offsets, count=st.integers(0, MOST))
def test_torch_equals_definition(
    make: Callable[..., np.ndarray], law: str, seed: int, stream: int, offset: int, count: int
) -> None:
    same(law, make(law, count, seed, stream, offset), numbers(law, seed, stream, offset, count))


@laws
@settings(max_examples=15, deadline=None)
@given(seed=seeds, stream=words, offset=offsets, count=st.sampled_from([0, 1, 63, 1000]))
def test_jax_equals_definition(law: str, seed: int, stream: int, offset: int, count: int) -> None:
    same(law, of_jax(law, count, seed, stream, offset), numbers(law, seed, stream, offset, count))


@laws
def test_jax_in_a_program_where_everything_is_known(law: str) -> None:
    """XLA knows seed and offset, and could compute in advance or fuse products with sums: more than 10^6 normals."""
    count = 2**20 + 3 if COMPILED else 1000
    make = getattr(rbd_jax, NAMES[law])
    expected = kernels.numbers(law, 7, 0, 5, count)
    same(law, np.asarray(jax.jit(lambda: make(count, 7, offset=5))()), expected)
    scaled = jax.jit(lambda x: make(count, 7, offset=5) * x + x)(np.float32(0.1))
    assert np.allclose(scaled, expected * np.float32(0.1) + np.float32(0.1), rtol=1e-6, atol=1e-7)


@laws
def test_jax_with_traced_arguments(law: str) -> None:
    make = getattr(rbd_jax, NAMES[law])
    traced = jax.jit(lambda seed, stream, offset: make((10, 13), seed, stream=stream, offset=offset))
    wide = [jnp.array([n >> 32, n % TWO_32], dtype=jnp.uint32) for n in (2**63 + 5, 3 * TWO_32 - 7)]
    got = np.asarray(traced(wide[0], jnp.uint32(4), wide[1]))
    same(law, got.reshape(-1), numbers(law, 2**63 + 5, 4, 3 * TWO_32 - 7, 130))
    same(law, np.asarray(traced(7, 1, 99)).reshape(-1), numbers(law, 7, 1, 99, 130))
    assert traced._cache_size() == 2


def test_jax_with_64_bit_integers() -> None:
    with jax.enable_x64(True):
        got = jax.jit(lambda offset: rbd_jax.randn(9, seed=7, offset=offset))(jnp.uint64(5 * TWO_32 + 1))
        assert got.dtype == jnp.float32
    same("normal", np.asarray(got), numbers("normal", 7, 0, 5 * TWO_32 + 1, 9))


def test_jax_maps_over_shards() -> None:
    whole = rbd_ref.random.normal((6, 11), seed=3)
    rows = jax.vmap(lambda row: rbd_jax.randn(11, seed=3, offset=row * 11))(jnp.arange(6))
    same("normal", np.asarray(rows), whole)


@pytest.mark.parametrize("backend", [PtxBackend, IpuBackend])
@laws
@pytest.mark.compiled
def test_devices_make_them_as_directions(backend: Callable[[], Backend], law: str) -> None:
    """CUDA's PTX and ONNX, at offsets within a block and beyond 2^32."""
    for offset in (0, 61, TWO_32 + 3):
        same(law, from_directions(backend(), law, 7, 2, offset, 300), numbers(law, 7, 2, offset, 300))


@laws
@settings(max_examples=20)
@given(cut=st.integers(0, 500))
def test_shards_agree_with_the_whole(law: str, cut: int) -> None:
    make = {"normal": rbd_ref.random.normal, "uniform": rbd_ref.random.uniform, "signs": rbd_ref.random.signs}[law]
    origin = TWO_32 - 250
    whole = make(500, seed=9, offset=origin)
    parts = [make(cut, seed=9, offset=origin), make(500 - cut, seed=9, offset=origin + cut)]
    same(law, np.concatenate(parts), whole)


@laws
def test_every_tile_of_a_long_array(law: str) -> None:
    """Some hundred thousand numbers, of which no library may have more or less than the definition."""
    count = 300_001 if COMPILED else 500
    expected = hashlib.sha256(numbers(law, 1, 0, 77, count).tobytes()).hexdigest()
    for make in (of_torch, of_torch_operations, of_jax):
        assert hashlib.sha256(make(law, count, 1, 0, 77).tobytes()).hexdigest() == expected, make


# Tensors and arrays.


def test_torch_knows_devices_and_shapes() -> None:
    assert rbd_torch.randn((2, 3), seed=7).shape == (2, 3)
    assert rbd_torch.randn((), seed=7).shape == ()
    assert rbd_torch.rand(4, seed=7, device="meta").device.type == "meta"
    with torch.device("meta"):
        assert rbd_torch.signs((2, 2), seed=7).device.type == "meta"


def test_torch_within_a_compiled_function() -> None:
    compiled = torch.compile(lambda x: x + rbd_torch.randn(70, seed=7, offset=3), backend="eager")
    same("normal", compiled(torch.zeros(70)).numpy(), numbers("normal", 7, 0, 3, 70))


def test_runs_do_not_cross_directions() -> None:
    found = list(runs(2**31 - 5, 12, per_block=2))
    assert [tuple(run) for run in found] == [(0, 2**31 - 5, 5), (1, 0, 7)]


def test_arrays_are_the_callers_own() -> None:
    a = rbd_ref.random.normal(5, seed=1)
    a[:] = 0
    assert rbd_ref.random.normal(5, seed=1).all()


# Mistakes.


@pytest.mark.parametrize("make", [rbd_ref.random.normal, rbd_torch.randn, rbd_jax.randn])
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((3, -1), {}, "seed is -1, expected 0 <= seed"),
        ((3, 0), {"stream": TWO_32}, "stream is 4294967296, expected 0 <= stream < 4294967296"),
        ((3, 0), {"offset": 2**64 - 2}, "offset is 18446744073709551614, expected 0 <= offset"),
        (((2, -1), 0), {}, "size 1 of the shape is -1, expected 0"),
        ((2.5, 0), {}, "shape is 2.5 of type float, expected several"),
        ((3, 0.5), {}, "seed is 0.5 of type float, expected an integer"),
    ],
)
def test_mistakes_are_one_sentence(
    make: Callable[..., object], arguments: tuple[object, ...], options: dict[str, int], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match="expected") as error:
        make(*arguments, **options)
    assert message in str(error.value)


def test_mistakes_with_arrays_of_jax() -> None:
    with pytest.raises(TypeError, match="seed is an array of float32, expected integers"):
        rbd_jax.randn(3, jnp.float32(1))
    with pytest.raises(ValueError, match=r"offset has shape \(3,\) and dtype int32, expected one integer"):
        rbd_jax.randn(3, 0, offset=jnp.zeros(3, jnp.int32))
    with pytest.raises(ValueError, match=r"has 2147483648 elements, expected fewer than 2\^31"):
        rbd_jax.randn(2**31, 0)


# The vectors.


def test_vectors_show_what_they_say() -> None:
    rows = {row["why"]: int(row["offset"], 16) for row in golden.read("random")["cases"]}
    crossing = [offset for why, offset in rows.items() if why.startswith("across")]
    assert all(offset < TWO_32 < offset + 134 for offset in crossing)
    assert [offset for why, offset in rows.items() if "odd" in why] == [61]
    assert {len(row["numbers"]) // 8 for row in golden.read("random")["cases"]} == {9, 67, 70, 130, 134}


@laws
def test_every_library_has_the_numbers_of_the_vectors(law: str) -> None:
    for row in golden.read("random")["cases"]:
        if row["law"] == law:
            expected = golden.floats(row["numbers"])
            place = (int(row["seed"], 16), row["stream"], int(row["offset"], 16))
            for make in (of_torch, of_torch_operations, of_jax):
                same(law, make(law, expected.size, *place), expected)
