"""The runs of a report, read from their folders: which there are, what their files say, and which cell of the paper
each is.

A folder of runs stands for all runs in it. What cannot be read is named and left out: a report on a hundred runs does
not fail because of one. Configurations are read as plain tables, so that runs show which this version would not
train: older ones, or those of another backend.
Tests: tests/test_report.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rbd_ref.data.datasets import STANDARDS
from rbd_ref.data.formats import CLASSES
from rbd_ref.models import networks
from rbd_ref.report.texts import DASH, number, show
from rbd_ref.runs import config as configs
from rbd_ref.runs import folder, presets
from rbd_ref.runs.config import Config
from rbd_ref.runs.files import RunError, reading
from rbd_ref.runs.presets import Preset
from rbd_ref.spec.compartments import Plan

Record = dict[str, Any]

UNUSED_BY_SGD = tuple(item.name for item in fields(Config) if "sgd" not in item.metadata.get("methods", ("sgd",)))
USUAL_FIGURES = ("kind", "step", "epoch", "seconds", "loss", "validation_accuracy", "validation_loss")
DEFAULTS = {item.name: item.default for item in fields(Config)}
OF_A_CELL = tuple(item.name for item in fields(Config) if item.metadata["bits"] and item.name != "seed")
LENGTH = ("epochs", "steps")


class Run:
    """What a folder says about a run; `result` is empty while it has not finished."""

    def __init__(self, path: Path, name: str) -> None:
        files = folder.Run(path)
        self.path = path
        self.name = name
        self.config: Record = files.settings()
        if not isinstance(self.config.get("method"), str):
            raise RunError(
                f"{path} is no run: its config.toml names no method, expected the folder that a training has written"
            )
        self.steps: list[Record] = files.records("step", needed=())
        self.evaluations: list[Record] = files.records("evaluation", needed=())
        self.result: Record = files.result(needed=()) or {}

    def last(self, key: str) -> Any:
        """A figure at the end of the run; of one that has not finished at its last evaluation, or else step."""
        latest = [self.result] if self.result else [*self.evaluations[-1:], *self.steps[-1:]]
        return next((record[key] for record in latest if key in record), None)

    @property
    def method(self) -> str:
        """The name of the method."""
        return show(self.config["method"])

    @property
    def only_sgd(self) -> bool:
        """Whether no step has directions."""
        return self.method == "sgd" and not self.config.get("switch")

    @property
    def own(self) -> str:
        """The name of a problem of the author's own; nothing for a network."""
        return show(self.config.get("problem", "")).partition(",")[0].replace(DASH, "")

    @property
    def problem(self) -> str:
        """What was trained: a network on a data set, or the name of a problem of the author's own."""
        return self.own or f"{show(self.config.get('net', ''))} on {self.data}"

    @property
    def data(self) -> str:
        """The data set, or the name of a problem of the author's own: runs of one of these can be compared."""
        return self.own or show(self.config.get("data", ""))

    @property
    def own_figures(self) -> list[str]:
        """The names of the figures that only a problem of the author's own has."""
        return list(dict.fromkeys(key for record in self.evaluations for key in record if key not in USUAL_FIGURES))

    @cached_property
    def plan(self) -> Plan | None:
        """The compartments and directions that follow from the configuration; None where this version knows none."""
        known = {name: value for name, value in self.config.items() if name in DEFAULTS and name != "preset"}
        try:
            config = configs.make(known)
            network = networks.make(config.net, STANDARDS[config.data].shape, CLASSES)
            return configs.plan(config, network.sizes)
        except (ValueError, TypeError, KeyError):
            return None

    @property
    def D(self) -> Any:
        """The number of parameters: that of the result or, before there is one, of the network."""
        return self.result.get("D", self.plan.D if self.plan else None)

    @property
    def d(self) -> Any:
        """The number of directions of the plan; None where no step has any."""
        return None if self.only_sgd else self.result.get("d", self.plan.d if self.plan else None)

    @cached_property
    def cell(self) -> Preset | None:
        """The cell of the paper's tables that the run repeats; None if any setting of its weights is another."""
        return None if self.own else next((preset for preset in cells(self.config) if same(preset, self)), None)


@cache
def complete_preset(name: str) -> Config:
    """All settings of a preset."""
    return Config.from_preset(name, workers=1)


def cells(config: Record) -> Iterator[Preset]:
    """The presets of the network, data set and method."""
    wanted = {key: config.get(key) for key in ("data", "net", "method")}
    return (preset for preset in presets.PRESETS.values() if wanted.items() <= preset.settings.items())


def same(preset: Preset, run: Run) -> bool:
    """Whether a run has every setting of a preset that its weights and its length depend on."""
    unused = UNUSED_BY_SGD if run.only_sgd else ()
    expected = complete_preset(preset.name)
    names = [name for name in (*OF_A_CELL, *LENGTH) if name not in unused]
    return all(show(run.config.get(name, DEFAULTS[name])) == show(getattr(expected, name)) for name in names)


# Which runs there are.


class Found(NamedTuple):
    """The runs that could be read, and a sentence for each entry that was left out."""

    runs: list[Run]
    left_out: list[str]


def inside(path: Path) -> list[Path]:
    """The folders of runs in a folder; the folder itself where it is a run, or nothing of the kind."""
    with reading(path):
        if not path.is_dir() or (path / "config.toml").exists():
            return [path]
        children = sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
        return [found for child in children for found in runs_below(child)] or [path]


def runs_below(path: Path) -> list[Path]:
    """The folders with a config.toml from here on; the folder itself if there are none, so that it is named."""
    return sorted(file.parent for file in path.rglob("config.toml")) or [path]


def expanded(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """All folders that may be runs, each once, and a sentence for each path that cannot be read."""
    found: dict[Path, Path] = {}
    wrong = []
    for path in paths:
        try:
            for one in inside(path):
                found.setdefault(one.resolve(), one)
        except RunError as error:
            wrong.append(str(error))
    return list(found.values()), wrong


def read(paths: Sequence[Path]) -> Found:
    """The runs, called by the names of their folders, or where these are the same by their whole paths."""
    folders, wrong = expanded(paths)
    names = [path.name or path.resolve().name for path in folders]
    runs = []
    for path, name in zip(folders, names, strict=True):
        try:
            runs.append(Run(path, name if names.count(name) == 1 else str(path)))
        except RunError as error:
            wrong.append(str(error))
    if not runs:
        raise RunError(wrong[0] if len(wrong) == 1 else f"none of {len(wrong)} entries is a run; the first: {wrong[0]}")
    return Found(runs, wrong)


def accuracy(run: Run) -> float:
    """The validation accuracy at the end, or as far as the run has come."""
    return number(run.last("validation_accuracy"))
