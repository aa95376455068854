"""Hostile files of data sets: the right images or one sentence, in little memory and time.

The data sets have a few images here, so that the readers' limits are small too and a bomb need not be large.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from rbd_ref.data import datasets
from rbd_ref.data.datasets import Dataset, load
from rbd_ref.data.errors import DataError
from test_data import IDX, SHAPES, TEST, TRAIN, archive, compressed, idx_contents, same, small, write
from test_data import binary_contents as binary
from test_data import python_contents as python
from torture import memory
from torture.campaign import Campaign, Tally, demand
from torture.commands import LONGEST, Late, limited
from torture.damage import Bomb

SECONDS = 10.0
BOMB = 1 << 30  # bytes that a bomb unfolds to
BOMBS = 0.05  # of the cases have one
FULL = 0.02  # of the cases state the numbers of images that the data sets really have
Contents = dict[str, bytes]


@contextmanager
def small_sets() -> Iterator[None]:
    """Small data sets under the known names, and none of Debian's."""
    known = dict(datasets.STANDARDS)
    place = datasets.DEBIAN
    for name, shape in SHAPES.items():
        datasets.STANDARDS[name] = datasets.Standard(TRAIN, TEST, shape, datasets.fingerprint(small(name)))
    datasets.DEBIAN = Path("/nowhere")
    try:
        yield
    finally:
        datasets.STANDARDS.update(known)
        datasets.DEBIAN = place


def contents_of(random: Random) -> tuple[str, str, Contents]:
    """A data set, a format, and the files of it as they should be."""
    name = random.choice([*SHAPES, *["cifar-10"] * 3])  # which has more formats
    if name != "cifar-10":
        files = idx_contents(small(name))
        return (name, "idx.gz", compressed(files)) if random.random() < 0.6 else (name, "idx", files)
    kind = random.choice(["bin", "py"])
    files = binary(small(name)) if kind == "bin" else python(small(name), random.random() < 0.3)
    if random.random() < 0.5:
        return name, kind, files
    packed = archive(files, f"cifar-10-batches-{kind}")
    return name, f"{kind}.tar.gz", {f"cifar-10-{'binary' if kind == 'bin' else 'python'}.tar.gz": packed}


# Ways to change a file. Each is given what is in it before it is compressed, and gives what is in it afterwards.


def flip(random: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice([1, 1, 2, 10])):
        if changed:
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def cut(random: Random, content: bytes) -> bytes:
    return content[: random.randint(0, len(content))]


def grow(random: Random, content: bytes) -> bytes:
    return content + random.choice([b"\0", content, bytes(random.randint(1, 10_000)), random.randbytes(100)])


def overwrite(random: Random, content: bytes) -> bytes:
    """Bytes near the beginning, where lengths and opcodes are, or anywhere."""
    start = random.randrange(random.choice([40, len(content) or 1]))
    part = random.choice([b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(8), random.randbytes(4), b"\xff" * 8])
    return content[:start] + part + content[start + len(part) :]


def nothing(random: Random, content: bytes) -> bytes:
    return random.choice([b"", b"<html>not found</html>", bytes(1000), random.randbytes(1000)])


PLAIN: tuple[Callable[[Random, bytes], bytes], ...] = (flip, flip, cut, grow, overwrite, overwrite, nothing)


# Pickles that ask for more than they are.


def long_opcode(random: Random, content: bytes) -> bytes:
    """An opcode that says to have more bytes than follow."""
    opcode = random.choice([b"T", b"B", b"X", b"\x8a\xff", b"\x8b", b"\x8d", b"\x8e", b"\x96", b"\x95"])
    return b"\x80\x04}(U\x04data" + opcode + struct.pack("<Q", random.choice([2**31 - 1, 2**32 - 1, 2**63 - 1])) + b"u."


def doubling(random: Random, content: bytes) -> bytes:
    """Lists of lists of lists, each twice the one before."""
    return b"\x80\x02]q\x00" + b"".join(b"]q%c(h%ch%ce" % (k, k - 1, k - 1) for k in range(1, 60)) + b"."


def deep(random: Random, content: bytes) -> bytes:
    return random.choice([b"]" * 50_000 + b"a" * 49_999, b"(" * 100_000, b"N" + b"\x85" * 100_000]) + b"."


def calling(random: Random, content: bytes) -> bytes:
    return pickle.dumps({"data": Bomb(Path.cwd() / "canary")}, protocol=random.randint(0, 4))


def huge_number(random: Random, content: bytes) -> bytes:
    return b"I" + b"9" * random.choice([5000, 1_000_000]) + b"\n."


PICKLES: tuple[Callable[[Random, bytes], bytes], ...] = (long_opcode, doubling, deep, calling, huge_number)


