"""What the page says: the words and numbers that templates/report.html.j2 shows, of runs grouped by all but the seed.

Runs are compared by looking at them together: which learns faster, which ends higher, what differs between them, and
whether two ended in the same bits. Everything here is plain text and numbers, from files that anybody may have
written; the template escapes all of it.
Tests: tests/test_report.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from rbd_ref.report import export, records
from rbd_ref.report.figures import AREA, COLOURS, LABELS, Figure, Frame, Reference, Series, figure
from rbd_ref.report.groups import (
    FIRST_KEYS,
    Estimate,
    Group,
    Section,
    Sweep,
    best,
    key_of,
    sections,
    sweeps,
    value_at,
    varying,
)
from rbd_ref.report.records import Found, Run, accuracy
from rbd_ref.report.texts import DASH, count, number, percent, plural, ratio, show, significant

CORRELATIONS = {"whole": "of all weights together", "tensors": "mean over tensors"}
FAR = 20  # times as long as another run: then time is shown on a logarithmic axis
MOST_REFERENCES = 6  # lines of a figure to compare with
MANY = 3  # seeds that are named one by one
ROOT = "\N{SQUARE ROOT}(d/D)"


class View(NamedTuple):
    """A group as the legend shows it."""

    number: int
    look: str
    label: str
    runs: str  # which they are
    score: str
    measure: str  # what the score is
    state: str
    paper: str
    best: bool
    choices: str  # of its settings among those of each filter


class Cell(NamedTuple):
    """Of the table; `kind` is "text", "number" or "hash"."""

    text: str
    kind: str = "number"
    strong: bool = False


class Row(NamedTuple):
    """A run in the table."""

    group: Group
    name: str
    cells: dict[str, Cell]


# How lines look.


def look(place: int, total: int) -> str:
    """The classes of a line, by its place among others: of many, only the first have a colour."""
    if total > LABELS:
        return f"k{place + 1}" if place < COLOURS else "k0"
    again, colour = divmod(place, COLOURS)
    return f"k{colour + 1}{' dashed' * again}"


# One group.


def interval(found: Estimate, factor: float = 100.0, digits: int = 2) -> str:
    """Like 96.25 or, of several runs, 96.25 ± 0.12: the mean and its standard error."""
    mean = count(factor * found.mean, digits)
    return mean if math.isnan(found.error) else f"{mean} ± {count(factor * found.error, digits)}"


def epochs(run: Run) -> str:
    """How far a run has come, and if it has not finished how far it is to go."""
    reached = count(run.last("epoch"), 1).removesuffix(".0")
    total = run.config.get("epochs")
    return reached if run.result or not total or run.config.get("steps") else f"{reached} of {show(total)}"


def state(group: Group) -> str:
    """How the runs of a group ended, or how many have not."""
    waiting = [run for run in group.runs if not run.result]
    if len(waiting) == len(group.runs) == 1:
        return f"not finished: epoch {epochs(waiting[0])}"
    if waiting:
        return f"{len(waiting)} of {len(group.runs)} not finished"
    test = group.estimate("test_accuracy")
    if test.runs:
        return f"test {interval(test)} %"
    last = [number(run.steps[-1].get("loss")) for run in group.runs if run.steps]
    return f"loss {significant(np.mean(last).item() if last else None)}"


def score(group: Group) -> tuple[str, str]:
    """The figure that matters most, and what it is: the validation accuracy, or the first of a problem's own."""
    own = group.first.own_figures
    if own and not group.estimate("validation_accuracy").runs:
        found = group.estimate(own[0])
        error = "" if math.isnan(found.error) else f" ± {significant(found.error)}"
        return f"{significant(found.mean)}{error}", own[0]
    return f"{interval(group.estimate('validation_accuracy'))} %", "validation"


def members(group: Group) -> str:
    """The name of a run alone, or the seeds of several."""
    if len(group.runs) == 1:
        return group.first.name
    return f"{plural(len(group.runs), 'run')}: seeds {seeds_of([run.config.get('seed', '') for run in group.runs])}"


