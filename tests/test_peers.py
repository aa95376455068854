"""Methods of third parties: trained, journaled, replayed and resumed as our own; never named by a file; top-k and
PowerSGD of benchmarks/peers by their definitions."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rbd_ref
from benchmarks.peers import powersgd, topk
from benchmarks.peers.powersgd import PowerSGD
from benchmarks.peers.topk import TopK
from mpi_tools import DRIVER, TRAIN, job, require_mpi
from mpi_tools import sha as sha_of
from rbd_ref import compartments, replay, sweep
from rbd_ref._path import import_named
from rbd_ref.methods.base import DecodedSum, Replica, sum_updates
from rbd_ref.methods.settings import Settings
from rbd_ref.report.__main__ import main as report
from rbd_ref.runs import folder as runs
from rbd_ref.runs.config import make
from rbd_ref.runs.folder import Run
from rbd_ref.runs.journal import START
from rbd_ref.runs.paths import flags_of
from rbd_ref.training.communicator import SingleProcess, World
from rbd_ref.training.experiment import Experiment
from run_tools import (
    copied,
    final,
    journal_reaches,
    lines,
    one_line,
    refused,
    result,
    resumed,
    sha,
    started,
    status,
    trained,
    unfinished,
    wait_until,
)
from strategies import vector
from tools import ROOT
from toy_methods import Rarely, Signs

F32 = np.float32
SMALL = ("--net", "mlp:64-10", "--batch-size", "100", "--workers", "4", "--epochs", "3", "--schedule", "linear")
EPOCH = 3  # steps; D = 650
STEPS = 3 * EPOCH
NAMES = {
    "toy": "toy_methods:make",
    "rarely": "toy_methods:rarely",
    "topk": "benchmarks.peers.topk:make",
    "powersgd": "benchmarks.peers.powersgd:make",
}
FLAGS: dict[str, tuple[object, ...]] = {
    "toy": ("--lr", "0.1", "--combine", "mean"),
    "rarely": ("--lr", "0.1"),
    "topk": ("--lr", "0.1", "--dims", "21"),
    "powersgd": ("--lr", "0.1", "--dims", "42", "--combine", "mean"),  # 64 + 10 + 10 floats every second step
}
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "tests")])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Undisturbed runs of three epochs, with a checkpoint after each."""
    base = tmp_path_factory.mktemp("made")
    return {name: trained(base / name, *SMALL, *flags, "--method", NAMES[name]) for name, flags in FLAGS.items()}


