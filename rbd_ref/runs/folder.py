"""The folder of a run: what is in it, and how it is written so that no moment of a crash leaves it broken.

    config.toml      all settings                              written once
    metrics.jsonl    a line for some steps and evaluations     appended
    journal.rbd      what the workers sent at each step        appended, see journal.py
    checkpoints/     step-00000037.npz: the state after 37     each written whole, then named
                     local-...: see local_states.py
    final.npz        theta at the end                          written whole, then named
    result.json      final figures, the sha256 of theta and
                     the journal's last chain value            written whole, then named, last of all

Nothing is pickled: arrays are npz, all else is text.
All who read a run do it here. Training and replay go on from what they read, so they ask for every key that they
need; the report only shows it, and asks for none, so that runs of other versions show too.
Tests: tests/test_runs.py.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, get_type_hints

import numpy as np

from rbd_ref._files import leftovers
from rbd_ref._types import TWO_64, Float32Array
from rbd_ref.methods.base import State
from rbd_ref.methods.fpd import FixedProjectionState
from rbd_ref.methods.state import DescentState
from rbd_ref.runs import config as configs
from rbd_ref.runs.archives import MOST_TEXT, parse_json, read_arrays
from rbd_ref.runs.config import Config
from rbd_ref.runs.files import RunError, disk, quoted, reading, refuse_special, write_whole
from rbd_ref.runs.journal import START, Journal, Place
from rbd_ref.runs.layouts import CHAIN, Layouts
from rbd_ref.runs.paths import refuse_paths

STATES: dict[str, type[DescentState] | type[FixedProjectionState]] = {
    "DescentState": DescentState,
    "FixedProjectionState": FixedProjectionState,
}
Snapshot = DescentState | FixedProjectionState
Template = Callable[[int], State]  # a state of the form that one after t steps has
Check = Callable[["Checkpoint"], None]

CHECKPOINT = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,})\.npz")  # what `checkpoint_name` makes
METRIC_KEYS = ("kind", "step", "seconds")  # of each line of metrics.jsonl
RESULT_KEYS = ("step", "sha256", "journal")  # of result.json, as far as they are read again


class Checkpoint(NamedTuple):
    """A state, the journal's chain value after its steps, and a hash of what the workers kept (local_states.py)."""

    state: Snapshot
    chain: bytes
    local: str = ""


def sha256(theta: Float32Array) -> str:
    """Of the little-endian bytes of theta."""
    return hashlib.sha256(np.ascontiguousarray(theta, dtype="<f4").data).hexdigest()


@dataclass(frozen=True)
class Run:
    """A run's folder."""

    folder: Path

    @property
    def journal(self) -> Path:
        """The file of what was sent."""
        return self.folder / "journal.rbd"

    @property
    def metrics(self) -> Path:
        """The file of metrics."""
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> list[Path]:
        """The files of checkpoints, the first step first."""
        return sorted((self.folder / "checkpoints").glob("step-*.npz"))

    def settings(self) -> dict[str, Any]:
        """The table in config.toml as it is, be it of this version or of another."""
        path = self.folder / "config.toml"
        with reading(path):
            if not path.is_file():
                raise RunError(f"{self.folder} is no run: it {_lack(self.folder)}; name the folder given to --out")
        try:
            return configs.read_toml(path)
        except (ValueError, RecursionError) as error:
            raise RunError(f"{path} is not as it was written: {error}") from error

    def config(self, **changes: Any) -> Config:
        """The configuration that the folder was made with, but for these changes."""
        settings = self.settings()
        refuse_paths(self.folder / "config.toml", settings, changes)
        if changes.get("method") not in (None, settings.get("method")):
            raise RunError(
                f"{self.folder} is a run of method {quoted(settings.get('method'))}, expected the same and not "
                f"{quoted(changes['method'])}: leave --method out, or repeat the run's own"
            )
        try:
            configs.make(settings)
        except (ValueError, TypeError) as error:
            raise RunError(f"{self.folder / 'config.toml'} is not as it was written: {error}") from error
        settings.pop("mirror", None)  # nor is anything fetched from where a file says
        try:
            return configs.make({**settings, **changes})
        except (ValueError, TypeError) as error:
            raise RunError(str(error)) from error

    def records(self, kind: str, needed: Sequence[str] = METRIC_KEYS) -> list[dict[str, Any]]:
        """The metrics of a kind in the order of steps; a step that was done again counts once, as it was last."""
        found = (values for values, _ in metrics(self.metrics, needed) if values.get("kind") == kind)
        latest = {values["step"]: values for values in found if isinstance(values.get("step"), int)}
        return [latest[step] for step in sorted(latest)]

    def result(self, needed: Sequence[str] = RESULT_KEYS) -> dict[str, Any] | None:
        """The final figures, if the run has ended."""
        path = self.folder / "result.json"
        with reading(path):
            if not path.is_file():
                return None
            if (size := path.stat().st_size) > MOST_TEXT:
                raise RunError(f"{path} has {size} bytes, expected {MOST_TEXT} at most: restore or remove it")
            content = path.read_bytes()
        return _values(content, str(path), needed)


