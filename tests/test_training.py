"""Training: every method, exchange and switch on the digits, and that what a run writes down is what happened."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax

from rbd_ref import replay
from rbd_ref.basis import Basis
from rbd_ref.data import augmentation, batches, datasets
from rbd_ref.methods import METHODS
from rbd_ref.methods.base import Replica, State
from rbd_ref.methods.settings import EXCHANGES
from rbd_ref.models import networks
from rbd_ref.runs import config as configs
from rbd_ref.runs import folder as runs
from rbd_ref.runs.files import RunError
from rbd_ref.runs.folder import Run
from rbd_ref.training.beginning import Beginning
from rbd_ref.training.communicator import SingleProcess, World, single_process
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.logbook import cosine
from rbd_ref.training.trainer import CALLBACK, NullLog, StepRecord, Stopped, StopRequest, Trainer
from run_tools import (
    ONE_THREAD,
    TINY,
    experiment_of,
    final,
    journaled,
    lines,
    result,
    sha,
    status,
    suited,
    trained,
    whole_names,
)
from tools import bits, run_python

QUICK = (*TINY, "--family", "sparse", "--steps", "3")  # where kernels run as plain Python, the least work
WAYS = {
    "sgd": ("--method", "sgd", "--momentum", "0.5"),
    "rbd": ("--method", "rbd"),
    "fpd": ("--method", "fpd"),
    "fpd-adam": ("--method", "fpd", "--optimiser", "adam", "--lr", "0.1"),
    "fpd-momentum": ("--method", "fpd", "--momentum", "0.9"),
    "nes": ("--method", "nes", "--antithetic"),
    "nes-shared-batch": ("--method", "nes-shared-batch", "--transforms", "ranks"),
}


# The same weights.


@pytest.mark.parametrize("method", ["rbd", pytest.param("sgd", marks=pytest.mark.compiled)])
def test_a_seed_gives_the_same_weights_again(tmp_path: Path, method: str) -> None:
    first, again, other = (
        trained(tmp_path / name, *suited(*QUICK, "--method", method, "--seed", seed))
        for name, seed in (("first", 4), ("again", 4), ("other", 5))
    )
    assert sha(first) == sha(again) != sha(other)
    assert first.journal.read_bytes() == again.journal.read_bytes()


@pytest.mark.compiled
@pytest.mark.parametrize("way", [("--family", "normal", "--dims", "100"), ("--method", "sgd")])
def test_the_number_of_threads_does_not_matter(tmp_path: Path, way: tuple[str, ...]) -> None:
    """Neither to directions nor to gradients."""
    hashes = set()
    for count in "12":
        flags = [*way, "--steps", "12", "--quiet", "--out", str(tmp_path / count)]
        more = dict.fromkeys(ONE_THREAD, count)
        assert run_python("-m", "rbd_ref.train", *flags, **more).returncode == 0
        hashes.add(sha(Run(tmp_path / count)))
    assert len(hashes) == 1


@pytest.mark.compiled
def test_plain_python_gives_the_weights_of_the_compiled_kernels(tmp_path: Path) -> None:
    flags = [*TINY, "--steps", "2", "--quiet", "--out"]
    plain = run_python("-m", "rbd_ref.train", *flags, str(tmp_path / "plain"), NUMBA_DISABLE_JIT="1")
    assert (plain.returncode, plain.stdout, plain.stderr) == (0, "", "")
    assert sha(Run(tmp_path / "plain")) == sha(trained(tmp_path / "compiled", *TINY, "--steps", "2"))


# The sha256 that `make train` ends with, on any machine: all bits of directions, updates and gradients are specified.
MAKE_TRAIN = "0d2036f4bf36c66ae5eb3887d30968c5957a0180d8ec8167e5745a412244612a"


@pytest.mark.compiled
def test_make_train_ends_with_the_weights_that_it_always_had(tmp_path: Path) -> None:
    """One process that plays the sixteen workers."""
    assert sha(trained(tmp_path / "run", "--workers", "16")) == MAKE_TRAIN


def test_the_configuration_that_was_written_down_gives_the_same_weights(tmp_path: Path) -> None:
    """Whatever was said by flags."""
    flags = ("--transforms", "normalised", "--transforms", "top:2", "--momentum", "0.25", "--no-augment")
    more = ("--compartments", "even:2", "--dims", "each:2", "--switch", "1:sgd", "--lr", "0.7", "--redraw", "2")
    first = trained(tmp_path / "first", *QUICK, *flags, *more, "--steps", "4", "--seed", 2**64 - 1)
    again = trained(tmp_path / "again", "--config", first.folder / "config.toml")
    assert sha(again) == sha(first)
    assert (again.folder / "config.toml").read_bytes() == (first.folder / "config.toml").read_bytes()
    other = trained(tmp_path / "other", "--config", first.folder / "config.toml", "--seed", "1")
    assert (sha(other) == sha(first), other.config().lr) == (False, 0.7)


# Workers.


def first_step(run: Run, mode: str, parts: list[slice]) -> np.ndarray:
    """theta after one step, by the words of rbd_ref/methods/sharing.py."""
    c, experiment = run.config(), experiment_of(run)
    theta = experiment.problem.initial(c.seed)
    basis = Basis(experiment.plan, c.seed, c.family, c.normalize)
    gs = [experiment.problem.loss_and_gradient(theta, 0, w)[1] for w in range(c.workers)]
    if mode == "independent":
        u = sum((basis.reconstruct(basis.project(g, 0, w), 0, w) for w, g in enumerate(gs)), np.float32(0))
    elif mode == "shared":
        u = basis.reconstruct(sum((basis.project(g, 0, 0) for g in gs), np.float32(0)), 0, 0)
    else:
        u = basis.reconstruct(np.concatenate([basis.project(g, 0, 0)[p] for g, p in zip(gs, parts, strict=True)]), 0, 0)
    rate = np.float32(c.lr / c.workers if c.combine == "mean" else c.lr)
    stepped: np.ndarray = theta - rate * u
    return stepped


@pytest.mark.parametrize(("mode", "combine"), [*zip(EXCHANGES, ("sum", "mean", "sum"), strict=True)])
def test_three_workers(tmp_path: Path, mode: str, combine: str) -> None:
    flags = ("--workers", "3", "--exchange", mode, "--combine", combine, "--dims", "4", "--batch-size", "100")
    run = trained(tmp_path / "run", *QUICK, *flags, "--steps", "1")
    parts = [slice(0, 2), slice(2, 3), slice(3, 4)]
    assert np.array_equal(bits(final(run)), bits(first_step(run, mode, parts)))
    (sent,) = journaled(run)
    assert sent.shape == (3, 1 + (2 if mode == "split" else 4))
    assert result(run)["bytes_per_step"] == 4 * (sent.shape[1] + 1)  # what is journaled, and the request to stop
    assert len(set(sent[:, -1].tolist())) == 3  # each has a batch of its own


@pytest.mark.compiled
@pytest.mark.parametrize("mode", EXCHANGES)
@pytest.mark.parametrize("way", WAYS)
def test_every_method_with_three_workers(tmp_path: Path, way: str, mode: str) -> None:
    """It ends well and its journal gives the same weights again."""
    flags = (*QUICK, "--dims", "7", "--workers", "3", "--exchange", mode, "--batch-size", "100")
    run = trained(tmp_path / "run", *suited(*flags, "--steps", "6", *WAYS[way]))
    assert status([run.folder, "--verify"], replay.main) == 0


# What is written down.


def documented() -> set[str]:
    """The names in the docstring of runs/folder.py."""
    return set(re.findall(r"^    ([\w.]+/?)  ", runs.__doc__ or "", flags=re.M))


@pytest.mark.parametrize("way", WAYS)
def test_every_method_leaves_what_is_documented(tmp_path: Path, way: str) -> None:
    run = trained(tmp_path / "run", "--log-every", "1", *suited(*QUICK, *WAYS[way]))
    checkpoint = "checkpoints/step-00000003.npz"
    assert whole_names(run.folder) == documented() - {"checkpoints/"} | {checkpoint}
    assert sha(run) == hashlib.sha256(final(run).astype("<f4").tobytes()).hexdigest()
    (saved,) = lines(run, "checkpoint")
    assert (saved["step"], saved["sha256"]) == (3, sha(run))
    assert [line["step"] for line in lines(run, "evaluation")] == [3]
    method, steps = WAYS[way][1], lines(run, "step")
    assert [(line["step"], line["method"]) for line in steps] == [(t, method) for t in (1, 2, 3)]
    for line, sent in zip(steps, journaled(run), strict=True):
        assert line["loss"] == sent[0, -1]
        assert sent.shape == (1, 1 if method == "sgd" else 4)
        assert ("coordinates" in line) == (method != "sgd")
        if method != "sgd":
            a = sent[0, :-1].astype(np.float64)
            expected = {"mean": a.mean(), "std": a.std(), "largest": np.abs(a).max()}
            assert line["coordinates"] == pytest.approx(expected, rel=1e-12)


def test_every_line_of_metrics_has_its_time(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", *QUICK, "--log-every", "1")
    seconds = [line["seconds"] for line in lines(run)]
    assert seconds == sorted(seconds)
    assert 0 < seconds[0] <= seconds[-1] <= result(run)["seconds"]
    assert all(line["epoch"] == line["step"] / 3 for line in lines(run))
    assert all(line["images_per_second"] > 0 for line in lines(run, "step"))


def test_the_figures_at_the_end(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", *suited(*QUICK, "--method", "sgd"))
    values = result(run)
    expected = {"step": 3, "epoch": 1.0, "D": 650, "d": 250, "workers": 1, "bytes_per_step": 4 * 652}
    assert {name: values[name] for name in expected} == expected
    assert values["images_per_second"] == pytest.approx(3 * 400 / values["seconds"], rel=0.2)


def test_bytes_are_those_of_each_phase(tmp_path: Path) -> None:
    """The same in metrics and result."""
    run = trained(tmp_path / "run", *TINY, "--switch", "1:sgd", "--steps", "8", "--log-every", "1")
    rbd, sgd = 4 * (3 + 2), 4 * (650 + 2)
    assert [line["bytes_per_step"] for line in lines(run, "step")] == [rbd] * 3 + [sgd] * 5
    values = result(run)
    assert [(phase["step"], phase["method"], phase["bytes_per_step"]) for phase in values["phases"]] == [
        (0, "rbd", rbd),
        (3, "sgd", sgd),
    ]
    assert values["bytes_per_step"] == round((3 * rbd + 5 * sgd) / 8)


@pytest.mark.compiled
def test_the_calendar(tmp_path: Path) -> None:
    """Of lines, evaluations and checkpoints, the last step's always among the latter two."""
    every = ("--log-every", "2", "--eval-every", "2", "--checkpoint-every", "3")
    run = trained(tmp_path / "run", *TINY, "--epochs", "5", *every)
    steps = {kind: [line["step"] for line in lines(run, kind)] for kind in ("step", "evaluation", "checkpoint")}
    assert steps == {"step": [2, 4, 6, 8, 10, 12, 14], "evaluation": [6, 12, 15], "checkpoint": [9, 15]}
    assert [int(path.stem[5:]) for path in run.checkpoints] == [9, 15]
    losses = [sent[0, -1] for sent in journaled(run)]
    for line in lines(run, "step"):
        recent = np.mean(losses[line["step"] - 2 : line["step"]], dtype=np.float64)
        assert line["loss"] == pytest.approx(float(recent), rel=1e-7)
    for line, part in zip(lines(run, "evaluation"), (losses[:6], losses[6:12], losses[12:]), strict=True):
        assert line["loss"] == pytest.approx(float(np.mean(part, dtype=np.float64)), rel=1e-7)


