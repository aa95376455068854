"""From the start to the end of all ranks: whatever ends one of them ends all, and says why, on paper too.

Tests: tests/test_mpi.py, tests/ft_mpi.py.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from rbd_mpi.communicator import MpiCommunicator
from rbd_mpi.memory import NodeMemory, ranks_of_node
from rbd_mpi.node import MpiNode
from rbd_mpi.start import Started
from rbd_mpi.waiting import SilentRanks, Waiting
from rbd_mpi.watchdog import SOON
from rbd_ref.runs.files import RunError, SharedError
from rbd_ref.training.communicator import Options, RanksLost, World

SILENT = 75  # exit status when a rank was given up
T = TypeVar("T")


class MpiLifecycle:
    """The ranks that were started together, until they leave together."""

    def __init__(self, started: Started, terminal: bool) -> None:
        self.started = started
        self.mpi = started.mpi
        self.watchdog = started.watchdog
        self.terminal: bool | None = terminal
        self.recovered = False
        self.options = Options(self.watchdog.timeout)
        self.join(self.mpi.COMM_WORLD)

    def join(self, ranks: Any) -> World:
        """Take part in a world of these ranks."""
        self.ranks = ranks
        with self.watchdog.guard("MPI_Comm_dup"):
            self.waiting = Waiting(self.mpi, ranks)
            on_node = ranks_of_node(self.mpi, ranks)
        self.memory = NodeMemory(self.mpi, on_node, self.waiting, self.watchdog)
        self.communicator = MpiCommunicator(self.mpi, ranks, self.waiting, self.memory)
        self.node = MpiNode(self.communicator, self.memory)
        self.configure(self.options)
        return World(self.communicator, self.node, self)

    def configure(self, options: Options) -> None:
        """From now on."""
        self.options = options
        self.waiting.timeout = options.timeout
        self.watchdog.timeout = options.timeout
        self.watchdog.send(f"faults {options.faults}")
        self.node.cooperate = options.cooperate

    def recover(self) -> World:
        """With an MPI that survives the loss of ranks (ULFM): all leave what they wait for and close up."""
        self.communicator.revoke()
        self.recovered = True
        with self.watchdog.guard("MPI_Comm_shrink"):
            left = self.ranks.Shrink()
        return self.join(left)

    def abort_on_error(self, body: Callable[[], T]) -> T:
        """What `body` gives; what it raises on one rank only ends them all."""
        try:
            return body()
        except (SharedError, RanksLost):
            raise  # all ranks raise these, so nobody is left waiting
        except BaseException as error:
            self._end_all(error)

    def _end_all(self, error: BaseException) -> NoReturn:
        """Say what happened here, on paper too, and end every rank."""
        expected = isinstance(error, RunError)
        status = SILENT if isinstance(error, SilentRanks) else 2 if expected else 1
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) and error.code else 1
            text = f"rank {self.communicator.rank} was left by exit with status {error.code}"
        elif isinstance(error, KeyboardInterrupt):
            status = 130
            text = f"rank {self.communicator.rank} was interrupted"
        else:
            found = str(error) if expected else "".join(traceback.format_exception(error)).strip()
            text = f"rank {self.communicator.rank}: {found}"
        self._write_down(text)
        self.watchdog.claim()
        print(f"rbd_ref.train: {text}", file=sys.stderr, flush=True)
        time.sleep(0.1)  # what was just printed reaches the launcher before the end does
        with self.watchdog.guard("MPI_Abort", SOON):
            self.communicator.abort(status)

    def _write_down(self, text: str) -> None:
        """Into faults.log of the run, as what is printed at the end may be lost."""
        try:
            if self.options.faults:
                with (Path(self.options.faults) / "faults.log").open("a", encoding="utf-8") as out:
                    out.write(f"{text}\n")
        except OSError:
            pass  # the fault that is being written down may be that of this disk

    def close(self, status: int = 0) -> None:
        """Free what ranks share, together: left to the interpreter's end it may hang."""
        self.communicator.barrier()
        if self.recovered:
            sys.stdout.flush()
            self.started.leave()
            os._exit(status)  # MPI's own end may wait for those who are lost
        self.memory.free()
        with self.watchdog.guard("MPI_Comm_free"):
            self.waiting.free()
            self.communicator.free()
        with self.watchdog.guard("MPI_Finalize"):
            self.mpi.Finalize()
        self.started.leave()
