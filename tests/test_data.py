"""Data: files in every format, as they should be and broken; downloads from a server that misbehaves; the order of the
batches and the augmentation, against their specification word by word."""

from __future__ import annotations

import doctest
import gzip
import hashlib
import http.server
import io
import os
import pickle
import struct
import tarfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from rbd_ref import prng
from rbd_ref.data import batches, datasets, downloads, formats
from rbd_ref.data.augmentation import augmented, network_input
from rbd_ref.data.batches import BatchAddress, Split, order
from rbd_ref.data.datasets import Dataset, load
from rbd_ref.data.errors import DataError
from strategies import seeds
from test_progress import on_pipe, on_terminal, screen
from tools import ROOT, bits, run_python

TRAIN, TEST = 10, 2  # CIFAR-10 has five batches to train on, each as large as the one to test on
SHAPES = {"mnist": (28, 28, 1), "fashion-mnist": (28, 28, 1), "cifar-10": (32, 32, 3)}
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


# Small data sets and their files.


def small(name: str) -> Dataset:
    """Random images under a known name."""
    random, shape = np.random.default_rng(len(name)), SHAPES[name]
    images = [random.integers(0, 256, (count, *shape), dtype=np.uint8) for count in (TRAIN, TEST)]
    labels = [random.integers(0, 10, count, dtype=np.uint8) for count in (TRAIN, TEST)]
    return Dataset(name, images[0], labels[0], images[1], labels[1])


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small data sets under the known names, and no folder or server but those of the test."""
    for name, shape in SHAPES.items():
        standard = datasets.Standard(TRAIN, TEST, shape, datasets.fingerprint(small(name)))
        monkeypatch.setitem(datasets.STANDARDS, name, standard)
        monkeypatch.setitem(downloads.MIRRORS, name, ("http://127.0.0.1:9",))
    monkeypatch.setattr(datasets, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(downloads, "PAUSE", 0.001)
    monkeypatch.setenv("RBD_REF_DATA", str(tmp_path / "cache"))
    monkeypatch.delenv("RBD_REF_MIRROR", raising=False)
    monkeypatch.setenv("no_proxy", "*")


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def idx_contents(dataset: Dataset) -> dict[str, bytes]:
    return {name: idx(a[..., 0] if a.ndim == 4 else a) for name, a in zip(IDX, dataset.arrays, strict=True)}


def batches_of(dataset: Dataset) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Name, rows of 3072 bytes and labels of each batch."""
    rows = [images.transpose(0, 3, 1, 2).reshape(-1, 3072) for images in (dataset.train_images, dataset.test_images)]
    parts = [(f"data_batch_{k + 1}", slice(k * TEST, (k + 1) * TEST)) for k in range(5)]
    train = [(name, rows[0][part], dataset.train_labels[part]) for name, part in parts]
    return [*train, ("test_batch", rows[1], dataset.test_labels)]


def binary_contents(dataset: Dataset) -> dict[str, bytes]:
    return {
        f"{name}.bin": np.concatenate([labels[:, None], rows], axis=1).tobytes()
        for name, rows, labels in batches_of(dataset)
    }


def short(text: bytes) -> bytes:
    """A string of Python 2 in a pickle."""
    return b"U" + bytes([len(text)]) + text


def array_pickle(rows: np.ndarray, transposed: bool = False, kind: bytes = b"u1", shape: Any = None) -> bytes:
    """An array of bytes as Python 2 pickled it: reconstruct, then set the state."""
    shape = rows.shape if shape is None else shape
    raw = rows.tobytes(order="F" if transposed else "C")
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR(K\x01"
        + b"".join(b"M" + struct.pack("<H", n) for n in shape)
        + b"\x86cnumpy\ndtype\n"
        + short(kind)
        + b"K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + (b"\x88" if transposed else b"\x89")
        + b"T"
        + struct.pack("<i", len(raw))
        + raw
        + b"tb"
    )


def python_batch(pickled: bytes, labels: bytes) -> bytes:
    """A batch as Python 2 pickled it with protocol 2."""
    return (
        b"\x80\x02}q\x01("
        + short(b"batch_label")
        + short(b"training batch 1 of 5")
        + short(b"labels")
        + labels
        + short(b"data")
        + pickled
        + short(b"filenames")
        + b"](U\x05a.pngU\x05b.pnge"
        + b"u."
    )


def label_list(labels: np.ndarray) -> bytes:
    return b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"


def python_contents(dataset: Dataset, transposed: bool = False) -> dict[str, bytes]:
    return {
        name: python_batch(array_pickle(rows, transposed), label_list(labels))
        for name, rows, labels in batches_of(dataset)
    }


