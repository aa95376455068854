"""The pictures of the analyses. matplotlib is an extra, and imported when a picture is drawn.

Tests: tests/test_analysis.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from rbd_ref._picture import empty_figure
from rbd_ref.analysis.correlation import Correlation, Cosines
from rbd_ref.analysis.cosines import PairCosines, expected_cosine_of_pair, sphere
from rbd_ref.analysis.dimension import Dimension, Trial
from rbd_ref.analysis.landscape import UNITS, LandscapeCurve
from rbd_ref.analysis.spectrum import Spectrum
from rbd_ref.runs.files import write_whole
from rbd_ref.spec.families import FAMILIES, parse_family

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

INK = "#1d2733"
PALE = "#9aa5b1"
ACCENT = "#0b6e99"
SECOND = "#d1495b"
COLOURS = dict(zip(FAMILIES, (ACCENT, "#3aa17e", "#e3a008", PALE, "#8f5fbf", SECOND), strict=True))
DASHED = (0, (4, 3))
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "figure.facecolor": "white",
}
PAPER = (1e5, 0.02)  # D, and the mean |cosine| that the paper reads off its figure there
CURVE = 200  # points of an analytic curve


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """A drawing in the style of this file; without matplotlib, the sentence of `empty_figure`."""

    @wraps(draw)
    def drawn(*arguments: P.args, **named: P.kwargs) -> Figure:
        empty_figure(1, 1)
        from matplotlib import rc_context

        with rc_context(STYLE):
            return draw(*arguments, **named)

    return drawn


def save(figure: Figure, path: Path) -> None:
    """As PNG, whole, or what was there before."""
    write_whole(path, lambda file: figure.savefig(file, format="png", dpi=150), flag="--picture")


def colour(family: str) -> str:
    """That of a family, whatever its window."""
    return COLOURS[parse_family(family).name]


# |cosine| of pairs


@styled
def draw_cosines(found: Sequence[PairCosines]) -> Figure:
    """A panel for each family: mean and quantiles over pairs against D, on the analytic curve."""
    families = list(dict.fromkeys(point.family for point in found))
    columns = min(3, len(families))
    rows = -(-len(families) // columns)
    figure = empty_figure(max(5.5, 3.5 * columns), 0.6 + 2.7 * rows)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    means = [point.mean for point in found if point.mean]
    panels[0, 0].set(xscale="log", yscale="log", ylim=(min([PAPER[1] / 10, *means]) / 3, 1.5))
    for axes, family in zip(panels.flat, families, strict=False):
        _family_cosines(axes, [point for point in found if point.family == family])
    for axes in panels.flat[len(families) :]:
        axes.set_axis_off()
    for n in range(len(families)):
        panels.flat[n].xaxis.set_tick_params(labelbottom=n + columns >= len(families))
    figure.supxlabel("D, elements of a direction", fontsize=10)
    figure.supylabel("|cos| of two directions", fontsize=10)
    figure.legend(*_all_labels(panels), loc="outside upper center", ncols=5)
    return figure


def _all_labels(panels: Any) -> tuple[list[Any], list[str]]:
    """What is drawn in any of the panels, once."""
    pairs = [pair for axes in panels.flat for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    known = {label: handle for handle, label in pairs}
    return list(known.values()), list(known)


def _family_cosines(axes: Axes, points: Sequence[PairCosines]) -> None:
    """A family, in its panel."""
    family = points[0].family
    sizes = [point.D for point in points]
    grid = np.unique(np.geomspace(min(sizes), max(sizes), CURVE).round().astype(int)).tolist()
    tiny = axes.get_ylim()[0] / 10  # stands in for 0, which has no place on this axis
    low = [max(tiny, point.quantiles[0]) for point in points]
    high = [max(tiny, point.quantiles[-1]) for point in points]
    curve = [expected_cosine_of_pair(D, family) or math.nan for D in grid]
    axes.vlines(sizes, low, high, color=PALE, alpha=0.6, lw=3, label="5 % to 95 % of the pairs")
    axes.plot(grid, [sphere(D) for D in grid], color=INK, lw=1, ls=DASHED, label=r"$\sqrt{2/(\pi D)}$")
    axes.plot(grid, curve, color=SECOND, lw=1.6, label="E|cos|, analytic")
    axes.plot(sizes, [point.mean or math.nan for point in points], "o", color=ACCENT, ms=4, label="mean over pairs")
    if parse_family(family).name == "normal" and sizes[0] <= PAPER[0] <= sizes[-1]:
        axes.plot(*PAPER, "x", color=INK, ms=8, mew=2, label="the paper: 0.02 at D = 10⁵")
    axes.set_title(family)


# Update and gradient


@styled
def draw_correlation(found: Correlation) -> Figure:
    """Cosine of update and gradient along a run: whole vectors on the left, the mean over tensors on the right."""
    figure = empty_figure(11, 4.2)
    panels = figure.subplots(1, 2, sharey=True, squeeze=False)
    left, right = panels.flat
    _correlation(left, found, lambda cosines: cosines.whole)
    _correlation(right, found, lambda cosines: cosines.tensors)
    left.set(ylabel="cosine of update and gradient", title=f"whole vectors, D = {found.D:,}, d = {found.directions:,}")
    right.set(title="mean over tensors, the paper's correlation")
    figure.legend(*_all_labels(panels), loc="outside lower center", ncols=4)
    return figure


def _correlation(axes: Axes, found: Correlation, pick: Callable[[Cosines], float]) -> None:
    """One kind of cosine along the run."""
    lines: list[tuple[str, list[Cosines | None], dict[str, Any]]] = [
        (
            "with the step's gradient",
            [step.measured for step in found.steps],
            {"color": ACCENT, "marker": "o", "ms": 4},
        ),
        (
            "with the epoch's gradient",
            [step.epoch for step in found.steps],
            {"color": "#3aa17e", "marker": "s", "ms": 4},
        ),
        (
            "expected of the step's gradient",
            [step.expected for step in found.steps],
            {"color": SECOND, "lw": 2, "alpha": 0.7},
        ),
    ]
    for label, values, how in lines:
        pairs = zip(found.steps, values, strict=True)
        kept = [(step.step, pick(value)) for step, value in pairs if value is not None]
        if kept:
            axes.plot(*zip(*kept, strict=True), label=label, **how)
    label = r"$\sqrt{d/D}$" + f" = {found.root:.3g}"
    axes.axhline(found.root, color=INK, lw=1, ls=DASHED, label=label, zorder=1)
    axes.set(xlabel="step")


# The loss along directions


@styled
def draw_landscape(found: Sequence[LandscapeCurve]) -> Figure:
    """Mean and band of the loss along directions: a column for each step, a row for each unit."""
    steps = list(dict.fromkeys(curve.step for curve in found))
    figure = empty_figure(max(9, 2.9 * len(steps)), 5.8)
    panels = figure.subplots(len(UNITS), len(steps), sharey="col", sharex="row", squeeze=False)
    for curve in found:
        _landscape(panels[UNITS.index(curve.unit), steps.index(curve.step)], curve)
    for axes, step in zip(panels[0], steps, strict=True):
        axes.set_title(f"after step {step:,}")
    for row, words in zip(panels, (r"$\theta + s\,\varphi$:  s", r"$\theta + s\,\varphi/|\varphi|$:  s"), strict=True):
        row[0].set_ylabel("loss")
        for axes in row:
            axes.set_xlabel(words)
            axes.locator_params("x", nbins=4)
    figure.legend(*_all_labels(panels), loc="outside upper center", ncols=6)
    return figure


def _landscape(axes: Axes, curve: LandscapeCurve) -> None:
    """Mean and band of a family."""
    shade = colour(curve.family)
    axes.fill_between(curve.displacements, curve.low, curve.high, color=shade, alpha=0.13, lw=0)
    axes.plot(curve.displacements, curve.mean, color=shade, lw=1.5, label=curve.family)


# Intrinsic dimension


@styled
def draw_dimension(found: Dimension) -> Figure:
    """Accuracy against d, the share of SGD's that counts, and where it is reached."""
    figure = empty_figure(8, 4.4)
    axes = figure.subplots()
    ds = [trial.d for trial in found.trials]
    low = found.low or ds[0]
    high = found.high or ds[-1]
    axes.axvspan(low, high, color="#fdf1d6", lw=0, label=f"interval: {found.low or '?'} to {found.high or '?'}")
    axes.axhline(100 * found.sgd.mean, color=INK, lw=1.2, label=f"SGD: {found.sgd.mean:.1%}")
    axes.axhline(
        100 * found.threshold, color=INK, lw=1, ls=DASHED, label=f"{found.share:.0%} of SGD: {found.threshold:.1%}"
    )
    axes.errorbar(
        ds,
        [100 * trial.mean for trial in found.trials],
        100 * np.array([_spread(trial) for trial in found.trials]).T,
        fmt="o-",
        color=ACCENT,
        ms=4,
        lw=1.3,
        label=f"{found.method}: mean of {len(found.sgd.accuracies)} seeds, least to most",
    )
    if found.estimate is not None:
        axes.axvline(found.estimate, color=SECOND, lw=1.2, label=f"d = {found.estimate:,}")
    axes.set(xscale="log", xlabel="directions d", ylabel="validation accuracy, %", title=f"D = {found.D:,}")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _spread(trial: Trial) -> tuple[float, float]:
    """How far the seeds lie below and above their mean."""
    return trial.mean - min(trial.accuracies), max(trial.accuracies) - trial.mean


