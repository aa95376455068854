"""Faults that were found once: broken files, kills at awkward moments, numbers that overflow. They stay mended."""

from __future__ import annotations

import gc
import gzip
import json
import os
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from rbd_ref import replay
from rbd_ref.methods.state import DescentState
from rbd_ref.runs import config as configs
from rbd_ref.runs import folder as runs
from rbd_ref.runs.files import RunError
from rbd_ref.runs.journal import START, Journal, Writer
from rbd_ref.runs.layouts import HEAD
from run_tools import TINY, copied, journaled, lines, refused, resumed, sha, status, trained, unfinished
from test_data import IDX

pytestmark = pytest.mark.compiled

QUICK = (*TINY, "--family", "sparse", "--epochs", "2")
OVERFLOW = ("--method", "nes", "--transforms", "raw", "--sigma", "1e-6", "--lr", "1e38")
DIGEST = "ab" * 32
STATE = DescentState(np.array([1.0, -0.0, 3e-45], dtype=np.float32), 7, np.array([0.5, 2.0, 4.0], dtype=np.float32))


def checkpoint(tmp_path: Path) -> Path:
    run = runs.create(tmp_path / "run", configs.make({}))
    runs.save_checkpoint(run, STATE, DIGEST, bytes(32))
    return run.checkpoints[0]


@pytest.mark.parametrize("below", ["data", "data/fashion-mnist"])
def test_a_file_of_data_that_is_cut(tmp_path: Path, below: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / below
    folder.mkdir(parents=True)
    for name, shape in zip(IDX, ((60000, 28, 28), (60000,), (10000, 28, 28), (10000,)), strict=True):
        head = struct.pack(f">{1 + len(shape)}I", 0x800 + len(shape), *shape)
        (folder / f"{name}.gz").write_bytes(gzip.compress(head + bytes(1000)))
    flags = ("--data", "fashion-mnist", "--dims", "3", "--data-dir", tmp_path / "data", "--out", tmp_path / "run")
    refused(capsys, flags, f"{folder / IDX[0]}.gz has 1000 bytes after its head, expected 47040000: fetch it again")
    assert [item.name for item in tmp_path.iterdir()] == ["data"]


def test_a_folder_of_data_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--data", "mnist", "--dims", "3", "--data-dir", "/dev/null/no", "--out", tmp_path / "run")
    refused(capsys, flags, "the data folder /dev/null/no does not exist")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [None, 0, 17, 39])
def test_a_run_killed_before_its_first_step(tmp_path: Path, size: int | None) -> None:
    whole = trained(tmp_path / "whole", *QUICK)
    run = runs.create(tmp_path / "run", whole.config())
    if size is not None:
        run.journal.write_bytes(whole.journal.read_bytes()[:size])
    assert sha(resumed(run)) == sha(whole)