def _lack(folder: Path) -> str:
    """What a folder without config.toml lacks, and what was expected."""
    if folder.is_dir():
        return "has no config.toml, expected the folder that a training has written"
    return f"{'is no folder' if folder.exists() else 'does not exist'}, expected the folder that a training has written"


def create(folder: Path, config: Config) -> Run:
    """A new run's folder, with its configuration."""
    with disk(folder, "made"):
        found = (folder / "config.toml").exists()
    if found:
        raise RunError(
            f"{folder} holds a run already, expected a new folder: choose another with --out, or continue with --resume"
        )
    with disk(folder, "made"):
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    write_text(folder / "config.toml", configs.to_toml(config))
    return Run(folder)


def write_text(path: Path, text: str) -> None:
    """A text, whole or not at all."""
    write_whole(path, lambda out: out.write(text.encode()))


def save_arrays(path: Path, info: dict[str, Any], flag: str = "--out", **arrays: Float32Array) -> None:
    """Arrays and what is to be said of them, whole or not at all; `flag` is what names another place."""
    savez: Any = np.savez
    write_whole(path, lambda out: savez(out, info=np.array(json.dumps(info)), **arrays), flag)


def checkpoint_name(t: int) -> str:
    """Of the file after t steps."""
    return f"step-{t:08d}.npz"


def checkpoint_path(run: Run, t: int) -> Path:
    """The file of the checkpoint after t steps."""
    return run.folder / "checkpoints" / checkpoint_name(t)


def begun(run: Run) -> bool:
    """Whether the journal has its head; if not, the run was killed before it had begun."""
    with reading(run.journal):
        return run.journal.exists() and run.journal.stat().st_size >= START


def save_checkpoint(run: Run, state: State, digest: str, chain: bytes, local: str = "") -> str:
    """The state after its t steps, with the journal's chain value and the hash of local states; the sha256 of theta."""
    found = sha256(state.theta)
    numbers = {name: value for name, value in state._asdict().items() if isinstance(value, int)}
    info = {"state": type(state).__name__, "sha256": found, "digest": digest, "journal": chain.hex(), **numbers}
    info |= {"local": local} if local else {}
    arrays = {name: value for name, value in state._asdict().items() if name not in numbers}
    save_arrays(checkpoint_path(run, state.t), info, **arrays)
    return found


def remove_checkpoints(run: Run, t: int, keep: int) -> None:
    """Remove the checkpoints of fewer than t steps but for the last `keep` of them; whatever else is there stays."""
    older = [path for path in run.checkpoints if CHECKPOINT.fullmatch(path.name) and step_of(path) < t]
    older.sort(key=step_of, reverse=True)
    for path in older[keep:]:
        with disk(path, "removed"):
            path.unlink(missing_ok=True)


def remove_parts(run: Run) -> None:
    """Remove what a process that was killed while it wrote has left; to be called by who holds the folder's lock."""
    for folder in (run.folder, run.folder / "checkpoints"):
        with disk(folder, "cleared"):
            for path in leftovers(folder):
                path.unlink(missing_ok=True)


def step_of(path: Path) -> int:
    """The number of steps in the name of a checkpoint's file."""
    number = path.stem.removeprefix("step-")
    if not (number.isascii() and number.isdigit()) or path.name != checkpoint_name(int(number)):
        raise RunError(f"{path} is no checkpoint's name, expected one such as {checkpoint_name(37)}: remove it")
    return int(number)