def write(folder: Path, contents: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def archive(contents: dict[str, bytes], inside: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in {"readme.html": b"<html>", **contents}.items():
            info = tarfile.TarInfo(f"{inside}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def compressed(contents: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content) for name, content in contents.items()}


def same(a: Dataset, b: Dataset) -> bool:
    return a.name == b.name and all(np.array_equal(x, y) for x, y in zip(a.arrays, b.arrays, strict=True))


def refused(call: Callable[[], object], *words: str) -> str:
    """The sentence of a DataError, which must have these words and be one line."""
    with pytest.raises(DataError) as caught:
        call()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert [word for word in words if word not in sentence] == [], sentence
    return sentence


# The embedded digits.


def test_digits_files_are_those_of_their_text() -> None:
    text = (datasets.EMBEDDED / "digits.txt").read_text()
    sums = [line.split() for line in text.split("sha256\n")[1].splitlines()]
    assert len(sums) == 2
    for sha256, name in sums:
        assert hashlib.sha256((datasets.EMBEDDED / name).read_bytes()).hexdigest() == sha256
    assert "CC BY 4.0" in text
    assert "E. Alpaydin, C. Kaynak" in text


def test_digits() -> None:
    digits = load("digits", download=False)
    assert digits.train_images.shape == (1500, 8, 8, 1)
    assert digits.test_images.shape == (297, 8, 8, 1)
    assert (digits.input_shape, digits.classes) == ((8, 8, 1), 10)
    assert all(array.dtype == np.uint8 and not array.flags.writeable for array in digits.arrays)
    labels = np.concatenate([digits.train_labels, digits.test_labels])
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as UCI states
    assert np.bincount(digits.test_labels).tolist() == [27, 31, 27, 30, 33, 30, 30, 30, 28, 31]
    assert (int(digits.train_images.min()), int(digits.train_images.max())) == (0, 16)
    assert digits.train_images[0, 0, :, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    inputs = network_input("digits", digits.train_images)
    assert (inputs.dtype, float(inputs.max())) == (np.float32, 1.0)


def test_the_package_does_not_import_data() -> None:
    names = {f"rbd_ref.{name}" for name in ("data", "datasets", "downloads", "augmentation")}
    code = f"import rbd_ref, sys; print(sorted({names} & set(sys.modules)))"
    assert run_python("-c", code, folder=ROOT).stdout.strip() == "[]"


# Every format, from every place.


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("pack", [dict, compressed])
@pytest.mark.parametrize("dotted", [False, True])
def test_idx(tmp_path: Path, name: str, pack: Callable[[dict], dict], dotted: bool) -> None:
    contents = pack(idx_contents(small(name)))
    if dotted:
        contents = {key.replace("-idx", ".idx"): value for key, value in contents.items()}
    write(tmp_path / name, contents)
    for folder in (tmp_path, tmp_path / name, str(tmp_path)):
        loaded = load(name, folder, download=False)
        assert same(loaded, small(name))
        assert loaded.input_shape == (28, 28, 1)
        assert not any(array.flags.writeable for array in loaded.arrays)


FORMATS = {"bin": binary_contents, "py": python_contents}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("below", ["", "cifar-10", "cifar-10/cifar-10-batches-{}", "cifar-10-batches-{}"])
def test_cifar_batches(tmp_path: Path, kind: str, below: str) -> None:
    write(tmp_path / below.format(kind), FORMATS[kind](small("cifar-10")))
    loaded = load("cifar-10", tmp_path, download=False)
    assert same(loaded, small("cifar-10"))
    assert loaded.input_shape == (32, 32, 3)


def test_cifar_python_batches_in_the_other_order_of_memory(tmp_path: Path) -> None:
    write(tmp_path, python_contents(small("cifar-10"), transposed=True))
    assert same(load("cifar-10", tmp_path, download=False), small("cifar-10"))


@pytest.mark.parametrize(("kind", "long"), [("bin", "binary"), ("py", "python")])
def test_cifar_archives(tmp_path: Path, kind: str, long: str) -> None:
    content = archive(FORMATS[kind](small("cifar-10")), f"cifar-10-batches-{kind}")
    write(tmp_path, {f"cifar-10-{long}.tar.gz": content})
    assert same(load("cifar-10", tmp_path, download=False), small("cifar-10"))
    assert [path.name for path in tmp_path.iterdir()] == [f"cifar-10-{long}.tar.gz"]  # nothing is unpacked


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RBD_REF_DATA, Debian's folder, and a cache below the home folder."""
    write(tmp_path / "cache" / "mnist", idx_contents(small("mnist")))
    assert same(load("mnist", download=False), small("mnist"))
    write(tmp_path / "debian" / "fashion-mnist", compressed(idx_contents(small("fashion-mnist"))))
    assert same(load("fashion-mnist", download=False), small("fashion-mnist"))
    monkeypatch.delenv("RBD_REF_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert datasets.data_folder() == tmp_path / ".cache" / "rbd_ref" / "data"


# Broken files.


def test_unknown_names_and_folders(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="'imagenet' is unknown, expected one of cifar-10, digits, fashion-mnist, mnist"
    ):
        load("imagenet")
    refused(lambda: load("mnist", tmp_path / "no"), f"the data folder {tmp_path / 'no'} does not exist")
    sentence = refused(lambda: load("mnist", tmp_path, download=False), "train-images-idx3-ubyte.gz", "--data-dir")
    assert str(tmp_path / "mnist") in sentence


IMAGES = idx(np.zeros((TRAIN, 28, 28), np.uint8))
LABELS = idx(np.zeros(TRAIN, np.uint8))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (IDX[0], IMAGES[:-1], ["7839 bytes after its head, expected 7840"]),
        (IDX[0], IMAGES + b"x", ["more than 7840 bytes"]),
        (IDX[0], IMAGES[:6], ["says that it holds nothing, expected 10 x 28 x 28"]),
        (IDX[0], b"", ["starts with the bytes of nothing"]),
        (IDX[0], LABELS, ["starts with the bytes 00000801, expected 00000803"]),
        (IDX[0], b"<html>" + IMAGES, ["starts with the bytes 3c68746d"]),
        (IDX[0], idx(np.zeros((TRAIN, 28, 29), np.uint8)), ["holds 10 x 28 x 29, expected 10 x 28 x 28"]),
        (IDX[0], idx(np.zeros((TRAIN - 1, 28, 28), np.uint8)), ["holds 9 x 28 x 28, expected 10 x 28 x 28"]),
        (IDX[1], idx(np.zeros(TRAIN - 1, np.uint8)), ["holds 9, expected 10"]),
        (IDX[1], idx(np.arange(TRAIN, dtype=np.uint8) + 1), ["has the label 10 at index 9, expected 0 to 9"]),
        (IDX[1] + ".gz", gzip.compress(LABELS)[:-9], ["is not whole"]),
        (IDX[1] + ".gz", LABELS, ["is not whole", "Not a gzipped file"]),
        (IDX[1] + ".gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x00" + b"\xff" * 40, ["is not whole"]),
    ],
)
def test_broken_idx(tmp_path: Path, name: str, content: bytes, words: list[str]) -> None:
    write(tmp_path, idx_contents(small("mnist")))
    (tmp_path / name.removesuffix(".gz")).unlink()
    write(tmp_path, {name: content})
    refused(lambda: load("mnist", tmp_path), str(tmp_path / name), "expected", *words)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    refused(lambda: formats.read_idx(tmp_path, (1,)), str(tmp_path), "cannot be read (Is a directory)")


def test_well_formed_files_of_another_data_set(tmp_path: Path) -> None:
    write(tmp_path, idx_contents(small("mnist")))
    refused(lambda: load("fashion-mnist", tmp_path), "do not hold fashion-mnist", "get the standard files")


ROWS, TWO = np.zeros((TEST, 3072), np.uint8), b"](K\x01K\x02e"
BAD = "test_batch"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (python_batch(array_pickle(ROWS[:1]), TWO), ["shape (1, 3072) in 3072 bytes, expected 2 x 3072"]),
        (python_batch(array_pickle(ROWS[:1], shape=(2, 3072)), TWO), ["in 3072 bytes, expected 2 x 3072"]),
        (python_batch(array_pickle(ROWS, kind=b"f4"), TWO), ["no array of bytes as its data"]),
        (python_batch(b"N", TWO), ["no array of bytes as its data"]),
        (python_batch(array_pickle(ROWS), b"](K\x01e"), ["has 1 labels, expected a list of 2"]),
        (python_batch(array_pickle(ROWS), b"N"), ["has no labels"]),
        (python_batch(array_pickle(ROWS), b"](K\x01K\x0be"), ["has the label 11, expected 0 to 9"]),
        (python_batch(array_pickle(ROWS), b"](K\x01Ne"), ["has the label None"]),
        (python_batch(array_pickle(ROWS), TWO)[:-700], ["is refused"]),
        (b"", ["is refused"]),
        (pickle.dumps([1], protocol=2), ["holds a list, expected a dictionary"]),
    ],
)
def test_broken_python_batches(tmp_path: Path, content: bytes, words: list[str]) -> None:
    write(tmp_path, {**python_contents(small("cifar-10")), BAD: content})
    refused(lambda: load("cifar-10", tmp_path), str(tmp_path / BAD), "expected", *words)


class Malicious:
    """Pickled as a call of a function of the attacker's choice."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_is_refused(tmp_path: Path, protocol: int) -> None:
    """Neither the system nor anything of NumPy or the language can be called, whatever the protocol."""
    trace = tmp_path / "trace"
    calls = [
        Malicious(os.system, f"touch {trace}"),
        Malicious(eval, f"open({str(trace)!r}, 'w')"),
        Malicious(exec, f"open({str(trace)!r}, 'w')"),
        Malicious(np.load, str(trace)),
        Malicious(np.memmap, str(trace), np.uint8, "w+", 0, (4,)),
    ]
    for call in calls:
        content = pickle.dumps({b"data": call, b"labels": [1, 2]}, protocol=protocol)
        write(tmp_path, {**python_contents(small("cifar-10")), BAD: content})
        refused(lambda: load("cifar-10", tmp_path), str(tmp_path / BAD), "is refused (it asks for ")
        assert not trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02U\x01xQ.",  # a reference to something outside
        b"\x80\x02cnumpy\nndarray\n}U\x01aK\x01sb.",  # a state for a stand-in's class
        b"\x80\x02cnumpy\nndarray\n)R)R.",  # a call of a stand-in
        b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.",  # something in a name that is known
        b"\x80\x02\x82\x01.",  # an extension
    ],
)
def test_other_tricks_of_pickles_are_refused(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, {**python_contents(small("cifar-10")), BAD: content})
    refused(lambda: load("cifar-10", tmp_path), "is refused")


def test_broken_binary_batches(tmp_path: Path) -> None:
    contents = binary_contents(small("cifar-10"))
    write(tmp_path, {**contents, "test_batch.bin": contents["test_batch.bin"][:-1]})
    refused(lambda: load("cifar-10", tmp_path), "test_batch.bin has 6145 bytes, expected 6146, which is 2 images")
    write(tmp_path, {**contents, "test_batch.bin": b"\x0c" + contents["test_batch.bin"][1:]})
    refused(lambda: load("cifar-10", tmp_path), "test_batch.bin has the label 12 at index 0, expected 0 to 9")


def test_broken_archives(tmp_path: Path) -> None:
    contents = binary_contents(small("cifar-10"))
    whole, name = archive(contents, "x"), "cifar-10-binary.tar.gz"
    for broken in (whole[: len(whole) // 2], b"no archive", b""):
        write(tmp_path, {name: broken})
        refused(lambda: load("cifar-10", tmp_path), str(tmp_path / name), "is not whole")
    del contents["data_batch_3.bin"]
    write(tmp_path, {name: archive(contents, "x")})
    refused(lambda: load("cifar-10", tmp_path), f"{tmp_path / name} lacks data_batch_3.bin, expected all of")


# Files that state or hold more than their format can.


MEGA = 1 << 20


def peak_of(call: Callable[[], object]) -> int:
    """The most bytes that Python and NumPy held at once during a call, beside what there was before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def cheaply_refused(call: Callable[[], object], *words: str) -> None:
    """A sentence with these words, for less than four megabytes."""
    assert peak_of(lambda: refused(call, "expected", *words)) < 4 * MEGA


def bounded(pickled: bytes) -> Callable[[], object]:
    return lambda: formats.decode_python("a batch", pickled, TEST)


TWICE = b"q\x00" + b"h\x00\x86q\x00" * 40  # a pair of a pair of ... of the same thing: 2^40 in all


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x80\x02}r\xff\xff\xff\x03.", ["no array of bytes"]),  # the memo's place 2^26
        (b"\x80\x02}p99999999\n.", ["no array of bytes"]),
        (b"\x80\x02" + b"]" * 100_000, ["is refused (it has more than 1016 opcodes)"]),
        (b"\x80\x02" + b"(" * 100_000, ["is refused (it has more than 1016 opcodes)"]),
        (b"\x80\x02cnumpy\nndarray\n" + b"a" * 2000, ["is refused"]),
        (b"\x80\x04B" + struct.pack("<I", 2**31) + b".", ["is refused (expected 2147483648 bytes"]),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b".", ["is refused (expected 1099511627776 bytes"]),
        (b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".", ["is refused (expected 1099511627776 bytes"]),
        (b"\x80\x02\x8b" + struct.pack("<I", 2**30) + b".", ["is refused"]),
        (b"\x80\x02}\x8b" + struct.pack("<I", 4) + b"long.", ["is refused (it has the opcode LONG4 at byte 3)"]),
        (b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b"}.", ["no array of bytes"]),
        (b"\x80\x02}(K\x01" + TWICE + b"K\x01u.", ["is refused (it has entries of a dictionary that are not"]),
        (b"\x80\x02}" + b"K\x012" * 9 + b".", ["is refused (it has the opcode DUP"]),
        (b"\x80\x02S" + b"x" * 100_000 + b"\n.", ["is refused (no string quotes around"]),
        (b"\x80\x02c" + b"x" * 100_000 + b"\nx\n.", ["is refused (it asks for xxx"]),
        (b"\x80\x02cnumpy\nx\x02(\n.", ["is refused (it asks for numpy.x (), expected a pickle of one array"]),
        (python_batch(array_pickle(ROWS), b"](" + b"K\x01" + TWICE + b"K\x01e"), ["has the label a tuple"]),
        (
            python_batch(array_pickle(ROWS).replace(b"M\x02\x00M\x00\x0c", b"K\x01" + TWICE + b"N"), TWO),
            ["no array of"],
        ),
    ],
)
def test_python_batches_take_no_more_than_they_have(content: bytes, words: list[str]) -> None:
    """However few bytes ask for however much; and no sentence is as long as a file."""
    cheaply_refused(bounded(content), *words)
    assert len(refused(bounded(content))) < 500