def test_every_bit_of_a_checkpoint(tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    whole, escaped = path.read_bytes(), {}
    for place in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            state = runs.load_checkpoint(path, DIGEST).state
            assert all(np.array_equal(x, y) for x, y in zip(state, STATE, strict=True))
        except RunError:
            pass
        except Exception as error:
            escaped.setdefault(type(error).__name__, (place // 8, place % 8, str(error)))
    gc.collect()
    assert escaped == {}


@pytest.mark.parametrize("info", [None, "3", "[]", "null", '{"state": []}', '{"state": "DescentState", "t": 5}'])
def test_foreign_checkpoints(tmp_path: Path, info: str | None) -> None:
    path = checkpoint(tmp_path)
    with path.open("wb") as out:
        if info is None:
            np.save(out, STATE.theta)
        else:
            np.savez(out, info=np.array(info), theta=STATE.theta, velocity=STATE.theta)
    with pytest.raises(RunError):
        runs.load_checkpoint(path, DIGEST)


def test_a_cut_checkpoint_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, unraisable = checkpoint(tmp_path), []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(RunError):
        runs.load_checkpoint(path, DIGEST)
    gc.collect()
    assert unraisable == []


def test_fpd_with_a_rate_that_overflows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--method", "fpd", "--normalize", "none", "--dims", "50", "--lr", "3e38", "--family", "normal")
    refused(capsys, [*QUICK, *flags, "--quiet", "--out", tmp_path / "run"], "step 0 fails with learning rate 3e+38")


def test_weights_that_are_not_finite_at_the_end_of_an_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*QUICK, *OVERFLOW, "--batch-size", "1203", "--quiet", "--out", tmp_path / "run"]
    refused(capsys, arguments, "step 0 fails with learning rate 1e+38")


def test_an_evaluation_that_overflows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--net", "mlp:64-8-10", "--dims", "10", "--lr", "1e30", "--batch-size", "1203", "--epochs", "4"]
    refused(capsys, [*arguments, "--quiet", "--out", tmp_path / "run"], "step 1 fails with learning rate 1e+30")


def test_a_replay_that_overflows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status([*QUICK, *OVERFLOW, "--quiet", "--out", tmp_path / "run"]) == 2
    capsys.readouterr()
    assert status([tmp_path / "run", "--verify"], replay.main) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("before", "after"), [("rbd", "nes"), ("sgd", "nes-shared-batch"), ("nes-shared-batch", "rbd")]
)
def test_a_switch_with_defaults(tmp_path: Path, before: str, after: str) -> None:
    flags = ("--net", "mlp:64-32-10", "--dims", "20", "--batch-size", "150", "--epochs", "2", "--log-every", "1")
    run = trained(tmp_path / "run", *flags, "--method", before, "--switch", f"1:{after}")
    losses = [line["loss"] for line in lines(run, "step")]
    assert max(losses[8:]) < 1.25 * losses[7]


def strict(text: str) -> object:
    def no(name: str) -> object:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=no)


