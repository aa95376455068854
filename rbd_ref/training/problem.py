"""What is trained: the loss of an embedded network on a data set, or anything of a user's own.

A problem of one's own is any object with

    D                                            the number of parameters
    initial(seed) -> theta                       float32 (D,), a function of the seed
    loss_and_gradient(theta, step, worker)       a float and float32 (D,), a function of its arguments

It trains with every method, exchange, journal and replay, as the embedded networks do. What it may have beside, and
what stands in where it does not:

    loss(theta, step, worker, offspring)         for nes; else the loss of `loss_and_gradient`
    evaluate(theta) -> {name: number}            after each epoch and at the end; else nothing is evaluated
    layers                                       sizes of each layer's tensors, for compartments; else one of D
    shapes                                       of each tensor, for methods that ask for matrices; else vectors
    steps_per_epoch                              else the whole run is one epoch

Tests: tests/test_fit.py, tests/test_training.py.
"""

from __future__ import annotations

import hashlib
import math
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from rbd_ref import backend as backends
from rbd_ref._check import member, vector
from rbd_ref._types import F32, TWO_32, Bytes, Float32Array, Indices
from rbd_ref.backend import Backend
from rbd_ref.data import batches
from rbd_ref.data.augmentation import network_input
from rbd_ref.data.batches import BatchAddress
from rbd_ref.data.datasets import STANDARDS, load
from rbd_ref.data.formats import CLASSES
from rbd_ref.methods.base import Shapes
from rbd_ref.models import networks
from rbd_ref.runs.config import REFERENCE, Config, Layers
from rbd_ref.runs.files import RunError
from rbd_ref.runs.memory import enough_memory
from rbd_ref.spec.prng import fold_in, stream_key, threefry2x32

CALIBRATION = 1000  # images whose mean and variance batch norm takes for evaluation
PARTS = ("train", "validation", "test")


class Problem(Protocol):
    """The least that a problem of a user's own has."""

    @property
    def D(self) -> int:
        """Number of parameters."""

    def initial(self, seed: int) -> Float32Array:
        """theta0."""

    def loss_and_gradient(self, theta: Float32Array, step: int, worker: int) -> tuple[float, Float32Array]:
        """Loss and gradient on the worker's batch of a step."""


