"""Replay: the weights of any step from what was sent, and every file of a run that was changed found out."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from rbd_ref import replay
from rbd_ref.data import datasets as data
from rbd_ref.runs import folder as runs
from rbd_ref.runs.folder import Run
from rbd_ref.runs.journal import START
from rbd_ref.runs.layouts import HEAD
from run_tools import (
    TINY,
    copied,
    experiment_of,
    final,
    journaled,
    lines,
    one_line,
    refused,
    result,
    rewrite_journal,
    sha,
    status,
    suited,
    trained,
)
from test_data import TEST, TRAIN, idx_contents, small, write

QUICK = (*TINY, "--family", "sparse", "--epochs", "2")
WAYS = {
    "rbd": ("--momentum", "0.5"),
    "fpd": ("--method", "fpd", "--optimiser", "adam", "--lr", "0.1"),
    "sgd": ("--method", "sgd"),
    "switch": ("--switch", "1:sgd"),
}


@pytest.fixture(scope="module", params=["rbd"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of six steps with checkpoints after the third and the last."""
    return trained(tmp_path_factory.mktemp("replay") / "run", *suited(*QUICK, *WAYS[request.param]))


@pytest.fixture
def run(made: Run, tmp_path: Path) -> Run:
    """A copy of it."""
    return copied(made, tmp_path / "run")


def replayed(run: Run, step: int, *flags: object) -> str:
    """The sha256 of theta after a step, which is also that of the theta in the file."""
    output = run.folder.parent / f"theta-{step}.npz"
    assert status([run.folder, "--step", step, "-o", output, *flags], replay.main) == 0
    with np.load(output, allow_pickle=False) as file:
        found = runs.sha256(file["theta"])
        assert json.loads(str(file["info"])) == {"sha256": found, "step": step}
    return found


def verified(run: Run, *flags: object) -> bool:
    return status([run.folder, "--verify", *flags], replay.main) == 0


def agree(run: Run, hashes: int) -> str:
    """The end of what --verify says of a run that is as it was written."""
    chain = [record.chain for record in runs.journal_of(run, run.config()).records()][-1]
    return f"all {hashes} hashes agree, the journal's chain ends with {chain.hex()}"


def false(capsys: pytest.CaptureFixture[str], run: Run, *words: str) -> str:
    """What --verify says of a run that was changed."""
    return refused(capsys, [run.folder, "--verify"], *words, command=replay.main)


# Any step.


