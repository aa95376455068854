"""Training from Python: `fit` is the command, problems of one's own train in every way, runs can be read again."""

from __future__ import annotations

import doctest
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rbd_ref
from rbd_ref import methods, replay, train
from rbd_ref.data.datasets import load
from rbd_ref.methods import METHODS
from rbd_ref.methods.settings import EXCHANGES
from rbd_ref.runs import config as configs
from rbd_ref.runs.folder import Run
from rbd_ref.training import fit as fitting
from rbd_ref.training import guidance, history, recorded
from rbd_ref.training import minimize as minimizing
from rbd_ref.training.trainer import CALLBACK, StepRecord
from run_tools import TINY, final, lines, refused, result, sha, trained
from tools import bits, run_python

SMALL = {"net": "mlp:64-10", "dims": 3, "batch_size": 400, "family": "sparse"}


class Bowl:
    """|theta - m|^2 / 2 with an m for each batch, near a common one."""

    D = 40

    def __init__(self, shift: float = 0.0) -> None:
        self.target = np.linspace(-1, 1, self.D)
        self.shift = np.float32(shift)

    def initial(self, seed: int) -> np.ndarray:
        return np.full(self.D, seed, dtype=np.float32) + self.shift

    def away(self, theta: np.ndarray, *batch: int) -> np.ndarray:
        return theta - self.target - 0.1 * np.random.default_rng(batch).standard_normal(self.D)

    def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
        x = self.away(theta, step, worker)
        return float(x @ x / 2), x.astype(np.float32)


class Furnished(Bowl):
    """One that has all a problem may have."""

    layers = ((20, 5), (15,))
    steps_per_epoch = 4

    def loss(self, theta: np.ndarray, step: int, worker: int, offspring: int | None) -> float:
        x = self.away(theta, step, worker, 0 if offspring is None else offspring + 1)
        return float(x @ x / 2)

    def evaluate(self, theta: np.ndarray) -> dict[str, float]:
        return {"distance": float(np.linalg.norm(theta - self.target))}


class Thrifty(Furnished):
    """One that gives every gradient in the same array."""

    def __init__(self) -> None:
        super().__init__()
        self.g = np.empty(self.D, dtype=np.float32)

    def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
        loss, self.g[:] = super().loss_and_gradient(theta, step, worker)
        return loss, self.g


def config(**settings: Any) -> rbd_ref.Config:
    dims = {} if settings.get("method") == "sgd" else {"dims": 8}
    return rbd_ref.Config(**{**dims, "steps": 12, "lr": 0.5, **settings})


# The embedded networks.


def test_fit_is_the_command(tmp_path: Path) -> None:
    """The same weights, the same files."""
    run = trained(tmp_path / "command", *TINY, "--family", "sparse", "--steps", "5", "--seed", "3")
    fitted = rbd_ref.fit(rbd_ref.Config(**SMALL, steps=5, seed=3), out=tmp_path / "fit")
    assert fitted.sha256 == sha(run)
    assert np.array_equal(bits(fitted.theta), bits(final(run)))
    assert (tmp_path / "fit" / "journal.rbd").read_bytes() == run.journal.read_bytes()
    assert (tmp_path / "fit" / "config.toml").read_bytes() == (run.folder / "config.toml").read_bytes()
    assert fitted.values["test_accuracy"] == result(run)["test_accuracy"]
    assert (fitted.out, fitted.step, fitted.steps, fitted.stopped) == (tmp_path / "fit", 5, 5, 0)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fitted = rbd_ref.fit(rbd_ref.Config(**SMALL, steps=4))
    assert fitted.out is None
    assert list(tmp_path.iterdir()) == []


def test_fit_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    rbd_ref.fit(rbd_ref.Config(**SMALL, steps=2))
    assert capfd.readouterr() == ("", "")


def test_the_history_is_plain_arrays() -> None:
    fitted = rbd_ref.fit(rbd_ref.Config(**SMALL, epochs=2))
    history = fitted.history
    assert history.loss.shape == (6,)
    assert history.evaluated_at.tolist() == [3, 6]
    assert {name: values.shape for name, values in history.metrics.items()} == {
        "validation_accuracy": (2,),
        "validation_loss": (2,),
    }
    assert history.metrics["validation_accuracy"][-1] == fitted.values["validation_accuracy"]