# The gradient's energy


@styled
def draw_spectrum(found: Spectrum) -> Figure:
    """A row for each tensor: its shares on the left, and on the right how often its share of D they are, by step."""
    rows = len(found.tensors)
    figure = empty_figure(11, 1.7 + 0.3 * max(6, rows))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.2, 1))
    y = np.arange(rows)
    energy = np.array(found.energy).T
    left.hlines(y, energy.min(axis=1), energy.max(axis=1), color=ACCENT, lw=4, alpha=0.3)
    left.plot(found.mean, y, "o", color=ACCENT, label="of the gradient's energy: mean and range over steps")
    left.plot(found.parameters, y, "|", color=SECOND, ms=13, mew=2, label="of the parameters")
    left.set(yticks=y, yticklabels=found.tensors, xscale="log", xlabel="share", ylabel="layer: tensor")
    left.set_ylim(rows - 0.5, -0.5)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    _ratios(right, found, energy)
    return figure


def _ratios(axes: Axes, found: Spectrum, energy: Any) -> None:
    """The share of the energy over that of the parameters, on a logarithmic scale with 1 in the middle."""
    with np.errstate(divide="ignore"):
        ratios = np.log10(energy / np.array(found.parameters)[:, np.newaxis])
    most = max(0.1, float(np.max(np.abs(ratios[np.isfinite(ratios)]), initial=0)))
    picture = axes.imshow(ratios, aspect="auto", cmap="RdBu_r", vmin=-most, vmax=most, interpolation="nearest")
    shown = sorted({round(k) for k in np.linspace(0, len(found.steps) - 1, 6)})
    axes.set(xticks=shown, xticklabels=[f"{found.steps[k]:,}" for k in shown], xlabel="step")
    bar = axes.figure.colorbar(picture, ax=axes, label="share of |g|² / share of D", ticks=_ticks(most))
    bar.ax.set_yticklabels([f"{10**tick:.3g}" for tick in bar.get_ticks()])


def _ticks(most: float) -> list[float]:
    """Of a logarithmic scale on both sides of 1: powers of ten or, where it is short, its ends."""
    powers = [float(k) for k in range(math.ceil(-most), math.floor(most) + 1)]
    return powers if len(powers) > 1 else [-most, 0.0, most]
