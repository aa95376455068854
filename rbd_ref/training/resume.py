"""Where a run is resumed from: its last checkpoint that fits the journal, and the records after it.

The records before the checkpoint are not read, but for their losses: a checkpoint fits if it holds the chain value that
stands before its next record and, where workers keep something, if that is beside it. That these records are as they
were written is for `--verify` to find out.
Tests: tests/test_train.py, tests/test_replay.py, tests/test_memory_resume.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from rbd_ref.methods.base import Replica, State, size_of
from rbd_ref.runs import folder as folders
from rbd_ref.runs import local_states
from rbd_ref.runs.files import RunError
from rbd_ref.runs.folder import Checkpoint, Run
from rbd_ref.runs.journal import Journal, Place, Record
from rbd_ref.training.beginning import Beginning, Interrupted
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.trainer import StopRequest


class Resumed(NamedTuple):
    """What to begin with, the place after the last whole record, all losses, and what there is to warn of."""

    beginning: Beginning
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


def _no_check(found: Checkpoint) -> None:
    """Any checkpoint will do."""


def origin(
    experiment: Experiment,
    run: Run,
    journal: Journal,
    steps: int | None = None,
    check: folders.Check = _no_check,
) -> Origin:
    """The last whole checkpoint that fits the journal, of at most `steps` steps, or else theta0."""
    found, place, warnings = folders.newest(run, journal, experiment.config.digest, steps, experiment.blank, check)
    replica = experiment.start() if found is None else experiment.phases.resume(found.state)
    return Origin(replica, place, warnings)


def repeat(
    experiment: Experiment, replica: Replica[State], records: Iterator[Record]
) -> Iterator[tuple[Replica[State], Record]]:
    """The replicas after each of the records that follow it, with the record."""
    for record in records:
        replica = experiment.repeat(replica, record)
        yield replica, record


def resume(experiment: Experiment, run: Run, stop: StopRequest | None = None, forget: bool = False) -> Resumed:
    """Where a run goes on after the last whole record of its journal; a request to stop ends the replay.

    This process repeats the records from the last checkpoint on by itself, up to where workers keep something that
    only their gradients tell. From there on all ranks follow. With `forget` the workers have kept nothing at the end.
    """
    journal = journal_of(experiment, run)
    check = _no_check if forget or not experiment.keeps else partial(_check_local, experiment, run, journal)
    start = origin(experiment, run, journal, None, check)
    losses = journal.losses(start.place.t) + [record.loss for record in journal.records(start.place)]
    end, torn = journal.last, torn_record(journal)
    since = end.t if forget else _kept_since(experiment, journal, end.t)
    replica, place = _repeat_alone(experiment, start, journal, max(since, start.place.t), stop)
    blank = experiment.blank_local(place.t)
    load = partial(local_states.load, run, place.t, blank=blank) if place.t > since else None
    beginning = Beginning(replica, end.t - place.t, journal.records(place), load)
    return Resumed(beginning, end, losses, [*torn, *start.warnings])


def _check_local(experiment: Experiment, run: Run, journal: Journal, found: Checkpoint) -> None:
    """Refuse a checkpoint from which on workers have kept something up to the journal's end, if it is not all there."""
    t = found.state.t
    for _ in journal.records(journal.place(t)):
        pass
    if t > _kept_since(experiment, journal, journal.last.t):
        local_states.check(run, t, experiment.config.workers, experiment.blank_local(t), found.local)


def _kept_since(experiment: Experiment, journal: Journal, t: int) -> int:
    """The step from which on the workers have kept what they keep after t steps: where their method began, or where
    they were told to forget, if the journal was the same there; t where they keep nothing."""
    if not size_of(experiment.blank_local(t)):
        return t
    forgotten = {step: chain for step, chain in experiment.forgotten.items() if step <= t}
    for step, chain in forgotten.items():
        place = journal.place(step)
        if place is None or place.chain.hex() != chain:
            raise RunError(
                f"forgotten in config.toml says that the workers forgot what they kept after step {step} of a journal "
                f"with chain value {chain} there, expected that of {journal.path.name}: restore config.toml"
            )
    return max([experiment.phases.at(max(t - 1, 0)).first, *forgotten])


def _repeat_alone(
    experiment: Experiment, start: Origin, journal: Journal, t: int, stop: StopRequest | None
) -> tuple[Replica[State], Place]:
    """The replica after t steps and the place of its next record, by this process, from the origin."""
    replica, place = start.replica, start.place
    records = islice(journal.records(place), t - place.t)
    for following, record in repeat(experiment, replica, records):
        replica, place = following, record.next
        if stop is not None and stop.reason:
            raise Interrupted(stop.reason, replica.t, experiment.steps)
    return replica, place
