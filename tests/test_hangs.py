"""No rank waits for ever: whatever happens to one of them, at any moment, all are gone soon and one says who it was.

Real processes under mpiexec. `make torture` tries every moment with every kind of fault; here are those that broke
once, or that are each the only one of their kind.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpi_tools import DRIVER, FAULT_SITE, TRAIN, Outcome, job, launcher, poll, require_mpi, sha, verified
from rbd_mpi.memory import check_room
from rbd_mpi.start import requested_timeout
from rbd_mpi.watcher import SEGMENTS, SHARED, Member, Roll, mapped, remove_segments
from rbd_ref.runs.files import RunError

pytestmark = pytest.mark.compiled

TIMEOUT = 4
SOON = 15.0  # seconds after the timeout in which all ranks are gone
FLAGS = ("--net", "mlp:64-10", "--dims", 20, "--batch-size", 8, "--steps", 12, "--workers", 3, "--quiet")
EARLY = ("python", "init", "import")  # before a rank trains: in fault_site/sitecustomize.py


@pytest.fixture(scope="session", autouse=True)
def mpi(tmp_path_factory: pytest.TempPathFactory) -> None:
    """MPI is here and works."""
    require_mpi(tmp_path_factory.mktemp("probe"))


def segments() -> set[Path]:
    """Those that nobody maps: other tests run at the same time."""
    return set(SHARED.glob(SEGMENTS)) - mapped()


def rolls() -> set[Path]:
    return set(Path("/tmp").glob("rbd_ref-*-roll-*"))


def disturbed(fault: str, folder: Path, ranks: int = 3) -> tuple[Outcome, float]:
    """How a run ends in which this happens to one of its ranks, and how many seconds after it."""
    early = fault.split()[-1] in EARLY
    command = TRAIN if early else (DRIVER, "one")
    mark = folder / "reached"
    more = {"RBD_TEST_FAULT": fault, "RBD_TEST_REACHED": str(mark), **({"PYTHONPATH": FAULT_SITE} if early else {})}
    started = job(ranks, (*command, *FLAGS, "--timeout", TIMEOUT, "--out", folder / "run"), folder, **more)
    started.until(mark.exists, "the fault")
    found = started.ended()
    return found, time.time() - mark.stat().st_mtime


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("exit0 1 python", 9, "rank 1 did not start MPI after 4 s, expected every rank in "),
        ("sleep 2 init", 9, "rank 2 "),
        ("exit 1 init", 9, "rank 1 has ended before MPI was started"),
        ("raise 1 import", 1, "rank 1 has ended before its training did: all ranks end"),
        ("exit0 2 import", 1, "rank 2 has ended before its training did: all ranks end"),
        ("sleep 1 import", 9, "rank 1 does nothing for 4 s while its modules are imported"),
        ("vanish 1 5", 9, "rank 1 has ended in its training"),
        ("stop 1 turns", 9, "rank 1 does nothing after 4 s, expected every rank in MPI_Win_allocate_shared"),
        ("sleep 1 allocate", 9, "rank 1 does nothing after 4 s, expected every rank in MPI_Win_allocate_shared"),
        ("stop 2 allocate", 9, "rank 2 does nothing after 4 s, expected every rank in MPI_Win_allocate_shared"),
        ("exit0 1 close", 1, "rank 1 was left by exit with status 0"),
        ("sleep 1 finalize", 9, "rank 1 "),
    ],
)
def test_all_ranks_are_gone_soon(fault: str, status: int, words: str, tmp_path: Path) -> None:
    before = segments(), rolls()
    found, seconds = disturbed(fault, tmp_path)
    assert seconds < TIMEOUT + SOON
    assert found.status == status, found.text
    said = [line for line in found.err.splitlines() if line.startswith("rbd_ref.train: ")]
    assert len(said) == 1, found.text
    assert said[0].startswith(f"rbd_ref.train: {words}"), found.text
    assert poll(lambda: segments() <= before[0], SOON)
    assert poll(lambda: rolls() <= before[1], SOON)


def test_a_run_that_was_ended_by_its_watchers_continues(tmp_path: Path) -> None:
    found, _ = disturbed("sleep 1 allocate", tmp_path, ranks=2)
    assert "rank 1 does nothing" in (tmp_path / "run" / "faults.log").read_text(), found.text
    alone = job(0, (*TRAIN, *FLAGS, "--out", tmp_path / "alone"), tmp_path).ended()
    resumed = job(2, (*TRAIN, "--resume", "--quiet", "--out", tmp_path / "run"), tmp_path).ended()
    assert (alone.status, resumed.status) == (0, 0), resumed.text
    assert sha(tmp_path / "run") == sha(tmp_path / "alone")
    assert verified(tmp_path / "run")


def test_a_script_that_fails_before_it_trains(tmp_path: Path) -> None:
    """Its rank never starts MPI; the others, in `fit`, are ended by their watchdogs."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, rbd_ref\n"
        "if os.environ['PMI_RANK'] == '1': raise SystemExit(0)\n"
        "rbd_ref.fit(rbd_ref.Config(dims=5, steps=3))\n"
    )
    found = job(2, (script, "--timeout", TIMEOUT), tmp_path).ended()
    assert found.status == 9
    assert "rank 1 did not start MPI after 4 s" in found.err