def test_a_python_batch_of_full_size() -> None:
    """As Python 2 wrote it: ten thousand images, a memo with a place for every name of a file."""
    count = 10_000
    rows = np.random.default_rng(0).integers(0, 256, (count, 3072), dtype=np.uint8)
    labels = np.arange(count, dtype=np.uint8) % 10
    names = [short(b"leptodactylus_pentadactylus_s_%06d.png" % k) + b"r" + struct.pack("<I", k) for k in range(count)]
    lists = [b"(" + b"".join(names[k : k + 1000]) + b"e" for k in range(0, count, 1000)]
    content = python_batch(array_pickle(rows), label_list(labels)).replace(
        b"](U\x05a.pngU\x05b.pnge", b"]" + b"".join(lists)
    )
    assert len(content) < formats.PYTHON.most(count)
    images, found = formats.decode_python("a batch", content, count)
    assert np.array_equal(images.reshape(count, 3072), rows)
    assert np.array_equal(found, labels)


def test_batches_are_read_no_further_than_they_can_go(tmp_path: Path) -> None:
    for name, make in (("test_batch.bin", binary_contents), (BAD, python_contents)):
        folder = write(tmp_path / name, make(small("cifar-10")))
        os.truncate(folder / name, 16 * MEGA)
        cheaply_refused(lambda folder=folder: load("cifar-10", folder), f"{folder / name} has more than", "at most")  # type: ignore[misc]


