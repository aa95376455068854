"""Many ranks give the bits of one process, and whatever happens to one of them, none is left waiting and no step lost.

All in real processes under mpiexec, in runs of a dozen small steps: what is tested here is what happens between ranks.
"""

from __future__ import annotations

import functools
import json
import os
import pty
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mpi_tools import DRIVER, FIT, LONG, SOON, TRAIN, Job, Outcome, job, launcher, metrics, require_mpi, sha, verified
from rbd_ref import open_run, train
from rbd_ref._machine import cores
from rbd_ref.training.communicator import share
from run_tools import contents

pytestmark = pytest.mark.compiled

D, DIMS, STEPS = 650, 20, 12  # an epoch of 16 workers is 9 steps
ALONE = ("--net", "mlp:64-10", "--batch-size", 8, "--steps", STEPS, "--log-every", 1, "--quiet")
SIZE = (*ALONE, "--dims", DIMS)
SIXTEEN = (*SIZE, "--workers", 16)
FIVE = (*SIZE, "--workers", 5)
LAYERS = ("--net", "mlp:64-16-10", "--compartments", "layer", "--dims", 30, "--batch-size", 8, "--steps", 4)
RUNS: dict[str, Sequence[object]] = {
    "independent": SIXTEEN,
    "shared": (*SIXTEEN, "--exchange", "shared"),
    "split": (*SIXTEEN, "--exchange", "split"),
    "sgd": (*ALONE, "--workers", 5, "--method", "sgd", "--momentum", 0.5),
    "fpd": (*FIVE, "--method", "fpd", "--optimiser", "adam", "--lr", 0.1),
    "nes": (*FIVE, "--method", "nes", "--dims", 6, "--antithetic"),
    "momentum and mean": (*FIVE, "--momentum", 0.5, "--combine", "mean", "--redraw", 3),
    "rbd, then sgd": (*FIVE, "--batch-size", 40, "--switch", "1:sgd"),
    "sgd, then fpd": (*FIVE, "--batch-size", 40, "--method", "sgd", "--switch", "1:fpd"),
    "srht": (*LAYERS, "--workers", 5, "--family", "srht", "--quiet"),
    "sparse": (*LAYERS, "--workers", 5, "--family", "sparse:10", "--exchange", "split", "--quiet"),
    "signs": (*LAYERS, "--workers", 5, "--coefficients", "sign", "--memory", 0.9, "--quiet"),
    "bytes": (*LAYERS, "--workers", 5, "--coefficients", "int8", "--feedback", "--exchange", "split", "--quiet"),
    "signs of fpd": (*FIVE, "--method", "fpd", "--coefficients", "sign", "--lr", 0.1),
    "fewer workers than ranks": (*SIZE, "--workers", 2),
    "memory": (*FIVE, "--memory", 0.9, "--schedule", "linear", "--warmup", 3),
    "feedback": (*FIVE, "--feedback", "--exchange", "split", "--combine", "mean"),
    "memory, twice": (*FIVE, "--batch-size", 60, "--memory", 0.9, "--switch", "1:sgd", "--switch", "2:rbd"),
}
FOUR = ("--workers", 4, "--memory", 0.9, "--schedule", "cosine", "--batch-size", 60)  # an epoch is 5 steps
MODES = ("independent", "shared", "split")
VARIANTS: dict[str, Sequence[object]] = {
    "": (),
    " replicate": ("--reconstruct", "replicate"),
    " checked": ("--check-every", 2, "--on-divergence", "resync"),
}


@pytest.fixture(scope="session", autouse=True)
def mpi(tmp_path_factory: pytest.TempPathFactory) -> None:
    """MPI is here and works."""
    require_mpi(tmp_path_factory.mktemp("probe"))


