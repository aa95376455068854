"""The trainer: steps until the end, each journaled before the next begins, with evaluations and checkpoints between.

    propose (every worker, local) -> allgather -> collect, sum_updates, apply_update (everyone) -> journal

All else follows from the configuration, so a run that is killed and resumed ends with the weights of one that was not.
Tests: tests/test_training.py.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from rbd_ref._check import NotFiniteError
from rbd_ref._types import F32, Float32Array
from rbd_ref.methods.base import EMPTY, Local, Proposal, Replica, State, payload_size_at
from rbd_ref.runs.files import SharedError
from rbd_ref.runs.journal import Record
from rbd_ref.training.beginning import Beginning, Interrupted
from rbd_ref.training.communicator import World, diverging_ranks, share
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.history import History
from rbd_ref.training.local_states import LocalStates
from rbd_ref.training.proposals import Keep, Proposals

CALLBACK = 128  # what a callback's request to stop is called, beside the numbers of signals


@dataclass
class StopRequest:
    """Why this rank wants to stop, 0 if it does not; signals and callbacks write it, the trainer reads it."""

    reason: int = 0


class StepTimes(NamedTuple):
    """Seconds that a step took on this rank: until its workers had proposed, until all was gathered, to the end."""

    propose: float
    allgather: float
    reconstruct: float


class StepRecord(NamedTuple):
    """A step that was taken: the replicas around it, the rows of all workers, and what was proposed on this rank.

    A row is what a worker sent, with its loss last; `before.method.decode` has the numbers in payloads. Proposals are
    kept for callbacks, and are none where there are no callbacks; `gradient` is the sum of this rank's gradients, where
    the log is to compare the step with it.
    """

    before: Replica[State]
    after: Replica[State]
    rows: Float32Array
    proposals: Mapping[int, Proposal]
    stop: int
    times: StepTimes
    gradient: Float32Array = EMPTY

    @property
    def t(self) -> int:
        """Number of steps taken, this one included."""
        return self.after.t

    @property
    def theta(self) -> Float32Array:
        """The weights after the step."""
        return self.after.theta

    @property
    def loss(self) -> float:
        """The mean over workers of the loss before the step."""
        return float(self.rows[:, -1].mean(dtype=np.float64))

    @property
    def payloads(self) -> Float32Array:
        """What each worker sent."""
        return self.rows[:, :-1]


class Stopped(Exception):
    """The run was asked to stop, for this reason (a signal's number, or CALLBACK), and did, with this replica."""

    def __init__(self, reason: int, replica: Replica[State]) -> None:
        super().__init__(reason, replica)
        self.reason = reason
        self.replica = replica


Callback = Callable[[StepRecord], object]


class Log(Protocol):
    """Who writes down what happens: rank 0, or nobody."""

    history: History

    def restore(self) -> Beginning | None:
        """What leads to the replica after the last step that was journaled, by what the journal says."""

    def journal(self, replica: Replica[State], rows: Float32Array) -> None:
        """What all workers sent at the replica's next step."""

    def step(self, record: StepRecord) -> None:
        """A step was taken."""

    def evaluate(self, replica: Replica[State]) -> None:
        """An epoch has ended after which figures are wanted."""

    def has_checkpoint(self, replica: Replica[State]) -> bool:
        """Whether the run can already be resumed from this replica."""

    def keep(self, t: int, worker: int, local: Local) -> str:
        """What a worker keeps after t steps, for the checkpoint that follows; what tells it from others."""

    def checkpoint(self, replica: Replica[State], kept: Sequence[str]) -> None:
        """The run may be resumed from this replica, whose workers keep what tells as much."""

    def finish(self, replica: Replica[State]) -> dict[str, Any]:
        """The final figures of a run that has come to its end."""

    def close(self) -> None:
        """Nothing more is written."""


class NullLog:
    """Ranks other than the first write nothing, and remember the losses."""

    def __init__(self) -> None:
        self.history = History()

    def restore(self) -> Beginning | None:
        """Not here."""
        return None

    def journal(self, replica: Replica[State], rows: Float32Array) -> None:
        """Not here."""

    def step(self, record: StepRecord) -> None:
        """Its loss."""
        self.history.losses.append(record.loss)

    def evaluate(self, replica: Replica[State]) -> None:
        """Not here."""

    def has_checkpoint(self, replica: Replica[State]) -> bool:
        """Not here."""
        return False

    def keep(self, t: int, worker: int, local: Local) -> str:
        """Not here."""
        return ""

    def checkpoint(self, replica: Replica[State], kept: Sequence[str]) -> None:
        """Not here."""

    def finish(self, replica: Replica[State]) -> dict[str, Any]:
        """Not here."""
        return {}

    def close(self) -> None:
        """Nothing is open."""


class Due(NamedTuple):
    """What follows a step."""

    evaluation: bool
    checkpoint: bool


class Trainer:
    """Takes the steps of an experiment on this rank. A callback sees every step; what it returns, if true, is a
    request to stop."""

    def __init__(
        self,
        experiment: Experiment,
        world: World,
        log: Log,
        callbacks: Sequence[Callback] = (),
        stop: StopRequest | None = None,
    ) -> None:
        self.experiment = experiment
        self.config = experiment.config
        self.world = world
        self.log = log
        self.callbacks = callbacks
        self.stop = stop or StopRequest()
        ranks = range(world.communicator.size)
        shares = [share(self.config.workers, rank, len(ranks)) for rank in ranks]
        self.workers = shares[world.communicator.rank]  # those that this rank plays
        self.counts = [len(workers) for workers in shares]  # how many each rank plays
        self.local = LocalStates(self.config.workers, world.communicator)
        self.unlike = ""  # what came out otherwise when journaled steps were taken again

    def recall(self, beginning: Beginning | None, stop: StopRequest | None = None) -> Replica[State]:
        """The replica to go on from, with what the workers kept there: rank 0 knows where it begins, and has the files.

        A request to stop on rank 0 ends it.
        """
        known = (beginning.replica.state, beginning.steps, beginning.load is not None) if beginning else None
        found = self.world.communicator.broadcast(known)
        assert found is not None
        state, steps, loads = found
        replica = self.experiment.phases.resume(state)
        self.local.reset(replica.method)
        for worker in self.local.workers if loads else ():
            self.local.place(worker, beginning.load(worker) if beginning and beginning.load else None)
        for _ in range(steps):
            replica = self.follow(replica, next(beginning.records) if beginning else None, stop)
        self.unlike = next(filter(None, self.world.communicator.allgather(self.unlike)), "")
        return replica

    def follow(self, replica: Replica[State], record: Record | None, stop: StopRequest | None) -> Replica[State]:
        """The replica after a journaled step, whose gradients the workers take again for what they keep of them."""
        told = (record.payloads, stop.reason if stop else 0) if record else None
        found = self.world.communicator.broadcast(told)
        assert found is not None
        payloads, reason = found
        if reason:
            raise Interrupted(reason, replica.t, self.experiment.steps)
        before = self.enter_phase(replica)
        with np.errstate(over="ignore", invalid="ignore"):
            for worker in self.workers:
                self.compare(replica.t, worker, self.propose(before, worker).payload, payloads[worker])
            waiting, pending = before.collect(payloads)
            after = waiting.apply_update(self.world.node.sum_updates(pending))
        return after.with_theta(self.world.node.share_memory(after.theta))

    def compare(self, t: int, worker: int, payload: Float32Array, journaled: Float32Array) -> None:
        """Remember the first payload that is another now than it was: then what is kept is another, too."""
        if not self.unlike and payload.tobytes() != journaled.tobytes():  # words of codes may be no numbers
            self.unlike = (
                f"worker {worker} sends other numbers at step {t} than are journaled, expected the same: what workers "
                "keep will be near what it was but not the same bits, as on another backend, or where gradients are "
                "no function of weights, step and worker"
            )

    def train(self, replica: Replica[State]) -> Replica[State]:
        """Steps to the end, or until a rank's request to stop; the last replica.

        What a run that was killed had left undone after its last step comes first; the log knows what was done.
        """
        if replica.t:
            self.run_due_actions(replica, 0)
        while replica.t < self.experiment.steps:
            replica, stop = self.step(replica)
            if stop and replica.t < self.experiment.steps:
                raise Stopped(stop, replica)
        return replica

    def step(self, replica: Replica[State]) -> tuple[Replica[State], int]:
        """One step and what follows it; the replica after it, and the request to stop that came with it.

        The step's record, and the weights before it with it, end here: the next step needs their memory.
        """
        record = self.advance(replica)
        after = self.check_replicas(record)
        self.log.step(record)
        self.run_due_actions(after, record.stop)
        self.call_back(record)
        return after, record.stop

    def call_back(self, record: StepRecord) -> None:
        """Show the step to the callbacks, all of them."""
        answers = [callback(record) for callback in self.callbacks]
        if any(answers):
            self.stop.reason = self.stop.reason or CALLBACK

    def advance(self, replica: Replica[State]) -> StepRecord:
        """One step of all workers; a request to stop travels with it, so that all ranks stop after the same step."""
        times = [time.perf_counter()]
        before = self.enter_phase(replica)
        with np.errstate(over="ignore", invalid="ignore"):
            proposals = self.propose_all(before)
            times.append(time.perf_counter())
            rows, stop = self.allgather(before, proposals)
            times.append(time.perf_counter())
            after = self.apply(before, rows, proposals)
        self.log.journal(before, rows)
        times.append(time.perf_counter())
        spent = StepTimes(*(end - begin for begin, end in pairwise(times)))
        return StepRecord(before, after, rows, proposals.whole, stop, spent, proposals.gradient.total)

    def enter_phase(self, replica: Replica[State]) -> Replica[State]:
        """The replica as the method of its next step takes it; a method that begins knows of no steps before."""
        before = self.experiment.phases.enter_phase(replica)
        if before is not replica or before.t in self.experiment.forgotten:
            self.local.reset(before.method)
        return before

    def propose_all(self, replica: Replica[State]) -> Proposals:
        """What the workers of this rank find, one after the other."""
        size = payload_size_at(replica.method, replica.t)
        proposals = Proposals(len(self.workers), size, self.to_keep(replica.t))
        for worker in self.workers:
            proposals.add(worker, self.propose(replica, worker))
        return proposals

    def to_keep(self, t: int) -> Keep:
        """What of the proposals at step t someone asks for later."""
        alone = self.world.communicator.size == 1
        logged = self.world.communicator.rank == 0 and (t + 1) % self.config.log_every == 0
        return Keep(updates=not alone, gradient=logged and self.config.correlation, whole=bool(self.callbacks))

    def propose(self, replica: Replica[State], worker: int) -> Proposal:
        """What a worker finds; where there are no numbers to be found it sends NaN, so that all ranks hear of it."""
        try:
            kept = self.local.states[worker]
            proposal, self.local.states[worker] = replica.propose(self.experiment.problem, worker, kept)
            return proposal
        except NotFiniteError:
            return Proposal(math.nan, np.full(payload_size_at(replica.method, replica.t), np.nan, dtype=F32))

    def allgather(self, replica: Replica[State], proposals: Proposals) -> tuple[Float32Array, int]:
        """The rows of all workers, their losses last, and the greatest request to stop."""
        proposals.rows[:, -1] = self.stop.reason
        received = self.world.communicator.allgather_rows(proposals.rows, self.counts)
        if self.callbacks:
            received = received.copy()  # callbacks may keep it, and the next step writes to it
        proposals.rows = received  # one array of all rows is enough
        rows: Float32Array = received[:, :-1]
        self.check_finite(replica, rows)
        return rows, int(received[:, -1].max())

    def check_finite(self, replica: Replica[State], rows: Float32Array) -> None:
        """Refuse a step whose losses or payloads are no numbers; a row at a time, as they may be as long as theta."""
        sent = replica.method.decode(rows[:, :-1])
        losses = rows[:, -1]
        found = (w for w, row in enumerate(sent) if not (math.isfinite(losses[w]) and np.isfinite(row).all()))
        worker = next(found, None)
        if worker is None:
            return
        what = f"the loss of worker {worker} is {losses[worker]:g}"
        raise self.diverged(replica.t, what if not math.isfinite(losses[worker]) else f"{what}, its gradient infinite")

    def apply(self, before: Replica[State], rows: Float32Array, proposals: Proposals) -> Replica[State]:
        """The replica after the step that these rows stand for."""
        try:
            waiting, pending = before.collect(rows[:, :-1], proposals.updates)
            total = proposals.total
            after = waiting.apply_update(self.world.node.sum_updates(pending) if total is None else total)
        except NotFiniteError as error:
            raise self.diverged(before.t, str(error).split(", expected")[0]) from error
        return after.with_theta(self.world.node.share_memory(after.theta))

    def diverged(self, t: int, what: str) -> SharedError:
        """The sentence for a step that gives no numbers."""
        phases = self.config.phases
        rate = [s.rate for epoch, _, s in phases if epoch * self.experiment.steps_per_epoch <= t][-1]
        return SharedError(
            f"step {t} fails with learning rate {rate:g}: {what}; expected finite numbers, the last good checkpoint "
            "stays: lower --lr"
        )

    def check_replicas(self, record: StepRecord) -> Replica[State]:
        """The replica after the step; where it is time to compare, one that all ranks hold to the bit."""
        replica, every = record.after, self.config.check_every
        if not every or not (replica.t % every == 0 or self.due(replica.t, record.stop).checkpoint):
            return replica
        digest = hashlib.sha256(replica.theta.data).digest()
        diverging = diverging_ranks(self.world.communicator, digest)
        if not diverging:
            return replica
        if self.config.on_divergence == "resync":
            return self.resync()
        names = " and ".join(f"rank {rank}" for rank in diverging)
        raise SharedError(
            f"the weights of {names} differ from the others' after step {replica.t}, expected the same bits "
            "everywhere: look for bad memory or unlike builds there; continue with --resume, or use --on-divergence "
            "resync"
        )

    def resync(self) -> Replica[State]:
        """What the journal says, which rank 0 has, for everyone."""
        return self.recall(self.log.restore())

    def due(self, t: int, stop: int) -> Due:
        """What comes after t steps, the last of them or not, with a request to stop or without."""
        epoch = self.experiment.steps_per_epoch
        last = t == self.experiment.steps
        evaluation = t % (epoch * self.config.eval_every) == 0 or last
        checkpoint = t % (epoch * self.config.checkpoint_every) == 0 or last or stop > 0
        return Due(evaluation, checkpoint)

    def run_due_actions(self, replica: Replica[State], stop: int) -> None:
        """Evaluate and write a checkpoint, where it is time to."""
        due = self.due(replica.t, stop)
        if (due.evaluation or due.checkpoint) and not np.isfinite(replica.theta).all():
            raise self.diverged(replica.t - 1, "a weight is not finite after it")
        if due.evaluation:
            self.log.evaluate(replica)
        if due.checkpoint:
            self.checkpoint(replica)

    def checkpoint(self, replica: Replica[State]) -> None:
        """What the run can be resumed from, unless it is there; what the workers keep first, one after the other."""
        if self.world.communicator.broadcast(self.log.has_checkpoint(replica)):
            return
        kept = [self.log.keep(replica.t, worker, self.local.collect(worker)) for worker in self.local.workers]
        self.log.checkpoint(replica, kept)