def test_a_run_killed_after_its_last_step(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", *QUICK)
    run = resumed(unfinished(copied(whole, tmp_path / "run")))
    for line in run.metrics.read_text().splitlines():
        strict(line)
    assert [line["step"] for line in lines(run, "evaluation")] == [3, 6]


def test_the_loss_of_an_epoch(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", *QUICK)
    losses = [float(sent[0, -1]) for sent in journaled(run)]
    first, second = lines(run, "evaluation")
    assert first["loss"] == pytest.approx(np.mean(losses[:3]), rel=1e-9)
    assert second["loss"] == pytest.approx(np.mean(losses[3:]), rel=1e-9)


def test_a_name_that_is_too_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, [*QUICK, "--out", tmp_path / ("x" * 300)], "File name too long")
    refused(capsys, ["--resume", "--out", tmp_path / ("x" * 300)], "File name too long")


@pytest.mark.parametrize("text", ["garbage", '{"a": 3}', "3", "\x00\x00"])
def test_a_damaged_line_of_metrics_is_named(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = unfinished(trained(tmp_path / "run", *QUICK))
    rows = run.metrics.read_text().splitlines()
    run.metrics.write_text("\n".join([text, *rows[1:]]) + "\n")
    refused(capsys, ["--resume", "--quiet", "--out", run.folder], str(run.metrics))
    refused(capsys, [run.folder, "--verify"], str(run.metrics), command=replay.main)


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"a": 3}'])
def test_a_damaged_result_is_named(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run", *QUICK)
    (run.folder / "result.json").write_text(text)
    refused(capsys, [run.folder, "--verify"], str(run.folder / "result.json"), command=replay.main)


def test_a_head_that_promises_more_than_there_is(tmp_path: Path) -> None:
    path = tmp_path / "j"
    Writer.create(path, DIGEST).close()
    fields = struct.pack("<4sQII", b"STEP", 0, 2**31, 2**31 - 1)
    with path.open("ab") as file:
        file.write(fields + struct.pack("<I", zlib.crc32(fields)) + b"1234")
    journal = Journal(path, DIGEST)
    assert list(journal.records()) == []
    assert journal.torn == HEAD.size + 4


def test_where_the_torn_record_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run", *QUICK)
    with run.journal.open("r+b") as file:
        file.truncate(run.journal.stat().st_size - 3)
    capsys.readouterr()
    assert status([run.folder, "--step", 7], replay.main) == 2
    assert "ends with a torn record of 69 bytes after step 5" in capsys.readouterr().err


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    import subprocess

    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "rbd_ref.train", *QUICK, "--out", str(tmp_path / "run")]
    process = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert "Traceback" not in process.stderr
    assert process.returncode in (0, 2, 141)


def test_an_evaluation_that_a_kill_prevented(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", *QUICK)
    run = unfinished(copied(whole, tmp_path / "run"), START + 3 * 72)  # step 3 is journaled, nothing came after it
    runs.cut_metrics(run, 2)
    for path in run.checkpoints:
        path.unlink()
    resumed(run)
    assert [line["step"] for line in lines(run, "evaluation")] == [3, 6]


# What `make torture` found.


SPECIAL = ["journal.rbd", "checkpoints/step-00000006.npz", "final.npz"]


@pytest.mark.parametrize("name", SPECIAL)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run", *QUICK)
    (run.folder / name).unlink()
    os.mkfifo(run.folder / name)
    refused(capsys, [run.folder, "--verify"], str(run.folder / name), "is a pipe or a device", command=replay.main)


def test_the_lock_is_no_link_to_somebody_elses_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before, that file was emptied."""
    run = unfinished(trained(tmp_path / "run", *QUICK))
    (tmp_path / "precious").write_text("precious")
    (run.folder / "lock").symlink_to(tmp_path / "precious")
    refused(capsys, ["--resume", "--out", run.folder], f"{run.folder / 'lock'} cannot be written")
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("kind", ["link", "pipe", "stale"])
def test_metrics_of_a_run_that_begins_anew(tmp_path: Path, kind: str) -> None:
    """Its journal is lost: no line of before stays, nothing is written to where a link leads, no pipe waited for."""
    run = unfinished(trained(tmp_path / "run", *QUICK))
    whole = [(line["kind"], line["step"]) for line in lines(run)]
    run.journal.unlink()
    for path in run.checkpoints:
        path.unlink()
    if kind != "stale":
        run.metrics.unlink()
    (tmp_path / "precious").touch()
    if kind == "link":
        run.metrics.symlink_to(tmp_path / "precious")
    elif kind == "pipe":
        os.mkfifo(run.metrics)
    resumed(run)
    assert [(line["kind"], line["step"]) for line in lines(run)] == whole
    assert (tmp_path / "precious").read_bytes() == b""


@pytest.mark.parametrize("value", ['"' + "x" * 5000 + '"', "1" * 5000, "[" + "0, " * 5000 + "]"])
def test_a_setting_that_is_too_long_to_be_shown(tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run", *QUICK)
    path = run.folder / "config.toml"
    path.write_text(path.read_text().replace('family = "sparse"', f"family = {value}"))
    assert len(refused(capsys, [run.folder, "--verify"], str(path), command=replay.main)) < 1000


def test_what_a_file_says_is_short_and_printable_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path / "run", *QUICK)
    path = run.checkpoints[0]
    with np.load(path) as file:
        info, theta = json.loads(str(file["info"])), file["theta"]
    for t in ("x" * 100_000, "\x1b[31m\n"):
        np.savez(path, info=np.array(json.dumps({**info, "t": t})), theta=theta, velocity=theta[:0])
        sentence = refused(
            capsys, [run.folder, "--verify"], f"{path} is no whole checkpoint (t is", command=replay.main
        )
        assert len(sentence) < 1000
        assert sentence.isprintable()
