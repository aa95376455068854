"""The cost model of docs/scaling.md: fitted to benchmarks/communication.json, its tables and its picture made from it.

    T_step = T_grad + T_exchange + T_regeneration

Run it after benchmarks/communication.py: it writes the tables between the marks of the page again, so that no number in
them is copied by hand.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator
from pages import put, table
from pictures import STYLE

HERE = Path(__file__).parent
PAGE, PICTURE = HERE / "scaling.md", HERE / "scaling.png"
FIGURES = HERE.parent / "benchmarks" / "communication.json"
Row = dict[str, Any]

GREY = "#6b7785"
BLACK, BLUE, ORANGE, GREEN = "#000000", "#0072b2", "#e69f00", "#009e73"  # Okabe-Ito


def padded(size: float) -> int:
    """The length of srht's transform."""
    return 2 ** math.ceil(math.log2(size))


def butterflies(size: float) -> float:
    """N log2 N of a transform."""
    return padded(size) * math.log2(padded(size))


class Work(NamedTuple):
    """What all hosts do together in a step: how often each kind of thing."""

    gradients: float  # of a batch
    entries: float  # of normal directions
    once: float  # butterflies of srht where one operation needs them: `project`, `reconstruct`
    both: float  # the same of `descend`, where two transforms share their rows
    moved: float  # elements of updates that are added or laid before others
    ranks: float  # steps of a rank: everything that depends on no size


def work(mode: str, family: str, workers: int, D: int, d: int, ranks: int, nodes: int) -> Work:
    """The work of a step of the modes, as rbd_ref and rbd_mpi divide it."""
    independent, srht = mode == "independent", family == "srht"
    if not family:
        return Work(workers, 0, 0, 0, workers * D, ranks)
    rebuilt = (nodes - 1) * workers if independent else nodes  # each node rebuilds what none of its own ranks has
    descended, projected = (workers, 0) if independent else (0, workers)
    share = projected / workers if mode == "split" else projected  # of dense families, each its own directions
    moved = nodes * workers * D * (2 if ranks > nodes else 1) if independent else nodes * D
    if srht:
        n = butterflies(D)
        return Work(workers, 0, n * (projected + rebuilt), n * descended, moved, ranks)
    return Work(workers, d * D * (descended + share + rebuilt), 0, 0, moved, ranks)


@dataclass(frozen=True)
class Fit:
    """Constants by least squares of relative errors, the predictions and what was measured."""

    constants: np.ndarray
    predicted: np.ndarray
    measured: np.ndarray

    @property
    def errors(self) -> np.ndarray:
        """Relative."""
        return self.predicted / self.measured - 1


def fitted(features: Sequence[Sequence[float]], measured: Sequence[float]) -> Fit:
    """The constants that explain the measurements best; those that would be negative are 0."""
    table, times = np.array(features, dtype=float), np.array(measured, dtype=float)
    scale = np.abs(table).max(axis=0)
    used = np.flatnonzero(scale > 0)
    while True:
        scaled = table[:, used] / scale[used] / times[:, None]
        found = np.linalg.lstsq(scaled, np.ones(len(times)), rcond=None)[0]
        if (found > 0).all():
            break
        used = np.delete(used, found.argmin())
    constants = np.zeros(table.shape[1])
    constants[used] = found / scale[used]
    return Fit(constants, table @ constants, times)


def nodes_of(row: Row) -> int:
    """How many nodes the ranks of a measurement were divided into."""
    if "hosts" in row:
        return int(row["hosts"])
    return int(row["ranks"]) // int(row.get("ranks per node", row["ranks"]))


def fit_work(figures: Row) -> tuple[Fit, list[Row]]:
    """Processor time by work, over all measured steps but those of `sgd`, whose time goes into copies for MPI."""
    rows = [row for name in ("ranks", "nodes", "network", "hosts") for row in figures[name] if row["mode"] != "sgd"]
    features = [
        work(row["mode"], row["family"], row["workers"], figures["D"], figures["d"], row["ranks"], nodes_of(row))
        for row in rows
    ]
    return fitted(features, [row["core"] for row in rows]), rows


