"""The trainer: steps until the end, each journaled before it is taken, with evaluations and checkpoints between.

    every worker looks (descent.py), what they found is exchanged and journaled, everyone steps.

All else follows from the configuration, so a run that is killed and resumed ends with the weights of one that was not.
May import: numpy, descent, distributions, exchange, files, logbook, replica, runs. Tests: tests/test_training.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from rbd_ref import runs
from rbd_ref.descent import Look, Method
from rbd_ref.distributions import F32, Vector
from rbd_ref.exchange import Exchange, share
from rbd_ref.files import RunError
from rbd_ref.replica import Replica
from rbd_ref.runs import Run


class Stopped(Exception):
    """The run was asked to stop and has a checkpoint to go on from."""


class Taken(NamedTuple):
    """A step that was taken: the states around it, what all workers sent (their losses last), what was seen here."""

    before: Any
    after: Any
    method: Method
    numbers: Vector
    looks: dict[int, Look]
    stop: bool
    seconds: float


class Log(Protocol):
    """Who writes down what happens: rank 0, or nobody."""

    def journal(self, t: int, method: Method, numbers: Vector) -> None:
        """What all workers sent at step t."""

    def step(self, taken: Taken) -> None:
        """A step was taken."""

    def evaluate(self, state: Any) -> None:
        """An epoch has ended after which accuracies are wanted."""

    def checkpoint(self, state: Any) -> None:
        """This state may be gone on from."""


class Silence:
    """Ranks other than the first write nothing."""

    def journal(self, t: int, method: Method, numbers: Vector) -> None:
        """Not here."""

    def step(self, taken: Taken) -> None:
        """Not here."""

    def evaluate(self, state: Any) -> None:
        """Not here."""

    def checkpoint(self, state: Any) -> None:
        """Not here."""


def diverged(replica: Replica, t: int, what: str) -> RunError:
    """The sentence for a step that gives no numbers."""
    rate = [settings.rate for epoch, _, settings in replica.config.phases if epoch * replica.steps_per_epoch <= t][-1]
    return RunError(
        f"step {t} fails with learning rate {rate:g}: {what}; expected finite numbers, the last good checkpoint stays: "
        "lower --lr"
    )


def look_all(replica: Replica, state: Any, method: Method, workers: range) -> dict[int, Look]:
    """What each of these workers finds."""
    try:
        return {w: method.look(replica.problem, state, w) for w in workers}
    except (ValueError, FloatingPointError) as error:
        raise diverged(replica, state.t, str(error).split(", expected")[0]) from error


def advance(replica: Replica, exchange: Exchange, state: Any, stop: bool, log: Log) -> Taken:
    """One step of all workers."""
    began = time.perf_counter()
    before, method = replica.next(state)
    workers = replica.config.workers
    with np.errstate(over="ignore", invalid="ignore"):
        looks = look_all(replica, before, method, share(workers, exchange.rank, exchange.ranks))
        rows = [np.append(look.numbers, F32(look.loss)) for look in looks.values()]
        mine = np.stack(rows) if rows else np.empty((0, method.length + 1), dtype=F32)
        numbers, stop = exchange.gather(mine, workers, stop)
        if not np.isfinite(numbers).all():
            raise diverged(replica, before.t, f"the loss is {numbers[:, -1].max():g} or a coefficient is not finite")
        log.journal(before.t, method, numbers)
        hand = {w: look.u for w, look in looks.items() if look.u.size}
        after = method.step(before, numbers[:, :-1], hand, exchange.total)
    return Taken(before, after, method, numbers, looks, stop, time.perf_counter() - began)


def train(replica: Replica, exchange: Exchange, log: Log, state: Any, wish: Callable[[], bool]) -> Any:
    """Steps from `state` to the end, or until a rank's `wish` to stop; the last state."""
    c, epoch = replica.config, replica.steps_per_epoch
    while state.t < replica.steps:
        taken = advance(replica, exchange, state, wish(), log)
        state, last = taken.after, taken.after.t == replica.steps
        log.step(taken)
        if state.t % (epoch * c.eval_every) == 0 and not last:
            log.evaluate(state)
        if state.t % (epoch * c.checkpoint_every) == 0 or last or taken.stop:
            if not np.isfinite(state.theta).all():
                raise diverged(replica, state.t - 1, "a weight is not finite after it")
            log.checkpoint(state)
        if taken.stop and not last:
            raise Stopped(f"stopped after step {state.t} of {replica.steps}")
    return state


def resumed(replica: Replica, run: Run) -> tuple[Any, int, list[str]]:
    """The state after the last whole record of a run, where that ends, and what there is to say of it."""
    journal, said = runs.journal_of(run, replica.config), []
    steps = sum(1 for _ in journal.records())
    if journal.torn:
        said.append(
            f"{run.journal} ended in the middle of step {steps}: the torn record of {journal.torn} bytes is cut"
        )
    state, wrong = runs.newest(run, replica.config.digest, steps)
    state = state or replica.start()
    for record in journal.records():
        if record.t >= state.t:
            state = replica.repeat(state, record)
    return state, journal.end, [*said, *wrong]
