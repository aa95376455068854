"""Where a run is resumed from: its last whole checkpoint, and the journal's records after it.

Tests: tests/test_train.py, tests/test_replay.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rbd_ref.methods.base import Replica, State
from rbd_ref.runs import folder as folders
from rbd_ref.runs.folder import Run
from rbd_ref.runs.journal import Journal, Record
from rbd_ref.training.experiment import Experiment


class Resumed(NamedTuple):
    """The replica after the last whole record, where that record ends, all losses, and what there is to warn of."""

    replica: Replica[State]
    end: int
    losses: list[float]
    warnings: list[str]


def torn_record(run: Run, journal: Journal) -> list[str]:
    """The warning of a last record that a crash cut short, if there is one; known once all records were read."""
    if not journal.torn:
        return []
    return [
        f"{run.journal} ends with a torn record of {journal.torn} bytes after step {journal.steps}, which is left out"
    ]


def repeat(experiment: Experiment, replica: Replica[State], records: Iterator[Record]) -> Iterator[Replica[State]]:
    """The replicas after each record that the replica has not seen yet."""
    for record in records:
        if record.t >= replica.t:
            replica = experiment.repeat(replica, record)
            yield replica


def newest(experiment: Experiment, run: Run, steps: int) -> tuple[Replica[State], list[str]]:
    """The replica of the last whole checkpoint of at most `steps` steps, or else that of theta0; and warnings."""
    state, warnings = folders.newest(run, experiment.config.digest, steps, experiment.blank)
    return (experiment.start() if state is None else experiment.schedule.resume(state)), warnings


def resume(experiment: Experiment, run: Run) -> Resumed:
    """The replica after the last whole record of a run."""
    journal = folders.journal_of(run, experiment.config, experiment.layout)
    losses = [float(record.losses.mean()) for record in journal.records()]
    warnings = torn_record(run, journal)
    last, wrong = newest(experiment, run, journal.steps)
    for following in repeat(experiment, last, journal.records()):
        last = following
    return Resumed(last, journal.end, losses, [*warnings, *wrong])
