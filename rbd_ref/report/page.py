"""What the page says: the words and numbers that templates/report.html.j2 shows, from the folders of runs.

Runs are compared by looking at them together: which learns faster, which ends higher, what differs between them, and
whether two ended in the same bits. Everything here is plain text and numbers, from files that anybody may have
written; the template escapes all of it. Configurations are read as plain tables, so that runs show which this version
would not train: older ones, or those of another backend.
Tests: tests/test_report.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from rbd_ref.report.figures import AREA, Figure, Frame, Series, figure
from rbd_ref.runs import folder, presets

Record = dict[str, Any]

DASH = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
COLOURS = 7  # from the eighth run on they come again, dashed
FIRST_KEYS = ("method", "family", "dims")
BARE_KEYS = ("method", "family", "data", "net")  # values that say by themselves what they are
TEXT_HEADS = ("method", "family")  # columns of words; all others are numbers, flush right
CORRELATIONS = {"whole": "of all weights together", "tensors": "mean over tensors"}
UNLABELLED = (
    "preset",
    "problem",
    "correlation",
    "log_every",
    "eval_every",
    "checkpoint_every",
    "keep",
    "data_dir",
    "mirror",
    "timeout",
)
UNUSED_BY_SGD = ("family", "dims", "compartments", "normalize", "redraw", "exchange")
USUAL_FIGURES = ("kind", "step", "epoch", "seconds", "loss", "validation_accuracy", "validation_loss")
FAR = 20  # times as long as another run: then time is shown on a logarithmic axis


class Run(NamedTuple):
    """What a folder says about a run; `result` is empty while it has not finished."""

    number: int
    name: str
    config: Record
    steps: list[Record]
    evaluations: list[Record]
    result: Record

    def last(self, key: str) -> Any:
        """A figure at the end of the run; of one that has not finished at its last evaluation, or else step."""
        latest = [self.result] if self.result else [*self.evaluations[-1:], *self.steps[-1:]]
        return next((record[key] for record in latest if key in record), None)

    @property
    def method(self) -> str:
        """The name of the method."""
        return show(self.config.get("method", ""))

    @property
    def problem(self) -> str:
        """What was trained: a network on a data set, or the name of a problem of the author's own."""
        own = show(self.config.get("problem", "")).partition(",")[0]
        return own if own != DASH else f"{show(self.config.get('net', ''))} on {show(self.config.get('data', ''))}"

    @property
    def own_figures(self) -> list[str]:
        """The names of the figures that only a problem of the author's own has."""
        return list(dict.fromkeys(key for record in self.evaluations for key in record if key not in USUAL_FIGURES))

    @property
    def paper(self) -> str:
        """What the paper reports for the preset of the run; nothing for runs without."""
        return presets.paper(str(self.config.get("preset", "")))


class View(NamedTuple):
    """A run as the template shows it: on its card, in the table of final figures and among the configurations."""

    number: int
    name: str
    colour: int  # of COLOURS
    dash: str  # of its lines; nothing for whole ones
    label: str
    score: str
    measure: str  # what the score is
    state: str
    paper: str
    final: dict[str, str]
    leads: bool  # none has a better test accuracy
    settings: dict[str, str]


# Reading.


def _read(path: Path, number: int, name: str) -> Run:
    """A run from its files; no keys are asked for, what is missing is shown as a dash."""
    run = folder.Run(path)
    return Run(
        number=number,
        name=name,
        config=run.settings(),
        steps=run.records("step", needed=()),
        evaluations=run.records("evaluation", needed=()),
        result=run.result(needed=()) or {},
    )


def read(paths: Sequence[Path]) -> list[Run]:
    """The runs, called by the names of their folders, or where these are the same by their whole paths."""
    names = [path.name or path.resolve().name for path in paths]
    unique = [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]
    return [_read(path, number, name) for number, (path, name) in enumerate(zip(paths, unique, strict=True), 1)]


# Values as text.


def show(value: Any) -> str:
    """A value of a configuration as text."""
    if isinstance(value, list):
        value = ", ".join(map(show, value))
    if isinstance(value, str):
        return value or DASH
    return json.dumps(value, ensure_ascii=False, default=str)


