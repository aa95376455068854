"""From processes that a launcher started to a world, and what can be wrong with them.

Tests: tests/test_mpi.py.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from rbd_mpi.lifecycle import MpiLifecycle
from rbd_mpi.start import SIZES, launchers, number, start
from rbd_ref.runs.files import RunError
from rbd_ref.training.communicator import World


def on_terminal() -> bool:
    """Whether the launcher writes to a terminal. Ranks write to pipes, whose other end is its stderr."""
    with suppress(OSError):  # it is another user's
        outputs = [str(Path(f"/proc/{pid}/fd/2").readlink()) for pid in launchers()]
        return any(output.startswith(("/dev/pts/", "/dev/tty")) for output in outputs)
    return False


def connect() -> World:
    """The world of all processes that were started together."""
    started = start()
    if started.error:
        raise RunError(started.error)
    expected = number(SIZES)
    found = started.mpi.COMM_WORLD.size
    if expected and expected != found:
        started.leave()
        library = started.mpi.Get_library_version().splitlines()[0].strip("\0 ")
        raise RunError(
            f"the launcher started {expected} processes and MPI sees {found}, expected the same: the launcher is not "
            f"that of the MPI library ({library}); use the mpirun that belongs to it, or set MPI4PY_LIBMPI"
        )
    lifecycle = MpiLifecycle(started, on_terminal())
    return World(lifecycle.communicator, lifecycle.node, lifecycle)
