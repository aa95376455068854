"""A table or figure of the paper as a TOML file: what it says, and the settings of its cells.

    title = "Table 1, fully connected"
    order = 1                                   # which is run first
    [settings]                                  # of all cells; a list is a setting that varies, as in a sweep's file
    epochs = 100
    seed = [0, 1, 2]
    [[cell]]
    name = "mnist-rbd"
    rates = "released code"                     # where settings are from: the paper, its code, or tuned here
    paper = [93.893, 0.024]                     # what is printed: mean and deviation, in per cent
    settings = { data = "mnist", method = "rbd", lr = 1.0 }
    search = "lr=2^-4..2^6"                     # in place of lr: the rate of least loss, as `rbd sweep` finds it
    trials = { epochs = 20 }                    # settings of the search's runs in place of the cell's

A setting of all cells that would have no effect on one of them, as directions on SGD, is left out there.
Tests: tests/test_paper.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rbd_ref.runs import config as configs
from rbd_ref.runs import grid as grids
from rbd_ref.runs.files import RunError
from rbd_ref.runs.grid import Grid, Point

KEYS = {"title", "order", "settings", "cell"}
CELL_KEYS = {"name", "rates", "paper", "settings", "search", "trials"}


@dataclass(frozen=True)
class Cell:
    """A cell of a table: some runs that differ by seed, and perhaps by what else varies."""

    table: str
    name: str
    rates: str
    printed: tuple[float, float] | None
    values: dict[str, Any]
    search: str
    trials: dict[str, Any]

    @property
    def full_name(self) -> str:
        """Its table's name and its own."""
        return f"{self.table}.{self.name}"

    @property
    def in_print(self) -> str:
        """What the paper says, or nothing."""
        return f"{self.printed[0]:g} ± {self.printed[1]:g}" if self.printed else ""

    @cached_property
    def grid(self) -> Grid:
        """Its runs."""
        return grids.make(self.values, self.search or None)

    def check(self) -> None:
        """Refuse settings that no run could have."""
        for rate in self.grid.rates[:1]:
            self.trial(self.grid.fixed[0], rate)

    def points(self, rates: list[float]) -> list[Point]:
        """Its runs, with the rates that a search has found for each combination of what varies but the seed."""
        return [Point({"cell": self.full_name, **point.settings}, point.config) for point in self.grid.points(rates)]

    def trial(self, fixed: Mapping[str, Any], rate: float) -> Point:
        """A run of the search."""
        point = self.grid.trial(fixed, rate, **self.trials)
        return Point({"cell": self.full_name, **point.settings}, point.config)


@dataclass(frozen=True)
class Table:
    """All cells of a file."""

    name: str
    title: str
    order: int
    cells: tuple[Cell, ...]


def read_table(path: Path, places: Mapping[str, Any] | None = None) -> Table:
    """The table in a file; `places` are settings that say where things are, such as `data_dir`."""
    try:
        found = configs.read_toml(path)
        _refuse_unknown(found, KEYS, "the file")
        shared = dict(found.get("settings", {})) | dict(places or {})
        cells = tuple(_cell(path.stem, shared, given) for given in found["cell"])
        for cell in cells:
            cell.check()
        return Table(path.stem, found["title"], int(found["order"]), cells)
    except KeyError as error:
        raise RunError(f"{path} has no {error}, expected title, order and cells: add it") from error
    except (ValueError, TypeError) as error:
        raise RunError(f"{path} is not a table of the paper: {error}") from error


def _refuse_unknown(found: Mapping[str, Any], known: set[str], what: str) -> None:
    unknown = sorted(set(found) - known)
    if unknown:
        raise ValueError(f"{what} has {unknown[0]!r}, expected some of {', '.join(sorted(known))}: correct the name")


def _cell(table: str, shared: dict[str, Any], given: dict[str, Any]) -> Cell:
    """A cell, without those of the shared settings that would have no effect on it."""
    _refuse_unknown(given, CELL_KEYS, f"cell {given.get('name', '')!r}")
    own = given["settings"]
    first = {name: value[0] if isinstance(value, list) and value else value for name, value in (shared | own).items()}
    unused = configs.without_effect(first)
    values = {name: value for name, value in shared.items() if name not in unused} | own
    printed = given.get("paper")
    pair = None if printed is None else (float(printed[0]), float(printed[1]))
    search, trials = given.get("search", ""), given.get("trials", {})
    if trials and not search:
        raise ValueError(f"cell {given['name']!r} has trials without a search, expected both: leave trials out")
    return Cell(table, given["name"], given["rates"], pair, values, search, trials)


def read_tables(folder: Path, places: Mapping[str, Any] | None = None) -> list[Table]:
    """All tables of a folder, in the order in which they are run."""
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise RunError(f"{folder} has no tables, expected TOML files: name benchmarks/paper of a clone with --folder")
    return sorted((read_table(path, places) for path in paths), key=lambda table: table.order)