def test_the_table_of_a_history_has_a_row_for_each_step() -> None:
    table = history.History([3.0, 2.0, 1.0], {2: {"a": 0.5}, 3: {"b": 0.25}, 5: {"a": 0.75}}).table()
    nan = np.nan
    np.testing.assert_equal(
        {name: column.tolist() for name, column in table.items()},
        {
            "step": [1, 2, 3, 5],
            "loss": [3.0, 2.0, 1.0, nan],
            "a": [nan, 0.5, nan, 0.75],
            "b": [nan, nan, 0.25, nan],
        },
    )
    assert list(history.History().table()) == ["step", "loss"]


def test_predictions_are_those_that_the_accuracy_counts(tmp_path: Path) -> None:
    rbd_ref.fit(rbd_ref.Config(**{**SMALL, "dims": 60}, epochs=3), out=tmp_path / "run")
    run = rbd_ref.open_run(tmp_path / "run")
    digits = load("digits")
    predicted = run.predict(digits.test_images)
    assert run.result is not None
    assert np.mean(predicted == digits.test_labels) == run.result["test_accuracy"]
    assert 0.2 < run.result["test_accuracy"] < 1
    without_channel = digits.test_images[..., 0]
    assert run.predict(without_channel).tolist() == predicted.tolist()
    assert run.predict(without_channel / 16).tolist() == predicted.tolist()
    assert run.predict(digits.test_images, step=0).tolist() != predicted.tolist()


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (np.zeros((2, 8, 8), dtype=np.int64), "images have dtype int64, expected uint8"),
        (np.zeros((2, 64), dtype=np.uint8), r"images have shape \(2, 64\), expected \(n, 8, 8, 1\)"),
        (np.zeros((0, 8, 8), dtype=np.uint8), r"expected \(n, 8, 8, 1\) with n >= 1"),
    ],
)
def test_images_that_are_none_are_refused(tmp_path: Path, images: np.ndarray, sentence: str) -> None:
    rbd_ref.fit(rbd_ref.Config(**SMALL, steps=1), out=tmp_path / "run")
    with pytest.raises((TypeError, ValueError), match=sentence):
        rbd_ref.open_run(tmp_path / "run").predict(images)


def test_a_problem_of_one_s_own_has_no_network_to_predict_with(tmp_path: Path) -> None:
    rbd_ref.fit(rbd_ref.Config(dims=5, steps=2), Bowl(), out=tmp_path / "own")
    for problem in (None, Bowl()):
        with pytest.raises(rbd_ref.RunError, match=r"a run of Bowl, .* expected a network"):
            rbd_ref.open_run(tmp_path / "own", problem).predict(np.zeros((1, 8, 8), dtype=np.uint8))


def test_settings_have_the_defaults_of_the_command() -> None:
    assert configs.complete(rbd_ref.Config(dims=7)) == configs.make({"dims": "7"})
    assert rbd_ref.Config.from_preset("table1-fc-mnist-rbd", seed=4) == configs.make(
        {"preset": "table1-fc-mnist-rbd", "seed": 4}
    )


def test_a_mistake_is_one_sentence() -> None:
    for settings, sentence in (
        ({"data": "mnits"}, "data 'mnits' is unknown, expected one of"),
        ({"dims": 10**6}, "expected"),
        ({"lr": -1.0}, "learning rate is -1.0, expected"),
        ({"on_divergence": "resync", "check_every": 1}, "there is no journal to go by, expected a folder: give out="),
    ):
        with pytest.raises(rbd_ref.RunError, match=sentence) as caught:
            rbd_ref.fit(rbd_ref.Config(**settings))
        assert "\n" not in str(caught.value)


