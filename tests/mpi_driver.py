"""What tests/test_mpi.py has mpiexec start: rbd_ref.train with something happening at one step of one rank.

    mpi_driver.py one FLAGS     rbd_ref.train, with the faults that RBD_TEST_FAULT names: KIND RANK PLACE, ...
    mpi_driver.py many FILE     one run after the other, from a JSON list of lists of flags, in one start of MPI

PLACE is the number of a step, or one of PLACES; what happens before a rank trains is in fault_site/. RBD_TEST_REACHED
is a file that is made just before the fault, RBD_TEST_REPORT a folder where each rank says at its end what threads it
started, what kernels it compiled and how many bytes it received, RBD_TEST_ROOM a smaller window for the ranks of a
node.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np

from fault_site.faults import FAULTS, RANK, mine, reached
from rbd_mpi.communicator import MpiCommunicator
from rbd_mpi.lifecycle import MpiLifecycle
from rbd_mpi.memory import NodeMemory, SharedArray
from rbd_mpi.waiting import Waiting
from rbd_ref import train
from rbd_ref.training import fit
from rbd_ref.training.command import Command
from rbd_ref.training.communicator import find_world
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.logbook import Logbook
from rbd_ref.training.trainer import NullLog, Trainer

PLACES: dict[str, list[tuple[Any, str]]] = {
    "start": [(fit, "_prepare")],
    "rehearsal": [(Experiment, "rehearse")],
    "replay": [(Experiment, "repeat")],
    "follow": [(Trainer, "follow")],
    "exchange": [(MpiCommunicator, "allgather_rows")],
    "exchanged": [(Trainer, "check_finite")],
    "turns": [(SharedArray, "__init__")],
    "allocate": [(SharedArray, "__init__")],
    "evaluation": [(Logbook, "evaluate"), (NullLog, "evaluate")],
    "checkpoint": [(Logbook, "checkpoint"), (NullLog, "checkpoint")],
    "close": [(MpiLifecycle, "close")],
    "finalize": [(Waiting, "free")],
}
# Of places that are come to for several reasons, the one that is meant: turns are the integers that ranks share.
DUE: dict[str, Callable[..., bool]] = {
    "turns": lambda *arguments: np.int64 in arguments,
    "allocate": lambda *arguments: np.int64 not in arguments,
}


def always(*_: object) -> bool:
    """Whatever the reason."""
    return True


def inject(kind: str, place: str) -> None:
    """Have the fault happen on this rank: before something is done first, or when its workers propose at a step."""
    if kind == "corrupt":
        corrupt(int(place))
    elif kind == "refuse":
        refuse(place)
    elif place in PLACES:
        for owner, name in PLACES[place]:
            before(owner, name, FAULTS[kind], DUE.get(place, always))
    else:
        before(Trainer, "propose", FAULTS[kind], lambda _, replica, __: replica.t == int(place))


def before(owner: Any, name: str, body: Callable[[], None], due: Callable[..., bool] = always) -> None:
    """Have a function of a module or class do `body` first, the first time that it is due."""
    true, done = getattr(owner, name), list[bool]()

    def patched(*arguments: Any) -> Any:
        if due(*arguments) and not done:
            done.append(True)
            body()
        return true(*arguments)

    setattr(owner, name, patched)


def refuse(place: str) -> None:
    """Have MPI refuse the memory for turns or for rows, which it does on all ranks of a node at once."""
    owner, name, asked = {
        "turns": (SharedArray, "__init__", np.int64),
        "rows": (NodeMemory, "_allocate", "rows 1"),
    }[place]
    true = getattr(owner, name)

    def patched(*arguments: Any) -> Any:
        if asked in arguments:
            from mpi4py import MPI

            raise MPI.Exception(MPI.ERR_NO_MEM)
        return true(*arguments)

    setattr(owner, name, patched)


def corrupt(step: int) -> None:
    """Change a weight of this rank, and of those it shares it with, at a step when all have proposed and sent."""
    true = Trainer.allgather

    def allgather(trainer: Trainer, replica: Any, proposals: Any) -> Any:
        found = true(trainer, replica, proposals)
        if replica.t == step:
            reached()
            replica.theta[300] += 1
        return found

    Trainer.allgather = allgather  # type: ignore[method-assign]


def tasks() -> int:
    """Threads of this process."""
    return len(list(Path("/proc/self/task").iterdir()))


def kernels() -> dict[str, Any]:
    """All compiled functions of the package."""
    modules = {name: module for name, module in sys.modules.items() if name.startswith("rbd_ref.")}
    return {
        f"{name}.{key}": value
        for name, module in modules.items()
        for key, value in vars(module).items()
        if hasattr(value, "stats") and getattr(value, "__module__", "") == name
    }


def report(first: int, last: int, received: int = 0) -> None:
    """Threads and compilations of this rank and bytes that it received, for the test to read."""
    if folder := os.environ.get("RBD_TEST_REPORT"):
        stats = {name: kernel.stats for name, kernel in kernels().items()}
        values = {
            "rank": RANK,
            "threads_of_kernels": numba.get_num_threads(),
            "threads_before": first,
            "threads_after": last,
            "compiled": sorted(name for name, found in stats.items() if found.cache_misses),
            "loaded": sorted(name for name, found in stats.items() if found.cache_hits),
            "bytes_received": received,
            "has_mpi4py": "mpi4py" in sys.modules,
        }
        (Path(folder) / f"rank-{RANK}.json").write_text(json.dumps(values))


def many(path: str) -> int:
    """All runs of a file; the status of the first that does not end well."""
    world = find_world()
    counts = [tasks()]  # with the thread that some MPI libraries have until they are closed
    jobs: list[list[str]] = json.loads(Path(path).read_text())

    command = Command("rbd_ref.train", train.parse, train.work, "")

    def body() -> int:
        status = next(filter(None, (command.on_one_rank(flags, world) for flags in jobs)), 0)
        counts.append(tasks())
        world.lifecycle.close(status)
        return status

    status = world.lifecycle.abort_on_error(body)
    report(counts[0], counts[-1], world.communicator.bytes_received)
    return status


def one(flags: list[str]) -> int:
    """The command itself."""
    first = tasks()
    status = train.main(flags)
    report(first, tasks())
    return status


def main() -> int:
    """One run or many."""
    if room := os.environ.get("RBD_TEST_ROOM"):
        from rbd_mpi import node

        node.TABLE_FLOATS = int(room)
    for kind, place in mine():
        inject(kind, place)
    return many(sys.argv[2]) if sys.argv[1] == "many" else one(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
