"""The trainer: steps until the end, each journaled before the next begins, with evaluations and checkpoints between.

    every worker looks (descent.py), what they found is exchanged, everyone steps, what was exchanged is journaled.

All else follows from the configuration, so a run that is killed and resumed ends with the weights of one that was not.
Tests: tests/test_training.py.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from rbd_ref._types import F32, Float32Array
from rbd_ref.methods.descent import Look, Method
from rbd_ref.runs import folder as runs
from rbd_ref.runs.files import SharedError
from rbd_ref.runs.folder import Run
from rbd_ref.training.communicator import Exchange, share
from rbd_ref.training.experiment import Replica


class Stopped(Exception):
    """The run was asked to stop, by this signal after this step, and has a checkpoint to go on from."""


class Times(NamedTuple):
    """Seconds that a step took on this rank: until all its workers had looked, until all was exchanged, to the end."""

    look: float
    exchange: float
    rebuild: float


class Taken(NamedTuple):
    """A step that was taken: the states around it, what all workers sent (their losses last), what was seen here."""

    before: Any
    after: Any
    method: Method
    numbers: Float32Array
    looks: dict[int, Look]
    stop: int
    times: Times


class Log(Protocol):
    """Who writes down what happens: rank 0, or nobody."""

    def restored(self) -> Any:
        """The state after the last step that was journaled, repeated from the journal."""

    def journal(self, t: int, method: Method, numbers: Float32Array) -> None:
        """What all workers sent at step t."""

    def step(self, taken: Taken) -> None:
        """A step was taken."""

    def evaluate(self, state: Any) -> None:
        """An epoch has ended after which accuracies are wanted."""

    def checkpoint(self, state: Any) -> None:
        """This state may be gone on from."""

    def finish(self, state: Any) -> None:
        """This is the last state."""

    def say(self, text: str) -> None:
        """A sentence for the user."""

    def __enter__(self) -> Self:
        """Open until the `with` ends."""

    def __exit__(self, *_: object) -> None:
        """Nothing more is written."""


class Silence:
    """Ranks other than the first write nothing."""

    def restored(self) -> Any:
        """Not here."""

    def journal(self, t: int, method: Method, numbers: Float32Array) -> None:
        """Not here."""

    def step(self, taken: Taken) -> None:
        """Not here."""

    def evaluate(self, state: Any) -> None:
        """Not here."""

    def checkpoint(self, state: Any) -> None:
        """Not here."""

    def finish(self, state: Any) -> None:
        """Not here."""

    def say(self, text: str) -> None:
        """Not here."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""


def diverged(replica: Replica, t: int, what: str) -> SharedError:
    """The sentence for a step that gives no numbers."""
    rate = [settings.rate for epoch, _, settings in replica.config.phases if epoch * replica.steps_per_epoch <= t][-1]
    return SharedError(
        f"step {t} fails with learning rate {rate:g}: {what}; expected finite numbers, the last good checkpoint stays: "
        "lower --lr"
    )


def look(replica: Replica, state: Any, method: Method, worker: int) -> Look:
    """What a worker finds; where there are no numbers to be found it sends NaN, so that all ranks hear of it."""
    try:
        return method.look(replica.problem, state, worker)
    except ValueError:
        return Look(math.nan, np.full(method.length, np.nan, dtype=F32))


def gathered(replica: Replica, exchange: Exchange, t: int, method: Method, looks: dict[int, Look], stop: int) -> Any:
    """What all workers sent at step t, their losses last, and the greatest wish to stop."""
    mine = np.empty((len(looks), method.length + 1), dtype=F32)
    for row, found in zip(mine, looks.values(), strict=True):
        row[:-1], row[-1] = found.numbers, found.loss
    numbers, stop = exchange.gather(mine, replica.config.workers, stop)
    if not np.isfinite(numbers).all():
        bad = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
        loss = f"the loss of worker {bad[0]} is {numbers[bad[0], -1]:g}"
        raise diverged(replica, t, loss if not math.isfinite(numbers[bad[0], -1]) else f"{loss}, its gradient infinite")
    return numbers, stop