def test_callbacks_see_every_step_and_can_stop(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []

    def watch(record: StepRecord) -> bool:
        seen.append((record.t, record.loss))
        return record.t == 3

    fitted = rbd_ref.fit(rbd_ref.Config(**SMALL, steps=9), out=tmp_path / "run", callbacks=[watch])
    assert [t for t, _ in seen] == [1, 2, 3, 4]
    assert [loss for _, loss in seen] == fitted.history.loss.tolist()
    assert (fitted.stopped, fitted.step, fitted.steps, fitted.values) == (CALLBACK, 4, 9, {})
    whole = rbd_ref.fit(rbd_ref.Config(**SMALL, steps=9))
    resumed = rbd_ref.fit(rbd_ref.Config(**SMALL, steps=9), out=tmp_path / "run", resume=True)
    assert resumed.sha256 == whole.sha256
    assert resumed.history.loss.tolist() == whole.history.loss.tolist()


def test_callbacks_see_what_every_worker_found() -> None:
    """Its own gradient and its own update, though the step adds them up."""
    seen: list[StepRecord] = []
    rbd_ref.fit(config(workers=3, steps=2), Bowl(), callbacks=[seen.append])
    basis = rbd_ref.Basis(rbd_ref.compartments.whole(Bowl.D, d=8))
    for t, record in enumerate(seen):
        assert list(record.proposals) == [0, 1, 2]
        for worker, proposal in record.proposals.items():
            g = Bowl().loss_and_gradient(record.before.theta, t, worker)[1]
            assert np.array_equal(bits(proposal.gradient), bits(g))
            assert np.array_equal(bits(proposal.update), bits(basis.reconstruct(record.payloads[worker], t, worker)))


@pytest.mark.parametrize("method", ["rbd", "sgd", "nes"])
def test_the_correlation_is_that_of_all_workers(tmp_path: Path, method: str) -> None:
    """Of the sum of their gradients, where the method finds gradients and where it does not."""
    settings = config(method=method, workers=3, steps=4, log_every=2, correlation=True)
    seen: list[StepRecord] = []
    rbd_ref.fit(settings, Thrifty(), out=tmp_path / "run", callbacks=[seen.append])
    found = 0 if method == "nes" else Bowl.D
    assert [record.gradient.size for record in seen] == [0, found, 0, found]  # at steps that are logged
    for record, line in zip(seen[1::2], lines(Run(tmp_path / "run"), "step"), strict=True):
        theta = record.before.theta
        g = sum(Furnished().loss_and_gradient(theta, record.t - 1, w)[1].astype(float) for w in range(3))
        u = theta.astype(float) - record.theta
        assert line["correlation"]["whole"] == pytest.approx(u @ g / np.linalg.norm(u) / np.linalg.norm(g), abs=1e-5)


def test_what_was_torn_is_a_warning(tmp_path: Path) -> None:
    whole = rbd_ref.fit(rbd_ref.Config(**SMALL, steps=3), out=tmp_path / "run")
    journal = tmp_path / "run" / "journal.rbd"
    os.truncate(journal, journal.stat().st_size - 5)
    (tmp_path / "run" / "checkpoints" / "step-00000003.npz").unlink()
    with pytest.warns(UserWarning, match="ends with a torn record of .* bytes after step 2, which is left out"):
        resumed = rbd_ref.fit(rbd_ref.Config(**SMALL, steps=3), out=tmp_path / "run", resume=True)
    assert resumed.sha256 == whole.sha256


def test_losses_that_float32_cannot_add(tmp_path: Path) -> None:
    """Their mean over workers is finite, and nothing warns, in training, when resumed, and in the history."""

    class High(Bowl):
        def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
            return 3e38, super().loss_and_gradient(theta, step, worker)[1]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rbd_ref.fit(config(workers=2, steps=2), High(), out=tmp_path / "run")
        resumed = rbd_ref.fit(config(workers=2, steps=4), High(), out=tmp_path / "run", resume=True)
        found = rbd_ref.open_run(tmp_path / "run", High()).history.loss
    assert resumed.history.loss.tolist() == found.tolist() == [float(np.float32(3e38))] * 4


def test_another_configuration_is_not_gone_on_with(tmp_path: Path) -> None:
    rbd_ref.fit(rbd_ref.Config(**SMALL, steps=2), out=tmp_path / "run")
    with pytest.raises(rbd_ref.RunError, match="is a run of another configuration: seed would change"):
        rbd_ref.fit(rbd_ref.Config(**SMALL, steps=2, seed=1), out=tmp_path / "run", resume=True)


# Problems of one's own.


@pytest.mark.compiled
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("method", METHODS)
def test_a_problem_of_one_s_own_trains_in_every_way(method: str, exchange: str, tmp_path: Path) -> None:
    """It comes nearer, and its journal gives the same weights at every step."""
    rate = {"sgd": 0.2, "nes": 2.0, "nes-shared-batch": 2.0}.get(method, 0.5)
    bases = {} if method == "sgd" else {"exchange": exchange}
    c = config(method=method, **bases, workers=3, lr=rate, combine="mean", momentum=0.3)
    thetas: list[np.ndarray] = []
    fitted = rbd_ref.fit(c, Bowl(), out=tmp_path / "run", callbacks=[lambda r: thetas.append(r.theta.copy())])
    assert np.linalg.norm(fitted.theta - Bowl().target) < np.linalg.norm(Bowl().initial(0) - Bowl().target)
    run = rbd_ref.open_run(tmp_path / "run", Bowl())
    assert np.array_equal(bits(run.theta(0)), bits(Bowl().initial(0)))
    for step, theta in enumerate(thetas, 1):
        assert np.array_equal(bits(run.theta(step)), bits(theta))
    chain = fitted.values["journal"]
    assert run.verify().endswith(f"12 steps repeated, all 1 hashes agree, the journal's chain ends with {chain}")


def test_a_problem_that_is_empty_to_python_is_still_a_problem() -> None:
    """As a list of layers that has none would be: it must not become the default network."""

    class Empty(Bowl):
        def __len__(self) -> int:
            return 0

    assert rbd_ref.fit(config(), Empty()).theta.shape == (40,)


def test_what_a_problem_may_have_beside(tmp_path: Path) -> None:
    """Layers for compartments, epochs for evaluations and switches, figures of its own, losses for nes."""
    c = rbd_ref.Config(dims=8, lr=0.5, epochs=3, compartments="tensor", switch=("1:sgd:0.1", "2:nes:1.0"), seed=2)
    fitted = rbd_ref.fit(c, Furnished(), out=tmp_path / "run")
    assert fitted.steps == 12
    assert fitted.history.evaluated_at.tolist() == [4, 8, 12]
    assert list(fitted.history.metrics) == ["distance"]
    assert fitted.history.metrics["distance"][-1] == fitted.values["distance"]
    run = rbd_ref.open_run(tmp_path / "run", Furnished())
    assert run.experiment.plan.sizes == (20, 5, 15)
    assert np.array_equal(bits(run.theta()), bits(fitted.theta))
    assert run.history.metrics["distance"].tolist() == fitted.history.metrics["distance"].tolist()


def test_a_run_of_one_s_own_problem_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    c = config(steps=20)
    rbd_ref.fit(c, Bowl(), out=tmp_path / "run", callbacks=[lambda record: record.t == 6])
    resumed = rbd_ref.fit(c, Bowl(), out=tmp_path / "run", resume=True)
    assert resumed.sha256 == rbd_ref.fit(c, Bowl()).sha256


def test_a_run_says_what_it_was_a_run_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands refuse it in one sentence, and another problem is not taken for it."""
    rbd_ref.fit(config(), Bowl(), out=tmp_path / "run")
    words = ("a run of a problem of its author's own (Bowl, D = 40, theta0", "rbd_ref.open_run")
    refused(capsys, [tmp_path / "run", "--verify"], *words, command=replay.main)
    refused(capsys, ["--resume", "--out", tmp_path / "run"], *words, command=train.main)
    with pytest.raises(rbd_ref.RunError, match=r"the run's problem is Bowl, D = 40, .*, expected the same"):
        rbd_ref.open_run(tmp_path / "run", Bowl(shift=1)).theta(3)
    assert rbd_ref.open_run(tmp_path / "run").history.loss.shape == (12,)


class Lacking:
    D = 3


class Wrong(Bowl):
    """Something of it has another shape, or is no number."""

    def __init__(self, gradient: np.ndarray, theta: np.ndarray | None = None) -> None:
        super().__init__()
        self.gradient = gradient
        self.theta = theta

    def initial(self, seed: int) -> np.ndarray:
        return super().initial(seed) if self.theta is None else self.theta

    def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
        return 1.0, self.gradient


class Uneven(Bowl):
    layers = ((20,),)


@pytest.mark.parametrize(
    ("problem", "settings", "sentence"),
    [
        (Lacking(), {}, "a Lacking without initial, loss_and_gradient, expected an object with D"),
        (
            Wrong(np.zeros(39, np.float32)),
            {},
            r"worker 0 is float32 of shape \(39,\), expected floats of shape \(40,\)",
        ),
        (
            Wrong(np.full(40, np.nan, np.float32)),
            {},
            "step 0 fails with learning rate 0.5: the loss of worker 0 is",
        ),
        (Wrong(np.zeros(40, np.int64)), {}, r"is int64 of shape \(40,\), expected floats"),
        (Wrong(np.zeros(40), np.zeros(7, np.float32)), {}, r"initial\(seed\) has shape \(7,\), expected \(40,\)"),
        (Uneven(), {}, "the layers of the problem have 20 parameters, D is 40"),
        (Bowl(), {"steps": None}, "neither steps nor epochs is given, expected one for a problem of your own"),
        (Bowl(), {"steps": None, "epochs": 3}, "the problem has no steps_per_epoch, expected it"),
        (Bowl(), {"switch": ("1:sgd",)}, "the problem has no steps_per_epoch, expected it"),
        (Bowl(), {"dims": 41}, "expected"),
    ],
)
def test_what_is_wrong_with_a_problem_is_one_sentence(
    problem: Any, settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(rbd_ref.RunError, match=sentence) as caught:
        rbd_ref.fit(config(**settings), problem, out=tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_an_error_of_the_problem_s_own_is_not_taken_for_a_loss_that_diverged() -> None:
    class Failing(Bowl):
        def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
            raise ValueError("a mistake of the problem's author")

    with pytest.raises(ValueError, match="a mistake of the problem's author"):
        rbd_ref.fit(config(), Failing())


def test_a_problem_cannot_change_weights_behind_the_trainer_s_back(tmp_path: Path) -> None:
    """It may write to what it was given, and to what it has given away."""

    class Reusing(Bowl):
        kept: np.ndarray

        def initial(self, seed: int) -> np.ndarray:
            self.kept = super().initial(seed)
            return self.kept

        def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
            self.kept[:] = 7
            found = super().loss_and_gradient(theta, step, worker)
            theta[:] = 7
            return found

        def evaluate(self, theta: np.ndarray) -> dict[str, float]:
            theta[:] = 7
            return {}

    reusing = rbd_ref.fit(config(), Reusing())
    assert np.array_equal(bits(reusing.theta), bits(rbd_ref.fit(config(), Bowl()).theta))


# A run read again.


def test_a_run_is_read_again(tmp_path: Path) -> None:
    fitted = rbd_ref.fit(rbd_ref.Config(**SMALL, epochs=2), out=tmp_path / "run")
    run = rbd_ref.open_run(tmp_path / "run")
    assert run.config == fitted.config
    assert run.steps == 6
    assert run.history.loss.tolist() == fitted.history.loss.tolist()
    assert run.history.evaluated_at.tolist() == [3, 6]
    assert run.result == fitted.values
    assert np.array_equal(bits(run.theta()), bits(fitted.theta))
    assert not np.array_equal(bits(run.theta(2)), bits(fitted.theta))
    with pytest.raises(rbd_ref.RunError, match="has 6 steps, expected 7 at least"):
        run.theta(7)


def test_a_folder_that_holds_no_run(tmp_path: Path) -> None:
    with pytest.raises(rbd_ref.RunError, match=r"is no run: it has no config\.toml"):
        rbd_ref.open_run(tmp_path)


# What `import rbd_ref` brings.


def test_importing_the_package_does_not_load_networks() -> None:
    script = "import sys, rbd_ref; rbd_ref.Basis; print('numba' in sys.modules, 'autograd' in sys.modules)"
    assert run_python("-c", script).stdout.split() == ["False", "False"]


def test_public_names() -> None:
    assert sorted(dir(rbd_ref)) == sorted(rbd_ref.__all__)
    assert all(getattr(rbd_ref, name) is not None for name in rbd_ref.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = rbd_ref.trian


@pytest.mark.compiled
@pytest.mark.parametrize("module", [fitting, minimizing, guidance, recorded, configs, history, methods])
def test_examples(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
