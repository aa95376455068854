"""Sweeps: grids and their values, runs side by side that are killed and go on, the search of a rate, the table."""

from __future__ import annotations

import csv
import doctest
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import rbd_ref
from mpi_tools import job, poll, why_unusable
from rbd_ref import replay, sweep
from rbd_ref.data.batches import split
from rbd_ref.data.datasets import load
from rbd_ref.runs import config as configs
from rbd_ref.runs import grid as grids
from rbd_ref.runs.files import RunError
from rbd_ref.training import grid as training_grid
from rbd_ref.training import search as searches
from rbd_ref.training import table as tables
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.search import Search
from rbd_ref.training.table import Entry, summarise
from run_tools import ONE_THREAD, TINY, one_line, status

FEW = (*TINY, "--net", "mlp:64-8-10", "--family", "sparse", "--epochs", 1, "--seed", "0..1", "--quiet")
LONGER = ("--net", "mlp:64-8-10", "--dims", 20, "--batch-size", 60, "--epochs", 4, "--family", "sparse")
LONGER += ("--lr", "1,1e30,2", "--seed", "0..1")  # of which the second rate diverges


def swept(folder: Path, *flags: object) -> dict[str, Any]:
    """What table.json holds after a sweep that ends well."""
    assert status([*flags, "--out", folder], sweep.main) == 0
    found: dict[str, Any] = json.loads((folder / "table.json").read_text())
    return found


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *flags: object) -> str:
    """The sentence of a sweep that ends with status 2."""
    capsys.readouterr()
    assert status([*flags, "--out", folder], sweep.main) == 2
    return one_line(capsys.readouterr().err)


