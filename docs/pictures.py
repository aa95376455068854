"""The pictures of the README and of docs/: `make pictures` draws them again."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import rbd_ref as rbd
from rbd_ref import train
from rbd_ref.conformance.cases import pseudo_random
from rbd_ref.runs import folder as runs
from rbd_ref.spec.families import FAMILIES

HERE = Path(__file__).parent
INK, PALE, ACCENT, SECOND = "#1d2733", "#eef2f6", "#0b6e99", "#d1495b"
COLOURS = dict(zip(FAMILIES, ("#0b6e99", "#3aa17e", "#e3a008", "#9aa5b1", "#8f5fbf", "#d1495b"), strict=True))
STYLE = {
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
}


def machine(axes: Axes, x: float, title: str, lines: list[str]) -> None:
    """A box with the directions that this machine makes from the seed."""
    axes.add_patch(FancyBboxPatch((x, 0.6), 3.9, 5.6, boxstyle="round,pad=0.15", facecolor=PALE, edgecolor=INK))
    axes.text(x + 1.95, 5.95, title, ha="center", va="center", weight="bold")
    phi = rbd.Basis(rbd.compartments.whole(24, d=10), seed=42).directions(range(10), step=7)
    axes.imshow(phi, cmap="PuOr", vmin=-3, vmax=3, extent=(x + 0.25, x + 3.65, 2.9, 4.95), aspect="auto", zorder=3)
    axes.text(x + 1.95, 5.3, "seed 42, step 7  →  directions φ", ha="center", va="center", fontsize=8.5)
    for number, line in enumerate(lines):
        axes.text(x + 1.95, 2.3 - 0.62 * number, line, ha="center", va="center", fontsize=9)


def exchange(axes: Axes) -> None:
    """Two machines make the same directions; d numbers travel between them."""
    machine(axes, 0.2, "one machine", ["gradient g  (D numbers)", "$a_i=\\langle\\varphi_i,g\\rangle/|\\varphi_i|^2$"])
    machine(axes, 7.9, "any other", ["$u=\\sum_i a_i\\,\\varphi_i$", "the same update, to the bit"])
    axes.add_patch(FancyArrowPatch((4.4, 1.7), (7.6, 1.7), arrowstyle="-|>", mutation_scale=18, color=SECOND, lw=2))
    axes.text(6.0, 2.05, "d coefficients", ha="center", color=SECOND, weight="bold")
    axes.text(6.0, 1.4, "and nothing else:\nno weights, no directions", ha="center", va="top", fontsize=9)
    axes.set(xlim=(0, 12), ylim=(0.2, 6.6))
    axes.set_axis_off()


def cosine(family: str, D: int, d: int, repeats: int) -> float:
    """Mean cosine between g and its update."""
    basis, g = rbd.Basis(rbd.compartments.whole(D, d=d), seed=1, family=family), pseudo_random(3, D)
    updates = (basis.descend(g, step=step)[1].astype(np.float64) for step in range(repeats))
    return float(np.mean([u @ g / np.linalg.norm(u) / np.linalg.norm(g) for u in updates]))


def approximation(axes: Axes) -> None:
    """How near d directions come to the gradient, and sqrt(d / D)."""
    D, dims = 4096, [1, 4, 16, 64, 256, 1024, 4096]
    axes.plot(dims, [np.sqrt(d / D) for d in dims], color=INK, lw=1, ls=(0, (4, 3)), label=r"$\sqrt{d/D}$")
    for family in FAMILIES:
        values = [cosine(family, D, d, 60 if d < 256 else 6) for d in dims]
        axes.plot(dims, values, marker="o", ms=4, lw=1.4, color=COLOURS[family], label=family)
    axes.set(xscale="log", yscale="log", xlabel=f"directions d, of D = {D:,}", ylabel="cosine of update and gradient")
    axes.set_title("how much of the gradient d directions hold", fontsize=10, loc="left")
    axes.legend(frameon=False, fontsize=8)


def curve(folder: Path, *flags: str) -> tuple[list[float], list[float]]:
    """Epochs and validation accuracies, in per cent, of a run on the digits."""
    if train.main([*flags, "--quiet", "--out", str(folder)]):
        raise SystemExit(f"the run with {' '.join(flags)} did not end well")
    lines = [values for values, _ in runs.metrics(folder / "metrics.jsonl") if values["kind"] == "evaluation"]
    return [line["epoch"] for line in lines], [100 * line["validation_accuracy"] for line in lines]


def training(axes: Axes) -> None:
    """The methods on the digits, each with its default rate."""
    kinds = {
        "sgd": ["--method", "sgd"],
        "rbd, then sgd": ["--switch", "20:sgd"],
        "rbd": [],
        "fpd": ["--method", "fpd"],
        "nes": ["--method", "nes"],
    }
    with TemporaryDirectory() as folder:
        for (name, flags), colour in zip(kinds.items(), (INK, "#8f5fbf", ACCENT, "#3aa17e", "#e3a008"), strict=True):
            epochs, accuracies = curve(Path(folder) / name, *flags)
            axes.plot(epochs, accuracies, lw=1.6, color=colour, label=f"{name}: {accuracies[-1]:.1f} %")
    axes.set(xlabel="epoch", ylabel="validation accuracy, %", ylim=(0, 100))
    axes.set_title("digits, fc, D = 9,610, d = 250: what the methods reach", fontsize=10, loc="left")
    axes.legend(frameon=False)


def main() -> None:
    """Draw everything."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    mpl.use("Agg")
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.9), width_ratios=(1.45, 1), layout="constrained")
        exchange(left)
        approximation(right)
        figure.savefig(HERE / "idea.png", dpi=150)
        figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
        training(axes)
        figure.savefig(HERE / "training.png", dpi=150)


if __name__ == "__main__":
    main()
