"""The command: runs that are killed, stopped, cut short and gone on with end with the weights of those that were not;
what is wrong is said in one sentence; and what is shown meanwhile."""

from __future__ import annotations

import gzip
import os
import random
import re
import resource
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpi_tools import DRIVER, SOON, job
from rbd_ref import replay, train
from rbd_ref.runs import folder as runs
from rbd_ref.runs import presets
from rbd_ref.runs.config import RATES
from rbd_ref.runs.folder import Run
from rbd_ref.runs.journal import START
from rbd_ref.runs.layouts import CHAIN
from rbd_ref.runs.lock import FolderLock
from rbd_ref.training.command import stop_on_signals
from run_tools import (
    TINY,
    contents,
    copied,
    experiment_of,
    journal_reaches,
    lines,
    one_line,
    refused,
    result,
    resumed,
    sha,
    small_disk,
    started,
    status,
    suited,
    trained,
    unfinished,
    wait_until,
    whole_names,
)
from test_data import IDX
from test_progress import on_pipe, on_terminal, screen
from tools import run_python

QUICK = (*TINY, "--family", "sparse", "--epochs", "2")
FLAGS = (
    *("--data", "--data-dir", "--net", "--method", "--dims", "--compartments", "--family", "--normalize", "--redraw"),
    *("--lr", "--epochs", "--steps", "--batch-size", "--seed", "--augment", "--workers", "--backend", "--switch"),
    *("--eval-every", "--keep", "--out", "--resume", "--quiet"),
)


def replays(run: Run) -> bool:
    """Whether the whole run repeats."""
    return status([run.folder, "--verify"], replay.main) == 0


# Kill -9.


SMALL = ("--net", "mlp:64-16-10", "--dims", "20", "--log-every", "1", "--checkpoint-every", "1", "--eval-every", "9")
EPOCHS = (*SMALL, "--batch-size", "100", "--epochs", "12")  # of 12 steps
WRITES = (*SMALL, "--batch-size", "1203", "--epochs", "60")  # of one step: a checkpoint after each
KINDS = {
    "rbd": EPOCHS,
    "rbd-writes": WRITES,
    "srht-momentum-writes": (*WRITES, "--family", "srht", "--momentum", "0.5"),
    "sgd": suited(*EPOCHS, "--method", "sgd"),
    "sgd-momentum": suited(*EPOCHS, "--method", "sgd", "--momentum", "0.9", "--lr", "0.05"),
    "sgd-momentum-writes": suited(*WRITES, "--method", "sgd", "--momentum", "0.9", "--lr", "0.05"),
    "fpd-adam": (*EPOCHS, "--method", "fpd", "--optimiser", "adam", "--lr", "0.05"),
    "fpd-momentum-writes": (*WRITES, "--method", "fpd", "--momentum", "0.9", "--lr", "0.5"),
    "switch": (*EPOCHS, "--momentum", "0.5", "--switch", "3:sgd:0.1", "--switch", "6:fpd:1", "--switch", "9:rbd:1"),
    "three-workers": (*EPOCHS, "--workers", "3", "--exchange", "split", "--epochs", "30"),
}


def killed(run: Run, flags: Sequence[object], size: float, pause: float) -> bool:
    """Start the run (again) and kill it when its journal has this size and a moment has passed, if it still runs."""
    with started(*flags, "--quiet", "--out", run.folder) as process:
        if alive := wait_until(journal_reaches(run, size), process):
            time.sleep(pause)
            process.kill()
        out, err = process.communicate()
    assert (out, err) == ("", ""), err
    assert process.returncode in ((-signal.SIGKILL, 0) if alive else (0,))
    return process.returncode == -signal.SIGKILL


def half_written(run: Run) -> bool:
    """Whether a kill has left a part of a file."""
    journal = runs.journal_of(run, run.config())
    cut = sum(1 for _ in journal.records()) >= 0 and journal.torn > 0
    line = run.metrics.is_file() and run.metrics.read_bytes()[-1:] not in (b"", b"\n")
    return cut or line or any(run.folder.rglob(".*.part"))


def kill_and_resume(name: str, folder: Path, whole: Run) -> tuple[int, int, str]:
    """How often the run was killed until its end, how often while it wrote, and what is wrong with the end."""
    chance, run, size = random.Random(name), Run(folder), whole.journal.stat().st_size
    times, halves, flags = 0, 0, KINDS[name]
    for place in sorted(chance.uniform(START, size) for _ in range(2 if "writes" in name else 1)):
        times += killed(run, flags, place, chance.uniform(0, 0.004))
        halves, flags = halves + half_written(run), ("--resume",)
    assert not killed(run, flags, float("inf"), 0)
    wrong = [] if sha(run) == sha(whole) else ["other weights"]
    wrong += [] if run.journal.read_bytes() == whole.journal.read_bytes() else ["another journal"]
    known = {line["step"]: line["sha256"] for line in lines(whole, "checkpoint")}
    wrong += ["another checkpoint" for line in lines(run, "checkpoint") if known[line["step"]] != line["sha256"]]
    return times, halves, f"{name}: {wrong}" if wrong else ""


