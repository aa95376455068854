"""`rbd warmup`: what it calls is what runs call, so that they find all kernels compiled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rbd_ref import warmup
from run_tools import TINY, one_line
from tools import run_python

pytestmark = pytest.mark.compiled

CHECK = """
import gc, json, sys
from numba.core.dispatcher import Dispatcher
from rbd_ref import train, warmup

def known():
    found = [one for one in gc.get_objects() if isinstance(one, Dispatcher) and "rbd_ref" in one.py_func.__module__]
    return {f"{one.py_func.__qualname__}{signature}" for one in found for signature in one.signatures}

for work in warmup.WORK:
    work()
before = known()
for number, flags in enumerate(json.loads(sys.argv[1])):
    assert train.main([*flags, "--quiet", "--out", f"{sys.argv[2]}/{number}"]) == 0
print(json.dumps(sorted(known() - before)))
"""
RUNS = [
    [*TINY, "--steps", "2"],
    ["--steps", "2", "--workers", "2"],
    ["--steps", "2", "--family", "srht", "--exchange", "split", "--workers", "3"],
    ["--steps", "2", "--net", "mlp:64-400-10", "--dims", "20"],
    ["--steps", "2", "--net", "mlp:64-400-10", "--dims", "20", "--family", "srht", "--exchange", "shared"],
    [*TINY, "--steps", "1", "--method", "nes"],
    ["--steps", "2", "--method", "sgd", "--batch-size", "100"],
    [*TINY, "--steps", "2", "--method", "fpd", "--family", "sparse", "--compartments", "layer"],
]


def test_runs_call_no_kernel_that_was_not_warmed_up(tmp_path: Path) -> None:
    """By name and types; all of them load from disk here, if other tests were before."""
    done = run_python("-c", CHECK, json.dumps(RUNS), str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_no_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert warmup.main(["--jobs", "0"]) == 2
    one_line(capsys.readouterr().err, "rbd_ref.warmup: --jobs is 0, expected 1 or more")
