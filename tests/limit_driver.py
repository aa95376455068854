"""What tests/test_out_of_memory.py starts: commands of the package with little room for their memory.

    limit_driver.py FILE        a JSON list of cases: [command, [room, ...], [flag, ...]]

A room is how many megabytes the address space may grow, or null for no limit. Each case is run once for each of its
rooms, with {} in the flags replaced by the number of the attempt. The first is without a limit, which compiles its
kernels and loads them: LLVM ends a process that has no room. A line of JSON has status, output and errors of each.
"""

from __future__ import annotations

import io
import json
import resource
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import rbd_ref
from rbd_ref import replay, train
from rbd_ref.conformance.memory import release
from rbd_ref.report import __main__ as report


def fit(arguments: list[str]) -> int:
    """`rbd_ref.fit` of a network of this name: 2 where it raises a RunError."""
    try:
        rbd_ref.fit(rbd_ref.Config(net=arguments[0], dims=3, family="srht", batch_size=100, steps=2))
    except rbd_ref.RunError as error:
        print(f"rbd_ref.fit: {error}", file=sys.stderr)
        return 2
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train.main,
    "replay": replay.main,
    "report": report.main,
    "fit": fit,
}


def size() -> int:
    """Bytes of this process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def attempt(command: Callable[[list[str]], int], arguments: list[str], room: float | None) -> tuple[int, str, str]:
    """Status, output and errors of a command with so many megabytes of room."""
    release()
    limit = resource.RLIM_INFINITY if room is None else size() + int(room * 1e6)
    out = io.StringIO()
    err = io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        try:
            status = command(arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return status, out.getvalue(), err.getvalue()


def main() -> None:
    """All cases, one after the other."""
    for name, rooms, flags in json.loads(Path(sys.argv[1]).read_text()):
        found = [
            attempt(COMMANDS[name], [flag.replace("{}", str(number)) for flag in flags], room)
            for number, room in enumerate(rooms)
        ]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
