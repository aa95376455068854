"""Readers of the files in which MNIST, Fashion-MNIST and CIFAR-10 are handed round: idx, binary and python batches.

Every reader is told the shape to expect and ends in a `DataError` that names the file when it finds another. None reads
more than the format can hold, whatever lengths a file states. The python batches of CIFAR-10 are pickles, which can run
any code; here they are read by `rbd_ref.data.pickles`, which calls nothing.
Tests: tests/test_data.py.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from rbd_ref._types import Bytes
from rbd_ref.data import pickles
from rbd_ref.data.errors import DataError
from rbd_ref.data.pickles import Kept

Decoder = Callable[[str, bytes, int], tuple[Bytes, Bytes]]

CIFAR_SHAPE = (3, 32, 32)
CIFAR_PIXELS = 3 * 32 * 32
CLASSES = 10
BLOCK = 512  # bytes of a header in a tar file; contents are filled up to a multiple
EMPTY = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE)
OTHERS = 1 << 24  # bytes that an archive may have beside the batches: headers, a readme, the names of the classes
REASON = 200  # characters of a reason that come from a file


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


def _unpickle(source: str, content: bytes, count: int) -> dict[Any, Any]:
    """The dictionary in a pickle of plain things: for each image a label and the name of a file."""
    try:
        found = pickles.load(content, most=8 * count + 1000)
    except MemoryError:
        raise  # its size was looked at before
    except Exception as error:  # a broken pickle can raise nearly anything
        reason = "".join(sign if sign.isprintable() else " " for sign in str(error)[:REASON]).strip()
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
        case Kept(state=(1, (int(), int()) as shape, Kept(made_of=(b"u1", *_)), 0 | 1 as transposed, bytes(raw))):
            if shape == (count, CIFAR_PIXELS) and len(raw) == count * CIFAR_PIXELS:
                rows = np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if transposed else "C")
                return rows.reshape(count, *CIFAR_SHAPE)
            raise DataError(
                f"{source} has data of shape {shape} in {len(raw)} bytes, expected {by((count, CIFAR_PIXELS))}"
            )
    raise DataError(f"{source} has no array of bytes as its data, expected {by((count, CIFAR_PIXELS))} of them")


def decode_python(source: str, content: bytes, count: int) -> tuple[Bytes, Bytes]:
    """A python batch: a pickled dictionary with `data`, each row as in the binary batches, and the list `labels`."""
    found = _unpickle(source, content, count)
    images = _array(source, found.get(b"data"), count)
    labels = found.get(b"labels")
    if not isinstance(labels, list) or len(labels) != count:
        length = len(labels) if isinstance(labels, list) else "no"
        raise DataError(f"{source} has {length} labels, expected a list of {count}, one for each image")
    wrong = [label for label in labels if type(label) is not int or not 0 <= label < CLASSES]
    if wrong:
        shown = wrong[0] if isinstance(wrong[0], int | None) else f"a {type(wrong[0]).__name__}"
        raise DataError(f"{source} has the label {shown}, expected 0 to {CLASSES - 1}")
    return images, np.array(labels, dtype=np.uint8)


class Format(NamedTuple):
    """How a batch becomes images and labels, and the bytes that it can have: for each image, and beside them."""

    decode: Decoder
    image: int
    others: int

    def most(self, count: int) -> int:
        """No batch of `count` images is longer."""
        return count * self.image + self.others


BINARY = Format(decode_binary, 1 + CIFAR_PIXELS, 0)
PYTHON = Format(decode_python, CIFAR_PIXELS + 256, 4096)  # a label and the name of a file have some 30 bytes


def _too_long(source: str, length: str, most: int) -> DataError:
    return DataError(f"{source} has {length}, expected {most} at most: fetch it again")


def _whole(file: gzip.GzipFile, length: int) -> bytes:
    """So many bytes of an archive."""
    content = file.read(length)
    if len(content) != length:
        raise EOFError(f"it ends {length - len(content)} bytes too early")
    return content


def _members(path: Path, file: gzip.GzipFile, room: int, most: int) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Headers and contents of a tar file, each content at most `most` bytes and all together at most `room`.

    Long names and attributes in headers of their own are members like others: batches need none.
    """
    while any(block := _whole(file, BLOCK)):
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        size = 0 if member.type in EMPTY else member.size
        filled = -(-size // BLOCK) * BLOCK
        room -= BLOCK + filled
        if not 0 <= size <= most:
            raise _too_long(f"{path}/{ascii(member.name)[1:-1]}", f"{size} bytes", most)
        if room < 0:
            raise DataError(f"{path} has more than {OTHERS} bytes beside its batches, expected a few: fetch it again")
        yield member, _whole(file, filled)[:size]


def read_tar(path: Path, names: Iterable[str], most: int) -> Iterator[tuple[str, bytes]]:
    """The files of these names in a .tar.gz, each at most `most` bytes, in whatever folder they are there; nothing is
    unpacked to the disk."""
    wanted = set(names)
    missing = set(wanted)
    with _readable(path), gzip.open(path) as file:
        for member, content in _members(path, file, OTHERS + len(wanted) * (most + 2 * BLOCK), most):
            name = PurePosixPath(member.name).name
            if name in wanted and member.isfile():
                missing.discard(name)
                yield name, content
    if missing:
        raise DataError(f"{path} lacks {', '.join(sorted(missing))}, expected all of {', '.join(sorted(wanted))}")


def read_file(path: Path, most: int) -> bytes:
    """A file of at most so many bytes."""
    with _readable(path), path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise _too_long(str(path), f"more than {most} bytes", most)
    return content


def read_batches(path: Path, names: list[str], form: Format, count: int) -> tuple[Bytes, Bytes]:
    """Images (n, 32, 32, 3) and labels of batches with `count` images each, from a folder or a .tar.gz."""
    most = form.most(count)
    files = ((name, read_file(path / name, most)) for name in names)
    images = np.empty((len(names), count, 32, 32, 3), dtype=np.uint8)
    labels = np.empty((len(names), count), dtype=np.uint8)
    for name, content in files if path.is_dir() else read_tar(path, names, most):
        batch, batch_labels = form.decode(f"{path}/{name}", content, count)
        images[names.index(name)] = batch.transpose(0, 2, 3, 1)
        labels[names.index(name)] = batch_labels
    return images.reshape(-1, 32, 32, 3), labels.reshape(-1)
