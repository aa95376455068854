"""Guidance: what `suggest` says follows from its numbers, and a run says once what its basis costs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import rbd_ref as rbd
from rbd_ref import suggest as command
from rbd_ref._types import Float32Array
from rbd_ref.backend import Capabilities
from rbd_ref.kernels.backend import NumbaBackend
from rbd_ref.spec.operations import Draw
from rbd_ref.training import guidance
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.guidance import advice, chosen, expected_cosine, suggest
from rbd_ref.training.logbook import cosine
from run_tools import TINY, one_line, status, suited
from tools import run_python

SMALL = {"D": 30, "d": 10, "sgd_lr": 0.1}


def test_the_figures_follow_from_the_numbers() -> None:
    found = suggest(**SMALL)
    assert found.lr == pytest.approx(0.1 * 30 / 10)
    assert found.bytes_per_step == 4 * 12
    assert found.cosine == expected_cosine(30, 10, found.family)
    assert [*found.milliseconds] == ["normal", "uniform", "rademacher", "sparse", "srht"]
    assert min(found.milliseconds.values()) > 0


@pytest.mark.parametrize("before", ["", "import rbd_ref.suggest\n"])
def test_function_and_command_have_one_name(before: str) -> None:
    """Whichever is asked for first: a module hides a function of its name."""
    result = run_python("-c", before + "import rbd_ref\nprint(rbd_ref.suggest.main, rbd_ref.suggest(30, 10, 0.1).lr)")
    assert "function main" in result.stdout, result.stderr
    assert " 0.3" in result.stdout


@pytest.mark.parametrize(
    ("costs", "family"),
    [
        ({"normal": 9.0, "sparse": 1.0, "srht": 1.5}, "srht"),
        ({"normal": 9.0, "sparse": 1.0, "srht": 2.5}, "sparse"),
        ({"normal": 9.0, "sparse": 2.0, "srht": 1.0}, "srht"),
    ],
)
def test_srht_is_chosen_unless_another_takes_less_than_half(costs: dict[str, float], family: str) -> None:
    assert chosen(costs) == family


def measured_cosine(D: int, d: int, family: str) -> float:
    basis, draw = rbd.Basis(D=D, d=d, family=family, seed=3), np.random.default_rng(5)
    found = []
    for step in range(400):
        g = draw.standard_normal(D).astype(np.float32)
        found.append(cosine(basis.descend(g, step=step)[1], g))
    return float(np.mean(found))


@pytest.mark.compiled
@pytest.mark.parametrize("family", guidance.FAMILIES)
@pytest.mark.parametrize(("D", "d"), [(64, 1), (64, 32), (64, 64), (100, 60)])
def test_the_cosine_is_what_is_measured(D: int, d: int, family: str) -> None:
    """To 2 %, or for one direction to 8 %: the mean of 400."""
    assert measured_cosine(D, d, family) == pytest.approx(expected_cosine(D, d, family), rel=0.02 if d > 1 else 0.08)


def test_the_cosine_is_the_root_of_d_over_D_where_d_is_small() -> None:
    for family in guidance.FAMILIES:
        assert expected_cosine(7_000_000, 250, family) == pytest.approx(math.sqrt(250 / 7e6), rel=2e-3)
        assert expected_cosine(2**32 - 1, 10**6, family) == pytest.approx(math.sqrt(1e6 / 2**32), rel=2e-3)


def test_some_directions_are_timed_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of families whose cost grows with d; that of srht does not."""
    timed: list[int] = []

    def time_basis(basis: rbd.Basis) -> float:
        timed.append(basis.plan.d)
        return 1.0

    monkeypatch.setattr(guidance, "time_basis", time_basis)
    monkeypatch.setattr(guidance, "ENTRIES", 1000)
    assert guidance.basis_seconds(10, 10, "normal") == 1.0
    assert guidance.basis_seconds(20, 20, "srht") == 1.0
    assert guidance.basis_seconds(500, 160, "normal") == 10.0
    assert timed == [10, 20, 16]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"D": 0}, "D is 0, expected 1 <= D"),
        ({"d": 31}, "d is 31, expected 1 <= d < 31"),
        ({"D": 1.5}, "D is 1.5 of type float, expected an integer"),
        ({"sgd_lr": "a"}, "sgd_lr is 'a' of type str, expected a number"),
        ({"sgd_lr": 0.0}, "sgd_lr is 0.0, expected a number above 0"),
        ({"sgd_lr": math.nan}, "sgd_lr is nan, expected a number above 0"),
    ],
)
def test_each_mistake_is_one_sentence(changes: dict[str, float], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        suggest(**{**SMALL, **changes})  # type: ignore[arg-type]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["--D", "30", "--dims", "10", "--sgd-lr", "0.5"], command.main) == 0
    out, err = capsys.readouterr()
    assert [line.split("  ")[0] for line in out.splitlines()] == [
        *("family", "rate", "memory", "cosine", "sent", "ms a step", "flags")
    ]
    assert "rate        1.5: eta d / D is 0.5, the rate of SGD\n" in out
    assert "sent        48 bytes a worker and step; data-parallel SGD 128\n" in out
    assert "--dims 10 --family " in out.splitlines()[-1]
    assert err == ""


def test_wrong_flags_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["--D", "30", "--dims", "31"], command.main) == 2
    out, err = capsys.readouterr()
    assert one_line(err, "d is 31, expected 1 <= d < 31").startswith("rbd_ref.suggest: ")
    assert out == ""
    assert status(["--dims", "31"], command.main) == 2