# As our own.


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_replayed(made: dict[str, Run], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From its journal alone: all its hashes, and the weights of any step."""
    run = made[name]
    assert status([run.folder, "--verify", "--method", NAMES[name]], replay.main) == 0
    assert f"{STEPS} steps repeated, all 3 hashes agree" in capsys.readouterr().out
    opened = rbd_ref.open_run(run.folder, method=NAMES[name])
    assert np.array_equal(opened.theta(STEPS), final(run))
    assert not np.array_equal(opened.theta(5), opened.theta(6))
    assert len({sha(other) for other in made.values()}) == len(made)


@pytest.mark.compiled  # once is enough
@pytest.mark.parametrize("t", range(STEPS + 1))
@pytest.mark.parametrize("name", NAMES)
def test_killed_after_any_step(made: dict[str, Run], name: str, tmp_path: Path, t: int) -> None:
    """What a worker keeps, and what the replicas hold beside theta, is as it was."""
    experiment = Experiment(made[name].config(method=NAMES[name]))
    run = unfinished(copied(made[name], tmp_path / "run"), START + experiment.layouts.length(t))
    for path in (run.folder / "checkpoints").iterdir():
        if int(path.name.split("-")[1].split(".")[0]) > t:
            path.unlink()
    assert sha(resumed(run, "--method", NAMES[name])) == sha(made[name])
    assert run.journal.read_bytes() == made[name].journal.read_bytes()


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["toy", "powersgd"])
def test_kill_9(made: dict[str, Run], name: str, tmp_path: Path) -> None:
    """A real process, which finds the method by itself."""
    run, flags = Run(tmp_path / "run"), (*SMALL, *FLAGS[name], "--method", NAMES[name], "--quiet")
    process = started(*flags, "--out", run.folder, environment={"PYTHONPATH": PATHS})
    if wait_until(journal_reaches(run, made[name].journal.stat().st_size / 2), process):
        process.kill()
    process.communicate()
    assert process.returncode in (0, -signal.SIGKILL)
    assert sha(resumed(run, "--method", NAMES[name])) == sha(made[name])


@pytest.mark.compiled
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_any_number_of_ranks(made: dict[str, Run], ranks: int, tmp_path: Path) -> None:
    """Four workers on real ranks, from the beginning and from where a kill left them: one sha256."""
    require_mpi(tmp_path)
    jobs = []
    for name, flags in FLAGS.items():
        jobs.append([*SMALL, *flags, "--method", NAMES[name], "--quiet", "--out", tmp_path / name])
        experiment = Experiment(made[name].config(method=NAMES[name]))
        cut = unfinished(copied(made[name], tmp_path / f"{name} cut"), START + experiment.layouts.length(5))
        jobs.append(["--resume", "--method", NAMES[name], "--quiet", "--out", cut.folder])
    (tmp_path / "jobs.json").write_text(json.dumps([[str(part) for part in one] for one in jobs]))
    found = job(ranks, (DRIVER, "many", tmp_path / "jobs.json"), tmp_path, PYTHONPATH=PATHS).ended()
    assert found.status == 0, found.text
    for name, run in made.items():
        assert [sha_of(tmp_path / name), sha_of(tmp_path / f"{name} cut")] == [sha(run)] * 2, name


def test_a_method_is_followed_by_one_of_ours(tmp_path: Path) -> None:
    flags = (*SMALL, "--method", "toy_methods:make", "--lr", "0.1", "--switch", "1:rbd:0.5", "--dims", "5")
    run = trained(tmp_path / "run", *flags, "--memory", "0.9")
    assert status([run.folder, "--verify", "--method", "toy_methods:make"], replay.main) == 0
    assert [phase["method"] for phase in result(run)["phases"]] == ["toy_methods:make", "rbd"]
    assert run.config(method="toy_methods:make").dims == "5"


def test_a_sweep_of_methods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside ours; it goes on when its command is repeated, and only then."""
    flags = ["--method", "sgd,toy_methods:make", "--lr", "0.1,0.05", "--net", "mlp:64-10", "--steps", "2", "--quiet"]
    assert status([*flags, "--out", tmp_path / "sweep"], sweep.main) == 0
    one = Run(tmp_path / "sweep" / "method=toy_methods:make,lr=0.1")
    before = sha(one)
    (one.folder / "result.json").unlink()
    assert status([*flags, "--out", tmp_path / "sweep"], sweep.main) == 0
    assert sha(one) == before
    assert status(["--out", tmp_path / "sweep"], sweep.main) == 2
    one_line(capsys.readouterr().err, "names the method 'toy_methods:make'", "a function that would be imported")


def test_a_grid_from_python(tmp_path: Path) -> None:
    config = rbd_ref.Config(net="mlp:64-10", method="toy_methods:make", lr=0.1, steps=2)
    runs = rbd_ref.fit_grid(config, {"seed": [0, 1]}, out=tmp_path / "grid")
    assert [run.error for run in runs] == ["", ""]
    assert runs[0].run.theta(2).shape == (650,)


def test_a_run_without_a_rate_takes_that_of_sgd() -> None:
    assert make({"data": "fashion-mnist", "method": "a:b"}).lr == 0.25
    assert make({"method": "a:b"}).dims is None
    assert make({"method": "nes_like:b"}).settings("nes_like:b", 1.0).transforms == ()


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_the_parts_of_an_update_make_it_up(parts: int) -> None:
    """As ranks that are more than the workers take them."""
    payloads = np.stack([vector(seed, 20) for seed in range(3)])
    pending = DecodedSum(20, payloads, lambda payload: payload * 2)
    assert pending.terms == 3
    for j in range(3):
        found = [pending.part(j, k, parts) for k in range(parts)]
        assert [first for first, _ in found] == [20 * k // parts for k in range(parts)]
        assert np.array_equal(np.concatenate([values for _, values in found]), 2 * payloads[j])
    assert np.array_equal(sum_updates(pending), (2 * payloads[0] + 2 * payloads[1]) + 2 * payloads[2])


# Steps at which nothing is sent.


class Counting(SingleProcess):
    """Remembers how many floats each row had."""

    def __init__(self) -> None:
        self.floats: list[int] = []

    def allgather_rows(self, rows: Any, counts: Any) -> Any:
        self.floats.append(rows.shape[1])
        return rows


def test_nothing_is_sent_or_journaled_between(tmp_path: Path) -> None:
    """But a loss."""
    alone = Counting()
    config = rbd_ref.Config(net="mlp:64-10", method="toy_methods:rarely", lr=0.1, steps=8, workers=2, log_every=1)
    rbd_ref.fit(config, out=tmp_path / "run", world=World(alone, alone, alone))
    size = Rarely(650, Settings(0.1)).payload_size
    assert size == 42
    assert [n - 2 for n in alone.floats[:8]] == [0, 0, size, 0, 0, size, 0, 0]
    run = Run(tmp_path / "run")
    journal = runs.journal_of(run, run.config(method="toy_methods:rarely"))
    assert [record.rows.shape for record in journal.records()] == [(2, n - 1) for n in alone.floats[:8]]
    assert result(run)["bytes_per_step"] == 4 * (size // 3 + 2)
    assert ["coordinates" in line for line in lines(run, "step")] == [n > 2 for n in alone.floats[:8]]


def test_theta_rests_while_nothing_is_sent(made: dict[str, Run]) -> None:
    opened = rbd_ref.open_run(made["powersgd"].folder, method=NAMES["powersgd"])
    thetas = [opened.theta(t) for t in range(STEPS + 1)]
    assert [np.array_equal(*pair) for pair in pairwise(thetas)] == [True, False] * 4 + [True]


# Who may name a method.


@pytest.fixture
def stranger(made: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose configuration names a method that lies beside it, and does harm when it is imported."""
    run = copied(made["toy"], tmp_path / "run")
    (tmp_path / "run" / "harm.py").write_text("from pathlib import Path\nPath('executed').touch()\n")
    config = run.folder / "config.toml"
    config.write_text(config.read_text().replace("toy_methods:make", "harm:make"))
    monkeypatch.chdir(run.folder)
    return run


@pytest.mark.parametrize(
    ("flags", "command"),
    [
        ([".", "--verify"], replay.main),
        ([".", "--step", "1"], replay.main),
        (["--resume", "--out", "."], None),
        (["--resume", "--out", ".", "--method", "rbd"], None),
        (["--config", "config.toml", "--out", "new"], None),
    ],
    ids=["verify", "step", "resume", "resume as another", "config"],
)
def test_a_run_names_no_method_to_import(
    stranger: Run, flags: list[str], command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"command": command} if command else {}
    refused(
        capsys, flags, "names the method 'harm:make', a function that would be imported", "--method harm:make", **more
    )
    assert not Path("executed").exists()
    assert not Path("new").exists()


def test_nor_do_sweeps_and_reports(stranger: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ('method = "harm:make"\n', 'method = ["rbd", "harm:make"]\n'):
        Path("grid.toml").write_text(text)
        assert status(["--config", "grid.toml", "--steps", "1", "--out", "sweep"], sweep.main) == 2
        one_line(capsys.readouterr().err, "names the method 'harm:make'")
    assert status([".", "-o", "report.html"], report) == 0
    assert "harm:make" in Path("report.html").read_text()
    with pytest.raises(rbd_ref.RunError, match="names the method 'harm:make'"):
        rbd_ref.open_run(".")
    assert not Path("executed").exists()


def test_the_newest_run_is_found_by_its_method(
    made: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once the user has named it."""
    run = unfinished(copied(made["toy"], tmp_path / "runs" / "one"))
    monkeypatch.chdir(tmp_path)
    refused(capsys, ["--resume", "--quiet"], "--resume has no --out")
    assert status(["--resume", "--quiet", "--method", "toy_methods:make"]) == 0
    assert sha(run) == sha(made["toy"])


def test_another_method_than_the_runs_own(made: dict[str, Run], capsys: pytest.CaptureFixture[str]) -> None:
    run = made["toy"].folder
    refused(
        capsys,
        [run, "--verify", "--method", NAMES["topk"]],
        "is a run of method toy_methods:make, expected the same and not benchmarks.peers.topk:make",
        command=replay.main,
    )
    refused(capsys, ["--resume", "--out", run, "--method", NAMES["topk"]], "names the method 'toy_methods:make'")
    config = make({**made["toy"].settings(), "method": "a:b", "backend": "c:D"})
    assert flags_of(vars(config)) == ["--backend", "c:D", "--method", "a:b"]


# What is refused.

SENTENCES = {
    "missing_module:make": "cannot be loaded (ModuleNotFoundError: No module named 'missing_module')",
    "toy_methods:absent": "cannot be loaded (AttributeError: module 'toy_methods' has no attribute 'absent')",
    ":make": "cannot be loaded (ValueError: Empty module name)",
    "toy_methods:not_a_function": "is 3, expected a function of (basis, settings, shapes)",
    "toy_methods:two_arguments": "expected a function of (basis, settings, shapes) that makes a method",
    "toy_methods:no_method": "expected a function of (basis, settings, shapes) that makes a method",
    "toy_methods:nothing": "made a NoneType without payload_size, state_type, init_state",
    "toy_methods:sizeless": "has 0.5 from payload_size, expected a whole number from 1 up",
    "toy_methods:short": "has float32 of shape (41,) to be sent at step 0 from propose, expected float32 of shape (42",
    "toy_methods:integers": "has uint32 of shape (42,) to be sent at step 0 from propose",
    "toy_methods:alone": "has a Proposal from propose, expected a Proposal and one thing more",
    "toy_methods:shrinking": "a local state of shapes {'e': (649,)} from propose, expected {'e': (650,)}",
    "toy_methods:listed": "has a list from propose, expected a NamedTuple",
    "toy_methods:reserved": "has a field called info from init_local, expected another name",
    "toy_methods:wide": "has float64 of shape (650,) for e from init_local, expected a float32 array, which",
    "toy_methods:stateless": "has a tuple from init_state, expected a NamedTuple",
    "toy_methods:no_update": "has a ndarray without D, terms, term, part from collect, expected a PendingUpdate",
    "toy_methods:lasting": "has a state with t = 0 from apply_update, expected t = 1",
    "toy_methods:double": "has float64 of shape (650,) for theta from apply_update",
    "toy_methods:other_state": "has a tuple from apply_update, expected a Counted, its state_type",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_what_is_no_method_is_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused(
        capsys, ["--net", "mlp:64-10", "--quiet", "--method", name, "--out", tmp_path / "run"], SENTENCES[name]
    )
    assert f"method {name!r}" in sentence


def test_nothing_is_written_for_a_method_that_cannot_be_made(tmp_path: Path) -> None:
    for name in ("missing_module:make", "toy_methods:two_arguments", "toy_methods:wide"):
        assert status(["--method", name, "--out", tmp_path / "run"]) == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("fails", KeyError, "a mistake of the author's"),
        ("writes_theta", ValueError, "read-only"),
        ("writes_local", ValueError, "read-only"),
    ],
)
def test_a_mistake_inside_of_a_method_shows_where(name: str, error: type[Exception], words: str) -> None:
    """As does an attempt to write to what replicas or workers share."""
    with pytest.raises(error, match=words):
        rbd_ref.fit(rbd_ref.Config(net="mlp:64-10", method=f"toy_methods:{name}", steps=1))


def test_so_does_one_while_it_is_made() -> None:
    with pytest.raises(RuntimeError, match="method 'toy_methods:unmade' fails while it is made") as caught:
        Experiment(rbd_ref.Config(method="toy_methods:unmade"))
    assert isinstance(caught.value.__cause__, TypeError)


def test_what_its_author_says_of_the_settings_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["--method", NAMES["topk"], "--dims", "1", "--out", tmp_path / "run"], "top-k has 1 floats to send")


@pytest.mark.compiled
def test_a_wrong_payload_on_ranks_ends_them_all(tmp_path: Path) -> None:
    require_mpi(tmp_path)
    flags = ("--net", "mlp:64-10", "--steps", 2, "--method", "toy_methods:short", "--out", "run")
    found = job(2, (*TRAIN, *flags), tmp_path, PYTHONPATH=PATHS).ended()
    assert found.status == 2, found.text
    assert "expected float32 of shape (42,)" in found.err
    assert "Traceback" not in found.err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"memory": 0.9}, "memory is 0.9 and would have no effect, expected what toy_methods:make reads (combine)"),
        ({"dims": 250}, "dims is '250' and would have no effect"),
        ({"momentum": 0.5}, "momentum is 0.5 and would have no effect"),
        ({"family": "srht"}, "family is 'srht' and would have no effect"),
        ({"momentum": 0.5, "switch": ("1:sgd",)}, ""),
        ({"memory": 0.5, "switch": ("1:sgd",)}, "memory is 0.5 and would have no effect"),
        ({"memory": 0.5, "switch": ("1:rbd",)}, ""),
        ({"combine": "mean", "schedule": "linear", "warmup": 2, "workers": 3}, ""),
    ],
)
def test_settings_that_a_method_does_not_read(settings: dict[str, Any], words: str) -> None:
    config = make({"net": "mlp:64-10", "method": "toy_methods:make", **settings})
    if not words:
        Experiment(config)
        return
    with pytest.raises(ValueError, match="would have no effect") as caught:
        Experiment(config)
    assert words in str(caught.value)