def rounds(mode: str, hosts: int) -> int:
    """Messages one after the other: doubling for an Allgather, halving and doubling for an Allreduce."""
    return math.ceil(math.log2(hosts)) * (2 if mode == "all-reduce" else 1)


def payload(mode: str, hosts: float, workers: float, D: float, d: float) -> float:
    """Bytes that each host has to receive in a step: coefficients and two numbers more of all workers elsewhere."""
    if mode == "all-reduce":
        return 2 * (hosts - 1) / hosts * 4 * D
    numbers = {"sgd": D, "split": math.ceil(d / workers)}.get(mode, d)
    return workers * (hosts - 1) / hosts * 4 * (numbers + 2)


def fit_exchange(figures: Row) -> tuple[Fit, list[Row]]:
    """Time of bare exchanges by rounds of messages and by the time that the bytes need at the link's rate."""
    rows = figures["hosts"]
    features = [
        (
            rounds(row["mode"], row["hosts"]),
            8 * payload(row["mode"], row["hosts"], row["workers"], figures["D"], figures["d"]) / row["rate"],
        )
        for row in rows
    ]
    return fitted(features, [row["bare"] for row in rows]), rows


@dataclass(frozen=True)
class Model:
    """The constants, and what they say of other sizes: one worker on each host."""

    entries: float  # of normals, a second and core
    butterflies: float  # of srht's transforms beyond the cache, a second and core
    latency: float  # seconds of a round of messages
    stretch: float  # how many times what the link would need
    rate: float  # bits a second
    cores: int

    def exchange(self, mode: str, workers: float, D: float, d: float) -> float:
        """Seconds; SGD by the ring, 2 (W - 1) messages of 4 D / W bytes."""
        if workers <= 1:
            return 0.0
        many = 2 * (workers - 1) if mode == "all-reduce" else math.ceil(math.log2(workers))
        return self.latency * many + self.stretch * 8 * payload(mode, workers, workers, D, d) / self.rate

    def regeneration(self, mode: str, family: str, workers: float, D: float, d: float, K: float = 1) -> float:
        """Seconds to make and use the worker's own directions, and then those of all others."""
        if not family:
            return 0.0
        bases = 1 + workers if mode == "independent" else 2.0
        if family == "normal":
            used = 1 + 1 / workers if mode == "split" else bases
            return used * (D / K * d) / self.entries / self.cores
        busy = self.cores if mode == "independent" else min(self.cores, K)  # a compartment has one thread
        return bases * K * butterflies(D / K) / self.butterflies / busy

    def step(self, mode: str, family: str, workers: float, D: float, d: float, K: float = 1) -> float:
        """Without the gradient."""
        return self.exchange(mode, workers, D, d) + self.regeneration(mode, family, workers, D, d, K)


def model_of(figures: Row) -> Model:
    """All constants: generator and network as fitted; srht at the largest size measured."""
    compute, _ = fit_work(figures)
    exchange, rows = fit_exchange(figures)
    large = max((row for row in figures["rates"] if row["family"] == "srht"), key=lambda row: row["D"])
    transform = butterflies(large["D"]) / max(large["project"], large["reconstruct"])
    latency, stretch = exchange.constants.tolist()
    return Model(1 / compute.constants[1], transform, latency, stretch, rows[0]["rate"], figures["cores"])


