"""A command imports what is installed: nothing from the folder it is started in, nothing that a file names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rbd_ref import replay
from rbd_ref._path import forget_current_folder, module_of_command
from rbd_ref.runs.files import RunError
from rbd_ref.runs.folder import Run
from run_tools import TINY, one_line, refused, sha, status, trained
from tools import run_python

QUICK = (*TINY, "--family", "sparse", "--steps", "2")
PAYLOAD = "from pathlib import Path\nPath('executed').touch()\nraise SystemExit('this should not run')\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("path") / "run", *QUICK)


@pytest.fixture
def stranger(made: Run, tmp_path: Path) -> Path:
    """The run of a stranger, whose folder has modules of many names beside it."""
    for path in made.folder.rglob("*"):
        target = tmp_path / path.relative_to(made.folder)
        if path.is_file():
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    names = (
        "numpy",
        "numba",
        "tqdm",
        "jinja2",
        "autograd",
        "tomllib",
        "payload",
        "rbd_torch",
        "rbd_mpi",
        "json",
        "signal",
    )
    for name in (*names, "zipfile", "csv", "email"):
        (tmp_path / f"{name}.py").write_text(PAYLOAD)
    return tmp_path


@pytest.mark.compiled
@pytest.mark.parametrize(
    "command",
    [
        ("rbd_ref.replay", ".", "--verify"),
        ("rbd_ref.replay", ".", "--step", "1"),
        ("rbd_ref.train", "--resume", "--steps", "3", "--quiet", "--out", "."),
        ("rbd_ref.report", ".", "-o", "report.html"),
        ("rbd_ref.conformance", "--rbd-backend", "numpy", "--level", "L0"),
        ("rbd_ref.conformance.golden", "--check"),
    ],
    ids=lambda command: " ".join(command[:3]),
)
def test_no_command_imports_from_the_current_folder(command: tuple[str, ...], stranger: Path) -> None:
    found = run_python("-m", *command, folder=stranger)
    assert not (stranger / "executed").exists(), found.stderr
    assert found.returncode == 0, found.stderr


def with_backend(folder: Path, name: str) -> Path:
    """The run, as if it had been made with this backend."""
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('backend = "numba"', f'backend = "{name}"'))
    assert name in config.read_text()
    return folder


@pytest.mark.compiled
@pytest.mark.parametrize(
    "command",
    [
        ("rbd_ref.replay", ".", "--verify"),
        ("rbd_ref.replay", ".", "--step", "1"),
        ("rbd_ref.train", "--resume", "--steps", "3", "--out", "."),
        ("rbd_ref.train", "--config", "config.toml", "--out", "other"),
    ],
    ids=lambda command: " ".join(command[:3]),
)
def test_a_class_by_its_path_is_not_taken_from_a_file(command: tuple[str, ...], stranger: Path) -> None:
    """It is one sentence that names the flag to repeat; with the flag the user's own choice counts."""
    with_backend(stranger, "payload:B")
    found = run_python("-m", *command, folder=stranger)
    assert not (stranger / "executed").exists()
    assert found.returncode == 2
    one_line(found.stderr, "names the backend 'payload:B'", "repeat it with --backend payload:B")
    assert not (stranger / "other").exists()
    again = run_python("-m", *command, "--backend", "numba", folder=stranger)
    assert again.returncode == 0, again.stderr
    assert not (stranger / "executed").exists()


def test_a_class_by_its_path_can_be_repeated(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (stranger / "payload.py").write_text("from rbd_ref.numpy_backend import NumpyBackend as B\n")
    monkeypatch.chdir(stranger)
    monkeypatch.delitem(sys.modules, "payload", raising=False)
    with_backend(stranger, "payload:B")
    refused(capsys, [".", "--verify"], "--backend payload:B", command=replay.main)
    before = list(sys.path)
    assert status([".", "--verify", "--backend", "payload:B"], replay.main) == 0
    assert sys.path == before


def test_nothing_is_fetched_from_where_a_file_says(stranger: Path) -> None:
    config = stranger / "config.toml"
    text = config.read_text().replace('data = "digits"', 'data = "mnist"')
    config.write_text(text.replace('mirror = ""', 'mirror = "http://example.org"'))
    assert Run(stranger).config().mirror == ""
    assert Run(stranger).config(mirror="http://mine.example").mirror == "http://mine.example"
    config.write_text(text.replace('mirror = ""', "mirror = 3"))
    with pytest.raises(RunError, match="is not as it was written: setting mirror is 3, expected a text"):
        Run(stranger).config()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["python", "-m", "rbd_ref.train", "--quiet"], "rbd_ref.train"),
        (["python", "-X", "dev", "-m", "rbd_ref.replay", "."], "rbd_ref.replay"),
        (["python", "-m", "pytest", "-m", "rbd_ref.train"], ""),
        (["python", "-m", "rbd_reference"], ""),
        (["python", "-m", "rbd_ref", "train", "--quiet"], "rbd_ref.train"),
        (["python", "-m", "rbd_ref"], "rbd_ref"),
        (["python", "/somewhere/bin/rbd", "train"], "rbd_ref.train"),
        (["python", "/somewhere/bin/rbd"], "rbd_ref"),
        (["python", "/somewhere/bin/other", "rbd"], ""),
        (["python", "train.py", "rbd_ref.train"], ""),
        (["python", "-m"], ""),
        (["python"], ""),
    ],
)
def test_what_is_a_command_of_the_package(arguments: list[str], expected: str) -> None:
    assert module_of_command(arguments) == expected


def test_others_keep_their_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A script, a notebook or a test that imports the package has its folder where it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "elsewhere"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "script.py"])
    forget_current_folder()
    assert sys.path == [str(tmp_path), "elsewhere"]
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "rbd_ref.train"])
    forget_current_folder()
    assert sys.path == ["elsewhere"]
    forget_current_folder()
    assert sys.path == ["elsewhere"]


def test_weights_do_not_depend_on_where_a_command_is_started(stranger: Path, made: Run) -> None:
    assert sha(Run(stranger)) == sha(made)