# What a run says of itself.

BRIEF = ("--steps", "4", "--log-every", "2")


def said(capsys: pytest.CaptureFixture[str], folder: Path, *flags: object) -> str:
    capsys.readouterr()
    assert status([*suited(*TINY, *BRIEF, *flags), "--out", folder]) == 0
    return capsys.readouterr().err


def advised(text: str) -> bool:
    return text.count("with --family srht the basis would take") == text.count("\n") == 1


@pytest.fixture
def slow_normals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bases that take seconds, so that no machine is too fast or too busy for the comparison; gradients are real."""
    costs = {"srht": 50.0}
    monkeypatch.setattr(guidance, "time_basis", lambda basis: costs.get(basis.family.name, 100.0))


@pytest.mark.usefixtures("slow_normals")
def test_a_run_says_once_what_its_basis_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, tmp_path / "run")
    assert advised(text), text
    assert "the basis (normal, d = 3) takes 100,000 ms of a step and the gradient " in text
    assert said(capsys, tmp_path / "quiet", "--quiet") == ""
    assert said(capsys, tmp_path / "short", "--steps", "1") == ""  # nothing is logged


@pytest.mark.compiled
@pytest.mark.usefixtures("slow_normals")
@pytest.mark.parametrize(
    ("flags", "speaks"),
    [
        (("--family", "rademacher"), True),
        (("--method", "fpd"), True),
        (("--family", "srht"), False),
        (("--family", "sparse"), False),
        (("--method", "sgd"), False),
        (("--method", "nes"), False),
    ],
)
def test_only_dense_bases_of_gradients_are_spoken_of(
    tmp_path: Path, flags: tuple[str, ...], speaks: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, tmp_path / "run", *flags)
    assert advised(text) if speaks else text == ""


class WithoutSrht(NumbaBackend):
    capabilities = Capabilities(families=("normal",))


def small_run() -> Experiment:
    return Experiment(rbd.Config(net="mlp:64-10", dims=3, batch_size=8, steps=1))


@pytest.mark.parametrize(("normal", "srht"), [(1e-9, 0.0), (100.0, 100.0)])
def test_nothing_is_said_where_nothing_is_won(normal: float, srht: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The basis costs less than the gradient, or srht no less than the basis."""
    costs = {"normal": normal, "srht": srht}
    monkeypatch.setattr(guidance, "time_basis", lambda basis: costs[basis.family.name])
    experiment = small_run()
    assert advice(experiment, experiment.start()) == ""


@pytest.mark.usefixtures("slow_normals")
def test_nothing_is_said_of_what_a_backend_has_not() -> None:
    experiment = small_run()
    assert advice(experiment, experiment.start()) != ""
    experiment.basis.backend = WithoutSrht()
    assert advice(experiment, experiment.start()) == ""


class Counting(NumbaBackend):
    calls = 0

    def descend(self, draw: Draw, g: Float32Array) -> tuple[Float32Array, Float32Array]:
        self.calls += 1
        return super().descend(draw, g)


def test_a_basis_is_timed_after_its_kernels_are_compiled() -> None:
    backend = Counting()
    assert guidance.time_basis(rbd.Basis(D=50, d=5, backend=backend)) > 0
    assert backend.calls == 1 + guidance.TIMES


@pytest.mark.usefixtures("slow_normals")
def test_advice_changes_no_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, tmp_path / "advised")
    said(capsys, tmp_path / "quiet", "--quiet")
    ends = [(tmp_path / name / "final.npz").read_bytes() for name in ("advised", "quiet")]
    assert ends[0] == ends[1]