@pytest.mark.compiled
def test_steps_that_end_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", *TINY, "--steps", "4")
    assert [line["step"] for line in lines(run, "evaluation")] == [3, 4]
    assert [line["step"] for line in lines(run, "checkpoint")] == [3, 4]
    assert result(run)["epoch"] == 4 / 3


def parts_of(run: Run) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images and labels of the three parts of the digits, cut here once more."""
    digits = datasets.load("digits")
    divided = batches.split(digits, run.config().seed)
    chosen = {
        name: (digits.train_images[i], digits.train_labels[i])
        for name, i in (("train", divided.train), ("validation", divided.validation))
    }
    chosen["test"] = digits.test_images, digits.test_labels
    return {name: (augmentation.network_input("digits", images), labels) for name, (images, labels) in chosen.items()}


def check_figures(run: Run) -> None:
    """Those in the result and in the last evaluation are those of the theta in final.npz."""
    network, theta, parts = networks.make(run.config().net, (8, 8, 1), 10), final(run), parts_of(run)
    calibration = parts["train"][0][:1000]
    for name, (images, labels) in parts.items():
        found = networks.accuracy(network, theta, images, labels, calibration)
        assert result(run)[f"{name}_accuracy"] == found
    images, labels = parts["validation"]
    logits = networks.logits(network, theta, images, calibration).astype(np.float64)
    loss = -float(np.mean(log_softmax(logits, axis=1)[np.arange(len(labels)), labels]))
    last = lines(run, "evaluation")[-1]
    assert last["validation_accuracy"] == result(run)["validation_accuracy"]
    assert last["validation_loss"] == pytest.approx(loss, rel=1e-12)


def test_the_accuracies_are_those_of_the_last_theta(tmp_path: Path) -> None:
    check_figures(trained(tmp_path / "run", *suited(*QUICK, "--method", "sgd", "--seed", "3")))


@pytest.mark.compiled
def test_the_accuracies_with_batch_norm(tmp_path: Path) -> None:
    """Its statistics are those of the first 1000 training images."""
    check_figures(trained(tmp_path / "run", *QUICK, "--net", "resnet8", "--steps", "1", "--batch-size", "32"))


@pytest.mark.compiled
def test_it_learns(tmp_path: Path) -> None:
    flags = ("--dims", "100", "--family", "srht", "--compartments", "layer", "--net", "mlp:64-10")
    run = trained(tmp_path / "run", *flags, "--epochs", "10", "--lr", "1")
    assert result(run)["validation_accuracy"] > 0.85
    first, last = lines(run, "evaluation")[0], lines(run, "evaluation")[-1]
    assert last["validation_loss"] < 0.8 * first["validation_loss"]


# Correlation.


def correlations(run: Run) -> np.ndarray:
    """(steps, 2): of the whole vectors, and the mean over tensors."""
    return np.array([list(line["correlation"].values()) for line in lines(run, "step")])


@pytest.mark.parametrize(
    ("x", "y", "expected"), [([1, 0], [1, 1], 0.5**0.5), ([1, 2], [-1, -2], -1), ([0, 0], [1, 2], 0)]
)
def test_the_cosine(x: list[float], y: list[float], expected: float) -> None:
    assert cosine(np.array(x, dtype=np.float32), np.array(y, dtype=np.float32)) == pytest.approx(expected)


def test_the_correlation_of_sgd_is_one(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "--correlation", *suited(*QUICK, "--method", "sgd", "--log-every", "1"))
    assert list(lines(run, "step")[0]["correlation"]) == ["whole", "tensors"]
    assert np.abs(correlations(run) - 1).max() < 1e-3


@pytest.mark.compiled
@pytest.mark.parametrize("d", [13, 65, 325])
def test_the_correlation_of_rbd(tmp_path: Path, d: int) -> None:
    """About sqrt(d / D); as the directions are not orthogonal, rather sqrt(d / (D + d))."""
    flags = ("--dims", d, "--net", "mlp:64-10", "--correlation", "--log-every", "1", "--steps", "37")
    whole = correlations(trained(tmp_path / "run", *flags))[:, 0]
    assert float(whole.mean()) == pytest.approx(math.sqrt(d / (650 + d)), abs=0.02)
    assert ((whole > -1) & (whole < 1)).all()


@pytest.mark.compiled
@pytest.mark.parametrize("way", WAYS)
def test_the_correlation_of_other_methods_is_a_cosine(tmp_path: Path, way: str) -> None:
    flags = suited(*QUICK, "--log-every", "1", "--workers", "2", *WAYS[way])
    run = trained(tmp_path / "run", "--correlation", *flags)
    assert correlations(run).shape == (3, 2)
    assert (np.abs(correlations(run)) <= 1 + 1e-12).all()


# From one method to another.


RATES = {"sgd": 0.25, "rbd": 2.0, "fpd": 2.0, "nes": 20.0, "nes-shared-batch": 20.0}


def switched(folder: Path, before: str, after: str, *flags: str) -> Run:
    """An epoch of 8 steps with one method, another with the other."""
    return trained(
        folder,
        *("--net", "mlp:64-32-10", "--dims", "20", "--batch-size", "150", "--epochs", "2", "--log-every", "1"),
        *("--method", before, "--lr", RATES[before], "--switch", f"1:{after}:{RATES[after]}"),
        *(("--antithetic", "--sigma", "0.1") if "nes" in before + after else ()),
        *("--transforms", "raw", *flags),
    )


def check_switch(run: Run, before: str, after: str) -> None:
    """The second goes on where the first ended: nothing is lost, nothing explodes; and it can be repeated."""
    steps = lines(run, "step")
    assert [line["method"] for line in steps] == [before] * 8 + [after] * 8
    losses = [line["loss"] for line in steps]
    assert max(losses[8:]) < 2 * losses[7]
    assert losses[8] < 1.2 * losses[7]  # another batch, but the weights that were left
    assert status([run.folder, "--verify"], replay.main) == 0


@pytest.mark.compiled
@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(METHODS, 2)))
def test_every_switch(tmp_path: Path, before: str, after: str) -> None:
    check_switch(switched(tmp_path / "run", before, after), before, after)


@pytest.mark.compiled
@pytest.mark.parametrize(("before", "after"), [("rbd", "sgd"), ("sgd", "fpd"), ("fpd", "rbd")])
def test_a_switch_with_momentum(tmp_path: Path, before: str, after: str) -> None:
    """The second method's velocity starts at rest."""
    check_switch(switched(tmp_path / "run", before, after, "--momentum", "0.5"), before, after)


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("before", "after"), [("rbd", "nes"), ("sgd", "nes-shared-batch"), ("nes-shared-batch", "rbd"), ("nes", "fpd")]
)
def test_a_switch_with_defaults(tmp_path: Path, before: str, after: str) -> None:
    """Each method has its own: what nes does with losses is not done with coordinates, and the other way round."""
    flags = ("--net", "mlp:64-32-10", "--dims", "20", "--batch-size", "150", "--epochs", "2", "--log-every", "1")
    check_switch(trained(tmp_path / "run", *flags, "--method", before, "--switch", f"1:{after}"), before, after)


