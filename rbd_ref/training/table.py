"""The table of a sweep: mean, standard error and n of each combination of settings, over seeds.

Rows are sorted by the mean accuracy on the validation set, never by the test set; where a problem has no such figure,
by the final training loss. Nothing in it depends on when or how often the sweep was interrupted.
Tests: tests/test_sweep.py.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rbd_ref.runs.grid import name_of, shown

RANKING = "validation_accuracy"
LOSS = "loss"
ERROR = "_se"  # what the name of a column of standard errors ends with


class Entry(NamedTuple):
    """A run: what tells it from others, its final figures, and why it failed, if it did."""

    settings: Mapping[str, Any]
    figures: Mapping[str, float]
    error: str = ""


class Table(NamedTuple):
    """Rows of one length, the best first, and the figure that says which is the best."""

    ranked_by: str
    columns: list[str]
    rows: list[list[Any]]

    def by_column(self) -> dict[str, list[Any]]:
        """The columns by name."""
        return {name: [row[k] for row in self.rows] for k, name in enumerate(self.columns)}

    def to_csv(self) -> str:
        """With a line of names; a figure that does not exist is empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([shown(value) if value is not None else "" for value in row] for row in self.rows)
        return out.getvalue()

    def to_json(self, entries: Sequence[Entry]) -> str:
        """The rows, and each run."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        runs = [{"name": name_of(entry.settings), **entry._asdict()} for entry in entries]
        return to_json({"ranked_by": self.ranked_by, "rows": rows, "runs": runs})

    def to_text(self) -> str:
        """For the eye: a figure and its standard error in one column."""
        kept = [k for k, name in enumerate(self.columns) if not name.endswith(ERROR)]
        lines = [[self.columns[k] for k in kept], *([self._cell(row, k) for k in kept] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

    def _cell(self, row: list[Any], k: int) -> str:
        """A value, with its error if the next column holds it."""
        value = row[k]
        if k + 1 == len(row) or self.columns[k + 1] != self.columns[k] + ERROR:
            return "" if value is None else shown(value)
        error = row[k + 1]
        return "" if value is None else f"{value:.4f}" + ("" if error is None else f" ± {error:.4f}")


def to_json(value: Any) -> str:
    """JSON as every reader takes it: a number that is not finite is null."""
    return json.dumps(_finite(value), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """The value with None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _mean(values: Sequence[float]) -> list[float | None]:
    """Mean and standard error, None where there are too few."""
    if not values:
        return [None, None]
    with np.errstate(invalid="ignore"):  # of a loss that is infinite
        error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
        return [float(np.mean(values)), error]


def _groups(entries: Sequence[Entry]) -> list[list[Entry]]:
    """The runs that differ in their seed alone, in the order of the first of each."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        fixed = {name: value for name, value in entry.settings.items() if name != "seed"}
        groups.setdefault(name_of(fixed), []).append(entry)
    return list(groups.values())


def _names(entries: Sequence[Entry]) -> list[str]:
    """Of all figures, the one that ranks first."""
    found = list(dict.fromkeys(name for entry in entries for name in entry.figures))
    ranking = RANKING if RANKING in found else LOSS
    return [ranking, *(name for name in found if name != ranking)]


def summarise(entries: Sequence[Entry]) -> Table:
    """The table of some runs.

    >>> points = [{"lr": lr, "seed": seed} for lr in (0.25, 0.5) for seed in (0, 1)]
    >>> runs = [Entry(point, {"validation_accuracy": point["lr"] + point["seed"] / 10}) for point in points]
    >>> table = summarise(runs)
    >>> table.columns
    ['lr', 'n', 'failed', 'validation_accuracy', 'validation_accuracy_se']
    >>> [[round(value, 3) for value in row] for row in table.rows]
    [[0.5, 2, 0, 0.55, 0.05], [0.25, 2, 0, 0.3, 0.05]]
    """
    names = _names(entries)
    settings = list(dict.fromkeys(name for entry in entries for name in entry.settings if name != "seed"))
    columns = [*settings, "n", "failed", *(column for name in names for column in (name, name + ERROR))]
    rows = [_row(group, settings, names) for group in _groups(entries)]
    place = columns.index(names[0])
    sign = -1 if names[0] == RANKING else 1
    rows.sort(key=lambda row: (row[place] is None, sign * (row[place] or 0)))
    return Table(names[0], columns, rows)


def _row(group: Sequence[Entry], settings: Sequence[str], names: Sequence[str]) -> list[Any]:
    """Of runs that differ in their seed alone."""
    ended = [entry for entry in group if not entry.error]
    row = [*(group[0].settings.get(name) for name in settings), len(ended), len(group) - len(ended)]
    for name in names:
        row += _mean([entry.figures[name] for entry in ended if name in entry.figures])
    return row
