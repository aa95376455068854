"""The paper as data: tables are read and refused, runs leave small results that can be checked to the bit."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rbd_ref.paper.__main__ import main
from rbd_ref.paper.results import read_result
from rbd_ref.paper.summary import all_results, figures, missing
from rbd_ref.paper.tables import read_table, read_tables
from rbd_ref.runs import config as configs
from rbd_ref.runs import presets
from rbd_ref.runs.files import RunError
from run_tools import one_line
from tools import ROOT

PAPER = ROOT / "benchmarks" / "paper"
TINY = """
title = "A table"
order = 1

[settings]
data = "digits"
net = "mlp:64-10"
family = "srht"
dims = "20"
epochs = 1
seed = [0, 1]

[[cell]]
name = "sgd"
rates = "paper"
paper = [90.0, 1.0]
settings = { method = "sgd", lr = 0.25 }

[[cell]]
name = "rbd"
rates = "tuned here"
search = "lr=2^-1..2^2"
trials = { steps = 30 }
settings = { method = "rbd", redraw = [1, 5], correlation = true }
"""


def table(folder: Path, text: str = TINY, name: str = "tiny.toml") -> Path:
    (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small table, all of which was run."""
    folder = table(tmp_path_factory.mktemp("paper"))
    assert main(["run", "--folder", str(folder), "--work", str(folder / "work"), "--jobs", "1"]) == 0
    return folder


def test_all_runs_leave_a_result_and_nothing_else(done: Path) -> None:
    names = {path.name for path in (done / "results").iterdir()}
    assert {name for name in names if "sgd" in name} == {f"cell=tiny.sgd,seed={seed}.json" for seed in (0, 1)}
    assert len([name for name in names if "tiny.rbd" in name and "search" not in name]) == 4
    assert len([name for name in names if name.endswith(".search.json")]) == 2
    assert not [path for path in (done / "work").rglob("*") if path.is_file()]


def test_a_result_has_what_it_takes_to_repeat_it(done: Path) -> None:
    result = read_result(done / "results" / "cell=tiny.sgd,seed=1.json")
    expected = {"net": "mlp:64-10", "method": "sgd", "lr": 0.25, "epochs": 1, "seed": 1, "workers": 1, "augment": False}
    assert result.settings == expected
    assert result.steps == [37]
    assert result.metrics["validation_accuracy"] == [pytest.approx(result.accuracy / 100, abs=1e-5)]
    assert len(result.sha256) == 64


def test_a_result_has_the_cosines_of_its_steps(done: Path) -> None:
    """20 of 650 directions: about sqrt(20 / 650) of whole vectors; of one step here, so that tensors may have any."""
    (path,) = (done / "results").glob("cell=tiny.rbd,*redraw=1*seed=0.json")
    figures_at_end = read_result(path).figures
    assert figures_at_end["correlation"] == pytest.approx(0.175, abs=0.05)
    assert -1 < figures_at_end["tensor_correlation"] < 1
    assert "correlation" not in read_result(done / "results" / "cell=tiny.sgd,seed=1.json").figures


def test_a_finished_table_is_not_run_again(done: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (done / "results").iterdir()}
    assert main(["run", "--folder", str(done), "--work", str(done / "work"), "--jobs", "1"]) == 0
    assert {path: path.stat().st_mtime_ns for path in (done / "results").iterdir()} == before


def test_figures_are_means_with_intervals(done: Path) -> None:
    (found,) = read_tables(done)
    results = all_results(done / "results")
    shown = figures(found, results)
    assert [(figure.cell.name, figure.settings) for figure in shown] == [
        ("sgd", {}),
        ("rbd", {"redraw": 1}),
        ("rbd", {"redraw": 5}),
    ]
    first, second = shown[0].values
    assert shown[0].mean == pytest.approx((first + second) / 2)
    assert shown[0].half == pytest.approx(12.706 * abs(first - second) / 2)
    assert missing(found, results) == 0
    del results["tiny.sgd"][1:]
    assert missing(found, results) == 1
    assert str(figures(found, results)[0]).endswith("(1 of 2 seeds)")