@pytest.mark.compiled
def test_runs_that_are_killed_end_with_the_same_weights(tmp_path: Path) -> None:
    """Each kind at any moment, once or twice, also while it writes, two at a time; `make torture` kills many more."""
    whole = {name: trained(tmp_path / "whole" / name, *flags) for name, flags in KINDS.items()}
    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(kill_and_resume, name, tmp_path / name, run) for name, run in whole.items()]
        found = [task.result() for task in tasks]
    assert [wrong for _, _, wrong in found if wrong] == []
    assert all(times > 0 for times, _, _ in found)
    print(f"{sum(t for t, _, _ in found)} kills of 10 runs, {sum(h for _, h, _ in found)} left a file half written")


# Files that a crash has torn, without a process.


def torn(run: Run, chance: random.Random) -> Run:
    """As a machine might leave it: cut anywhere after the journal's head, with parts of files that were to be."""
    unfinished(run, chance.randint(START, run.journal.stat().st_size))
    os.truncate(run.metrics, chance.randint(0, run.metrics.stat().st_size))
    for path in run.checkpoints:
        if chance.random() < 0.4:
            path.unlink()
    (run.folder / "checkpoints" / ".step-00000004.npz.123-0123abcd.part").write_bytes(b"PK half")
    (run.folder / f".result.json.{os.getpid()}-00000000.part").write_bytes(b"{")
    return run


def check_torn(whole: Run, folder: Path, seeds: range) -> None:
    times = {"seconds": 0, "images_per_second": 0}
    for seed in seeds:
        run = resumed(torn(copied(whole, folder / str(seed)), random.Random(seed)))
        assert sha(run) == sha(whole)
        assert run.journal.read_bytes() == whole.journal.read_bytes()
        assert result(run) | times == result(whole) | times
        assert run.config() == whole.config()
        steps = [values["step"] for values in lines(run, "step")]
        assert steps == sorted(set(steps))  # none twice
        assert [name for name in whole_names(run.folder) if name.endswith(".part")] == []


KILLED = """
import os, sys
import numpy as np
from rbd_ref import train
true = np.savez

def savez(out, **arrays):
    true(out, **arrays)
    out.flush()
    os.kill(os.getpid(), 9)

np.savez = savez
train.main(sys.argv[1:])
"""


@pytest.mark.compiled
def test_what_a_kill_leaves_of_a_checkpoint_goes_when_the_run_goes_on(whole: Run, tmp_path: Path) -> None:
    """And nothing else, whatever it is called; nor anything where another process has the folder."""
    flags = [*map(str, (*QUICK, "--log-every", "1", "--quiet", "--out", tmp_path / "run"))]
    assert run_python("-c", KILLED, *flags).returncode == -signal.SIGKILL
    run = Run(tmp_path / "run")
    left = [name for name in whole_names(run.folder) if name.endswith(".part")]
    assert len(left) == 1
    assert left[0].startswith("checkpoints/.step-00000003.npz.")
    others = [
        run.folder / name
        for name in (".mine.part", ".mine.12-00.part", "x.12-0123abcd.part", "data/.f.1-0123abcd.part")
    ]
    others[-1].parent.mkdir()
    for path in others:
        path.touch()
    lock = FolderLock(run.folder)
    assert status(["--resume", "--quiet", "--out", run.folder]) == 2
    lock.release()
    assert (run.folder / left[0]).exists()
    assert sha(resumed(run)) == sha(whole)
    assert not (run.folder / left[0]).exists()
    assert all(path.exists() for path in others)


# How many checkpoints are kept.


@pytest.mark.compiled
@pytest.mark.parametrize(("flags", "kept"), [((), 3), (("--keep", "1"), 2), (("--keep", "0"), 1), (("--keep", "9"), 5)])
def test_checkpoints_that_are_kept(tmp_path: Path, flags: tuple[str, ...], kept: int) -> None:
    """The last and some before it; the hashes of all, and files of other names, stay."""
    run = trained(tmp_path / "run", *QUICK, "--epochs", "1", *flags)
    foreign = run.folder / "checkpoints" / "step-000000001.npz"
    foreign.touch()
    resumed(run, "--epochs", "5")
    foreign.unlink()
    steps = [3, 6, 9, 12, 15]
    assert [runs.step_of(path) for path in run.checkpoints] == steps[-kept:]
    assert [line["step"] for line in lines(run, "checkpoint")] == steps
    assert status([run.folder, "--verify"], replay.main) == 0
    assert status([run.folder, "--step", "2"], replay.main) == 0
    whole = sha(run)
    assert sha(resumed(unfinished(run, run.journal.stat().st_size - 1))) == whole