@pytest.mark.compiled
def test_a_switch_leaves_the_steps_before_as_they_were(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", *TINY, "--epochs", "2", "--switch", "1:sgd")
    alone = trained(tmp_path / "alone", *TINY, "--epochs", "1")
    assert lines(run, "checkpoint")[0]["sha256"] == sha(alone) != sha(run)


# The order of things.


class Noted(NullLog):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def journal(self, replica: Replica[State], rows: np.ndarray) -> None:
        self.events.append(f"journal {replica.t}")

    def step(self, record: StepRecord) -> None:
        self.events.append(f"step {record.t}")

    def evaluate(self, replica: Replica[State]) -> None:
        self.events.append(f"evaluate {replica.t}")

    def checkpoint(self, replica: Replica[State], kept: Sequence[str]) -> None:
        self.events.append(f"checkpoint {replica.t}")


def small(**settings: Any) -> Experiment:
    known = {"net": "mlp:64-10", "dims": "2", "family": "sparse", "batch_size": 400}
    return Experiment(configs.make({**known, **settings}))


def train(experiment: Experiment, log: Any, *callbacks: Any, **more: Any) -> Replica[State]:
    """From the start to the end by one process, or by the `world` given."""
    world = more.pop("world", single_process())
    return Trainer(experiment, world, log, callbacks, **more).train(experiment.start())


def test_every_step_is_journaled_before_anything_comes_of_it() -> None:
    """Metrics, evaluations and checkpoints are of steps that the journal has."""
    log = Noted()
    last = train(small(steps=4), log)
    early = [event for t in range(3) for event in (f"journal {t}", f"step {t + 1}")]
    assert log.events == [*early, "evaluate 3", "checkpoint 3", *ends(4)]
    assert last.t == 4


def ends(t: int) -> list[str]:
    """What happens in the last step."""
    return [f"journal {t - 1}", f"step {t}", f"evaluate {t}", f"checkpoint {t}"]


def test_a_step_that_cannot_be_journaled_is_not_taken() -> None:
    class Full(Noted):
        def journal(self, replica: Replica[State], rows: np.ndarray) -> None:
            if replica.t == 1:
                raise RunError("full")

    log = Full()
    with pytest.raises(RunError, match="full"):
        train(small(steps=3), log)
    assert log.events == ["step 1"]


def test_a_request_to_stop() -> None:
    """The step is finished, and a checkpoint is there before the run ends."""
    log, stop = Noted(), StopRequest()

    def signal(record: StepRecord) -> None:
        stop.reason = 15

    with pytest.raises(Stopped) as caught:
        train(small(steps=3), log, signal, stop=stop)
    assert (caught.value.reason, caught.value.replica.t) == (15, 2)
    assert log.events == ["journal 0", "step 1", "journal 1", "step 2", "checkpoint 2"]


def test_a_callback_can_stop_a_run() -> None:
    """After the step that follows; all callbacks see every step."""
    seen: list[tuple[int, float, bool]] = []

    def watch(record: StepRecord) -> None:
        seen.append((record.t, record.loss, bool(np.isfinite(record.theta).all())))

    with pytest.raises(Stopped) as caught:
        train(small(steps=9), Noted(), lambda record: record.t == 2, watch)
    assert caught.value.reason == CALLBACK
    assert [t for t, _, _ in seen] == [1, 2, 3]
    assert all(finite for _, _, finite in seen)


def test_a_request_to_stop_at_the_last_step_comes_too_late() -> None:
    log = Noted()
    assert train(small(steps=1), log, stop=StopRequest(15)).t == 1
    assert log.events == ends(1)


class Differing(SingleProcess):
    """As if ranks 1 and 3 of four had other weights after the second step."""

    def __init__(self) -> None:
        self.asked = 0

    def allgather(self, value: Any) -> list[Any]:
        self.asked += 1
        return [value, b"other", value, b"another", value] if self.asked == 2 else [value]


def differing() -> World:
    alone = Differing()
    return World(alone, alone, alone)


def test_ranks_that_differ_are_named() -> None:
    with pytest.raises(RunError, match="the weights of rank 1 and rank 3 differ from the others' after step 2,"):
        train(small(steps=3, check_every=1), Noted(), world=differing())


def test_ranks_that_differ_go_on_from_the_journal() -> None:
    """All of them with what rank 0 has repeated."""
    experiment = small(steps=3, check_every=1, on_divergence="resync")
    started = experiment.start()
    restored = Replica(started.method, started.state._replace(t=2))  # type: ignore[attr-defined]
    begun = []

    class Restoring(Noted):
        def restore(self) -> Beginning:
            return Beginning(restored)

        def step(self, record: StepRecord) -> None:
            begun.append(record.before.theta)

    train(experiment, Restoring(), world=differing())
    assert [np.array_equal(theta, restored.theta) for theta in begun] == [True, False, True]


def test_every_offspring_has_a_batch_that_is_its_own() -> None:
    """Of the epoch's batches, each about as often; the same for all who ask."""
    problem: Any = small(batch_size=100).problem
    found = [problem.offspring_batch(t, w, i) for t in range(5) for w in range(3) for i in range(20)]
    assert found == [problem.offspring_batch(t, w, i) for t in range(5) for w in range(3) for i in range(20)]
    assert set(found) == set(range(12))
    assert np.bincount(found).max() < 50
    labels = [problem.batch(3, 0, i)[1] for i in range(20)]
    assert all(
        np.array_equal(labels[i], problem.batch(problem.offspring_batch(3, 0, i), 0)[1]) for i in range(20)
    )  # those of the first epoch, in which step 3 is


def test_a_loss_that_cannot_be_told_is_infinite() -> None:
    """Weights may be finite and logits not; there is no warning beside it."""
    problem = small(net="mlp:64-2-10").problem
    figures = problem.evaluate(np.full(problem.D, 1e30, dtype=np.float32))
    assert 0 <= figures["validation_accuracy"] <= 1
    assert figures["validation_loss"] == math.inf


def test_a_rehearsal_leads_nowhere() -> None:
    """What it compiles is kept, what it computes is not."""
    first, second = (small(epochs=2, switch=["1:sgd"]) for _ in range(2))
    second.rehearse()
    last = [train(experiment, NullLog()) for experiment in (first, second)]
    assert np.array_equal(bits(last[0].theta), bits(last[1].theta))
