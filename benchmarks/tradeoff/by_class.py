"""Sixteen workers whose data differ: the training images sorted by class and dealt out in one piece for each worker.

A worker sees one class of ten, or two. All else is as in the trainer: its own order in every epoch, batches of the same
size, the same validation images.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from rbd_ref import Config, fit
from rbd_ref.data.augmentation import network_input
from rbd_ref.data.batches import order
from rbd_ref.kernels.backend import NumbaBackend
from rbd_ref.models import networks
from rbd_ref.training.problem import NetworkProblem


class ByClass:
    """A problem of one's own (training/problem.py) around an embedded network."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.inner = NetworkProblem(config, NumbaBackend())
        self.D = self.inner.D
        self.layers = self.inner.layers
        self.steps_per_epoch = self.inner.steps_per_epoch
        self.initial = self.inner.initial
        self.evaluate = self.inner.evaluate
        labels = self.inner.divided.dataset.train_labels
        train = self.inner.divided.train
        self.order = lru_cache(maxsize=2 * config.workers)(order.__wrapped__)  # that of the package keeps a few only
        self.pieces = np.array_split(train[np.argsort(labels[train], kind="stable")], config.workers)

    def loss_and_gradient(self, theta: Any, step: int, worker: int) -> tuple[float, Any]:
        """On the next images of the worker's own."""
        epoch, number = divmod(step, self.steps_per_epoch)
        size = self.config.batch_size
        piece = self.pieces[worker]
        places = self.order(len(piece), self.config.seed, self.config.workers * epoch + worker)
        chosen = piece[places[number * size : (number + 1) * size]]
        data = self.inner.divided.dataset
        images = network_input(data.name, data.train_images[chosen])
        return networks.loss_and_gradient(self.inner.network, theta, images, data.train_labels[chosen].astype(np.int64))


def fit_by_class(config: Config) -> Any:
    """`fit` with the images of each worker sorted by class."""
    own = {name: getattr(Config(), name) for name in ("data", "data_dir", "net", "holdout", "augment")}
    return fit(replace(config, **own), ByClass(config))