# Values and grids.


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("lr", "2^-3..2^1", [0.125, 0.25, 0.5, 1.0, 2.0]),
        ("lr", "1e-3,1e-2", [1e-3, 1e-2]),
        ("lr", "2^-1,3,4..5", [0.5, 3.0, 4.0, 5.0]),
        ("seed", "0..4", [0, 1, 2, 3, 4]),
        ("batch_size", "2^4..2^6", [16, 32, 64]),
        ("dims", "2^4,each:3,7..8", ["16", "each:3", "7", "8"]),
        ("family", "srht, normal", ["srht", "normal"]),
        ("augment", "true,false", [True, False]),
        ("switch", "5:sgd,8:fpd", [("5:sgd",), ("8:fpd",)]),
    ],
)
def test_values(name: str, text: str, values: list[Any]) -> None:
    found = grids.parse(name, text)
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--lr", "2^-3..1"], "lr has the range '2^-3..1', expected whole numbers as in 0..4 or powers"),
        (["--lr", "0.1..0.2"], "lr has the range '0.1..0.2', expected whole"),
        (["--seed", "4..0"], "seed has the range '4..0', expected one that ascends"),
        (["--seed", "0..10000"], "expected one that ascends to 10000 values at most"),
        (["--seed", "0..999", "--lr", "1..11"], "the grid has 11000 runs, expected 10000 at most"),
        (["--seed", "x"], "seed has the value 'x', expected a whole number"),
        (["--batch-size", "2^-1"], "batch_size has the value '2^-1', expected a whole number"),
        (["--lr", "2^2000"], "expected an exponent from -1022 to 1023"),
        (["--lr", "1,"], "lr is '1,', expected a value between commas"),
        (["--augment", "yes"], "augment has the value 'yes', expected true or false"),
        (["--family", "srht,green"], "family 'green' is unknown, expected one of"),
        (["--search", "seed=0..4"], "expected the learning rate and its range"),
        (["--search", "lr=1"], "expected two or more to search"),
        (["--search", "lr=1..4", "--lr", "1,2"], "and none in the grid"),
        (["--jobs", "0"], "jobs is 0, expected 1 <= jobs"),
        (["--config", "none.toml"], "none.toml cannot be read"),
    ],
)
def test_bad_values_are_one_sentence(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert words in refused(capsys, tmp_path / "sweep", *flags)
    assert not (tmp_path / "sweep").exists()


def test_points_are_named_by_what_varies_in_the_order_of_settings() -> None:
    grid = grids.make({"seed": "0..1", "lr": [0.5, np.float64(2)], "net": "mlp:64-10", "augment": "false"})
    names = ["lr=0.5,seed=0", "lr=0.5,seed=1", "lr=2.0,seed=0", "lr=2.0,seed=1"]
    assert [point.name for point in grid.points()] == names
    assert {(point.config.net, point.config.augment) for point in grid.points()} == {("mlp:64-10", False)}
    assert grids.name_of({"data_dir": "../a b", "antithetic": True, "seed": 1}) == (
        "data_dir=..%2Fa%20b,antithetic=true,seed=1"
    )
    names = [grids.name_of({"net": "mlp:" + "9-" * 200 + end}) for end in "12"]
    assert len(set(names)) == 2
    assert max(map(len, names)) <= 200


def test_every_method_of_a_grid_has_its_own_default_rate() -> None:
    rates = [point.config.lr for point in grids.make({"method": "sgd,rbd,nes"}).points()]
    assert rates == [configs.RATES[name] for name in ("sgd", "rbd", "nes")]


def test_a_grid_is_read_as_it_was_written(tmp_path: Path) -> None:
    values = {"lr": "2^-30..2^1", "seed": "0..2", "dims": "each:3", "transforms": ("ranks", "top:2"), "augment": False}
    for grid in (
        grids.make(values),
        grids.make({"seed": [4], "switch": [["2:sgd"], []], "method": "rbd"}, "lr=2^-19..2^7"),
    ):
        (tmp_path / "grid.toml").write_text(grid.to_toml())
        assert grids.read(tmp_path / "grid.toml") == grid


def test_a_folder_takes_the_same_grid_or_a_larger_one(tmp_path: Path) -> None:
    small = grids.make({"data": "mnist", "lr": "1,2", "seed": "0..1", "net": "cnn"})
    grids.write(tmp_path, small)
    grids.write(tmp_path, small)
    larger = grids.make({"data": "mnist", "lr": "4,2,1", "seed": "0..3", "net": "cnn", "data_dir": "elsewhere"})
    grids.write(tmp_path, larger)
    others: list[dict[str, Any]] = [
        {"lr": "1,2,4", "seed": "0..2", "net": "cnn"},
        {"lr": "1,2,4", "seed": "0..3", "net": "fc"},
        {"lr": "1,2,4", "net": "cnn", "seed": 0},
        {"lr": "1,2,4", "seed": "0..3", "net": "cnn", "family": "srht,normal"},
    ]
    for other in others:
        with pytest.raises(RunError, match="holds another sweep, expected the same one or one that this grid contains"):
            grids.write(tmp_path, grids.make({"data": "mnist", **other}))
    assert grids.read(tmp_path / "sweep.toml") == larger


def test_no_file_names_a_class_to_import(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text('backend = ["numba", "my_module:Class"]\n')
    assert "a class that would be imported" in refused(capsys, tmp_path / "sweep", "--config", file)
    (tmp_path / "sweep.toml").write_text(file.read_text())
    assert "a class that would be imported" in refused(capsys, tmp_path)


# The table.


def entries(**figures: tuple[float, ...]) -> list[Entry]:
    """Two rates of three seeds each, with these figures."""
    points = [{"lr": lr, "seed": seed} for lr in (0.5, 1.0) for seed in range(3)]
    return [Entry(point, {name: values[k] for name, values in figures.items()}) for k, point in enumerate(points)]


def test_the_table_has_mean_standard_error_and_n_and_is_sorted_by_validation() -> None:
    """The other row is better on the test set."""
    table = summarise(entries(test_accuracy=(0.9, 0.9, 0.9, 0.1, 0.1, 0.1), validation_accuracy=(1, 2, 3, 4, 5, 9)))
    assert table.ranked_by == "validation_accuracy"
    columns = table.by_column()
    assert columns["lr"] == [1.0, 0.5]
    assert columns["n"] == [3, 3]
    assert columns["validation_accuracy"] == [6.0, 2.0]
    assert columns["validation_accuracy_se"] == pytest.approx([math.sqrt(7 / 3), math.sqrt(1 / 3)])
    rows = list(csv.DictReader(table.to_csv().splitlines()))
    assert [float(row["validation_accuracy"]) for row in rows] == [6.0, 2.0]
    assert "6.0000 ± 1.5275" in table.to_text()


def test_without_validation_the_loss_ranks_and_failed_runs_are_counted() -> None:
    runs = entries(loss=(3, 3, 3, 1, 1, 1))
    runs[3] = Entry(runs[3].settings, {}, "it diverged")
    runs[4] = Entry(runs[4].settings, {}, "it diverged")
    columns = summarise(runs).by_column()
    assert summarise(runs).ranked_by == "loss"
    assert (columns["lr"], columns["n"], columns["failed"]) == ([1.0, 0.5], [1, 3], [2, 0])
    assert columns["loss_se"] == [None, 0.0]
    runs[5] = Entry(runs[5].settings, {}, "it diverged")
    assert summarise(runs).by_column()["loss"] == [3.0, None]


def test_a_figure_that_is_infinite_is_null_in_json() -> None:
    runs = entries(loss=(3, 3, math.inf, 1, 1, 1))
    found = json.loads(summarise(runs).to_json(runs), parse_constant=lambda text: pytest.fail(text))
    assert [row["loss"] for row in found["rows"]] == [1.0, None]
    assert found["runs"][2]["figures"] == {"loss": None}


# Runs.


def test_a_run_that_fails_is_recorded_and_only_tried_again_when_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = (*FEW, "--lr", "1,1e30")
    found = swept(tmp_path, *flags)
    assert [(row["lr"], row["n"], row["failed"]) for row in found["rows"]] == [(1.0, 2, 0), (1e30, 0, 2)]
    failure = tmp_path / "lr=1e+30,seed=1" / "failed.json"
    assert "fails with learning rate 1e+30" in json.loads(failure.read_text())["error"]
    failure.write_text('{"error": "as it was before"}')
    assert swept(tmp_path, *flags)["runs"][3]["error"] == "as it was before"
    assert "fails with learning rate" in swept(tmp_path, *flags, "--retry")["runs"][3]["error"]
    assert "none of the 2 runs came to its end" in refused(capsys, tmp_path / "other", *FEW, "--lr", "1e30")


def test_finished_runs_are_skipped_and_a_larger_grid_adds_to_them(tmp_path: Path) -> None:
    swept(tmp_path, *FEW, "--lr", "1")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("seed=*/*.*")}
    assert len(swept(tmp_path, *FEW[:-3], "--seed", "0..2", "--quiet", "--lr", "1")["runs"]) == 3
    assert len(before) >= 10
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert replay.main([str(tmp_path / "seed=2"), "--verify"]) == 0
    assert len(swept(tmp_path, "--quiet")["runs"]) == 3  # the folder knows its grid


def test_a_file_of_settings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text('net = "mlp:64-10"\ndims = 3\nbatch_size = 400\nsteps = 2\nfamily = "sparse"\nlr = "2^0..2^1"\n')
    assert [run["settings"] for run in swept(tmp_path / "a", "--config", file)["runs"]] == [{"lr": 1.0}, {"lr": 2.0}]
    assert capsys.readouterr().out.startswith("lr   n  failed  validation_accuracy")
    assert len(swept(tmp_path / "b", "--config", file, "--seed", "0..1", "--lr", "4")["runs"]) == 2
    file.write_text("speed = [1, 2]\n")
    assert "setting 'speed' is unknown" in refused(capsys, tmp_path / "c", "--config", file)


def test_two_sweeps_do_not_share_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "run_plan", lambda *_: refused(capsys, tmp_path, *FEW) and pytest.fail("it was refused"))
        with pytest.raises(pytest.fail.Exception, match="it was refused"):
            sweep.main([*map(str, FEW), "--out", str(tmp_path)])


