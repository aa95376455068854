"""The backend `torch`: long directions, threads, torch.compile, gradients, what is missing. `make conformance` has it
pass the suite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rbd_ref.conformance.cases import draw_at, pseudo_random
from rbd_ref.kernels.backend import NumbaBackend
from rbd_ref.models import networks
from rbd_ref.spec.compartments import even, whole
from rbd_ref.spec.families import FAMILIES
from rbd_ref.spec.operations import Draw
from rbd_torch import makers
from rbd_torch.backend import TorchBackend
from rbd_torch.families import TILE
from rbd_torch.normals import radius, root
from rbd_torch.operations import together, tree_sum
from strategies import bases, numbers, seeds, vector
from test_networks import OTHER, OWN
from tools import bits, run_python

pytestmark = pytest.mark.compiled

LONG = 10**6
NETWORKS = {
    "fc": (28, 28, 1),
    "cnn": (18, 19, 3),
    "resnet8": (11, 9, 3),  # odd sides: the zeros of `same` are not alike on both sides
    "resnet32": (8, 8, 3),
    "mlp:12-7-5-3": (12,),
    "mlp:12-3": (2, 6),
}
LOAD = "from rbd_ref.backend import load\ntry:\n    load('rbd_torch.backend:TorchBackend')\n"
REFUSED = LOAD + "except ValueError as error:\n    print(error)\n"
COMPILED = """
import numpy as np
from rbd_ref.spec.compartments import explicit
from rbd_ref.conformance.cases import draw_at, pseudo_random
from rbd_torch.backend import TorchBackend
backend = TorchBackend()
plan, results = explicit(300_000, [(0, 280_001, 3), (280_001, 280_101, 2), (280_101, 300_000, 2)]), []
for family in ("normal", "uniform", "rademacher", "sparse:7", "srht"):
    draw = draw_at(plan, family, "unit", 9, 8, 7)
    results += [backend.directions(draw, range(7)), *backend.descend(draw, pseudo_random(1, plan.D))]
