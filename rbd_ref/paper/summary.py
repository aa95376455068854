"""Means and intervals of cells, from the results alone.

Tests: tests/test_paper.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rbd_ref.paper.results import Result, read_result
from rbd_ref.paper.tables import Cell, Table

# Student's t, two-sided 95 %, by number of seeds.
QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}


@dataclass(frozen=True)
class Figure:
    """The runs of a cell that differ by seed only: mean and half of the 95 % interval, which one run does not have."""

    cell: Cell
    settings: dict[str, Any]
    results: tuple[Result, ...]
    wanted: int

    @property
    def values(self) -> list[float]:
        """Validation accuracies, in per cent."""
        return [result.accuracy for result in self.results]

    @property
    def mean(self) -> float:
        """Of the validation accuracies."""
        return math.fsum(self.values) / len(self.values)

    @property
    def half(self) -> float | None:
        """Half the width of the interval of the mean."""
        n = len(self.values)
        if n < 2:
            return None
        variance = math.fsum((value - self.mean) ** 2 for value in self.values) / (n - 1)
        return QUANTILES[n] * math.sqrt(variance / n)

    def __str__(self) -> str:
        half = "" if self.half is None else f" ± {self.half:.1f}"
        n = len(self.values)
        return f"{self.mean:.1f}{half}" + ("" if n == self.wanted else f" ({n} of {self.wanted} seeds)")


def all_results(folder: Path) -> dict[str, list[Result]]:
    """All results of a folder, by the name of their cell."""
    found: dict[str, list[Result]] = {}
    for path in sorted(folder.glob("*.json")):
        if not path.name.endswith(".search.json"):
            result = read_result(path)
            cell = result.name.split(",")[0].removeprefix("cell=")
            found.setdefault(cell, []).append(result)
    return found


def figures(table: Table, results: dict[str, list[Result]]) -> list[Figure]:
    """What there is of a table, a figure for each combination of settings but the seed."""
    return [figure for cell in table.cells for figure in _of_cell(cell, results.get(cell.full_name, []))]


def _of_cell(cell: Cell, results: Sequence[Result]) -> list[Figure]:
    """The figures of a cell."""
    varying = [name for name in cell.grid.axes if name != "seed"]
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        config = result.config()
        key = tuple((name, getattr(config, name)) for name in varying)
        groups.setdefault(key, []).append(result)
    wanted = len(cell.grid.seeds)
    return [Figure(cell, dict(key), tuple(group), wanted) for key, group in sorted(groups.items(), key=str)]


def missing(table: Table, results: dict[str, list[Result]]) -> int:
    """How many runs of a table have no result."""
    wanted = sum(len(cell.grid.fixed) * len(cell.grid.seeds) for cell in table.cells)
    return wanted - sum(len(figure.results) for figure in figures(table, results))