@pytest.mark.parametrize(
    "way", ["rbd", "fpd", *(pytest.param(way, marks=pytest.mark.compiled) for way in ("sgd", "switch"))]
)
def test_every_step(tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    """From a checkpoint or from theta0: the weights of a run that was stopped there, to the bit."""
    run = trained(tmp_path / "run", *suited(*QUICK, *WAYS[way]))
    with_checkpoints = [replayed(run, step) for step in range(7)]
    for path in run.checkpoints:
        path.unlink()
    assert [replayed(run, step) for step in range(7)] == with_checkpoints
    assert with_checkpoints[0] == runs.sha256(experiment_of(run).start().theta)
    assert with_checkpoints[6] == sha(run)
    assert {line["step"]: line["sha256"] for line in lines(run, "checkpoint")} == {
        step: with_checkpoints[step] for step in (3, 6)
    }
    assert len(set(with_checkpoints)) == 7
    assert capsys.readouterr().err == ""


@pytest.mark.compiled
@pytest.mark.parametrize("way", WAYS)
def test_every_step_is_that_of_a_shorter_run(tmp_path: Path, way: str) -> None:
    run = trained(tmp_path / "run", *suited(*QUICK, *WAYS[way]))
    for step in range(4 if way == "switch" else 1, 7):  # a run that ends before it switches is refused
        shorter = trained(tmp_path / f"to-{step}", *suited(*QUICK, *WAYS[way], "--steps", step))
        assert replayed(run, step) == sha(shorter)


def test_what_is_printed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert status([run.folder, "--step", 6], replay.main) == 0
    assert capsys.readouterr() == (f"theta after step 6 has sha256 {sha(run)}\n", "")
    assert status([run.folder, "--verify"], replay.main) == 0
    assert capsys.readouterr() == (f"{run.folder}: 6 steps repeated, {agree(run, 2)}\n", "")
    assert sorted(item.name for item in run.folder.parent.iterdir()) == ["run"]


def test_the_weights_are_those_of_the_end(run: Run) -> None:
    replayed(run, 6)
    with np.load(run.folder.parent / "theta-6.npz", allow_pickle=False) as file:
        assert file["theta"].tobytes() == final(run).tobytes()


def test_a_broken_checkpoint_is_said_and_passed_over(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    expected = replayed(run, 5)
    run.checkpoints[0].write_bytes(b"")
    capsys.readouterr()
    assert replayed(run, 5) == expected
    one_line(capsys.readouterr().err, "step-00000003.npz is no whole checkpoint")


def test_steps_that_are_not_there(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    output = run.folder.parent / "theta.npz"
    refused(capsys, [run.folder, "--step", 7, "-o", output], "has 6 steps, expected 7 at least", command=replay.main)
    refused(capsys, [run.folder, "--step", -1, "-o", output], "--step is -1, expected a", command=replay.main)
    assert not output.exists()


def test_what_is_no_run(tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, [tmp_path / "no", "--verify"], "is no run: it does not exist", command=replay.main)
    (run.folder / "config.toml").write_text("colour = 3")
    refused(capsys, [run.folder, "--step", 1], "config.toml is not as it was written", command=replay.main)


def test_an_output_that_cannot_be_written(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [run.folder, "--step", 6, "-o", "/dev/null/theta.npz"]
    refused(capsys, arguments, "/dev/null/theta.npz cannot be written (Not a directory)", command=replay.main)


@pytest.mark.parametrize("flags", [[], ["--step", "1", "--verify"], ["--step", "x"], ["--verify", "--colour"]])
def test_wrong_flags(run: Run, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status([run.folder, *flags], replay.main) == 2
    assert "usage: python -m rbd_ref.replay" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert status(["--help"], replay.main) == 0
    text = capsys.readouterr().out
    assert all(flag in text for flag in ("--step", "--verify", "--output", "--data-dir"))
    assert max(map(len, text.splitlines())) <= 120


# Journals that are not whole.


def test_a_torn_last_record_is_said(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Where one has to read that far."""
    expected, size = replayed(run, 5), record_size(run)
    run.checkpoints[-1].unlink()
    os.truncate(run.journal, run.journal.stat().st_size - 3)
    capsys.readouterr()
    assert replayed(run, 5) == expected
    assert capsys.readouterr().err == ""
    assert status([run.folder, "--step", 6], replay.main) == 2
    said, sentence = capsys.readouterr().err.splitlines()
    assert said == f"{run.journal} ends with a torn record of {size - 3} bytes after step 5, which is left out"
    assert "has 5 steps, expected 6 at least" in sentence


def record_size(run: Run) -> int:
    return (runs.journal_of(run, run.config()).size - START) // 6


def at(run: Run, step: int) -> int:
    """Where the record of a step begins."""
    return START + step * record_size(run)


def change(run: Run, place: int, mask: int = 1) -> None:
    content = bytearray(run.journal.read_bytes())
    content[place] ^= mask
    run.journal.write_bytes(content)


def test_the_torn_record_is_counted_in_the_journal(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Not from the checkpoint that one starts from."""
    os.truncate(run.journal, at(run, 6) - 3)
    assert status([run.folder, "--step", 7], replay.main) == 2
    assert "ends with a torn record of 69 bytes after step 5, " in capsys.readouterr().err


def test_verify_leaves_a_torn_record_out(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The steps before are repeated; what the run says of the last one has nothing to be compared with."""
    size = record_size(run)
    os.truncate(run.journal, at(run, 6) - 3)
    (run.folder / "result.json").unlink()
    (run.folder / "final.npz").unlink()
    run.checkpoints[-1].unlink()
    runs.cut_metrics(run, 5)
    assert status([run.folder, "--verify"], replay.main) == 0
    out, err = capsys.readouterr()
    assert out == f"{run.folder}: 5 steps repeated, {agree(run, 1)}\n"
    one_line(err, f"{run.journal} ends with a torn record of {size - 3} bytes after step 5, which is left out")


@pytest.mark.parametrize("step", [0, 2, 4])
@pytest.mark.parametrize("place", [0, 5, HEAD.size + 2])
def test_a_damaged_record_is_named(
    made: Run, run: Run, step: int, place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    offset = at(run, step)
    change(run, offset + place)
    words = f"{run.journal} is damaged at step {step}, offset {offset}: "
    expected = replayed(made, 5)
    false(capsys, run, words)
    if step < 3:
        assert replayed(run, 5) == expected  # from the checkpoint, without a look at what was before it
        run.checkpoints[0].unlink()
    refused(capsys, [run.folder, "--step", 5], words, command=replay.main)


def test_steps_before_a_damaged_record_can_be_had(run: Run) -> None:
    expected = [replayed(run, step) for step in range(5)]
    change(run, at(run, 4) + HEAD.size)
    assert [replayed(run, step) for step in range(5)] == expected


def test_the_journal_of_another_configuration(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    change(run, START - 1)
    false(capsys, run, "journal.rbd is the journal of another configuration")


def test_no_journal(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Removed, or not begun: what a kill before the first step leaves."""
    words = f"{run.folder} has no journal yet, expected one with the steps that were taken: there is nothing to replay"
    os.truncate(run.journal, START - 1)
    false(capsys, run, words)
    run.journal.unlink()
    false(capsys, run, words)
    refused(capsys, [run.folder, "--step", 0], words, command=replay.main)


# Runs that were changed.


def test_a_byte_of_a_checkpoint(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    path = run.checkpoints[0]
    whole, theta = path.read_bytes(), runs.load_checkpoint(path, run.config().digest).state.theta.tobytes()
    changed = bytearray(whole)
    changed[whole.index(theta) + 100] ^= 1
    path.write_bytes(changed)
    false(capsys, run, "step-00000003.npz is no whole checkpoint (Bad CRC-32 for file 'theta.npy')")


def rewritten(run: Run, place: int) -> None:
    """Another theta in a checkpoint, with all sums as they should be."""
    path = run.checkpoints[place]
    state, chain, _ = runs.load_checkpoint(path, run.config().digest)
    theta = state.theta.copy()
    theta[17] = np.nextafter(theta[17], np.float32(9))
    runs.save_checkpoint(run, state._replace(theta=theta), run.config().digest, chain)


@pytest.mark.parametrize(("place", "step"), [(0, 3), (1, 6)])
def test_another_theta_in_a_checkpoint(run: Run, place: int, step: int, capsys: pytest.CaptureFixture[str]) -> None:
    rewritten(run, place)
    false(capsys, run, f"does not agree with its journal at step {step}: theta has sha256 ")


def test_another_hash_in_the_metrics(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    text, hashes = run.metrics.read_text(), [line["sha256"] for line in lines(run, "checkpoint")]
    run.metrics.write_text(text.replace(hashes[0], hashes[0][:-1] + ("0" if hashes[0][-1] != "0" else "1")))
    sentence = false(capsys, run, "does not agree with its journal at step 3: ")
    assert hashes[0] in sentence


def test_another_hash_in_the_result(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    (run.folder / "result.json").write_text(json.dumps({**result(run), "sha256": "00" * 32}))
    false(capsys, run, "does not agree with its journal at step 6: ", "00" * 32, sha(run))


@pytest.mark.parametrize(("name", "text"), [("result.json", "{}"), ("metrics.jsonl", "garbage\n")])
def test_a_file_that_is_no_longer_what_it_was(
    run: Run, name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.folder / name).write_text(text)
    false(capsys, run, str(run.folder / name))


# Journals that were made anew, with every checksum as it should be.


def forged(run: Run, step: int, column: int = 1) -> list[bytes]:
    """Another number in the record of a step; the chain values of what is now a whole journal of six steps."""
    rows = journaled(run)[step].copy()
    rows[0, column] = 2 * rows[0, column] + 1e-3
    return rewrite_journal(run, step, rows)


def forge_checkpoint(run: Run, place: int, chains: list[bytes]) -> None:
    """The chain value that now belongs to it."""
    state, *_ = runs.load_checkpoint(run.checkpoints[place], run.config().digest)
    runs.save_checkpoint(run, state, run.config().digest, chains[state.t])


def forge_result(run: Run, chains: list[bytes]) -> None:
    (run.folder / "result.json").write_text(json.dumps({**result(run), "journal": chains[-1].hex()}))


@pytest.mark.parametrize("column", [1, -1])
@pytest.mark.parametrize(("step", "named"), [(0, 3), (2, 3), (3, 6), (5, 6)])
def test_another_journal(run: Run, step: int, named: int, column: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Found at the next chain value that was written down; a loss too, from which no weights follow."""
    before = runs.load_checkpoint(run.checkpoints[named // 3 - 1], run.config().digest).chain
    chains = forged(run, step, column)
    words = f"does not agree with its journal at step {named}: "
    false(capsys, run, words, before.hex(), chains[named].hex())


def test_a_checkpoint_tells_of_another_journal_without_a_result(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    chains = forged(run, 5, -1)
    forge_result(run, chains)
    false(capsys, run, "does not agree with its journal at step 6: step-00000006.npz says that its chain value is ")
    (run.folder / "result.json").unlink()
    false(capsys, run, "does not agree with its journal at step 6: step-00000006.npz says that its chain value is ")


def test_the_result_tells_of_another_journal_without_checkpoints(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    chains = forged(run, 1, -1)
    for place in (0, 1):
        forge_checkpoint(run, place, chains)
    kept = result(run)["journal"]
    words = f"at step 6: result.json says that its chain value is {kept}, expected {chains[-1].hex()}: "
    false(capsys, run, "does not agree with its journal ", words)
    for path in run.checkpoints:
        path.unlink()
    runs.cut_metrics(run, 0)
    false(capsys, run, "does not agree with its journal ", words)


def test_who_forges_everything_changes_the_chains_end(made: Run, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Then the folder agrees with itself, but not with the digits that were noted elsewhere."""
    chains = forged(run, 1, -1)
    for place in (0, 1):
        forge_checkpoint(run, place, chains)
    forge_result(run, chains)
    capsys.readouterr()
    assert verified(run)
    assert result(made)["journal"] not in capsys.readouterr().out
    assert verified(made)
    assert capsys.readouterr().out.endswith(f" ends with {result(made)['journal']}\n")


def test_a_coefficient_with_all_chain_values(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The weights tell."""
    chains = forged(run, 4)
    forge_checkpoint(run, 1, chains)
    forge_result(run, chains)
    false(capsys, run, "does not agree with its journal at step 6: theta has sha256 ", sha(run))


@pytest.mark.parametrize("value", [None, 3, "00" * 32])
def test_another_chain_value_in_the_result(run: Run, value: object, capsys: pytest.CaptureFixture[str]) -> None:
    (run.folder / "result.json").write_text(json.dumps({**result(run), "journal": value}))
    false(capsys, run, f"at step 6: result.json says that its chain value is {value}, expected ")


def test_a_result_without_a_chain_value(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    values = result(run)
    del values["journal"]
    (run.folder / "result.json").write_text(json.dumps(values))
    false(capsys, run, f"{run.folder / 'result.json'} lacks journal, expected it as it was written")


def test_a_journal_of_an_earlier_version(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.journal.write_bytes(b"RBDJRNL1" + run.journal.read_bytes()[8:])
    words = f"{run.journal} is the journal of an earlier version, RBDJRNL1, expected RBDJRNL2: start a new run"
    false(capsys, run, words)
    refused(capsys, ["--resume", "--out", run.folder], words)


def test_checkpoints_beyond_the_journal(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    os.truncate(run.journal, at(run, 4))
    sentence = false(capsys, run, "has checkpoints at steps [6], expected none after step 4")
    assert "restore journal.rbd" in sentence


@pytest.mark.compiled
@pytest.mark.parametrize("way", WAYS)
def test_verify_every_way(tmp_path: Path, way: str) -> None:
    flags = suited(*QUICK, *WAYS[way], "--workers", "2", "--batch-size", "200")
    assert verified(trained(tmp_path / "run", *flags))


def test_a_run_that_overflowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The steps that were journaled repeat without a word, though the last weights are not finite."""
    flags = ("--method", "nes", "--transforms", "raw", "--sigma", "1e-6", "--lr", "1e38")
    assert status([*QUICK, *flags, "--quiet", "--out", tmp_path / "run"]) == 2
    capsys.readouterr()
    assert status([tmp_path / "run", "--verify"], replay.main) == 0
    run = Run(tmp_path / "run")
    assert capsys.readouterr() == (f"{run.folder}: 1 steps repeated, {agree(run, 0)}\n", "")


# Data.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a few images under the name of Fashion-MNIST, and no other place to get it from."""
    standard = data.Standard(TRAIN, TEST, (28, 28, 1), data.fingerprint(small("fashion-mnist")))
    monkeypatch.setitem(data.STANDARDS, "fashion-mnist", standard)
    monkeypatch.setattr(data, "DEBIAN", tmp_path / "debian")
    return write(tmp_path / "data", idx_contents(small("fashion-mnist")))


def of_images(folder: Path, method: str) -> Run:
    flags = ("--data", "fashion-mnist", "--net", "mlp:784-10", "--batch-size", "4", "--steps", "3")
    more = ("--family", "sparse", "--dims", "2", "--method", method, "--data-dir", folder)
    return trained(folder.parent / "run", "--no-augment", *suited(*flags, *more))


def test_rbd_needs_no_data(folder: Path) -> None:
    run = of_images(folder, "rbd")
    folder.rename(folder.parent / "gone")
    assert replayed(run, 3) == sha(run)
    assert verified(run)


def test_sgd_needs_its_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, elsewhere = of_images(folder, "sgd"), folder.parent / "elsewhere"
    folder.rename(elsewhere)
    arguments = [run.folder, "--step", 1]
    sentence = refused(capsys, arguments, f"the data folder {folder} does not exist", command=replay.main)
    assert re.search("expected a folder: correct the name or make it$", sentence)
    assert replayed(run, 3) == sha(run)  # from the checkpoint
    run.checkpoints[-1].unlink()
    assert replayed(run, 3, "--data-dir", elsewhere) == sha(run)
    assert verified(run, "--data-dir", elsewhere)
