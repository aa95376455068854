"""The command `rbd warmup`, also `python -m rbd_ref.warmup`: compile the kernels before they are needed.

Kernels are compiled when they are first called, and kept on disk. This calls them: directions of every kind and the
gradients of every network, in a few processes at once.
Tests: tests/test_warmup.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context

import numpy as np

from rbd_ref._machine import cores
from rbd_ref._progress import bar
from rbd_ref.basis import Basis
from rbd_ref.data.augmentation import augmented
from rbd_ref.data.datasets import STANDARDS
from rbd_ref.kernels import _jit
from rbd_ref.kernels.backend import SMALL
from rbd_ref.kernels.compiling import watch_compiling
from rbd_ref.kernels.tiles import KERNELS
from rbd_ref.models import networks
from rbd_ref.training.logbook import stderr

DESCRIPTION = "Compile all kernels now, so that no run waits for them. They are kept on disk until the package changes."
CLASSES = 10
BATCH = 32


def directions(family: str, D: int) -> None:
    """All operations on a basis of one compartment of D elements."""
    basis = Basis(D=D, d=2, family=family)
    g = np.ones(D, dtype=np.float32)
    basis.descend(g, 0)
    basis.reconstruct(basis.project(g, 0), 0)
    basis.directions([0], 0)


def families() -> None:
    """What each family has of its own."""
    for family in KERNELS:
        directions(family, 100)


def gradients(net: str, data: str) -> None:
    """Loss and gradient of a network, its predictions, and the augmentation of its images."""
    shape = STANDARDS[data].shape
    network = networks.make(net, shape, CLASSES)
    theta, labels = networks.initialise(network, 0), np.zeros(BATCH, dtype=np.int64)
    images = augmented(data, np.zeros((BATCH, *shape), dtype=np.uint8), 0, 0, np.arange(BATCH))
    networks.loss_and_gradient(network, theta, images, labels)
    networks.accuracy(network, theta, images, labels, images)


WORK: tuple[Callable[[], None], ...] = (  # the longest first
    partial(gradients, "resnet8", "cifar-10"),
    partial(directions, "normal", 8 * SMALL),
    partial(directions, "srht", 8 * SMALL),
    families,
    partial(gradients, "cnn", "mnist"),
    partial(directions, "srht", 100),
    partial(gradients, "fc", "digits"),
)


def compiled(work: Callable[[], None]) -> int:
    """How many functions were compiled for a piece of work."""
    with watch_compiling() as watch:
        work()
    return watch.count


def warm_up(jobs: int, shown: bool | None) -> int:
    """All work, in so many processes; how many functions were compiled."""
    count = 0
    progress = bar("compiling kernels", len(WORK), shown)
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(compiled, work) for work in WORK]):
            count += done.result()
            progress.update()
    progress.close()
    return count


def parser() -> argparse.ArgumentParser:
    """All flags."""
    result = argparse.ArgumentParser("python -m rbd_ref.warmup", description=DESCRIPTION)
    result.add_argument("--jobs", metavar="N", type=int, default=cores(), help="processes (default: as many as cores)")
    result.add_argument("--quiet", action="store_true", help="no bar and no figures")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0, or 2 after a sentence of what is wrong."""
    flags = parser().parse_args(arguments)
    if flags.jobs < 1:
        stderr(f"rbd_ref.warmup: --jobs is {flags.jobs}, expected 1 or more: choose another")
        return 2
    began = time.perf_counter()
    count = warm_up(flags.jobs, False if flags.quiet else None)
    if not flags.quiet:
        seconds = time.perf_counter() - began
        done = (
            f"compiled {count} functions in {seconds:.0f} s into" if count else "all kernels were compiled before, in"
        )
        print(f"{done} {_jit.cache_folder()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