def test_a_switch_names_ours_only() -> None:
    with pytest.raises(ValueError, match="cannot be read, expected EPOCH:METHOD"):
        make({"switch": ["1:toy_methods:make"]})


# Top-k by its definition.


class Slope:
    """Gradients that are given, one for each step and worker."""

    def __init__(self, *gradients: np.ndarray) -> None:
        self.gradients = gradients

    def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
        return 0.0, self.gradients[(step + worker) % len(self.gradients)]

    def loss(self, theta: np.ndarray, step: int, worker: int, offspring: int | None) -> float:
        return 0.0


class Follow:
    """A method by hand, with one worker or several: what was sent, what each keeps, and theta."""

    def __init__(self, method: Any, D: int, problem: Any, steps: int, workers: int = 1) -> None:
        self.thetas = [np.zeros(D, dtype=F32)]
        self.sent: list[np.ndarray] = []
        self.kept = [method.init_local()] * workers
        replica: Any = Replica(method, method.init_state(self.thetas[0], 0))
        for _ in range(steps):
            found = [replica.propose(problem, w, self.kept[w]) for w in range(workers)]
            self.kept = [local for _, local in found]
            self.sent.append(np.stack([proposal.payload for proposal, _ in found]))
            replica = replica.step(self.sent[-1])
            self.thetas.append(replica.theta)


