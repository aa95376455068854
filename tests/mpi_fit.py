"""What tests have mpiexec start to train from Python: `mpi_fit.py WHAT`, in the current folder."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import rbd_ref
from rbd_mpi.communicator import MpiCommunicator
from rbd_ref.training.trainer import StepRecord

RANK = int(os.environ.get("PMI_RANK", 0))
CONFIG = rbd_ref.Config(dims=8, lr=0.5, steps=12, workers=5, combine="mean")


class Bowl:
    """|theta - m|^2 / 2 with an m for each batch."""

    D = 40

    def initial(self, seed: int) -> np.ndarray:
        return np.zeros(self.D, dtype=np.float32)

    def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
        x = theta - 1 - 0.1 * np.random.default_rng((step, worker)).standard_normal(self.D)
        return float(x @ x / 2), x.astype(np.float32)


class Failing(Bowl):
    """One rank's worker fails at a step."""

    def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
        if (step, worker) == (3, 4):
            raise ZeroDivisionError("a fault of the problem's own")
        return super().loss_and_gradient(theta, step, worker)


def say(text: str) -> None:
    """For the test to read: a file of this rank's own, as launchers mix what ranks print."""
    with Path(f"rank-{RANK}.txt").open("a") as out:
        out.write(f"{text}\n")


def twice() -> None:
    """Two runs in one script: what each rank has at the end."""
    first = rbd_ref.fit(CONFIG, Bowl())
    second = rbd_ref.fit(CONFIG, Bowl(), out="run")
    assert first.sha256 == second.sha256
    say(f"{second.sha256} {second.history.loss.sum():.6f} {second.out}")


def stopped() -> None:
    """A callback of rank 1 alone asks to stop after the fifth step; what callbacks keep of a step stays as it was."""
    kept: list[tuple[np.ndarray, np.ndarray]] = []

    def watch(record: StepRecord) -> bool:
        kept.append((record.payloads, record.payloads.copy()))
        return RANK == 1 and record.t == 5

    result = rbd_ref.fit(CONFIG, Bowl(), out="run", callbacks=[watch])
    assert all(np.array_equal(array, copy) for array, copy in kept)
    say(f"{result.step} {result.stopped} {result.sha256}")


def mistaken() -> None:
    """A setting that is wrong: all ranks can catch it, and go on."""
    try:
        rbd_ref.fit(rbd_ref.Config(dims=41, steps=1), Bowl())
    except rbd_ref.RunError as error:
        say(str(error))
    twice()


def failing() -> None:
    """A rank that raises takes all others with it."""
    rbd_ref.fit(CONFIG, Failing(), out="run")


class Counting:
    """A communicator of MPI's that counts the bytes of the floats that this rank hands to it."""

    def __init__(self, comm: Any, handed: list[int]) -> None:
        self.comm = comm
        self.handed = handed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def Iallgatherv(self, sent: Any, received: Any) -> Any:
        table, counts = received
        if table.dtype == np.float32:
            self.handed.append(table.itemsize * counts[self.comm.rank])
        return self.comm.Iallgatherv(sent, received)


class Wide(Bowl):
    """As many elements as a thousand bytes have signs, and some more."""

    D = 8000


def counted() -> None:
    """The bytes that this rank hands to MPI at each step, for each way to send coefficients; every rank is a node."""
    handed: list[int] = []
    true = MpiCommunicator.__init__

    def init(self: MpiCommunicator, *arguments: Any) -> None:
        true(self, *arguments)
        for exchange in (self.by_rank, self.by_node):
            exchange.leaders = Counting(exchange.leaders, handed)

    MpiCommunicator.__init__ = init  # type: ignore[method-assign]
    found = {}
    for name in ("float32", "int8", "sign"):
        handed.clear()
        rbd_ref.fit(replace(CONFIG, dims=7968, family="srht", steps=3, coefficients=name), Wide())
        found[name] = list(handed)
    say(json.dumps(found))


if __name__ == "__main__":
    bodies = (twice, stopped, mistaken, failing, counted)
    {body.__name__: body for body in bodies}[sys.argv[1]]()
