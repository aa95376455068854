"""One look for all figures of the tutorial: small, labelled, crisp, and made by the code on the page.

axes = panel("step", "loss")                     one set of axes
left, right = panels(("d", "cosine"), ("step", "loss"))
"""

from __future__ import annotations

import matplotlib.pyplot as plt
from IPython import get_ipython
from matplotlib.axes import Axes
from matplotlib_inline.backend_inline import set_matplotlib_formats

COLOURS = {
    "rbd": "#0b6e99",
    "fpd": "#c4621b",
    "memory": "#2a7f3f",
    "other": "#9a3b7f",
    "sgd": "#555555",
    "sixth": "#c2a000",
}
LOOK = {
    "axes.grid": True,
    "axes.prop_cycle": plt.cycler(color=list(COLOURS.values())),  # a figure has at most six lines
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "grid.alpha": 0.25,
    "legend.edgecolor": "none",
    "legend.framealpha": 0.85,
    "svg.hashsalt": "rbd",
}

set_matplotlib_formats("svg", metadata={"Date": None})
plt.rcParams.update(LOOK)
get_ipython().ast_node_interactivity = "none"  # what a cell shows, it prints or draws


def panels(*labels: tuple[str, str], width: float = 7.2, height: float = 3.0) -> list[Axes]:
    """Axes side by side, one for each pair of labels (x, y)."""
    _, found = plt.subplots(1, len(labels), figsize=(width, height), squeeze=False)
    for axes, (x, y) in zip(found[0], labels, strict=True):
        axes.set(xlabel=x, ylabel=y)
    return list(found[0])


def panel(x: str, y: str, width: float = 5.2, height: float = 3.0) -> Axes:
    """One set of axes."""
    return panels((x, y), width=width, height=height)[0]