def seeds_of(seeds: list[Any]) -> str:
    """Many in a row by their ends, others one by one.

    >>> seeds_of([0, 1, 2]), seeds_of([0, 1, 2, 3, 4]), seeds_of([0, 1, 2, 3, 7])
    ('0, 1, 2', '0 to 4', '0, 1, 2, 3, 7')
    """
    first = seeds[0]
    if len(seeds) > MANY and isinstance(first, int) and seeds == list(range(first, first + len(seeds))):
        return f"{show(first)} to {show(seeds[-1])}"
    return ", ".join(map(show, seeds))


def view(group: Group, place: int, section: Section, filters: dict[str, list[str]]) -> View:
    """A group as it is shown among those of its section."""
    value, measure = score(group)
    top = best(section.groups)
    cell = group.first.cell
    return View(
        number=group.number,
        look=look(place, len(section.groups)),
        label=group.label,
        runs=members(group),
        score=value,
        measure=measure,
        state=state(group),
        paper=f"{cell.validation} %" if cell else "",
        best=top is not None and top.number == group.number and len(section.groups) > 1,
        choices=" ".join(str(values.index(group.settings.get(name, DASH))) for name, values in filters.items()),
    )


# The table.


def final(run: Run) -> dict[str, str]:
    """The figures at the end of a run, each with its heading."""
    return {
        "D": count(run.D),
        "D / d": ratio(run.D, run.d),
        "epochs": epochs(run),
        "train": percent(run.last("train_accuracy")),
        "validation": percent(run.last("validation_accuracy")),
        "paper": str(run.cell.validation) if run.cell else DASH,
        "test": percent(run.last("test_accuracy")),
        "seconds": count(run.last("seconds"), 1),
        "images/s": count(run.last("images_per_second")),
        "bytes a step": count(run.last("bytes_per_step")),
        "of SGD, 4\N{NO-BREAK SPACE}D": count(4 * number(run.D)),
    }


def chosen(run: Run, names: Sequence[str]) -> dict[str, Cell]:
    """The settings of a run that the table shows."""
    known = {**dict(key_of(run)), "seed": show(run.config.get("seed", ""))}
    texts = {("d" if name == "dims" else name): known.get(name, DASH) for name in names}
    return {name: Cell(text, "number" if is_number(name) else "text") for name, text in texts.items()}


def is_number(name: str) -> bool:
    """Whether a setting is one, so that it is sorted by size."""
    return name in ("d", "seed") or type(records.DEFAULTS.get(name)) in (int, float)


def row(run: Run, group: Group, names: Sequence[str], top: float) -> Row:
    """A run with its settings and figures; the best validation accuracy of its data set is strong."""
    leads = accuracy(run) == top
    figures = {head: Cell(text, strong=leads and head == "validation") for head, text in final(run).items()}
    checksum = Cell(str(run.result.get("sha256", DASH)), "hash")
    return Row(group, run.name, {**chosen(run, names), **figures, "sha256 of theta": checksum})


def rows(parts: Sequence[Section]) -> list[Row]:
    """All runs, group by group."""
    everything = [run for section in parts for run in section.runs]
    seeds = {show(run.config.get("seed", "")) for run in everything}
    different = varying([key_of(run) for run in everything])
    names = list(dict.fromkeys([*FIRST_KEYS, *different, *["seed"] * (len(seeds) > 1)]))
    found = []
    for section in parts:
        top = max((accuracy(run) for run in section.runs if not math.isnan(accuracy(run))), default=math.nan)
        found += [row(run, group, names, top) for group in section.groups for run in group.runs]
    return found


# All runs together.


def filters(parts: Sequence[Section]) -> dict[str, list[str]]:
    """The settings that differ between groups, each with its values."""
    tables = [group.settings for section in parts for group in section.groups]
    names = varying([tuple(table.items()) for table in tables])
    return {name: sorted({table.get(name, DASH) for table in tables}, key=in_order) for name in names}