def load_checkpoint(path: Path, digest: str, template: Template | None = None) -> Checkpoint:
    """The checkpoint in a file, if it is whole, of this configuration and of the same form as the template's."""
    t = step_of(path)
    try:
        expected = template(t) if template else None
        info, arrays = read_arrays(path, shapes(expected) if expected else None)
        state = _assembled(_kind(info, expected), info, arrays)
        _check_state(state, t, expected)
        chain = _chain_value(info["journal"])
        known = info["digest"], info["sha256"]
        local = str(info.get("local", ""))
    except MemoryError:
        raise  # the file may well be whole
    except Exception as error:  # zip, npy and JSON each raise whatever they like at a broken file
        raise RunError(
            f"{path} is no whole checkpoint ({quoted(error)}): restore or remove it, others will do"
        ) from error
    if known != (digest, sha256(state.theta)):
        raise RunError(f"{path} is not this run's checkpoint or its theta has changed: remove it, others will do")
    return Checkpoint(state, chain, local)


def load_fitting(
    path: Path, journal: Journal, digest: str, template: Template | None = None
) -> tuple[Checkpoint, Place]:
    """The checkpoint in a file and its place in the journal, which holds the same chain value there."""
    t = step_of(path)
    place = journal.place(t)
    if place is None:
        raise RunError(
            f"{path} is the state after step {t}, expected one that {journal.path.name} reaches, which has "
            f"{journal.size} bytes: restore the journal, or remove it, others will do"
        )
    found = load_checkpoint(path, digest, template)
    if found.chain != place.chain:
        journal.doubts[t] = (
            f"{path} follows the journal's chain value {found.chain.hex()}, expected the one after step {t} in "
            f"{journal.path.name}, {place.chain.hex()}: restore one of them, or remove {path.name} to go by the journal"
        )
        raise RunError(journal.doubts[t])
    return found, place


def _chain_value(text: Any) -> bytes:
    """The chain value that 64 digits stand for."""
    value = bytes.fromhex(text) if isinstance(text, str) else b""
    if len(value) != CHAIN:
        raise ValueError(f"journal is {text!r}, expected the {2 * CHAIN} digits of a chain value")
    return value


def load_final(run: Run, D: int) -> str | None:
    """The sha256 of the theta of D elements in final.npz, which has to be the one written beside it; None without."""
    path = run.folder / "final.npz"
    with reading(path):
        if not path.exists():
            return None
    try:
        info, arrays = read_arrays(path, {"theta": (D,)})
        found = sha256(arrays["theta"])
        if info["sha256"] != found:
            raise ValueError(f"theta has sha256 {found}, expected {info['sha256']!r}, as beside it")
    except MemoryError:
        raise
    except Exception as error:  # as of a checkpoint
        raise RunError(
            f"{path} is not as it was written ({quoted(error)}), expected the last theta: restore or remove it"
        ) from error
    return found


def shapes(state: State) -> dict[str, tuple[int, ...]]:
    """Of the arrays in a state, by name."""
    return {name: value.shape for name, value in state._asdict().items() if not isinstance(value, int)}


def _kind(info: dict[str, Any], expected: State | None) -> Any:
    """The class of the state that the file says to hold; that of a third party's method only `expected` knows."""
    if expected is None:
        return STATES[info["state"]]
    if info["state"] != type(expected).__name__:
        raise ValueError(f"it holds a {info['state']}, expected a {type(expected).__name__}")
    return type(expected)


def _assembled(kind: Any, info: dict[str, Any], arrays: dict[str, Float32Array]) -> Snapshot:
    """A state of this kind from its arrays and its counts."""
    hints = get_type_hints(kind)
    counts = {name: info[name] for name in kind._fields if hints[name] is int}
    for name, value in counts.items():
        if type(value) is not int or value < 0:
            raise ValueError(f"{name} is {value!r}, expected a number of steps")
    state: Snapshot = kind(**counts, **{name: arrays[name] for name in kind._fields if name not in counts})
    return state