# The search of a rate.


def tried(loss: Callable[[float], float], start: int, rates: list[float]) -> Search:
    search = Search({}, rates, start)
    while search.wanted:
        search.losses |= {rate: loss(rate) for rate in search.wanted}
    return search


RATES = [2.0**k for k in range(-5, 6)]


@pytest.mark.parametrize("start", range(len(RATES)))
@pytest.mark.parametrize("best", [-9, -5, -2, 0, 4, 5, 9])
def test_a_search_goes_on_until_the_loss_turns_on_both_sides(start: int, best: int) -> None:
    search = tried(lambda rate: abs(math.log2(rate) - best), start, RATES)
    place = min(max(best, -5), 5) + 5
    assert search.best == RATES[place]
    low, high = min(start, place), max(start, place)
    assert sorted(search.losses) == RATES[max(0, low - 1) : high + 2]
    assert ("an end of the range" in search.sentence()) == (place in (0, 10))


def test_a_search_leaves_rates_that_diverge() -> None:
    assert tried(lambda rate: -rate if rate < 0.2 else math.inf, 9, RATES).best == 0.125
    with pytest.raises(RunError, match=r"no learning rate from 0\.03125 up to 1 gives a finite loss with run"):
        tried(lambda rate: math.inf, 4, RATES).sentence()