def all_runs(folder: Path, ranks: int, names: Sequence[str], variants: Sequence[str], **more: str) -> dict[str, str]:
    """The sha256 of these runs in all variants, made in one start of so many ranks (0: without MPI)."""
    folder.mkdir()
    (folder / "reports").mkdir()
    flags = {
        name + variant: [*RUNS[name], *VARIANTS[variant], "--out", folder / (name + variant)]
        for name in names
        for variant in (variants if name in MODES else variants[:1])
    }
    (folder / "jobs.json").write_text(json.dumps([[str(part) for part in one] for one in flags.values()]))
    more["RBD_TEST_REPORT"] = str(folder / "reports")
    found = job(ranks, (DRIVER, "many", folder / "jobs.json"), folder, **more).ended(3 * LONG)
    assert found.status == 0, found.text
    assert found.err == ""
    return {name: sha(folder / name) for name in flags}


NODES = {"RBD_REF_RANKS_PER_NODE": "2"}
# How ranks are divided into nodes that share memory, by the variables that pretend it.
LAYOUTS: dict[str, dict[str, str]] = {
    "one node": {},
    "nodes of two": {**NODES, "RBD_TEST_ROOM": "1000"},  # updates do not fit into it at once
    "two nodes, by turns": {"MPIR_CVAR_NUM_CLIQUES": "2"},
    "no room on the first of two": {**NODES, "RBD_TEST_FAULT": "refuse 0 rows, refuse 1 rows"},
    "two who share nothing": {**NODES, "RBD_TEST_FAULT": "refuse 0 turns, refuse 1 turns"},
}
PRETENDED = ("independent", "split", "sgd", "rbd, then sgd", "fewer workers than ranks")
Table = Callable[[int, str], tuple[Path, dict[str, str]]]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The runs of a number of ranks and their layout over nodes; made once."""
    base = tmp_path_factory.mktemp("table")

    @functools.cache
    def made(ranks: int, layout: str) -> tuple[Path, dict[str, str]]:
        folder = base / f"{ranks} {layout}"
        usual = layout in ("one node", "nodes of two")
        names = RUNS if usual and ranks < 16 else (*MODES, "sgd") if usual else PRETENDED
        variants = list(VARIANTS)[: 2 if layout == "one node" else 3] if ranks in (3, 4) and usual else [""]
        return folder, all_runs(folder, ranks, tuple(names), variants, **LAYOUTS[layout])

    return made


@pytest.fixture(scope="module")
def alone(table: Table) -> dict[str, str]:
    """The sha256 of all runs by one process without MPI: what all others are compared with."""
    return table(0, "one node")[1]


def reports(folder: Path) -> list[dict[str, Any]]:
    """What the ranks of a job said at its end."""
    found: list[dict[str, Any]] = [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]
    return sorted(found, key=lambda values: int(values["rank"]))


# The same bits.


def test_the_runs_compared_are_not_all_the_same(alone: dict[str, str]) -> None:
    assert len(set(alone.values())) == len(RUNS)


@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        *((ranks, "one node") for ranks in (1, 2, 3, 4, 16)),
        (3, "nodes of two"),
        (4, "nodes of two"),
        (5, "two nodes, by turns"),
        (4, "no room on the first of two"),
        (3, "two who share nothing"),
    ],
)
def test_any_number_of_ranks_gives_the_weights_of_one_process(
    table: Table, alone: dict[str, str], ranks: int, layout: str
) -> None:
    found = table(ranks, layout)[1]
    assert found == {name: alone[name.removesuffix(" replicate").removesuffix(" checked")] for name in found}
    assert len(found) >= len(MODES)


def test_the_command_itself_gives_them_too(tmp_path: Path, alone: dict[str, str]) -> None:
    found = job(4, (*TRAIN, *SIXTEEN, "--out", "run"), tmp_path).ended()
    assert (found.status, found.out, found.err) == (0, "", "")
    assert sha(tmp_path / "run") == alone["independent"]
    assert verified(tmp_path / "run")


def test_what_is_sent_is_counted(table: Table) -> None:
    """A worker's numbers, its loss and its wish to stop, 4 bytes each, on any number of ranks."""

    def sent(ranks: int, name: str) -> set[float]:
        return {line["bytes_per_step"] for line in metrics(table(ranks, "one node")[0] / name, "step")}

    assert sent(16, "independent") == {4 * (DIMS + 2)}
    assert sent(16, "shared") == {4 * (DIMS + 2)}
    assert sent(16, "split") == {4 * (2 + 2)}
    assert sent(3, "independent") == {4 * (DIMS + 2)}
    assert sent(3, "sgd") == {4 * (D + 2)}
    assert sent(0, "independent") == {4 * (DIMS + 2)}


