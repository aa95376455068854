"""Compiling: it is timed, said once, and counts neither as the time of a run nor of its steps."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numba
import pytest
from numba.core.event import Event, EventStatus

from rbd_ref.kernels.compiling import LOCK, Compiling, watch_compiling
from run_tools import TINY
from tools import run_python

pytestmark = pytest.mark.compiled


def test_functions_are_counted_and_timed_once() -> None:
    """One for the other is no time of its own; nothing is told of a call that finds its code."""
    inner = numba.njit(lambda x: x + 1)
    outer = numba.njit(lambda x: inner(x) * 2)
    told: list[tuple[int, int]] = []
    with watch_compiling() as watch:
        watch.tell = lambda seen: told.append((seen.count, seen.depth))
        began = time.perf_counter()
        assert outer(1) == 4
        assert 0 < watch.seconds <= time.perf_counter() - began
        assert (told[0], told[-1]) == ((0, 1), (watch.count, 0))
        assert max(depth for _, depth in told) == watch.count == 2
        before = watch.seconds
        outer(2)
        time.sleep(0.01)
        assert (watch.seconds, watch.count) == (before, 2)
    numba.njit(lambda x: x - 1)(1)
    assert watch.count == 2  # it does not look any more


def test_the_clock_runs_while_the_lock_is_held() -> None:
    """However often it is taken by who has it."""
    watch, lock = Compiling(), Event(LOCK, EventStatus.START)
    watch.on_start(lock)
    watch.on_start(lock)
    watch.on_end(lock)
    time.sleep(0.02)
    assert 0.02 <= watch.seconds < 1
    watch.on_end(lock)
    before = watch.seconds
    time.sleep(0.01)
    assert watch.seconds == before


def test_the_first_run_says_that_it_compiles_and_the_second_does_not(tmp_path: Path) -> None:
    """The backend numpy compiles no directions, so this is soon over; seconds are those of the steps."""
    flags = [*TINY, "--backend", "numpy", "--steps", "3", "--log-every", "1"]
    said, took = [], []
    for name in ("first", "second"):
        began = time.perf_counter()
        done = run_python(
            "-m", "rbd_ref.train", *flags, "--out", name, folder=tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "c")
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"run folder  {name}\n")
        said.append(done.stderr)
        took.append(time.perf_counter() - began)
    sentence = "compiling kernels (once, about 10 s; `rbd warmup` does it beforehand)\n"
    assert [text.count(sentence) for text in said] == [1, 0]
    assert json.loads((tmp_path / "first" / "result.json").read_text())["seconds"] < (took[0] - took[1]) / 2
    lines = [json.loads(line) for line in (tmp_path / "first" / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["images_per_second"] for line in lines if line["kind"] == "step"]
    assert min(speeds) > max(speeds) / 50
