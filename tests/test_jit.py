"""Where compiled kernels are kept, and that no multiplication is fused with an addition."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import pytest

from rbd_ref.kernels import _jit
from rbd_ref.kernels.families import fill_normal
from rbd_ref.kernels.tiles import add_multiple, lane_sum
from tools import COMPILED, imported, run_python

WORDS, FLOATS = np.ones(32, np.uint32), np.ones(64, np.float32)


def test_the_cache_folder_is_named_after_the_sources() -> None:
    folder = _jit.cache_folder()
    assert folder.is_dir()
    assert folder.name == f"rbd_ref-{_jit.source_digest()}"


def file_of(name: str) -> Path | None:
    """The file of a module of rbd_ref, given by its name or by that of something in it."""
    path = _jit.PACKAGE / name.replace(".", "/")
    found = [file for file in (path.with_suffix(".py"), path.parent.with_suffix(".py")) if file.exists()]
    return found[0] if found else None


def test_kernels_and_all_that_they_import_are_in_the_digest() -> None:
    """A source that is not would leave stale machine code behind when it changes."""
    decorators = {"kernels._jit.device", "kernels._jit.kernel", "kernels._jit.parallel_kernel"}
    waiting = [path for path in _jit.PACKAGE.rglob("*.py") if imported(path) & decorators]
    assert {path.parent.name for path in waiting} == {"kernels", "models", "data"}
    reached = set(waiting)
    while waiting:
        further = {file for name in imported(waiting.pop()) if (file := file_of(name))} - reached
        waiting += further
        reached |= further
    covered = [_jit.PACKAGE / name for name in _jit.SOURCES]
    assert [path for path in reached if not any(path.is_relative_to(place) for place in covered)] == []


@pytest.mark.parametrize("name", _jit.SOURCES)
def test_a_change_of_any_source_changes_the_digest(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "rbd_ref"
    shutil.copytree(_jit.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "vectors"))
    monkeypatch.setattr(_jit, "PACKAGE", package)
    before = _jit.source_digest()
    for path in sorted((package / name).rglob("*.py")) or [package / name]:
        text = path.read_text()
        path.write_text(text + "# changed\n")
        assert _jit.source_digest() != before, path
        path.write_text(text)
    assert _jit.source_digest() == before


def test_a_read_only_installation_gets_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "a file, not a folder"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(_jit, "_candidates", lambda: iter([blocked, tmp_path / "cache"]))
    assert _jit.cache_folder().parent == tmp_path / "cache"
    monkeypatch.setattr(_jit, "_candidates", lambda: iter([blocked]))
    with pytest.raises(OSError, match="set NUMBA_CACHE_DIR"):
        _jit.cache_folder()


SCRIPT = """
import numpy as np, rbd_ref as rbd
from rbd_ref.kernels import backend, prng
backend.NumbaBackend().words(np.zeros(2, np.uint32), np.zeros((2, 3), np.uint32))
print(sum(prng.fill_threefry.stats.cache_hits.values()))
"""


@pytest.mark.compiled
def test_compiled_kernels_are_found_again(tmp_path: Path) -> None:
    """A second process compiles nothing."""
    runs = [run_python("-c", SCRIPT, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    assert [run.stdout.strip() for run in runs] == ["0", "1"], runs[1].stderr
    assert list(tmp_path.glob("rbd_ref-*"))


@pytest.mark.compiled
def test_without_package_and_home_kernels_are_found_again_in_one_temporary_folder(tmp_path: Path) -> None:
    """A file in the place of each folder: not even root can write into that."""
    package, temporary, blocked = tmp_path / "rbd_ref", tmp_path / "temporary", str(tmp_path / "rbd_ref/__pycache__")
    shutil.copytree(_jit.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "vectors"))
    Path(blocked).write_text("")
    temporary.mkdir()
    places = {"PYTHONPATH": str(tmp_path), "TMPDIR": str(temporary), "NUMBA_CACHE_DIR": ""}
    runs = [run_python("-c", SCRIPT, folder=tmp_path, HOME=blocked, XDG_CACHE_HOME="", **places) for _ in range(2)]
    assert [run.stdout.strip() for run in runs] == ["0", "1"], runs[1].stderr
    assert [run.stderr for run in runs] == ["", ""]
    (folder,) = temporary.iterdir()
    assert (folder.name, folder.stat().st_mode & 0o777) == (f"rbd_ref-{os.geteuid()}", 0o700)
    assert [path.name for path in folder.iterdir()] == [f"rbd_ref-{_jit.source_digest()}"]


@pytest.fixture
def last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing but the temporary directory can be written to; the folder that this user would have there."""
    blocked, temporary = tmp_path / "a file, not a folder", tmp_path / "temporary"
    blocked.write_text("")
    temporary.mkdir()
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(blocked))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    candidates = _jit._candidates
    monkeypatch.setattr(_jit, "_candidates", lambda: (x for x in candidates() if x != _jit.PACKAGE / "__pycache__"))
    return temporary / f"rbd_ref-{os.geteuid()}"