def received(folder: Path) -> list[int]:
    """Bytes of rows that came in messages, by rank."""
    return [int(values["bytes_received"]) for values in reports(folder / "reports")]


def test_ranks_of_a_node_send_each_other_no_rows(table: Table) -> None:
    assert received(table(16, "one node")[0]) == [0] * 16


@pytest.mark.parametrize(
    ("ranks", "layout", "receivers"),
    [
        (5, "two nodes, by turns", {0: {0, 2, 4}, 1: {1, 3}}),
        (4, "no room on the first of two", {0: {0}, 1: {1}, 2: {2}, 3: {3}}),
    ],
)
def test_a_node_receives_the_rows_of_others_once(
    table: Table, ranks: int, layout: str, receivers: dict[int, set[int]]
) -> None:
    """By its first rank, for whom it shares memory with: for itself alone where there is no room for rows."""
    folder, runs = table(ranks, layout)
    expected = [0] * ranks
    for run in runs:
        workers = open_run(folder / run).config.workers
        row = sum(line["bytes_per_step"] for line in metrics(folder / run, "step"))
        for receiver, node in receivers.items():
            expected[receiver] += row * sum(len(share(workers, r, ranks)) for r in range(ranks) if r not in node)
    assert received(folder) == expected


# Faults.


class Disturbed:
    """A run of 16 workers on some ranks, with a fault at a step of one of them."""

    def __init__(self, folder: Path, fault: str, *flags: object, ranks: int = 3, **environment: str) -> None:
        self.folder, self.run, self.mark = folder, folder / "run", folder / "reached"
        more = {"RBD_TEST_FAULT": fault, "RBD_TEST_REACHED": str(self.mark), **environment}
        self.job = job(ranks, (DRIVER, "one", *SIXTEEN, *flags, "--out", self.run), folder, **more)

    def at_fault(self) -> Job:
        """The job, when it has come to the fault."""
        self.job.until(self.mark.exists, "the fault")
        return self.job

    def ended(self) -> Outcome:
        """The outcome, which comes soon after the fault."""
        self.at_fault()
        found = self.job.ended()
        assert time.time() - self.mark.stat().st_mtime < SOON, found.text
        assert not (self.run / "result.json").exists()
        return found

    def written_down(self) -> str:
        """What the run's folder says of faults."""
        return (self.run / "faults.log").read_text()

    def goes_on(self, ranks: int, expected: str) -> None:
        """Resumed with so many ranks (0: here) it comes to the weights of a run that was not disturbed."""
        flags = ("--resume", "--quiet", "--out", str(self.run))
        if ranks:
            found = job(ranks, (*TRAIN, *flags), self.folder).ended()
            assert found.status == 0, found.text
        else:
            assert train.main(flags) == 0
        assert sha(self.run) == expected
        assert verified(self.run)


def test_an_exception_on_one_rank_ends_all(tmp_path: Path, alone: dict[str, str]) -> None:
    run = Disturbed(tmp_path, "raise 1 10")
    found = run.ended()
    assert found.status == 1
    for text in (found.err, run.written_down()):
        assert text.count("rank 1: Traceback") == 1
        assert text.count("ZeroDivisionError: this rank divides by zero") == 1
    run.goes_on(2, alone["independent"])


