"""docs/paper.md: its tables and pictures, from benchmarks/paper/ and its results alone.

python docs/paper_page.py            writes them (`make paper-page`)
python docs/paper_page.py --check    fails where the page says something else

A figure is the mean over seeds of the validation accuracy after the last epoch, with half the width of its 95 %
interval (Student's t), where there are several seeds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pages import put, table

from rbd_ref.paper.results import Result
from rbd_ref.paper.summary import Figure, all_results, figures, missing
from rbd_ref.paper.tables import Table, read_tables

DOCS = Path(__file__).parent
FOLDER = DOCS.parent / "benchmarks" / "paper"
DATA = {"mnist": "MNIST", "fmnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
METHODS = {"sgd": "SGD", "rbd": "RBD", "fpd": "FPD", "memory": "RBD with memory"}
COLOURS = {"sgd": "#1d2733", "rbd": "#0072b2", "fpd": "#d55e00", "memory": "#009e73"}
Results = dict[str, list[Result]]


def shown(found: Sequence[Figure]) -> str:
    """The one figure, or nothing."""
    return str(found[0]) if found else ""


def chosen(found: Sequence[Figure], cell: str, **settings: Any) -> list[Figure]:
    """The figures of a cell with these settings among those that vary."""
    return [each for each in found if each.cell.name == cell and settings.items() <= each.settings.items()]


# Layouts: a table of the page from the figures of a table of the paper.


def by_task(source: Table, found: Sequence[Figure]) -> str:
    """Table 1: data and method down; the paper, ours without and with augmentation, and with tuned rates across."""
    cells = {cell.name: cell for cell in source.cells}
    rows = []
    for data, title in DATA.items():
        for method, name in METHODS.items():
            cell = cells.get(f"{data}-{method}")
            plain, augmented = (chosen(found, f"{data}-{method}", augment=augment) for augment in (False, True))
            tuned = chosen(found, f"{data}-{method}" + ("" if method == "memory" else "-tuned"))
            rows.append([f"{title}, {name}", cell.in_print if cell else "", *map(shown, (plain, augmented, tuned))])
    return table(["", "paper", "its rates, no augmentation", "its rates, augmented", "tuned, no augmentation"], rows)


def by_family(source: Table, found: Sequence[Figure]) -> str:
    """Table 2: tasks down; as published, then each family with unit directions and a rate of its own."""
    families = ("normal", "uniform", "bernoulli")
    fair = ("normal", "uniform", "rademacher", "srht", "sparse", "bernoulli-graphcore")
    cells = {cell.name: cell for cell in source.cells}
    rows = []
    for net in ("fc", "cnn"):
        for data, title in DATA.items():
            published = [f"{net}-{data}-{family}" for family in families]
            theirs = [f"{pair[0]:g}" if (pair := cells[name].printed) else "" for name in published]
            ours = [shown(chosen(found, name)) for name in published]
            equal = [shown(chosen(found, f"{net}-{data}-fair", family=family)) for family in fair]
            rows.append([f"{title}, {net.upper()}", " / ".join(theirs), " / ".join(ours).strip(" /"), *equal])
    heads = ["", "paper: normal / uniform / Bernoulli", "here, as published", *(f"fair: {family}" for family in fair)]
    return table(heads, rows)


def by_cell(source: Table, found: Sequence[Figure]) -> str:
    """Any other: a row for every figure."""
    rows = [
        [
            each.cell.name,
            ", ".join(f"{name} {words(value)}" for name, value in each.settings.items()),
            each.cell.rates,
            each.cell.in_print,
            str(each),
            correlation(each),
        ]
        for each in found
    ]
    if not rows:
        return "No results yet."
    heads = ["cell", "varied", "rates", "paper", "here", "cosine: whole, by tensor"]
    used = [k for k in range(len(heads)) if k in (0, 4) or any(row[k] for row in rows)]
    return table([heads[k] for k in used], [[row[k] for k in used] for row in rows])


def words(value: Any) -> str:
    """A setting as one would type it."""
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def correlation(figure: Figure) -> str:
    """The mean cosine of update and gradient, of whole vectors and over tensors, where it was measured."""
    names = ("correlation", "tensor_correlation")
    found = [[result.figures[name] for name in names] for result in figure.results if names[0] in result.figures]
    return ", ".join(f"{sum(values) / len(values):.3f}" for values in zip(*found, strict=True))


LAYOUTS: dict[str, Callable[[Table, Sequence[Figure]], str]] = {
    "table1-fc": by_task,
    "table1-cnn": by_task,
    "table2": by_family,
}


def extent(source: Table, results: Results) -> str:
    """How long and how often was trained, and what is missing."""
    settings = [result.settings for figure in figures(source, results) for result in figure.results]
    epochs = sorted({each["epochs"] for each in settings if each.get("epochs")})
    length = f"{', '.join(map(str, epochs))} epochs" if epochs else "No runs"
    lacking = missing(source, results)
    rest = f"{lacking} of {lacking + len(settings)} runs are missing" if lacking else "all runs are there"
    return f"{length}; {rest}."


def blocks(sources: Sequence[Table], results: Results) -> dict[str, str]:
    """All tables of the page by name."""
    return {
        source.name: LAYOUTS.get(source.name, by_cell)(source, figures(source, results))
        + f"\n\n{extent(source, results)}"
        for source in sources
    }


# Pictures.


def plain_axes(axes: Any, title: str) -> None:
    """As all pictures of the project look."""
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e3e8ee", lw=0.8)
    axes.set_axisbelow(True)


def draw_curves(sources: Sequence[Table], results: Results, path: Path) -> None:
    """Table 1 along the epochs: a panel for every network and data set, without augmentation, and the paper's marks."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    tables = [source for source in sources if LAYOUTS.get(source.name) is by_task]
    grid, panels = plt.subplots(len(tables), 3, figsize=(10.5, 3.1 * len(tables)), layout="constrained", squeeze=False)
    for source, row in zip(tables, panels, strict=True):
        for (data, title), axes in zip(DATA.items(), row, strict=True):
            net = source.name.removeprefix("table1-").upper()
            draw_task(axes, data, figures(source, results))
            plain_axes(axes, f"{title}, {net}")
    panels[0][0].set_ylabel("validation accuracy, %")
    handles, labels = panels[0][0].get_legend_handles_labels()
    grid.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    grid.savefig(path, dpi=150)


def draw_task(axes: Any, data: str, found: Sequence[Figure]) -> None:
    """The curves of one task, seed by seed, and what is printed in the paper at the right edge."""
    for method, colour in COLOURS.items():
        name = f"{data}-{method}"
        here = chosen(found, name) if method == "memory" else chosen(found, name, augment=False)
        for number, result in enumerate(result for figure in here for result in figure.results):
            accuracy = [100 * value for value in result.metrics["validation_accuracy"]]
            label = METHODS[method] if number == 0 else None
            axes.plot(range(1, len(accuracy) + 1), accuracy, color=colour, lw=1.2, label=label)
        for figure in here[:1]:
            if figure.cell.printed:
                axes.plot([101], [figure.cell.printed[0]], marker="<", color=colour, ms=6, clip_on=False)
    axes.set_xlabel("epoch")


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only look")
    options = parser.parse_args()
    sources = read_tables(FOLDER)
    results = all_results(FOLDER / "results")
    page = DOCS / "paper.md"
    same = put(page, blocks(sources, results), options.check)
    if options.check:
        if not same:
            print(f"{page} does not show the results there are: run make paper-page", file=sys.stderr)
        return 0 if same else 1
    draw_curves(sources, results, DOCS / "paper-curves.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
