"""Survivors: with Open MPI's ULFM the ranks that are left go on, to the same bits. `make test-ft` runs this file.

It needs an environment with Open MPI (the extra `mpi-ft`) where the other tests need MPICH, so pytest does not collect
it by itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mpi_tools import DRIVER, MPIEXEC, Job, Outcome, sha, verified
from tools import run_python

SIZE = ("--net", "mlp:64-10", "--workers", "4", "--steps", "60")
FLAGS = (*SIZE, "--dims", "20")
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def survive(faults: str, folder: Path, *flags: str, **more: str) -> Outcome:
    """Four ranks, some of which are killed."""
    command = [MPIEXEC, "--with-ft", "ulfm", "-n", "4", sys.executable, DRIVER, "one", *flags, "--out", folder]
    job = Job(list(map(str, command)), folder.parent, **OPEN_MPI, **more, RBD_TEST_FAULT=faults)
    return job.ended()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The sha256 of the run in one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    result = run_python("-m", "rbd_ref.train", *FLAGS, "--out", str(folder), folder=folder.parent)
    assert result.returncode == 0, result.stderr
    return sha(folder)


@pytest.mark.parametrize(
    ("faults", "reconstruct"),
    [
        ("", "node"),
        ("kill 2 20", "replicate"),
        ("kill 0 20", "node"),
        ("kill 1 10, kill 3 10", "node"),
        ("kill 0 10, kill 1 30", "node"),
    ],
)
def test_the_ranks_that_are_left_go_on_to_the_same_bits(
    faults: str, reconstruct: str, undisturbed: str, tmp_path: Path
) -> None:
    """One rank, the first, two at once, one after the other."""
    outcome = survive(faults, tmp_path / "run", *FLAGS, "--reconstruct", reconstruct)
    assert (tmp_path / "run" / "result.json").exists(), outcome.text
    assert sha(tmp_path / "run") == undisturbed
    assert verified(tmp_path / "run")
    assert outcome.err.count("are left and continue") >= bool(faults), outcome.text


@pytest.mark.parametrize("rank", [2, 3])
def test_a_node_that_loses_a_rank_is_not_waited_for(rank: int, undisturbed: str, tmp_path: Path) -> None:
    """Its first rank, who receives for it, or another, for whom only its node waits."""
    outcome = survive(f"kill {rank} 20", tmp_path / "run", *FLAGS, RBD_REF_RANKS_PER_NODE="2")
    assert (tmp_path / "run" / "result.json").exists(), outcome.text
    assert sha(tmp_path / "run") == undisturbed


def test_sgd_has_no_coefficients_to_go_on_from_but_comes_to_the_same_bits(tmp_path: Path) -> None:
    outcome = survive("kill 1 25", tmp_path / "run", *SIZE, "--method", "sgd")
    alone = run_python("-m", "rbd_ref.train", *SIZE, "--method", "sgd", "--out", str(tmp_path / "alone"))
    assert alone.returncode == 0, alone.stderr
    assert (tmp_path / "run" / "result.json").exists(), outcome.text
    assert sha(tmp_path / "run") == sha(tmp_path / "alone")
