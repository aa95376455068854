"""Accuracy against bytes: the picture and the tables, from results/ alone.

    python benchmarks/tradeoff/page.py --picture docs/tradeoff.png --page docs/memory.md

A figure is the mean over seeds of the validation accuracy after the last epoch, with half the width of its 95 %
interval (Student's t). A cell whose search or seeds are not finished is left out, and counted as missing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2] / "docs")]

from cells import EXCHANGES, FLOAT, TASKS, WORKERS, Cell, cells, long_cells, twenty_cells, worker_cells  # noqa: E402
from pages import put, table  # noqa: E402
from run import RESULTS, SEEDS  # noqa: E402

QUANTILE = {2: 12.706, 3: 4.303}  # of Student's t, two-sided 95 %, by number of seeds
NAMES = {
    "sgd": "SGD",
    "rbd": "RBD (the paper)",
    "memory": "RBD with memory",
    "memory-sign": "with memory, signs",
    "feedback": "RBD with error feedback",
    "topk": "top-k, error feedback",
    "powersgd": "PowerSGD, one exchange",
}
COLOURS = {
    "rbd": "#999999",
    "memory": "#0072b2",
    "memory-sign": "#56b4e9",
    "feedback": "#009e73",
    "topk": "#d55e00",
    "powersgd": "#cc79a7",
}
BYTES = (5, 60_000)  # the axis: from 2 floats to 10,000
TITLES = {
    "fmnist-fc": "Fashion-MNIST, FC",
    "cifar-fc": "CIFAR-10, FC",
    "fmnist-cnn": "Fashion-MNIST, CNN",
    "cifar-cnn": "CIFAR-10, CNN",
}


class Figure(NamedTuple):
    """What the seeds of a cell gave."""

    cell: Cell
    rate: float
    mean: float
    half: float
    seeds: int
    diverged: int
    bytes: float


def read(name: str) -> dict[str, Any] | None:
    """A result, if there is one."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def figure(cell: Cell, suffix: str = "") -> Figure | None:
    """The mean of a cell over the seeds that did not diverge, once a seed is there; NaN if all did."""
    runs = [run for seed in range(SEEDS) if (run := read(f"{cell.name}{suffix}-{seed}"))]
    if not runs:
        return None
    values = [100 * run["validation_accuracy"] for run in runs if "sha256" in run]
    n = len(values)
    mean = math.fsum(values) / n if n else math.nan
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1)) if n > 1 else math.nan
    half = QUANTILE[n] * spread / math.sqrt(n) if n > 1 else math.nan
    return Figure(cell, runs[0]["settings"]["lr"], mean, half, n, len(runs) - n, FLOAT * cell.floats)


def figures() -> tuple[list[Figure], int]:
    """All that is there, and how many cells are missing."""
    found = [figure(cell) for cell in cells()]
    return [each for each in found if each], found.count(None)


