"""Which run is meant where none is named: the newest in runs/ that has the settings which were given.

Tests: tests/test_latest.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rbd_ref.runs.config import FIELDS, Config
from rbd_ref.runs.files import RunError, quoted
from rbd_ref.runs.folder import Run
from rbd_ref.runs.paths import trusted

RUNS = Path("runs")
SHOWN = 5  # runs that a sentence names


class Candidate(NamedTuple):
    """A run, its configuration, and when its folder was last written to."""

    folder: Path
    config: Config
    written: float


def _candidate(path: Path, said: Mapping[str, Any]) -> Candidate | None:
    """The run in a folder, if there is one that this version can read."""
    try:
        config = Run(path).config(**trusted(Run(path).settings(), said))
        return Candidate(path, config, max(file.stat().st_mtime for file in path.iterdir()))
    except (RunError, OSError):
        return None


def _agrees(config: Config, said: Mapping[str, Any]) -> bool:
    """Whether a run has all the settings which were given, of those that its weights depend on."""
    decisive = ((name, value) for name, value in said.items() if FIELDS[name].metadata["bits"])
    return all(str(getattr(config, name)) == str(value) for name, value in decisive)


def newest(said: Mapping[str, Any]) -> Path:
    """The newest run with these settings; a sentence where there is none, or there are several kinds."""
    found = [run for path in sorted(RUNS.glob("*")) if (run := _candidate(path, said)) is not None]
    found.sort(key=lambda run: run.written, reverse=True)
    agreeing = [run for run in found if _agrees(run.config, said)]
    if not agreeing:
        raise RunError(f"--resume has no --out, and {_none(found)}: name the folder of the run with --out")
    if len({run.config.digest for run in agreeing}) > 1:
        raise RunError(
            f"--resume has no --out, and runs of several configurations fit ({_names(agreeing)}), expected one: name "
            "the folder with --out, or repeat the flags of the run"
        )
    return agreeing[0].folder


def _none(found: list[Candidate]) -> str:
    """What there is instead of a run with the settings."""
    if not found:
        return f"there is no run in {RUNS}/, expected one to go on with"
    return f"no run in {RUNS}/ has these settings, expected one of {_names(found)}"


def _names(found: list[Candidate]) -> str:
    """Some names, the newest first."""
    names = [quoted(run.folder) for run in found[:SHOWN]]
    return ", ".join(names) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")