@pytest.mark.parametrize("name", NAMES)
def test_training_is_the_method_by_hand(name: str) -> None:
    """To the bit: nothing is lost between the method and the weights."""
    D, steps, workers = Matrix.D, 7, 3
    config = rbd_ref.Config(method=NAMES[name], lr=0.1, steps=steps, workers=workers, seed=3)
    config = replace(config, dims="12") if name in ("topk", "powersgd") else config
    basis = rbd_ref.Basis(compartments.whole(D, d=12), seed=3)
    method = import_named(NAMES[name])(basis, Settings(0.1, workers=workers), Matrix.shapes)
    run = Follow(method, D, Matrix(), steps, workers)
    assert rbd_ref.fit(config, Matrix()).theta.tobytes() == run.thetas[-1].tobytes()


def gradients(D: int, count: int) -> list[np.ndarray]:
    return [vector(seed, D) for seed in range(count)]


def test_top_k_sends_1000_bytes_where_250_coefficients_do(made: dict[str, Run]) -> None:
    assert TopK(101_770, 250, Settings(0.25)).payload_size == 250
    assert TopK(650, 21, Settings(0.25)).k == 10
    assert result(made["topk"])["bytes_per_step"] == 4 * (20 + 2)
    with pytest.raises(ValueError, match="top-k has 1 floats to send of D = 650, expected 2 or more"):
        TopK(650, 1, Settings(0.25))
    with pytest.raises(ValueError, match="of less than 2139095040"):
        TopK(2**31, 250, Settings(0.25))


