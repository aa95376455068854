"""Data sets by name: their standard files read, checked by fingerprint, or downloaded.

`digits` is in the package; `mnist`, `fashion-mnist` and `cifar-10` are read from a folder in their standard files, or
downloaded. A name means exactly those images: what was read is compared with a known sha256, so that replicas
on unlike machines cannot train on unlike data.
Tests: tests/test_data.py.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rbd_ref._check import member
from rbd_ref._types import Bytes
from rbd_ref.data import downloads, formats
from rbd_ref.data.errors import DataError

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
    count = standard.train + standard.test
    cut = standard.train
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
    files = _idx_files(folder)
    if files is None:
        return None
    standard = STANDARDS[name]
    counts = (standard.train, standard.test)
    size = standard.shape[:2]
    train, test = (formats.read_idx(path, (count, *size)) for path, count in zip(files[::2], counts, strict=True))
    labels = [
        formats.check_labels(str(path), formats.read_idx(path, (count,)))
        for path, count in zip(files[1::2], counts, strict=True)
    ]
    return _dataset(name, (train, test), (labels[0], labels[1]))


def _cifar_places(folder: Path) -> Iterator[tuple[Path, list[str], formats.Format]]:
    """Where batches can be from a folder on: beside or in the folder or archive of their format, binary ones first."""
    binary = [f"{name}.bin" for name in BATCHES]
    for names, form, kind in ((binary, formats.BINARY, "bin"), (BATCHES, formats.PYTHON, "py")):
        for place in (folder, folder / f"cifar-10-batches-{kind}"):
            if all((place / name).is_file() for name in names):
                yield place, names, form
        archive = folder / f"cifar-10-{'binary' if kind == 'bin' else 'python'}.tar.gz"
        if archive.is_file():
            yield archive, names, form


def _read_cifar(name: str, folder: Path) -> Dataset | None:
    """CIFAR-10 in any of its formats, if it is in the folder."""
    place = next(_cifar_places(folder), None)
    if place is None:
        return None
    cut = STANDARDS[name].train
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
    found = fingerprint(dataset)
    expected = STANDARDS[dataset.name].sha256
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
    """The data set of this name, whose images and labels are those of its standard files to the byte.

    It is looked for in FOLDER/NAME, in FOLDER and in Debian's packages, and else downloaded to FOLDER/NAME.

    Args:
        name: `digits`, `mnist`, `fashion-mnist` or `cifar-10`.
        folder: where its files are or go; by default RBD_REF_DATA or ~/.cache/rbd_ref/data.
        download: whether files that are nowhere may be downloaded.
        mirror: an address to download from instead of the usual ones; by default RBD_REF_MIRROR.
        progress: a progress bar or none; by default one if stderr is a terminal.

    Returns:
        The data set, its arrays read-only. What cannot be had is a `DataError` of one sentence.

    >>> digits = load("digits")
    >>> digits.train_images.shape, digits.test_labels.shape, digits.input_shape, digits.classes
    ((1500, 8, 8, 1), (297,), (8, 8, 1), 10)
    """
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
        raise _missing(name, places)
    return found


def _missing(name: str, places: list[Path]) -> DataError:
    files = ", ".join(remote.file for remote in downloads.FILES[name])
    return DataError(
        f"{name} is not complete in any of {', '.join(map(str, places))}, expected {files}: put the files into the "
        "first, name another folder with --data-dir or RBD_REF_DATA, or allow the download"
    )
