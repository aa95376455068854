"""Trains what has no result yet: one seed of every cell in the order of the tables, then the next seed.

Runs are ordinary run folders of a sweep, so that a kill loses nothing but the step in flight; once a result is written
the folder, whose journal is large, is removed. A search of the rate is kept as a JSON of losses, `NAME.search.json`.
Tests: tests/test_paper.py.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rbd_ref.paper.results import path_of, result_of, write_result
from rbd_ref.paper.tables import Cell, Table
from rbd_ref.runs.archives import parse_json
from rbd_ref.runs.files import reading
from rbd_ref.runs.folder import write_text
from rbd_ref.runs.grid import Point, name_of
from rbd_ref.training.grid import GridRun, Runner
from rbd_ref.training.pools import Pool
from rbd_ref.training.search import Search
from rbd_ref.training.trainer import StopRequest


@dataclass
class PaperRunner:
    """Where results go and runs are kept while they are trained."""

    results: Path
    work: Path
    pool: Pool
    stop: StopRequest
    shown: bool | None = None

    def run(self, tables: Iterable[Table], seeds: int) -> None:
        """All cells: seed number 0 of all of them, then number 1, ..."""
        tables = list(tables)
        for number in range(seeds):
            for table in tables:
                self._train([point for cell in table.cells for point in self._points(cell, number)])

    def _points(self, cell: Cell, number: int) -> list[Point]:
        """The runs of a cell with its seed of this number, if it has so many."""
        seeds = cell.grid.seeds
        if number >= len(seeds):
            return []
        rates = [self._rate(cell, fixed) for fixed in cell.grid.fixed] if cell.search else []
        return [point for point in cell.points(rates) if point.config.seed == seeds[number]]

    def _train(self, points: list[Point]) -> None:
        """Those of some runs that have no result."""
        missing = [point for point in points if not path_of(self.results, point.name).exists()]
        if missing:
            Runner(self.work, self.pool, self.stop, shown=self.shown, ended=self._keep).run(missing)

    def _keep(self, run: GridRun) -> None:
        """Write the result of a run that has ended, and remove its folder; a failed one stays to be looked at."""
        if run.error or run.stopped:
            return
        write_result(self.results, result_of(run.out.name, run))
        shutil.rmtree(run.out)

    # The search of a rate.

    def _rate(self, cell: Cell, fixed: dict[str, Any]) -> float:
        """The best rate of a combination, from the losses that were found before, or by trials."""
        path = self.results / f"{name_of({'cell': cell.full_name, **fixed})}.search.json"
        losses = _read_losses(path)
        search = Search(fixed, cell.grid.rates, len(cell.grid.rates) // 2, losses)
        while wanted := search.wanted:
            trials = [cell.trial(fixed, rate) for rate in wanted]
            runs = Runner(self.work / "search", self.pool, self.stop, shown=self.shown).run(trials)
            for run in runs:
                search.add(run)
                shutil.rmtree(run.out)
            _write_losses(path, search.losses)
        return search.best


def _read_losses(path: Path) -> dict[float, float]:
    """What a search has found so far."""
    if not path.exists():
        return {}
    with reading(path):
        found = parse_json(path.read_bytes())
    return {float(rate): math.inf if loss is None else float(loss) for rate, loss in found.items()}


def _write_losses(path: Path, losses: dict[float, float]) -> None:
    """Null is a rate at which training failed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {repr(rate): losses[rate] if math.isfinite(losses[rate]) else None for rate in sorted(losses)}
    write_text(path, json.dumps(found) + "\n")
