"""Where compiled kernels are kept, and that no multiplication is fused with an addition."""

from __future__ import annotations

import re
import shutil
import sys
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


@pytest.mark.compiled
def test_compiled_kernels_are_found_again(tmp_path: Path) -> None:
    """A second process compiles nothing."""
    script = (
        "import numpy as np, rbd_ref as rbd\n"
        "from rbd_ref.kernels import backend, prng\n"
        "backend.NumbaBackend().words(np.zeros(2, np.uint32), np.zeros((2, 3), np.uint32))\n"
        "print(sum(prng.fill_threefry.stats.cache_hits.values()))\n"
    )
    runs = [run_python("-c", script, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    assert [run.stdout.strip() for run in runs] == ["0", "1"], runs[1].stderr
    assert list(tmp_path.glob("rbd_ref-*"))


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
