"""Runs whose workers keep something: killed anywhere and resumed they come to the same bits; what is lost is said."""

from __future__ import annotations

import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rbd_ref
from rbd_ref import replay
from rbd_ref._types import Float32Array
from rbd_ref.runs import folder as runs
from rbd_ref.runs import local_states
from rbd_ref.runs.folder import Run
from rbd_ref.training.communicator import SingleProcess, World
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.fit import Job, run_job
from rbd_ref.training.trainer import StopRequest, Trainer
from run_tools import (
    TINY,
    copied,
    experiment_of,
    journal_reaches,
    refused,
    resumed,
    sha,
    started,
    status,
    trained,
    unfinished,
    wait_until,
    whole_names,
)
from test_meaning import Bowl

pytestmark = pytest.mark.compiled
WORKERS = 4
BASE = (*TINY, "--family", "sparse", "--batch-size", "100", "--workers", WORKERS, "--epochs", "3", "--lr", "0.5")
EPOCH = 3  # steps; D = 650
HOW: dict[str, tuple[object, ...]] = {
    "memory": ("--memory", "0.9", "--schedule", "linear"),
    "feedback": ("--feedback", "--schedule", "cosine", "--warmup", "2"),
    "shared": ("--memory", "0.9", "--exchange", "shared", "--momentum", "0.5"),
    "split": ("--feedback", "--exchange", "split", "--dims", "9", "--redraw", "2"),
    "switch": ("--memory", "0.9", "--method", "sgd", "--lr", "0.1", "--switch", "1:rbd:0.5", "--switch", "2:rbd:0.2"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Undisturbed runs of three epochs, with a checkpoint after each."""
    base = tmp_path_factory.mktemp("made")
    return {name: trained(base / name, *BASE, *flags) for name, flags in HOW.items()}


def sizes(run: Run) -> list[int]:
    """Of the journal after 0, 1, 2, ... steps."""
    journal = runs.journal_of(run, run.config(), experiment_of(run).layouts)
    return [journal.first.offset, *(record.end for record in journal.records())]


def cut(run: Run, folder: Path, t: int) -> Run:
    """A copy as a kill after step t leaves it: later checkpoints and what belongs to them are not there."""
    there = unfinished(copied(run, folder), sizes(run)[t])
    for path in (folder / "checkpoints").iterdir():
        if int(path.name.split("-")[1].split(".")[0]) > t:
            path.unlink()
    runs.cut_metrics(there, t)
    return there


def local_files(run: Run) -> list[str]:
    return sorted(path.name for path in (run.folder / "checkpoints").glob("local-*"))


# The same bits.


def test_the_runs_keep_something_and_differ(made: dict[str, Run]) -> None:
    """A file for each worker beside each checkpoint; the first epoch of `switch` is one of sgd, which keeps nothing."""
    assert len({sha(run) for run in made.values()}) == len(HOW)
    for name, run in made.items():
        steps = [t for t in (EPOCH, 2 * EPOCH, 3 * EPOCH) if name != "switch" or t > EPOCH]
        assert local_files(run) == [f"local-{t:08d}-{w:05d}.npz" for t in steps for w in range(WORKERS)]
        assert status([run.folder, "--verify"], replay.main) == 0


@pytest.mark.parametrize("t", range(3 * EPOCH + 1))
@pytest.mark.parametrize("how", HOW)
def test_killed_after_any_step(made: dict[str, Run], tmp_path: Path, how: str, t: int) -> None:
    run = cut(made[how], tmp_path / "run", t)
    assert sha(resumed(run)) == sha(made[how])
    assert run.journal.read_bytes() == made[how].journal.read_bytes()
    for name in local_files(made[how]):
        place = run.folder / "checkpoints" / name
        assert not place.exists() or place.read_bytes() == (made[how].folder / "checkpoints" / name).read_bytes()


@pytest.mark.parametrize("steps", [1, 4, 7])
def test_kill_9(made: dict[str, Run], tmp_path: Path, steps: int) -> None:
    """A real signal, at the journal's size after so many steps or a little later."""
    run, flags = Run(tmp_path / "run"), (*BASE, *HOW["memory"], "--quiet", "--out", tmp_path / "run")
    process = started(*flags)
    if wait_until(journal_reaches(run, sizes(made["memory"])[steps]), process):
        process.kill()
    process.communicate()
    assert process.returncode in (0, -signal.SIGKILL)
    assert sha(resumed(run)) == sha(made["memory"])


def test_weights_of_any_step_need_no_memory(made: dict[str, Run], tmp_path: Path) -> None:
    """Nor files of it, nor data."""
    run = copied(made["memory"], tmp_path / "run")
    for path in (run.folder / "checkpoints").iterdir():
        path.unlink()
    for t in (0, 4, 9):
        expected = rbd_ref.open_run(made["memory"].folder).theta(t)
        assert np.array_equal(rbd_ref.open_run(run.folder).theta(t), expected)
    assert status([run.folder, "--verify"], replay.main) == 0


class Differing(SingleProcess):
    """As if another rank had other weights once."""

    asked = 0

    def allgather(self, value: Any) -> list[Any]:
        self.asked += isinstance(value, bytes)  # the hash of its weights
        return [value, b"other", value] if self.asked == 5 else [value]


@pytest.mark.parametrize("how", ["memory", "feedback", "switch"])
def test_a_resynchronised_run_comes_to_the_same_bits(
    made: dict[str, Run], tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the workers keep is computed again from the last checkpoint, along the journal."""
    followed = []
    true = Trainer.follow
    monkeypatch.setattr(Trainer, "follow", lambda self, *rest: followed.append(rest[0].t) or true(self, *rest))
    alone = Differing()
    config = made[how].config(check_every=1, on_divergence="resync")
    result = rbd_ref.fit(config, out=tmp_path / "run", world=World(alone, alone, alone))
    assert result.sha256 == sha(made[how])
    assert followed == [3, 4]


class Forgetful(Bowl):
    """A problem whose gradients are other ones in every process."""

    luck = 0.0

    def loss_and_gradient(self, theta: Float32Array, step: int, worker: int) -> tuple[float, Float32Array]:
        loss, g = super().loss_and_gradient(theta, step, worker)
        return loss, g + np.float32(self.luck)


def test_gradients_that_come_out_otherwise_are_told(tmp_path: Path) -> None:
    """Then nobody can promise the same bits."""
    config = rbd_ref.Config(dims=5, lr=0.1, workers=2, steps=4, memory=0.9)
    run, problem = Run(tmp_path / "run"), Forgetful()
    stopped = rbd_ref.fit(config, problem, out=run.folder, callbacks=[lambda record: record.t == 2])
    assert stopped.step == 3
    for path in (run.folder / "checkpoints").iterdir():
        path.unlink()
    again = copied(run, tmp_path / "again")
    problem.luck = 0.125
    with pytest.warns(UserWarning, match="worker 0 sends other numbers at step 0 than are journaled,"):
        rbd_ref.fit(config, problem, out=run.folder, resume=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rbd_ref.fit(config, Forgetful(), out=again.folder, resume=True)


def test_codes_that_would_be_no_numbers_are_the_same_codes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """32 signs are a word, and some words are NaN as floats, which is unequal to itself."""
    run = trained(tmp_path / "run", *BASE, "--memory", "0.9", "--coefficients", "sign", "--dims", "640", "--lr", "0.1")
    sent = np.concatenate([record.payloads.ravel() for record in runs.journal_of(run, run.config()).records()])
    assert np.isnan(sent).any()
    again = unfinished(copied(run, tmp_path / "again"))
    for path in (again.folder / "checkpoints").iterdir():
        path.unlink()
    assert status(["--resume", "--out", again.folder]) == 0
    assert "computed again from step 0 on" in (said := capfd.readouterr().err)
    assert "than are journaled" not in said
    assert sha(again) == sha(run)


# What is lost or damaged.


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {"damaged": damaged, "removed": Path.unlink, "empty": lambda path: path.write_bytes(b"")}


@pytest.mark.parametrize("harm", DAMAGE)
def test_an_earlier_checkpoint_will_do(
    made: dict[str, Run], tmp_path: Path, harm: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where a worker's file is not whole, gradients are computed from the checkpoint before on, and that is said."""
    run = cut(made["memory"], tmp_path / "run", 8)
    path = local_states.path_of(run, 6, 2)
    DAMAGE[harm](path)
    assert status(["--resume", "--out", run.folder]) == 0
    said = capfd.readouterr().err.splitlines()
    assert [f"{path} is not what worker 2 kept after step 6" in line for line in said[:1]] == [True]
    assert said[1].endswith("continues after step 8 of 9; what its workers keep is computed again from step 3 on")
    assert sha(run) == sha(made["memory"])


def test_a_torn_end_that_only_an_earlier_checkpoint_lets_one_see(made: dict[str, Run], tmp_path: Path) -> None:
    """The last record is damaged where nobody reads it, before the newest checkpoint, whose files are damaged, too."""
    run = cut(made["memory"], tmp_path / "run", 6)
    damaged(local_states.path_of(run, 6, 2))
    content = bytearray(run.journal.read_bytes())
    content[sizes(made["memory"])[5] + 30] ^= 1
    run.journal.write_bytes(content)
    assert sha(resumed(run)) == sha(made["memory"])
    assert run.journal.read_bytes() == made["memory"].journal.read_bytes()


def test_without_any_file_all_is_computed_again(made: dict[str, Run], tmp_path: Path) -> None:
    run = cut(made["feedback"], tmp_path / "run", 8)
    for name in local_files(run):
        (run.folder / "checkpoints" / name).unlink()
    assert sha(resumed(run)) == sha(made["feedback"])


def test_files_of_different_checkpoints_are_told_apart(
    made: dict[str, Run], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each is whole, and one is of another step: a torn set."""
    run = cut(made["memory"], tmp_path / "run", 8)
    local_states.path_of(run, 3, 1).replace(local_states.path_of(run, 6, 1))
    assert status(["--resume", "--out", run.folder]) == 0
    said = capfd.readouterr().err
    assert "has what the workers kept after step 6 from different checkpoints, expected" in said
    assert sha(run) == sha(made["memory"])


@pytest.mark.parametrize("harm", DAMAGE)
def test_verify_finds_it(made: dict[str, Run], tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = copied(made["memory"], tmp_path / "run")
    DAMAGE[harm](local_states.path_of(run, 6, 3))
    refused(capsys, [run.folder, "--verify"], "is not what worker 3 kept after step 6", command=replay.main)


def test_only_the_files_of_checkpoints_that_are_kept_stay(tmp_path: Path) -> None:
    """Those that a kill has left without their checkpoint go, too; files of other names stay."""
    run = trained(tmp_path / "run", *BASE, *HOW["memory"], "--keep", "1")
    assert {name[:14] for name in local_files(run)} == {"local-00000006", "local-00000009"}
    again = trained(tmp_path / "again", *BASE, *HOW["memory"], "--epochs", "1", "--schedule", "constant")
    orphan = local_states.path_of(again, 2, 0)
    orphan.touch()
    foreign = orphan.with_name("local-x.npz")
    foreign.touch()
    resumed(again, "--epochs", "2")
    assert not orphan.exists()
    assert foreign.exists()


def test_a_file_of_another_shape_is_refused(made: dict[str, Run], tmp_path: Path) -> None:
    """Before it is read."""
    run = copied(made["memory"], tmp_path / "run")
    blank = experiment_of(run).blank_local(6)
    local_states.save(run, 6, 0, type(blank)(np.zeros(651, dtype=np.float32)))
    with pytest.raises(rbd_ref.RunError, match=r"kept has shape \(651,\), expected \(650,\)"):
        local_states.load(run, 6, 0, blank)
    local_states.save(run, 6, 0, type(blank)(np.full(650, np.nan, dtype=np.float32)))
    with pytest.raises(rbd_ref.RunError, match="it has an element that is not finite"):
        local_states.load(run, 6, 0, blank)


# To forget.


def test_forgetting(made: dict[str, Run], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is said, it is written down, and from then on the run is resumed to the same bits, from any checkpoint."""
    run = cut(made["memory"], tmp_path / "run", 4)
    assert status(["--resume", "--forget-memory", "--out", run.folder]) == 0
    assert "continues after step 4 of 9; its workers have forgotten what they kept" in capfd.readouterr().err
    assert sha(run) != sha(made["memory"])
    assert status([run.folder, "--verify"], replay.main) == 0
    for t in (5, 8):
        again = cut(run, tmp_path / f"again {t}", t)
        if t == 8:
            local_states.path_of(again, 6, 0).unlink()
        assert sha(resumed(again)) == sha(run)
    assert sha(trained(tmp_path / "new", "--config", run.folder / "config.toml")) == sha(run)


def test_forgetting_twice(made: dict[str, Run], tmp_path: Path) -> None:
    run = resumed(cut(made["memory"], tmp_path / "run", 2), "--forget-memory")
    run = resumed(cut(run, tmp_path / "again", 5), "--forget-memory")
    assert [text.split(":")[0] for text in run.config().forgotten] == ["2", "5"]
    assert sha(resumed(cut(run, tmp_path / "last", 8))) == sha(run)


def test_what_was_forgotten_is_tied_to_the_journal(
    made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A digit that changes in config.toml does not change the weights in silence."""
    run = cut(resumed(cut(made["memory"], tmp_path / "run", 2), "--forget-memory"), tmp_path / "again", 5)
    path = run.folder / "config.toml"
    path.write_text(path.read_text().replace('"2:', '"3:'))
    refused(capsys, ["--resume", "--out", run.folder], "forgot what they kept after step 3 of a journal")
    path.write_text(path.read_text().replace('"3:', '"3'))
    refused(capsys, ["--resume", "--out", run.folder], "cannot be read, expected a step and the journal's chain value")


def test_there_has_to_be_something_to_forget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run", *TINY, "--steps", "2")
    refused(capsys, ["--resume", "--forget-memory", "--out", run.folder], "forget_memory would have no effect")
    refused(capsys, [*TINY, "--forget-memory", "--out", tmp_path / "new"], "forget_memory is for runs that go on")
    assert whole_names(tmp_path / "new") == set()


# At the beginning.


def test_a_signal_while_gradients_are_computed_again(made: dict[str, Run], tmp_path: Path) -> None:
    """It ends at once, and nothing has changed."""
    run = cut(made["memory"], tmp_path / "run", 8)
    before = {name: (run.folder / name).read_bytes() for name in whole_names(run.folder)}
    alone = SingleProcess()
    job = Job(run.config(), out=str(run.folder), resume=True, stop=StopRequest(15))
    with pytest.raises(rbd_ref.RunError, match="stopped by SIGTERM while the journal was replayed, after step 6 of 9"):
        run_job(job, World(alone, alone, alone))
    assert {name: (run.folder / name).read_bytes() for name in whole_names(run.folder)} == before
    assert sha(resumed(run)) == sha(made["memory"])


def test_a_run_whose_rate_goes_by_its_length_is_not_prolonged(
    made: dict[str, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, ["--resume", "--epochs", "4", "--out", made["memory"].folder], "epochs would change", "schedule")
    refused(capsys, ["--resume", "--steps", "99", "--out", made["memory"].folder], "epochs, steps would change")


def test_a_prolonged_run_goes_on_with_its_memory(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", *BASE, "--memory", "0.9")
    part = trained(tmp_path / "part", *BASE, "--memory", "0.9", "--epochs", "2")
    assert sha(resumed(part, "--epochs", "3")) == sha(whole)


def test_what_a_step_needs_counts_what_workers_keep() -> None:
    flags: dict[str, Any] = {"net": "mlp:64-10", "dims": "3", "workers": 6}
    needs = [Experiment(rbd_ref.Config(**flags, **more)).needs(2) for more in ({}, {"memory": 0.9})]
    assert [text.split("about ")[1].split(" vectors")[0] for text in needs] == ["11", "14"]