def in_order(text: str) -> tuple[float, str]:
    """Numbers by size, then texts."""
    try:
        return float(text.replace(",", "")), text
    except ValueError:
        return math.inf, text


def summary(parts: Sequence[Section]) -> str:
    """One sentence: how many runs, of what."""
    runs = [run for section in parts for run in section.runs]
    groups = sum(len(section.groups) for section in parts)
    text = f"{plural(len(runs), 'run')} of {', '.join(dict.fromkeys(run.problem for run in runs))}"
    if groups < len(runs):
        text += f", in {plural(groups, 'group')}: runs of a group differ by their seed only"
    waiting = sum(not run.result for run in runs)
    return text + (f"; {waiting} {'has' if waiting == 1 else 'have'} not finished." if waiting else ".")


def verdict(section: Section) -> str:
    """One sentence: the best of a data set, by validation; nothing if nothing was measured."""
    top = best(section.groups)
    if top is None:
        return ""
    several = len(section.groups) > 1
    test = top.estimate("test_accuracy")
    text = f"The {'best ' * several}validation accuracy is {interval(top.estimate('validation_accuracy'))} %"
    return text + f" (test {interval(test)} %)" * bool(test.runs) + f", of {top.label}" * several + "."


def same_bits(parts: Sequence[Section]) -> list[list[str]]:
    """The names of those runs that ended in the same bits, group by group."""
    found: dict[str, list[str]] = {}
    for run in (run for section in parts for run in section.runs if "sha256" in run.result):
        found.setdefault(str(run.result["sha256"]), []).append(run.name)
    return [names for names in found.values() if len(names) > 1]


def shared(runs: Sequence[Run]) -> dict[str, str]:
    """The settings that all runs have in common."""
    names = dict.fromkeys(name for run in runs for name in run.config)
    values = {name: {show(run.config.get(name, "")) for run in runs} for name in names}
    return {name: found.pop() for name, found in values.items() if len(found) == 1}


# Figures.


def references(label: str, values: dict[int, float]) -> list[Reference]:
    """A line for each value, for all groups that it belongs to."""
    numbers: dict[float, list[int]] = {}
    for group, value in values.items():
        numbers.setdefault(value, []).append(group)
    return [Reference(label, value, tuple(found)) for value, found in numbers.items()][:MOST_REFERENCES]


def papers(groups: Sequence[Group]) -> list[Reference]:
    """What the paper reports, for groups that really repeat a cell of its tables."""
    return references("paper", {g.number: g.first.cell.validation.mean for g in groups if g.first.cell})


def far_apart(runs: Sequence[Run]) -> bool:
    """Whether some runs took far longer than others."""
    ends = [end for run in runs if (end := number(run.last("seconds"))) > 0]
    return bool(ends) and max(ends) > FAR * min(ends)


def by_chance(groups: Sequence[Group]) -> list[Reference]:
    """sqrt(d / D), about the cosine of a gradient and its projection onto d random directions."""
    shares = {g.number: number(g.first.d) / (number(g.first.D) or math.nan) for g in groups if has(g, "whole")}
    return references(ROOT, {group: math.sqrt(share) for group, share in shares.items() if 0 < share < 1})


def has(group: Group, part: str) -> bool:
    """Whether a run of the group has measured this correlation."""
    found = (value_at(record, ("correlation", part)) for run in group.runs for record in run.steps)
    return any(not math.isnan(value) for value in found)


def correlations(groups: Sequence[Group]) -> Iterator[Figure | None]:
    """A figure for each kind of correlation that a run has measured."""
    steps = (record for group in groups for run in group.runs for record in run.steps)
    measured = [record["correlation"] for record in steps if isinstance(record.get("correlation"), dict)]
    for part in dict.fromkeys(key for correlation in measured for key in correlation):
        unit = f"cosine, {CORRELATIONS.get(part, part)}"
        frame = Frame(f"Correlation with the SGD gradient: {part}", unit, "epoch", noisy=True)
        curves = [group.series("step", "epoch", "correlation", part) for group in groups]
        yield figure(frame, curves, by_chance(groups) if part == "whole" else [])