def draw(found: list[Figure], path: Path) -> None:
    """A panel for every task: accuracy against bytes a step, with SGD as a line."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    tasks = [task for task in TASKS if any(each.cell.task == task for each in found)]
    width = 2 if len(tasks) > 1 else 1
    grid, panels = plt.subplots(-(-len(tasks) // width), width, figsize=(5.2 * width, 3.6 * -(-len(tasks) // width)),
                                layout="constrained", squeeze=False)  # fmt: skip
    for task, axes in zip(tasks, panels.flat, strict=False):
        panel(axes, task, [each for each in found if each.cell.task == task])
    for axes in panels.flat[len(tasks) :]:
        axes.remove()
    handles, labels = panels.flat[0].get_legend_handles_labels()
    grid.legend(handles, labels, loc="outside lower center", ncols=2 * width, frameon=False, fontsize=9)
    grid.savefig(path, dpi=150)


def panel(axes: Any, task: str, found: list[Figure]) -> None:
    """One task."""
    for contender, colour in COLOURS.items():
        mine = [each for each in found if each.cell.contender == contender and each.seeds]
        points = sorted(mine, key=lambda each: each.bytes)
        if points:
            axes.errorbar(
                [each.bytes for each in points], [each.mean for each in points],
                yerr=[0 if math.isnan(each.half) else each.half for each in points],
                color=colour, marker="o", ms=4, lw=1.6, capsize=2, label=NAMES[contender],
            )  # fmt: skip
    for each in found:
        if each.cell.contender == "sgd":
            axes.axhline(each.mean, color="#1d2733", lw=1.2, ls=(0, (4, 3)), label="SGD, whole gradients")
            axes.annotate(f"SGD, {each.bytes / 1000:,.0f} kB", (0, each.mean), xycoords=("axes fraction", "data"),
                          xytext=(4, 3), textcoords="offset points", fontsize=8)  # fmt: skip
    axes.set(xscale="log", xlim=BYTES, xlabel="bytes a worker sends at a step", ylabel="validation accuracy, %")
    axes.set_title(TITLES[task], fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e3e8ee", lw=0.8)
    axes.set_axisbelow(True)


def shown(each: Figure) -> str:
    """A mean with its interval, and on how many seeds it stands; a run that diverged is never left out in silence."""
    if not each.seeds:
        return "diverges"
    half = "" if math.isnan(each.half) else f" ± {each.half:.1f}"
    notes = [] if each.seeds == SEEDS else [f"{each.seeds} seed{'s' * (each.seeds > 1)}"]
    notes += [f"{each.diverged} diverged"] if each.diverged else []
    return f"{each.mean:.1f}{half}" + (f" ({', '.join(notes)})" if notes else "")


def by_bytes(found: list[Figure], task: str) -> str:
    """A table of one task: budgets down, contenders across."""
    rows = [each for each in found if each.cell.task == task]
    columns = [name for name in NAMES if name != "sgd" and any(each.cell.contender == name for each in rows)]
    lines = []
    for floats in sorted({each.cell.floats for each in rows if each.cell.contender != "sgd"}):
        here = {each.cell.contender: shown(each) for each in rows if each.cell.floats == floats}
        lines.append([f"{FLOAT * floats:,}", *(here.get(name, "") for name in columns)])
    best = [f"SGD, {each.bytes:,.0f} bytes a step: {shown(each)} %." for each in rows if each.cell.contender == "sgd"]
    return table(["bytes a step", *(NAMES[name] for name in columns)], lines) + "\n" + "".join(best) + "\n"


def long_runs() -> str:
    """The long runs: accuracy after some epochs, of the first seed, and the mean at the end."""
    marks = (1, 5, 10, 25, 50, 75)
    rows = []
    for cell in long_cells():
        run = read(f"{cell.name}-long-0")
        found = figure(cell, "-long")
        if run and found:
            curve = [f"{100 * run['curve'][epoch - 1]:.1f}" for epoch in marks]
            test = f"{100 * run['test_accuracy']:.1f}"
            rows.append([NAMES[cell.contender], f"{found.rate:g}", *curve, shown(found), test])
    return table(["", "rate", *(f"epoch {epoch}" for epoch in marks), "epoch 100", "test"], rows)


def twenty() -> str:
    """Twenty epochs."""
    rows = []
    for cell in twenty_cells():
        if found := figure(cell, "-20"):
            rows.append([NAMES[cell.contender], f"{found.bytes:,.0f}", f"{found.rate:g}", shown(found)])
    return table(["", "bytes a step", "rate", "validation"], rows)


def workers() -> str:
    """Sixteen workers: a row for every method and exchange, a column for every batch and kind of data."""
    columns = list(dict.fromkeys(cell.task for cell in worker_cells()))
    rows = []
    for kind in dict.fromkeys(cell.contender for cell in worker_cells()):
        contender, _, exchange = kind.partition("-")
        cells = {cell.task: cell for cell in worker_cells() if cell.contender == kind}
        found = {task: each for task, cell in cells.items() if (each := figure(cell))}
        name = f"{NAMES[contender]}, {exchange}" if exchange in EXCHANGES else NAMES[contender]
        sent = f"{FLOAT * next(iter(cells.values())).floats:,}"
        rows.append([name, sent, *(shown(found[task]) if task in found else "" for task in columns)])
    heads = [f"batch {batch}, {kind}" for _, batch, kind in (task.split("-") for task in columns)]
    return table([f"{WORKERS} workers", "bytes a worker and step", *heads], rows)


def tables(found: list[Figure]) -> dict[str, str]:
    """All tables of the page."""
    by_task = {task: by_bytes(found, task) for task in TASKS}
    return by_task | {"long": long_runs(), "twenty": twenty(), "workers": workers()}


def main() -> None:
    """Draw, and write the tables of a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE", help="whose tables are replaced")
    options = parser.parse_args()
    found, missing = figures()
    if options.picture:
        draw(found, options.picture)
    if options.page:
        put(options.page, tables(found))
    print(f"{len(found)} cells, {missing} missing")


if __name__ == "__main__":
    main()
