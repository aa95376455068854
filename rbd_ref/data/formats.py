"""Readers of the files in which MNIST, Fashion-MNIST and CIFAR-10 are handed round: idx, binary and python batches.

Every reader is told the shape to expect and ends in a `DataError` that names the file when it finds another. The python
batches of CIFAR-10 are pickles, which can run any code; here they are read by an unpickler that knows three names, and
these mean stand-ins that only keep what they are given. Nothing from the file is ever called.
Tests: tests/test_data.py.
"""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from rbd_ref._types import Bytes
from rbd_ref.data.errors import DataError

Decoder = Callable[[str, bytes, int], tuple[Bytes, Bytes]]

CIFAR_SHAPE = (3, 32, 32)
CIFAR_PIXELS = 3 * 32 * 32
CLASSES = 10


def by(shape: Iterable[int]) -> str:
    """A shape in words: 60000 x 28 x 28."""
    return " x ".join(str(length) for length in shape)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Whatever goes wrong while a file is read, in one sentence."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise DataError(
            f"{path} is not whole ({error}), expected a complete compressed file: fetch it again"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}), expected a file: see to it") from error


def read_idx(path: Path, shape: tuple[int, ...]) -> Bytes:
    """The bytes of an idx file, compressed if its name ends in .gz, which must have exactly this shape."""
    width = 4 + 4 * len(shape)
    count = int(np.prod(shape))
    with _readable(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        head = file.read(width)
        body = file.read(count + 1)
    magic = bytes([0, 0, 8, len(shape)])
    if head[:4] != magic:
        raise DataError(f"{path} starts with the bytes {head[:4].hex() or 'of nothing'}, expected {magic.hex()} of idx")
    found = tuple(np.frombuffer(head[4 : len(head) // 4 * 4], dtype=">u4").tolist())
    if found != shape:
        raise DataError(f"{path} says that it holds {by(found) or 'nothing'}, expected {by(shape)}")
    if len(body) != count:
        length = f"{len(body)} bytes" if len(body) < count else f"more than {count} bytes"
        raise DataError(f"{path} has {length} after its head, expected {count}: fetch it again")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def check_labels(source: str, labels: Bytes) -> Bytes:
    """The labels, which must all be below ten."""
    bad = np.flatnonzero(labels >= CLASSES)
    if bad.size:
        raise DataError(f"{source} has the label {labels[bad[0]]} at index {bad[0]}, expected 0 to {CLASSES - 1}")
    return labels


def decode_binary(source: str, content: bytes, count: int) -> tuple[Bytes, Bytes]:
    """A binary batch: for each image a byte with its label, then 32 x 32 bytes of red, of green and of blue."""
    if len(content) != count * (1 + CIFAR_PIXELS):
        raise DataError(
            f"{source} has {len(content)} bytes, expected {count * (1 + CIFAR_PIXELS)}, which is {count} images"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(count, 1 + CIFAR_PIXELS)
    return records[:, 1:].reshape(count, *CIFAR_SHAPE), check_labels(source, records[:, 0])


class _Kept:
    """Stands for an array or a type of NumPy in a pickle: keeps what it is made of and does nothing."""

    def __init__(self, *made_of: Any) -> None:
        self.made_of = made_of
        self.state: Any = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Knows the three names that the batches need."""

    NAMES = frozenset({("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")})

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in, or a refusal."""
        if (module, name) not in self.NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _Kept


def _unpickle(source: str, content: bytes) -> dict[Any, Any]:
    """The dictionary in a pickle of plain things."""
    try:
        found = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a broken pickle can raise nearly anything
        reason = " ".join(str(error).split())
        raise DataError(
            f"{source} is refused ({reason}), expected a pickle of one array of NumPy and plain lists, as in the "
            "standard file: fetch it again, or use the binary batches"
        ) from error
    if not isinstance(found, dict):
        raise DataError(f"{source} holds a {type(found).__name__}, expected a dictionary with data and labels")
    return found


def _array(source: str, kept: Any, count: int) -> Bytes:
    """The array that a stand-in stands for: (version, shape, type, Fortran order, bytes), count x 3072 bytes."""
    match kept:
        case _Kept(state=(1, shape, _Kept(made_of=(b"u1", *_)), 0 | 1 as transposed, bytes(raw))):
            if shape == (count, CIFAR_PIXELS) and len(raw) == count * CIFAR_PIXELS:
                rows = np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if transposed else "C")
                return rows.reshape(count, *CIFAR_SHAPE)
            raise DataError(
                f"{source} has data of shape {shape} in {len(raw)} bytes, expected {by((count, CIFAR_PIXELS))}"
            )
    raise DataError(f"{source} has no array of bytes as its data, expected {by((count, CIFAR_PIXELS))} of them")


def decode_python(source: str, content: bytes, count: int) -> tuple[Bytes, Bytes]:
    """A python batch: a pickled dictionary with `data`, each row as in the binary batches, and the list `labels`."""
    found = _unpickle(source, content)
    images = _array(source, found.get(b"data"), count)
    labels = found.get(b"labels")
    if not isinstance(labels, list) or len(labels) != count:
        length = len(labels) if isinstance(labels, list) else "no"
        raise DataError(f"{source} has {length} labels, expected a list of {count}, one for each image")
    wrong = [label for label in labels if type(label) is not int or not 0 <= label < CLASSES]
    if wrong:
        raise DataError(f"{source} has the label {wrong[0]!r}, expected 0 to {CLASSES - 1}")
    return images, np.array(labels, dtype=np.uint8)


def read_tar(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The files of these names in a .tar.gz, in whatever folder they are there; nothing is unpacked to the disk."""
    wanted = set(names)
    found = {}
    with _readable(path), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            file = archive.extractfile(member) if name in wanted and member.isfile() else None
            if file is not None:
                found[name] = file.read()
    missing = sorted(wanted - found.keys())
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}, expected all of {', '.join(sorted(wanted))}")
    return found


def read_batches(path: Path, names: list[str], decode: Decoder, count: int) -> tuple[Bytes, Bytes]:
    """Images (n, 32, 32, 3) and labels of batches with `count` images each, from a folder or a .tar.gz."""
    if path.is_dir():
        with _readable(path):
            contents = {name: (path / name).read_bytes() for name in names}
    else:
        contents = read_tar(path, names)
    parts = [decode(f"{path}/{name}", contents[name], count) for name in names]
    images = np.concatenate([images for images, _ in parts]).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.concatenate([labels for _, labels in parts])
