"""What a run gave, as one small JSON: enough to draw its curve, to say what it cost, and to check it to the bit.

    name         of the run, which is that of the file
    settings     those that are not as by default, and are not places
    steps        after which it was evaluated
    metrics      by name, a figure for each evaluation
    figures      at the end: accuracies, d, bytes a step; and where it was measured, the mean over the run of the cosine
                 of update and gradient, of whole vectors and as a mean over tensors
    sha256       of the weights
    version, machine, seconds

Tests: tests/test_paper.py.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from llvmlite import binding

import rbd_ref
from rbd_ref.runs.archives import parse_json
from rbd_ref.runs.config import Config
from rbd_ref.runs.files import RunError, reading
from rbd_ref.runs.folder import write_text
from rbd_ref.runs.grid import PLACES
from rbd_ref.training.grid import GridRun

DIGITS = 5  # of figures along the way; the weights have all of theirs in the sha256
NAMED = ("train_accuracy", "validation_accuracy", "test_accuracy", "bytes_per_step", "images_per_second", "d", "D")
KEPT_OUT = (*PLACES, "preset", "problem", "forgotten", "keep", "timeout")


@dataclass(frozen=True)
class Result:
    """A finished run."""

    name: str
    settings: dict[str, Any]
    steps: list[int]
    metrics: dict[str, list[float]]
    figures: dict[str, float]
    sha256: str
    version: str
    machine: str
    seconds: float

    @property
    def accuracy(self) -> float:
        """On validation images at the end, in per cent."""
        return 100 * self.figures["validation_accuracy"]

    def config(self, **places: Any) -> Config:
        """The configuration that repeats it."""
        listed: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in self.settings.items()
        }
        return Config(**listed, **places)


def settings_of(config: Config) -> dict[str, Any]:
    """Those that are not as by default, but for places."""
    found = asdict(config)
    defaults = {item.name: item.default for item in fields(Config)}
    return {name: value for name, value in found.items() if name not in KEPT_OUT and value != defaults[name]}


def result_of(name: str, run: GridRun) -> Result:
    """What is kept of a run that has ended."""
    final = run.run.result
    assert final is not None, "it has ended"
    history = run.run.history
    return Result(
        name,
        settings_of(run.config),
        [int(t) for t in history.evaluated_at],
        {key: [round(float(x), DIGITS) for x in values] for key, values in history.metrics.items()},
        {key: final[key] for key in NAMED if key in final} | _correlations(run),
        final["sha256"],
        rbd_ref.__version__,
        binding.get_host_cpu_name(),
        round(final["seconds"], 1),
    )


def _correlations(run: GridRun) -> dict[str, float]:
    """Means over all lines of metrics of steps that have them."""
    found = [line["correlation"] for line in run.run.run.records("step") if "correlation" in line]
    names = {"correlation": "whole", "tensor_correlation": "tensors"}
    return {
        name: round(math.fsum(each[part] for each in found) / len(found), DIGITS)
        for name, part in names.items()
        if found
    }


def path_of(folder: Path, name: str) -> Path:
    """The file of a result."""
    return folder / f"{name}.json"


def write_result(folder: Path, result: Result) -> None:
    """Put a result into its file, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path_of(folder, result.name), json.dumps(asdict(result)) + "\n")


def read_result(path: Path) -> Result:
    """The result in a file."""
    with reading(path):
        text = path.read_bytes()
    try:
        return Result(**parse_json(text))
    except (ValueError, TypeError) as error:
        raise RunError(f"{path} is no result of rbd_ref.paper: {error}") from error
