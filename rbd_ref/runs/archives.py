"""Arrays of a run's npz files, read so that no file takes more memory than what it was written for.

`np.savez` stores and does not compress, so an archive that would grow when it is read is none of ours; nothing is
unpickled, and the shape in an array's head has to be that of the bytes that follow before any are asked for.
Tests: tests/test_loaded.py.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from rbd_ref._types import F32, Float32Array
from rbd_ref.runs.files import refuse_special

HEAD = 4096  # bytes that the head of an array, or an entry of the archive, takes at most
MOST_TEXT = 1 << 20  # bytes of a JSON text
DEEPEST = 8  # levels of a JSON text


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; a ValueError where there is none, or where it is too long or too deep."""
    if len(text) > MOST_TEXT:
        raise ValueError(f"{len(text)} characters, expected {MOST_TEXT} at most")
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"nested too deeply, expected {DEEPEST} levels at most") from error
    if _deeper(value, DEEPEST):
        raise ValueError(f"nested too deeply, expected {DEEPEST} levels at most")
    return value


def _deeper(value: Any, levels: int) -> bool:
    """Whether a value of JSON has more levels than these."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(one, levels - 1) for one in inner)


def read_arrays(
    path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[dict[str, Any], dict[str, Float32Array]]:
    """What is said of the arrays in a file, and the arrays; where shapes are given, these arrays and no others.

    Raises whatever zip, npy and JSON raise at a broken file, ValueError and RunError.
    """
    refuse_special(path)
    with path.open("rb") as stream:
        if shapes is not None:
            _check_size(stream, shapes)
        with zipfile.ZipFile(stream) as archive:
            names = [entry.filename.removesuffix(".npy") for entry in archive.infolist()]
            if shapes is not None and sorted(names) != sorted(["info", *shapes]):
                raise ValueError(f"it holds {', '.join(names)}, expected {', '.join(['info', *shapes])}")
            info = parse_json(_text(archive))
            arrays = {name: _array(archive, name, shapes[name] if shapes else None) for name in names if name != "info"}
    if not isinstance(info, dict):
        raise ValueError("its info is no JSON object")
    return info, arrays


def _check_size(stream: BinaryIO, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a file that is longer than these arrays can make it."""
    size = stream.seek(0, 2)
    stream.seek(0)
    most = sum(4 * math.prod(shape) + 2 * HEAD for shape in shapes.values()) + 4 * MOST_TEXT
    if size > most:
        raise ValueError(f"it has {size} bytes, expected {most} at most")


def _member(archive: zipfile.ZipFile, name: str) -> tuple[zipfile.ZipInfo, int]:
    """An entry of the archive and its length; compressed ones are refused."""
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
        raise ValueError(f"{name} is compressed to {entry.compress_size} of {entry.file_size} bytes, expected it plain")
    return entry, entry.file_size


def _text(archive: zipfile.ZipFile) -> str:
    """The text of `info`: an array of one string."""
    entry, size = _member(archive, "info")
    if size > 4 * MOST_TEXT + HEAD:
        raise ValueError(f"info has {size} bytes, expected {4 * MOST_TEXT + HEAD} at most")
    with archive.open(entry) as member:
        shape, dtype = _head(member)
        body = member.read()
    if shape != () or dtype.kind != "U" or dtype.itemsize != len(body):
        raise ValueError(f"info is {dtype} of shape {shape}, expected one text")
    return str(np.frombuffer(body, dtype)[0])


def _array(archive: zipfile.ZipFile, name: str, expected: tuple[int, ...] | None) -> Float32Array:
    """An array of float32, of the expected shape where there is one."""
    entry, size = _member(archive, name)
    with archive.open(entry) as member:
        shape, dtype = _head(member)
        if dtype != np.dtype("<f4"):
            raise ValueError(f"{name} is {dtype}, expected float32")
        if expected is not None and shape != expected:
            raise ValueError(f"{name} has shape {shape}, expected {expected}")
        if not 0 <= size - 4 * math.prod(shape) <= HEAD:
            raise ValueError(f"{name} has {size} bytes, expected those of shape {shape}")
        body = member.read()
    return np.frombuffer(body, "<f4").reshape(shape).astype(F32)


def _head(member: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype in the head of an array, which is in C's order."""
    if (version := npy.read_magic(member)) != (1, 0):
        raise ValueError(f"an array is of version {version}, expected (1, 0)")
    shape, fortran, dtype = npy.read_array_header_1_0(member)
    if fortran:
        raise ValueError("an array is in Fortran's order, expected C's")
    return shape, dtype
