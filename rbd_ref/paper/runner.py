"""Trains what has no result yet: one seed of every cell in the order of the tables, then the next seed.

Runs are ordinary run folders of a sweep, so that a kill loses nothing but the step in flight; once a result is written
the folder, whose journal is large, is removed. A search of the rate is kept as a JSON of losses, `NAME.search.json`.
Tests: tests/test_paper.py.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rbd_ref.paper.results import path_of, result_of, write_result
from rbd_ref.paper.tables import Cell, Table
from rbd_ref.runs.archives import parse_json
from rbd_ref.runs.files import reading
from rbd_ref.runs.folder import write_text
from rbd_ref.runs.grid import Point, name_of
from rbd_ref.training.grid import GridRun, Runner
from rbd_ref.training.pools import Pool
from rbd_ref.training.search import Begun, Search, finish
from rbd_ref.training.trainer import StopRequest


class Kept(NamedTuple):
    """A search of a cell's rate, and the file of its losses."""

    cell: Cell
    search: Search
    path: Path


@dataclass
class PaperRunner:
    """Where results go and runs are kept while they are trained."""

    results: Path
    work: Path
    pool: Pool
    stop: StopRequest
    shown: bool | None = None

    def run(self, tables: Iterable[Table], seeds: int) -> None:
        """All cells: seed number 0 of all, then number 1, ...; of a table, first those whose rates are known."""
        tables = list(tables)
        for number in range(seeds):
            for table in tables:
                cells = [cell for cell in table.cells if number < len(cell.grid.seeds)]
                self._train([point for cell in cells if not cell.search for point in _points(cell, [], number)])
                searched = [cell for cell in cells if cell.search]
                rates = self._search(searched)
                self._train([point for cell in searched for point in _points(cell, rates[cell.name], number)])

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

    def _search(self, cells: Sequence[Cell]) -> dict[str, list[float]]:
        """The best rates of each cell, one for each combination of what varies but the seed: from the losses that were
        found before, or by trials, those of all cells side by side."""
        kept = [self._kept_search(cell, fixed) for cell in cells for fixed in cell.grid.fixed]

        def tried(number: int, run: GridRun) -> None:
            _write_losses(kept[number].path, kept[number].search.losses)
            shutil.rmtree(run.out)

        begun = [Begun(one.search, partial(one.cell.trial, one.search.fixed)) for one in kept]
        finish(begun, Runner(self.work / "search", self.pool, self.stop, shown=self.shown), tried)
        return {cell.name: [one.search.best for one in kept if one.cell is cell] for cell in cells}

    def _kept_search(self, cell: Cell, fixed: dict[str, Any]) -> Kept:
        """The search of a combination, as far as it has come."""
        path = self.results / f"{name_of({'cell': cell.full_name, **fixed})}.search.json"
        rates = cell.grid.rates
        return Kept(cell, Search(fixed, rates, len(rates) // 2, _read_losses(path)), path)


def _points(cell: Cell, rates: list[float], number: int) -> list[Point]:
    """The runs of a cell with its seed of this number."""
    seed = cell.grid.seeds[number]
    return [point for point in cell.points(rates) if point.config.seed == seed]


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
