"""Runs that differ by seed only, as one: their mean, its standard error, and what tells them from the others.

A `Section` holds the groups of one data set, the best first, by validation accuracy; a group's number is its place
there, and continues from section to section. A `Sweep` is a row of groups that differ in one setting only.
Tests: tests/test_report.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rbd_ref.report.figures import Series
from rbd_ref.report.records import DEFAULTS, UNUSED_BY_SGD, Record, Run, accuracy
from rbd_ref.report.texts import DASH, count, number, show

FIRST_KEYS = ("method", "family", "dims")
BARE_KEYS = ("method", "family", "data", "net")  # values that say by themselves what they are
BOOKKEEPING = (  # settings that change neither weights nor figures
    "preset",
    "problem",
    "correlation",
    "checkpoint_every",
    "keep",
    "data_dir",
    "mirror",
    "timeout",
    "reconstruct",
    "check_every",
    "on_divergence",
)
Key = tuple[tuple[str, str], ...]


class Estimate(NamedTuple):
    """The mean of a figure over the runs of a group; the standard error is not a number for one run alone."""

    mean: float
    error: float
    runs: int


class Group(NamedTuple):
    """Runs that differ by seed only."""

    number: int
    runs: list[Run]
    label: str

    @property
    def first(self) -> Run:
        """The run whose settings stand for all."""
        return self.runs[0]

    @property
    def settings(self) -> dict[str, str]:
        """What tells the group from others."""
        return dict(key_of(self.first))

    def estimate(self, figure: str) -> Estimate:
        """Mean and standard error of a figure at the end of the runs."""
        return estimate([number(run.last(figure)) for run in self.runs])

    def series(self, kind: str, x: str, *path: str, factor: float = 1.0) -> Series:
        """The mean curve of the figure at `path` of the runs' records, with its standard error."""
        rows: dict[int, list[tuple[float, float]]] = {}
        for run in self.runs:
            for record in run.steps if kind == "step" else run.evaluations:
                pair = number(record.get(x)), factor * value_at(record, path)
                if not any(map(math.isnan, pair)):
                    rows.setdefault(record["step"], []).append(pair)
        columns = np.array([mean_pair(rows[step]) for step in sorted(rows)], dtype=np.float64).reshape(-1, 3)
        return Series(str(self.number), self.label, *columns.T)


class Section(NamedTuple):
    """The groups of one data set, the best first."""

    data: str
    groups: list[Group]

    @property
    def runs(self) -> list[Run]:
        """All runs, group by group."""
        return [run for group in self.groups for run in group.runs]


class Sweep(NamedTuple):
    """Groups that differ in one setting only, by its value."""

    label: str
    groups: list[Group]
    values: list[float]


def value_at(record: Record, path: Sequence[str]) -> float:
    """The number at the path into a record; not a number where there is none."""
    value: Any = record
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return number(value)


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and standard error of the values that are numbers."""
    known = np.array([value for value in values if not math.isnan(value)])
    mean = float(known.mean()) if known.size else math.nan
    error = float(known.std(ddof=1)) / math.sqrt(known.size) if known.size > 1 else math.nan
    return Estimate(mean, error, known.size)


def mean_pair(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """The mean x, the mean y and its standard error (0 for one run alone) of the runs that have come so far."""
    x = float(np.mean([x for x, _ in pairs]))
    mean, error, runs = estimate([y for _, y in pairs])
    return x, mean, error if runs > 1 else 0.0


def key_of(run: Run) -> Key:
    """The settings that runs of one group share, as text; d is the plan's."""
    unused = UNUSED_BY_SGD if run.only_sgd else ()
    left_out = ("seed", *BOOKKEEPING, *unused)
    known = {key: show(value) for key, value in run.config.items() if key not in left_out}
    if not math.isnan(number(run.d)):
        known["dims"] = count(run.d)
    if run.own:  # its name and D, without theta0, which follows from the seed
        known["problem"] = ",".join(show(run.config["problem"]).split(",")[:2])
    return tuple((key, value) for key, value in known.items() if value != DASH)


def varying(keys: Sequence[Key]) -> list[str]:
    """The settings that are not the same in all; SGD has none of directions, which is no difference of its own."""
    tables = [dict(key) for key in keys]
    names = dict.fromkeys(name for table in tables for name in table)
    values = {name: {table.get(name) for table in tables} for name in names}
    return [name for name, found in values.items() if len(found - {None} if name in UNUSED_BY_SGD else found) > 1]


def label_of(key: Key, different: Sequence[str]) -> str:
    """Like rbd · srht · d 250 · lr 0.5: the method and its directions, then what differs and is no default."""
    table = {name: value for name, value in key if name in FIRST_KEYS or value != show(DEFAULTS.get(name))}
    names = [name for name in dict.fromkeys((*FIRST_KEYS, *different)) if name in table]
    parts = (table[name] if name in BARE_KEYS else f"{'d' if name == 'dims' else name} {table[name]}" for name in names)
    return " · ".join(parts)


def by(runs: Sequence[Run], what: Callable[[Run], Any]) -> list[list[Run]]:
    """The runs, those of which the same is true together."""
    found: dict[Any, list[Run]] = {}
    for run in runs:
        found.setdefault(what(run), []).append(run)
    return list(found.values())


def seed(run: Run) -> tuple[float, str]:
    """By which the runs of a group are sorted."""
    return number(run.config.get("seed")), run.name


def rank(runs: Sequence[Run]) -> float:
    """By which groups are sorted: the best validation accuracy first, those that have none at the end."""
    mean = estimate([accuracy(run) for run in runs]).mean
    return math.inf if math.isnan(mean) else -mean


def sections(runs: Sequence[Run]) -> list[Section]:
    """The groups of each data set."""
    found = []
    before = 0
    for alike in by(runs, lambda run: run.data):
        parts = sorted(by(alike, key_of), key=rank)
        different = varying([key_of(part[0]) for part in parts])
        groups = [
            Group(place, sorted(part, key=seed), label_of(key_of(part[0]), different))
            for place, part in enumerate(parts, before + 1)
        ]
        found.append(Section(alike[0].data, groups))
        before += len(groups)
    return found


def best(groups: Sequence[Group]) -> Group | None:
    """The group of the highest mean validation accuracy; None if none has any."""
    known = [group for group in groups if group.estimate("validation_accuracy").runs]
    return max(known, key=lambda group: group.estimate("validation_accuracy").mean, default=None)


def without(key: Key, name: str) -> Key:
    """The settings beside `name`, and beside the R of compartments in proportion, which stands for d."""
    return tuple((k, "proportional" if v.startswith("proportional:") else v) for k, v in key if k != name)


def swept_value(group: Group, name: str) -> float:
    """The value of the setting that a sweep varies; d is the plan's."""
    return number(group.first.d if name == "dims" else group.first.config.get(name))


def sweeps(groups: Sequence[Group], name: str) -> Iterator[Sweep]:
    """The rows of groups that differ in the setting `name` only, a number above 0."""
    rows: dict[Key, list[Group]] = {}
    for group in groups:
        if swept_value(group, name) > 0:
            rows.setdefault(without(key_of(group.first), name), []).append(group)
    long = {key: row for key, row in rows.items() if len({swept_value(group, name) for group in row}) > 1}
    different = varying(list(long))
    for key, row in long.items():
        ascending = sorted(row, key=lambda group: swept_value(group, name))
        yield Sweep(label_of(key, different), ascending, [swept_value(group, name) for group in ascending])