# Shared memory.


def in_small_memory(megabytes: int, *command: object) -> subprocess.CompletedProcess[str]:
    """A command whose /dev/shm has this size."""
    if not shutil.which("unshare"):
        pytest.skip("there is no unshare to give a process a /dev/shm of its own")
    words = f'mount -t tmpfs -o size={megabytes}m tmpfs /dev/shm && exec "$@"'
    found = subprocess.run(
        ["unshare", "-m", "bash", "-c", words, "bash", *map(str, command)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "unshare failed" in found.stderr or "permission denied" in found.stderr.lower():
        pytest.skip(f"no /dev/shm of one's own can be mounted: {found.stderr.strip()}")
    return found


def test_too_little_shared_memory_for_mpi(tmp_path: Path) -> None:
    """Sixteen ranks in Docker's 64 MB: one sentence, where MPICH would crash."""
    found = in_small_memory(64, *launcher(16), *TRAIN, *FLAGS, "--out", tmp_path / "run")
    assert found.returncode == 2, found.stderr
    assert found.stderr.count("\n") == 1, found.stderr
    assert (
        "/dev/shm has 67 MB free, expected 98 MB for 16 ranks of MPI: enlarge it (Docker: --shm-size 1g)"
        in found.stderr
    )
    assert not (tmp_path / "run").exists()


def test_too_little_shared_memory_for_the_weights(tmp_path: Path) -> None:
    """MPI starts, and the weights do not fit."""
    flags = ("--net", "mlp:64-32000-10", "--dims", 2, "--steps", 2, "--quiet", "--family", "sparse")
    found = in_small_memory(24, *launcher(2), *TRAIN, *flags, "--out", tmp_path / "run")
    assert found.returncode == 2, found.stderr
    said = [line for line in found.stderr.splitlines() if line.startswith("rbd_ref.train: ")]
    assert len(said) == 1, found.stderr
    assert "MB for what the ranks of a node share: enlarge it (Docker: --shm-size 1g)" in said[0]


def test_too_little_shared_memory_for_what_is_sent(tmp_path: Path) -> None:
    """Two gradients of 10 MB: ranks send them to each other, as where there are no nodes."""
    flags = ("--net", "mlp:64-32000-10", "--method", "sgd", "--workers", 2, "--steps", 2, "--quiet")
    alone = job(0, (*TRAIN, *flags, "--out", tmp_path / "alone"), tmp_path).ended()
    assert alone.status == 0, alone.text
    flags = (*flags, "--reconstruct", "replicate", "--out", tmp_path / "run")
    found = in_small_memory(24, *launcher(2), *TRAIN, *flags)
    assert (found.returncode, found.stderr) == (0, "")
    assert sha(tmp_path / "run") == sha(tmp_path / "alone")


def test_room_in_shared_memory() -> None:
    check_room(1)
    with pytest.raises(RunError, match=r"expected 1000000000000\.0 MB for what the ranks of a node share"):
        check_room(10**18)


# What is left behind.


def test_ranks_and_watchers_that_are_killed_at_once_leave_no_shared_memory(tmp_path: Path) -> None:
    """Its names are taken away as soon as all ranks have it."""
    before = segments()
    mark = tmp_path / "reached"
    more = {"RBD_TEST_FAULT": "sleep 1 5", "RBD_TEST_REACHED": str(mark)}
    started = job(2, (DRIVER, "one", *FLAGS, "--out", tmp_path / "run"), tmp_path, **more)
    started.until(mark.exists, "the fifth step")
    assert started.has_loaded("mpich_shm_")
    assert poll(lambda: segments() <= before, SOON)
    for pid in started.processes:
        os.kill(pid, signal.SIGKILL)
    started.ended()


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A file that could be a segment of MPICH's."""
    path = SHARED / f"mpich_shm_test-{os.getpid()}_0"
    path.write_bytes(bytes(4096))
    return path


def test_segments_that_nobody_maps_are_removed(segment: Path) -> None:
    now = time.time()
    remove_segments(0, now - 100)
    assert segment.exists(), "it is too young"
    remove_segments(now + 100, now + 200)
    assert segment.exists(), "it is too old"
    holder = "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(segment)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        remove_segments(now - 100, now + 100)
        assert segment.exists(), "somebody maps it"
        process.kill()
    remove_segments(now - 100, now + 100)
    assert not segment.exists()


def test_a_start_removes_what_a_kill_left_long_ago(tmp_path: Path, segment: Path) -> None:
    """Ranks and watchers killed at once leave it; here a file whose time is long past."""
    clock = "import time; true = time.time; time.time = lambda: true() + 1000\n"
    (tmp_path / "sitecustomize.py").write_text(clock)
    command = (*TRAIN, *FLAGS, "--steps", 1, "--out", tmp_path / "run")
    found = job(1, command, tmp_path, PYTHONPATH=str(tmp_path)).ended()
    assert found.status == 0, found.text
    assert not segment.exists()


# Parts.


def test_one_of_a_node_speaks(tmp_path: Path) -> None:
    first = Roll.open(str(tmp_path / "roll"))
    second = Roll.open(str(tmp_path / "roll"))
    assert [roll.claim() for roll in (second, first, second)] == [True, False, False]


def test_members_of_a_roll(tmp_path: Path) -> None:
    roll = Roll.open(str(tmp_path / "roll"))
    assert (roll.members(), roll.verdict) == ({}, 0)
    roll.enter(3, Member(77, 2))
    roll.verdict = 2
    other = Roll.open(str(tmp_path / "roll"))
    assert (other.members(), other.verdict) == ({3: Member(77, 2)}, 2)


def test_a_roll_is_no_link(tmp_path: Path) -> None:
    """Anybody can make one in the temporary directory."""
    (tmp_path / "roll").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        Roll.open(str(tmp_path / "roll"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["x"], 600), (["x", "--timeout", "7"], 7), (["x", "--timeout=2.5"], 2.5), (["x", "--timeout"], 600)],
)
def test_the_timeout_before_flags_are_parsed(
    arguments: list[str], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert requested_timeout() == expected


def test_a_watcher_that_was_killed_is_no_harm(tmp_path: Path) -> None:
    """The run goes on without it."""
    mark = tmp_path / "reached"
    more = {"RBD_TEST_FAULT": "late 1 5", "RBD_TEST_REACHED": str(mark)}
    started = job(2, (DRIVER, "one", *FLAGS, "--out", tmp_path / "run"), tmp_path, **more)
    started.until(mark.exists, "the fifth step")
    watchers = [pid for pid in started.processes if "watcher.py" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(watchers) == 2
    for pid in watchers:
        os.kill(pid, signal.SIGKILL)
    found = started.ended()
    assert (found.status, found.err) == (0, "")