def test_the_largest_and_of_equals_the_first() -> None:
    e = np.array([1, -3, 0, 3, -1, 1, 2], dtype=F32)
    assert [topk.largest(e, k).tolist() for k in range(1, 8)] == [
        [1],
        [1, 3],
        [1, 3, 6],
        [0, 1, 3, 6],
        [0, 1, 3, 4, 6],
        [0, 1, 3, 4, 5, 6],
        [0, 1, 2, 3, 4, 5, 6],
    ]
    for seed in range(5):
        x = np.round(vector(seed, 500) * 3).astype(F32)  # many are equal
        expected = np.sort(np.argsort(-np.abs(x), kind="stable")[:77])
        assert np.array_equal(topk.largest(x, 77), expected)


def test_what_top_k_sends() -> None:
    """Indices as they are, also those whose bits are no normal float; then the values."""
    D = 2**24 + 3  # where not every whole number is a float
    g = np.zeros(D, dtype=F32)
    places = [0, 1, 2**23 + 1, 2**24 + 1]
    g[places] = [1, -2, 3, -4]
    run = Follow(TopK(D, 8, Settings(0.5)), D, Slope(g), steps=1)
    assert run.sent[0][0, :4].view(np.uint32).tolist() == places
    assert run.sent[0][0, 4:].tolist() == [0.5, -1, 1.5, -2]
    assert np.array_equal(run.thetas[1], F32(-0.5) * g)
    assert not run.kept[0].e.any()