def test_the_search_starts_at_the_given_rate_or_in_the_middle() -> None:
    assert searches._start(grids.make({}, "lr=2^-2..2^2")) == 2
    assert searches._start(grids.make({"lr": "3"}, "lr=2^-2..2^2")) == 4


def test_held_out_images_are_a_quarter_of_those_to_train_on() -> None:
    whole = split(load("digits"), 3)
    part = split(load("digits"), 3, 0.25)
    assert len(part.validation) == 300
    assert sorted([*part.train, *part.validation]) == whole.train.tolist()
    config = configs.make({"net": "mlp:64-10", "holdout": 0.25})
    assert Experiment(config).steps_per_epoch == 903 // 32
    problem = Experiment(config).problem
    assert len(problem.part("validation")[0]) == 300  # type: ignore[attr-defined]
    assert replace(configs.make({}), holdout=0.25).digest != configs.make({}).digest


def test_a_setting_that_means_nothing_to_some_runs_is_left_out_of_them() -> None:
    """sgd beside rbd, on the same flags; one that means nothing to any run is refused."""
    grid = {"method": "rbd,sgd", "dims": "10,20", "family": "srht", "redraw": "1,2", "seed": "0..1"}
    points = grids.make(grid).points()
    assert [point.name for point in points] == [
        *(f"method=rbd,dims={d},redraw={n},seed={seed}" for d in (10, 20) for n in (1, 2) for seed in (0, 1)),
        *(f"method=sgd,seed={seed}" for seed in (0, 1)),
    ]
    assert {(point.config.dims, point.config.family) for point in points[-2:]} == {(None, "normal")}
    with pytest.raises(ValueError, match=r"sigma is 2\.0 and would have no effect, expected method nes or"):
        grids.make({"method": "rbd,sgd", "sigma": "2,3"})
    with pytest.raises(ValueError, match="dims is '10' and would have no effect"):
        grids.make({"method": "sgd", "dims": "10", "seed": "0..1"})


