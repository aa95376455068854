"""`rbd_torch.project`, `reconstruct`, `descend`, `directions`: the bits of rbd_ref on tensors; no copy on a CPU, and
nothing of D numbers to the host elsewhere."""

from __future__ import annotations

import doctest
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.utils._python_dispatch import TorchDispatchMode

import rbd_torch
from rbd_ref.basis import Basis
from rbd_ref.spec.compartments import even, whole
from rbd_ref.spec.families import FAMILIES
from rbd_ref.spec.operations import Draw
from rbd_torch import engines, functional, replaying
from rbd_torch import optimizer as optimizers
from strategies import bases, vector
from tools import bits

pytestmark = pytest.mark.compiled
CPU = torch.device("cpu")


def name_of(draw: Draw) -> dict[str, Any]:
    return {"seed": draw.seed, "step": draw.step, "worker": draw.worker, "family": str(draw.family)}


class NothingLargeToTheHost(TorchDispatchMode):
    """Stands for a device on a CPU: refuses to copy more than `most` numbers to where NumPy could see them."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        to_host = name == "aten::_to_copy" and (kwargs or {}).get("device") is not None
        if (to_host or name in ("aten::_local_scalar_dense", "aten::copy_to_host")) and args[0].numel() > self.most:
            raise AssertionError(f"{name} of {args[0].numel()} numbers")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def device_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other devices do, on a CPU: torch's operations, and no `.numpy()` or `.cpu()` of more than 1,000 numbers."""
    monkeypatch.setattr(engines, "engine_for", lambda device: engines.Tensors(device))
    for name in ("numpy", "cpu", "tolist", "__array__"):
        monkeypatch.setattr(torch.Tensor, name, refuse_large(getattr(torch.Tensor, name)))