# Archives.


def repacked(random: Random, content: bytes, kind: str) -> bytes:
    """The files of an archive with one of them changed, or with headers that tar does not write."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        files = {Path(one.name).name: tar.extractfile(one).read() for one in tar.getmembers()}  # type: ignore[union-attr]
    name = random.choice(list(files))
    files[name] = change_content(random, files[name], kind)
    out = io.BytesIO()
    for inside, text in files.items():
        out.write(strange_member(random, f"cifar-10-batches-{kind[:2]}/{inside}", text))
    out.write(bytes(1024))
    return gzip.compress(out.getvalue())


def strange_member(random: Random, name: str, content: bytes) -> bytes:
    """A file of an archive, now and then one that is none."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    if random.random() < 0.1:
        info.type = random.choice([tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, b"S", b"x", b"L", b"g", b"9"])
        info.linkname = random.choice(["/etc/passwd", "../../x", name])
    if random.random() < 0.1:
        info.name = random.choice([f"/{name}", f"../../{name}", "x" * 90, name + "\n\x1b[31m", ""])
    if random.random() < 0.05:
        info.size = random.choice([0, 2**33 - 1, 2**40, len(content) + 1, max(0, len(content) - 1)])
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def change_content(random: Random, content: bytes, kind: str) -> bytes:
    """A file that was not compressed, changed."""
    ways = (*PLAIN, *PICKLES) if kind.startswith("py") else PLAIN
    return random.choice(ways)(random, content)


def changed(random: Random, content: bytes, kind: str) -> bytes:
    """A file, changed inside of its compression or outside."""
    if not kind.endswith("gz"):
        return change_content(random, content, kind)
    if random.random() < 0.4:
        return random.choice(PLAIN)(random, content)
    if kind.endswith("tar.gz"):
        return repacked(random, content, kind)
    return gzip.compress(change_content(random, gzip.decompress(content), kind), 1)


def full_size(random: Random) -> Contents:
    """Files that state what MNIST really has, and hold more or less of it."""
    shapes = ((60000, 28, 28), (60000,), (10000, 28, 28), (10000,))
    files = {}
    for name, shape in zip(IDX, shapes, strict=True):
        head = struct.pack(f">{1 + len(shape)}I", 0x800 + len(shape), *shape)
        length = int(np.prod(shape))
        files[f"{name}.gz"] = gzip.compress(head + bytes(length - (random.random() < 0.1)), 1)
    return files


@cache
def folded() -> bytes:
    """A bomb: parts of a gzip file, which are read as one."""
    part = 1 << 24
    return gzip.compress(bytes(part)) * (BOMB // part)


def blow_up(path: Path) -> None:
    """A file that is far longer than it should be, when it is read."""
    if path.suffix == ".gz":
        path.write_bytes(path.read_bytes() + folded())
    else:
        os.truncate(path, BOMB)


def read(name: str, folder: Path) -> tuple[Dataset | None, str]:
    """The data set, or the sentence why it cannot be had."""
    try:
        with limited(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("error")
            return load(name, folder, download=False), ""
    except DataError as error:
        return None, str(error)
    except Late as late:
        return None, f"\n{late}"


def check_answer(name: str, folder: Path, wanted: Dataset | None) -> str:
    """Fail unless the files give the data set, or one sentence; that sentence."""
    memory.forget()
    began = time.monotonic()
    found, sentence = read(name, folder)
    took = time.monotonic() - began
    demand(found is None or (wanted is not None and same(found, wanted)), "other images than those of the data set")
    demand("\n" not in sentence and len(sentence) <= LONGEST and sentence.isprintable(), f"no sentence: {sentence!r}")
    demand(memory.peak() < memory.MOST, f"it took {memory.peak()} kB: {sentence}")
    demand(took < SECONDS, f"it took {took:.1f} s: {sentence}")
    demand(not (folder / "canary").exists(), "a pickle has run code")
    return sentence


def case(random: Random, folder: Path) -> Tally:
    """The files of a data set, one or two of them changed."""
    os.chdir(folder)
    if random.random() < FULL:
        write(folder, full_size(random))
        check_answer("mnist", folder, None)
        return Tally(["full size"])
    with small_sets():
        name, kind, contents = contents_of(random)
        for file in random.sample(list(contents), k=min(len(contents), random.choice([1, 1, 2]))):
            contents[file] = changed(random, contents[file], kind)
        write(folder, contents)
        if random.random() < BOMBS:
            blow_up(folder / random.choice(list(contents)))
        sentence = check_answer(name, folder, small(name))
    return Tally([kind, "refused" if sentence else "read"])


CAMPAIGN = Campaign("data files", 1, case)
