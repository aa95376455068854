"""Where a run is resumed from: its last checkpoint that fits the journal, and the records after it.

The records before the checkpoint are not read, but for their losses: a checkpoint fits if it holds the chain value that
stands before its next record. That these records are as they were written is for `--verify` to find out.
Tests: tests/test_train.py, tests/test_replay.py.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import NamedTuple

from rbd_ref.methods.base import Replica, State
from rbd_ref.runs import folder as folders
from rbd_ref.runs.files import SharedError
from rbd_ref.runs.folder import Run
from rbd_ref.runs.journal import Journal, Place, Record
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.trainer import StopRequest


class Interrupted(SharedError):
    """A signal came while the journal of a run of so many steps was replayed to resume it; nothing was changed."""

    def __init__(self, reason: int, done: int, steps: int) -> None:
        super().__init__(reason, done, steps)  # what a copy on another rank is made from
        self.reason = reason
        self.text = (
            f"stopped by {signal.Signals(reason).name} while the journal was replayed, after step {done} of {steps}"
        )

    def __str__(self) -> str:
        return self.text


class Resumed(NamedTuple):
    """The replica after the last whole record, the place after it, all losses, and what there is to warn of."""

    replica: Replica[State]
    place: Place
    losses: list[float]
    warnings: list[str]


class Origin(NamedTuple):
    """A replica to repeat steps from, the place of its next record, and what was wrong with later checkpoints."""

    replica: Replica[State]
    place: Place
    warnings: list[str]


def torn_record(journal: Journal) -> list[str]:
    """The warning of a last record that a crash cut short, if there is one; known once all records were read."""
    if not journal.torn:
        return []
    return [
        f"{journal.path} ends with a torn record of {journal.torn} bytes after step {journal.last.t}, which is left out"
    ]


def journal_of(experiment: Experiment, run: Run) -> Journal:
    """The run's journal, whose records have to be those of the experiment."""
    return folders.journal_of(run, experiment.config, experiment.layouts)


def origin(experiment: Experiment, run: Run, journal: Journal, steps: int | None = None) -> Origin:
    """The last whole checkpoint that fits the journal, of at most `steps` steps, or else theta0."""
    state, place, warnings = folders.newest(run, journal, experiment.config.digest, steps, experiment.blank)
    return Origin(experiment.start() if state is None else experiment.phases.resume(state), place, warnings)


def repeat(
    experiment: Experiment, replica: Replica[State], records: Iterator[Record]
) -> Iterator[tuple[Replica[State], Record]]:
    """The replicas after each of the records that follow it, with the record."""
    for record in records:
        replica = experiment.repeat(replica, record)
        yield replica, record


def resume(experiment: Experiment, run: Run, stop: StopRequest | None = None) -> Resumed:
    """The replica after the last whole record of a run; a request to stop ends the replay."""
    journal = journal_of(experiment, run)
    replica, place, wrong = origin(experiment, run, journal)
    losses = journal.losses(place.t)
    for following, record in repeat(experiment, replica, journal.records(place)):
        replica = following
        losses.append(record.loss)
        if stop is not None and stop.reason:
            raise Interrupted(stop.reason, replica.t, experiment.steps)
    return Resumed(replica, journal.last, losses, [*torn_record(journal), *wrong])
