"""The command `rbd`, which is also `python -m rbd_ref`: all commands of the package under one name.

    rbd train, sweep, report, replay, analysis, suggest, warmup, paper, conformance

`python -m rbd_ref.train` and the others are the same commands. Each is imported only when it is asked for.
Tests: tests/test_command.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

import rbd_ref

COMMANDS = {
    "train": ("rbd_ref.train", "train a network along random directions, alone or on the ranks of mpirun"),
    "sweep": ("rbd_ref.sweep", "train grids of settings side by side, or search the learning rate"),
    "report": ("rbd_ref.report.__main__", "show runs on one page: curves, tables, the paper's figures"),
    "replay": ("rbd_ref.replay", "rebuild the weights of any step of a run, or verify a run"),
    "analysis": ("rbd_ref.analysis.__main__", "cosines, correlation, loss landscape, intrinsic dimension, spectrum"),
    "suggest": ("rbd_ref.suggest", "suggest family and rate for a network, and say what they cost here"),
    "warmup": ("rbd_ref.warmup", "compile all kernels before they are needed"),
    "paper": ("rbd_ref.paper.__main__", "repeat the paper's tables, and check a result to the bit"),
    "conformance": ("rbd_ref.conformance.__main__", "report the level that a backend reaches"),
}
ASKED = ("-h", "--help", "help")


def overview() -> str:
    """What there is."""
    lines = [f"  {name:<13}{text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(("usage: rbd COMMAND [flags]", "", *lines, "", "`rbd COMMAND --help` explains each of them."))


def unknown(name: str) -> str:
    """The sentence for a command that there is not."""
    advice = "".join(f": did you mean {near}?" for near in get_close_matches(name, COMMANDS, n=1))
    return f"rbd: command {name!r} is unknown, expected one of {', '.join(COMMANDS)}" + advice


def main(arguments: Sequence[str] | None = None) -> int:
    """The status of the command that is named first; 2 after a sentence if there is none of that name."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ASKED:
        print(overview())
        return 0
    if given[0] == "--version":
        print(f"rbd-ref {rbd_ref.__version__}")
        return 0
    name, *rest = given
    if name not in COMMANDS:
        print(unknown(name), file=sys.stderr)
        return 2
    return int(import_module(COMMANDS[name][0]).main(rest) or 0)


if __name__ == "__main__":
    sys.exit(main())
