"""Data sets by name, the cut into training, validation and test set, and the order of the batches.

`digits` is in the package; `mnist`, `fashion-mnist` and `cifar-10` are read from a folder in their standard files, or
downloaded. A name means exactly those images: what was read is compared with a known sha256, so that replicas
on unlike machines cannot train on unlike data.

Specification of the order. A data set has a training set of N images and a test set of M, in the order of its files.
 - Validation: image i of the training set has the word x0 of threefry(stream_key(seed, "split"), (0, i)). The M images
   whose words are the lowest (of equal words, the lower i first) are the validation set, the other N - M remain to
   train on; both in ascending order of i.
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

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rbd_ref._check import integer, member
from rbd_ref._types import TWO_32, Bytes, Float32Array, Words
from rbd_ref.data import downloads, formats
from rbd_ref.data.augmentation import augmented, network_input
from rbd_ref.data.errors import DataError
from rbd_ref.spec.prng import fold_in, stream_key, threefry2x32

__all__ = ["DataError", "Dataset", "Split", "batch", "batches", "load", "network_input", "split", "training_batch"]

Indices = NDArray[np.int64]

DEBIAN = Path("/usr/share/datasets")  # where the package dataset-fashion-mnist has its files
EMBEDDED = Path(__file__).parent
BATCHES = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]


@dataclass(frozen=True)
class Standard:
    """What a data set is: numbers of images, their shape, and the sha256 of `fingerprint`."""

    train: int
    test: int
    shape: tuple[int, int, int]
    sha256: str


STANDARDS = {
    "digits": Standard(1500, 297, (8, 8, 1), "40392fed152d0c5c1db6cf3f5ecc6c69783c372dbebb453ab13d23b097e1e2e0"),
    "mnist": Standard(60000, 10000, (28, 28, 1), "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16"),
    "fashion-mnist": Standard(
        60000, 10000, (28, 28, 1), "ca3ab2a37f845e1b8ae23cab1b51749a3011ba3bf1d9016176d75cbaabac376f"
    ),
    "cifar-10": Standard(50000, 10000, (32, 32, 3), "80387ddb9a0edf3fc4a964ee3770296169bb26a651050df20035579673099660"),
}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images as bytes (count, height, width, channels) and their labels, as bytes too."""

    name: str
    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes
    classes: int = formats.CLASSES

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""
        height, width, channels = self.train_images.shape[1:]
        return height, width, channels

    @property
    def arrays(self) -> tuple[Bytes, Bytes, Bytes, Bytes]:
        """Training images and labels, test images and labels."""
        return self.train_images, self.train_labels, self.test_images, self.test_labels


@dataclass(frozen=True, eq=False)
class Split:
    """A data set with its training images divided: `train` and `validation` are indices into them."""

    dataset: Dataset
    train: Indices
    validation: Indices


def fingerprint(dataset: Dataset) -> str:
    """sha256 of the bytes of training images, training labels, test images and test labels."""
    digest = hashlib.sha256()
    for array in dataset.arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _dataset(name: str, images: tuple[Bytes, Bytes], labels: tuple[Bytes, Bytes]) -> Dataset:
    """The data set of (training, test) images and labels, not to be written to."""
    shape = STANDARDS[name].shape
    train, test = (part.reshape(-1, *shape) for part in images)
    result = Dataset(name, train, labels[0], test, labels[1])
    for array in result.arrays:
        array.flags.writeable = False
    return result


def _read_digits() -> Dataset:
    """The embedded images."""
    standard = STANDARDS["digits"]
    count, cut = standard.train + standard.test, standard.train
    images = formats.read_idx(EMBEDDED / "digits-images-idx3-ubyte.gz", (count, *standard.shape[:2]))
    labels = formats.read_idx(EMBEDDED / "digits-labels-idx1-ubyte.gz", (count,))
    return _dataset("digits", (images[:cut], images[cut:]), (labels[:cut], labels[cut:]))


def _idx_files(folder: Path) -> list[Path] | None:
    """Training images, training labels, test images, test labels as they are called there; None if one is missing."""
    found = []
    for part, kind in (
        ("train", "images-idx3"),
        ("train", "labels-idx1"),
        ("t10k", "images-idx3"),
        ("t10k", "labels-idx1"),
    ):
        names = [f"{part}-{stem}-ubyte{end}" for stem in (kind, kind.replace("-", ".")) for end in ("", ".gz")]
        found += [folder / name for name in names if (folder / name).is_file()][:1]
    return found if len(found) == 4 else None


def _read_idx_files(name: str, folder: Path) -> Dataset | None:
    """A data set in idx files, if they are in the folder."""
    files, standard = _idx_files(folder), STANDARDS[name]
    if files is None:
        return None
    counts, size = (standard.train, standard.test), standard.shape[:2]
    train, test = (formats.read_idx(path, (count, *size)) for path, count in zip(files[::2], counts, strict=True))
    labels = [
        formats.check_labels(str(path), formats.read_idx(path, (count,)))
        for path, count in zip(files[1::2], counts, strict=True)
    ]
    return _dataset(name, (train, test), (labels[0], labels[1]))


def _cifar_places(folder: Path) -> Iterator[tuple[Path, list[str], formats.Decoder]]:
    """Where batches can be from a folder on: beside or in the folder or archive of their format, binary ones first."""
    binary, python = [f"{name}.bin" for name in BATCHES], BATCHES
    for names, decode, kind in ((binary, formats.decode_binary, "bin"), (python, formats.decode_python, "py")):
        for place in (folder, folder / f"cifar-10-batches-{kind}"):
            if all((place / name).is_file() for name in names):
                yield place, names, decode
        archive = folder / f"cifar-10-{'binary' if kind == 'bin' else 'python'}.tar.gz"
        if archive.is_file():
            yield archive, names, decode


