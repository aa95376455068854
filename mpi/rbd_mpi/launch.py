"""From processes that a launcher started to a world, and what can be wrong with them.

Tests: tests/test_mpi.py.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from rbd_mpi.lifecycle import MpiLifecycle
from rbd_mpi.start import SIZES, Started, launchers, number, start
from rbd_mpi.watcher import segments_of
from rbd_ref.runs.files import RunError
from rbd_ref.training.communicator import World


def on_terminal() -> bool:
    """Whether the launcher writes to a terminal. Ranks write to pipes, whose other end is its stderr."""
    with suppress(OSError):  # it is another user's
        outputs = [str(Path(f"/proc/{pid}/fd/2").readlink()) for pid in launchers()]
        return any(output.startswith(("/dev/pts/", "/dev/tty")) for output in outputs)
    return False


def forget_segments(started: Started) -> None:
    """Take away the names of the segments that the ranks of a node share, once all of them have mapped them.

    MPICH removes the names only at its own end, so of ranks that are killed the memory would never be given back.
    """
    with started.watchdog.guard("MPI_Barrier"):
        started.mpi.COMM_WORLD.Barrier()
    with suppress(OSError):  # this system does not show what is mapped
        for path in segments_of("self"):
            path.unlink(missing_ok=True)


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
    forget_segments(started)
    lifecycle = MpiLifecycle(started, on_terminal())
    return World(lifecycle.communicator, lifecycle.node, lifecycle)
