"""The figures of runs for other programs: a table as CSV, and event files for TensorBoard.

The columns of the table, a line for each run and evaluation:

    run, group                     the name of the run, and the number of its group on the page
    data, net, problem, method, family, d, D, lr, seed, workers
                                   settings; `problem` is the name of one of the author's own
    ...                            the other settings that differ between the runs
    step, epoch, seconds, loss     when, and the mean loss on batches since the evaluation before
    validation_accuracy, validation_loss
    train_accuracy, test_accuracy  fractions, on the line of the last step of a run that has finished
    ...                            the figures of problems of their authors' own

A run without evaluations has one line. What is unknown is empty.
Tests: tests/test_report_export.py.
"""

from __future__ import annotations

import csv
import io
import math
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from rbd_ref.report.groups import BOOKKEEPING, Section
from rbd_ref.report.records import UNUSED_BY_SGD, Record, Run
from rbd_ref.report.texts import number, show
from rbd_ref.runs.files import RunError, disk

SETTINGS = ("data", "net", "problem", "method", "family", "d", "D", "lr", "seed", "workers")
FIGURES = ("step", "epoch", "seconds", "loss", "validation_accuracy", "validation_loss")
FINAL = ("train_accuracy", "test_accuracy")
NOT_SCALARS = ("kind", "step", "epoch", "seconds", "method")


# A table.


def plain(value: Any) -> Any:
    """A value as a cell: numbers as they are, empty for what is unknown."""
    if value is None or value == "":
        return ""
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else show(value)


def differing(runs: Sequence[Run]) -> list[str]:
    """The other settings that are not the same in all runs."""
    names = dict.fromkeys(name for run in runs for name in run.config)
    others = (name for name in names if name not in (*SETTINGS, *BOOKKEEPING, "dims"))
    return [name for name in others if len({show(run.config.get(name, "")) for run in runs}) > 1]


def evaluations(run: Run) -> list[Record]:
    """Those of a run, the last one with the final figures; one that is empty if there are none."""
    if not run.result:
        return run.evaluations or [{}]
    final = {name: run.result[name] for name in (*FIGURES, *FINAL) if name in run.result}
    at_end = bool(run.evaluations) and run.evaluations[-1].get("step") == run.result.get("step")
    before = run.evaluations[:-1] if at_end else run.evaluations
    return [*before, {**final, **(run.evaluations[-1] if at_end else {})}]


def setting(run: Run, name: str) -> Any:
    """A setting as it holds: d is the plan's, and SGD has no directions."""
    if name in UNUSED_BY_SGD and run.only_sgd:
        return None
    return {**run.config, "problem": run.own, "d": run.d, "D": run.D}.get(name)


def rows(sections: Sequence[Section]) -> Iterator[Record]:
    """The cells of each line by column."""
    everything = [run for section in sections for run in section.runs]
    others = differing(everything)
    for section in sections:
        for group in section.groups:
            for run in group.runs:
                settings = {name: setting(run, name) for name in (*SETTINGS, *others)}
                for record in evaluations(run):
                    yield {"run": run.name, "group": group.number, **settings, **record}


def table(sections: Sequence[Section]) -> str:
    """All runs and evaluations as CSV."""
    runs = [run for section in sections for run in section.runs]
    own = dict.fromkeys(name for run in runs for name in run.own_figures)
    columns = list(dict.fromkeys(("run", "group", *SETTINGS, *differing(runs), *FIGURES, *FINAL, *own)))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([plain(row.get(name)) for name in columns] for row in rows(sections))
    return out.getvalue()


# Event files.


def scalars(record: Record, prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in a record by name, those inside others as outer/inner."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from scalars(value, f"{prefix}{name}/")
        elif name not in NOT_SCALARS and isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", float(value)


def summary_writer() -> Any:
    """tensorboardX's `SummaryWriter`, which is asked for only here."""
    try:
        return import_module("tensorboardX").SummaryWriter
    except ImportError as error:
        raise RunError(
            f"--tensorboard needs tensorboardX, which cannot be imported ({error}), expected it to be installed: "
            "pip install 'rbd-ref[tensorboard]'"
        ) from error


def seconds(record: Record) -> float:
    """Since the start of the run."""
    found = number(record.get("seconds"))
    return 0.0 if math.isnan(found) else found


def write_events(run: Run, folder: Path, writer: Any) -> None:
    """The scalars of a run: those of steps as steps/NAME, those of evaluations under their names."""
    out = writer(str(folder))
    for prefix, records in (("steps/", run.steps), ("", run.evaluations)):
        for record in records:
            for name, value in scalars(record):
                # Seconds since the start stand for the time, so that the axis "relative" is right.
                out.add_scalar(f"{prefix}{name}", np.float32(value), record["step"], seconds(record))
    out.close()


def folder_names(runs: Sequence[Run]) -> list[str]:
    """A folder for each run, called as the run is, with nothing in the name that would lead elsewhere."""
    names = [re.sub(r"[^\w.=+-]+", "-", run.name).strip("-.") or "run" for run in runs]
    return [name if names.count(name) == 1 else f"{name}-{k}" for k, name in enumerate(names, 1)]


def tensorboard(sections: Sequence[Section], target: Path) -> None:
    """A folder of event files for each run in a new folder, which is there complete or not at all."""
    writer = summary_writer()
    runs = [run for section in sections for run in section.runs]
    with disk(target, "written", flag="--tensorboard"):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise RunError(f"{target} exists, expected a new or empty folder: name another with --tensorboard")
        part = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
        try:
            for run, name in zip(runs, folder_names(runs), strict=True):
                write_events(run, part / name, writer)
            part.chmod(0o755)
            part.replace(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