def _read_cifar(name: str, folder: Path) -> Dataset | None:
    """CIFAR-10 in any of its formats, if it is in the folder."""
    place, cut = next(_cifar_places(folder), None), STANDARDS[name].train
    if place is None:
        return None
    images, labels = formats.read_batches(*place, STANDARDS[name].test)
    return _dataset(name, (images[:cut], images[cut:]), (labels[:cut], labels[cut:]))


READERS = {"mnist": _read_idx_files, "fashion-mnist": _read_idx_files, "cifar-10": _read_cifar}


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """The folder given, which must exist, or RBD_REF_DATA, or ~/.cache/rbd_ref/data."""
    if folder is None:
        return Path(os.environ.get("RBD_REF_DATA") or Path.home() / ".cache" / "rbd_ref" / "data")
    if not Path(folder).is_dir():
        raise DataError(f"the data folder {folder} does not exist, expected a folder: correct the name or make it")
    return Path(folder)


def _find(name: str, places: list[Path]) -> Dataset | None:
    """The data set from the first folder that has all its files."""
    for place in places:
        found = READERS[name](name, place)
        if found is not None:
            return _checked(found, place)
    return None


def _checked(dataset: Dataset, place: Path) -> Dataset:
    """The data set, if it is what its name says."""
    found, expected = fingerprint(dataset), STANDARDS[dataset.name].sha256
    if found != expected:
        raise DataError(
            f"the files in {place} are well formed but do not hold {dataset.name}: images and labels have "
            f"sha256 {found}, expected {expected}: get the standard files"
        )
    return dataset


def load(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    download: bool = True,
    mirror: str | None = None,
    progress: bool | None = None,
) -> Dataset:
    """The data set `name`: from FOLDER/NAME or FOLDER (see `data_folder`), or Debian's packages, or else downloaded to
    FOLDER/NAME, with a progress bar if stderr is a terminal (or as `progress` says)."""
    member("data set", name, STANDARDS)
    if name == "digits":
        return _checked(_read_digits(), EMBEDDED)
    root = data_folder(folder)
    places = [root / name, root, DEBIAN / name]
    found = _find(name, places)
    if found is None and download:
        downloads.fetch(name, root / name, mirror, progress)
        found = _find(name, places)
    if found is None:
        files = ", ".join(remote.file for remote in downloads.FILES[name])
        raise DataError(
            f"{name} is not complete in any of {', '.join(map(str, places))}, expected {files}: put the files into the "
            "first, name another folder with --data-dir or RBD_REF_DATA, or allow the download"
        )
    return found


def _ranked(key: Words, count: int) -> Indices:
    """0 .. count - 1 in ascending order of their words, the lower number first among equals."""
    numbers = np.arange(count, dtype=np.uint32)
    return np.argsort(threefry2x32(key, np.stack([np.zeros_like(numbers), numbers]))[0], kind="stable")


def split(dataset: Dataset, seed: int) -> Split:
    """Cut a validation set as large as the test set from the training set: which images, the stream `split` says."""
    ranked, size = _ranked(stream_key(seed, "split"), len(dataset.train_labels)), len(dataset.test_labels)
    return Split(dataset, np.sort(ranked[size:]), np.sort(ranked[:size]))


@lru_cache(maxsize=4)
def order(count: int, seed: int, epoch: int) -> Indices:
    """The order of an epoch of `count` images: a permutation of 0 .. count - 1, not to be written to."""
    permutation = _ranked(fold_in(stream_key(seed, "order"), epoch), integer("count", count, 1, TWO_32))
    permutation.flags.writeable = False
    return permutation


def batches(divided: Split, workers: int, size: int) -> int:
    """Number of batches of `size` images that each worker has in an epoch, 1 at least."""
    return batches_of(len(divided.train), workers, size)


def batches_of(count: int, workers: int, size: int) -> int:
    """The same for a training set of `count` images."""
    together = integer("workers", workers, 1, TWO_32) * integer("size", size, 1, TWO_32)
    if together > count:
        raise ValueError(
            f"{workers} workers with batches of {size} need {together} images, expected {count} at most: "
            "choose smaller batches"
        )
    return count // together


def positions(divided: Split, worker: int, workers: int, number: int, size: int) -> Indices:
    """The positions in the epoch's order of batch `number` of a worker."""
    integer("number", number, 0, batches(divided, workers, size))
    integer("worker", worker, 0, workers)
    return worker + workers * np.arange(number * size, (number + 1) * size)


def batch(divided: Split, seed: int, epoch: int, worker: int, workers: int, number: int, size: int) -> Indices:
    """Batch `number` of a worker in an epoch: `size` indices into the training images of the data set."""
    chosen = order(len(divided.train), seed, epoch)[positions(divided, worker, workers, number, size)]
    return divided.train[chosen]


def training_batch(
    divided: Split, seed: int, epoch: int, worker: int, workers: int, number: int, size: int, augment: bool = True
) -> tuple[Float32Array, Bytes]:
    """That batch as a network takes it, augmented or not, and its labels."""
    indices, data = batch(divided, seed, epoch, worker, workers, number, size), divided.dataset
    images, labels = data.train_images[indices], data.train_labels[indices]
    if not augment:
        return network_input(data.name, images), labels
    places = positions(divided, worker, workers, number, size)
    return augmented(data.name, images, seed, epoch, places), labels
