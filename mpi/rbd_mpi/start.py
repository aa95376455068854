"""MPI, started before anything else: whatever fails later on one rank can end them all.

A rank that fails before MPI is started leaves the others in MPI_Init, where they wait for ever. So the command starts
MPI before it imports NumPy or anything that could fail, under a watchdog that knows who is missing. From then on a
rank that leaves Python by itself, with an exception or with an exit, takes all others along.
May import: nothing but the standard library, watchdog, watcher, and of rbd_ref _launch and _machine.
Tests: tests/test_hangs.py, tests/test_mpi.py.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rbd_mpi.watchdog import SOON, TIMEOUT, Watchdog
from rbd_mpi.watcher import SHARED, Member, Roll, remove_segments
from rbd_ref._launch import first_on_node
from rbd_ref._machine import cores

RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")  # how many processes the launcher says it started
LOCAL = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")  # how many of them on this node
LAUNCHERS = ("mpiexec", "mpirun", "prterun", "orterun", "hydra_pmi_proxy")
# Bytes of shared memory for ranks of MPICH 5, in all and each. Measured: 2, 4, 8 and 16 ranks take 5.4 MB each, and
# crash in a /dev/shm of 17, 19, 50 and 84 MB.
BASE = 10_000_000
ROOM = 5_500_000
OLD = 60.0  # seconds after which a segment that nobody maps is of a run that was killed
PATIENCE = 5.0  # seconds that ranks wait for the verdict of the first
ENOUGH = 1
TOO_LITTLE = 2


def number(names: tuple[str, ...]) -> int:
    """The first of these variables that is a number, or 0."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdecimal()), 0)


def ancestors() -> Iterator[int]:
    """This process's parent, and its parent, and so on."""
    pid = os.getppid()
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def launchers() -> Iterator[int]:
    """The processes of the launcher that started this one, the nearest first."""
    with suppress(OSError):  # another user's, or this system shows no processes
        for pid in ancestors():
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:2]
            if any(Path(word).name.startswith(LAUNCHERS) for word in words):
                yield pid


def open_roll() -> Roll | None:
    """The roll of this node's ranks, named after what only they have in common; None where nothing is known."""
    job = os.environ.get("PMIX_NAMESPACE") or next((str(pid) for pid in launchers()), "")
    if not job:
        return None
    name = f"rbd_ref-{os.geteuid()}-roll-{''.join(sign if sign.isalnum() else '-' for sign in job)}"
    with suppress(OSError):
        return Roll.open(str(Path(tempfile.gettempdir()) / name))
    return None


def requested_timeout() -> float:
    """What --timeout says, which is not parsed yet."""
    words = [part for word in sys.argv for part in word.split("=", 1)]
    with suppress(ValueError, IndexError):
        return float(words[words.index("--timeout") + 1])
    return TIMEOUT


def shortage(roll: Roll | None) -> str:
    """What is wrong with this node's shared memory, which MPICH would crash of; found by the first rank for all."""
    ranks = number(LOCAL)
    if "PMI_FD" not in os.environ or not ranks or not SHARED.is_dir() or "UCX_TLS" in os.environ:
        return ""
    first = first_on_node()
    if first:
        remove_segments(0, time.time() - OLD)
    needed = BASE + ranks * ROOM
    free = free_memory()
    if roll is not None:
        if first:
            roll.verdict = ENOUGH if free >= needed else TOO_LITTLE
        if _verdict(roll) != TOO_LITTLE:
            return ""
    elif free >= needed:
        return ""
    return (
        f"{SHARED} has {free // 10**6} MB free, expected {needed // 10**6} MB for {ranks} ranks of MPI: enlarge it "
        "(Docker: --shm-size 1g), start fewer ranks, or set UCX_TLS=self,tcp"
    )


def free_memory() -> int:
    """Bytes of shared memory that are left."""
    found = os.statvfs(SHARED)
    return found.f_bavail * found.f_frsize


def _verdict(roll: Roll) -> int:
    """That of the first rank, if it comes."""
    end = time.monotonic() + PATIENCE
    while not roll.verdict and time.monotonic() < end:
        time.sleep(0.01)
    return roll.verdict


def prepare() -> None:
    """Ranks that outnumber cores give way to each other while they wait."""
    if number(LOCAL) > cores():
        os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")
        os.environ.setdefault("MPIR_CVAR_POLLS_BEFORE_YIELD", "1")


@dataclass
class Started:
    """MPI and the watchdog of this rank, or why MPI could not be started."""

    mpi: Any
    watchdog: Watchdog
    error: str = ""
    left: bool = False  # whether all ranks have left together, or each is alone

    def leave(self) -> None:
        """Nothing is left to be watched."""
        self.left = True
        self.watchdog.dismiss()


@cache
def start() -> Started:
    """Start MPI, once; what is wrong is kept for whoever can say it."""
    prepare()
    roll = open_roll()
    started = Started(None, Watchdog(number(RANKS), number(SIZES), number(LOCAL), roll), shortage(roll))
    started.watchdog.timeout = requested_timeout()
    if not started.error:
        _load(started)
    if started.error:
        started.leave()
    if roll is not None:
        _forget(roll)
    return started


def _forget(roll: Roll) -> None:
    """The last rank of the node removes the roll's file, which all have open; if MPI has started, they all are last."""
    rank = number(RANKS)
    members = roll.members()
    if rank not in members:
        roll.enter(rank, Member(os.getpid(), 0))
    if len({*members, rank}) >= number(LOCAL):
        roll.remove()


def _load(started: Started) -> None:
    """mpi4py's MPI, loaded first and then started, so that it is known which of the two a rank is missing in."""
    try:
        with started.watchdog.guard("the loading of MPI"):
            import mpi4py

            mpi4py.rc.initialize = False
            mpi4py.rc.finalize = True  # at the end of Python, where it was not before
            from mpi4py import MPI
        with started.watchdog.guard("MPI_Init"):
            MPI.Init_thread()
    except (ImportError, RuntimeError) as error:
        started.error = (
            f"MPI cannot be loaded ({str(error).splitlines()[0]}), expected mpi4py and an MPI library: "
            "pip install rbd-ref[mpi], or for a library of your own install mpi4py and set MPI4PY_LIBMPI to its path"
        )
        return
    started.mpi = MPI
    started.watchdog.send("started")


def start_command() -> None:
    """Start MPI for a command: until it trains it may be busy, but not idle, and if it ends, all ranks do."""
    started = start()
    if not started.error:
        started.watchdog.send(f"live {started.watchdog.timeout:g} its modules are imported")
        atexit.register(_end_all, started)


def _end_all(started: Started) -> None:
    """This rank leaves Python, and the others would wait for it."""
    if started.left:
        return
    if started.watchdog.claim():
        rank = started.watchdog.rank
        print(
            f"rbd_ref.train: rank {rank} has ended before its training did: all ranks end", file=sys.stderr, flush=True
        )
        time.sleep(0.1)  # what was just printed reaches the launcher before the end does
    with started.watchdog.guard("MPI_Abort", SOON):
        started.mpi.COMM_WORLD.Abort(1)