def test_an_exit_of_one_rank_ends_all(tmp_path: Path, alone: dict[str, str]) -> None:
    run = Disturbed(tmp_path, "exit 1 5", ranks=2)
    found = run.ended()
    assert found.status == 3
    assert "rbd_ref.train: rank 1 was left by exit with status 3\n" in found.err
    assert run.written_down() == "rank 1 was left by exit with status 3\n"
    run.goes_on(3, alone["independent"])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_all(tmp_path: Path, alone: dict[str, str], rank: int) -> None:
    run = Disturbed(tmp_path, f"kill {rank} 10", ranks=2 + rank)
    assert run.ended().status == signal.SIGKILL
    run.goes_on(2 * rank, alone["independent"])


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The sha256 of an undisturbed run whose four workers keep something."""
    folder = tmp_path_factory.mktemp("remembered") / "run"
    assert train.main([*map(str, (*SIXTEEN, *FOUR)), "--out", str(folder)]) == 0
    return sha(folder)


@pytest.mark.parametrize(("ranks", "rank", "step", "later"), [(1, 0, 3, 2), (2, 1, 5, 3), (3, 0, 8, 1)])
def test_what_workers_of_killed_ranks_kept_is_there_again(
    tmp_path: Path, remembered: str, ranks: int, rank: int, step: int, later: int
) -> None:
    """On any number of ranks: it belongs to workers."""
    run = Disturbed(tmp_path, f"kill {rank} {step}", *FOUR, ranks=ranks)
    assert run.ended().status == signal.SIGKILL
    run.goes_on(later, remembered)


def test_a_signal_while_all_ranks_follow_the_journal_stops_all(tmp_path: Path, remembered: str) -> None:
    """Nothing in the folder has changed."""
    run = Disturbed(tmp_path, "kill 1 8", *FOUR, ranks=2)
    run.ended()
    (run.run / "lock").unlink()
    before = contents(run.run)
    run.mark.unlink()
    again = Disturbed(tmp_path, "signal 0 follow", "--resume", *FOUR, ranks=3)
    again.at_fault().send(signal.SIGTERM)
    found = again.ended()
    sentence = f"stopped by SIGTERM while the journal was replayed, after step 5 of {STEPS}: continue with "
    assert found == (128 + signal.SIGTERM, "", f"{sentence}{to_resume(again, 3)}\n")
    assert contents(run.run) == before
    again.goes_on(2, remembered)


def test_a_replica_that_differs_is_put_right_with_what_its_workers_kept(tmp_path: Path, remembered: str) -> None:
    """From the last checkpoint, along the journal."""
    flags = ("--check-every", 1, "--on-divergence", "resync", "--reconstruct", "replicate")
    run = Disturbed(tmp_path, "corrupt 1 7", *FOUR, *flags, ranks=3)
    found = run.at_fault().ended()
    assert (found.status, found.err) == (0, "")
    assert sha(run.run) == remembered


def test_a_killed_launcher_ends_all(tmp_path: Path, alone: dict[str, str]) -> None:
    run = Disturbed(tmp_path, "signal 1 5", ranks=2)
    run.at_fault().send(signal.SIGKILL)
    assert run.ended().status == -signal.SIGKILL
    run.goes_on(1, alone["independent"])


def test_a_killed_job_leaves_no_shared_memory(tmp_path: Path) -> None:
    """MPICH would, of itself: the names are taken away as soon as all ranks have what they stand for."""
    run = Disturbed(tmp_path, "signal 1 5", ranks=2)
    shared = run.at_fault().segments
    assert any(path.name.startswith("mpich_shm_") for path in shared)
    run.job.send(signal.SIGKILL)
    run.ended()
    assert [path for path in shared if path.exists()] == []


@pytest.mark.parametrize(("rank", "ranks", "environment"), [(1, 3, {}), (3, 4, NODES)])
def test_a_rank_that_hangs_is_named(
    tmp_path: Path, alone: dict[str, str], rank: int, ranks: int, environment: dict[str, str]
) -> None:
    """Where the others wait for it in the memory of its node, and where they wait for its node."""
    run = Disturbed(tmp_path, f"stop {rank} 5", "--timeout", 5, ranks=ranks, **environment)
    found = run.ended()
    assert found.status == 75
    for text in (found.err, run.written_down()):
        assert f"rank {rank} does not answer after 5 s" in text
        assert "continue with --resume" in text
    assert "Traceback" not in found.err
    run.goes_on(2, alone["independent"])


def test_a_rank_that_waits_is_not_taken_for_one_that_hangs(tmp_path: Path) -> None:
    """Rank 2 comes to the exchange some seconds after rank 0, which gives up first."""
    found = Disturbed(tmp_path, "late 2 5, stop 1 5", "--timeout", 6).ended()
    assert found.status == 75
    assert "rank 1 does not answer" in found.err


def test_a_rank_that_reads_late_reads_what_was_sent(tmp_path: Path, alone: dict[str, str]) -> None:
    """Rows stay in the node's memory until the slowest has read them; rank 1 is at the next exchange long before."""
    found = Disturbed(tmp_path, "late 0 exchanged", "--reconstruct", "replicate", ranks=2).at_fault().ended()
    assert (found.status, found.err) == (0, "")
    assert sha(tmp_path / "run") == alone["independent"]


