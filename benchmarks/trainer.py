"""What the trainer itself costs: a step of the paper's first network (fc, D = 101,770, d = 250), its time by part.

    python benchmarks/trainer.py

All but the gradient and `descend` is the trainer's own: batches and augmentation, the step of the weights, journal,
metrics, evaluations, checkpoints. The images are noise of MNIST's size, a quarter as many for training and for
evaluation: evaluations have the share of a step that they have with all, the checkpoint a larger one. Parts that are
not timed by themselves are in `rest`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from speed import BATCH, keep, machine

from rbd_ref.data import batches, datasets
from rbd_ref.kernels.backend import NumbaBackend
from rbd_ref.kernels.compiling import Compiling
from rbd_ref.models import networks
from rbd_ref.runs import folder as runs
from rbd_ref.runs.config import Config
from rbd_ref.training.communicator import single_process
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.logbook import Console, Logbook
from rbd_ref.training.problem import NetworkProblem
from rbd_ref.training.trainer import Trainer

WARM_UP = 20  # steps
PART = 4  # of MNIST's images one in so many
spent: defaultdict[str, float] = defaultdict(float)


@contextmanager
def counted(part: str) -> Iterator[None]:
    """The time within belongs to a part."""
    begin = time.perf_counter()
    yield
    spent[part] += time.perf_counter() - begin


def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose time belongs to a part."""

    def call(*arguments: Any) -> Any:
        with counted(part):
            return function(*arguments)

    return call


class TimedBackend(NumbaBackend):
    """The reference, by the clock; gradients are the package's."""

    loss_and_gradient = staticmethod(timed("gradient", networks.loss_and_gradient))
    descend = timed("descend", NumbaBackend.descend)


class TimedProblem(NetworkProblem):
    """Batches by the clock."""

    batch = timed("batches", NetworkProblem.batch)


class TimedLogbook(Logbook):
    """What is written down, by the clock."""

    journal = timed("journal", Logbook.journal)
    step = timed("metrics", Logbook.step)
    evaluate = timed("evaluation", Logbook.evaluate)
    checkpoint = timed("checkpoint", Logbook.checkpoint)


def noise() -> datasets.Dataset:
    """Images and labels."""
    standard, generator = datasets.STANDARDS["mnist"], np.random.default_rng(0)
    counts = standard.train // PART, standard.test // PART
    images = [generator.integers(0, 256, (n, *standard.shape), np.uint8) for n in counts]
    labels = [generator.integers(0, 10, n, np.uint8) for n in counts]
    return datasets.Dataset("mnist", images[0], labels[0], images[1], labels[1])


def epoch(family: str, dataset: datasets.Dataset) -> dict[str, float]:
    """Milliseconds a step of every part, over an epoch."""
    divided = batches.split(dataset, 0)
    steps = batches.batches_of(len(divided.train), 1, BATCH)
    settings = Config(data="mnist", net="fc", family=family, dims=250, lr=1e-3, seed=0, steps=steps, batch_size=BATCH)
    experiment = Experiment(replace(settings, gradients=settings.backend))  # by the clock too, as TimedBackend has them
    experiment.basis.backend = TimedBackend()
    problem = TimedProblem(experiment.config, experiment.basis.backend)
    problem.divided = divided
    experiment.problem = problem
    for t in range(WARM_UP):
        experiment.basis.descend(problem.loss_and_gradient(experiment.start().theta, t, 0)[1], t)
    spent.clear()
    with tempfile.TemporaryDirectory() as folder:
        run = runs.create(Path(folder) / "run", experiment.config)
        world = single_process()
        log = TimedLogbook(
            experiment, world, Console(experiment, quiet=True, verbose=False, terminal=False), Compiling(), run
        )
        with counted("all"):
            Trainer(experiment, world, log).train(experiment.start())
        log.close()
    found = {part: 1e3 * seconds / steps for part, seconds in spent.items()}
    return found | {"rest": 2 * found["all"] - sum(found.values())}


def main() -> None:
    """Measure, print, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    before = machine()
    dataset = noise()
    found = {}
    for family in ("normal", "srht"):
        parts = found[family] = epoch(family, dataset)
        own = parts["all"] - parts["gradient"] - parts["descend"]
        print(
            f"{family}: {parts['all']:.3f} ms a step, of which the trainer's own {own:.3f} ms, {own / parts['all']:.1%}"
        )
        print(", ".join(f"{part} {value:.3f}" for part, value in parts.items() if part != "all"))
    keep(options.json, before, milliseconds=found)


if __name__ == "__main__":
    main()