def test_verify_repeats_a_result(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "cell=tiny.sgd,seed=0"
    assert main(["verify", name, "--folder", str(done)]) == 0
    assert name in capsys.readouterr().out
    path = done / "results" / f"{name}.json"
    forged = json.loads(path.read_text())
    forged["settings"]["lr"] = 0.5
    other = tmp_path / "forged.json"
    other.write_text(json.dumps(forged))
    assert main(["verify", str(other)]) == 1
    one_line(capsys.readouterr().err, f"{name} gives ", "its weights are others")


def test_list_shows_what_the_paper_has_and_what_was_found(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--folder", str(done)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tiny: A table, 0 runs missing"
    assert "paper 90 ± 1" in lines[1]


ALONE = TINY.split('[[cell]]\nname = "rbd"')[0].replace("epochs = 1", "epochs = 30").replace("[0, 1]", "[0]")


@pytest.mark.compiled
def test_killed_and_started_again(tmp_path: Path) -> None:
    """A run is killed in the middle; the same command ends it with the weights of one that was not."""
    found = []
    for name in ("killed", "whole"):
        folder = tmp_path / name
        folder.mkdir()
        table(folder, ALONE)
        places = ["--folder", str(folder), "--work", str(folder / "work"), "--jobs", "1"]
        command = [sys.executable, "-m", "rbd_ref.paper", "run", *places]
        if name == "killed":
            with subprocess.Popen(command, start_new_session=True) as process:
                wait_for(lambda work=folder / "work": any(work.rglob("checkpoints/*.npz")))
                os.killpg(process.pid, signal.SIGKILL)
            assert not list(folder.glob("results/*.json"))
        assert subprocess.run(command, check=False).returncode == 0
        (path,) = folder.glob("results/*.json")
        found.append(read_result(path).sha256)
    assert found[0] == found[1]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_trials_have_settings_of_their_own(tmp_path: Path) -> None:
    """And are scored on images that they do not train on; the runs themselves have neither."""
    cell = read_table(table(tmp_path) / "tiny.toml").cells[1]
    trial = cell.trial(cell.grid.fixed[0], 0.5).config
    assert (trial.steps, trial.holdout, trial.lr) == (30, 0.25, 0.5)
    assert {(point.config.steps, point.config.holdout) for point in cell.points([1.0, 2.0])} == {(None, 0.0)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("order = 1", "has no 'cell'"),
        (TINY.replace('rates = "paper"', 'rate = "paper"'), "has 'rate', expected some of"),
        (TINY.replace("lr = 0.25", "lr = 0.25, sigma = 2.0"), "sigma"),
        (TINY.replace("epochs = 1", "epoks = 1"), "'epoks' is unknown"),
        (TINY.replace('search = "lr=2^-1..2^2"', ""), "has trials without a search"),
        (TINY.replace("steps = 30", "stepz = 30"), "'stepz' is unknown"),
        ("title = ", "is not"),
    ],
)
def test_a_file_that_is_no_table_is_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=words):
        read_table(table(tmp_path, text) / "tiny.toml")


def test_bad_calls_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--folder", str(tmp_path)]) == 2
    one_line(capsys.readouterr().err, "has no tables")
    assert main(["verify", "nothing", "--folder", str(tmp_path)]) == 2
    one_line(capsys.readouterr().err, "nothing.json")
    (tmp_path / "a.json").write_text("{}")
    assert main(["verify", str(tmp_path / "a.json")]) == 2
    one_line(capsys.readouterr().err, "is no result of rbd_ref.paper")


def test_the_tables_have_the_settings_and_figures_of_the_presets() -> None:
    """Table 1 as published, with srht in place of normal directions, and for fixed bases signs."""
    tables = {found.name: found for found in read_tables(PAPER)}
    for net in ("fc", "cnn"):
        published = [cell for cell in tables[f"table1-{net}"].cells if cell.rates != "tuned here"]
        assert len(published) == 9
        for cell in published:
            preset = presets.get(f"table1-{net}-{cell.name}")
            family = "rademacher" if cell.name.endswith("fpd") else "srht"
            along = {"family": family} if "family" in preset.settings else {}
            assert cell.printed == tuple(preset.validation)
            assert configs.make({**preset.settings, **along, "seed": 2}) in [point.config for point in cell.points([])]


def test_results_are_of_the_tables() -> None:
    """Each committed result is a run of a cell, with the settings that the cell has now."""
    known = {cell.full_name: cell for found in read_tables(PAPER) for cell in found.cells}
    for name, results in all_results(PAPER / "results").items():
        for result in results:
            config = result.config()
            values = known[name].grid.base | {key: getattr(config, key) for key in known[name].grid.axes}
            for key, value in values.items():
                assert getattr(config, key) == value, (result.name, key)


# The page.


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """docs/paper_page.py as a module."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    yield importlib.import_module("paper_page")
    for name in ("paper_page", "pages"):
        sys.modules.pop(name, None)


def test_the_page_is_that_of_the_results(page: ModuleType) -> None:
    found = page.blocks(read_tables(PAPER), all_results(PAPER / "results"))
    assert page.put(ROOT / "docs" / "paper.md", found, check=True), "run `make paper-page`"


def test_a_table_of_the_page_has_a_row_for_every_figure(done: Path, page: ModuleType) -> None:
    found = page.blocks(read_tables(done), all_results(done / "results"))["tiny"]
    lines = found.splitlines()
    assert lines[0] == "| cell | varied | rates | paper | here | cosine: whole, by tensor |"
    assert [line.split(" | ")[:4] for line in lines[2:5]] == [
        ["| sgd", "", "paper", "90 ± 1"],
        ["| rbd", "redraw 1", "tuned here", ""],
        ["| rbd", "redraw 5", "tuned here", ""],
    ]
    assert lines[-1] == "1 epochs; all runs are there."


def test_a_table_says_what_is_missing(done: Path, page: ModuleType) -> None:
    results = all_results(done / "results")
    del results["tiny.rbd"]
    assert page.blocks(read_tables(done), results)["tiny"].endswith("1 epochs; 4 of 6 runs are missing.")
    assert page.blocks(read_tables(done), {})["tiny"] == "No results yet.\n\nNo runs; 6 of 6 runs are missing."
