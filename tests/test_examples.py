"""The example of 100 lines: its words, directions and operations are the definition's, its weights the package's.

`MISTAKES` are single edits of its text. Each must make the comparison fail that the example itself passes.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import rbd_ref as rbd
from rbd_ref import compartments
from rbd_ref.conformance.golden import RANDOM123
from rbd_ref.spec import operations, prng
from rbd_ref.spec.families import parse_family
from strategies import vector
from tools import ROOT, bits, run_python

F32 = np.float32
PATH = ROOT / "examples" / "rbd_in_100_lines.py"
SOURCE = PATH.read_text()
ADDRESSES = ((0, 0, 0), (42, 3, 1), (2**64 - 1, 2**32 - 1, 2**32 - 1), (2**32, 7, 300))


def load(source: str = SOURCE) -> ModuleType:
    """The example as a module, from its text."""
    module = ModuleType("example")
    module.__file__ = str(PATH)
    exec(compile(source, str(PATH), "exec"), module.__dict__)
    return module


EXAMPLE = load()
DIGITS = EXAMPLE.Digits()


class Bowl:
    """A quadratic in D = 9,001, which is three tiles, with a target for each step and worker."""

    D = 9001

    def initial(self, seed: int) -> np.ndarray:
        return vector(seed % 1000, self.D)

    def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
        g = theta - vector(1000 + 100 * step + worker, self.D)
        return float(g @ g) / 2, g


def by_the_package(
    problem: Any, workers: int, steps: int, d: int, eta: float, seed: int, backend: str = "numpy"
) -> np.ndarray:
    """theta of `rbd_ref.fit` on the same problem."""
    config = rbd.Config(
        method="rbd", family="rademacher", dims=d, lr=eta, workers=workers, steps=steps, seed=seed, backend=backend
    )
    return rbd.fit(config, problem).theta


def same(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype == np.float32 and np.array_equal(bits(x), bits(y))


def draw_of(seed: int, step: int, worker: int, D: int, d: int) -> operations.Draw:
    return operations.Draw(compartments.whole(D, d), parse_family("rademacher"), "unit", seed, step, worker)


# Against the definition.


@pytest.mark.parametrize(("counter", "key", "answer"), RANDOM123)
def test_words_are_random123s(counter: tuple, key: tuple, answer: tuple) -> None:
    assert tuple(EXAMPLE.threefry(np.array(key, np.uint32), np.array(counter, np.uint32))) == answer


@pytest.mark.parametrize(("seed", "step", "worker"), ADDRESSES)
def test_keys_and_directions_are_the_definitions(seed: int, step: int, worker: int) -> None:
    key = EXAMPLE.make_key(seed, EXAMPLE.BASES, step, worker, 0)
    assert np.array_equal(key, prng.basis_keys(seed, step, worker, 1)[:, 0])
    for D in (1, 31, 64, 65, 1000):
        d = min(D, 5)
        assert same(
            EXAMPLE.directions(seed, step, worker, d, D), operations.directions(draw_of(seed, step, worker, D, d))
        )


def test_streams_are_the_packages() -> None:
    names = ("BASES", "INITIALISATION", "ORDER")
    assert {name: getattr(EXAMPLE, name) for name in names} == {name: prng.STREAMS[name.lower()] for name in names}


@pytest.mark.parametrize("D", [1, 63, 64, 65, 4095, 4096, 4097, 12_289])
def test_operations_are_the_definitions(D: int) -> None:
    draw = draw_of(42, 3, 1, D, min(D, 6))
    phi = EXAMPLE.directions(42, 3, 1, draw.plan.d, D)
    g = vector(D, D)
    a = EXAMPLE.project(phi, g)
    assert same(a, operations.project(draw, g))
    assert same(EXAMPLE.reconstruct(phi, a), operations.reconstruct(draw, a))


def test_small_coefficients_are_flushed() -> None:
    """A gradient whose coefficients lie on both sides of 2^-64."""
    D, d = 1000, 50
    draw, g = draw_of(0, 0, 0, D, d), vector(1, D) * F32(2.0**-59)
    a = EXAMPLE.project(EXAMPLE.directions(0, 0, 0, d, D), g)
    assert 0 < np.count_nonzero(a) < d
    assert not np.signbit(a[a == 0]).any()
    assert same(a, operations.project(draw, g))


def test_the_gradient_is_that_of_the_loss() -> None:
    """Central differences along random lines; the loss is computed in float64, the gradient rounded to float32."""
    theta, h = DIGITS.initial(1).astype(np.float64), 1e-6
    _, g = DIGITS.loss_and_gradient(theta, 5, 2)
    for label in range(5):
        line = vector(label, DIGITS.D).astype(np.float64)
        above, below = (DIGITS.loss_and_gradient(theta + sign * h * line, 5, 2)[0] for sign in (1, -1))
        assert (above - below) / (2 * h) == pytest.approx(line @ g, rel=1e-4, abs=1e-6)


def test_every_worker_and_step_has_a_batch_of_its_own() -> None:
    theta = DIGITS.initial(0)
    losses = {DIGITS.loss_and_gradient(theta, step, worker)[0] for step in range(5) for worker in range(5)}
    assert len(losses) == 25


# Against the package.


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_weights_are_the_packages(workers: int, seed: int) -> None:
    for problem, eta in ((DIGITS, 8.0), (Bowl(), 0.1)):
        setting = {"workers": workers, "steps": 3, "d": 5, "eta": eta, "seed": seed}
        assert same(EXAMPLE.train(problem, **setting), by_the_package(problem, **setting))


MISTAKES = {
    "a wrong rotation": ("(17, 29, 16, 24)", "(17, 29, 15, 24)"),
    "a round of keys too few": ("range(5)", "range(4)"),
    "keys in another order": ("keys[(group + 1) % 3]", "keys[group % 3]"),
    "added seeds": ("BASES, step, worker, 0)", "BASES, step + worker, 0, 0)"),
    "step and worker exchanged": ("BASES, step, worker, 0)", "BASES, worker, step, 0)"),
    "no compartment": ("BASES, step, worker, 0)", "BASES, step, worker)"),
    "another stream": ("BASES, INITIALISATION, ORDER = 0, 1, 2", "BASES, INITIALISATION, ORDER = 1, 0, 2"),
    "bits from the highest down": ('bitorder="little"', 'bitorder="big"'),
    "signs with a shift": ("np.float32(1) - 2 *", "np.float32(0.5) - 2 *"),
    "a product of NumPy's order": ("inner = sum(", "inner = phi @ g; sum("),
    "lanes from the last row": ("for row in range(64))", "for row in reversed(range(64)))"),
    "neighbouring lanes": (
        "left, right = np.split(lanes, 2, axis=-1)",
        "left, right = lanes[..., ::2], lanes[..., 1::2]",
    ),
    "tiles in float32": (".astype(np.float64) for tile", " for tile"),
    "a quotient in float32": ("(inner / D)", "(inner.astype(np.float32) / np.float32(D))"),
    "directions from the last": ("zip(a, phi, strict=True)", "zip(a[::-1], phi[::-1], strict=True)"),
    "updates added in float64": ("return u\n", "return (a.astype(np.float64) @ phi).astype(np.float32)\n"),
    "workers from the last": ("zip(bases, all_coefficients, strict=True)", "[*zip(bases, all_coefficients)][::-1]"),
    "workers' coefficients exchanged": ("zip(bases, all_coefficients, ", "zip(bases, all_coefficients[::-1], "),
    "the mean of workers": ("np.float32(eta) * u", "np.float32(eta / workers) * u"),
    "a rate in float64": ("theta - np.float32(eta) * u", "(theta - np.float64(eta) * u).astype(np.float32)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_changes_the_weights(mistake: str) -> None:
    right, wrong = MISTAKES[mistake]
    assert SOURCE.count(right) == 1
    setting = {"workers": 3, "steps": 3, "d": 5, "eta": 0.1, "seed": 7}
    theta = load(SOURCE.replace(right, wrong)).train(Bowl(), **setting)
    expected = by_the_package(Bowl(), **setting)
    assert theta.dtype == expected.dtype == np.float32
    assert not np.array_equal(bits(theta), bits(expected))


def test_replicas_that_differ_are_noticed() -> None:
    """One replica whose update is a bit off."""
    source = SOURCE.replace("np.float32(eta) * u", "np.float32(eta + replica / 1000) * u")
    assert source != SOURCE
    with pytest.raises(AssertionError, match="replicas differ"):
        load(source).train(Bowl(), workers=2, steps=1, d=3, eta=0.1, seed=0)


# As a script.


def test_it_imports_numpy_and_the_standard_library() -> None:
    nodes = list(ast.walk(ast.parse(SOURCE)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= {"numpy", *sys.stdlib_module_names}
    assert "__import__" not in SOURCE
    assert "importlib" not in SOURCE


def test_it_has_less_than_100_lines_of_code() -> None:
    """Lines that are neither blank nor comments nor docstrings."""
    documented = [
        node.body[0]
        for node in ast.walk(ast.parse(SOURCE))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
    ]
    prose = {line for text in documented for line in range(text.lineno, text.end_lineno + 1)}
    lines = [line.strip() for number, line in enumerate(SOURCE.splitlines(), 1) if number not in prose]
    assert sum(bool(line) and not line.startswith("#") for line in lines) < 100


@pytest.mark.compiled
def test_it_runs_alone_and_ends_with_the_weights_of_the_package(tmp_path: Path) -> None:
    """In a process where neither the package nor numba nor autograd can be imported, warnings being errors."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(['rbd_ref', 'numba', 'autograd']));"
    script = f"{blocked} import runpy; runpy.run_path({str(PATH)!r}, run_name='__main__')"
    result = run_python("-W", "error", "-c", script, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    theta = by_the_package(DIGITS, **EXAMPLE.SETTINGS, backend="numba")
    assert hashlib.sha256(theta.astype("<f4").tobytes()).hexdigest() in result.stdout
    accuracy = re.search(r"([\d.]+)% of the held-out images", result.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 85


def test_it_can_be_imported_without_running(capsys: pytest.CaptureFixture[str]) -> None:
    load()
    assert capsys.readouterr().out == ""