def test_a_full_disk_is_one_sentence(tmp_path: Path, alone: dict[str, str]) -> None:
    run = Disturbed(tmp_path, "full 0 10", ranks=2)
    found = run.ended()
    assert found.status == 2
    said = [line for line in found.err.splitlines() if line and not line.startswith("Abort(2)")]
    assert len(said) == 1
    assert said[0].startswith("rbd_ref.train: rank 0: ")
    assert "journal.rbd cannot be written (File too large)" in said[0]
    run.goes_on(0, alone["independent"])


def test_a_rank_without_memory_is_one_sentence(tmp_path: Path) -> None:
    """Its own, and all end: 4 MB a vector of which there is no room for one."""
    run = Disturbed(tmp_path, "starve 1 2", "--net", "mlp:64-10000-30-10", "--workers", 4, ranks=2)
    found = run.ended()
    assert found.status == 2
    said = [line for line in found.err.splitlines() if line and not line.startswith("Abort(2)")]
    assert len(said) == 1, found.text
    assert said[0].startswith("rbd_ref.train: rank 1: memory ran out while the run was trained (a step of D = 950340 ")
    assert "4 workers takes about 10 vectors of D floats, 38 MB" in said[0]


# Signals.


def to_resume(run: Disturbed, ranks: int) -> str:
    """The command that a run which is stopped names."""
    return f"mpirun -n {ranks} python -m rbd_ref.train --resume --out {run.run.name}"


@pytest.mark.parametrize(("number", "ranks", "later"), [(signal.SIGTERM, 3, 2), (signal.SIGINT, 2, 0)])
def test_a_signal_to_the_launcher_stops_with_a_checkpoint(
    tmp_path: Path, alone: dict[str, str], number: signal.Signals, ranks: int, later: int
) -> None:
    """After the step that a rank was in, or the next one if all had begun it already."""
    run = Disturbed(tmp_path, "signal 1 5", ranks=ranks)
    run.at_fault().send(number)
    found = run.ended()
    assert found.status == 128 + number
    sentence = f"stopped by {number.name} after step ([67]) of {STEPS}: continue with {to_resume(run, ranks)}\n"
    said = re.fullmatch(sentence, found.err)
    assert said, found.text
    assert [path.name for path in (run.run / "checkpoints").iterdir()] == [f"step-0000000{said[1]}.npz"]
    run.goes_on(later, alone["independent"])


def test_a_signal_while_ranks_are_set_up_stops_after_a_step(tmp_path: Path, alone: dict[str, str]) -> None:
    run = Disturbed(tmp_path, "signal 1 start", ranks=2)
    run.at_fault().send(signal.SIGTERM)
    found = run.ended()
    assert found.status == 128 + signal.SIGTERM
    assert found.err == f"stopped by SIGTERM after step 1 of {STEPS}: continue with {to_resume(run, 2)}\n"
    run.goes_on(0, alone["independent"])