def test_top_k_by_its_definition() -> None:
    """In float64, with the same choices, three workers, a rate that is divided among them."""
    D, k, workers = 60, 5, 3
    problem = Slope(*gradients(D, 7))
    run = Follow(TopK(D, 2 * k, Settings(0.3, workers=workers, combine="mean")), D, problem, 12, workers)
    e = np.zeros((workers, D))
    theta = np.zeros(D)
    for t in range(12):
        for w in range(workers):
            e[w] += 0.1 * problem.loss_and_gradient(theta, t, w)[1]
            chosen = run.sent[t][w, :k].view(np.uint32)
            assert set(chosen) == set(np.argsort(-np.abs(e[w]))[:k].tolist())
            theta[chosen] -= e[w][chosen]
            e[w][chosen] = 0
        np.testing.assert_allclose(run.thetas[t + 1], theta, rtol=1e-4, atol=1e-6)
    for w in range(workers):
        np.testing.assert_allclose(run.kept[w].e, e[w], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["topk", "powersgd", "toy"])
def test_what_was_sent_and_what_is_kept_are_all_gradients(name: str) -> None:
    """Error feedback's invariant: sum_t (what was sent) + e = sum_t eta_t g_t, of each worker, to rounding."""
    shapes, D, steps = ((8, 7), (7,)), 63, 25
    basis = rbd_ref.Basis(compartments.whole(D, d=10), seed=0)
    settings = Settings(0.3)
    method: Any = {"topk": topk.make, "powersgd": powersgd.make, "toy": lambda b, s, _: Signs(D, s)}[name](
        basis, settings, shapes
    )
    problem = Slope(*gradients(D, 11))
    run = Follow(method, D, problem, steps)
    total = 0.3 * np.sum([problem.loss_and_gradient(run.thetas[0], t, 0)[1] for t in range(steps)], axis=0, dtype=float)
    np.testing.assert_allclose(run.kept[0].e - run.thetas[-1], total, rtol=1e-4, atol=1e-5)
    assert np.abs(run.kept[0].e).max() > 0.01
    assert np.abs(run.thetas[-1]).max() > 0.01


