"""What is compared: four tasks, seven contenders, and how many bytes a worker may send at a step; and sixteen workers.

A cell is one contender on one task with one budget. Its rate is searched (run.py), from the start that is given here:
for descent along random directions eta d / D near what SGD takes, as far as the noise of few directions allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

FLOAT = 4  # bytes
EPOCHS = 10

TASKS = {  # data set and network, number of parameters, SGD's rate
    "fmnist-fc": ("fashion-mnist", "fc", 101_770, 2**-2),
    "cifar-fc": ("cifar-10", "fc", 394_634, 2**-4),
    "fmnist-cnn": ("fashion-mnist", "cnn", 93_322, 2**-3),
    "cifar-cnn": ("cifar-10", "cnn", 122_570, 2**-4),
}
DIMS = (250, 2_500, 25, 2, 10_000)  # budgets in floats, those first that say most
ALONG = {"method": "rbd", "family": "srht"}
WORKERS = 16
BATCHES = {32: 10, 2: 2}  # images of a worker's batch, and epochs: as many images a step as one worker has, or 16 times
EXCHANGES = ("independent", "shared")
BY_CLASS = "by_class"  # no setting of the trainer: by_class.py
PEERS = {"topk": "benchmarks.peers.topk:make", "powersgd": "benchmarks.peers.powersgd:make"}


@dataclass(frozen=True)
class Cell:
    """A contender on a task with a budget of so many floats a step."""

    task: str
    contender: str
    floats: int
    settings: dict[str, Any]
    start: float
    epochs: int = EPOCHS

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.task}-{self.contender}-{self.floats}"


def along_directions(task: str, contender: str, floats: int) -> Cell:
    """Random bases descent: plain, with memory, with error feedback, or with signs for coefficients."""
    data, net, D, sgd = TASKS[task]
    d = 32 * (floats - 1) if contender == "memory-sign" else floats
    extra: dict[str, Any] = {
        "rbd": {},
        "memory": {"memory": 0.99},
        "feedback": {"feedback": True},
        "memory-sign": {"memory": 0.95, "coefficients": "sign"},
    }[contender]
    reach = {"rbd": 8.0, "memory": 128.0, "feedback": sgd, "memory-sign": 16.0}[contender]
    start = min(reach, sgd * D / d)
    return Cell(task, contender, floats, {"data": data, "net": net, **ALONG, "dims": d, **extra}, start)


def cell(task: str, contender: str, floats: int) -> Cell:
    """Any cell."""
    data, net, _, sgd = TASKS[task]
    if contender == "sgd":
        return Cell(task, contender, floats, {"data": data, "net": net, "method": "sgd"}, sgd)
    if contender in PEERS:
        settings = {"data": data, "net": net, "method": PEERS[contender], "dims": floats}
        return Cell(task, contender, floats, settings, sgd / 4 if contender == "powersgd" else sgd)
    return along_directions(task, contender, floats)


def contenders(floats: int, D: int) -> Iterator[str]:
    """Who can do with this budget."""
    yield from ("rbd", "memory")
    if 32 * (floats - 1) in range(1, D):
        yield "memory-sign"
    if floats >= 2:
        yield "topk"
    if floats in (250, 2_500):
        yield from ("powersgd", "feedback")


def cells() -> list[Cell]:
    """All, those first that say most: SGD and the paper's budget on every task, then more and fewer bytes."""
    found = []
    for floats in DIMS:
        for task, (_, _, D, _) in TASKS.items():
            if floats == DIMS[0]:
                found.append(cell(task, "sgd", D))
            found += [cell(task, contender, floats) for contender in contenders(floats, D)]
    return found


def worker_cell(batch: int, by_class: bool, contender: str, exchange: str) -> Cell:
    """Sixteen workers on the first task, each with images like those of the others or with few classes."""
    task = "fmnist-fc"
    alone = cell(task, contender, TASKS[task][2] if contender == "sgd" else DIMS[0])
    together = {"workers": WORKERS, "batch_size": batch, "combine": "mean"}
    if contender != "sgd":
        together["exchange"] = exchange
    if by_class:
        together[BY_CLASS] = True
    name = f"workers-{batch}-{'classes' if by_class else 'alike'}"
    kind = contender if contender == "sgd" else f"{contender}-{exchange}"
    return Cell(name, kind, alone.floats, alone.settings | together, alone.start, BATCHES[batch])


def worker_cells() -> list[Cell]:
    """SGD, and plain and with memory along bases of one's own or one basis for all."""
    found = []
    for batch in BATCHES:
        for by_class in (False, True):
            found.append(worker_cell(batch, by_class, "sgd", ""))
            along = [(contender, exchange) for contender in ("memory", "rbd") for exchange in EXCHANGES]
            found += [worker_cell(batch, by_class, *each) for each in along]
    return found


def twenty_cells() -> list[Cell]:
    """The paper's budget for twice as long."""
    return [cell("fmnist-fc", name, DIMS[0]) for name in ("memory", "rbd", "memory-sign", "topk")] + [
        cell("fmnist-fc", "sgd", TASKS["fmnist-fc"][2])
    ]


def long_cells() -> list[Cell]:
    """The paper's hardest task."""
    return [cell("cifar-cnn", name, DIMS[0]) for name in ("memory", "memory-sign", "rbd", "topk")] + [
        cell("cifar-cnn", "sgd", TASKS["cifar-cnn"][2])
    ]


def rates(start: float) -> list[float]:
    """Powers of two around the start, far enough for any search."""
    middle = round(math.log2(start))
    return [2.0**e for e in range(middle - 10, middle + 11)]