def test_a_signal_while_rank_0_replays_stops_all(tmp_path: Path, table: Table, alone: dict[str, str]) -> None:
    """Though the other only waits; nothing in the folder has changed."""
    folder = shutil.copytree(table(0, "one node")[0] / "independent", tmp_path / "run")
    for path in (folder / "result.json", folder / "final.npz", *(folder / "checkpoints").iterdir()):
        path.unlink()
    before = contents(folder)
    run = Disturbed(tmp_path, "signal 0 replay", "--resume", ranks=2)
    run.at_fault().send(signal.SIGTERM)
    found = run.ended()
    sentence = f"stopped by SIGTERM while the journal was replayed, after step 1 of {STEPS}: continue with "
    assert found == (128 + signal.SIGTERM, "", f"{sentence}{to_resume(run, 2)}\n")
    assert contents(folder) == before
    run.goes_on(2, alone["independent"])


@pytest.mark.parametrize("library", ["", "numpy", "libmpi"])
def test_a_signal_right_after_the_start_ends_all_without_a_traceback(tmp_path: Path, library: str) -> None:
    """As soon as all ranks are there, or one of them has loaded a library."""
    ranks = 2
    started = job(ranks, (*TRAIN, *SIXTEEN, "--out", "run"), tmp_path)
    started.until(lambda: started.ranks_begun == ranks, "the start of Python in all ranks")
    started.until(lambda: started.has_loaded(library), f"the loading of {library}")
    began = time.monotonic()
    started.send(signal.SIGTERM)
    found = started.ended()
    assert time.monotonic() - began < SOON
    assert found.status != 0
    assert "Traceback" not in found.err


# Replicas that differ.


@pytest.mark.parametrize(
    ("fault", "ranks", "flags", "environment", "names"),
    [
        ("corrupt 1 6", 3, ("--reconstruct", "replicate"), {}, "rank 1 differ"),
        ("corrupt 2 6", 4, (), NODES, "rank 2 and rank 3 differ"),
    ],
)
def test_a_replica_that_differs_is_named(
    tmp_path: Path,
    alone: dict[str, str],
    fault: str,
    ranks: int,
    flags: Sequence[object],
    environment: dict[str, str],
    names: str,
) -> None:
    run = Disturbed(tmp_path, fault, "--check-every", 1, *flags, ranks=ranks, **environment)
    found = run.ended()
    assert found.status == 2
    assert found.err.count("\n") == 1
    assert f"the weights of {names} from the others' after step 7, expected the same bits everywhere" in found.err
    run.goes_on(0, alone["independent"])


@pytest.mark.parametrize(
    ("fault", "ranks", "flags", "environment"),
    [("corrupt 1 6", 2, ("--reconstruct", "replicate"), {}), ("corrupt 2 6", 4, (), NODES)],
)
def test_a_replica_that_differs_is_put_right(
    tmp_path: Path,
    alone: dict[str, str],
    fault: str,
    ranks: int,
    flags: Sequence[object],
    environment: dict[str, str],
) -> None:
    """From the journal; what was sent in the step of the fault was right, so the run comes to the usual weights."""
    run = Disturbed(
        tmp_path, fault, "--check-every", 1, "--on-divergence", "resync", *flags, ranks=ranks, **environment
    )
    found = run.at_fault().ended()
    assert (found.status, found.err) == (0, "")
    assert sha(run.run) == alone["independent"]
    assert verified(run.run)


def test_checkpoints_between_two_checks_are_right(tmp_path: Path) -> None:
    """Rank 0, which writes them, is wrong after step 7, the checkpoint comes after step 9, the check after step 10."""
    flags = ("--reconstruct", "replicate", "--check-every", 5, "--on-divergence", "resync")
    run = Disturbed(tmp_path, "corrupt 0 6", *flags)
    found = run.at_fault().ended()
    assert (found.status, found.err) == (0, "")
    assert verified(run.run)


def test_without_checks_a_replica_that_differs_goes_unnoticed(tmp_path: Path, alone: dict[str, str]) -> None:
    """Which is why they are there."""
    run = Disturbed(tmp_path, "corrupt 1 6", "--reconstruct", "replicate", ranks=2)
    assert run.at_fault().ended().status == 0
    assert sha(run.run) != alone["independent"]


