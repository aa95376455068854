"""The command `rbd`: every command of the package under one name."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import rbd_ref
from mpi_tools import FAULT_SITE, Job, launcher, sha
from rbd_ref.__main__ import COMMANDS, main
from run_tools import TINY, one_line, status
from tools import run_python

SCRIPT = Path(sys.executable).with_name("rbd")  # as pip installs it beside Python
QUICK = (*TINY, "--family", "sparse", "--steps", "2", "--quiet")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_names_all_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(import_module(COMMANDS[name][0]).main)
    assert status([name, "--help"], main) == 0
    assert f"rbd_ref.{name}" in capsys.readouterr().out


def test_an_unknown_command_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian", "--quiet"]) == 2
    one_line(capsys.readouterr().err, "command 'trian' is unknown, expected one of train, sweep", "did you mean train?")
    assert main(["42"]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rbd-ref {rbd_ref.__version__}\n"


@pytest.mark.compiled
@pytest.mark.parametrize("how", [("-m", "rbd_ref"), (str(SCRIPT),)])
def test_a_run_and_what_is_done_with_it(how: tuple[str, ...], tmp_path: Path) -> None:
    """From a folder whose modules are none of ours."""
    (tmp_path / "json.py").write_text("raise SystemExit('this should not run')\n")
    for flags in (
        ("train", *QUICK, "--out", "run"),
        ("replay", "run", "--verify"),
        ("report", "run", "-o", "page.html"),
    ):
        found = run_python(*how, *flags, folder=tmp_path)
        assert found.returncode == 0, found.stderr
    assert (tmp_path / "page.html").stat().st_size > 10_000
    assert run_python(*how, "replay", "nowhere", "--verify", folder=tmp_path).returncode == 2


@pytest.mark.compiled
def test_ranks_of_the_command_start_mpi_first(tmp_path: Path) -> None:
    """Else a rank that fails while it imports would leave the other waiting."""
    command = [*launcher(2), str(SCRIPT), "train", *QUICK, "--workers", "2", "--out", "run"]
    found = Job(command, tmp_path).ended()
    assert found.status == 0, found.text
    assert sha(tmp_path / "run")
    found = Job(command, tmp_path, RBD_TEST_FAULT="raise 1 import", PYTHONPATH=FAULT_SITE).ended()
    assert "rank 1 has ended before its training did" in found.err


def test_the_script_is_installed() -> None:
    assert os.access(SCRIPT, os.X_OK)
    assert "usage: rbd COMMAND" in subprocess.run([SCRIPT], capture_output=True, text=True, check=True).stdout