@pytest.mark.parametrize("name", ["topk", "powersgd"])
def test_a_rate_that_is_too_high_is_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--net", "mlp:64-10", "--steps", "9", "--method", NAMES[name], "--lr", "1e38", "--out", tmp_path / "run")
    refused(capsys, [*flags, "--dims", "84", "--quiet"], "fails with learning rate 1e+38", "lower --lr")


def test_an_index_beyond_theta_is_refused(made: dict[str, Run], tmp_path: Path) -> None:
    """As in a journal that somebody has written anew."""
    method = TopK(650, 20, Settings(0.1))
    payload = np.concatenate([np.full(10, 650, dtype=np.uint32).view(F32), np.ones(10, dtype=F32)])
    with pytest.raises(ValueError, match="was sent index 650, expected less than D = 650"):
        method.decode(payload)


# PowerSGD by its definition.

FC = ((784, 128), (128,), (128, 10), (10,))
CNN = ((3, 3, 3, 16), (16,), (3, 3, 16, 32), (32,), (512, 10), (10,))


@pytest.mark.parametrize(
    ("shapes", "d", "expected"),
    [
        (FC, 250, (1, 5)),  # 1,188 floats, 950 bytes a step
        (FC, 1187, (1, 2)),
        (FC, 1188, (1, 1)),
        (FC, 2238, (2, 1)),
        (FC, 2, (1, 594)),
        (FC, 101_770, (128, 1)),  # nothing is left to approximate
        (CNN, 1_000, (1, 1)),
        (CNN, 20_000, (32, 1)),
        (((5,),), 3, (1, 2)),
    ],
)
def test_the_budget(shapes: powersgd.Shapes, d: int, expected: tuple[int, int]) -> None:
    rank, every = powersgd.budget(shapes, d)
    assert (rank, every) == expected
    assert powersgd.cost(shapes, rank) <= d * every
    assert every == 1 or powersgd.cost(shapes, rank) > d * (every - 1)
    assert powersgd.cost(FC, 1) == 784 + 128 + 128 + 128 + 10 + 10


def of_shapes(shapes: powersgd.Shapes, d: int, rate: float = 1.0) -> PowerSGD:
    D = sum(int(np.prod(shape)) for shape in shapes)
    return PowerSGD(rbd_ref.Basis(compartments.whole(D, d=d), seed=3), Settings(rate), shapes)


@pytest.mark.parametrize("rank", [1, 2])
def test_powersgd_is_exact_on_gradients_of_its_rank(rank: int) -> None:
    """At the first step already: a power iteration of a matrix of rank r ends in its range. Higher ranks send 0."""
    method = of_shapes(((20, 12), (12,)), 32 * rank + 12)
    assert (method.rank, method.every) == (rank, 1)
    matrix = np.outer(vector(1, 20), vector(2, 12)).astype(F32)
    g = np.concatenate([matrix.ravel(), vector(3, 12)])
    run = Follow(method, 252, Slope(g), steps=1)
    np.testing.assert_allclose(-run.thetas[1], g, rtol=0, atol=3e-7 * np.abs(g).max())
    assert np.array_equal(-run.thetas[1][240:], g[240:])


def paper(matrices: list[np.ndarray], q: np.ndarray) -> np.ndarray:
    """The sum of what the paper's algorithm sends for one worker, in float64 by NumPy's own products."""
    e, sent = np.zeros(matrices[0].shape), np.zeros(matrices[0].shape)
    for g in matrices:
        e = e + g
        p = np.linalg.qr(e @ q)[0]
        q = e.T @ p
        sent += p @ q.T
        e -= p @ q.T
    return sent


