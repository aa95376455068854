"""--resume without --out: the newest run with the settings that were given, or a sentence of which there are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rbd_ref.runs.folder import Run
from run_tools import TINY, copied, refused, status, trained

pytestmark = pytest.mark.compiled
QUICK = (*TINY, "--family", "sparse")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def aged(run: Run, seconds: int) -> Run:
    """As if it had been written so long ago."""
    for path in run.folder.iterdir():
        at = path.stat().st_mtime - seconds
        os.utime(path, (at, at))
    return run


def test_the_newest_of_the_same_configuration(here: Path) -> None:
    older = trained(here / "runs" / "a", *QUICK, "--steps", "1")
    newer = copied(older, here / "runs" / "b")
    aged(older, 100)
    (here / "runs" / "broken").mkdir()
    (here / "runs" / "broken" / "config.toml").write_text("lr = ")
    (here / "runs" / "file").write_text("")
    assert status(["--resume", *QUICK, "--steps", "3", "--quiet"]) == 0
    assert (older.config().steps, newer.config().steps) == (1, 3)
    aged(newer, 1000)
    assert status(["--resume", "--steps", "2", "--quiet"]) == 0  # whatever the run was told
    assert (older.config().steps, newer.config().steps) == (2, 3)


def test_flags_that_the_run_does_not_have(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(here / "runs" / "a", *QUICK, "--steps", "1")
    words = ("no run in runs/ has these settings, expected one of runs/a", "--out")
    refused(capsys, ["--resume", "--seed", "5"], *words)
    assert Run(here / "runs" / "a").config().seed == 0


def test_several_configurations_that_fit(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(7):
        aged(trained(here / "runs" / f"s{seed}", *QUICK, "--steps", "1", "--seed", seed), 100 - seed)
    words = "runs of several configurations fit (runs/s6, runs/s5, runs/s4, runs/s3, runs/s2 and 2 more), expected one"
    refused(capsys, ["--resume"], words)
    assert status(["--resume", "--seed", "2", "--steps", "2", "--quiet"]) == 0
    assert [Run(here / "runs" / f"s{seed}").config().steps for seed in (1, 2, 3)] == [1, 2, 1]


def test_nothing_to_go_on_with(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["--resume"], "--resume has no --out, and there is no run in runs/, expected one to go on with")
    assert list(here.iterdir()) == []
