"""What more cores give: the threads of one `descend`, beside as many processes that work at once and share nothing.

    python benchmarks/cores.py --json benchmarks/cores.json

The processes show what the machine has to give: cores that share a clock, a cache or a host do not double the work
either. What threads lack beyond that is their own, and is measured too: what Python does around a kernel, waking
threads that sleep as they had nothing to do for a while, and what it would cost others to let them wait awake.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from speed import SHAPES, descend, keep, limited, machine

from rbd_ref.kernels import operations

FAMILIES = ("normal", "rademacher", "sparse", "srht")
KERNELS = ("descend_cooperative", "srht_per_compartment", "srht_cooperative")
SPELL = 0.1  # seconds that are measured before another's turn
LONG = 3.0  # seconds in which a busy machine shows
PAUSES = (0.0, 5e-5, 8e-5, 1e-4, 1.5e-4, 3e-4)  # seconds between kernels
SPINS = (5000, 50_000)  # rounds of a loop that a thread waits awake: the package's choice, and longer
ENDLESS = 1e9  # seconds


class Task(NamedTuple):
    """What a process is to measure: calls or, with a pause before each, their kernel only."""

    family: str
    D: int
    d: int
    threads: int
    pause: float | None = None


class Seconds(NamedTuple):
    """Of one call: all of it, its kernel alone, and how long the threads had nothing to do before."""

    call: float
    kernel: float
    idle: float


@dataclass
class Clock:
    """When kernels began and ended."""

    begins: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    keeps: bool = False
    again: Callable[[], None] = lambda: None  # the last kernel once more, if it was to be kept with all its arrays

    def around(self, kernel: Callable[..., None]) -> Callable[..., None]:
        """The kernel by the clock."""

        def call(*arguments: Any) -> None:
            if self.keeps:
                self.again, self.keeps = partial(call, *arguments), False
            self.begins.append(time.perf_counter())
            kernel(*arguments)
            self.ends.append(time.perf_counter())

        return call

    def timed(self, call: Callable[[], object], pause: float, seconds: float) -> list[Seconds]:
        """One call after the other, after a first that counts for nothing."""
        whole: list[float] = []
        self.begins, self.ends, end = [], [], time.perf_counter() + seconds
        while len(whole) < 2 or time.perf_counter() < end:
            begin = time.perf_counter()
            while time.perf_counter() < begin + pause:
                pass
            begin = time.perf_counter()
            call()
            whole.append(time.perf_counter() - begin)
        kernel, idle = np.subtract(self.ends, self.begins), np.subtract(self.begins[1:], self.ends[:-1])
        return [Seconds(*each) for each in zip(whole[1:], kernel[1:], idle, strict=True)]


def work(pipe: Connection) -> None:
    """In a process of its own, until it is ended: the times of many calls, whenever asked for them."""
    clock = Clock()
    for name in KERNELS:
        setattr(operations, name, clock.around(getattr(operations, name)))
    calls = {(family, D, d): descend(D, d, family) for D, d in SHAPES for family in FAMILIES}
    for call in calls.values():
        call()
    pipe.send("ready")
    while True:
        task, seconds = pipe.recv()
        call = limited(task.threads, calls[task[:3]])
        if task.pause is not None:
            clock.keeps = True
            call()
            call = clock.again
        pipe.send(clock.timed(call, task.pause or 0.0, seconds))


@contextmanager
def workers(count: int, spins: int) -> Iterator[list[Connection]]:
    """Pipes to so many processes that are ready, whose threads wait awake for so many rounds."""
    context, pipes, processes = get_context("spawn"), [], []
    os.environ["GOMP_SPINCOUNT"] = str(spins)
    for _ in range(count):
        here, there = context.Pipe()
        processes.append(context.Process(target=work, args=(there,), daemon=True))
        processes[-1].start()
        pipes.append(here)
    for pipe in pipes:
        pipe.recv()
    yield pipes
    for process in processes:
        process.terminate()


def at_once(pipes: list[Connection], task: Task, seconds: float = SPELL) -> list[list[Seconds]]:
    """The times of some processes that work together."""
    for pipe in pipes:
        pipe.send((task, seconds))
    return [pipe.recv() for pipe in pipes]


def least(times: list[Seconds]) -> Seconds:
    """The best of each."""
    return Seconds(*map(min, zip(*times, strict=True)))


def measured(pipes: list[Connection], family: str, D: int, d: int, rounds: int) -> dict[str, object]:
    """Of one thread, of all, and of as many processes; best of rounds."""
    one, many, processes = Task(family, D, d, 1), Task(family, D, d, len(pipes)), 0.0
    single: list[Seconds] = []
    together: list[Seconds] = []
    for _ in range(rounds):
        single += at_once(pipes[:1], one)[0]
        together += at_once(pipes[:1], many)[0]
        processes = max(processes, sum(1 / least(times).call for times in at_once(pipes, one)))
    alone, all_threads = least(single), least(together)
    return {
        "family": family,
        "D": D,
        "d": d,
        "milliseconds": 1e3 * alone.call,
        "threads": alone.call / all_threads.call,
        "processes": processes * alone.call,
        "kernel": alone.kernel / all_threads.kernel,
        "around": 1e6 * min(times.call - times.kernel for times in together),
    }


def sleeping(pipes: list[Connection], rounds: int) -> list[dict[str, float]]:
    """The kernel of `sparse`, in microseconds, by how long its threads had nothing to do before it."""
    found: dict[float, list[Seconds]] = {pause: [] for pause in PAUSES}
    for _ in range(rounds):
        for pause, times in found.items():
            times += at_once(pipes[:1], Task("sparse", *SHAPES[0], len(pipes), pause))[0]
    best = map(least, found.values())
    return [{"idle": 1e6 * times.idle, "kernel": 1e6 * times.kernel} for times in best]


def awake(threads: int, spins: int) -> list[dict[str, object]]:
    """The mean milliseconds of a call, alone and beside a process that is busy, where threads wait for so long."""
    found = []
    with workers(2, spins) as (pipe, other):
        for busy in (False, True):
            if busy:
                other.send((Task("normal", *SHAPES[0], 1), ENDLESS))
            for family in ("normal", "sparse"):
                times = at_once([pipe], Task(family, *SHAPES[0], threads), LONG if busy else LONG / 3)[0]
                mean = 1e3 * float(np.mean([each.call for each in times]))
                found.append({"family": family, "spins": spins, "busy": busy, "milliseconds": mean})
    return found


def shown(row: dict[str, Any]) -> str:
    """A line of figures."""
    return ", ".join(f"{name} {value:.3f}" if isinstance(value, float) else f"{value}" for name, value in row.items())


def main() -> None:
    """Measure, print, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8, help="turns of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options, before, threads, rows = parser.parse_args(), machine(), numba.get_num_threads(), []
    with workers(threads, SPINS[0]) as pipes:
        for D, d in SHAPES:
            for family in FAMILIES:
                rows.append(measured(pipes, family, D, d, options.rounds))
                print(shown(rows[-1]), flush=True)
        waits = sleeping(pipes, options.rounds)
    print(*map(shown, waits), sep="\n")
    spins = [row for count in SPINS for row in awake(threads, count)]
    print(*map(shown, spins), sep="\n")
    keep(options.json, before, rows=rows, sleeping=waits, awake=spins)


if __name__ == "__main__":
    main()
