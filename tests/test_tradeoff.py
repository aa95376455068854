"""benchmarks/tradeoff: the page has the figures of the committed results, and these are what the cells say."""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from rbd_ref import Config
from tools import ROOT

FOLDER = ROOT / "benchmarks" / "tradeoff"
RESULTS = sorted((FOLDER / "results").glob("*.json"))
NAME = re.compile(r"(.+?-\d+)((?:-20|-long)?(?:-search)?)-([^-]+(?:e-\d+)?)")
MODULES = ("cells", "by_class", "run", "page", "pages")


@pytest.fixture(scope="module")
def page() -> Iterator[ModuleType]:
    """benchmarks/tradeoff/page.py as a module."""
    before = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("page")
    sys.path[:] = before
    for name in MODULES:
        sys.modules.pop(name, None)


def test_the_tables_of_the_page_are_those_of_the_results(page: ModuleType) -> None:
    found, _ = page.figures()
    assert page.put(ROOT / "docs" / "memory.md", page.tables(found), check=True), (
        "run `python benchmarks/tradeoff/page.py --picture docs/tradeoff.png --page docs/memory.md`"
    )


def test_a_mean_has_the_interval_of_student(page: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """80, 82, 84 %: mean 82, standard error 2 / sqrt 3, times 4.303."""
    runs = iter([0.80, 0.82, 0.84])
    monkeypatch.setattr(
        page, "read", lambda name: {"sha256": "", "validation_accuracy": next(runs), "settings": {"lr": 2.0}}
    )
    figure = page.figure(page.cells()[0])
    assert figure.mean == pytest.approx(82)
    assert figure.half == pytest.approx(4.303 * 2 / math.sqrt(3))


def test_runs_that_diverged_are_told(page: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no accuracy, and the mean of the others alone would flatter a rate that is too high."""
    failed = {"settings": {"lr": 2.0}, "diverged": "step 3"}
    ended = {"settings": {"lr": 2.0}, "sha256": "", "validation_accuracy": 0.8}
    for runs, shown in (
        ([ended, failed, ended], "80.0 ± 0.0 (2 seeds, 1 diverged)"),
        ([failed, None, None], "diverges"),
    ):
        given = iter(runs)
        monkeypatch.setattr(page, "read", lambda name, given=given: next(given))
        assert page.shown(page.figure(page.cells()[0])) == shown


def test_every_result_is_of_a_cell_with_its_settings(page: ModuleType) -> None:
    """By its name; a cell that was changed since would show figures of other settings."""
    run = importlib.import_module("run")
    known = {cell.name: cell for cell in (*page.cells(), *page.worker_cells())}
    for path in RESULTS:
        name, kind, number = re.fullmatch(
            r"(.+?-\d+)((?:-20|-long)?(?:-search)?)-([^-]+(?:e-\d+)?)", path.stem
        ).groups()
        settings = json.loads(path.read_text())["settings"]
        expected = run.base(known[name], settings["lr"], settings["seed"])
        searched = kind.endswith("-search")
        expected |= {"epochs": 20} if "-20" in kind else {}
        expected |= {"epochs": 100, "augment": True} if "-long" in kind else {}
        expected |= {"holdout": 0.25} if searched else {}
        assert settings == expected, path.name
        assert float(number) == settings["lr" if searched else "seed"]


def test_workers_by_class_see_few_classes_and_all_images(page: ModuleType) -> None:
    by_class = importlib.import_module("by_class")
    config = Config(data="digits", workers=4, batch_size=50, steps=3)
    problem = by_class.ByClass(config)
    labels = problem.inner.divided.dataset.train_labels
    pieces = [set(labels[piece].tolist()) for piece in problem.pieces]
    assert all(len(piece) <= 4 for piece in pieces)
    assert set.union(*pieces) == set(range(10))
    assert np.array_equal(np.sort(np.concatenate(problem.pieces)), problem.inner.divided.train)
    theta = problem.initial(0)
    losses = {problem.loss_and_gradient(theta, step, worker)[0] for step in range(3) for worker in range(4)}
    assert len(losses) == 12
