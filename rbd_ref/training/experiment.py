"""A replica: the weights of a configuration at any step, from what the workers sent.

`Replica` holds what follows from a configuration alone: network, bases, methods, theta0. Trainer and replay advance it.
`Problem` is the loss on the data set, which only those who look at data need.
Tests: tests/test_training.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rbd_ref import backend
from rbd_ref._types import F32, TWO_32, Bytes, Float32Array
from rbd_ref.backend import Backend
from rbd_ref.basis import Basis
from rbd_ref.data import augmentation, batches, datasets
from rbd_ref.data.batches import BatchAddress
from rbd_ref.data.formats import CLASSES
from rbd_ref.methods import descent
from rbd_ref.methods.descent import EMPTY, Method, Schedule, State
from rbd_ref.models import networks
from rbd_ref.models.networks import Network
from rbd_ref.runs import config as configs
from rbd_ref.runs.config import Config
from rbd_ref.runs.journal import Record
from rbd_ref.spec.prng import fold_in, stream_key, threefry2x32

CALIBRATION = 1000  # images whose mean and variance batch norm takes for evaluation


@dataclass(frozen=True, eq=False)
class Problem:
    """The loss of a network on a data set's batches: a `descent.Oracle`; gradients are the backend's if it has some."""

    config: Config
    network: Network
    divided: batches.Split
    backend: Backend

    def batch(self, t: int, worker: int, offspring: int | None = None) -> tuple[Float32Array, Bytes]:
        """The worker's batch of step t, or that of an offspring of the worker."""
        c = self.config
        epoch, number = divmod(t, batches.batches_of(len(self.divided.train), c.workers, c.batch_size))
        if offspring is not None:
            number = self.offspring_batch(t, worker, offspring)
        address = BatchAddress(epoch, worker, c.workers, number, c.batch_size)
        return batches.training_batch(self.divided, c.seed, address, augment=c.augment)

    def offspring_batch(self, t: int, worker: int, offspring: int) -> int:
        """(x0 n) >> 32 of the epoch's n batches, where (x0, x1) = threefry(k, (0, offspring)) and k is the stream
        `offspring` folded with step and worker."""
        key = fold_in(fold_in(stream_key(self.config.seed, "offspring"), t), worker)
        word = int(threefry2x32(key, np.array([0, offspring], dtype=np.uint32))[0])
        number = batches.batches_of(len(self.divided.train), self.config.workers, self.config.batch_size)
        return word * number // TWO_32

    def gradient(self, theta: Float32Array, t: int, worker: int) -> tuple[float, Float32Array]:
        """Loss and gradient on the worker's batch of step t."""
        images, labels = self.batch(t, worker)
        return networks.gradient_of(self.backend)(self.network, theta, images, labels.astype(np.int64))

    def loss(self, theta: Float32Array, t: int, worker: int, offspring: int | None) -> float:
        """The loss on that batch, or on the batch of an offspring."""
        return networks.loss(self.network, theta, *self.batch(t, worker, offspring))

    @cached_property
    def calibration(self) -> Float32Array:
        """The first training images, for batch norm."""
        return self.part("train")[0][:CALIBRATION]

    def part(self, name: str) -> tuple[Float32Array, Bytes]:
        """The images and labels of `train`, `validation` or `test`, not augmented."""
        dataset = self.divided.dataset
        if name == "test":
            return augmentation.network_input(dataset.name, dataset.test_images), dataset.test_labels
        chosen = self.divided.train if name == "train" else self.divided.validation
        return augmentation.network_input(dataset.name, dataset.train_images[chosen]), dataset.train_labels[chosen]

    def evaluate(self, theta: Float32Array, name: str) -> tuple[float, float]:
        """Accuracy and loss on a part of the data."""
        images, labels = self.part(name)
        calibration = self.calibration if self.network.has_batch_norm else None
        with np.errstate(over="ignore", invalid="ignore"):
            logits = networks.logits(self.network, theta, images, calibration)
        return self._scores(logits, labels)

    def _scores(self, logits: Float32Array, labels: Bytes) -> tuple[float, float]:
        """Accuracy and loss of logits; the loss is none where they are too large."""
        if not np.isfinite(logits).all():
            return float(np.mean(np.argmax(logits, axis=1) == labels)), float("inf")
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        loss = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]
        return float(np.mean(np.argmax(logits, axis=1) == labels)), float(np.mean(loss))


class Replica:
    """Everything that follows from a configuration: how its weights begin, and how a step changes them."""

    def __init__(self, config: Config) -> None:
        self.config, standard = config, datasets.STANDARDS[config.data]
        self.network = networks.make(config.net, standard.shape, CLASSES)
        self.plan = configs.plan(config, self.network)
        self.basis = Basis(self.plan, config.seed, config.family, config.normalize, config.backend)
        self.steps_per_epoch = batches.batches_of(standard.train - standard.test, config.workers, config.batch_size)
        self.steps = config.steps or config.epochs * self.steps_per_epoch
        self.schedule = Schedule(
            tuple(
                (epoch * self.steps_per_epoch, descent.make(name, self.basis, settings))
                for epoch, name, settings in config.phases
            )
        )

    @cached_property
    def problem(self) -> Problem:
        """The loss, with its data set."""
        c = self.config
        dataset = datasets.load(c.data, c.data_dir or None, mirror=c.mirror or None)
        return Problem(c, self.network, batches.split(dataset, c.seed), self.basis.backend)

    def use_threads(self, n: int) -> None:
        """Kernels of networks and directions use n threads, or (0) as many as they do."""
        backend.load("numba").set_threads(n)
        self.basis.backend.set_threads(n)

    def rehearse(self) -> None:
        """One step of each method that leads nowhere: afterwards all kernels are compiled and kept on disk."""
        for first, method in self.schedule.phases:
            state = method.init(self.start().theta, first)
            rows = [method.look(self.problem, state, 0).numbers] * self.config.workers
            method.step(state, np.stack(rows))

    def start(self) -> Any:
        """The state before the first step."""
        return State(networks.initialise(self.network, self.config.seed), 0, EMPTY)

    def next(self, state: Any) -> tuple[Any, Method]:
        """The state as the next step's method takes it, and that method."""
        return self.schedule.entered(state), self.schedule.at(state.t)

    def repeat(self, state: Any, record: Record) -> Any:
        """A step from what was sent; from the data, if what was sent was too much to be kept."""
        state, method = self.next(state)
        with np.errstate(over="ignore", invalid="ignore"):
            if method.replayable:
                return method.step(state, record.numbers[:, :-1])
            looks = [method.look(self.problem, state, w).numbers for w in range(self.config.workers)]
            return method.step(state, np.stack(looks).astype(F32, copy=False))