# What is wrong is said once.


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--net", "nosuch"), "network 'nosuch' is unknown"),
        (("--nosuch",), "error: unrecognized arguments: --nosuch"),
        (("--dims", D + 1), f"d = {D + 1}, expected 1 <= d <= {D}"),
        (("--out", "file/run"), "file/run cannot be made (Not a directory)"),
        (("--data", "mnist", "--net", "mlp:784-10", "--data-dir", "nosuch"), "the data folder nosuch does not exist"),
    ],
)
def test_bad_input_is_said_once(tmp_path: Path, flags: Sequence[object], words: str) -> None:
    (tmp_path / "file").touch()
    found = job(2, (*TRAIN, *SIXTEEN, "--out", "run", *flags), tmp_path).ended()
    assert (found.status, found.out) == (2, "")
    said = [line for line in found.err.splitlines() if not line.startswith("usage: ")]
    assert len(said) == 1
    assert words in said[0]
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_refused_once(tmp_path: Path, table: Table, alone: dict[str, str]) -> None:
    folder = table(0, "one node")[0] / "independent"
    found = job(2, (*TRAIN, *SIXTEEN, "--out", folder), tmp_path).ended()
    assert (found.status, found.out) == (2, "")
    assert found.err.count("\n") == 1
    assert f"{folder} holds a run already" in found.err
    assert sha(folder) == alone["independent"]


@pytest.mark.parametrize("name", ["seed", "steps", "check-every"])
def test_ranks_with_different_flags_are_refused(name: str, tmp_path: Path) -> None:
    """Also where only the number of exchanges differs, for which one would wait for ever."""
    one = [sys.executable, *map(str, (*TRAIN, *SIXTEEN, "--out", "run", f"--{name}"))]
    found = Job([*launcher(1)[:3], *one, "2", ":", "-n", "1", *one, "3"], tmp_path).ended()
    words = f"({name.replace('-', '_')}), expected the same: give all ranks the same flags"
    assert found == (2, "", f"rbd_ref.train: rank 1 has another configuration than rank 0 {words}\n")
    assert not (tmp_path / "run").exists()


def test_help_is_printed_once(tmp_path: Path) -> None:
    found = job(2, (*TRAIN, "--help"), tmp_path).ended()
    assert (found.status, found.err) == (0, "")
    assert found.out.count("usage: python -m rbd_ref.train") == 1


@pytest.mark.parametrize(("redirected", "bars"), [("", 1), (" 2>errors", 0)])
def test_there_is_one_progress_bar_one_summary_and_one_folder(tmp_path: Path, redirected: str, bars: int) -> None:
    """Where the launcher's stderr is a terminal; without --out the folder is a new one."""
    master, slave = pty.openpty()
    flags = [part for part in SIXTEEN if part != "--quiet"]
    words = shlex.join([*launcher(2), *TRAIN, *map(str, flags)]) + redirected
    started = Job(["bash", "-c", words], tmp_path, terminal=slave)
    assert started.ended().status == 0
    os.close(slave)
    text = os.read(master, 2**16).decode()
    os.close(master)
    assert sum("100%|" in line for line in text.split("\n")) == bars
    assert ("%|" in text) == bool(bars)
    assert ("\r" in text.replace("\r\n", "")) == bool(bars)
    assert text.count("run folder") == 2  # at the beginning and in the summary
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["digits-mlp-64-10-rbd-1"]


# The library and the machine.


def test_a_launcher_that_is_not_the_librarys_is_said(tmp_path: Path) -> None:
    """It says that it started 4 processes, and MPI knows of 1."""
    found = job(0, (*TRAIN, *SIXTEEN, "--out", "run"), tmp_path, PMI_SIZE="4").ended()
    assert (found.status, found.out, found.err.count("\n")) == (2, "", 1)
    assert found.err.startswith("rbd_ref.train: the launcher started 4 processes and MPI sees 1, expected the same")
    assert not (tmp_path / "run").exists()


