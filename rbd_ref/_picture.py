"""Pictures: an empty figure, and some directions with their Gram matrix. matplotlib is an extra, imported when drawing.

May import: nothing of rbd_ref but _types.
Tests: tests/test_basis.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rbd_ref._types import F32, Float32Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 512  # elements of a direction that are shown, evenly over all


def gram(phi: Float32Array) -> Float32Array:
    """The cosines of all pairs of directions, <phi_i, phi_j> / (|phi_i| |phi_j|); 0 of one that is 0."""
    norms = np.linalg.norm(phi, axis=1, keepdims=True)
    unit = phi / np.where(norms == 0, 1, norms)
    return (unit @ unit.T).astype(F32)


def empty_figure(width: float, height: float) -> Figure:
    """An empty one of so many inches, which belongs to nobody else: pyplot would keep it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"matplotlib is missing ({error}), expected it for a picture: pip install 'rbd-ref[plot]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def draw(phi: Float32Array, title: str) -> Figure:
    """The directions as rows, and beside them their Gram matrix."""
    figure = empty_figure(11, 4)
    left, right = figure.subplots(1, 2, width_ratios=[2, 1])
    columns = np.linspace(0, phi.shape[1] - 1, min(phi.shape[1], COLUMNS)).astype(np.int64)
    most = float(np.abs(phi).max())
    rows = left.imshow(phi[:, columns], aspect="auto", cmap="RdBu", vmin=-most, vmax=most, interpolation="nearest")
    cosines = right.imshow(gram(phi), cmap="RdBu", vmin=-1, vmax=1, interpolation="nearest")
    left.set(title=title, xlabel=f"element ({columns.size:,} of {phi.shape[1]:,})", ylabel="direction")
    right.set(title="cosines of directions", xlabel="direction", ylabel="direction")
    figure.colorbar(rows, ax=left)
    figure.colorbar(cosines, ax=right)
    return figure
