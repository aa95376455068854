"""Backends side by side: replicas on unlike ones hold the same weights, and the page on how to write one is true."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rbd_ref as rbd
from mpi_tools import MPIEXEC, TRAIN, Job, Outcome, metrics, sha, verified
from rbd_ref import backend
from tools import ROOT, run_python

pytestmark = pytest.mark.compiled

RUN = ("--workers", "2", "--epochs", "60", "--dims", "50", "--quiet", "--out", "run")
NOTHING: Mapping[str, str] = {}
APART = ("--reconstruct", "replicate", "--check-every", "20")  # each rank rebuilds for itself, and they are compared


def outcome(
    folder: Path, each: Sequence[tuple[str, ...]], *flags: str, environment: Mapping[str, str] = NOTHING
) -> Outcome:
    """How a run of two ranks ended, each of which has flags of its own."""
    ranks = [["-n", "1", sys.executable, *TRAIN, *flags, *own] for own in each]
    return Job([str(MPIEXEC), *ranks[0], ":", *ranks[1]], folder, **environment).ended(300)


def together(
    folder: Path, names: tuple[str, str], *flags: str, steps: int = 200, environment: Mapping[str, str] = NOTHING
) -> str:
    """The sha256 of a run of two ranks, each on a backend of its own."""
    each = [("--backend", name) for name in names]
    found = outcome(folder, each, *RUN, "--steps", str(steps), *flags, environment=environment)
    assert (found.status, found.err) == (0, ""), found.text
    assert metrics(folder / "run", "evaluation")[-1]["step"] == steps
    return sha(folder / "run")


@pytest.mark.parametrize(("name", "steps"), [("torch", 200), ("jax", 200), ("ipu", 30)])
def test_replicas_on_unlike_backends_end_with_one_sha256(tmp_path: Path, name: str, steps: int) -> None:
    """The reference repeats from the journal what both had; the ranks compared their weights as they went."""
    together(tmp_path, ("numba", name), *APART, steps=steps)
    assert verified(tmp_path / "run")


def test_replicas_on_unlike_backends_go_by_the_signs_that_were_sent(tmp_path: Path) -> None:
    """Coefficients near 0 may have another sign on another backend: what counts is the bits that were sent."""
    flags = ("--coefficients", "sign", "--memory", "0.9", "--family", "srht", "--dims", "500", "--lr", "1")
    together(tmp_path, ("numba", "torch"), *APART, *flags, steps=60)
    assert verified(tmp_path / "run")


def test_the_first_rank_may_be_any_backend(tmp_path: Path) -> None:
    """In a node's memory and apart: the same weights."""
    (tmp_path / "apart").mkdir()
    assert together(tmp_path, ("torch", "numba")) == together(tmp_path / "apart", ("torch", "numba"), *APART)


# Gradients.

UNLIKE = (("--gradients", "reference"), ("--gradients", "torch"))


def test_ranks_with_unlike_gradients_hold_the_same_weights_and_go_on(tmp_path: Path) -> None:
    """A run says the gradients of its first rank; the other has its own, which are near, before and after a resume."""
    for steps, more in (("20", ()), ("40", ("--resume",))):
        found = outcome(tmp_path, UNLIKE, *RUN, *APART, "--steps", steps, *more)
        assert (found.status, found.err) == (0, ""), found.text
    assert verified(tmp_path / "run")
    run = rbd.open_run(tmp_path / "run")
    assert run.config.gradients == "reference"
    alone = rbd.fit(replace(run.config, steps=40))
    assert 0 < np.abs(run.theta(40) - alone.theta).max() < 1e-5


# docs/backends.md.


def reachable(folder: Path) -> str:
    """PYTHONPATH with a folder before what is there."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's blocks of Python, in one file."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "backends.md").read_text(), flags=re.S)
    assert len(blocks) == 3
    folder = tmp_path_factory.mktemp("first")
    (folder / "first_backend.py").write_text("\n\n".join(blocks))
    return folder


@pytest.mark.parametrize(("name", "level"), [("Words", "L0"), ("Directions", "L1"), ("FirstBackend", "L5")])
def test_the_backend_of_the_page_conforms(first: Path, name: str, level: str) -> None:
    result = run_python(
        "-m", "rbd_ref.conformance", "--rbd-backend", f"first_backend:{name}", folder=first, PYTHONPATH=reachable(first)
    )
    assert result.stdout.splitlines()[-1:] == [f"first: conforms to {level}"], result.stdout + result.stderr


def test_the_backend_of_the_page_trains_beside_the_reference(first: Path, tmp_path: Path) -> None:
    names = ("numba", "first_backend:FirstBackend")
    together(tmp_path, names, *APART, "--family", "rademacher", steps=50, environment={"PYTHONPATH": reachable(first)})
    assert verified(tmp_path / "run")


def test_the_page_names_every_backend() -> None:
    page = (ROOT / "docs" / "backends.md").read_text()
    assert {name for name in backend.names() if f"| `{name}" not in page} == set()
