"""How much of the gradient's energy each tensor has along a run, beside its share of the parameters.

    share of tensor tau = |g_tau|^2 / |g|^2,   share of the parameters = D_tau / D

A tensor whose share of the energy is above its share of the parameters gains from compartments of its own: directions
over all parameters spend most of their length elsewhere.
Tests: tests/test_analysis.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rbd_ref._types import Float32Array
from rbd_ref.analysis.restored import chosen_steps, epoch_gradient, gradients, restore, tensor_sizes, tensors
from rbd_ref.methods.base import sum_rows
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.recorded import RecordedRun

POINTS = 20


@dataclass(frozen=True)
class Spectrum:
    """Shares of the gradient's energy.

    tensors     a name for each: its layer, and its shape
    parameters  its share of D
    steps       the steps that were looked at
    energy      a row for each of these: the share of |g|^2 of each tensor, 0 where g is 0
    """

    tensors: list[str]
    parameters: list[float]
    steps: list[int]
    energy: list[list[float]]

    @property
    def mean(self) -> list[float]:
        """The share of each tensor, the mean over steps."""
        return [float(value) for value in np.mean(self.energy, axis=0)]


def measure_spectrum(
    run: RecordedRun, steps: Sequence[int] | None = None, *, epoch_gradients: bool = False
) -> Spectrum:
    """|g_tau|^2 / |g|^2 of each tensor tau along a run.

    Args:
        run: as `rbd_ref.open_run` gives it.
        steps: where gradients are taken; 20 evenly over the run where none are named.
        epoch_gradients: whether g is the mean gradient of all batches of the epoch, and not that of the step's batches.

    Returns:
        a `Spectrum`.

    Raises:
        rbd_ref.RunError: a step that the journal does not have.

    Examples:
        >>> import rbd_ref, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> _ = rbd_ref.fit(rbd_ref.Config(net="mlp:64-10", dims=50, family="srht", steps=3), out=folder)
        >>> found = measure_spectrum(rbd_ref.open_run(folder), [0, 2])
        >>> found.tensors, [round(share, 3) for share in found.parameters]
        (['1: 64x10', '1: 10'], [0.985, 0.015])
        >>> [round(sum(row), 6) for row in found.energy]
        [1.0, 1.0]
    """
    experiment = run.experiment
    chosen = chosen_steps(run, steps, POINTS)
    energy = [_shares(experiment, theta, t, epoch_gradients) for t, theta in restore(run, chosen)]
    sizes = tensor_sizes(experiment)
    return Spectrum(tensor_names(experiment), [size / sum(sizes) for size in sizes], chosen, energy)


def _shares(experiment: Experiment, theta: Float32Array, t: int, epoch: bool) -> list[float]:
    """The share of each tensor at a step."""
    g = epoch_gradient(experiment, theta, t) if epoch else sum_rows(gradients(experiment, theta, t))
    squares = [float(np.sum(part * part)) for part in tensors(experiment, g.astype(np.float64))]
    whole = sum(squares)
    return [square / whole if whole else 0.0 for square in squares]


def tensor_names(experiment: Experiment) -> list[str]:
    """The layer of each tensor, from 1 on, and its shape."""
    problem = experiment.problem
    layers = [number for number, layer in enumerate(problem.layers, 1) for _ in layer]
    pairs = zip(layers, problem.shapes, strict=True)
    return [f"{layer}: {'x'.join(map(str, shape))}" for layer, shape in pairs]
