"""What a command does before anything else: Ctrl-C without a traceback, and MPI where a launcher started the process.

A rank that fails before MPI is started leaves all others waiting in it. So `python -m rbd_ref.train` starts it before
NumPy or anything else that could fail is imported. What starts it is a function in the entry-point group
`rbd_ref.starts`, as this package does not know MPI by name.
May import: _path.
Tests: tests/test_hangs.py.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import entry_points

from rbd_ref._path import module_of_command

GROUP = "rbd_ref.starts"
LAUNCHERS = ("PMI_SIZE", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE")  # what MPI's launchers set
LOCAL_RANKS = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK")
COMMANDS = ("rbd_ref.train", "rbd_ref.sweep")  # that train on many ranks


def launched() -> bool:
    """Whether an MPI launcher started this process."""
    return any(name in os.environ for name in LAUNCHERS)


def first_on_node() -> bool:
    """Whether this process is the first of its node's, or the only one: the one that speaks before MPI is started."""
    return all(os.environ.get(name, "0") == "0" for name in LOCAL_RANKS)


def start_command() -> None:
    """If this process is a command: Ctrl-C just ends it until it says otherwise, and a rank that trains starts MPI."""
    module = module_of_command(sys.orig_argv)
    if module:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if launched() and module in COMMANDS:
        for point in entry_points(group=GROUP):
            point.load()()
