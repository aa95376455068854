"""What tests/test_mpi.py has mpiexec start: rbd_ref.train with something happening at one step of one rank.

    mpi_driver.py one FLAGS     rbd_ref.train, with the faults that RBD_TEST_FAULT names: KIND RANK PLACE, ...
    mpi_driver.py many FILE     one run after the other, from a JSON list of lists of flags, in one start of MPI

PLACE is the number of a step, `start` or `rehearsal`. RBD_TEST_REACHED is a file that is made just before the fault,
RBD_TEST_REPORT a folder where each rank says at its end what threads it started and what kernels it compiled,
RBD_TEST_ROOM a smaller window for the ranks of a node.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from rbd_ref import train
from rbd_ref.training import fit
from rbd_ref.training.communicator import find_world
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.trainer import Trainer

RANK = int(os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
LONG = 100.0  # seconds after which what is waited for does not come
LATE = 4.0  # seconds by which a rank is late, longer than the living have to answer a roll call


def wait_for_signal() -> None:
    """Return as soon as a signal was received here, which its handler has seen then."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    reached()
    assert select.select([reader], [], [], LONG)[0], "no signal came"
    signal.set_wakeup_fd(before)


def reached() -> None:
    """Let the test know that the fault comes now."""
    if path := os.environ.get("RBD_TEST_REACHED"):
        Path(path).touch()


def fail() -> None:
    """An error of the program."""
    reached()
    raise ZeroDivisionError("this rank divides by zero")


def leave() -> None:
    """An exit that nobody expects."""
    reached()
    sys.exit(3)


def send(number: int) -> Callable[[], None]:
    """A signal to this process itself."""

    def now() -> None:
        reached()
        os.kill(os.getpid(), number)

    return now


def fill_disk() -> None:
    """From now on no file can grow, as on a disk without room."""
    reached()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def starve() -> None:
    """From now on this process gets hardly any memory."""
    reached()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, resource.RLIM_INFINITY))


def be_late() -> None:
    """This rank needs some seconds more than others."""
    reached()
    time.sleep(LATE)


FAULTS: dict[str, Callable[[], None]] = {
    "raise": fail,
    "exit": leave,
    "kill": send(signal.SIGKILL),
    "stop": send(signal.SIGSTOP),
    "signal": wait_for_signal,
    "full": fill_disk,
    "starve": starve,
    "late": be_late,
}


def inject(kind: str, place: str) -> None:
    """Have the fault happen on this rank: at the start, or when the first of its workers proposes at a step."""
    if kind == "corrupt":
        corrupt(int(place))
    elif place == "start":
        before(fit, "_prepare", FAULTS[kind])
    elif place == "rehearsal":
        before(Experiment, "rehearse", FAULTS[kind])
    else:
        before(Trainer, "propose", FAULTS[kind], lambda _, replica, __: replica.t == int(place))


def before(owner: Any, name: str, body: Callable[[], None], due: Callable[..., bool] = lambda *_: True) -> None:
    """Have a function of a module or class do `body` first, the first time that it is due."""
    true, done = getattr(owner, name), list[bool]()

    def patched(*arguments: Any) -> Any:
        if due(*arguments) and not done:
            done.append(True)
            body()
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


def report(first: int) -> None:
    """Threads and compilations of this rank, for the test to read."""
    if folder := os.environ.get("RBD_TEST_REPORT"):
        stats = {name: kernel.stats for name, kernel in kernels().items()}
        values = {
            "rank": RANK,
            "threads_of_kernels": numba.get_num_threads(),
            "threads_before": first,
            "threads_after": tasks(),
            "compiled": sorted(name for name, found in stats.items() if found.cache_misses),
            "loaded": sorted(name for name, found in stats.items() if found.cache_hits),
            "has_mpi4py": "mpi4py" in sys.modules,
        }
        (Path(folder) / f"rank-{RANK}.json").write_text(json.dumps(values))


def many(path: str) -> int:
    """All runs of a file; the status of the first that does not end well."""
    world, first = find_world(), tasks()
    jobs: list[list[str]] = json.loads(Path(path).read_text())

    def body() -> int:
        status = next(filter(None, (train.command(flags, world) for flags in jobs)), 0)
        world.lifecycle.close(status)
        return status

    status = world.lifecycle.abort_on_error(body)
    report(first)
    return status


def one(flags: list[str]) -> int:
    """The command itself."""
    first = tasks()
    status = train.main(flags)
    report(first)
    return status


def main() -> int:
    """One run or many."""
    if room := os.environ.get("RBD_TEST_ROOM"):
        from rbd_mpi import node

        node.TABLE_FLOATS = int(room)
    for text in filter(None, os.environ.get("RBD_TEST_FAULT", "").split(",")):
        kind, rank, place = text.split()
        if int(rank) == RANK:
            inject(kind, place)
    return many(sys.argv[2]) if sys.argv[1] == "many" else one(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