def test_a_missing_mpi4py_is_said(tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("raise ImportError('there is no mpi4py')\n")
    found = job(1, (*TRAIN, *SIXTEEN, "--out", "run"), tmp_path, PYTHONPATH=str(tmp_path)).ended()
    assert (found.status, found.out, found.err.count("\n")) == (2, "", 1)
    assert found.err.startswith("rbd_ref.train: MPI cannot be loaded (there is no mpi4py), expected mpi4py")


def test_without_a_launcher_mpi4py_is_not_imported(table: Table, alone: dict[str, str]) -> None:
    assert len(alone) == len(RUNS)
    assert [values["has_mpi4py"] for values in reports(table(0, "one node")[0] / "reports")] == [False]


def test_sixteen_ranks_start_no_threads_for_kernels(table: Table) -> None:
    found = reports(table(16, "one node")[0] / "reports")
    assert [values["rank"] for values in found] == list(range(16))
    assert {values["threads_of_kernels"] for values in found} == {max(1, cores() // 16)}
    if cores() < 32:
        assert [values["threads_after"] for values in found] == [values["threads_before"] for values in found]


def test_kernels_are_compiled_by_one_rank_of_a_node(tmp_path: Path) -> None:
    """The other waits, and loads them."""
    (tmp_path / "reports").mkdir()
    more = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "RBD_TEST_REPORT": str(tmp_path / "reports")}
    found = job(2, (DRIVER, "one", *SIZE, "--exchange", "split", "--out", "run"), tmp_path, **more).ended(3 * LONG)
    assert (found.status, found.err) == (0, "")
    first, second = reports(tmp_path / "reports")
    assert {"rbd_ref.kernels.operations.project", "rbd_ref.kernels.operations.reconstruct"} <= set(first["compiled"])
    assert second["compiled"] == []
    assert "rbd_ref.kernels.operations.project" in second["loaded"]


def test_compiling_may_take_longer_than_a_step(tmp_path: Path) -> None:
    """--timeout is for steps; the others wait for the rank that compiles as long as it takes."""
    started = Disturbed(tmp_path, "late 0 rehearsal", "--timeout", 2, ranks=2)
    found = started.at_fault().ended()
    assert (found.status, found.err) == (0, "")


# From Python.


def fitted(ranks: int, what: str, folder: Path) -> tuple[Outcome, list[list[str]]]:
    """How a script ended that trains from Python, and the lines that each rank left."""
    folder.mkdir(exist_ok=True)
    found = job(ranks, (FIT, what), folder).ended()
    return found, [path.read_text().splitlines() for path in sorted(folder.glob("rank-*.txt"))]


def test_fit_on_ranks_gives_the_bits_of_one_process(tmp_path: Path) -> None:
    """Twice in one script; every rank has weights and losses, and the folder is named to all."""
    found, alone = fitted(0, "twice", tmp_path / "alone")
    assert found.status == 0, found.text
    found, lines = fitted(3, "twice", tmp_path / "ranks")
    assert (found.status, found.err) == (0, ""), found.text
    assert len(lines) == 3
    assert {tuple(rank[0].split()[:2]) for rank in lines} == {tuple(alone[0][0].split()[:2])}
    assert {rank[0].split()[2] for rank in lines} == {str(tmp_path / "ranks" / "run")}


def test_a_callback_on_one_rank_stops_all_after_the_same_step(tmp_path: Path) -> None:
    found, lines = fitted(3, "stopped", tmp_path)
    assert found.status == 0, found.text
    assert len(lines) == 3
    assert {tuple(rank[0].split()) for rank in lines} == {("6", "128", lines[0][0].split()[2])}


def test_a_mistake_can_be_caught_on_all_ranks(tmp_path: Path) -> None:
    found, lines = fitted(2, "mistaken", tmp_path)
    assert (found.status, found.err) == (0, ""), found.text
    assert ["expected" in rank[0] and len(rank) == 2 for rank in lines] == [True, True]


def test_a_problem_that_fails_on_one_rank_ends_all(tmp_path: Path) -> None:
    found, _ = fitted(3, "failing", tmp_path)
    assert found.status != 0
    assert "rank 2: Traceback" in found.err
    assert "ZeroDivisionError: a fault of the problem's own" in found.err
    assert "ZeroDivisionError" in (tmp_path / "run" / "faults.log").read_text()