def _number(value: Any) -> float:
    """A number from a file, not a number for anything else."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else math.nan


def count(value: Any, digits: int = 0) -> str:
    """Like 9,610."""
    number = _number(value)
    return DASH if math.isnan(number) else f"{number:,.{digits}f}"


def significant(value: Any) -> str:
    """Four digits of a number of any size, like 0.01234 or 1.5e-07."""
    number = _number(value)
    return DASH if math.isnan(number) else f"{number:.4g}"


def percent(value: Any) -> str:
    """A fraction in per cent, like 95.28."""
    return count(100 * _number(value), 2)


def ratio(above: Any, below: Any) -> str:
    """How many times the second goes into the first, like 38.4 x."""
    quotient = _number(above) / (_number(below) or math.nan)
    return DASH if math.isnan(quotient) else f"{quotient:,.{1 if quotient < 100 else 0}f} {TIMES}"


# One run among others.


def label(run: Run, runs: Sequence[Run]) -> str:
    """Like rbd · srht · d 250: the method and its directions, then what tells the run from most of the others."""
    unused = UNUSED_BY_SGD if run.method == "sgd" else ()
    parts = []
    for key in dict.fromkeys((*FIRST_KEYS, *run.config)):
        value = show(run.config.get(key, ""))
        alike = sum(show(other.config.get(key, "")) == value for other in runs)
        if key not in (*unused, *UNLABELLED) and value != DASH and (key in FIRST_KEYS or 2 * alike <= len(runs)):
            parts.append(value if key in BARE_KEYS else f"{'d' if key == 'dims' else key} {value}")
    return " · ".join(parts)


def epochs(run: Run) -> str:
    """How far a run has come, and if it has not finished how far it is to go."""
    reached = count(run.last("epoch"), 1).removesuffix(".0")
    total = run.config.get("epochs")
    return reached if run.result or not total or run.config.get("steps") else f"{reached} of {show(total)}"


def state(run: Run) -> str:
    """How a run ended, or that it has not."""
    if not run.result:
        return f"not finished: epoch {epochs(run)}"
    test = percent(run.last("test_accuracy"))
    return f"test {test} %" if test != DASH else f"loss {significant(run.steps[-1].get('loss')) if run.steps else DASH}"


def score(run: Run) -> tuple[str, str]:
    """The figure that matters most, and what it is: the validation accuracy, or the first of a problem's own."""
    if run.last("validation_accuracy") is None and run.own_figures:
        name = run.own_figures[0]
        return significant(run.last(name)), name
    return f"{percent(run.last('validation_accuracy'))} %", "validation"


def final(run: Run) -> dict[str, str]:
    """The figures at the end of a run, each with its heading."""
    D = run.last("D")
    d = None if run.method == "sgd" else run.last("d")
    return {
        "method": run.method,
        "family": DASH if run.method == "sgd" else show(run.config.get("family", "")),
        "d": count(d),
        "D": count(D),
        "D / d": ratio(D, d),
        "epochs": epochs(run),
        "train": percent(run.last("train_accuracy")),
        "validation": percent(run.last("validation_accuracy")),
        "paper": run.paper.removesuffix(" %") or DASH,
        "test": percent(run.last("test_accuracy")),
        "seconds": count(run.last("seconds"), 1),
        "images/s": count(run.last("images_per_second")),
        "bytes a step": count(run.last("bytes_per_step")),
        "of SGD, 4\N{NO-BREAK SPACE}D": count(4 * _number(D)),
        "sha256 of theta": str(run.result.get("sha256", DASH)),
    }


def settings(run: Run) -> dict[str, str]:
    """All settings of a run as text, and its checksum."""
    return {key: show(value) for key, value in {**run.config, "sha256 of theta": run.result.get("sha256", "")}.items()}


def view(run: Run, runs: Sequence[Run]) -> View:
    """A run as it is shown among these."""
    again, colour = divmod(run.number - 1, COLOURS)
    top = best(runs, "test_accuracy")
    figure, measure = score(run)
    return View(
        number=run.number,
        name=run.name,
        colour=colour + 1,
        dash=f"{6 / again:g} 4" if again else "",
        label=label(run, runs),
        score=figure,
        measure=measure,
        state=state(run),
        paper=run.paper,
        final=final(run),
        leads=top is not None and _number(run.last("test_accuracy")) == top[0],
        settings=settings(run),
    )


# All runs together.


def best(runs: Sequence[Run], key: str) -> tuple[float, str] | None:
    """The highest of the runs' figures, and the name of the first run that has it; None if there are none."""
    known = [(score, run.name) for run in runs if not math.isnan(score := _number(run.last(key)))]
    return max(known, key=lambda pair: pair[0], default=None)


def summary(runs: Sequence[Run]) -> str:
    """One sentence: how many runs, of what, and which is the best."""
    several = len(runs) > 1
    text = f"{len(runs)} run{'s' * several} of {', '.join(dict.fromkeys(run.problem for run in runs))}"
    for kind in ("test", "validation"):
        if top := best(runs, f"{kind}_accuracy"):
            text += f": the {'best ' * several}{kind} accuracy is {percent(top[0])} %{f', of {top[1]}' * several}"
            break
    waiting = sum(not run.result for run in runs)
    return text + (f"; {waiting} {'has' if waiting == 1 else 'have'} not finished." if waiting else ".")


