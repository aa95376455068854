"""The registry: backends by entry point or by path, and one sentence where that does not work."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from rbd_ref import backend
from rbd_ref.kernels.backend import NumbaBackend
from rbd_ref.numpy_backend import NumpyBackend
from tools import ROOT, run_python

LIBRARIES = ("torch", "jax", "onnx", "onnxruntime", "numba.cuda", "mpi4py")


def test_the_package_knows_its_own() -> None:
    assert {"numba", "numpy"} <= set(backend.names())
    assert isinstance(backend.load("numba"), NumbaBackend)
    assert isinstance(backend.load("numpy"), NumpyBackend)


def libraries_alone(folder: Path) -> Path:
    """A folder with NumPy and Numba and no record that anything is installed."""
    folder.mkdir()
    for name in ("numpy", "numba", "llvmlite"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        package = Path(spec.origin).parent
        for path in (package, package.with_name(f"{name}.libs")):
            if path.exists():
                (folder / path.name).symlink_to(path)
    return folder


def test_a_clone_that_nobody_installed_has_its_own_backends(tmp_path: Path) -> None:
    """With -S Python sees the standard library and PYTHONPATH only, and no entry points."""
    shutil.copytree(ROOT / "rbd_ref", tmp_path / "clone" / "rbd_ref", ignore=shutil.ignore_patterns("__pycache__"))
    script = (
        "from importlib.metadata import entry_points\n"
        "from rbd_ref import backend\n"
        "assert not entry_points(group=backend.GROUP)\n"
        "print(backend.names(), [backend.load(name).name for name in ('numba', 'numpy')])\n"
    )
    path = f"{tmp_path / 'clone'}:{libraries_alone(tmp_path / 'libraries')}"
    result = run_python("-S", "-c", script, folder=tmp_path, PYTHONPATH=path)
    assert result.stdout == "['numba', 'numpy'] ['numba', 'numpy']\n", result.stderr


def test_a_class_is_loaded_by_its_path() -> None:
    assert isinstance(backend.load("rbd_ref.kernels.backend:NumbaBackend"), NumbaBackend)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nothing", "backend 'nothing' is unknown, expected one of"),
        (
            "no_such_package:Class",
            "backend 'no_such_package:Class' cannot be loaded: No module named 'no_such_package'",
        ),
        (
            "rbd_ref.kernels.backend:Missing",
            "cannot be loaded: module 'rbd_ref.kernels.backend' has no attribute 'Missing'",
        ),
        ("rbd_ref.spec.compartments:Plan", "cannot be loaded: .* missing 2 required positional arguments"),
        (
            "fractions:Fraction",
            "lacks capabilities, descend, directions, name, project, reconstruct, set_threads, words",
        ),
        (":", "cannot be loaded"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        backend.load(name)
    assert "\n" not in str(caught.value)


def test_a_backend_whose_library_is_missing_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_a_library.py").write_text("import a_library_that_is_not_there\n\nclass Backend:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="No module named 'a_library_that_is_not_there': give it what it needs"):
        backend.load("needs_a_library:Backend")


def test_importing_the_package_imports_no_other_library() -> None:
    """Nor do its commands: each of them costs seconds or fails where it is not installed."""
    script = "import sys, rbd_ref, rbd_ref.train, rbd_ref.replay, rbd_ref.report, rbd_ref.conformance.__main__\n"
    result = run_python("-c", script + f"print([name for name in {LIBRARIES} if name in sys.modules])")
    assert result.stdout == "[]\n", result.stderr
