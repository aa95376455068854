"""What tests/test_mpi.py needs of processes: jobs of many ranks that end in time and leave nobody behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rbd_ref import replay

MPIEXEC = Path(sys.executable).with_name("mpiexec")  # the one that pip installed beside this Python
DRIVER = Path(__file__).with_name("mpi_driver.py")
FAULT_SITE = str(Path(__file__).with_name("fault_site"))
FIT = Path(__file__).with_name("mpi_fit.py")
TRAIN = ("-m", "rbd_ref.train")
MARK = "RBD_TEST_MARK"  # in the environment of a job and of all that it starts
LONG = 120.0  # seconds that a job may take
SOON = 30.0  # seconds in which all ranks are gone after a fault
SEGMENT = re.compile(r"(/dev/shm/\S+)(?: \(deleted\))?$", flags=re.M)  # in what a process has mapped
PROBE = "from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 2"


class Outcome(NamedTuple):
    """How a job ended."""

    status: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All of it, for messages."""
        return f"status {self.status}\n{self.out}\n{self.err}"


def marked(mark: str) -> list[int]:
    """The processes that have a mark in their environment."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def poll(condition: Callable[[], object], seconds: float) -> bool:
    """Whether a condition came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Job:
    """A command in a session of its own. mpiexec makes each rank a session too, so they are found by a mark."""

    def __init__(self, command: list[str], folder: Path, terminal: int = 0, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        self.files = [folder / f".{name}-{self.mark}" for name in ("out", "err")]
        opened = [] if terminal else [os.open(path, os.O_WRONLY | os.O_CREAT) for path in self.files]
        out, err = opened or (terminal, terminal)
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, MARK: self.mark, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        for stream in opened:
            os.close(stream)

    @property
    def processes(self) -> list[int]:
        """All that live, the launcher too."""
        return marked(self.mark)

    @property
    def ranks_begun(self) -> int:
        """How many run Python: before that a rank is still a copy of the launcher's proxy, which survives signals."""
        python, found = Path(sys.executable).resolve(), 0
        for pid in self.processes:
            with suppress(OSError):  # it is gone by now
                found += Path(f"/proc/{pid}/exe").readlink() == python
        return found

    def has_loaded(self, library: str) -> bool:
        """Whether a process has a file in its memory that has this in its path."""
        with suppress(OSError):  # of processes that are gone by now
            return any(library in Path(f"/proc/{pid}/maps").read_text() for pid in self.processes)
        return False

    @property
    def segments(self) -> set[Path]:
        """The shared segments that processes of the job have in their memory now."""
        found: set[str] = set()
        for pid in self.processes:
            with suppress(OSError):  # it is gone by now
                found |= set(SEGMENT.findall(Path(f"/proc/{pid}/maps").read_text()))
        return {Path(name) for name in found}

    def send(self, number: int) -> None:
        """A signal to the launcher alone."""
        self.process.send_signal(number)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something that happens while the job runs."""
        if not poll(lambda: condition() or self.process.poll() is not None, LONG) or not condition():
            self.give_up(f"{what} did not happen")

    def ended(self, seconds: float = LONG) -> Outcome:
        """The outcome, when the launcher and all that it started are gone."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.give_up(f"the job did not end in {seconds:g} s")
        if not poll(lambda: not self.processes, SOON):
            self.give_up(f"processes {self.processes} were left behind")
        return self.outcome()

    def outcome(self) -> Outcome:
        """What there is of it by now."""
        texts = [path.read_text(errors="replace") if path.exists() else "" for path in self.files]
        return Outcome(self.process.poll() or 0, *texts)

    def give_up(self, why: str) -> None:
        """End all that is left of the job, and the test."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in self.processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        pytest.fail(f"{why}: {self.process.args!r}\n{self.outcome().text}")


def launcher(ranks: int) -> list[str]:
    """What comes before a command to have it run by so many ranks; 0 is without MPI."""
    return [str(MPIEXEC), "-n", str(ranks), sys.executable] if ranks else [sys.executable]


def job(ranks: int, arguments: tuple[object, ...], folder: Path, **more: Any) -> Job:
    """Python with these arguments on so many ranks."""
    return Job([*launcher(ranks), *map(str, arguments)], folder, **more)


def why_unusable(folder: Path) -> str:
    """Why MPI cannot be used here, or nothing."""
    if not MPIEXEC.is_file():
        return f"there is no {MPIEXEC}: pip install .[mpi]"
    found = job(2, ("-c", PROBE), folder).ended()
    return "" if found.status == 0 else f"two ranks that say hello end with {found.text}"


def require_mpi(folder: Path) -> None:
    """Leave tests out with a reason where MPI cannot be used; where it has to be, that is a failure."""
    if why := why_unusable(folder):
        needed = os.environ.get("RBD_REQUIRE_MPI", "0") not in ("", "0") or os.environ.get("CI")
        (pytest.fail if needed else pytest.skip)(f"MPI cannot be used: {why}")


def sha(folder: Path) -> str:
    """Of the weights at the end of a run."""
    return str(json.loads((folder / "result.json").read_text())["sha256"])


def metrics(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of a kind."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [values for values in lines if values["kind"] == kind]


def verified(folder: Path) -> bool:
    """Whether a run agrees with its journal."""
    return replay.main([str(folder), "--verify"]) == 0