class TrainingProblem(Problem, Protocol):
    """All that the trainer asks of a problem."""

    @property
    def layers(self) -> Layers:
        """The sizes of each layer's tensors."""

    @property
    def shapes(self) -> Shapes:
        """The shape of each tensor, in the order of theta."""

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps of a pass over the data; None where there is no such thing."""

    def loss(self, theta: Float32Array, step: int, worker: int, offspring: int | None) -> float:
        """The loss on a batch, or on the batch of an offspring."""

    def evaluate(self, theta: Float32Array) -> dict[str, float]:
        """Named figures while training."""

    def final(self, theta: Float32Array) -> dict[str, float]:
        """Named figures at the end."""

    def prepare(self) -> None:
        """Have all data at hand."""

    def use_threads(self, n: int) -> None:
        """Compute gradients with n threads."""


class NetworkProblem:
    """An embedded network on the batches of a data set, which is read when it is first needed."""

    def __init__(self, config: Config, backend: Backend) -> None:
        self.config = config
        self.backend = backend
        self.standard = STANDARDS[config.data]
        self.network = networks.make(config.net, self.standard.shape, CLASSES)

    @property
    def D(self) -> int:
        """Number of parameters."""
        return self.network.D

    @property
    def layers(self) -> Layers:
        """The sizes of each layer's tensors."""
        return self.network.sizes

    @property
    def shapes(self) -> Shapes:
        """The shape of each tensor."""
        return self.network.shapes

    @cached_property
    def steps_per_epoch(self) -> int:
        """Batches that each worker takes in an epoch."""
        images = self.standard.train - self.standard.test
        images -= batches.held_out(images, self.config.holdout)
        return batches.batches_of(images, self.config.workers, self.config.batch_size)

    def initial(self, seed: int) -> Float32Array:
        """theta0 of the network."""
        return networks.initialise(self.network, seed)

    @cached_property
    def divided(self) -> batches.Split:
        """The data set with its validation images apart."""
        c = self.config
        with enough_memory(f"the data set {c.data} was loaded"):
            return batches.split(load(c.data, c.data_dir or None, mirror=c.mirror or None), c.seed, c.holdout)

    def prepare(self) -> None:
        """Read the data set, or download it."""
        _ = self.divided

    @cached_property
    def source(self) -> Backend | None:
        """The backend that computes gradients, None for the reference. It is loaded when it is needed: whoever repeats
        a run from coefficients needs none."""
        name = self.config.gradients
        if name is None or name == REFERENCE:
            return None
        if not backends.is_path(name):
            member("gradients", name, [REFERENCE, *backends.names()])
        return checked_source(name, self.backend if name == self.config.backend else backends.load(name))

    def use_threads(self, n: int) -> None:
        """Those of whoever computes gradients, which is loaded now at the latest."""
        if self.source is not None:
            self.source.set_threads(n)

    def batch(self, step: int, worker: int, offspring: int | None = None) -> tuple[Float32Array, Bytes]:
        """The worker's batch of a step, or that of an offspring of the worker."""
        c = self.config
        epoch, number = divmod(step, self.steps_per_epoch)
        if offspring is not None:
            number = self.offspring_batch(step, worker, offspring)
        address = BatchAddress(epoch, worker, c.workers, number, c.batch_size)
        return batches.training_batch(self.divided, c.seed, address, augment=c.augment)

    def offspring_batch(self, step: int, worker: int, offspring: int) -> int:
        """(x0 n) >> 32 of the epoch's n batches, where (x0, x1) = threefry(k, (0, offspring)) and k is the stream
        `offspring` folded with step and worker."""
        key = fold_in(fold_in(stream_key(self.config.seed, "offspring"), step), worker)
        word = int(threefry2x32(key, np.array([0, offspring], dtype=np.uint32))[0])
        return word * self.steps_per_epoch // TWO_32

    def loss_and_gradient(self, theta: Float32Array, step: int, worker: int) -> tuple[float, Float32Array]:
        """By the reference, or by the backend that the settings name."""
        images, labels = self.batch(step, worker)
        return networks.gradient_of(self.source)(self.network, theta, images, labels.astype(np.int64))

    def loss(self, theta: Float32Array, step: int, worker: int, offspring: int | None) -> float:
        """The loss on that batch, or on the batch of an offspring."""
        return networks.loss(self.network, theta, *self.batch(step, worker, offspring))

    @cached_property
    def calibration(self) -> Float32Array:
        """The first training images, for batch norm."""
        return self.part("train")[0][:CALIBRATION]

    def part(self, name: str) -> tuple[Float32Array, Bytes]:
        """The images and labels of one of PARTS, not augmented."""
        dataset = self.divided.dataset
        if name == "test":
            return network_input(dataset.name, dataset.test_images), dataset.test_labels
        chosen = self.divided.train if name == "train" else self.divided.validation
        return network_input(dataset.name, dataset.train_images[chosen]), dataset.train_labels[chosen]

    def score(self, theta: Float32Array, name: str) -> tuple[float, float]:
        """Accuracy and loss on a part of the data."""
        images, labels = self.part(name)
        calibration = self.calibration if self.network.has_batch_norm else None
        with np.errstate(over="ignore", invalid="ignore"):
            logits = networks.logits(self.network, theta, images, calibration)
        return _scores(logits, labels)

    def as_input(self, images: ArrayLike) -> Float32Array:
        """Images as the network takes them: bytes scaled as in training, floats as they are."""
        array = np.asarray(images)
        if array.dtype != np.uint8 and not np.issubdtype(array.dtype, np.floating):
            raise TypeError(
                f"images have dtype {array.dtype}, expected uint8 as in the files of {self.config.data}, or floats "
                "that are scaled already: use astype(np.uint8)"
            )
        shape = self.standard.shape
        if array.shape[1:] == shape[:2] and shape[2] == 1:
            array = array[..., np.newaxis]
        if array.shape[1:] != shape or not len(array):
            expected = ", ".join(["n", *map(str, shape)])
            raise ValueError(f"images have shape {array.shape}, expected ({expected}) with n >= 1: reshape them")
        return network_input(self.config.data, array) if array.dtype == np.uint8 else array.astype(F32)

    def predict(self, theta: Float32Array, images: ArrayLike) -> Indices:
        """The class of each image."""
        calibration = self.calibration if self.network.has_batch_norm else None
        return networks.predictions(self.network, theta, self.as_input(images), calibration)

    def evaluate(self, theta: Float32Array) -> dict[str, float]:
        """Accuracy and loss on the validation set."""
        accuracy, loss = self.score(theta, "validation")
        return {"validation_accuracy": accuracy, "validation_loss": loss}

    def final(self, theta: Float32Array) -> dict[str, float]:
        """The accuracy on each part of the data."""
        return {f"{name}_accuracy": self.score(theta, name)[0] for name in PARTS}