def test_the_last_checkpoint_goes_when_the_next_is_whole(tmp_path: Path) -> None:
    """A kill while it is written leaves the one before."""
    run = trained(tmp_path / "run", *QUICK, "--epochs", "1", "--keep", "0")
    flags = [*map(str, ("--resume", "--epochs", "2", "--quiet", "--out", run.folder))]
    assert run_python("-c", KILLED, *flags).returncode == -signal.SIGKILL
    assert [runs.step_of(path) for path in run.checkpoints] == [3]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of six steps, two epochs."""
    return trained(tmp_path_factory.mktemp("train") / "run", *QUICK, "--log-every", "1")


def test_torn_files(whole: Run, tmp_path: Path) -> None:
    check_torn(whole, tmp_path, range(2))


@pytest.mark.compiled
@pytest.mark.parametrize(
    "flags",
    [
        ("--method", "sgd", "--momentum", "0.5"),
        ("--momentum", "0.5"),
        ("--method", "fpd", "--optimiser", "adam", "--lr", "0.1"),
        ("--method", "nes-shared-batch"),
        ("--switch", "1:fpd"),
        ("--method", "fpd", "--switch", "1:sgd", "--workers", "2", "--batch-size", "200"),
    ],
)
def test_torn_files_of_every_kind(tmp_path: Path, flags: tuple[str, ...]) -> None:
    check_torn(trained(tmp_path / "whole", *suited(*QUICK, "--log-every", "1", *flags)), tmp_path, range(100, 112))


@pytest.mark.parametrize("size", [None, 0, 39])
def test_a_run_killed_before_its_first_step(made: Run, tmp_path: Path, size: int | None) -> None:
    """Between its configuration and the head of its journal."""
    run = runs.create(tmp_path / "run", made.config())
    if size is not None:
        run.journal.write_bytes(made.journal.read_bytes()[:size])
    assert sha(resumed(run)) == sha(made)
    assert run.journal.read_bytes() == made.journal.read_bytes()


def test_a_run_killed_after_its_last_step(whole: Run, tmp_path: Path) -> None:
    """What it did is not done twice."""
    run = resumed(unfinished(copied(whole, tmp_path / "run")))
    assert run.metrics.read_bytes() == whole.metrics.read_bytes()
    assert sha(run) == sha(whole)


def test_what_a_kill_prevented_is_made_up_for(whole: Run, tmp_path: Path) -> None:
    """A step was journaled, and nothing came after it: its evaluation and its checkpoint follow."""
    run = unfinished(copied(whole, tmp_path / "run"), START + 3 * 72)
    runs.cut_metrics(run, 2)
    for path in run.checkpoints:
        path.unlink()
    resumed(run)
    assert whole_names(run.folder) == whole_names(whole.folder)
    for kind in ("evaluation", "checkpoint"):
        assert [line | {"seconds": 0} for line in lines(run, kind)] == [
            line | {"seconds": 0} for line in lines(whole, kind)
        ]


def test_a_torn_record_and_a_broken_checkpoint_are_said(
    whole: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unfinished(copied(whole, tmp_path / "run"), whole.journal.stat().st_size - 5)
    run.checkpoints[0].write_bytes(b"")
    run.checkpoints[1].unlink()
    capsys.readouterr()
    assert status(["--resume", "--out", run.folder]) == 0
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == f"{run.journal} ends with a torn record of 67 bytes after step 5, which is left out"
    assert second.startswith(f"{run.folder / 'checkpoints' / 'step-00000003.npz'} is no whole checkpoint")
    assert third == f"{run.folder} continues after step 5 of 6"
    assert sha(run) == sha(whole)


def test_a_damaged_journal_is_not_gone_on_with(whole: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named by step and offset, and nothing is changed; what the sentence says to do about it helps."""
    run = unfinished(copied(whole, tmp_path / "run"))
    run.checkpoints[-1].unlink()
    offset = START + 4 * 72
    spoil(run, slice(offset + 30, offset + 31))
    before = contents(run.folder)
    sentence = refused(capsys, ["--resume", "--out", run.folder], f"is damaged at step 4, offset {offset}: ")
    assert contents(run.folder) == before
    (advice,) = re.findall("`(truncate [^`]*)`", sentence)
    subprocess.run(advice.split(), check=True)
    assert sha(resumed(run)) == sha(whole)
    assert replays(run)


def spoil(run: Run, part: slice) -> None:
    """Other bytes in a part of the journal."""
    content = bytearray(run.journal.read_bytes())
    content[part] = bytes(byte ^ 0xFF for byte in content[part])
    run.journal.write_bytes(content)