def test_the_temporary_folder_is_taken_again(last_resort: Path) -> None:
    assert [_jit.cache_folder().parent for _ in range(2)] == [last_resort, last_resort]
    assert list(last_resort.parent.iterdir()) == [last_resort]


def open_to_all(folder: Path, _: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def open_to_readers(folder: Path, _: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    folder.chmod(0o755)


def a_link(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder.parent / "private").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "private")


def a_dangling_link(folder: Path, _: pytest.MonkeyPatch) -> None:
    folder.symlink_to(folder.parent / "nowhere")


def a_file(folder: Path, _: pytest.MonkeyPatch) -> None:
    folder.write_text("")
    folder.chmod(0o700)


def of_somebody_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every tester can give files away, but a tester can be somebody else."""
    folder.mkdir(mode=0o700)
    user = os.geteuid() + 1
    folder.rename(folder.with_name(f"rbd_ref-{user}"))
    monkeypatch.setattr(os, "geteuid", lambda: user)


@pytest.mark.parametrize(
    "obstacle",
    [open_to_all, open_to_readers, a_link, a_dangling_link, a_file, of_somebody_else],
    ids=lambda f: f.__name__,
)
def test_a_temporary_folder_that_others_may_have_made_is_not_used(
    last_resort: Path, monkeypatch: pytest.MonkeyPatch, obstacle: Callable[[Path, pytest.MonkeyPatch], None]
) -> None:
    """A stranger's machine code would run. A new folder is made, and a sentence says what to do."""
    obstacle(last_resort, monkeypatch)
    before = set(last_resort.parent.rglob("*"))
    with pytest.warns(UserWarning, match=r"is not a folder of this user with mode 700.*set NUMBA_CACHE_DIR"):
        folder = _jit.cache_folder()
    assert folder.parent.parent == last_resort.parent
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert set(last_resort.parent.rglob("*")) - before == {folder.parent, folder}


def test_no_home_and_no_temporary_directory(last_resort: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", nothing)
    assert _jit.cache_folder().parent == last_resort
    monkeypatch.setattr(tempfile, "tempdir", str(last_resort.parent / "nowhere"))
    with pytest.raises(OSError, match="set NUMBA_CACHE_DIR"):
        _jit.cache_folder()


@pytest.mark.skipif(not COMPILED, reason="there is no machine code to look at when NUMBA_DISABLE_JIT is set")
@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [
        (fill_normal, (WORDS, WORDS, FLOATS)),
        (add_multiple, (np.float32(1), FLOATS, FLOATS)),
        (lane_sum, (FLOATS, FLOATS)),
    ],
    ids=["fill_normal", "add_multiple", "lane_sum"],
)
def test_no_kernel_has_a_fused_multiply_add(kernel: object, arguments: tuple[object, ...]) -> None:
    """Fused products would be other bits on machines that lack them."""
    fresh = numba.njit(error_model="numpy")(kernel.py_func)  # type: ignore[attr-defined]
    fresh(*arguments)
    code = "".join(fresh.inspect_asm().values())
    assert "mulps" in code or "mulss" in code or "fmul" in code
    assert not re.search(r"\bv?f[n]?m(add|sub)|\bfmla\b|\bfmls\b", code)


def test_arrays_on_the_stack_are_apart_and_line_up() -> None:
    """Written one after the other in a loop, whatever the kernel was called from; each begins with a cache line."""

    @numba.njit(nogil=True)
    def both(x: np.ndarray) -> tuple[float, float, int]:
        one, two = _jit.on_stack(64), _jit.on_stack(64)
        one[:], two[:] = np.float32(0), np.float32(1)
        for i in range(x.size):
            one[i % 64] += x[i]
            two[i % 64] -= x[i]
        return one.sum(), two.sum(), (one.ctypes.data | two.ctypes.data) % 64

    total, rest, place = both(np.arange(640, dtype=np.float32))
    assert (total, rest) == (640 * 639 / 2, 64 - 640 * 639 / 2)
    assert place == 0 or not COMPILED


def test_a_borrowed_array_is_the_callers_and_stays() -> None:
    """Its parts are written through, and however often it is borrowed, nobody frees it or holds it longer."""

    @numba.njit(nogil=True)
    def count(x: np.ndarray) -> None:
        y = _jit.borrowed(x)
        for i in range(y.size):
            y[i:][0] += i

    array = np.zeros(100)
    before = sys.getrefcount(array)
    for _ in range(1000):
        count(array)
    assert sys.getrefcount(array) == before
    assert np.array_equal(array, 1000 * np.arange(100))
