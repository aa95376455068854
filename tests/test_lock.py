"""One process writes to a run's folder, and who comes second is told who that is."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import rbd_ref
from rbd_ref import replay
from rbd_ref.report import page
from rbd_ref.runs.files import RunError
from rbd_ref.runs.folder import Run
from rbd_ref.runs.lock import FolderLock
from run_tools import TINY, experiment_of, journal_reaches, resumed, sha, started, status, trained, wait_until
from tools import run_python

LONG = (*TINY, "--family", "sparse", "--epochs", "100000", "--checkpoint-every", "100000", "--eval-every", "100000")


def held_elsewhere(folder: Path) -> subprocess.Popen[str]:
    """A process that holds the lock of a folder until it is killed."""
    script = (
        "import sys, time; from pathlib import Path; from rbd_ref.runs.lock import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(100)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_is_told_who_the_first_is(tmp_path: Path) -> None:
    process = held_elsewhere(tmp_path)
    try:
        with pytest.raises(RunError) as caught:
            FolderLock(tmp_path)
    finally:
        process.kill()
        process.communicate()
    sentence = str(caught.value)
    assert f"is being written by process {process.pid} on {socket.gethostname()} since 2" in sentence
    assert "\n" not in sentence


def locked_by_hand(folder: Path) -> int:
    """The lock as it is for a moment: taken, and its holder not yet in the file."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def test_a_holder_that_has_not_yet_given_its_name_is_waited_for(tmp_path: Path) -> None:
    handle = locked_by_hand(tmp_path)
    timer = threading.Timer(0.2, os.write, [handle, b'{"host": "there", "pid": 5, "since": "now"}'])
    timer.start()
    with pytest.raises(RunError, match="is being written by process 5 on there since now"):
        FolderLock(tmp_path)
    timer.join()
    os.close(handle)


def test_a_holder_that_goes_meanwhile_is_no_obstacle(tmp_path: Path) -> None:
    handle = locked_by_hand(tmp_path)
    timer = threading.Timer(0.2, lambda: ((tmp_path / "lock").unlink(), os.close(handle)))
    timer.start()
    FolderLock(tmp_path).release()
    timer.join()


def test_a_lock_whose_holder_is_dead_is_no_obstacle(tmp_path: Path) -> None:
    process = held_elsewhere(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (tmp_path / "lock").exists()
    FolderLock(tmp_path).release()
    assert not (tmp_path / "lock").exists()


def test_a_lock_in_the_same_process_counts_too(tmp_path: Path) -> None:
    first = FolderLock(tmp_path)
    with pytest.raises(RunError, match=f"by process {os.getpid()} on"):
        FolderLock(tmp_path)
    first.release()
    FolderLock(tmp_path).release()


def test_of_many_that_come_at_once_one_at_a_time_has_it(tmp_path: Path) -> None:
    """Though the file is removed at each release: nobody holds a file that has no name any more."""
    inside, most, refused = [0], [0], [0]

    def work() -> None:
        for _ in range(200):
            try:
                lock = FolderLock(tmp_path)
            except RunError:
                refused[0] += 1
                continue
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            inside[0] -= 1
            lock.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert refused[0] < 800


def no_flock(*_: object) -> None:
    raise OSError(errno.ENOTSUP, "no locks here")


@pytest.mark.parametrize(
    ("holder", "free"),
    [
        ({}, True),
        ({"host": socket.gethostname(), "pid": 2**22 + 1, "since": "then"}, True),
        ({"host": socket.gethostname(), "pid": os.getpid(), "since": "then"}, False),
        ({"host": "elsewhere", "pid": 2**22 + 1, "since": "then"}, False),
    ],
)
def test_without_locks_of_the_system_the_file_stands_for_it(
    holder: dict[str, object], free: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", no_flock)
    if holder:
        (tmp_path / "lock").write_text(json.dumps(holder))
    if free:
        FolderLock(tmp_path).release()
        return
    with pytest.raises(RunError, match=r"since then, expected nobody: .* or remove .*lock if it is gone"):
        FolderLock(tmp_path)
    assert json.loads((tmp_path / "lock").read_text()) == holder


def test_a_folder_that_cannot_be_locked_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(RunError, match="cannot be written"):
        FolderLock(tmp_path)


# Runs.


@pytest.mark.compiled
def test_two_that_resume_one_run(tmp_path: Path) -> None:
    """The second ends with status 2, the first goes on, and the journal stays whole; readers may read meanwhile."""
    run = Run(tmp_path / "run")
    process = started(*LONG, "--quiet", "--out", run.folder)
    try:
        assert wait_until(journal_reaches(run, 2000), process)
        for flags in (("--resume",), ("--data", "digits")):
            second = run_python("-m", "rbd_ref.train", *flags, "--out", str(run.folder))
            assert second.returncode == 2
            assert f"is being written by process {process.pid} on" in second.stderr
            assert second.stderr.count("\n") == 1
        assert status([run.folder, "--step", "3"], replay.main) == 0
        assert "not finished" in page.build([run.folder])
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not (run.folder / "lock").exists()
    steps = len(rbd_ref.open_run(run.folder).history.losses)
    assert experiment_of(run).steps > steps > 10
    assert status([run.folder, "--verify"], replay.main) == 0


def test_the_lock_is_gone_after_a_run_and_after_a_refusal(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", *TINY, "--family", "sparse", "--steps", "2")
    assert not (run.folder / "lock").exists()
    assert status([*TINY, "--quiet", "--out", run.folder]) == 2  # it holds a run
    assert not (run.folder / "lock").exists()
    whole = trained(tmp_path / "whole", *TINY, "--family", "sparse", "--steps", "3")
    assert sha(resumed(run, "--steps", "3")) == sha(whole)
