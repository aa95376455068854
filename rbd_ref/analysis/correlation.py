"""How near a run's updates come to the gradient, and how near one has to expect them to come.

    whole     cos(u, g) of the update u = theta_t - theta_(t+1) and the gradient g of the step's batches
    tensors   the mean over tensors of the cosine of u and g within each, which the paper calls correlation

Along one basis of d directions over all D elements, the first is sqrt(d / D) or a little less. The second is more, as a
tensor tau of D_tau elements that has the share s of |g|^2 is expected to have

    cos_tau = 1 / sqrt(1 + D_tau / (d s)),

which is large where much of the gradient is in few elements, as in biases. In general, where compartments k of D_k
elements have d_k directions each, an update along a basis is the sum of its mean and of noise of equal variance in all
elements of a compartment,

    E u = c g,   Var u_j = (c (1 + (d_k - 1) r) - c^2) |g_k|^2 / D_k,   c = d_k / D_k,   r = E cos^2 of two directions,

and the expected cosine within any set of elements is <E u, g> / (|g| sqrt(|E u|^2 + Var u)), summed over them and, for
workers with bases of their own, over these. It knows of no memory, momentum or other state, and nothing of how a fixed
basis has shaped the gradient: in `fpd` the measured cosine falls below it as the run goes
downhill in its subspace.
Tests: tests/test_analysis.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rbd_ref._types import Float32Array, Float64Array
from rbd_ref.analysis.restored import chosen_steps, epoch_gradient, gradients, restore, tensors
from rbd_ref.basis import Basis
from rbd_ref.methods.base import sum_rows
from rbd_ref.methods.memory import overlap
from rbd_ref.methods.rbd import BIASED
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.guidance import PROJECTING, expected_cosine
from rbd_ref.training.logbook import cosine
from rbd_ref.training.recorded import RecordedRun

POINTS = 20


@dataclass(frozen=True)
class Cosines:
    """The cosine of whole vectors, and the mean over tensors."""

    whole: float
    tensors: float


@dataclass(frozen=True)
class StepCorrelation:
    """Update and gradient of one step.

    measured  with the gradient of the step's batches
    expected  of that; None where the method does not project gradients, or the family is biased
    epoch     measured with the gradient of all batches of the epoch; None where it was not asked for
    """

    step: int
    method: str
    measured: Cosines
    expected: Cosines | None
    epoch: Cosines | None


@dataclass(frozen=True)
class Correlation:
    """Update and gradient along a run; `directions` are those of all bases of a step."""

    D: int
    directions: int
    family: str
    steps: list[StepCorrelation]

    @property
    def root(self) -> float:
        """sqrt(d / D)."""
        return math.sqrt(min(1.0, self.directions / self.D))


def measure_correlation(
    run: RecordedRun, steps: Sequence[int] | None = None, *, epoch_gradients: bool = False
) -> Correlation:
    """cos(u, g) along a run, of whole vectors and as a mean over tensors, beside what is expected of the same g.

    Args:
        run: as `rbd_ref.open_run` gives it.
        steps: step t is the one from the weights after t steps; 20 evenly over the run where none are named.
        epoch_gradients: whether updates are also compared with the mean gradient of all batches of their epoch.

    Returns:
        a `Correlation`.

    Raises:
        rbd_ref.RunError: a step that the journal does not have.

    Examples:
        >>> import rbd_ref, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> _ = rbd_ref.fit(rbd_ref.Config(net="mlp:64-10", dims=100, family="srht", steps=9), out=folder)
        >>> found = measure_correlation(rbd_ref.open_run(folder), [0, 4, 8])
        >>> [step.step for step in found.steps], round(found.root, 2)
        ([0, 4, 8], 0.39)
        >>> all(abs(step.measured.whole - step.expected.whole) < 0.2 for step in found.steps)
        True
    """
    experiment = run.experiment
    chosen = chosen_steps(run, steps, POINTS)
    around = sorted({*chosen, *(t + 1 for t in chosen)})
    found: list[StepCorrelation] = []
    before: Float32Array | None = None
    for t, theta in restore(run, around):
        if before is not None and t - 1 in chosen:
            found.append(_correlation(experiment, t - 1, before, theta, epoch_gradients))
        before = theta
    return Correlation(experiment.plan.D, _directions(experiment), str(experiment.basis.family), found)


def _correlation(
    experiment: Experiment, t: int, before: Float32Array, after: Float32Array, epoch: bool
) -> StepCorrelation:
    """Of the step between two weights."""
    parts = gradients(experiment, before, t)
    u = before - after
    return StepCorrelation(
        t,
        experiment.phases.at(t).method.name,
        compare(experiment, u, sum_rows(parts)),
        expected_cosines(experiment, parts, t),
        compare(experiment, u, epoch_gradient(experiment, before, t)) if epoch else None,
    )


def compare(experiment: Experiment, u: Float32Array, g: Float32Array) -> Cosines:
    """The cosines of an update and a gradient."""
    pairs = zip(tensors(experiment, u), tensors(experiment, g), strict=True)
    return Cosines(cosine(u, g), float(np.mean([cosine(x, y) for x, y in pairs])))


def _directions(experiment: Experiment) -> int:
    """Those of all bases of a step."""
    c = experiment.config
    return experiment.plan.d * (c.workers if c.exchange == "independent" else 1)


def expected_cosines(experiment: Experiment, parts: Sequence[Float32Array], t: int) -> Cosines | None:
    """What is expected of the workers' gradients at step t: the formula stands at the head of this file.

    Args:
        experiment: whose compartments, family and workers count.
        parts: the gradient of each worker.
        t: the step, by which it is known which method takes it.

    Returns:
        The expected cosines; None where the method does not project gradients, or directions are biased.

    Examples:
        >>> import rbd_ref
        >>> experiment = Experiment(rbd_ref.Config(net="mlp:64-10", dims=13))
        >>> g = np.ones(650, dtype=np.float32)
        >>> expected = expected_cosines(experiment, [g], 0)
        >>> round(expected.whole, 3), round(expected_cosine(650, 13, "normal"), 3)  # about sqrt(13 / 650)
        (0.138, 0.138)
    """
    basis = experiment.basis
    if experiment.phases.at(t).method.name not in PROJECTING or basis.family.name == BIASED:
        return None
    total = sum_rows(parts)
    projected, share = _projected(experiment, parts, total)
    moments = [_moments(basis, g, share) for g in projected]
    mean: Float64Array = np.sum([mean for mean, _ in moments], axis=0)
    noise: Float64Array = np.sum([variance for _, variance in moments], axis=0)
    split = (tensors(experiment, x) for x in (total.astype(np.float64), mean, noise))
    within = [_ratio(*three) for three in zip(*split, strict=True)]
    return Cosines(_whole(basis, total.astype(np.float64), mean, noise, len(projected)), float(np.mean(within)))


def _projected(
    experiment: Experiment, parts: Sequence[Float32Array], total: Float32Array
) -> tuple[Sequence[Float32Array], float]:
    """What is projected along each basis, and the share of its directions: workers with one basis add up, workers that
    split one have a part of it each."""
    exchange = experiment.config.exchange if len(parts) > 1 else "independent"
    if exchange == "shared":
        return [total], 1.0
    return parts, 1.0 / len(parts) if exchange == "split" else 1.0


def _moments(basis: Basis, g: Float32Array, share: float) -> tuple[Float64Array, Float64Array]:
    """Mean and variance of each element of the update along a basis."""
    plan = basis.plan
    mean: Float64Array = np.zeros(plan.D)
    variance: Float64Array = np.zeros(plan.D)
    for k, (size, dims, divisor) in enumerate(zip(plan.sizes, plan.dims, basis.draw(0).divisors, strict=True)):
        here = plan.elements(k)
        part = g[here].astype(np.float64)
        scale = basis.family.expected_square(size) / divisor if divisor else 1.0  # 1 for unit directions
        d = dims * share
        c = d / size
        noise = c * (1 + (d - 1) * overlap(basis.family.name, size)) - c * c
        mean[here] = scale * c * part
        variance[here] = scale**2 * max(0.0, noise) * float(np.sum(part * part)) / size
    return mean, variance


def _ratio(g: Float64Array, mean: Float64Array, variance: Float64Array) -> float:
    """<E u, g> / (|g| sqrt(|E u|^2 + Var u)), 0 where g is 0."""
    square = float(np.sum(g * g)) * float(np.sum(mean * mean + variance))
    return float(np.sum(mean * g)) / math.sqrt(square) if square else 0.0


def _whole(basis: Basis, g: Float64Array, mean: Float64Array, variance: Float64Array, bases: int) -> float:
    """Of whole vectors; where one basis spans them the expectation is known without an approximation."""
    if basis.plan.K == bases == 1 and np.any(g):
        return expected_cosine(basis.plan.D, basis.plan.d, basis.family.name)
    return _ratio(g, mean, variance)
