"""What the analyses of a run share: its weights at chosen steps, restored from the journal, and gradients there.

Tests: tests/test_analysis.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rbd_ref._check import integer, several
from rbd_ref._types import F32, TWO_32, Float32Array, Float64Array
from rbd_ref.methods.base import sum_rows
from rbd_ref.runs.files import RunError
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.recorded import RecordedRun
from rbd_ref.training.resume import Origin, journal_of, origin, repeat


def chosen_steps(run: RecordedRun, steps: Sequence[int] | None, count: int, *, after_last: bool = False) -> list[int]:
    """The steps to look at, ascending: those that are named, or `count` evenly over the run.

    Step t stands for the weights after t steps, so that the gradient there is that of the run's next step; with
    `after_last` the weights at the end of the journal count too, from which no step was taken.
    """
    last = run.steps if after_last else run.steps - 1
    if last < 0:
        raise RunError(f"{run.run.folder} has no steps yet, expected a run that has taken some: train it first")
    if steps is None:
        return sorted({round(t) for t in np.linspace(0, last, count).tolist()})
    chosen = sorted({integer("a step", t, 0, TWO_32) for t in several("steps", steps)})
    if not chosen or chosen[-1] > last:
        named = f"step {chosen[-1]}" if chosen else "no step"
        raise RunError(
            f"{named} is asked for, and the journal of {run.run.folder} has {run.steps} steps, expected steps from 0 "
            f"to {last}: choose others with --steps"
        )
    return chosen


def restore(run: RecordedRun, steps: Sequence[int]) -> Iterator[tuple[int, Float32Array]]:
    """Each of some ascending steps with the weights there.

    From one to the next the journal's records are repeated, or those after a checkpoint that lies between. Steps have
    to be within the journal.
    """
    experiment = run.experiment
    journal = journal_of(experiment, run.run)
    at = Origin(experiment.start(), journal.first, [])
    for t in steps:
        start = origin(experiment, run.run, journal, t)
        if start.replica.t > at.replica.t:
            at = start
        records = islice(journal.records(at.place), t - at.replica.t)
        for replica, record in repeat(experiment, at.replica, records):
            at = Origin(replica, record.next, [])
        yield t, at.replica.theta


def gradients(experiment: Experiment, theta: Float32Array, t: int) -> list[Float32Array]:
    """The gradient of each worker's batch of step t."""
    workers = range(experiment.config.workers)
    return [experiment.problem.loss_and_gradient(theta, t, worker)[1] for worker in workers]


def epoch_gradient(experiment: Experiment, theta: Float32Array, t: int) -> Float32Array:
    """The mean of the gradients of all batches of all workers in the epoch of step t, all taken at theta."""
    length = experiment.steps_per_epoch
    first = t // length * length
    total: Float64Array = np.zeros(experiment.plan.D)
    for step in range(first, first + length):
        total += sum_rows(gradients(experiment, theta, step))
    return (total / (length * experiment.config.workers)).astype(F32)


def tensor_sizes(experiment: Experiment) -> list[int]:
    """The number of elements of each tensor, in the order of theta."""
    return [size for layer in experiment.problem.layers for size in layer]


def tensors(experiment: Experiment, x: NDArray[Any]) -> list[NDArray[Any]]:
    """A vector of D numbers, tensor by tensor."""
    return np.split(x, np.cumsum(tensor_sizes(experiment))[:-1])
