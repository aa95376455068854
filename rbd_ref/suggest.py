"""The command `python -m rbd_ref.suggest`: settings that go with a learning rate of SGD, and what they cost here.

As `rbd_ref.suggest(...)` it is the function of training/guidance.py: a submodule hides whatever else the package would
call by its name, so this one can be called.
Tests: tests/test_suggest.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from rbd_ref.runs.files import RunError
from rbd_ref.runs.memory import enough_memory
from rbd_ref.training.guidance import Suggestion, suggest
from rbd_ref.training.logbook import stderr

DESCRIPTION = """\
Suggest family and learning rate of random bases descent for a network that SGD trains with a known rate, and say
what a step costs: bytes, and milliseconds of each family, measured on this machine.
"""
EXAMPLES = """\
example:
  python -m rbd_ref.suggest --D 7000000 --dims 250 --sgd-lr 0.1
"""


def parser() -> argparse.ArgumentParser:
    """All flags."""
    result = argparse.ArgumentParser(
        "python -m rbd_ref.suggest",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--D", type=int, required=True, metavar="N", help="parameters of the network")
    result.add_argument("--dims", type=int, default=250, metavar="N", help="directions (default: 250)")
    result.add_argument("--sgd-lr", type=float, default=0.1, metavar="ETA", help="SGD's learning rate (default: 0.1)")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0, or 2 after a sentence of what is wrong."""
    flags = parser().parse_args(arguments)
    try:
        with enough_memory(f"bases of D = {flags.D} were timed"):
            print(suggest(flags.D, flags.dims, flags.sgd_lr))
    except (RunError, ValueError) as error:
        stderr(f"rbd_ref.suggest: {error}")
        return 2
    return 0


class CallableModule(ModuleType):
    """A module that can be called."""

    def __call__(self, *arguments: Any, **named: Any) -> Suggestion:
        """`rbd_ref.training.guidance.suggest`."""
        return suggest(*arguments, **named)


sys.modules[__name__].__class__ = CallableModule

if __name__ == "__main__":
    sys.exit(main())