def same_bits(runs: Sequence[Run]) -> list[list[int]]:
    """The numbers of those runs that ended in the same bits, group by group."""
    groups: dict[str, list[int]] = {}
    for run in runs:
        groups.setdefault(str(run.result.get("sha256", run.number)), []).append(run.number)
    return [group for group in groups.values() if len(group) > 1]


def values_by_key(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Each setting that a run has, with its value in all of them."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    return {key: [show(run.config.get(key, "")) for run in runs] for key in keys}


# Figures.


def _points(records: Sequence[Record], x: str, path: Sequence[str]) -> Iterator[tuple[float, float]]:
    """The figure at `path` of each record against another one; not a number where it is missing."""
    for record in records:
        value: Any = record
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        yield _number(record.get(x)), _number(value)


def series(runs: Sequence[Run], kind: str, x: str, *path: str, factor: float = 1.0) -> list[Series]:
    """For each run the figure at `path` of its records against another one."""
    curves = []
    for run in runs:
        records = run.steps if kind == "step" else run.evaluations
        pairs = np.array(list(_points(records, x, path)), dtype=np.float64).reshape(-1, 2)
        curves.append(Series(run.number, run.name, pairs[:, 0], factor * pairs[:, 1]))
    return curves


def far_apart(runs: Sequence[Run]) -> bool:
    """Whether some runs took far longer than others."""
    ends = [end for run in runs if (end := _number(run.last("seconds"))) > 0]
    return bool(ends) and max(ends) > FAR * min(ends)


def correlations(runs: Sequence[Run]) -> Iterator[Figure | None]:
    """A figure for each kind of correlation that a run has measured."""
    measured = [r["correlation"] for run in runs for r in run.steps if isinstance(r.get("correlation"), dict)]
    for part in dict.fromkeys(key for correlation in measured for key in correlation):
        unit = f"cosine, {CORRELATIONS.get(part, part)}"
        frame = Frame(f"Correlation with the SGD gradient: {part}", unit, "epoch", noisy=True)
        yield figure(frame, series(runs, "step", "epoch", "correlation", part))


def own_figures(runs: Sequence[Run]) -> Iterator[Figure | None]:
    """A figure for each that only problems of their authors' own have."""
    for name in dict.fromkeys(name for run in runs for name in run.own_figures):
        yield figure(Frame(name, "of the problem's own", "epoch", log=True), series(runs, "evaluation", "epoch", name))


def figures(runs: Sequence[Run]) -> list[Figure]:
    """All curves of which there is something to show; by time on a logarithmic axis if some runs took far longer."""
    accuracy = Frame("Validation accuracy", "per cent", "epoch")
    loss = Frame("Training loss", "on batches", "epoch", noisy=True, log=True)
    by_time = Frame("Validation accuracy by time", "per cent", "seconds", log_x=far_apart(runs))
    spread = Frame("Spread of the coordinates", "standard deviation", "epoch", noisy=True, log=True)
    drawn = [
        figure(accuracy, series(runs, "evaluation", "epoch", "validation_accuracy", factor=100)),
        figure(loss, series(runs, "step", "epoch", "loss")),
        figure(by_time, series(runs, "evaluation", "seconds", "validation_accuracy", factor=100)),
        figure(spread, series(runs, "step", "epoch", "coordinates", "std")),
        *own_figures(runs),
        *correlations(runs),
    ]
    return [one for one in drawn if one is not None]


# The page.


def pixels(value: float) -> str:
    """A place in a picture to a hundredth of a pixel, like 46 or 12.25."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def environment() -> Environment:
    """The templates. All that is put into them is escaped; a name that they lack is an error."""
    made = Environment(
        loader=PackageLoader("rbd_ref.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["px"] = pixels
    made.globals["area"] = AREA
    return made


def contents(runs: Sequence[Run]) -> dict[str, Any]:
    """All that the template asks for, by name."""
    values = values_by_key(runs)
    return {
        "title": "Runs compared" if len(runs) > 1 else f"Run {runs[0].name}",
        "summary": summary(runs),
        "runs": [view(run, runs) for run in runs],
        "figures": figures(runs),
        "heads": list(final(runs[0])),
        "texts": TEXT_HEADS,
        "same_bits": same_bits(runs),
        "different": {key: row for key, row in values.items() if len(set(row)) > 1},
        "shared": {key: row[0] for key, row in values.items() if len(set(row)) == 1},
    }


def build(paths: Sequence[Path]) -> str:
    """The page that compares the runs in these folders."""
    return environment().get_template("report.html.j2").render(contents(read(paths)))