def advance(replica: Replica, exchange: Exchange, state: Any, stop: int, log: Log) -> Taken:
    """One step of all workers."""
    times = [time.perf_counter()]
    before, method = replica.next(state)
    workers = share(replica.config.workers, exchange.rank, exchange.ranks)
    with np.errstate(over="ignore", invalid="ignore"):
        looks = {w: look(replica, before, method, w) for w in workers}
        times.append(time.perf_counter())
        numbers, stop = gathered(replica, exchange, before.t, method, looks, stop)
        times.append(time.perf_counter())
        hand = {w: look.u for w, look in looks.items() if look.u.size}
        try:
            after = method.step(before, numbers[:, :-1], hand, exchange.total)
        except ValueError as error:
            raise diverged(replica, before.t, str(error).split(", expected")[0]) from error
        after = after._replace(theta=exchange.keep(after.theta))
    log.journal(before.t, method, numbers)
    times.append(time.perf_counter())
    return Taken(before, after, method, numbers, looks, stop, Times(*(end - begin for begin, end in pairwise(times))))


def watched(replica: Replica, exchange: Exchange, log: Log, state: Any) -> Any:
    """The state, if all ranks have the same weights; or what the journal says, or a sentence of who differs."""
    different = exchange.different(hashlib.sha256(state.theta.data).digest())
    if not different:
        return state
    if replica.config.on_divergence == "resync":
        return exchange.spread(log.restored())
    names = " and ".join(f"rank {rank}" for rank in different)
    raise SharedError(
        f"the weights of {names} differ from the others' after step {state.t}, expected the same bits everywhere: look "
        "for bad memory or unlike builds there; go on with --resume, or use --on-divergence resync"
    )


def train(replica: Replica, exchange: Exchange, log: Log, state: Any, wish: Callable[[], int]) -> Any:
    """Steps from `state` to the end, or until a rank's `wish` to stop; the last state.

    What a run that was killed had left undone after its last step comes first; the log knows what was done."""
    c = replica.config
    if state.t:
        settle(replica, log, state)
    while state.t < replica.steps:
        taken = advance(replica, exchange, state, wish(), log)
        state = taken.after
        if c.check_every and (state.t % c.check_every == 0 or due(replica, state.t, taken.stop).checkpoint):
            state = watched(replica, exchange, log, state)
        log.step(taken)
        settle(replica, log, state, taken.stop)
        if taken.stop and state.t < replica.steps:
            raise Stopped(taken.stop, state.t)
    return state


class Due(NamedTuple):
    """What a step is followed by."""

    evaluation: bool
    checkpoint: bool


def due(replica: Replica, t: int, stop: int) -> Due:
    """What comes after t steps, the last of them or not, with a wish to stop or without."""
    c, epoch, last = replica.config, replica.steps_per_epoch, t == replica.steps
    return Due(t % (epoch * c.eval_every) == 0 or last, t % (epoch * c.checkpoint_every) == 0 or last or stop > 0)


def settle(replica: Replica, log: Log, state: Any, stop: int = 0) -> None:
    """Do what is due after a step."""
    evaluation, checkpoint = due(replica, state.t, stop)
    if (evaluation or checkpoint) and not np.isfinite(state.theta).all():
        raise diverged(replica, state.t - 1, "a weight is not finite after it")
    if evaluation:
        log.evaluate(state)
    if checkpoint:
        log.checkpoint(state)


class Resumed(NamedTuple):
    """Where a run is gone on from: the state, the journal's end, its losses, and what there is to say."""

    state: Any
    end: int
    losses: list[float]
    said: list[str]


def resumed(replica: Replica, run: Run) -> Resumed:
    """The state after the last whole record of a run."""
    journal, said = runs.journal_of(run, replica.config), []
    losses = [float(record.numbers[:, -1].mean()) for record in journal.records()]
    if journal.torn:
        said.append(
            f"{run.journal} ended in the middle of step {journal.steps}: the torn record of {journal.torn} bytes is cut"
        )
    state, wrong = runs.newest(run, replica.config.digest, journal.steps)
    state = state or replica.start()
    for record in journal.records():
        if record.t >= state.t:
            state = replica.repeat(state, record)
    return Resumed(state, journal.end, losses, [*said, *wrong])