def checked_source(name: str, backend: Backend) -> Backend:
    """The backend of this name, if it has gradients of its own."""
    if not hasattr(backend, "loss_and_gradient"):
        raise ValueError(
            f"gradients {name!r} is a backend without gradients of its own, expected one that has them, as torch and "
            f"jax do: name one of these, or {REFERENCE}"
        )
    return backend


def _scores(logits: Float32Array, labels: Bytes) -> tuple[float, float]:
    """Accuracy and loss of logits; the loss is infinite where they are too large."""
    accuracy = float(np.mean(np.argmax(logits, axis=1) == labels))
    if not np.isfinite(logits).all():
        return accuracy, float("inf")
    return accuracy, networks.mean_cross_entropy(logits, labels)


class OwnProblem:
    """A problem of a user's own, with stand-ins for what it lacks."""

    def __init__(self, problem: Problem) -> None:
        missing = [name for name in ("D", "initial", "loss_and_gradient") if not hasattr(problem, name)]
        if missing:
            raise TypeError(
                f"problem is a {type(problem).__name__} without {', '.join(missing)}, expected an object with D, "
                "initial(seed) and loss_and_gradient(theta, step, worker): add what is missing"
            )
        self.problem = problem
        self.D = int(problem.D)
        self.layers: Layers = tuple(map(tuple, getattr(problem, "layers", ((self.D,),))))
        self.steps_per_epoch: int | None = getattr(problem, "steps_per_epoch", None)
        if sum(map(sum, self.layers)) != self.D:
            raise ValueError(f"the layers of the problem have {sum(map(sum, self.layers))} parameters, D is {self.D}")
        self.shapes = self._shapes()

    def _shapes(self) -> Shapes:
        """The problem's own, which have to be of its tensors; else each tensor is a vector."""
        sizes = [size for layer in self.layers for size in layer]
        shapes: Shapes = tuple(map(tuple, getattr(self.problem, "shapes", ((size,) for size in sizes))))
        if [math.prod(shape) for shape in shapes] != sizes:
            raise ValueError(
                f"the problem has tensors of shapes {shapes}, expected one for each of the sizes {sizes} in `layers`: "
                "correct shapes or layers"
            )
        return shapes

    def describe(self, seed: int) -> str:
        """What tells this problem from another: its name, D, and the sha256 of theta0."""
        digest = hashlib.sha256(self.initial(seed).tobytes()).hexdigest()
        return f"{type(self.problem).__name__}, D = {self.D}, theta0 {digest[:16]}"

    def initial(self, seed: int) -> Float32Array:
        """theta0, a copy that nobody else writes to."""
        return vector("initial(seed)", self.problem.initial(seed), self.D).copy()

    def prepare(self) -> None:
        """Nothing is known to prepare."""

    def use_threads(self, n: int) -> None:
        """Nor of any threads."""

    def loss_and_gradient(self, theta: Float32Array, step: int, worker: int) -> tuple[float, Float32Array]:
        """The problem's own, which gets a copy of theta: replicas would differ if it wrote to theirs."""
        loss, found = self.problem.loss_and_gradient(theta.copy(), step, worker)
        g = np.asarray(found)
        if g.shape != (self.D,) or not np.issubdtype(g.dtype, np.floating):
            raise RunError(
                f"the gradient of step {step} and worker {worker} is {g.dtype} of shape {g.shape}, expected floats of "
                f"shape ({self.D},): convert it, or correct D"
            )
        with np.errstate(over="ignore"):
            return float(loss), g.astype(F32, copy=False)

    def loss(self, theta: Float32Array, step: int, worker: int, offspring: int | None) -> float:
        """The problem's own, or that which comes with the gradient."""
        if hasattr(self.problem, "loss"):
            return float(self.problem.loss(theta.copy(), step, worker, offspring))
        return self.loss_and_gradient(theta, step, worker)[0]

    def evaluate(self, theta: Float32Array) -> dict[str, float]:
        """The problem's own figures, if it has some."""
        if not hasattr(self.problem, "evaluate"):
            return {}
        return {str(name): float(value) for name, value in self.problem.evaluate(theta.copy()).items()}

    def final(self, theta: Float32Array) -> dict[str, float]:
        """The same at the end."""
        return self.evaluate(theta)