def spell(seconds: float) -> str:
    """A time with the unit that fits."""
    for name, size in (("years", 3.156e7), ("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= 2 * size or (name == "s" and seconds >= 1):
            value = seconds / size
            return f"{value:,.0f} {name}" if value >= 10 else f"{value:.1f} {name}"
    return f"{1e3 * seconds:.3g} ms"


def spell_bytes(count: float) -> str:
    """A number of bytes with the unit that fits."""
    for name, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return f"{count:.0f} B"


def label(row: Row) -> str:
    """The name of a case."""
    return f"{row['mode']}, {row['family']}" if row["family"] else f"SGD, {row['mode'].replace('sgd', 'Allgather')}"


def ranks_table(figures: Row) -> str:
    """Steps on this machine: bytes, then for each number of ranks the three parts of a step."""
    counts = sorted({row["ranks"] for row in figures["ranks"]})
    found = {(label(row), row["ranks"]): row for row in figures["ranks"]}
    lines = []
    for name in dict.fromkeys(label(row) for row in figures["ranks"]):
        several = [found[name, count] for count in counts]
        sent = several[-1]["bytes"]
        cells = [
            " / ".join(f"{1e3 * row[part]:,.0f}" for part in ("propose", "allgather", "reconstruct"))
            + f" ({1 / row['step']:.1f})"
            for row in several
        ]
        lines.append([name, f"{sent:,.0f}", f"{4 * figures['D'] / sent:,.0f}", *cells])
    return table(["", "bytes", "4 D is", *(f"{count} rank{'s' * (count > 1)}" for count in counts)], lines)


def ratio_table(figures: Row) -> str:
    """One process beside ranks."""
    lines = []
    for row in figures["ratio"]:
        alone, ranks = (1e3 * step for step in row["step"])
        core = row["core"][1] / row["core"][0]
        lines.append([label(row), f"{alone:,.0f} ms", f"{ranks:,.0f} ms", f"{ranks / alone:.2f}", f"{core:.2f}"])
    cores = figures["ratio"][0]["ranks"]
    return table(["", f"one process, {cores} threads", f"{cores} ranks", "ratio", "of processor time"], lines)


def nodes_table(figures: Row) -> str:
    """What it is worth that ranks of a node rebuild together."""
    lines = [
        [label(row), row["ranks per node"], f"{1e3 * row['core']:,.0f} ms", f"{1e3 * row['step']:,.0f} ms"]
        for row in sorted(figures["nodes"], key=lambda row: row["family"])
    ]
    return table(["", "ranks in a node", "processor time of a step", "step"], lines)


def exchange_table(figures: Row) -> str:
    """Exchanges through the memory of a node, and from rank to rank."""
    lines = []
    for ours in figures["exchange"]:
        if ours["ranks per node"] == 1:
            continue
        (other,) = (
            row
            for row in figures["exchange"]
            if row["ranks per node"] == 1 and (label(row), row["ranks"]) == (label(ours), ours["ranks"])
        )
        cells = [f"{1e3 * row['bare']:.3g} ms, {row['received']:,.0f} B" for row in (ours, other)]
        lines.append([label(ours), ours["ranks"], *cells])
    lines.sort(key=lambda line: line[0])
    return table(["", "ranks", "through memory", "from rank to rank"], lines)


def wire_table(figures: Row) -> str:
    """What went over the links, and the time of steps."""
    places = list(dict.fromkeys((row["hosts"], row["ranks"], row["rate"]) for row in figures["network"]))
    found = {(label(row), row["hosts"], row["ranks"], row["rate"]): row for row in figures["network"]}
    lines = []
    for name in dict.fromkeys(label(row) for row in figures["network"]):
        several = [found[(name, *place)] for place in places]
        cells = [
            f"{row['wire']['bytes'] / row['hosts']:,.0f} B, {1e3 * row['allgather']:,.1f} / {1e3 * row['step']:,.0f} ms"
            for row in several
        ]
        lines.append([name, *cells])
    heads = [f"{hosts} hosts, {ranks} ranks, {rate / 1e6:,.0f} Mbit/s" for hosts, ranks, rate in places]
    return table(["", *heads], lines)


def hosts_table(figures: Row) -> str:
    """Bare exchanges between more and more hosts: measured, and by the model."""
    fit, rows = fit_exchange(figures)
    found = {(label(row), row["hosts"]): (row, by) for row, by in zip(rows, fit.predicted.tolist(), strict=True)}
    counts = sorted({row["hosts"] for row in rows})
    lines = []
    for name in dict.fromkeys(label(row) for row in rows):
        several = [found[name, count] for count in counts]
        sent = [f"{row['wire']['bytes'] / row['hosts']:,.0f} B" for row, _ in several]
        times = [f"{1e3 * row['bare']:.1f} ({1e3 * by:.1f}) ms" for row, by in several]
        lines.append([name, *(f"{a}, {b}" for a, b in zip(sent, times, strict=True))])
    return table(["", *(f"{count} hosts" for count in counts)], lines)


def constants_table(figures: Row) -> str:
    """What was fitted, and how well it fits."""
    compute, _ = fit_work(figures)
    exchange, _ = fit_exchange(figures)
    g, entry, once, both, moved, rank = compute.constants.tolist()
    latency, stretch = exchange.constants.tolist()
    rows = [
        ("gradient of a batch of 32, D = 101,770", f"{1e3 * g:.2f} ms"),
        ("normal entries", f"{1e-6 / entry:,.0f} million a second and core"),
        ("srht, `project` or `reconstruct`", f"{1e-6 / once:,.0f} million butterflies a second and core"),
        ("srht, `descend`", f"{1e-6 / both:,.0f} million butterflies (of one transform) a second and core"),
        ("adding updates", f"{1e9 * moved:.2f} ns an element"),
        ("a rank's step", f"{1e3 * rank:.2f} ms of processor time"),
        (
            "a round of messages",
            f"{1e3 * latency:.2f} ms, of which the link's delay is {1e3 * figures['hosts'][0]['delay']:g} ms",
        ),
        ("bytes", f"{stretch:.2f} times what the link alone would need"),
    ]
    return table(["constant", "fitted"], rows)


def residuals(figures: Row) -> str:
    """A sentence on how far the fits are off."""
    parts = []
    for name, (fit, rows) in (
        ("processor times of steps", fit_work(figures)),
        ("bare exchanges", fit_exchange(figures)),
    ):
        off = np.abs(fit.errors)
        worst = rows[int(off.argmax())]
        parts.append(
            f"{len(rows)} {name}: off by {100 * np.median(off):.0f} % in the median, {100 * off.max():.0f} % at worst "
            f"({label(worst)}, {worst['ranks']} ranks)"
        )
    return "Residuals: " + "; ".join(parts) + "."


LARGE, MANY, DIRECTIONS, PARTS = 10**9, 1000, 10_000, 1000
CASES = (
    ("all-reduce", "", 1, "SGD, ring all-reduce"),
    ("sgd", "", 1, "SGD as here, all gradients to all"),
    ("independent", "normal", 1, "independent, normal"),
    ("independent", "srht", 1, "independent, srht"),
    ("shared", "normal", 1, "shared, normal"),
    ("shared", "normal", PARTS, f"shared, normal, {PARTS:,} compartments"),
    ("shared", "srht", 1, "shared, srht"),
    ("split", "normal", PARTS, f"split, normal, {PARTS:,} compartments"),
    ("split", "srht", 1, "split, srht"),
    ("split", "srht", PARTS, f"split, srht, {PARTS:,} compartments"),
)


def large_table(figures: Row) -> str:
    """10^9 parameters on 1,000 workers."""
    model = model_of(figures)
    sgd, lines = model.step("all-reduce", "", MANY, LARGE, DIRECTIONS), []
    for mode, family, K, name in CASES:
        received = payload(mode, MANY, MANY, LARGE, DIRECTIONS)
        exchange = model.exchange(mode, MANY, LARGE, DIRECTIONS)
        again = model.regeneration(mode, family, MANY, LARGE, DIRECTIONS, K)
        ratio = sgd / (exchange + again)
        faster = f"{ratio:.3g} x as fast" if ratio >= 1 else f"{1 / ratio:,.3g} x slower"
        lines.append(
            [
                name,
                spell_bytes(received),
                spell(exchange),
                spell(again) if again else "",
                "" if mode == "all-reduce" else faster,
            ]
        )
    return table(["", "received by a host", "exchange", "regeneration", "against SGD"], lines)


def ends(axes: Axes, x: np.ndarray, y: Sequence[float], text: str, colour: str, shift: float = 0) -> None:
    """The name of a line at its right end."""
    axes.annotate(text, (x[-1], y[-1]), (6, shift), textcoords="offset points", color=colour, fontsize=8.5, va="center")


def measured_panel(axes: Axes, figures: Row, model: Model) -> None:
    """Bare exchanges between hosts: points measured, lines by the model."""
    hosts, D, d = np.geomspace(2, 1000, 100), figures["D"], figures["d"]
    fit, _ = fit_exchange(figures)
    latency, stretch = fit.constants
    for mode, name, colour, marker, shift in (
        ("sgd", "SGD, all gradients to all", GREY, "s", 0),
        ("all-reduce", "SGD, all-reduce", BLACK, "D", -7),
        ("independent", "independent, shared", BLUE, "o", 7),
        ("split", "split", GREEN, "^", 0),
    ):
        by = [
            latency * math.log2(h) * (2 if mode == "all-reduce" else 1)
            + stretch * 8 * payload(mode, h, h, D, d) / model.rate
            for h in hosts
        ]
        axes.plot(hosts, by, color=colour, lw=1.6)
        ends(axes, hosts, by, name, colour, shift)
        points = [(row["hosts"], row["bare"]) for row in figures["hosts"] if row["mode"] == mode]
        axes.plot(*zip(*points, strict=True), ls="", marker=marker, ms=6, color=colour, mec="white", mew=0.8, zorder=3)
    axes.set_title(f"the exchange, measured (points) and fitted\nD = {D:,}, d = {d}", fontsize=10, loc="left")


def large_panel(axes: Axes, model: Model) -> None:
    """Whole steps without the gradient, by the model alone."""
    workers = np.geomspace(2, 10_000, 100)
    for mode, family, K, name, colour, style in (
        ("independent", "normal", 1, "independent, normal", BLUE, "-"),
        ("independent", "srht", 1, "independent, srht", BLUE, (0, (4, 2))),
        ("shared", "normal", 1, "shared, normal", ORANGE, "-"),
        ("all-reduce", "", 1, "SGD, ring all-reduce", BLACK, "-"),
        ("shared", "srht", 1, "shared, srht", ORANGE, (0, (4, 2))),
        ("split", "srht", PARTS, f"split, srht,\n{PARTS:,} compartments", GREEN, (0, (4, 2))),
    ):
        by = [model.step(mode, family, w, LARGE, DIRECTIONS, K) for w in workers]
        axes.plot(workers, by, color=colour, ls=style, lw=1.6 if family else 2.2)
        ends(axes, workers, by, name, colour)
    title = f"a step without its gradient, extrapolated\n$D=10^9$, $d={DIRECTIONS:,}$, {model.cores} cores a host"
    axes.set_title(title.replace(f"{DIRECTIONS:,}", "10^4"), fontsize=10, loc="left")


TIMES = (
    (1e-3, "1 ms"),
    (1e-2, "10 ms"),
    (0.1, "0.1 s"),
    (1, "1 s"),
    (60, "1 min"),
    (3600, "1 h"),
    (86400, "1 day"),
    (3.156e7, "1 year"),
)


def draw(figures: Row) -> None:
    """The picture."""
    mpl.use("Agg")
    model = model_of(figures)
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4.4), layout="constrained")
        measured_panel(left, figures, model)
        large_panel(right, model)
        for axes in (left, right):
            axes.set(xscale="log", yscale="log", xlabel="workers, one on each host with a link of 100 Mbit/s")
            low, high = axes.get_ylim()
            shown = [(seconds, text) for seconds, text in TIMES if low <= seconds <= high]
            axes.set_yticks([seconds for seconds, _ in shown], [text for _, text in shown])
            axes.yaxis.set_minor_locator(NullLocator())
            axes.grid(axis="y", color="#e3e8ee", lw=0.8)
            axes.set_axisbelow(True)
        figure.savefig(PICTURE, dpi=150)


TABLES: dict[str, Callable[[Row], str]] = {
    "ranks": ranks_table,
    "ratio": ratio_table,
    "nodes": nodes_table,
    "wire": wire_table,
    "exchange": exchange_table,
    "hosts": hosts_table,
    "constants": constants_table,
    "residuals": residuals,
    "large": large_table,
}


def main() -> None:
    """Write the tables of the page and draw its picture."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    figures = json.loads(FIGURES.read_text())
    put(PAGE, {name: make(figures) for name, make in TABLES.items()})
    draw(figures)


if __name__ == "__main__":
    main()
