"""How the cost of `descend` grows with d and with D, by family, and of a step with ranks; the exponents, and a picture.

    python benchmarks/growth.py --json benchmarks/growth.json --picture docs/cost.png

Each cost is the best of several calls, those of short ones at several times; what would take longer than some seconds
is left out. An exponent is the slope of a line through the logarithms of the three largest sizes. Steps by ranks are
those of benchmarks/communication.json.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from speed import best, descend, keep, machine, training_step

from rbd_ref.spec.families import FAMILIES

RANKS = Path(__file__).with_name("communication.json")
AT = 122_570  # elements where d grows: the paper's network of CIFAR-10
DIMS = (10, 32, 100, 316, 1000, 3162, 10_000, 31_623, 100_000)
SIZES = tuple(10**e for e in range(4, 9))
FEW = 10  # directions where D grows
LONGEST = 1.5  # seconds that a call may be expected to take
SHORT = 0.2  # seconds of calls that are measured again,
TIMES = 3  # so often in all
COLOURS = dict(zip(FAMILIES, ("#0072b2", "#56b4e9", "#e69f00", "#cc79a7", "#009e73", "#d55e00"), strict=True))


class Cost(NamedTuple):
    """Seconds of one `descend`."""

    family: str
    D: int
    d: int
    seconds: float


def cost(family: str, D: int, d: int, before: float = math.inf) -> Cost:
    """The best of some calls, and of what was found before."""
    return Cost(family, D, d, min(before, best({"it": descend(D, d, family)}, 0, least=1)["it"].wall))


def costs(family: str, shapes: Sequence[tuple[int, int]]) -> Iterator[Cost]:
    """Of growing shapes, until the next would take too long if cost grew with D d."""
    last: Cost | None = None
    for D, d in shapes:
        if last and family != "srht" and last.seconds * D * d / last.D / last.d > LONGEST:
            return
        last = cost(family, D, d)
        yield last


def measured(shapes: Sequence[tuple[int, int]]) -> list[Cost]:
    """Of all families; short calls again and again, with all others between, as a machine is busy for a while."""
    found = [each for family in FAMILIES for each in costs(family, shapes)]
    for _ in range(TIMES - 1):
        found = [cost(*each) if each.seconds < SHORT else each for each in found]
    return found


def exponent(rows: Sequence[Cost], along: str) -> float:
    """The slope of a line through the last three points, on logarithms."""
    sizes, seconds = zip(*((getattr(row, along), row.seconds) for row in rows[-3:]), strict=True)
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def by_ranks() -> dict[str, float]:
    """The exponent of a step's time from one rank to sixteen, sixteen workers and two cores, for each mode."""
    rows = {(f"{row['mode']} {row['family']}", row["ranks"]): row for row in json.loads(RANKS.read_text())["ranks"]}
    names = dict.fromkeys(name for name, _ in rows)
    return {name: math.log(rows[name, 16]["step"] / rows[name, 1]["step"]) / math.log(16) for name in names}


def draw(rows: Sequence[Cost], sgd: float, path: Path) -> None:
    """Cost against d for every family, and a step of SGD as a line."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    for family in FAMILIES:
        points = [(row.d, 1e3 * row.seconds) for row in rows if row.family == family]
        axes.plot(*zip(*points, strict=True), color=COLOURS[family], marker="o", ms=4, lw=1.8, label=family)
    axes.axhline(1e3 * sgd, color="#1d2733", lw=1.2, ls=(0, (4, 3)))
    axes.annotate("a step of SGD,\nbatch 32", (1.2e5, 1e3 * sgd), (0, 4), textcoords="offset points", fontsize=9)
    axes.set(xscale="log", yscale="log", xlabel="directions d", ylabel="milliseconds of descend", xlim=(8, 4e5))
    axes.set_title(f"Cost of a random basis, D = {AT:,} (CNN on CIFAR-10), two cores", fontsize=10, loc="left")
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e3e8ee", lw=0.8)
    axes.set_axisbelow(True)
    figure.savefig(path, dpi=150)


def report(along_d: list[Cost], along_D: list[Cost], sgd: float) -> dict[str, Any]:
    """All figures, with the exponents, which are printed."""
    exponents: dict[str, dict[str, float]] = {"d": {}, "D": {}, "ranks": by_ranks()}
    for family in FAMILIES:
        for along, rows in (("d", along_d), ("D", along_D)):
            exponents[along][family] = exponent([row for row in rows if row.family == family], along)
    for along, found in exponents.items():
        print(f"exponent in {along}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()))
    grown = {"d": [row._asdict() for row in along_d], "D": [row._asdict() for row in along_D], "sgd": sgd}
    return {"exponents": exponents, "costs": grown}


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw cost against d there")
    options, before = parser.parse_args(), machine()
    sgd = best({"it": training_step("sgd", "srht", "numba")}, 3.0)["it"].wall
    along_d, along_D = measured([(AT, d) for d in DIMS]), measured([(D, FEW) for D in SIZES])
    for each in (*along_d, *along_D):
        print(f"{each.family:20} D = {each.D:>11,}  d = {each.d:>7,}  {1e3 * each.seconds:12.3f} ms")
    keep(options.json, before, **report(along_d, along_D, sgd))
    if options.picture:
        draw(along_d, sgd, options.picture)


if __name__ == "__main__":
    main()
