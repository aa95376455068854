"""What the tests of runs share: small runs in this process or in one of their own, and what they leave behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rbd_ref import replay, train
from rbd_ref.runs import folder as runs
from rbd_ref.runs.folder import Run
from rbd_ref.runs.journal import Writer
from rbd_ref.training.experiment import Experiment

TINY = ("--net", "mlp:64-10", "--dims", "3", "--batch-size", "400")  # D = 650, an epoch is 3 steps
ONE_THREAD = {"NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
PATIENCE = 120.0  # seconds that a process may take to come as far as a test waits for


def status(arguments: Sequence[object], command: Callable[[Sequence[str]], int] = train.main) -> int:
    """The exit status of a command in this process."""
    try:
        return command([str(part) for part in arguments])
    except SystemExit as end:
        return int(end.code or 0)


def suited(*flags: object) -> list[object]:
    """The flags without those of directions and their values, if the method has none."""
    if "sgd" not in flags or "--switch" in flags:
        return list(flags)
    names = ("--dims", "--family", "--compartments", "--exchange")
    return [flag for before, flag in zip((None, *flags), flags, strict=False) if not {before, flag} & {*names}]


def trained(folder: Path, *flags: object) -> Run:
    """A run that ends well, and what it leaves."""
    assert status([*flags, "--quiet", "--out", folder]) == 0
    return Run(folder)


def resumed(run: Run, *flags: object) -> Run:
    """The run, gone on with to its end."""
    return trained(run.folder, "--resume", *flags)


def copied(run: Run, folder: Path) -> Run:
    """A copy to do harm to."""
    return Run(Path(shutil.copytree(run.folder, folder)))


def refused(capsys: pytest.CaptureFixture[str], arguments: Sequence[object], *words: str, **more: Any) -> str:
    """The sentence of a command that ends with status 2: one line with these words, and nothing else is printed."""
    command = more.get("command", train.main)
    capsys.readouterr()
    assert status(arguments, command) == 2
    out, err = capsys.readouterr()
    sentence = one_line(err, *words)
    assert sentence.startswith("rbd_ref.replay: " if command is replay.main else "rbd_ref.train: ")
    assert out == ""
    return sentence


def one_line(text: str, *words: str) -> str:
    """The only line of a text, which has these words."""
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    assert [word for word in words if word not in text] == [], text
    return text.rstrip("\n")


# What a run leaves.


def final(run: Run) -> np.ndarray:
    with np.load(run.folder / "final.npz", allow_pickle=False) as file:
        theta: np.ndarray = file["theta"]
    return theta


def result(run: Run) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run.folder / "result.json").read_text())
    return values


def sha(run: Run) -> str:
    return str(result(run)["sha256"])


def lines(run: Run, kind: str = "") -> list[dict[str, Any]]:
    """The lines of metrics, all or those of a kind."""
    found = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    return [values for values in found if kind in ("", values["kind"])]


def journaled(run: Run) -> list[np.ndarray]:
    return [record.rows for record in runs.journal_of(run, run.config()).records()]


def rewrite_journal(run: Run, step: int, rows: np.ndarray) -> list[bytes]:
    """Other numbers in the record of a step, and all chain values made anew; these, from before the first record on."""
    records = journaled(run)
    records[step] = rows.astype(np.float32)
    run.journal.unlink()
    writer = Writer.create(run.journal, run.config().digest)
    chains = [writer.chain]
    for t, sent in enumerate(records):
        writer.append(t, sent)
        chains.append(writer.chain)
    writer.close()
    return chains


def whole_names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by name."""
    return {name: (folder / name).read_bytes() for name in whole_names(folder)}


def experiment_of(run: Run) -> Experiment:
    return Experiment(run.config())


def unfinished(run: Run, size: int | None = None) -> Run:
    """The run as if it had ended when its journal had this size: without what is written at the end."""
    for name in ("final.npz", "result.json"):
        (run.folder / name).unlink(missing_ok=True)
    os.truncate(run.journal, run.journal.stat().st_size if size is None else size)
    return run


# Processes.


def started(*flags: object, **more: Any) -> subprocess.Popen[str]:
    """`python -m rbd_ref.train` with these flags, one thread."""
    return subprocess.Popen(
        [sys.executable, "-m", "rbd_ref.train", *map(str, flags)],
        env={**os.environ, **ONE_THREAD, **more.pop("environment", {})},
        stderr=subprocess.PIPE,
        text=True,
        **{"stdout": subprocess.PIPE, **more},
    )


def wait_until(reached: Callable[[], bool], process: subprocess.Popen[str]) -> bool:
    """Look again and again; False if the process ends before."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None:
        if reached():
            return True
        assert time.monotonic() < deadline, "the process hangs"
        time.sleep(0.0005)
    return False


def journal_reaches(run: Run, size: float) -> Callable[[], bool]:
    return lambda: run.journal.is_file() and run.journal.stat().st_size >= size


# A disk with little room.


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Callable[[], object] | None]:
    """A file system of `size` bytes at `folder`, and what makes room there; None where none can be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = shutil.which("mount") and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        grow = ["mount", "-o", "remount,size=100m", str(folder)]
        yield (lambda: subprocess.run(grow, check=True)) if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
