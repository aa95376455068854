"""The backend `jax`: long directions beside the reference's, gradients, rounding, threads. `make conformance` has it
pass the suite."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from jax.extend.random import threefry_2x32

from rbd_jax import rounding, sweep
from rbd_jax.backend import JaxBackend
from rbd_ref._types import F32
from rbd_ref.conformance.cases import draw_at, pseudo_random
from rbd_ref.kernels.backend import NumbaBackend
from rbd_ref.models import networks
from rbd_ref.spec.compartments import explicit, whole
from rbd_ref.spec.families import FAMILIES
from rbd_ref.spec.operations import Draw, flush
from strategies import bases, numbers, seeds
from test_networks import OTHER, OWN
from tools import bits, run_python

pytestmark = pytest.mark.compiled
MILLION = 10**6
BACKEND, REFERENCE = JaxBackend(), NumbaBackend()


@pytest.mark.parametrize("family", [*FAMILIES, "sparse:7"])
@settings(max_examples=5)
@given(seed=seeds, step=numbers, worker=numbers)
def test_a_million_elements_have_the_bits_of_the_reference(family: str, seed: int, step: int, worker: int) -> None:
    draw = draw_at(whole(MILLION, d=3), family, "unit", seed, step, worker)
    mine, theirs = (bits(each.directions(draw, [2])) for each in (BACKEND, REFERENCE))
    assert np.array_equal(mine, theirs)


@settings(max_examples=25)
@given(draw=bases())
def test_any_basis_has_the_updates_of_the_reference(draw: Draw) -> None:
    g = pseudo_random(draw.plan.D, draw.plan.D)
    a, u = BACKEND.descend(draw, g)
    assert np.array_equal(bits(u), bits(REFERENCE.reconstruct(draw, a)))
    assert np.array_equal(bits(a), bits(BACKEND.project(draw, g)))
    np.testing.assert_allclose(a, REFERENCE.project(draw, g), rtol=1e-4, atol=1e-5)


@settings(max_examples=5)
@given(seed=seeds)
def test_words_are_those_of_jax(seed: int) -> None:
    key = np.array([seed >> 32, seed % 2**32], dtype=np.uint32)
    counter = np.arange(2000, dtype=np.uint32).reshape(2, -1) * np.uint32(2654435761)
    found = np.asarray(threefry_2x32(key, counter.reshape(-1))).reshape(2, -1)
    assert np.array_equal(BACKEND.words(key, counter), found)


def test_products_are_not_fused_with_sums() -> None:
    """Numbers whose product's last bits decide: one rounding gives them, two give 0."""
    x = F32(1) + np.arange(1, 2000, dtype=F32) * F32(2.0**-20)
    z = -(x * x)
    found = jax.jit(lambda x, z, zero: rounding.product(x, x, zero) + z)(x, z, np.uint32(0))
    assert np.array_equal(np.asarray(found), np.zeros_like(x))
    exact = x.astype(np.float64) ** 2 + z
    assert np.count_nonzero(exact) > 1000


def test_roots_and_quotients_are_correctly_rounded() -> None:
    """The root of every float from 1 to 4, and two million quotients."""
    x = np.arange(0x3F800000, 0x40800000, dtype=np.uint32).view(F32)
    assert np.array_equal(np.asarray(jax.jit(jax.numpy.sqrt)(x)), np.sqrt(x))
    y = np.roll(x, 12345)[::8]
    assert np.array_equal(np.asarray(jax.jit(lambda x, y: x / y)(x[::8], y)), x[::8] / y)


def test_sums_are_near_for_terms_of_one_sign() -> None:
    x = np.abs(pseudo_random(3, 106_497))
    found = float(jax.jit(rounding.tree_sum)(x))
    assert abs(found / float(np.sum(x, dtype=np.float64)) - 1) < 2e-7


def test_few_programs_are_compiled() -> None:
    """Sizes, numbers of directions, seeds and normalisations within a bucket share one program."""
    BACKEND.descend(draw_at(whole(100_000, d=1), "uniform", "unit", 0, 0, 0), pseudo_random(0, 100_000))
    before = sweep.sweep._cache_size()
    for size, d, normalize in ((98_305, 5, "unit"), (100_001, 70, "none"), (106_496, 2, "expected")):
        draw = draw_at(whole(size, d=d), "uniform", normalize, 9, 8, 7)
        BACKEND.reconstruct(draw, BACKEND.descend(draw, pseudo_random(1, size))[0])
        BACKEND.project(draw, pseudo_random(1, size)), BACKEND.directions(draw, [1])
    assert sweep.sweep._cache_size() == before


