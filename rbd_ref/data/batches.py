"""Who sees which images when: the cut into training, validation and test set, and the order of the batches.

Specification of the order. A data set has a training set of N images and a test set of M, in the order of its files.
 - Validation: image i of the training set has the word x0 of threefry(stream_key(seed, "split"), (0, i)). The M images
   whose words are the lowest (of equal words, the lower i first) are the validation set, the other N - M remain to
   train on; both in ascending order of i.
 - Holdout h, for a search of settings: of the N - M images that remain, the floor(h (N - M)) whose words are the lowest
   are the validation set instead, and only the others are trained on.
 - Epoch e: remaining image j = 0, 1, ... has the word x0 of threefry(fold_in(stream_key(seed, "order"), e), (0, j)),
   and the epoch takes the images in ascending order of their words (of equal words, the lower j first).
 - Workers: worker w of W takes positions w, w + W, w + 2 W, ... of that order; element i of its batch t of B images is
   at position w + W (t B + i). So no two workers share an image within an epoch, and the batches t of all workers
   together are the batch t of one worker with W B images.
 - An epoch has (N - M) div (W B) batches: the images after the last complete one are left out, others in every epoch,
   so that all workers take as many steps with as many images.
All this is a function of its arguments: to go on in the middle of an epoch takes no state but its numbers.
Tests: tests/test_data.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from rbd_ref._check import integer
from rbd_ref._types import TWO_32, Bytes, Float32Array, Indices, Words
from rbd_ref.data.augmentation import augmented, network_input
from rbd_ref.data.datasets import Dataset
from rbd_ref.spec.prng import fold_in, stream_key, threefry2x32


@dataclass(frozen=True, eq=False)
class Split:
    """A data set with its training images divided: `train` and `validation` are indices into them."""

    dataset: Dataset
    train: Indices
    validation: Indices


class BatchAddress(NamedTuple):
    """Which batch: e, w, W, t and B of the specification."""

    epoch: int
    worker: int
    workers: int
    number: int  # within the epoch
    size: int  # images


def _ranked(key: Words, count: int) -> Indices:
    """0 .. count - 1 in ascending order of their words, the lower number first among equals."""
    numbers = np.arange(count, dtype=np.uint32)
    words = threefry2x32(key, np.stack([np.zeros_like(numbers), numbers]))[0]
    return np.argsort(words, kind="stable")


def held_out(images: int, holdout: float) -> int:
    """How many of the images that remain to train on are held out."""
    return int(images * holdout)


def split(dataset: Dataset, seed: int, holdout: float = 0.0) -> Split:
    """Cut a validation set as large as the test set from the training set.

    Args:
        dataset: N training images and M test images.
        seed: says which images, by its stream `split`; see the specification above.
        holdout: the share of the remaining images that is the validation set instead; 0 for none.

    Returns:
        The data set with the indices of N - M images to train on and of M to validate with, both ascending.

    >>> from rbd_ref.data.datasets import load
    >>> divided = split(load("digits"), seed=0)
    >>> len(divided.train), len(divided.validation), divided.validation[:5].tolist()
    (1203, 297, [6, 10, 14, 16, 17])
    """
    ranked = _ranked(stream_key(seed, "split"), len(dataset.train_labels))
    size = len(dataset.test_labels)
    if held := held_out(len(ranked) - size, holdout):
        return Split(dataset, train=np.sort(ranked[size + held :]), validation=np.sort(ranked[size : size + held]))
    return Split(dataset, train=np.sort(ranked[size:]), validation=np.sort(ranked[:size]))


@lru_cache(maxsize=4)
def order(count: int, seed: int, epoch: int) -> Indices:
    """The order of an epoch of `count` images: a permutation of 0 .. count - 1, not to be written to.

    >>> order(10, seed=0, epoch=0).tolist()
    [6, 1, 9, 8, 5, 4, 2, 3, 7, 0]
    """
    permutation = _ranked(fold_in(stream_key(seed, "order"), epoch), integer("count", count, 1, TWO_32))
    permutation.flags.writeable = False
    return permutation


def batches_of(count: int, workers: int, size: int) -> int:
    """How many batches of `size` images each worker has in an epoch of `count` images: count div (workers size).

    >>> batches_of(1203, workers=16, size=32)
    2
    """
    together = integer("workers", workers, 1, TWO_32) * integer("size", size, 1, TWO_32)
    if together > count:
        raise ValueError(
            f"{workers} workers with batches of {size} need {together} images, expected {count} at most: "
            "choose fewer workers or smaller batches"
        )
    return count // together


def positions(divided: Split, address: BatchAddress) -> Indices:
    """The positions in the epoch's order of the images of a batch: w + W (t B + i) for i = 0 .. B - 1."""
    _, worker, workers, number, size = address
    integer("number", number, 0, batches_of(len(divided.train), workers, size))
    integer("worker", worker, 0, workers)
    return worker + workers * np.arange(number * size, (number + 1) * size)


def batch(divided: Split, seed: int, address: BatchAddress) -> Indices:
    """The images of a batch, as indices into the training images of the data set."""
    chosen = order(len(divided.train), seed, address.epoch)[positions(divided, address)]
    return divided.train[chosen]


def training_batch(
    divided: Split, seed: int, address: BatchAddress, augment: bool = True
) -> tuple[Float32Array, Bytes]:
    """A batch as a network takes it, and its labels.

    Args:
        divided: the data set and the images to train on.
        seed: says the order, and how images are changed.
        address: which batch of which worker.
        augment: whether images are changed at random, as augmentation.py specifies.

    Returns:
        Images (size, height, width, channels) in float32, and one label for each.

    >>> from rbd_ref.data.datasets import load
    >>> address = BatchAddress(epoch=0, worker=3, workers=16, number=1, size=32)
    >>> images, labels = training_batch(split(load("digits"), seed=0), 0, address)
    >>> images.shape, images.dtype, labels.shape
    ((32, 8, 8, 1), dtype('float32'), (32,))
    """
    data = divided.dataset
    indices = batch(divided, seed, address)
    images = data.train_images[indices]
    labels = data.train_labels[indices]
    if not augment:
        return network_input(data.name, images), labels
    return augmented(data.name, images, seed, address.epoch, positions(divided, address)), labels