@pytest.mark.compiled
@pytest.mark.parametrize("flags", [(), ("--switch", "1:sgd"), ("--method", "sgd", "--switch", "1:rbd")])
def test_a_resumption_reads_what_follows_its_checkpoint(
    tmp_path: Path, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """All else may be lost, to the last bytes before it, and the run ends as it would have; --verify finds it out."""
    whole = trained(tmp_path / "whole", *QUICK, "--epochs", "3", *flags)
    layouts = experiment_of(whole).layouts
    run = unfinished(copied(whole, tmp_path / "run"), START + layouts.length(8))
    run.checkpoints[-1].unlink()
    assert len(run.checkpoints) == 2
    spoil(run, slice(START, START + layouts.length(6) - CHAIN))
    capsys.readouterr()
    assert status(["--resume", "--out", run.folder]) == 0
    one_line(capsys.readouterr().err, f"{run.folder} continues after step 8 of 9")
    assert sha(run) == sha(whole)
    words = f"is damaged at step 0, offset {START}: "
    refused(capsys, [run.folder, "--verify"], words, command=replay.main)
    before = whole.journal.read_bytes()[START + layouts.length(6) - CHAIN :]
    assert run.journal.read_bytes().endswith(before)


def test_a_checkpoint_whose_chain_value_is_lost(whole: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Then the one before has to do, and the record before it is read, which is torn."""
    run = unfinished(copied(whole, tmp_path / "run"))
    offset = START + 5 * 72
    spoil(run, slice(offset + 71, offset + 72))
    capsys.readouterr()
    assert status(["--resume", "--out", run.folder]) == 0
    torn, passed, last = capsys.readouterr().err.splitlines()
    assert torn == f"{run.journal} ends with a torn record of 72 bytes after step 5, which is left out"
    assert passed.startswith(f"{run.folder / 'checkpoints' / 'step-00000006.npz'} follows the journal's chain value ")
    assert last == f"{run.folder} continues after step 5 of 6"
    assert sha(run) == sha(whole)
    assert replays(run)


def test_a_journal_that_is_shorter_than_a_checkpoint_says(
    whole: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unfinished(copied(whole, tmp_path / "run"), START + 5 * 72)
    capsys.readouterr()
    assert status(["--resume", "--out", run.folder]) == 0
    passed, last = capsys.readouterr().err.splitlines()
    path = run.folder / "checkpoints" / "step-00000006.npz"
    assert passed.startswith(f"{path} is the state after step 6, expected one that journal.rbd reaches, which has 400 ")
    assert last == f"{run.folder} continues after step 5 of 6"
    assert sha(run) == sha(whole)


def test_a_checkpoint_and_a_journal_that_contradict_each_other(
    whole: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both whole, and of this configuration: nobody can tell which of them was forged, but whoever removes one."""
    run = unfinished(copied(whole, tmp_path / "run"))
    state, *_ = runs.load_checkpoint(run.checkpoints[-1], run.config().digest)
    runs.save_checkpoint(run, state._replace(theta=-state.theta), run.config().digest, bytes(32))
    before = contents(run.folder)
    words = f"{run.checkpoints[-1]} follows the journal's chain value {'00' * 32}, "
    refused(capsys, ["--resume", "--quiet", "--out", run.folder], words, "or remove step-00000006.npz to go by")
    assert contents(run.folder) == before
    run.checkpoints[-1].unlink()
    assert status(["--resume", "--quiet", "--out", run.folder]) == 0
    assert sha(run) == sha(whole)
    assert replays(run)


@pytest.mark.compiled
def test_a_finished_run_can_be_prolonged(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", *QUICK, "--epochs", "1")
    resumed(run, "--epochs", "3")
    assert sha(run) == sha(trained(tmp_path / "whole", *QUICK, "--epochs", "3"))
    assert run.config().epochs == 3
    assert replays(run)


@pytest.mark.compiled
def test_the_time_before_a_resumption_counts(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", *QUICK, "--epochs", "1")
    text = re.sub(r'"seconds": [0-9.e-]+}', '"seconds": 1000.0}', run.metrics.read_text())
    run.metrics.write_text(text)
    assert 1000 < result(resumed(run, "--epochs", "2"))["seconds"] < 1100


# Signals.


@pytest.mark.compiled
@pytest.mark.parametrize(("kind", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_process_that_is_asked_to_stop(tmp_path: Path, kind: signal.Signals, code: int) -> None:
    """It writes a checkpoint of the last step, says how to go on, and can."""
    flags, run = (*EPOCHS, "--epochs", "2000", "--checkpoint-every", "5000"), Run(tmp_path / "run")
    with started(*flags, "--out", run.folder) as process:
        assert wait_until(journal_reaches(run, 5000), process)
        process.send_signal(kind)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code
    step = len(list(runs.journal_of(run, run.config()).records()))
    command = f"python -m rbd_ref.train --resume --out {run.folder}"
    one_line(err, f"stopped by {kind.name} after step {step} of 24000: continue with {command}\n")
    assert [path.name for path in run.checkpoints] == [f"step-{step:08d}.npz"]
    assert run.result() is None
    assert replays(run)
    whole = trained(tmp_path / "whole", *EPOCHS, "--steps", step + 20)
    assert sha(resumed(run, "--steps", step + 20)) == sha(whole)


@pytest.mark.compiled
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_asked_to_stop_while_it_replays(whole: Run, tmp_path: Path, kind: signal.Signals) -> None:
    """It has nothing to write, says so, and can be resumed again."""
    run = unfinished(copied(whole, tmp_path / "run"), START + 5 * 72)
    for path in run.checkpoints:
        path.unlink()
    before = contents(run.folder)
    mark = tmp_path / "reached"
    more = {"RBD_TEST_FAULT": "signal 0 replay", "RBD_TEST_REACHED": str(mark)}
    asked = job(0, (DRIVER, "one", "--resume", "--out", run.folder), tmp_path, **more)
    asked.until(mark.exists, "the replay")
    asked.send(kind)
    sentence = f"stopped by {kind.name} while the journal was replayed, after step 1 of 6: continue with "
    command = "python -m rbd_ref.train --resume --out run\n"  # as it is named from where the command was given
    assert asked.ended(SOON) == (128 + kind, "", sentence + command)
    assert contents(run.folder) == before
    assert sha(resumed(run)) == sha(whole)


def test_a_wish_to_stop_in_this_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same without a process of its own, and the signals mean afterwards what they did before."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    run = Run(tmp_path / "run")
    timer = threading.Thread(target=lambda: stop_after(run))
    timer.start()
    assert status([*QUICK, "--epochs", "100000", "--quiet", "--out", run.folder]) == 143
    timer.join()
    one_line(
        capsys.readouterr().err, "stopped by SIGTERM after step ", " of 300000: continue with python -m rbd_ref.train"
    )
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert len(run.checkpoints) >= 1
    assert run.result() is None


def test_the_second_signal_ends_it_at_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """For who does not want to wait for the end of a step."""
    before = signal.getsignal(signal.SIGTERM)

    def asked_twice(*_: object) -> int:
        with stop_on_signals() as request:
            os.kill(os.getpid(), signal.SIGTERM)
            assert request.reason == signal.SIGTERM
            os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it went on")

    monkeypatch.setattr(train, "run_all", asked_twice)
    assert status(["--steps", "1"]) == 130
    one_line(capsys.readouterr().err, "interrupted; what was completed is kept, continue with --resume")
    assert signal.getsignal(signal.SIGTERM) == before


def stop_after(run: Run) -> None:
    """Ask this process to stop when the run has taken a step."""
    while not journal_reaches(run, START + 1)():
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGTERM)


# Faults on the way.


def test_a_loss_that_is_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Step and rate are named, what was good stays, and the steps that were taken repeat."""
    run, flags = Run(tmp_path / "run"), ("--net", "mlp:64-8-10", "--dims", "3", "--family", "sparse", "--lr", "1e30")
    arguments = [*flags, "--batch-size", "1203", "--epochs", "4", "--eval-every", "9", "--quiet", "--out", run.folder]
    sentence = refused(capsys, arguments, "fails with learning rate 1e+30: the loss of worker 0 is ", "lower --lr")
    (step,) = map(int, re.findall("step (\\d+) fails", sentence))
    assert [int(path.stem[5:]) for path in run.checkpoints] == [*range(1, step + 1)]
    assert run.result() is None
    assert replays(run)


def test_a_last_step_that_overflows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its loss was finite, its weights are not: they are not kept."""
    flags = ("--method", "nes", "--transforms", "raw", "--sigma", "1e-6", "--lr", "1e38", "--steps", "1")
    arguments = [*QUICK, *flags, "--quiet", "--out", tmp_path / "run"]
    refused(capsys, arguments, "step 0 fails with learning rate 1e+38: a weight is not finite after it")
    assert whole_names(tmp_path / "run") == {"config.toml", "journal.rbd"}


def test_weights_that_are_not_finite_at_the_end_of_an_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are not evaluated."""
    flags = ("--method", "nes", "--transforms", "raw", "--sigma", "1e-6", "--lr", "1e38", "--batch-size", "1203")
    arguments = [*QUICK, *flags, "--quiet", "--out", tmp_path / "run"]
    refused(capsys, arguments, "step 0 fails with learning rate 1e+38: a weight is not finite after it")


def test_fpd_with_coordinates_that_overflow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--method", "fpd", "--normalize", "none", "--dims", "50", "--lr", "3e38", "--family", "rademacher")
    arguments = [*QUICK, *flags, "--quiet", "--out", tmp_path / "run"]
    refused(capsys, arguments, "step 0 fails with learning rate 3e+38: a has ")
    assert replays(Run(tmp_path / "run"))


@pytest.mark.compiled
def test_an_evaluation_that_overflows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a warning beside the sentence."""
    arguments = ["--net", "mlp:64-8-10", "--dims", "10", "--lr", "1e30", "--batch-size", "1203", "--epochs", "4"]
    refused(capsys, [*arguments, "--quiet", "--out", tmp_path / "run"], "step 1 fails with learning rate 1e+30")


@pytest.mark.compiled
@pytest.mark.parametrize("method", ["sgd", "rbd"])
@pytest.mark.parametrize("rate", ["1e20", "1e30", "1e38"])
def test_rates_that_are_much_too_high(
    tmp_path: Path, rate: str, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Either the numbers stay finite or the sentence names the step."""
    run, flags = (
        Run(tmp_path / "run"),
        ("--net", "mlp:64-8-8-10", "--batch-size", "400", "--dims", "20", "--eval-every", "9"),
    )
    arguments = suited(*flags, "--lr", rate, "--method", method, "--epochs", "4", "--out", run.folder)
    if status([*arguments, "--quiet"]):
        sentence = one_line(capsys.readouterr().err, "fails with learning rate ", "lower --lr")
        assert f"step {len(list(runs.journal_of(run, run.config()).records()))} fails" in sentence
    assert replays(run)


@contextmanager
def little_room(folder: Path, size: int) -> Iterator[None]:
    """A folder on a disk with so much room; where none can be mounted, no file in it can be longer."""
    with small_disk(folder, size) as grow:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        if grow is None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 8, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


FULL = ("--net", "mlp:64-10", "--dims", "50", "--batch-size", "100", "--epochs", "4", "--log-every", "1")


@pytest.mark.compiled
def test_a_disk_that_is_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At every size that does not hold the whole run: one sentence, and with more room it ends as it would have."""
    whole, full = trained(tmp_path / "whole", *FULL), 0
    for pages in range(3, 20):
        run = Run(tmp_path / f"disk-{pages}" / "run")
        with little_room(run.folder.parent, pages * 4096):
            capsys.readouterr()
            code = status([*FULL, "--quiet", "--out", run.folder])
            err = capsys.readouterr().err
            moved = copied(run, tmp_path / f"moved-{pages}")
        if code == 0:
            break
        assert code == 2
        full += 1
        one_line(err, str(run.folder), " cannot be ", "nothing that was complete is lost; make room")
        if moved.journal.is_file() and moved.journal.stat().st_size >= START:
            assert sha(resumed(moved)) == sha(whole)
            assert replays(moved)
    assert full >= 5


@pytest.mark.compiled
def test_room_is_made_on_a_disk_that_was_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run goes on in its place."""
    whole, run = trained(tmp_path / "whole", *FULL), Run(tmp_path / "disk" / "run")
    with small_disk(run.folder.parent, 32 * 1024) as grow:
        limit = {} if grow else {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))}
        with started(*FULL, "--out", run.folder, **limit) as process:
            _, err = process.communicate()
        assert process.returncode == 2
        one_line(err, "rbd_ref.train: ", " cannot be written (", "make room")
        if grow:
            grow()
        assert sha(resumed(run)) == sha(whole)
        assert whole_names(run.folder) == whole_names(whole.folder)
        assert replays(run)


# What is refused before a run begins.


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--data imagenet", "data 'imagenet' is unknown, expected one of cifar-10, digits"),
        ("--net lstm", "network 'lstm' is unknown, expected one of cnn, cnn:32"),
        ("--net mlp:64-9", "'mlp:64-9' goes from 64 numbers to 9 classes"),
        ("--method adam", "method 'adam' is unknown, expected one of fpd, nes"),
        ("--family cauchy", "family 'cauchy' is unknown, expected"),
        ("--normalize l1", "normalize 'l1' is unknown, expected one of"),
        ("--backend abacus", "backend 'abacus' is unknown, expected one of"),
        ("--exchange gossip", "exchange 'gossip' is unknown"),
        ("--optimiser lion --method fpd", "optimiser 'lion' is unknown"),
        ("--transforms sorted", "'sorted'"),
        ("--preset table9", "preset 'table9' is unknown"),
        ("--compartments circle", "compartments 'circle' cannot be read, expected whole, even:K"),
        ("--dims many", "dims 'many' cannot be read, expected N directions"),
        ("--dims 651", "compartment 0 has d = 651, expected 1 <= d <= 650"),
        ("--batch-size 1204", "1 workers with batches of 1204 need 1204 images, expected 1203 at most"),
        ("--workers 4 --batch-size 301", "4 workers with batches of 301 need 1204 images"),
        ("--workers 2000", "expected 1203 at most: choose fewer workers or smaller batches"),
        ("--workers 4 --exchange split --batch-size 9", "4 workers split 3 directions"),
        ("--lr -1", "learning rate is -1.0, expected"),
        ("--lr nan", "learning rate is nan, expected"),
        ("--momentum 1", "momentum is 1.0, expected"),
        ("--seed -1", "seed is -1, expected 0 <= seed"),
        ("--eval-every 0", "eval_every is 0, expected 1 <= eval_every"),
        ("--switch 1:adam", "method to switch to 'adam' is unknown"),
        ("--switch sgd", "switch 'sgd' cannot be read, expected EPOCH:METHOD"),
        ("--switch 2:sgd --switch 1:rbd", "switches are at epochs [2, 1], expected them to ascend"),
        ("--data mnist --net fc --data-dir /dev/null/no", "the data folder /dev/null/no does not exist"),
        ("--config /dev/null/x.toml", "/dev/null/x.toml cannot be read (Not a directory)"),
    ],
)
def test_wrong_settings(tmp_path: Path, flags: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, and no folder."""
    refused(capsys, [*TINY, *flags.split(), "--out", tmp_path / "run"], words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("colour = 3", "setting 'colour' is unknown, expected some of data, data_dir"),
        ('method = "adam"', "method 'adam' is unknown"),
        ('preset = "table9"', "preset 'table9' is unknown"),
        ('lr = "high"', "setting lr is 'high', expected a number"),
        ("epochs = 1.5", "setting epochs is 1.5, expected a whole number"),
        ("augment = 1", "setting augment is 1, expected true or false"),
        ('switch = "1:sgd"', "setting switch is '1:sgd', expected a list of texts"),
        ("[method]", "setting method is {}, expected a text"),
        ("method: rbd", "is no TOML"),
        ("\x00", "is no TOML"),
    ],
)
def test_wrong_files_of_settings(tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.toml").write_text(text)
    refused(capsys, ["--config", tmp_path / "config.toml", "--out", tmp_path / "run"], words)
    assert whole_names(tmp_path) == {"config.toml"}


@pytest.mark.compiled
def test_flags_come_after_the_preset_and_the_preset_after_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('net = "cnn"\nlr = 0.5\nseed = 7\ndims = 9\nfamily = "sparse"\n')
    flags = ("--config", tmp_path / "config.toml", "--preset", "table1-fc-mnist-rbd", "--data", "digits")
    run = trained(tmp_path / "run", *flags, "--seed", "8", "--dims", "2", "--steps", "1", "--batch-size", "400")
    c = run.config()
    assert (c.net, c.lr, c.family) == ("fc", 1.0, "normal")  # the preset's
    assert (c.data, c.seed, c.dims, c.steps, c.preset) == ("digits", 8, "2", 1, "table1-fc-mnist-rbd")


@pytest.mark.parametrize("flags", [["--lr", "abc"], ["--colour"], ["--steps", "1.5"], ["--lr"], ["extra"]])
def test_wrong_flags(tmp_path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status([*flags, "--out", tmp_path / "run"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[-1].startswith("python -m rbd_ref.train: error: ")) == ("", True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["/dev/null/run", "/proc/run"])
def test_a_folder_that_cannot_be_made(below: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, [*QUICK, "--out", below], f"{below} cannot be made (No", "choose another folder with --out")


def test_a_folder_that_holds_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run", *QUICK, "--steps", "1")
    before = {name: (run.folder / name).read_bytes() for name in whole_names(run.folder)}
    refused(capsys, [*QUICK, "--out", run.folder], f"{run.folder} holds a run already", "--resume")
    assert {name: (run.folder / name).read_bytes() for name in whole_names(run.folder)} == before


def test_a_name_that_is_too_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (QUICK, ["--resume"]):
        refused(capsys, [*flags, "--out", tmp_path / ("x" * 300)], "File name too long")


def test_nothing_to_go_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["--resume", "--out", tmp_path], f"{tmp_path} is no run: it has no config.toml")
    refused(capsys, ["--resume", "--out", tmp_path / "no"], "is no run: it does not exist")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--seed", "1"], "seed"),
        (["--lr", "0.5", "--family", "normal"], "family, lr"),
        (["--method", "sgd"], "method, dims, family"),
        (["--workers", "2", "--batch-size", "9"], "batch_size, workers"),
        (["--switch", "1:sgd", "--epochs", "2"], "switch"),
    ],
)
def test_another_configuration_is_not_gone_on_with(
    made: Run, tmp_path: Path, flags: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(made, tmp_path / "run")
    before = {name: (run.folder / name).read_bytes() for name in whole_names(run.folder)}
    words = f"is a run of another configuration: {names} would change, expected the same"
    refused(capsys, ["--resume", *flags, "--out", run.folder], words)
    assert {name: (run.folder / name).read_bytes() for name in whole_names(run.folder)} == before


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of one step."""
    return trained(tmp_path_factory.mktemp("train") / "run", *QUICK, "--steps", "1")


def test_what_may_change_when_a_run_goes_on(made: Run, tmp_path: Path) -> None:
    run = copied(made, tmp_path / "run")
    resumed(run, "--steps", "2", "--log-every", "1", "--correlation", "--eval-every", "7")
    assert [line["step"] for line in lines(run, "step")] == [2]
    assert (run.config().steps, run.config().log_every, run.config().eval_every) == (2, 1, 7)


def fake_images(folder: Path) -> Path:
    """Files with the names and heads of Fashion-MNIST's and little behind them."""
    folder.mkdir(parents=True)
    for name, shape in zip(IDX, ((60000, 28, 28), (60000,), (10000, 28, 28), (10000,)), strict=True):
        head = struct.pack(f">{1 + len(shape)}I", 0x800 + len(shape), *shape)
        (folder / f"{name}.gz").write_bytes(gzip.compress(head + bytes(1000)))
    return folder


@pytest.mark.parametrize("below", ["data", "data/fashion-mnist"])
def test_a_file_of_data_that_is_cut(tmp_path: Path, below: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fake_images(tmp_path / below)
    flags = ("--data", "fashion-mnist", "--dims", "3", "--data-dir", tmp_path / "data", "--out", tmp_path / "run")
    refused(capsys, flags, f"{folder / IDX[0]}.gz has 1000 bytes after its head, expected 47040000: fetch it again")
    assert [item.name for item in tmp_path.iterdir()] == ["data"]


# What is shown.


@pytest.mark.compiled
def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    """As in `python -m rbd_ref.train | head -1`: no traceback, and the run can be gone on with."""
    reader, writer = os.pipe()
    os.close(reader)
    with started(*QUICK, "--out", tmp_path / "run", stdout=writer) as process:
        os.close(writer)
        _, err = process.communicate()
    assert (process.returncode, err) == (128 + signal.SIGPIPE, "")
    assert sha(resumed(Run(tmp_path / "run"))) == sha(trained(tmp_path / "whole", *QUICK))


def test_lines_where_there_is_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status([*QUICK, "--out", tmp_path / "run"]) == 0
    out, err = capsys.readouterr()
    run, (first, *printed) = Run(tmp_path / "run"), out.splitlines()
    assert (first, err) == (f"run folder  {run.folder}", "")
    for line, values in zip(printed, lines(run, "evaluation"), strict=False):
        accuracy = 100 * values["validation_accuracy"]
        assert line == f"epoch {values['epoch']:g}: loss {values['loss']:.4f}, validation {accuracy:.2f} %"
    assert [line.split("  ")[0] for line in printed[2:]] == [
        *("run folder", "steps", "accuracy", "test split", "sent", "sha256")
    ]
    assert "of other writers: 89 to 91 % is normal with the defaults" in out
    assert printed[-1].split()[-1] == sha(run)
    assert f"test {100 * result(run)['test_accuracy']:.2f} %" in out
    assert "20 bytes a worker and step; data-parallel SGD 2,600, 130.0 times as much" in out


def test_a_summary_with_a_switch_says_what_each_phase_sends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status([*QUICK, "--switch", "1:sgd", "--epochs", "2", "--out", tmp_path / "run"]) == 0
    out = capsys.readouterr().out
    assert "sent        20 bytes a worker and step, from step 3 on 2,608 (sgd); data-parallel SGD 2,600\n" in out


def test_quiet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing at all on success, be it a new run or an old one."""
    assert status([*QUICK, "--steps", "1", "--quiet", "--out", tmp_path / "run"]) == 0
    assert status(["--steps", "2", "--resume", "--quiet", "--out", tmp_path / "run"]) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("columns", [60, 120])
def test_the_bar_on_a_terminal(
    tmp_path: Path, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is drawn and never wraps; at its end the figures follow it, and no lines of epochs are between."""
    text = on_terminal(columns, monkeypatch, lambda: status([*QUICK, "--out", tmp_path / "run"]))
    line, rest = screen(text, columns)
    assert rest == ""
    assert line.startswith("digits mlp:64-10 rbd: 100%|█")
    assert re.search(r"\| \d\d:\d\d<00:00", line)
    assert (", loss 2." in line and ", val " in line and line.endswith(" images/s")) == (columns == 120)
    assert text.count("\r") >= 2
    assert capsys.readouterr().out.startswith("run folder  ")


def test_the_bar_of_a_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins at the steps that are done."""
    trained(tmp_path / "run", *QUICK, "--steps", "3")
    resume = ["--resume", "--steps", "6", "--out", tmp_path / "run"]
    text = on_terminal(100, monkeypatch, lambda: status(resume))
    assert "rbd:  50%|" in text
    assert "rbd: 100%|" in text
    assert "rbd:   0%|" not in text


def test_no_bar_in_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_pipe(monkeypatch, lambda: status([*QUICK, "--steps", "1", "--out", tmp_path / "run"])) == ""


def test_no_bar_when_it_is_to_be_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = [*QUICK, "--steps", "1", "--quiet", "--out", tmp_path / "run"]
    assert on_terminal(100, monkeypatch, lambda: status(flags)) == ""


def test_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every flag with what it is for, in lines that fit."""
    monkeypatch.setenv("COLUMNS", "120")
    assert status(["--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [flag for flag in FLAGS if not re.search(rf"(?m)^  {flag}\b", out)] == []
    assert max(map(len, out.splitlines())) <= 120
    assert all(action.help for action in train.parser()._actions)


def test_the_list_of_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["--preset", "list"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [name for name in presets.names() if name not in out] == []
    assert max(map(len, out.splitlines())) <= 120


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["--version"]) == 0
    assert re.fullmatch(r"rbd-ref \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --out each run has a new one."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert status([*QUICK, "--steps", "1", "--quiet"]) == 0
    assert sorted(item.name for item in (tmp_path / "runs").iterdir()) == [
        "digits-mlp-64-10-rbd-1",
        "digits-mlp-64-10-rbd-2",
    ]


def test_rates_that_nobody_named(tmp_path: Path) -> None:
    """That of the method."""
    run = trained(tmp_path / "run", *suited(*QUICK, "--method", "sgd", "--steps", "1"))
    assert run.config().lr == RATES["sgd"]