@pytest.mark.compiled
def test_sgd_beside_rbd(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In the table, its row has no d."""
    swept(tmp_path, *TINY, "--steps", 2, "--method", "rbd,sgd", "--dims", "3,4", "--seed", "0..1")
    out = capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert sorted((row["method"], row["dims"], row["n"]) for row in rows) == [
        ("rbd", "3", "2"),
        ("rbd", "4", "2"),
        ("sgd", "", "2"),
    ]
    assert "None" not in out


def test_a_search_and_then_the_grid_with_its_rates(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = (*TINY, "--epochs", 1, "--family", "sparse,rademacher", "--search", "lr=2^-2..2^2", "--seed", "5..6")
    found = swept(tmp_path, *flags)
    assert "best lr with family=sparse: " in capsys.readouterr().out
    known = {record["settings"]["family"]: record for record in json.loads((tmp_path / "search.json").read_text())}
    for family in ("sparse", "rademacher"):
        runs = {path.name.split("lr=")[1]: path for path in (tmp_path / "search").glob(f"family={family},*")}
        losses = {rate: rbd_ref.open_run(path).history.metrics["validation_loss"][-1] for rate, path in runs.items()}
        assert losses == known[family]["loss"]
        assert float(min(losses, key=lambda rate: losses[rate])) == known[family]["lr"]
        config = rbd_ref.open_run(runs["1.0"]).config
        assert (config.seed, config.holdout) == (5, 0.25)
    assert {(row["family"], row["lr"]) for row in found["rows"]} == {(f, known[f]["lr"]) for f in known}
    assert rbd_ref.open_run(tmp_path / found["runs"][0]["name"]).config.holdout == 0


# From Python.


class Bowl:
    """A quadratic, without validation."""

    D = 6

    def initial(self, seed: int) -> np.ndarray:
        return np.full(self.D, 2 + seed, dtype=np.float32)

    def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
        if theta[0] > 3:
            raise ZeroDivisionError("only small weights")
        return float(theta @ theta / 2), theta


def test_a_grid_of_ones_own_problem() -> None:
    base = rbd_ref.Config(dims=2, steps=5, family="rademacher")
    runs = rbd_ref.fit_grid(base, {"lr": [0.01, 0.5], "seed": range(3)}, Bowl())
    table = runs.table()
    assert (table["lr"], table["n"], table["failed"]) == ([0.5, 0.01], [2, 2], [1, 1])
    assert runs[2].error == "ZeroDivisionError: only small weights"
    assert runs[1].settings == {"lr": 0.01, "seed": 1}
    assert runs[4].run.history.loss.mean() == runs[4].figures["loss"]
    same = rbd_ref.fit(replace(base, lr=0.5, seed=1), Bowl())
    assert (runs[4].run.theta() == same.theta).all()
    folder = runs[0].out
    assert folder.is_dir()
    del runs
    assert not folder.exists()


def test_mistakes_from_python() -> None:
    for grid, jobs, words in (
        ({"lr": []}, 1, "lr has no values"),
        ({"speed": [1]}, 1, "setting 'speed' is unknown"),
        ({"seed": [1.5]}, 1, "setting seed is 1.5, expected a whole number"),
        ({"seed": [1]}, 0, "jobs is 0, expected 1 <= jobs"),
    ):
        with pytest.raises(RunError, match=words):
            rbd_ref.fit_grid(rbd_ref.Config(steps=1), grid, jobs=jobs)


def test_jobs_need_a_problem_that_can_be_sent() -> None:
    bowl = Bowl()
    bowl.evaluate = lambda theta: {}  # type: ignore[attr-defined]
    with pytest.raises(RunError, match=r"cannot be sent to another process .*, expected a problem that can be pickled"):
        rbd_ref.fit_grid(rbd_ref.Config(dims=2, steps=2), {"lr": [0.1, 0.2]}, bowl, jobs=2)


@pytest.mark.compiled
@pytest.mark.parametrize("module", [grids, tables, searches, training_grid], ids=lambda module: module.__name__)
def test_examples(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


# Side by side.


class Started:
    """A sweep in a process group of its own."""

    def __init__(self, folder: Path, *flags: object, **more: Any) -> None:
        command = [sys.executable, "-m", "rbd_ref.sweep", *map(str, flags), "--out", str(folder)]
        self.folder = folder
        self.process = subprocess.Popen(
            command, env={**os.environ, **ONE_THREAD}, stderr=subprocess.PIPE, text=True, start_new_session=True, **more
        )

    def has(self, pattern: str) -> bool:
        return any(self.folder.glob(pattern))

    def until(self, pattern: str) -> None:
        """A file is there, or the sweep has ended."""
        assert poll(lambda: self.has(pattern) or self.process.poll() is not None, 120)

    def children(self) -> list[int]:
        """The processes that train."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, IndexError):
                if entry.name.isdecimal() and (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(
                    self.process.pid
                ):
                    found += [int(entry.name)] if b"spawn_main" in (entry / "cmdline").read_bytes() else []
        return found

    def end(self, number: int) -> tuple[int, str]:
        """Status and stderr after a signal to the whole group, 0 for none."""
        if number:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        err = self.process.communicate(timeout=120)[1]
        return self.process.returncode, err


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The tables of a sweep in one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    swept(folder, *LONGER, "--quiet")
    return tables_of(folder)


def tables_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("table.csv", "table.json")}


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.compiled
def test_a_sweep_that_is_killed_again_and_again_ends_with_the_same_table(
    undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    """All of it at a random moment, then only its first process, which none outlives. The folder that it is started
    in has modules that nobody should import."""
    for name in ("multiprocessing", "numpy", "pickle", "numba"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this should not run')\n")
    folder = tmp_path / "sweep"
    flags = (*LONGER, "--jobs", 2, "--quiet")
    started = Started(folder, *flags, cwd=tmp_path)
    started.until("*/metrics.jsonl")
    time.sleep(random.random())
    assert started.end(signal.SIGKILL)[0] in (-signal.SIGKILL, 0)
    started = Started(folder, *flags, cwd=tmp_path)
    assert poll(lambda: len(started.children()) == 2 or started.process.poll() is not None, 60)
    children = started.children()
    started.process.kill()
    started.process.communicate()
    assert poll(lambda: gone(children), 60)
    assert Started(folder, "--jobs", 2, "--quiet", cwd=tmp_path).end(0) == (0, "")
    assert tables_of(folder) == undisturbed


@pytest.mark.compiled
def test_a_process_that_is_killed_fails_its_run_alone_and_a_signal_ends_the_sweep(tmp_path: Path) -> None:
    started = Started(tmp_path, *LONGER, "--epochs", 10**6, "--lr", "1,2", "--jobs", 2)
    assert poll(lambda: len({path.parent for path in tmp_path.glob("*/checkpoints/*.npz")}) == 2, 120)  # both train
    os.kill(started.children()[0], signal.SIGKILL)
    started.until("*/failed.json")
    failure = next(tmp_path.glob("*/failed.json"))
    assert "the process of the run ended by SIGKILL, expected it to train to the end" in failure.read_text()
    assert poll(lambda: len(list(tmp_path.glob("*/checkpoints/*.npz"))) > len(list(failure.parent.glob("*/*.npz"))), 60)
    code, err = started.end(signal.SIGTERM)
    assert code == 143
    one_line(err, "stopped by SIGTERM, 1 of 4 runs done: continue with python -m rbd_ref.sweep --out")
    assert {path.parent for path in tmp_path.rglob("lock")} <= {failure.parent}


@pytest.mark.compiled
def test_ranks_of_mpi_take_runs_and_give_the_same_table(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    if why := why_unusable(tmp_path):
        pytest.skip(f"MPI cannot be used: {why}")
    command = ("-m", "rbd_ref.sweep", *LONGER, "--out", "sweep")
    found = job(3, command, tmp_path).ended()
    assert found.status == 0, found.text
    assert found.out.count("validation_accuracy") == 1
    assert tables_of(tmp_path / "sweep") == undisturbed
    refusal = job(3, (*command, "--jobs", 2), tmp_path).ended()
    assert (refusal.status, refusal.err.count("\n")) == (2, 1)
    assert "expected none: runs go to its ranks" in refusal.err


def test_the_bar_counts_runs_by_what_is_done_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    point = grids.make({}).points()[0]
    bar = training_grid.SweepBar(4, 1, True)
    tasks = [training_grid.Task(point, Path(name)) for name in "ab"]
    bar.progress(tasks[0], 0.25)
    bar.progress(tasks[1], 0.75)
    assert bar.bar.n == 2.0
    bar.end(training_grid.GridRun({}, point.config, {}, Path("a"), error="it diverged"))
    assert bar.bar.n == 2.75
    bar.bar.refresh()
    bar.bar.close()
    assert "2 of 4 runs, 1 failed" in capsys.readouterr().err
