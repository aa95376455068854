"""From processes that a launcher started to a world: what has to be set before MPI is, and what can be wrong.

Tests: tests/test_mpi.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rbd_ref._machine import cores
from rbd_ref.runs.files import RunError
from rbd_ref.training.communicator import World

SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")  # how many processes the launcher says it started
LAUNCHERS = ("mpiexec", "mpirun", "prterun", "orterun")
SEGMENT = re.compile(r"/dev/shm/mpich_shm_\w+")  # what MPICH's ranks of a node share
LOCAL = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")  # how many of them on this node


def number(names: tuple[str, ...]) -> int:
    """The first of these variables that is a number, or 0."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdecimal()), 0)


def ancestors() -> Iterator[int]:
    """This process's parent, and its parent, and so on."""
    pid = os.getppid()
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def on_terminal() -> bool:
    """Whether the launcher writes to a terminal. Ranks write to pipes, whose other end is its stderr."""
    try:
        for pid in ancestors():
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:2]
            if any(Path(word).name.startswith(LAUNCHERS) for word in words):
                return str(Path(f"/proc/{pid}/fd/2").readlink()).startswith(("/dev/pts/", "/dev/tty"))
    except OSError:
        pass  # it is another user's, or this system shows no processes
    return False


def prepare() -> None:
    """Ranks that outnumber cores give way to each other while they wait."""
    if number(LOCAL) > cores():
        os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")
        os.environ.setdefault("MPIR_CVAR_POLLS_BEFORE_YIELD", "1")


def load() -> Any:
    """mpi4py's MPI, started."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RunError(
            f"MPI cannot be loaded ({str(error).splitlines()[0]}), expected mpi4py and an MPI library: "
            "pip install rbd-ref[mpi], or for a library of your own install mpi4py and set MPI4PY_LIBMPI to its path"
        ) from error
    return MPI


def forget_segments(mpi: Any) -> None:
    """Take away the names of segments that ranks of a node share, when all of them have them.

    They stay for as long as a rank is there. MPICH removes the names at its own end, so that after a kill the memory
    would never be given back.
    """
    mpi.COMM_WORLD.Barrier()
    with suppress(OSError):  # this system does not show what is mapped, or another rank was first
        for name in set(SEGMENT.findall(Path("/proc/self/maps").read_text())):
            Path(name).unlink(missing_ok=True)


def connect() -> World:
    """The world of all processes that were started together."""
    prepare()
    mpi = load()
    from rbd_mpi.lifecycle import MpiLifecycle

    started = number(SIZES)
    found = mpi.COMM_WORLD.size
    if started and started != found:
        library = mpi.Get_library_version().splitlines()[0].strip("\0 ")
        raise RunError(
            f"the launcher started {started} processes and MPI sees {found}, expected the same: the launcher is not "
            f"that of the MPI library ({library}); use the mpirun that belongs to it, or set MPI4PY_LIBMPI"
        )
    forget_segments(mpi)
    lifecycle = MpiLifecycle(mpi, on_terminal())
    return World(lifecycle.communicator, lifecycle.node, lifecycle)