def refuse_large(method: Any) -> Any:
    def checked(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        assert self.numel() <= 1000, f"{method.__name__} of {self.numel()} numbers"
        return method(self, *args, **kwargs)

    return checked


@settings(max_examples=30)
@given(draw=bases())
def test_they_have_the_bits_of_the_reference(draw: Draw) -> None:
    basis = Basis(draw.plan, draw.seed, str(draw.family), draw.normalize)
    g = torch.from_numpy(vector(1, draw.plan.D))
    named = name_of(draw)
    a, u = rbd_torch.descend(draw.plan, g, **named, normalize=draw.normalize)
    expected = basis.descend(g.numpy(), draw.step, draw.worker)
    np.testing.assert_array_equal(bits(a.numpy()), bits(expected[0]))
    np.testing.assert_array_equal(bits(u.numpy()), bits(expected[1]))
    assert torch.equal(a, rbd_torch.project(draw.plan, g, **named, normalize=draw.normalize))
    assert torch.equal(u, rbd_torch.reconstruct(draw.plan, a, **named))
    chosen = range(0, draw.plan.d, 2)
    phi = rbd_torch.directions(draw.plan, chosen, **named)
    np.testing.assert_array_equal(bits(phi.numpy()), bits(basis.directions(chosen, draw.step, draw.worker)))


@pytest.mark.parametrize("family", FAMILIES)
def test_other_devices_reconstruct_the_same_bits_and_project_nearly(family: str) -> None:
    plan = even(5000, k=3, d=7)
    draw = functional.make_draw(plan, family, "unit", 3, 4, 5)
    g = torch.from_numpy(vector(2, 5000))
    here, there = engines.Kernels(), engines.Tensors(CPU)
    a = here.project(draw, g)
    torch.testing.assert_close(there.project(draw, g), a, rtol=1e-3, atol=1e-5)
    assert torch.equal(there.reconstruct(draw, a), here.reconstruct(draw, a))
    for engine in (here, there):
        found = engine.project(draw, g, slice(5, 15))
        assert torch.equal(found, engine.project(draw, g)[5:15])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usefixtures("device_path")
def test_nothing_of_size_D_crosses_to_the_host(family: str) -> None:
    plan = even(20_000, k=2, d=6)
    with NothingLargeToTheHost(1000):
        a, u = rbd_torch.descend(plan, torch.ones(20_000), seed=0, step=0, family=family)
        again = rbd_torch.reconstruct(plan, a, seed=0, step=0, family=family)
    assert torch.equal(u, again)


@pytest.mark.usefixtures("device_path")
def test_the_guard_of_that_test_notices() -> None:
    with pytest.raises(AssertionError, match="cpu of 20000 numbers"):
        torch.ones(20_000).cpu()


def test_cpu_tensors_are_used_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels see the tensor's own memory, and their result is the tensor that comes back."""
    engine = engines.Kernels()
    monkeypatch.setattr(engines, "engine_for", lambda device: engine)
    seen: dict[str, int] = {}
    project, reconstruct = engine.backend.project, engine.backend.reconstruct

    def watched_project(draw: Draw, g: np.ndarray) -> np.ndarray:
        seen["g"] = g.ctypes.data
        return project(draw, g)

    def watched_reconstruct(draw: Draw, a: np.ndarray) -> np.ndarray:
        u = reconstruct(draw, a)
        seen["u"] = u.ctypes.data
        return u

    monkeypatch.setattr(engine.backend, "project", watched_project)
    monkeypatch.setattr(engine.backend, "reconstruct", watched_reconstruct)
    plan, g = whole(1000, d=3), torch.ones(1000)
    u = rbd_torch.reconstruct(plan, rbd_torch.project(plan, g, 0, 0), 0, 0)
    assert seen == {"g": g.data_ptr(), "u": u.data_ptr()}


def test_other_floats_are_rounded() -> None:
    plan, g = whole(100, d=5), torch.from_numpy(vector(1, 100)).bfloat16()
    expected = rbd_torch.project(plan, g.float(), 0, 0)
    for dtype in (torch.bfloat16, torch.float64):
        assert torch.equal(rbd_torch.project(plan, g.to(dtype), 0, 0), expected)
    assert torch.equal(rbd_torch.project(plan, g.requires_grad_(), 0, 0), expected)


@pytest.fixture(params=[torch.float64, torch.bfloat16], ids=str)
def default_dtype(request: pytest.FixtureRequest) -> Any:
    """What users of such models often set for all of a program."""
    before = torch.get_default_dtype()
    yield torch.set_default_dtype(request.param)
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("default_dtype")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_default_type_of_torch_changes_nothing(family: str) -> None:
    plan = even(300, k=2, d=6)
    draw = functional.make_draw(plan, family, "unit", 3, 4, 5)
    g = torch.from_numpy(vector(2, 300))
    basis = Basis(plan, 3, family)
    a, u = basis.descend(g.numpy(), 4, 5)
    for engine in (engines.Kernels(), engines.Tensors(CPU)):
        mine, update = engine.descend(draw, g)
        torch.testing.assert_close(mine, torch.from_numpy(a), rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(bits(engine.reconstruct(draw, torch.from_numpy(a)).numpy()), bits(u))
        phi = engine.directions(draw, [0, 7])
        np.testing.assert_array_equal(bits(phi.numpy()), bits(basis.directions([0, 7], 4, 5)))
        assert {x.dtype for x in (mine, update, phi)} == {torch.float32}


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"plan": 3}, TypeError, "plan is int, expected a Plan"),
        ({"g": np.ones(10)}, TypeError, "g is ndarray, expected a torch tensor"),
        ({"g": torch.ones(10, dtype=torch.int64)}, TypeError, "g has dtype torch.int64, expected a floating type"),
        ({"g": torch.ones(2, 5)}, ValueError, r"g has shape \(2, 5\), expected \(10,\)"),
        ({"g": torch.full((10,), torch.nan)}, ValueError, "not finite"),
        ({"seed": -1}, ValueError, "seed is -1"),
        ({"step": 2**32}, ValueError, "step is 4294967296"),
        ({"family": "cauchy"}, ValueError, "cauchy"),
        ({"normalize": "length"}, ValueError, "normalize 'length' is unknown"),
    ],
)
def test_mistakes_are_one_sentence(arguments: dict[str, Any], error: type[Exception], sentence: str) -> None:
    given_ = {"plan": whole(10, d=2), "g": torch.ones(10), "seed": 0, "step": 0} | arguments
    for function in (rbd_torch.project, rbd_torch.descend):
        with pytest.raises(error, match=sentence) as raised:
            function(**given_)
        assert "\n" not in str(raised.value)


def test_indices_are_checked() -> None:
    with pytest.raises(ValueError, match="a direction's index is 2, expected 0 <="):
        rbd_torch.directions(whole(10, d=2), [2], 0, 0)


def test_importing_the_package_imports_neither_torch_nor_numba() -> None:
    script = "import sys, rbd_torch; print([name for name in ('torch', 'numba', 'rbd_ref') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
    assert "RBD" in dir(rbd_torch)
    with pytest.raises(AttributeError, match="no attribute 'Adam'"):
        _ = rbd_torch.Adam


@pytest.mark.parametrize("module", [functional, optimizers, replaying], ids=lambda module: module.__name__)
def test_examples_of_the_code(module: Any) -> None:
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