@pytest.mark.parametrize("rank", [1, 3])
def test_powersgd_with_one_worker_is_the_papers(rank: int) -> None:
    """Error feedback and warm start, over several steps."""
    method = of_shapes(((9, 6),), 15 * rank)
    assert (method.rank, method.every, method.payload_size) == (rank, 1, 15 * rank)
    g = gradients(54, 8)
    run = Follow(method, 54, Slope(*g), steps=8)
    first = method.first.reshape(6, rank).astype(float)
    np.testing.assert_allclose(-run.thetas[-1].reshape(9, 6), paper([x.reshape(9, 6) for x in g], first), atol=1e-4)
    p = run.sent[3][0, : 9 * rank].reshape(9, rank).astype(float)
    np.testing.assert_allclose(p.T @ p, np.eye(rank), atol=1e-6)


def test_columns_that_follow_from_others_are_0() -> None:
    """What rounding leaves of them would be sent as a direction that is not orthogonal to the others."""
    x = vector(1, 50).astype(float)
    y = vector(2, 50).astype(float)
    p = powersgd.orthonormal(np.stack([x, x / 3, y, np.zeros(50), x - 7 * y], axis=1))
    np.testing.assert_allclose(p.T @ p, np.diag([1, 0, 1, 0, 0]), atol=1e-12)


def test_workers_add_their_own_approximations() -> None:
    """Each of rank 1 of its own matrix: the sum of two has rank 2, where the paper's has 1."""
    method = of_shapes(((9, 6),), 15)
    problem = Slope(*[np.outer(vector(k, 9), vector(k + 5, 6)).astype(F32).ravel() for k in range(2)])
    run = Follow(method, 54, problem, steps=1, workers=2)
    np.testing.assert_allclose(-run.thetas[1], problem.gradients[0] + problem.gradients[1], atol=1e-5)


def test_a_gradient_that_begins_with_zero_does_not_end_there() -> None:
    """The matrix of a layer that was dead: Q stays what it was."""
    method = of_shapes(((9, 6),), 15)
    g = np.outer(vector(1, 9), vector(2, 6)).astype(F32).ravel()
    run = Follow(method, 54, Slope(np.zeros(54, dtype=F32), g), steps=2)
    assert not run.sent[0].any()
    np.testing.assert_allclose(-run.thetas[2], g, atol=1e-6)


def test_kernels_are_matrices_and_what_is_small_is_sent_whole() -> None:
    method = of_shapes(((3, 3, 2, 8), (8,), (2, 2)), 18 + 8 + 8 + 4)
    assert method.tensors == [(18, 8, 1), (1, 8, 0), (2, 2, 0)]
    g = vector(5, 144 + 8 + 4)
    run = Follow(method, g.size, Slope(g), steps=1)
    assert np.array_equal(-run.thetas[1][144:], g[144:])
    assert np.linalg.matrix_rank(run.thetas[1][:144].reshape(18, 8).astype(float), tol=1e-5) == 1


class Matrix:
    """A problem of one's own that says what its tensors are like."""

    D = 60
    layers = ((54, 6),)
    shapes: Any = ((9, 6), (6,))

    def initial(self, seed: int) -> np.ndarray:
        return np.zeros(self.D, dtype=F32)

    def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
        return 0.0, theta - vector(step + 3 * worker, self.D)


def test_a_problem_of_ones_own_has_shapes() -> None:
    """Without them its tensors are vectors, which PowerSGD sends whole."""
    config = rbd_ref.Config(method=NAMES["powersgd"], dims=30, lr=0.1, steps=3)
    assert rbd_ref.fit(config, Matrix()).values["bytes_per_step"] == 4 * (9 + 6 + 6 + 2)
    other = Matrix()
    del type(other).shapes
    try:
        assert rbd_ref.fit(config, other).values["bytes_per_step"] == 4 * (60 // 2 + 2)
    finally:
        type(other).shapes = ((9, 6), (6,))
    other.shapes = ((9, 5), (15,))
    with pytest.raises(
        rbd_ref.RunError, match=r"has tensors of shapes .* expected one for each of the sizes \[54, 6\]"
    ):
        rbd_ref.fit(config, other)


def test_peers_need_no_private_names() -> None:
    """They are what a third party would write."""
    for module in (topk, powersgd, sys.modules["toy_methods"]):
        assert "rbd_ref._" not in Path(str(module.__file__)).read_text()
