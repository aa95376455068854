"""A run that was written down: its configuration, its history, and its weights at any step, from what was sent.

The weights of step t are theta0, or the last checkpoint before, and the journal's records up to t: no data is needed,
but where steps were taken by SGD, whose gradients are not kept and are computed again.
Tests: tests/test_fit.py, tests/test_replay.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from rbd_ref._types import Float32Array, Indices
from rbd_ref.methods.base import Replica, State
from rbd_ref.runs import folder as folders
from rbd_ref.runs.config import Config
from rbd_ref.runs.files import RunError
from rbd_ref.runs.folder import Run
from rbd_ref.runs.layouts import Layout, Layouts, Stretch
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.history import History
from rbd_ref.training.problem import NetworkProblem, Problem
from rbd_ref.training.resume import journal_of, origin, repeat, torn_record
from rbd_ref.training.verification import Verification

Warn = Callable[[str], object]


def open_run(folder: str | Path, problem: Problem | None = None, **changes: Any) -> RecordedRun:
    """Read a run.

    Args:
        folder: as given to `fit` as `out`, or to `python -m rbd_ref.train` as `--out`.
        problem: the problem of the run, where it was one of its author's own; only for weights, not for history.
        changes: settings that do not change the weights, such as `data_dir`.

    Returns:
        a `RecordedRun` with `config`, `history`, `result`, `theta(step)` and `predict(images)`.

    >>> import rbd_ref, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> fitted = rbd_ref.fit(rbd_ref.Config(data="digits", dims=50, family="srht", steps=5), out=folder)
    >>> run = rbd_ref.open_run(folder)
    >>> run.steps, bool((run.theta(5) == fitted.theta).all())
    (5, True)
    """
    return RecordedRun(Run(Path(folder)), problem, **changes)


class RecordedRun:
    """A run's folder, read. What was torn or damaged and passed over is handed to `warn`, sentence by sentence."""

    def __init__(
        self, run: Run, problem: Problem | None = None, warn: Warn = lambda text: None, **changes: Any
    ) -> None:
        self.run = run
        self.problem = problem
        self.warn = warn
        self.config: Config = run.config(**changes)

    @cached_property
    def experiment(self) -> Experiment:
        """What the run was an experiment of."""
        return Experiment(self.config, self.problem)

    @cached_property
    def history(self) -> History:
        """Losses from the journal, figures from the metrics."""
        layouts = Layouts(Stretch(0, Layout(self.config.workers)))  # all that is known without the problem
        journal = folders.journal_of(self.run, self.config, layouts)
        losses = [record.loss for record in journal.records()]
        return History(losses, folders.evaluations(self.run))

    @property
    def steps(self) -> int:
        """How many steps were journaled."""
        return len(self.history.losses)

    @property
    def result(self) -> dict[str, Any] | None:
        """The final figures, if the run has ended."""
        return self.run.result()

    def theta(self, step: int | None = None) -> Float32Array:
        """The weights after `step` steps (0: as they were at the start), or at the end of the journal."""
        return self.replica(self.steps if step is None else step).theta

    def predict(self, images: ArrayLike, step: int | None = None) -> Indices:
        """The class of each image, by the network with its weights after `step` steps, or at the end.

        Args:
            images: (n, height, width, channels), or (n, height, width) of one channel. uint8 are bytes as in the data
                set's files and are scaled as in training: `mnist` and `fashion-mnist` x / 255, `digits` x / 16 (their
                bytes go from 0 to 16), `cifar-10` each image to mean 0 and variance 1. Floats are taken as they are.
            step: as `theta` takes it.

        Returns:
            n class numbers.
        """
        problem = None if self.config.problem else self.experiment.problem
        if not isinstance(problem, NetworkProblem):
            raise RunError(
                f"{self.run.folder} is a run of {self.config.problem.partition(',')[0]}, its author's own problem, "
                "expected a network to predict with, which it does not have: use theta(step) with the problem"
            )
        return problem.predict(self.theta(step), images)

    def replica(self, step: int) -> Replica[State]:
        """The replica after `step` steps, from the last checkpoint before that fits the journal, or from theta0."""
        if step < 0:
            raise RunError(f"--step is {step}, expected a number of steps from 0 up")
        journal = journal_of(self.experiment, self.run)
        replica, place, warnings = origin(self.experiment, self.run, journal, step)
        self._warn(warnings)
        if replica.t == step:
            return replica
        for following, _ in repeat(self.experiment, replica, journal.records(place)):
            replica = following
            if replica.t == step:
                return replica
        self._warn(torn_record(journal))
        raise RunError(f"{self.run.folder} has {replica.t} steps, expected {step} at least: choose an earlier --step")

    def _warn(self, texts: list[str]) -> None:
        """Hand on what was passed over."""
        for text in texts:
            self.warn(text)

    def verify(self) -> str:
        """Repeat the whole run from theta0; all that the run's files say of any step has to agree to the bit."""
        verification = Verification(self.run, self.experiment)
        journal = journal_of(self.experiment, self.run)
        replica = self.experiment.start()
        verification.compare(replica, journal.first.chain)
        for following, record in repeat(self.experiment, replica, journal.records()):
            replica = following
            verification.compare(replica, record.chain)
        self._warn(torn_record(journal))
        verification.finish(replica)
        return (
            f"{self.run.folder}: {replica.t} steps repeated, all {verification.compared} hashes agree, "
            f"the journal's chain ends with {journal.last.chain.hex()}"
        )