def _check_state(state: Snapshot, t: int, expected: State | None) -> None:
    """Refuse a state after another number of steps, or with numbers that no training leaves."""
    if state.t != t:
        raise ValueError(f"it is the state after step {state.t}, expected that after step {t}, as its name says")
    for name, value in expected._asdict().items() if expected else ():
        found = getattr(state, name)
        if isinstance(value, int):
            if name != "t" and found != value:
                raise ValueError(f"{name} is {found}, expected {value}")
        elif not _sound(name, found):
            raise ValueError(f"{name} has an element that is not finite, expected finite numbers")


def _sound(name: str, values: Float32Array) -> bool:
    """Whether all are numbers; finite ones, but for Adam's squares, which may overflow while the weights stay."""
    return not np.isnan(values).any() if name == "v" else bool(np.isfinite(values).all())


def _values(content: bytes, where: str, needed: Sequence[str]) -> dict[str, Any]:
    """The JSON object in the content, which must have all keys that are needed."""
    try:
        values = parse_json(content.decode())
    except ValueError as error:
        raise RunError(f"{where} is no JSON ({error}), expected it as it was written: restore or remove it") from error
    if not isinstance(values, dict):
        raise RunError(f"{where} is no JSON object, expected it as it was written: restore or remove it")
    if lacking := [key for key in needed if key not in values]:
        raise RunError(f"{where} lacks {', '.join(lacking)}, expected it as it was written: restore or remove it")
    return values


def _lines(path: Path) -> Iterator[bytes]:
    """Each line without its end, held one at a time; what follows the last end of a line is nothing, or torn."""
    with reading(path):
        if not path.is_file():
            return
        with path.open("rb") as file:
            while (line := file.readline(MOST_TEXT + 1)).endswith(b"\n"):
                yield line[:-1]
    if len(line) > MOST_TEXT:
        raise RunError(
            f"{path} has a line of more than {MOST_TEXT} bytes, expected {MOST_TEXT} at most: restore or remove it"
        )


def metrics(path: Path, needed: Sequence[str] = METRIC_KEYS) -> Iterator[tuple[dict[str, Any], str]]:
    """Each whole line of metrics and its text; a torn last one is left out."""
    for number, line in enumerate(_lines(path), 1):
        where = f"{path}, line {number},"
        values = _values(line, where, needed)
        for name, kinds in (("step", int), ("seconds", int | float)):
            if name in needed and not (isinstance(values[name], kinds) and 0 <= values[name] < TWO_64):
                found = quoted(repr(values[name]))
                raise RunError(f"{where} has {name} {found}, expected a number from 0 to 2^64: restore or remove it")
        yield values, f"{line.decode()}\n"


def evaluations(run: Run) -> dict[int, dict[str, float]]:
    """The figures of each evaluation, by step, without what every line of metrics has."""
    usual = (*METRIC_KEYS, "epoch", "loss")
    return {
        record["step"]: {name: value for name, value in record.items() if name not in usual}
        for record in run.records("evaluation")
    }


def cut_metrics(run: Run, t: int) -> None:
    """Leave the lines of the first t steps only."""

    def write(out: BinaryIO) -> None:
        for values, line in metrics(run.metrics):
            if values["step"] <= t:
                out.write(line.encode())

    write_whole(run.metrics, write)


def newest(
    run: Run,
    journal: Journal,
    digest: str,
    steps: int | None = None,
    template: Template | None = None,
    check: Check = lambda found: None,
) -> tuple[Checkpoint | None, Place, list[str]]:
    """The last whole checkpoint that fits the journal, of `steps` steps at most; its place; what is wrong with others.

    Without any, the place is that of the first record. `check` may refuse one by a RunError.
    """
    wrong: list[str] = []
    for path in reversed(run.checkpoints):
        try:
            if steps is None or step_of(path) <= steps:
                found, place = load_fitting(path, journal, digest, template)
                check(found)
                return found, place, wrong
        except RunError as error:
            wrong.append(str(error))
    return None, journal.first, wrong


def journal_of(run: Run, config: Config, layouts: Layouts | None = None) -> Journal:
    """The run's journal, checked to be of its configuration, and its records to be as `layouts` says."""
    refuse_special(run.journal)
    if not begun(run):
        raise RunError(
            f"{run.folder} has no journal yet, expected one with the steps that were taken: there is nothing to "
            f"replay; train it with --resume, or restore {run.journal.name}"
        )
    return Journal(run.journal, config.digest, layouts)
