"""The loss around the weights of a run, along random directions of each family.

    drawn      L(theta + s phi)            the direction as it is drawn: s counts multiples of its length
    distance   L(theta + s phi / |phi|)    s is the distance from theta

The length of a direction is about sqrt(D) for `normal`, `rademacher` and `srht`, but sqrt(D / 3) for `uniform`,
sqrt(5 D / 4) for `bernoulli-graphcore` and sqrt(D / 100) for `sparse`: drawn alike, some go further than others and see
more of the same landscape. Measured by distance, unbiased families see the same one.
Tests: tests/test_analysis.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rbd_ref._check import integer, number, several
from rbd_ref._types import F32, TWO_32, Float32Array, Float64Array
from rbd_ref.analysis.restored import chosen_steps, restore
from rbd_ref.basis import Basis
from rbd_ref.models import networks
from rbd_ref.runs.memory import enough_memory
from rbd_ref.spec.families import FAMILIES, parse_family
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.problem import NetworkProblem
from rbd_ref.training.recorded import RecordedRun

STEPS = 4
DIRECTIONS = 25  # as in the paper
POINTS = 21
BATCHES = 8
BAND = (0.1, 0.9)  # quantiles over directions
UNITS = ("drawn", "distance")
Loss = Callable[[Float32Array], float]


@dataclass(frozen=True)
class LandscapeCurve:
    """The loss along directions of one family, around the weights of one step.

    unit         `drawn` or `distance`: what the displacements count
    mean         over directions, at each displacement
    low, high    their quantiles, 10 % and 90 %
    """

    step: int
    family: str
    unit: str
    displacements: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class LandscapeGrid:
    """Where the loss is looked at.

    directions  of each family
    distance    the largest displacement: by distance, and as drawn that of a direction of length sqrt(D); None for
                half the length of theta at the first of the steps
    points      displacements from one end to the other, an odd number, so that 0 is one of them
    batches     of the run, from the step on, whose images make up the loss
    """

    directions: int = DIRECTIONS
    distance: float | None = None
    points: int = POINTS
    batches: int = BATCHES

    def __post_init__(self) -> None:
        integer("directions", self.directions, 1, TWO_32)
        integer("batches", self.batches, 1, TWO_32)
        if self.distance is not None and not 0 < number("distance", self.distance) < math.inf:
            raise ValueError(f"distance is {self.distance}, expected a number above 0: choose another")
        if integer("points", self.points, 3, TWO_32) % 2 == 0:
            raise ValueError(f"points is {self.points}, expected an odd number, so that 0 is one of them: add one")

    def displacements(self, unit: str, distance: float, D: int) -> Float64Array:
        """s of each point."""
        reach = distance / math.sqrt(D) if unit == "drawn" else distance
        return np.linspace(-reach, reach, self.points)


def loss_along(loss: Loss, theta: Float32Array, phi: Float32Array, displacements: Float64Array) -> Float64Array:
    """L(theta + s phi_i) of some directions at some displacements.

    Args:
        loss: L, a function of weights.
        theta: D floats.
        phi: directions, a row of D floats each.
        displacements: the values of s.

    Returns:
        float64 of shape (directions, displacements).

    Examples:
        >>> phi = np.ones((1, 4), dtype=F32)
        >>> loss_along(lambda x: float(x @ x), np.zeros(4, dtype=F32), phi, np.arange(3.0)).tolist()
        [[0.0, 4.0, 16.0]]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array([[loss((theta + s * row).astype(F32)) for s in displacements] for row in phi])


def measure_landscape(
    run: RecordedRun,
    steps: Sequence[int] | None = None,
    families: Sequence[str] = FAMILIES,
    grid: LandscapeGrid | None = None,
) -> list[LandscapeCurve]:
    """The loss along random directions phi around the weights of a run, L(theta + s phi) and L(theta + s phi / |phi|).

    Args:
        run: as `rbd_ref.open_run` gives it.
        steps: after how many steps the weights are taken; 4 evenly over the run where none are named.
        families: of the directions, which are those that a basis of the run's seed has at the step, over all of theta.
        grid: how many directions, how far and how finely, and how many batches the loss is taken of.

    Returns:
        a `LandscapeCurve` for each step, family and unit.

    Raises:
        rbd_ref.RunError: a step that the journal does not have.

    Examples:
        >>> import rbd_ref, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> _ = rbd_ref.fit(rbd_ref.Config(net="mlp:64-10", dims=50, family="srht", steps=3), out=folder)
        >>> grid = LandscapeGrid(directions=4, points=3)
        >>> found = measure_landscape(rbd_ref.open_run(folder), [3], ["normal"], grid)
        >>> [(curve.step, curve.family, curve.unit) for curve in found]
        [(3, 'normal', 'drawn'), (3, 'normal', 'distance')]
        >>> found[0].mean[1] == found[1].mean[1] == found[1].low[1]  # no displacement, no difference
        True
    """
    where = grid or LandscapeGrid()
    experiment = run.experiment
    known = [str(parse_family(family)) for family in several("families", families)]
    curves: list[LandscapeCurve] = []
    distance = where.distance
    with enough_memory(f"{where.directions} directions of D = {experiment.plan.D} were made"):
        for t, theta in restore(run, chosen_steps(run, steps, STEPS, after_last=True)):
            distance = distance or float(np.linalg.norm(theta)) / 2 or 1.0
            place = Place(t, theta, batch_loss(experiment, t, where.batches), distance)
            for family in known:
                curves += _curves(place, _basis(experiment, family, where), where)
    return curves


class Place(NamedTuple):
    """The weights to look around from: after t steps, with the loss there, and how far."""

    t: int
    theta: Float32Array
    loss: Loss
    distance: float


def _basis(experiment: Experiment, family: str, grid: LandscapeGrid) -> Basis:
    """Directions over all of theta."""
    d = min(grid.directions, experiment.plan.D)
    return Basis(D=experiment.plan.D, d=d, seed=experiment.config.seed, family=family, backend=experiment.basis.backend)


def _curves(place: Place, basis: Basis, grid: LandscapeGrid) -> list[LandscapeCurve]:
    """In both units, of one family."""
    phi = basis.directions(range(basis.plan.d), step=place.t)
    lengths = np.linalg.norm(phi.astype(np.float64), axis=1, keepdims=True)
    scaled = {"drawn": phi, "distance": (phi / lengths).astype(F32)}
    return [_curve(place, scaled[unit], str(basis.family), unit, grid) for unit in UNITS]


def _curve(place: Place, phi: Float32Array, family: str, unit: str, grid: LandscapeGrid) -> LandscapeCurve:
    """Mean and band over directions."""
    s = grid.displacements(unit, place.distance, place.theta.size)
    losses = loss_along(place.loss, place.theta, phi, s)
    low, high = np.quantile(losses, BAND, axis=0)
    mean = losses.mean(axis=0)
    return LandscapeCurve(place.t, family, unit, s.tolist(), mean.tolist(), low.tolist(), high.tolist())


def batch_loss(experiment: Experiment, t: int, batches: int) -> Loss:
    """The mean loss of the first worker's batches of steps t, t + 1, ...; a network takes their images as one batch."""
    problem = experiment.problem
    steps = range(t, t + batches)
    if not isinstance(problem, NetworkProblem):
        return lambda theta: float(np.mean([problem.loss(theta, step, 0, None) for step in steps]))
    images, labels = zip(*(problem.batch(step, 0) for step in steps), strict=True)
    network = problem.network
    x = np.concatenate(images)
    y = np.concatenate(labels)
    return lambda theta: networks.loss(network, theta, x, y)