def tar_with(name: str, size: int, kind: bytes = tarfile.REGTYPE, content: bytes = b"", times: int = 1) -> bytes:
    """A compressed archive whose first member states a size, whatever it has; then, CIFAR-10."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    member = info.tobuf(tarfile.GNU_FORMAT) + content
    return gzip.compress(member * times, 1) + archive(binary_contents(small("cifar-10")), "x")


ZEROS = bytes(16 * MEGA)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tar_with("x/test_batch.bin", 16 * MEGA, content=ZEROS), ["test_batch.bin has 16777216 bytes, expected 6146"]),
        (tar_with("x/test_batch.bin", 2**62), ["has 4611686018427387904 bytes, expected 6146 at most"]),
        (tar_with("x/test_batch.bin", -(2**62)), ["has -4611686018427387904 bytes, expected 6146 at most"]),
        (tar_with("a film", 10 * 2**30), ["/a film has 10737418240 bytes, expected 6146 at most"]),
        (tar_with("a film\n", 16 * MEGA, content=ZEROS), ["/a film\\n has 16777216 bytes"]),
        (tar_with("x", 16 * MEGA, tarfile.XHDTYPE, ZEROS), ["/x has 16777216 bytes, expected 6146 at most"]),
        (tar_with("x", 16 * MEGA, tarfile.XGLTYPE, ZEROS), ["/x has 16777216 bytes, expected 6146 at most"]),
        (tar_with("x", 16 * MEGA, tarfile.GNUTYPE_LONGNAME, ZEROS), ["/x has 16777216 bytes"]),
        (tar_with("x/test_batch.bin", 16 * MEGA, tarfile.GNUTYPE_SPARSE, ZEROS), ["has 16777216 bytes"]),
        (tar_with("nothing", 0, times=3000), ["has more than 1048576 bytes beside its batches"]),
        (tar_with("x", 0, tarfile.XHDTYPE, times=3000), ["has more than 1048576 bytes beside its batches"]),
    ],
)
def test_archives_are_read_no_further_than_they_can_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, words: list[str]
) -> None:
    monkeypatch.setattr(formats, "OTHERS", MEGA)
    name = "cifar-10-binary.tar.gz"
    write(tmp_path, {name: content})
    cheaply_refused(lambda: load("cifar-10", tmp_path), str(tmp_path / name), *words)


def test_archives_with_other_things(tmp_path: Path) -> None:
    """Folders, links, headers with attributes and files that nobody asked for are passed over."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name, content in {"a readme": b"x" * 1000, **binary_contents(small("cifar-10"))}.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size, info.mtime, info.pax_headers = len(content), 1.5, {"comment": "é" * 300}
            tar.addfile(info, io.BytesIO(content))
            for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE):
                other = tarfile.TarInfo(f"other/{name}")
                other.type, other.linkname = kind, "elsewhere"
                tar.addfile(other)
    write(tmp_path, {"cifar-10-binary.tar.gz": out.getvalue()})
    assert same(load("cifar-10", tmp_path, download=False), small("cifar-10"))