np.savez("results.npz", *results)
"""


@pytest.fixture(scope="module")
def backend() -> TorchBackend:
    return TorchBackend()


@pytest.mark.parametrize("family", [*FAMILIES, "sparse:7"])
@settings(max_examples=5)
@given(seed=seeds, step=numbers, worker=numbers, data=st.data())
def test_a_million_elements(
    backend: TorchBackend, family: str, seed: int, step: int, worker: int, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, LONG - 1), label="direction")
    draw = draw_at(whole(LONG, d=LONG), family, "unit", seed, step, worker)
    expected = NumbaBackend().directions(draw, [index])
    np.testing.assert_array_equal(bits(backend.directions(draw, [index])), bits(expected))


@settings(max_examples=25)
@given(draw=bases())
def test_any_basis(backend: TorchBackend, draw: Draw) -> None:
    reference, g = NumbaBackend(), vector(1, draw.plan.D)
    a, u = backend.descend(draw, g)
    np.testing.assert_array_equal(bits(a), bits(backend.project(draw, g)))
    np.testing.assert_array_equal(bits(u), bits(reference.reconstruct(draw, a)))
    chosen = range(0, draw.plan.d, 2)
    np.testing.assert_array_equal(bits(backend.directions(draw, chosen)), bits(reference.directions(draw, chosen)))


def test_memory_is_bounded_by_tiles() -> None:
    """However many compartments are alike, no more of them go together than fit."""
    plan = even(10 * TILE, k=1000, d=1)
    parts = list(together(plan))
    assert [k for part in parts for k in range(part.start, part.stop)] == list(range(1000))
    assert all(sum(plan.sizes[part]) <= TILE for part in parts)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 1001])
def test_the_tree_adds_the_upper_half_to_the_lower(n: int) -> None:
    x, left = pseudo_random(5, n), list(pseudo_random(5, n))
    while len(left) > 1:
        half = (len(left) + 1) // 2
        left = [left[i] + left[i + half] if i + half < len(left) else left[i] for i in range(half)]
    assert tree_sum(torch.from_numpy(x)[None]).item() == left[0]


def test_roots_are_correctly_rounded() -> None:
    """Of every float from 1 to 4; other powers of 4 only scale them."""
    x = np.arange(0x3F800000, 0x40800000, dtype=np.uint32).view(np.float32)
    np.testing.assert_array_equal(bits(root(torch.from_numpy(x)).numpy()), bits(np.sqrt(x)))


def test_no_radius_is_zero() -> None:
    """Of the words that give the least: `root` is for what is above 0."""
    words = torch.arange(-(2**22), 2**22, dtype=torch.int32)
    assert float(radius(words).min()) > 0
    assert torch.isfinite(radius(words)).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_one_and_two_threads_give_the_same_bits(backend: TorchBackend, family: str) -> None:
    """Tensors that torch divides among its threads; the first call is made with as many as there were."""
    draw, g = draw_at(even(150_000, k=3, d=4), family, "unit", 5, 6, 7), pseudo_random(3, 150_000)
    before, found = backend.set_threads(0), []
    try:
        for n in (0, 1, 2):
            backend.set_threads(n)
            found.append([*backend.descend(draw, g), backend.project(draw, g)])
    finally:
        backend.set_threads(before)
    for one in found[1:]:
        for result, first in zip(one, found[0], strict=True):
            np.testing.assert_array_equal(bits(result), bits(first))


def test_threads_are_bounded(backend: TorchBackend) -> None:
    before = backend.set_threads(0)
    try:
        assert backend.set_threads(1) == backend.set_threads(0) == torch.get_num_threads() == 1
        assert 1 <= backend.set_threads(10**6) < 10**6
    finally:
        backend.set_threads(before)


def test_compiled_code_gives_the_same_bits(tmp_path: Path) -> None:
    """In a process of its own; takes as long as the compiler does, a minute where nothing was compiled before."""
    for switch, folder in (("0", "plain"), ("1", "compiled")):
        (tmp_path / folder).mkdir()
        result = run_python("-c", COMPILED, folder=tmp_path / folder, RBD_TORCH_COMPILE=switch)
        assert result.returncode == 0, result.stderr
    with np.load(tmp_path / "plain" / "results.npz") as plain, np.load(tmp_path / "compiled" / "results.npz") as made:
        assert len(plain.files) == len(made.files) == 15
        for name in plain.files:
            np.testing.assert_array_equal(bits(plain[name]), bits(made[name]))


def network_of(name: str) -> networks.Network:
    return networks.make(name, NETWORKS[name], None if name.startswith("mlp") else 10)


@pytest.mark.parametrize("network", [*map(network_of, NETWORKS), OWN, OTHER], ids=lambda network: network.name)
def test_gradients_equal_autograd(backend: TorchBackend, network: networks.Network) -> None:
    """Of the paper's networks, and of two of one's own that differ in nothing but what they compute."""
    theta = networks.initialise(network, 3) + np.float32(0.05) * pseudo_random(1, network.D)
    x = pseudo_random(2, 6 * int(np.prod(network.input_shape))).reshape(6, *network.input_shape)
    y = np.arange(6) % network.classes
    loss, g = backend.loss_and_gradient(network, theta, x, y)
    expected, wanted = networks.loss_and_gradient(network, theta, x, y)
    assert isinstance(loss, float)
    assert (g.dtype, g.shape) == (np.float32, (network.D,))
    assert loss == pytest.approx(expected, rel=1e-5)
    assert np.linalg.norm(g - wanted) <= 1e-4 * np.linalg.norm(wanted)


def test_a_gradient_leaves_nothing_behind(backend: TorchBackend) -> None:
    """Neither arguments nor earlier results change, and the second call at the same place gives the same."""
    network = networks.make("mlp:12-7-5-3")
    theta, x, y = pseudo_random(1, network.D), pseudo_random(2, 60).reshape(5, 12), np.arange(5) % 3
    kept = theta.copy()
    loss, g = backend.loss_and_gradient(network, theta, x, y)
    before = g.copy()
    assert backend.loss_and_gradient(network, -theta, x, y)[0] != loss
    assert backend.loss_and_gradient(network, theta, x, y)[0] == loss
    np.testing.assert_array_equal(g, before)
    np.testing.assert_array_equal(theta, kept)


def test_torch_is_not_imported_before_it_is_needed() -> None:
    result = run_python("-c", "import sys, rbd_ref, rbd_torch.backend; print('torch' in sys.modules)")
    assert result.stdout == "False\n", result.stderr


def test_a_missing_torch_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libtorch.so is missing')\n")
    result = run_python("-c", f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n" + REFUSED)
    assert result.stdout.startswith("backend 'rbd_torch.backend:TorchBackend' cannot be loaded: torch"), result.stderr
    assert "libtorch.so is missing" in result.stdout
    assert result.stdout.endswith(": pip install 'rbd-ref[torch]'\n")  # and no second remedy
    assert result.stdout.count("\n") == 1


@pytest.mark.parametrize("device", ["abacus", "cpu:x", "cuda:99", ""])
def test_a_missing_device_is_one_sentence(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RBD_TORCH_DEVICE", device)
    with pytest.raises(RuntimeError, match="expected a device that torch can use here") as caught:
        TorchBackend()
    assert f"RBD_TORCH_DEVICE is {device!r}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_switch_that_is_neither_on_nor_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RBD_TORCH_COMPILE", "yes")
    with pytest.raises(RuntimeError, match="RBD_TORCH_COMPILE is 'yes', expected 0 or 1"):
        TorchBackend()


def test_a_compiler_that_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("no compiler\nat all")

    monkeypatch.setenv("RBD_TORCH_COMPILE", "1")
    monkeypatch.setattr(makers, "graphs", fail)
    with pytest.raises(RuntimeError, match=r"torch.compile fails here \(no compiler\), expected a C\+\+ compiler"):
        TorchBackend()
