"""The package as strangers get it: a wheel in an empty environment, used from an unrelated folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import ROOT

pytestmark = pytest.mark.compiled

APART = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # nothing else is in reach


def run(*command: object, folder: Path) -> str:
    """Run a command that must succeed; what it printed."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=APART,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", folder, ROOT, folder=folder)
    return next(folder.glob("rbd_ref-*.whl"))


def folders(below: str) -> set[str]:
    """The packages in a folder."""
    return {path.parent.name for path in (ROOT / below).glob("*/__init__.py")}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tracked = (
        run("git", "ls-files", "rbd_ref", "mpi", "backends", folder=ROOT).split() if (ROOT / ".git").exists() else []
    )
    packed = {re.sub("^(mpi|backends)/", "", name) for name in tracked}
    assert {name for name in names if ".dist-info/" not in name} >= packed
    assert {name.split("/")[0].split("-")[0] for name in names} == {"rbd_ref"} | folders("mpi") | folders("backends")
    assert "rbd_ref/py.typed" in names
    assert "rbd_ref/conformance/vectors/v1/directions.json" in names


def test_the_wheel_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Install, run the suite by name and by path, and draw a direction; no pytest, no sources in reach."""
    run(sys.executable, "-m", "venv", tmp_path / "venv", folder=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", wheel, folder=tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("torch", "jax", "cuda", "ipu"):
        result = subprocess.run(
            [python, "-m", "rbd_ref.train", "--backend", name],
            cwd=elsewhere,
            env=APART,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 2
        assert result.stderr.count("\n") == 1, result.stderr
        assert f"pip install 'rbd-ref[{name}]'" in result.stderr
        assert list(elsewhere.iterdir()) == []
    for name in ("numba", "rbd_ref.kernels.backend:NumbaBackend"):
        printed = run(python, "-m", "rbd_ref.conformance", "--rbd-backend", name, "--level", "L0", folder=elsewhere)
        assert printed.strip().splitlines()[-1] == "numba: conforms to L0"
    run(python, "-m", "rbd_ref.train", "--steps", "2", "--quiet", "--out", "run", folder=elsewhere)
    where = run(python, "-c", "import rbd_ref; print(rbd_ref.__file__)", folder=elsewhere)
    assert str(tmp_path) in where