@pytest.mark.parametrize("n", [1, 256, 257, 1025, 4096, 4097, 101_770, 2**20, 2**20 + 1])
def test_buckets_hold_what_they_are_for(n: int) -> None:
    size = sweep.bucket(n)
    assert n <= size <= max(256, 4 * n)
    assert size % 64 == 0
    assert n <= 4096 or size <= 1.125 * n
    assert sweep.bucket(size) == size


CASES = (
    ("fc", (28, 28, 1), 10),
    ("cnn", (28, 28, 1), 10),
    ("cnn", (19, 21, 3), 4),
    ("resnet8", (32, 32, 3), 10),
    ("resnet32", (16, 15, 3), 10),
    ("mlp:12-9-7-3", None, None),
)


@pytest.mark.parametrize(
    "network", [*(networks.make(*case) for case in CASES), OWN, OTHER], ids=lambda network: network.name
)
def test_gradients_are_those_of_the_reference(network: networks.Network) -> None:
    """On images with empty borders too, where poolings meet equal numbers; of two networks of one's own that differ in
    nothing but what they compute."""
    theta = networks.initialise(network, 3) + F32(0.01) * pseudo_random(2, network.D)
    x = pseudo_random(1, 8 * int(np.prod(network.input_shape))).reshape(8, *network.input_shape)
    x[:, : network.input_shape[0] // 3] = 0
    y = np.arange(8) % network.classes
    (mine, g), (theirs, wanted) = (
        gradient(network, theta, x, y) for gradient in (BACKEND.loss_and_gradient, networks.loss_and_gradient)
    )
    assert isinstance(mine, float)
    assert abs(mine - theirs) <= 1e-4 * theirs
    assert g.dtype == F32
    assert g.flags.writeable
    assert np.linalg.norm(g - wanted) <= 1e-4 * np.linalg.norm(wanted)


DIGEST = """
from test_jax_backend import BACKEND, digest
print(BACKEND.set_threads(3), digest())
"""


def digest() -> str:
    """Of coefficients and updates, of compartments that are worth several threads and not."""
    plan, found = explicit(50_004, [(0, 50_001, 3), (50_001, 50_004, 2)]), hashlib.sha256()
    for family in ("normal", "bernoulli-graphcore", "srht"):
        draw = draw_at(plan, family, "unit", 5, 6, 7)
        for result in BACKEND.descend(draw, pseudo_random(4, plan.D)):
            found.update(result.tobytes())
    return found.hexdigest()


def search_path(*first: Path) -> str:
    """PYTHONPATH of a process that finds what this one finds, after what is in the folders given."""
    return os.pathsep.join([*map(str, first), *sys.path])


def test_the_number_of_threads_changes_no_bit() -> None:
    result = run_python("-c", DIGEST, NPROC="1", PYTHONPATH=search_path(Path(__file__).parent))
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["1", digest()]


def test_threads_stay_as_they_are() -> None:
    assert BACKEND.set_threads(0) == BACKEND.set_threads(17) == BACKEND.set_threads(1) >= 1


def test_coefficients_that_are_given_are_flushed() -> None:
    draw, a = draw_at(whole(200, d=3), "normal", "unit", 0, 0, 0), np.array([1e-30, -1e-25, 2], dtype=F32)
    assert np.array_equal(BACKEND.reconstruct(draw, a), BACKEND.reconstruct(draw, flush(a)))


def test_the_configuration_of_jax_is_left_alone() -> None:
    assert not jax.config.jax_enable_x64


def test_without_jax_there_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text("raise ImportError('no jax here')\n")
    name = "rbd_jax.backend:JaxBackend"
    result = run_python("-m", "rbd_ref.conformance", "--rbd-backend", name, PYTHONPATH=search_path(tmp_path))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "JAX is missing (no jax here), pip install 'rbd-ref[jax]' brings it" in result.stderr


def test_importing_the_class_does_not_import_jax() -> None:
    script = "import sys, rbd_jax.backend; print('jax' in sys.modules)"
    assert run_python("-c", script, PYTHONPATH=search_path()).stdout.strip() == "False"
