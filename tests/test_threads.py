"""The same bits with any number of threads, in any process, and with kernels run as plain Python."""

from __future__ import annotations

import numpy as np
import pytest

import rbd_ref as rbd
from rbd_ref.kernels.backend import NumbaBackend
from tools import run_python

SCRIPT = """
import hashlib
import numpy as np
import rbd_ref as rbd
from rbd_ref.conformance.cases import pseudo_random
from rbd_ref.spec.families import FAMILIES
digest = hashlib.sha256()
for plan in {plans}:
    for family in FAMILIES:
        basis = rbd.Basis(plan, seed=2**40 + 3, family=family)
        g = pseudo_random(1, plan.D)
        for result in (basis.project(g, step=7, worker=2), *basis.descend(g, step=8, worker=1)):
            digest.update(result.tobytes())
        digest.update(basis.reconstruct(pseudo_random(2, plan.d), step=9).tobytes())
print(digest.hexdigest())
"""
LARGE = """
    rbd.compartments.whole(70_001, d=11), rbd.compartments.even(30_000, k=7, d=3), rbd.compartments.whole(18_000, d=13)
"""
SMALL = "rbd.compartments.even(70, k=2, d=2), rbd.compartments.whole(3, d=3)"


def digest(plans: str, **environment: str) -> str:
    result = run_python("-c", SCRIPT.format(plans=f"[{plans}]"), **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.compiled
def test_threads_and_processes_do_not_change_a_bit() -> None:
    """One to four threads, and more than the five tiles of the last plan, each in a process of its own."""
    assert len({digest(LARGE, NUMBA_NUM_THREADS=str(n)) for n in (1, 2, 3, 4, 7)}) == 1


@pytest.mark.compiled
def test_plain_python_gives_the_bits_of_the_compiled_kernels() -> None:
    assert digest(SMALL, NUMBA_DISABLE_JIT="1") == digest(SMALL)


def test_small_work_leaves_the_number_of_threads_as_it_was() -> None:
    backend = NumbaBackend()
    before = backend.set_threads(0)
    rbd.Basis(rbd.compartments.whole(10, d=2), backend=backend).descend(np.ones(10), step=0)
    assert backend.set_threads(0) == before


def test_the_number_of_threads_is_bounded_by_what_was_started() -> None:
    backend = NumbaBackend()
    most = backend.set_threads(10**6)
    assert most >= 1
    assert backend.set_threads(1) == 1
    assert backend.set_threads(0) == 1
    assert backend.set_threads(most) == most
