"""The examples of docs/own-model-jax.md, docs/random.md and own problems in NumPy run, and show what they say."""

from __future__ import annotations

import doctest
import importlib.util
import re
from types import ModuleType

import numpy as np
import pytest

import rbd_jax.functional
import rbd_jax.random
import rbd_jax.transform
import rbd_torch.random
from tools import ROOT

pytestmark = pytest.mark.compiled


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "module", [rbd_jax.functional, rbd_jax.random, rbd_jax.transform, rbd_torch.random], ids=lambda each: each.__name__
)
def test_examples_of_the_code(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_own_problem_in_numpy() -> None:
    example = load("numpy_own_problem")
    assert example.least_squares() < 1e-4
    accuracy, rebuilt = example.spirals(steps=500)
    assert accuracy > 0.9
    assert rebuilt


def test_own_gradient_is_that_of_finite_differences() -> None:
    problem = load("numpy_own_problem").Spirals()
    theta = problem.initial(0).astype(np.float64)
    gradient = problem.gradient(theta, problem.x, problem.y)[1]
    step = np.zeros(problem.D)
    step[100] = 1e-5
    difference = problem.loss(theta + step, problem.x, problem.y) - problem.loss(theta - step, problem.x, problem.y)
    assert gradient[100] == pytest.approx(difference / 2e-5, rel=1e-4)


def test_own_model_in_jax(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    example = load("jax_own_model")
    monkeypatch.setattr(example, "STEPS", 250)
    example.main()
    text = capsys.readouterr().out
    found = [float(percent) for percent in re.findall(r"([\d.]+)%", text)]
    assert len(found) == 5
    assert min(found) > 50, text
    assert "equal to the bit: True" in text


def test_portable_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    load("portable_adapter").main(steps=100)
    text = capsys.readouterr().out
    small, large = (int(number.replace(",", "")) for number in re.findall(r"([\d,]+)(?: bytes|$)", text, re.M)[:2])
    assert small < 5_000 < 150_000 < large
    assert text.count("equal to the bit: True") == 2
