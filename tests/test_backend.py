"""The registry: backends by entry point or by path, and one sentence where that does not work."""

from __future__ import annotations

from pathlib import Path

import pytest

from rbd_ref import backend
from rbd_ref.kernels.backend import NumbaBackend
from tools import run_python

LIBRARIES = ("torch", "jax", "onnx", "onnxruntime", "numba.cuda", "mpi4py")


def test_the_reference_registers_itself() -> None:
    assert "numba" in backend.names()
    assert isinstance(backend.load("numba"), NumbaBackend)


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
            "rbd_ref.numba_backend:Missing",
            "cannot be loaded: module 'rbd_ref.numba_backend' has no attribute 'Missing'",
        ),
        ("rbd_ref.compartments:Plan", "cannot be loaded: .* missing 2 required positional arguments"),
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