def test_a_compressed_idx_file_is_read_no_further_than_it_can_go(tmp_path: Path) -> None:
    write(tmp_path, idx_contents(small("mnist")))
    (tmp_path / IDX[0]).unlink()
    write(tmp_path, {f"{IDX[0]}.gz": gzip.compress(IMAGES + ZEROS, 1)})
    cheaply_refused(lambda: load("mnist", tmp_path), f"{IDX[0]}.gz has more than 7840 bytes")


# Downloads.


class Server(http.server.ThreadingHTTPServer):
    """Serves `contents`; the next `cuts` answers end in the middle."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents: dict[str, bytes] = {}
        self.cuts, self.asked, self.length = 0, [], True  # type: ignore[var-annotated]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        content = self.server.contents.get(self.path)
        if content is None:
            return self.send_error(404)
        self.send_response(200)
        if self.server.length:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.server.cuts:
            self.server.cuts -= 1
            content = content[: len(content) // 2]
        self.wfile.write(content)
        return None

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server with the small data sets in the files that are downloaded, and their checksums in place."""
    running = Server()
    sets = {name: compressed(idx_contents(small(name))) for name in ("mnist", "fashion-mnist")}
    sets["cifar-10"] = {"cifar-10-binary.tar.gz": archive(binary_contents(small("cifar-10")), "cifar-10-batches-bin")}
    for name, contents in sets.items():
        running.contents |= {f"/{name}/{file}": content for file, content in contents.items()}
        remotes = [downloads.Remote(f, len(c), hashlib.sha256(c).hexdigest()) for f, c in contents.items()]
        monkeypatch.setitem(downloads.FILES, name, tuple(remotes))
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", SHAPES)
def test_download(tmp_path: Path, server: Server, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Into the folder, once; no bar where stderr is no terminal."""
    assert same(load(name, mirror=server.address + "/"), small(name))
    expected = sorted(remote.file for remote in downloads.FILES[name])
    assert leftovers(tmp_path / "cache" / name) == expected
    assert len(server.asked) == len(expected)
    assert same(load(name, mirror=server.address), small(name))
    assert len(server.asked) == len(expected)
    assert capsys.readouterr() == ("", "")


def test_download_by_environment_and_to_a_folder(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RBD_REF_MIRROR", server.address)
    load("mnist", tmp_path)
    assert len(leftovers(tmp_path / "mnist")) == 4
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    load("mnist", tmp_path)
    assert server.asked[4:] == ["/mnist/t10k-labels-idx1-ubyte.gz"]  # what is there is not fetched again


def test_download_without_a_length(server: Server) -> None:
    server.length = False
    assert same(load("mnist", mirror=server.address), small("mnist"))


def test_progress_bar_on_a_terminal(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for each file, with its name and its bytes."""
    text = on_terminal(120, monkeypatch, lambda: load("mnist", mirror=server.address))
    *lines, rest = screen(text, 120)
    assert rest == ""
    for line, remote in zip(lines, downloads.FILES["mnist"], strict=True):
        assert line.startswith(f"{remote.file}: 100%|█")
        size = tqdm.format_sizeof(remote.size) if remote.size >= 1000 else f"{remote.size:.1f}"
        assert f" {size}/{size} [00:00<00:00, " in line
        assert line.endswith("B/s]")


def test_no_progress_bar_in_a_pipe(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_pipe(monkeypatch, lambda: load("mnist", mirror=server.address)) == ""
    assert len(leftovers(tmp_path / "cache")) == 4


def test_a_cut_connection_is_tried_again(tmp_path: Path, server: Server) -> None:
    server.cuts = 2
    assert same(load("cifar-10", mirror=server.address), small("cifar-10"))
    assert len(server.asked) == 3
    assert leftovers(tmp_path) == ["cifar-10-binary.tar.gz"]


@pytest.mark.parametrize("length", [True, False])
def test_a_connection_cut_again_and_again(tmp_path: Path, server: Server, length: bool) -> None:
    server.cuts, server.length = 99, length
    refused(
        lambda: load("cifar-10", mirror=server.address),
        "cifar-10-binary.tar.gz of cifar-10 cannot be downloaded",
        "the connection was cut after",
        "3 times",
        f"put the standard files into {tmp_path / 'cache' / 'cifar-10'}",
        "--data-dir",
    )
    assert len(server.asked) == 3
    assert leftovers(tmp_path) == []


def test_a_connection_reset_while_reading(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def reset(*_: object) -> None:
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(downloads, "_copy", reset)
    refused(lambda: load("mnist", mirror=server.address), "the connection was cut (reset by peer), 3 times")


@pytest.mark.parametrize("change", [lambda c: c[:-1] + b"?", lambda c: c + b"more", lambda c: c[:-1], lambda c: b""])
def test_a_wrong_checksum(tmp_path: Path, server: Server, change: Callable[[bytes], bytes]) -> None:
    path = "/cifar-10/cifar-10-binary.tar.gz"
    server.contents[path] = change(server.contents[path])
    expected = downloads.FILES["cifar-10"][0].sha256
    refused(lambda: load("cifar-10", mirror=server.address), "the file has sha256 ", f", expected {expected}")
    assert (len(server.asked), leftovers(tmp_path)) == (1, [])


def test_a_file_that_the_server_lacks(tmp_path: Path, server: Server) -> None:
    del server.contents["/mnist/t10k-images-idx3-ubyte.gz"]
    refused(lambda: load("mnist", mirror=server.address), "t10k-images-idx3-ubyte.gz", "answers 404 Not Found")
    assert leftovers(tmp_path) == ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"]  # whole ones are kept


def test_the_next_mirror(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        downloads.MIRRORS, "mnist", ("http://127.0.0.1:9", f"{server.address}/no", f"{server.address}/mnist")
    )
    assert same(load("mnist"), small("mnist"))


def test_no_network(tmp_path: Path) -> None:
    start = time.monotonic()
    refused(
        lambda: load("mnist"),
        "http://127.0.0.1:9/train-images-idx3-ubyte.gz: there is no way to it",
        f"put the standard files into {tmp_path / 'cache' / 'mnist'}",
        "--data-dir or RBD_REF_DATA",
    )
    assert time.monotonic() - start < 10
    assert leftovers(tmp_path) == []


def test_an_address_that_is_none() -> None:
    refused(lambda: load("mnist", mirror="nowhere"), "unknown url type")


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RBD_REF_DATA", str(tmp_path / "file"))
    refused(lambda: load("mnist"), str(tmp_path / "file" / "mnist"), "cannot be made (Not a directory)")


def test_an_interruption_leaves_nothing(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(bar: tqdm, done: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tqdm, "update", stop)
    with pytest.raises(KeyboardInterrupt):
        load("mnist", mirror=server.address)
    assert leftovers(tmp_path) == []


def test_two_at_once(tmp_path: Path, server: Server) -> None:
    """Workers of one machine that start together."""
    loaded: list[Dataset] = []
    threads = [threading.Thread(target=lambda: loaded.append(load("mnist", mirror=server.address))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 4
    assert len(leftovers(tmp_path)) == 4


# The cut into sets and the order of batches.


def divided(count: int, tests: int = 1) -> Split:
    """A split of `count` images to train on."""
    images, labels = np.zeros((count + tests, 8, 8, 1), np.uint8), np.zeros(count + tests, np.uint8)
    return batches.split(Dataset("digits", images, labels, images[:tests], labels[:tests]), 0)


def ranked(key: np.ndarray, count: int) -> list[int]:
    """The definition, one word at a time."""
    words = [int(prng.threefry2x32(key, np.array([0, i], np.uint32))[0]) for i in range(count)]
    return [i for _, i in sorted((word, i) for i, word in enumerate(words))]


@given(seeds)
def test_split(seed: int) -> None:
    digits = load("digits")
    cut = batches.split(digits, seed)
    assert (len(cut.train), len(cut.validation)) == (1203, 297)
    assert np.array_equal(np.sort(np.concatenate([cut.train, cut.validation])), np.arange(1500))
    assert (np.diff(cut.train) > 0).all()
    again = batches.split(digits, seed)
    assert np.array_equal(cut.train, again.train)
    assert not np.array_equal(cut.train, batches.split(digits, (seed + 1) % 2**64).train)


def test_split_is_as_specified() -> None:
    cut = batches.split(load("digits"), 5)
    expected = ranked(prng.stream_key(5, "split"), 1500)
    assert cut.validation.tolist() == sorted(expected[:297])
    assert cut.train.tolist() == sorted(expected[297:])


def test_order_is_as_specified() -> None:
    key = prng.fold_in(prng.stream_key(3, "order"), 7)
    assert order(50, 3, 7).tolist() == ranked(key, 50)
    cut = divided(50, 4)
    expected = [int(cut.train[order(50, 3, 7)[1 + 3 * (2 * 4 + i)]]) for i in range(4)]
    assert batches.batch(cut, 3, BatchAddress(epoch=7, worker=1, workers=3, number=2, size=4)).tolist() == expected


def test_order_never_changes() -> None:
    """Numbers written down once: a run is repeated only if they stay."""
    assert order(10, 0, 0).tolist() == [6, 1, 9, 8, 5, 4, 2, 3, 7, 0]
    assert order(10, 0, 1).tolist() == [5, 2, 6, 1, 3, 0, 9, 8, 7, 4]
    assert batches.split(load("digits"), 0).validation[:5].tolist() == [6, 10, 14, 16, 17]


@given(seeds, st.integers(0, 2**40), st.integers(1, 5), st.integers(1, 7), st.integers(1, 6), st.integers(0, 4))
def test_every_image_once_in_an_epoch(seed: int, epoch: int, workers: int, size: int, steps: int, rest: int) -> None:
    """Over all workers, which share none; what is left out is less than one batch of all."""
    count = workers * size * steps + rest % (workers * size)
    cut = divided(count)
    assert batches.batches_of(count, workers, size) == steps
    taken = [
        set(batches.batch(cut, seed, BatchAddress(epoch, worker, workers, number, size)).tolist())
        for worker in range(workers)
        for number in range(steps)
    ]
    assert all(len(one) == size for one in taken)
    assert len(set().union(*taken)) == workers * size * steps
    assert set().union(*taken) <= set(cut.train.tolist())


@given(seeds, st.integers(0, 3), st.integers(1, 4))
def test_workers_together_are_one_worker_with_a_larger_batch(seed: int, number: int, workers: int) -> None:
    cut = divided(100)
    together = [batches.batch(cut, seed, BatchAddress(2, worker, workers, number, 6)) for worker in range(workers)]
    alone = batches.batch(cut, seed, BatchAddress(2, 0, 1, number, 6 * workers))
    assert np.array_equal(np.stack(together, axis=1).reshape(-1), alone)


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(order(60, seed, epoch).tolist()) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_the_order_needs_no_state() -> None:
    """Batches asked for in any order, before and after others, are the same."""
    cut = divided(64)
    first = [
        batches.batch(cut, 1, BatchAddress(epoch, 0, 2, number, 4)).tolist()
        for epoch in range(6)
        for number in range(8)
    ]
    order.cache_clear()
    backwards = [
        batches.batch(cut, 1, BatchAddress(epoch, 0, 2, number, 4)).tolist()
        for epoch in reversed(range(6))
        for number in reversed(range(8))
    ]
    assert first == backwards[::-1]


def test_each_image_is_anywhere_equally_often() -> None:
    """Chi-squared of image 0's position, and of all pairs of image and position."""
    count, epochs = 20, 2000
    table = np.zeros((count, count))
    for epoch in range(epochs):
        table[np.arange(count), order(count, 9, epoch)] += 1
    expected = epochs / count
    chi = ((table - expected) ** 2 / expected).sum()
    freedom = (count - 1) ** 2
    assert abs(chi - freedom) < 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"worker": 2}, "worker is 2, expected 0 <= worker < 2"),
        ({"number": 8}, "number is 8, expected 0 <= number < 8"),
        ({"size": 0}, "size is 0"),
        ({"workers": 0}, "workers is 0"),
        ({"size": 33}, "2 workers with batches of 33 need 66 images, expected 64 at most"),
        ({"epoch": -1}, "n is -1"),
    ],
)
def test_batches_that_do_not_exist(change: dict[str, int], sentence: str) -> None:
    address = BatchAddress(epoch=0, worker=0, workers=2, number=0, size=4)._replace(**change)
    with pytest.raises(ValueError, match=sentence):
        batches.batch(divided(64), 0, address)


# What a network is given.


def test_scaling() -> None:
    every = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    expected = np.array([np.float32(x) / np.float32(255) for x in range(256)])
    for name in ("mnist", "fashion-mnist"):
        assert np.array_equal(bits(network_input(name, every)).reshape(-1), bits(expected))
    assert network_input("digits", every).reshape(-1).tolist() == [x / 16 for x in range(256)]
    with pytest.raises(ValueError, match="'imagenet' is unknown"):
        network_input("imagenet", every)


def test_standardisation() -> None:
    images = small("cifar-10").train_images
    inputs = network_input("cifar-10", images).astype(np.float64)
    assert np.abs(inputs.mean(axis=(1, 2, 3))).max() < 1e-6
    assert np.abs(inputs.std(axis=(1, 2, 3)) - 1).max() < 1e-6
    scaled = images.astype(np.float64) / 255
    plain = (scaled - scaled.mean(axis=(1, 2, 3), keepdims=True)) / scaled.std(axis=(1, 2, 3), keepdims=True)
    assert np.abs(inputs - plain).max() < 1e-6


def test_standardisation_of_flat_images() -> None:
    """Nothing is divided by less than 1 / sqrt(n) on the scale of 0 to 1."""
    images = np.full((2, 32, 32, 3), 255, dtype=np.uint8)
    images[1, 0, 0, 0] = 254
    inputs = network_input("cifar-10", images)
    assert (inputs[0] == 0).all()
    expected = (254 - images[1].mean(dtype=np.float64)) / 255 * np.sqrt(3072)
    assert inputs[1, 0, 0, 0] == pytest.approx(expected, rel=1e-6)


def slow(name: str, image: np.ndarray, seed: int, epoch: int, position: int) -> np.ndarray:
    """The specification of the augmentation, one image and one number at a time."""
    key = prng.fold_in(prng.stream_key(seed, "augmentation"), epoch)
    r, c = (int(w) for w in prng.threefry2x32(key, np.array([position, 0], np.uint32)))
    b = int(prng.threefry2x32(key, np.array([position, 1], np.uint32))[0])
    pad = 4 if name == "cifar-10" else 3
    height, width, channels = image.shape
    top, left = r * (2 * pad + 1) >> 32, c * (2 * pad + 1) >> 32
    window = np.zeros_like(image)
    for y in range(height):
        for x in range(width):
            from_y, from_x = y + top - pad, x + left - pad
            if 0 <= from_y < height and 0 <= from_x < width:
                window[y, x] = image[from_y, from_x]
    if name != "cifar-10":
        delta = np.float32((b >> 8) / 2**24 - 0.5)
        return window.astype(np.float32) / np.float32(255) + delta
    window = window[:, ::-1] if b >> 31 else window
    values = [int(v) for v in window.reshape(-1)]
    n, s, q = len(values), sum(values), sum(v * v for v in values)
    root = np.sqrt(np.float64(max(n * q - s * s, 255**2 * n)))
    return np.array([np.float32(np.float64(n * v - s) / root) for v in values]).reshape(height, width, channels)


@pytest.mark.parametrize("name", SHAPES)
def test_augmentation_is_as_specified(name: str) -> None:
    images, positions = small(name).train_images[:4], np.array([0, 1, 77, 2**32 - 1])
    got = augmented(name, images, 11, 5, positions)
    assert (got.dtype, got.shape) == (np.float32, images.shape)
    expected = np.stack([slow(name, i, 11, 5, int(p)) for i, p in zip(images, positions, strict=True)])
    assert np.array_equal(bits(got), bits(expected))


def test_digits_are_not_augmented() -> None:
    images = load("digits").train_images[:5]
    got = augmented("digits", images, 0, 0, np.arange(5))
    assert np.array_equal(got, network_input("digits", images))


def equally_often(counts: np.ndarray) -> None:
    """Chi-squared within five deviations."""
    expected, freedom = counts.sum() / counts.size, counts.size - 1
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert chi < freedom + 5 * np.sqrt(2 * freedom) + 5


@pytest.mark.compiled
@pytest.mark.parametrize(("name", "windows"), [("mnist", 7), ("cifar-10", 9)])
def test_crops_and_flips_are_equally_often(name: str, windows: int) -> None:
    """One bright pixel a little off the middle shows where the window was and whether it was turned over."""
    count, (height, width, channels) = 4000, SHAPES[name]
    image = np.zeros((count, height, width, channels), dtype=np.uint8)
    image[:, 14, 11] = 255
    inputs = augmented(name, image, 4, 2, np.arange(count))[..., 0]
    row, column = np.divmod(inputs.reshape(count, -1).argmax(axis=1), width)
    flipped = column > width - 1 - 11 - windows // 2 - 1 if name == "cifar-10" else np.zeros(count, bool)
    column = np.where(flipped, width - 1 - column, column)
    top, left = 14 + windows // 2 - row, 11 + windows // 2 - column
    assert (top.min(), top.max(), left.min(), left.max()) == (0, windows - 1, 0, windows - 1)
    equally_often(np.bincount(top * windows + left, minlength=windows**2))
    if name == "cifar-10":
        equally_often(np.bincount(flipped.astype(int)))
        assert abs(np.corrcoef(flipped, left)[0, 1]) < 5 / np.sqrt(count)


def test_brightness_is_uniform() -> None:
    """Of a black image nothing remains but the change."""
    count = 4000
    inputs = augmented("fashion-mnist", np.zeros((count, 28, 28, 1), np.uint8), 4, 2, np.arange(count))
    delta = inputs[:, 0, 0, 0]
    assert (inputs == delta[:, None, None, None]).all()
    assert delta.min() >= -0.5
    assert delta.max() < 0.5
    equally_often(np.bincount(((delta + 0.5) * 20).astype(int), minlength=20))


def test_positions_epochs_and_seeds_are_augmented_apart() -> None:
    image = np.zeros((1, 28, 28, 1), np.uint8)
    seen = {
        float(augmented("mnist", image, seed, epoch, np.array([p]))[0, 0, 0, 0])
        for seed in range(4)
        for epoch in range(4)
        for p in range(4)
    }
    assert len(seen) == 64


@pytest.mark.parametrize("name", SHAPES)
def test_training_batch(name: str) -> None:
    """Two workers are given the very floats of one, whatever was drawn before."""
    cut = batches.split(small(name), 0)
    alone = BatchAddress(epoch=3, worker=0, workers=1, number=0, size=8)
    inputs, labels = batches.training_batch(cut, 1, alone)
    for worker in range(2):
        part, part_labels = batches.training_batch(cut, 1, BatchAddress(3, worker, workers=2, number=0, size=4))
        assert np.array_equal(bits(part), bits(inputs[worker::2]))
        assert np.array_equal(part_labels, labels[worker::2])
    indices = batches.batch(cut, 1, alone)
    plain, plain_labels = batches.training_batch(cut, 1, alone, augment=False)
    assert np.array_equal(plain, network_input(name, cut.dataset.train_images[indices]))
    assert np.array_equal(plain_labels, cut.dataset.train_labels[indices])
    assert not np.array_equal(plain, inputs)


PROCESS = """
import hashlib, numpy as np
from rbd_ref.data import augmentation, batches
digest = hashlib.sha256()
for name, shape in (("mnist", (28, 28, 1)), ("cifar-10", (32, 32, 3))):
    images = (np.arange(50 * np.prod(shape)) * 7919 % 251).astype(np.uint8).reshape(50, *shape)
    digest.update(augmentation.augmented(name, images, 2**63 + 1, 12, np.arange(50)).tobytes())
digest.update(batches.order(5000, 2**63 + 1, 12).tobytes())
print(digest.hexdigest())
"""


@pytest.mark.parametrize("module", [datasets, batches], ids=lambda module: module.__name__)
def test_examples_of_the_code(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 1
    assert result.failed == 0


def test_the_same_bits_in_other_processes() -> None:
    """And the bits of the day this was written."""
    printed = {run_python("-c", PROCESS, folder=ROOT, PYTHONHASHSEED=seed).stdout.strip() for seed in ("0", "1")}
    assert printed == {"e4097bbbfad441b8e0a1f11dacd2604f5c1cc58cae36669ab37a7a8900595c5f"}