def own_figures(groups: Sequence[Group]) -> Iterator[Figure | None]:
    """A figure for each that only problems of their authors' own have."""
    for name in dict.fromkeys(name for group in groups for run in group.runs for name in run.own_figures):
        frame = Frame(name, "of the problem's own", "epoch", log=True)
        yield figure(frame, [group.series("evaluation", "epoch", name) for group in groups])


def letter(place: int) -> str:
    """a, b, ..., z, a2, b2, ..."""
    again, place = divmod(place, len(ascii_lowercase))
    return f"{ascii_lowercase[place]}{again + 1 if again else ''}"


def points(sweep: Sweep, name: str) -> Series:
    """The validation accuracies of a sweep against the value that it varies."""
    found = [group.estimate("validation_accuracy") for group in sweep.groups]
    means = np.array([100 * one.mean for one in found])
    errors = np.array([0.0 if math.isnan(one.error) else 100 * one.error for one in found])
    marks = tuple(group.number for group in sweep.groups)
    return Series(name, sweep.label, np.array(sweep.values), means, errors, marks)


def swept(groups: Sequence[Group]) -> Iterator[Figure | None]:
    """Accuracy against the rate and against d, where groups differ in these only; the row of the best group first."""
    for title, key, axis in (("learning rate", "lr", "learning rate"), ("d", "dims", "d")):
        found = list(sweeps(groups, key))
        found.sort(key=lambda sweep: min(group.number for group in sweep.groups))
        frame = Frame(f"Validation accuracy against {title}", "per cent, at the end", axis, log_x=True)
        yield figure(frame, [points(sweep, letter(place)) for place, sweep in enumerate(found)])


def figures(section: Section) -> list[Figure]:
    """All curves of which there is something to show; by time on a logarithmic axis if some runs took far longer."""
    groups = section.groups
    validation = Frame("Validation accuracy", "per cent", "epoch")
    loss = Frame("Training loss", "on batches", "epoch", noisy=True, log=True)
    by_time = Frame("Validation accuracy by time", "per cent", "seconds", log_x=far_apart(section.runs))
    width = Frame("Spread of the coordinates", "standard deviation", "epoch", noisy=True, log=True)
    evaluated = [group.series("evaluation", "epoch", "validation_accuracy", factor=100) for group in groups]
    timed = [group.series("evaluation", "seconds", "validation_accuracy", factor=100) for group in groups]
    drawn = [
        figure(validation, evaluated, papers(groups)),
        *own_figures(groups),
        *swept(groups),
        figure(loss, [group.series("step", "epoch", "loss") for group in groups]),
        figure(by_time, timed),
        figure(width, [group.series("step", "epoch", "coordinates", "std") for group in groups]),
        *correlations(groups),
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
    made.globals["look"] = look
    return made


def contents(found: Found) -> dict[str, Any]:
    """All that the template asks for, by name."""
    parts = sections(found.runs)
    options = filters(parts)
    views = {
        section.data: [view(group, place, section, options) for place, group in enumerate(section.groups)]
        for section in parts
    }
    return {
        "title": "Runs compared" if len(found.runs) > 1 else f"Run {found.runs[0].name}",
        "summary": summary(parts),
        "left_out": found.left_out,
        "filters": options,
        "sections": [(section.data, verdict(section), views[section.data], figures(section)) for section in parts],
        "looks": {str(group.number): group.look for groups in views.values() for group in groups},
        "rows": rows(parts),
        "same_bits": same_bits(parts),
        "shared": shared(found.runs),
        "csv": "data:text/csv;charset=utf-8," + quote(export.table(parts), safe=",", errors="replace"),
    }


def render(found: Found) -> str:
    """The page that compares these runs."""
    return environment().get_template("report.html.j2").render(contents(found))


def build(paths: Sequence[Path]) -> str:
    """The page that compares the runs in these folders."""
    return render(records.read(paths))
