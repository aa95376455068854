"""The command `python -m rbd_ref.replay RUN`: the weights of any step of a run, from what was sent, to the bit.

Tests: tests/test_replay.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rbd_ref.data.errors import DataError
from rbd_ref.runs import folder as runs
from rbd_ref.runs.config import Config
from rbd_ref.runs.files import RunError
from rbd_ref.runs.folder import Run
from rbd_ref.training.experiment import Replica
from rbd_ref.training.logbook import stderr

DESCRIPTION = """\
Rebuild the weights of any step of a run from its journal, or verify a whole run.
No data is needed, but where steps were taken by SGD: their gradients are not kept, they are computed again.
"""


def states(replica: Replica, run: Run, state: Any) -> Iterator[Any]:
    """`state` and the states after each later step that the journal holds."""
    journal = runs.journal_of(run, replica.config)
    yield state
    for record in journal.records():
        if record.t >= state.t:
            state = replica.repeat(state, record)
            yield state
    if journal.torn:
        text = f"{run.journal} ends with a torn record of {journal.torn} bytes after step {journal.steps}"
        stderr(f"{text}, which is left out")


def rebuilt(run: Run, config: Config, step: int) -> Any:
    """The state after `step` steps, from the last whole checkpoint before or from theta0."""
    replica = Replica(config)
    state, wrong = runs.newest(run, config.digest, step)
    for text in wrong:
        stderr(text)
    for found in states(replica, run, state or replica.start()):
        if found.t == step:
            return found
    raise RunError(f"{run.folder} has {found.t} steps, expected {step} at least: choose an earlier --step")


def expected_hashes(run: Run) -> dict[int, set[str]]:
    """The sha256 of theta that the run wrote down, by step: in its metrics, and at its end."""
    hashes: dict[int, set[str]] = {}
    for values, _ in runs.metrics(run.metrics):
        if values["kind"] == "checkpoint":
            hashes.setdefault(values["step"], set()).add(values["sha256"])
    if result := run.result():
        hashes.setdefault(result["step"], set()).add(result["sha256"])
    return hashes


def verify(run: Run, config: Config) -> str:
    """Repeat the whole run from theta0; every checkpoint's file and every hash written down has to agree."""
    replica, hashes = Replica(config), expected_hashes(run)
    files = {state.t: state for state in (runs.load_checkpoint(path, config.digest) for path in run.checkpoints)}
    compared, last = 0, 0
    for state in states(replica, run, replica.start()):
        found, last = hashes.pop(state.t, set()), state.t
        if state.t in files:
            found.add(runs.sha256(files.pop(state.t).theta))
        if found and found != {runs.sha256(state.theta)}:
            raise RunError(
                f"{run.folder} does not agree with its journal at step {state.t}: theta has sha256 "
                f"{', '.join(sorted(found))} in the run and {runs.sha256(state.theta)} when repeated: "
                "one of its files was changed, or the run was made by another version"
            )
        compared += len(found)
    if hashes or files:
        raise RunError(
            f"{run.folder} has checkpoints at steps {sorted({*hashes, *files})}, expected none after step {last}, "
            "where its journal ends: restore journal.rbd"
        )
    return f"{run.folder}: {last} steps repeated, all {compared} hashes agree"


def parser() -> argparse.ArgumentParser:
    """All flags."""
    result = argparse.ArgumentParser(
        "python -m rbd_ref.replay", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("run", metavar="RUN", help="the run's folder, as given to rbd_ref.train --out")
    what = result.add_mutually_exclusive_group(required=True)
    what.add_argument("--step", type=int, metavar="N", help="rebuild theta after N steps (0: as it was at the start)")
    what.add_argument("--verify", action="store_true", help="repeat the run and compare with all its checkpoints")
    result.add_argument("-o", "--output", metavar="FILE", help="where theta goes, as .npz")
    result.add_argument("--data-dir", metavar="DIR", help="folder of the data, where SGD's gradients are needed")
    return result


def answer(flags: argparse.Namespace) -> str:
    """What the command says when all is well."""
    run = Run(Path(flags.run))
    config = run.config(**({"data_dir": flags.data_dir} if flags.data_dir else {}))
    if flags.verify:
        return verify(run, config)
    if flags.step < 0:
        raise RunError(f"--step is {flags.step}, expected a number of steps from 0 up")
    state = rebuilt(run, config, flags.step)
    found = runs.sha256(state.theta)
    if flags.output:
        runs.save_arrays(Path(flags.output), {"sha256": found, "step": state.t}, theta=state.theta)
    return f"theta after step {state.t} has sha256 {found}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0, or 2 after a sentence of what is wrong."""
    try:
        print(answer(parser().parse_args(arguments)))
    except (RunError, DataError, ValueError) as error:
        stderr(f"rbd_ref.replay: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
