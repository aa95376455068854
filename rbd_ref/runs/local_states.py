"""What the workers keep to themselves, beside a checkpoint: a file for each worker, bound to the checkpoint by a hash.

    checkpoints/local-00000037-00002.npz    what worker 2 keeps after 37 steps    written whole, then named

All of them are written before their checkpoint, which holds the sha256 of their hashes in the order of workers: a set
that is incomplete, damaged or put together from several is found. They stand apart so that no process ever holds the
memories of all workers, and belong to workers, not to ranks: any number of ranks can go on from them.
Tests: tests/test_memory_resume.py.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from rbd_ref.methods.base import Local, size_of
from rbd_ref.runs.archives import read_arrays
from rbd_ref.runs.files import RunError, disk, quoted
from rbd_ref.runs.folder import Run, checkpoint_path, save_arrays

NAME = re.compile(r"local-([0-9]{8,})-([0-9]{5,})\.npz")


def path_of(run: Run, t: int, worker: int) -> Path:
    """The file of what a worker keeps after t steps."""
    return run.folder / "checkpoints" / f"local-{t:08d}-{worker:05d}.npz"


def fingerprint(local: Local) -> str:
    """sha256 of the little-endian bytes of all arrays, in their order."""
    found = hashlib.sha256()
    for array in local._asdict().values():
        found.update(np.ascontiguousarray(array, dtype="<f4").data)
    return found.hexdigest()


def combined(fingerprints: Iterable[str]) -> str:
    """sha256 of the fingerprints of all workers, in their order."""
    return hashlib.sha256("".join(fingerprints).encode()).hexdigest()


def save(run: Run, t: int, worker: int, local: Local) -> str:
    """Write what a worker keeps after t steps; its fingerprint."""
    found = fingerprint(local)
    save_arrays(path_of(run, t, worker), {"sha256": found}, **local._asdict())
    return found


def load(run: Run, t: int, worker: int, blank: Any) -> Any:
    """What a worker kept after t steps, of the form of `blank`, if its file is whole."""
    path = path_of(run, t, worker)
    try:
        info, arrays = read_arrays(path, {name: array.shape for name, array in blank._asdict().items()})
        local = type(blank)(**arrays)
        if info["sha256"] != fingerprint(local):
            raise ValueError("its numbers are not those that it was written with")
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise ValueError("it has an element that is not finite")
    except MemoryError:
        raise  # the file may well be whole
    except Exception as error:  # zip, npy and JSON each raise whatever they like at a broken file
        raise RunError(
            f"{path} is not what worker {worker} kept after step {t} ({quoted(error)}), expected the file as it was "
            "written: restore it, or go on from an earlier checkpoint"
        ) from error
    return local


def check(run: Run, t: int, workers: int, blank: Any, expected: str) -> None:
    """Refuse the files of a checkpoint that are not, all of them, those that it was written with; none are expected of
    workers that keep nothing."""
    if not size_of(blank):
        return
    found = combined(fingerprint(load(run, t, worker, blank)) for worker in range(workers))
    if found != expected:
        raise RunError(
            f"{run.folder / 'checkpoints'} has what the workers kept after step {t} from different checkpoints, "
            "expected the files as they were written together: restore them, or go on from an earlier checkpoint"
        )


def remove_old(run: Run, t: int) -> None:
    """Remove the files of fewer than t steps whose checkpoint is gone, or was never written."""
    for path in (run.folder / "checkpoints").glob("local-*.npz"):
        name = NAME.fullmatch(path.name)
        if name and int(name[1]) < t and not checkpoint_path(run, int(name[1])).exists():
            with disk(path, "removed"):
                path.unlink(missing_ok=True)
