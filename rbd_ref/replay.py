"""The command `python -m rbd_ref.replay RUN`: the weights of any step of a run, from what was sent, to the bit.

Tests: tests/test_replay.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rbd_ref.data.errors import DataError
from rbd_ref.runs import folder as folders
from rbd_ref.runs.files import RunError
from rbd_ref.runs.folder import Run
from rbd_ref.runs.memory import enough_memory
from rbd_ref.training.logbook import stderr
from rbd_ref.training.recorded import RecordedRun

DESCRIPTION = """\
Rebuild the weights of any step of a run from its journal, or verify a whole run.
No data is needed, but where steps were taken by SGD: their gradients are not kept, they are computed again.
"""


def parser() -> argparse.ArgumentParser:
    """All flags."""
    result = argparse.ArgumentParser(
        "python -m rbd_ref.replay", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("run", metavar="RUN", help="the run's folder, as given to rbd_ref.train --out")
    what = result.add_mutually_exclusive_group(required=True)
    what.add_argument("--step", type=int, metavar="N", help="rebuild theta after N steps (0: as it was at the start)")
    what.add_argument("--verify", action="store_true", help="repeat the run and compare with all its files")
    result.add_argument("-o", "--output", metavar="FILE", help="where theta goes, as .npz")
    result.add_argument("--data-dir", metavar="DIR", help="folder of the data, where SGD's gradients are needed")
    result.add_argument("--backend", metavar="NAME", help="use this backend instead of the one that the run names")
    result.add_argument("--gradients", metavar="NAME", help="as the run names them; only where that is a class's path")
    result.add_argument("--method", metavar="NAME", help="the run's method again, where it is package.module:make")
    return result


def answer(flags: argparse.Namespace) -> str:
    """What the command says when all is well."""
    named = ("data_dir", "backend", "gradients", "method")
    changes = {name: getattr(flags, name) for name in named if getattr(flags, name)}
    recorded = RecordedRun(Run(Path(flags.run)), warn=stderr, **changes)
    with enough_memory("the run was repeated", recorded.experiment.needs):
        return _repeated(recorded, flags)


def _repeated(recorded: RecordedRun, flags: argparse.Namespace) -> str:
    """The same of a run that was opened."""
    if flags.verify:
        return recorded.verify()
    theta = recorded.replica(flags.step).theta
    digest = folders.sha256(theta)
    if flags.output:
        folders.save_arrays(Path(flags.output), {"sha256": digest, "step": flags.step}, "--output", theta=theta)
    return f"theta after step {flags.step} has sha256 {digest}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0, or 2 after a sentence of what is wrong."""
    try:
        flags = parser().parse_args(arguments)
        with enough_memory("the run was read"):
            print(answer(flags))
    except (RunError, DataError, ValueError) as error:
        stderr(f"rbd_ref.replay: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
