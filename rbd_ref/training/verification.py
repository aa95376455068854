"""Whether a run's files agree with the run repeated from its journal: everything that they say of weights and states.

    metrics.jsonl   the sha256 of theta at each checkpoint
    checkpoints/    theta, velocity, coordinates, moments and counts, to the bit; the journal's chain value; whether
                    what the workers kept is as it was written
    result.json     the last step, the sha256 of its theta and the chain value there; no record comes after it
    final.npz       theta, and its sha256

Tests: tests/test_replay.py, tests/test_loaded.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rbd_ref.methods.base import Replica, State
from rbd_ref.runs import folder as folders
from rbd_ref.runs import local_states
from rbd_ref.runs.files import RunError, quoted
from rbd_ref.runs.folder import Checkpoint, Run
from rbd_ref.training.experiment import Experiment


class Verification:
    """Compares each repeated replica with what the run says of its step, and at the end what is left over."""

    def __init__(self, run: Run, experiment: Experiment) -> None:
        self.run = run
        self.experiment = experiment
        self.result = run.result()
        self.final = folders.load_final(run, experiment.plan.D)
        self.hashes = self._hashes()
        self.files = {folders.step_of(path): path for path in run.checkpoints}
        self.compared = 0

    def compare(self, replica: Replica[State], chain: bytes) -> None:
        """Refuse what the run says of this step, if it is something else than the replica and the chain value."""
        expected = self.hashes.pop(replica.t, set())
        path = self.files.pop(replica.t, None)
        if path is not None and not path.exists():  # a run that goes on meanwhile has removed it, as --keep says
            path = None
        if self.result is not None and self.result["step"] == replica.t:
            self._compare_chains(self.run.folder / "result.json", replica.t, self.result["journal"], chain)
        if path is None:
            self._compare_hashes(replica, expected)
        else:
            kept = folders.load_checkpoint(path, self.experiment.config.digest, self.experiment.blank)
            self._compare_chains(path, replica.t, kept.chain.hex(), chain)
            expected.add(folders.sha256(kept.state.theta))
            self._compare_hashes(replica, expected)
            self._compare_states(path, replica.state, kept.state)
            self._check_local(path, kept)
        self.compared += len(expected)

    def finish(self, last: Replica[State]) -> None:
        """Refuse what is said of steps that were not repeated, and a final.npz that is of no end of the run."""
        if beyond := sorted({*self.hashes, *self.files}):
            raise RunError(
                f"{self.run.folder} has checkpoints at steps {quoted(str(beyond))}, expected none after step {last.t}, "
                "where its journal ends: restore journal.rbd"
            )
        self._check_count(last.t)
        ends = {folders.sha256(last.theta), self.result["sha256"] if self.result else None}
        if self.final is not None and self.final not in ends:
            raise RunError(
                f"{self.run.folder / 'final.npz'} has a theta with sha256 {self.final}, expected that of the run's "
                f"end, {folders.sha256(last.theta)}: restore or remove it"
            )

    def _hashes(self) -> dict[int, set[str]]:
        """The sha256 of theta that the run's texts hold, by step."""
        hashes: dict[int, set[str]] = {}
        for where, values in self._claims():
            step, digest = values.get("step"), values.get("sha256")
            if type(step) is not int or step < 0 or not isinstance(digest, str):
                found = f"step {quoted(repr(step))} and sha256 {quoted(repr(digest))}"
                raise RunError(
                    f"{where} has {found}, expected a number and a text, as they were written: restore or remove it"
                )
            hashes.setdefault(step, set()).add(digest)
        return hashes

    def _claims(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """What has a step and the sha256 of its theta, and the file where it stands."""
        for values, _ in folders.metrics(self.run.metrics):
            if values["kind"] == "checkpoint":
                yield self.run.metrics, values
        if self.result is not None:
            yield self.run.folder / "result.json", self.result

    def _compare_chains(self, path: Path, t: int, kept: Any, found: bytes) -> None:
        """Refuse a chain value in a file that is not the journal's."""
        if kept != found.hex():
            raise RunError(
                f"{self.run.folder} does not agree with its journal at step {t}: {path.name} says that its chain value "
                f"is {quoted(str(kept))}, expected {found.hex()}: one of the two was changed or is of another run, "
                "restore it"
            )

    def _compare_hashes(self, replica: Replica[State], expected: set[str]) -> None:
        """Refuse a hash that is not that of the repeated weights."""
        found = folders.sha256(replica.theta) if expected else ""
        if expected - {found}:
            raise RunError(
                f"{self.run.folder} does not agree with its journal at step {replica.t}: theta has sha256 "
                f"{quoted(', '.join(sorted(expected)))} in the run and {found} when repeated: "
                "one of its files was changed, or the run was made by another version"
            )

    def _compare_states(self, path: Path, repeated: State, kept: State) -> None:
        """Refuse a checkpoint of which anything is not what the repeated replica holds, to the bit."""
        known = kept._asdict()
        for name, value in repeated._asdict().items():
            same = known[name] == value if isinstance(value, int) else known[name].tobytes() == value.tobytes()
            if not same:
                raise RunError(
                    f"{path} does not agree with the journal: its {name} is another than when the run is repeated, "
                    "expected the same bits: remove it, others will do"
                )

    def _check_local(self, path: Path, kept: Checkpoint) -> None:
        """Refuse what the workers kept, if it is not as the checkpoint was written with; the journal knows no more."""
        t = kept.state.t
        blank = self.experiment.blank_local(t)
        try:
            local_states.check(self.run, t, self.experiment.config.workers, blank, kept.local)
        except RunError:
            if path.exists():  # else a run that goes on meanwhile has removed it
                raise

    def _check_count(self, steps: int) -> None:
        """Refuse steps after the end of a run; one that was prolonged has more steps in its configuration."""
        if self.result and steps > max(self.result["step"], self.experiment.steps):
            raise RunError(
                f"{self.run.journal} has records of {steps} steps, expected {self.result['step']}, after which the run "
                "has ended by its result.json: restore the file"
            )
