"""What more cores give: the threads of one `descend`, beside as many processes that work at once and share nothing.

    python benchmarks/cores.py --json benchmarks/cores.json

The processes show what the machine has to give: cores that share a clock, a cache or a host do not double the work
either. What threads lack beyond that is their own: what Python does around a kernel, and waiting for each other.
May import: numpy, numba, the package, speed (this folder).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numba
from speed import SHAPES, descend, keep, limited, machine, timed

FAMILIES = ("normal", "rademacher", "sparse", "srht")
Which = tuple[int, int, str]  # D, d, family
SPELL = 0.2  # seconds that are measured before another's turn


def work(pipe: Connection) -> None:
    """In a process of its own: the best time of a `descend` with so many threads, whenever asked for it."""
    calls = {(D, d, family): descend(D, d, family) for D, d in SHAPES for family in FAMILIES}
    for call in calls.values():
        call()
    pipe.send("ready")
    while asked := pipe.recv():
        call, times, end = limited(asked[1], calls[asked[0]]), [], time.perf_counter() + SPELL
        while time.perf_counter() < end:
            times.append(timed(call).wall)
        pipe.send(min(times))


@contextmanager
def workers(count: int) -> Iterator[list[Connection]]:
    """Pipes to so many processes that are ready."""
    context, pipes = get_context("spawn"), []
    for _ in range(count):
        here, there = context.Pipe()
        context.Process(target=work, args=(there,), daemon=True).start()
        pipes.append(here)
    for pipe in pipes:
        pipe.recv()
    yield pipes
    for pipe in pipes:
        pipe.send(None)


def at_once(pipes: list[Connection], which: Which, threads: int) -> float:
    """Calls a second of some processes together, each at its best."""
    for pipe in pipes:
        pipe.send((which, threads))
    return sum(1 / float(pipe.recv()) for pipe in pipes)


def measured(pipes: list[Connection], which: Which, rounds: int) -> dict[str, float]:
    """Milliseconds of one thread, and how many times as much all threads do, and as many processes; best of rounds."""
    one = threads = processes = 0.0
    for _ in range(rounds):
        one = max(one, at_once(pipes[:1], which, 1))
        threads = max(threads, at_once(pipes[:1], which, len(pipes)))
        processes = max(processes, at_once(pipes, which, 1))
    return {"milliseconds": 1e3 / one, "threads": threads / one, "processes": processes / one}


def main() -> None:
    """Measure, print, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="turns of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options, before, found = parser.parse_args(), machine(), []
    with workers(numba.get_num_threads()) as pipes:
        for D, d in SHAPES:
            for family in FAMILIES:
                row = measured(pipes, (D, d, family), options.rounds)
                shown = ", ".join(f"{name} {value:.3f}" for name, value in row.items())
                print(f"{family}, D = {D:,}, d = {d:,}: {shown}", flush=True)
                found.append({"family": family, "D": D, "d": d, **row})
    keep(options.json, before, rows=found)


if __name__ == "__main__":
    main()
