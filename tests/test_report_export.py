"""Figures of runs for other programs: the lines of the CSV, and event files that TensorBoard can read."""

from __future__ import annotations

import csv
import io
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

import rbd_ref
from rbd_ref.report import __main__ as command
from rbd_ref.report import page, records

Scalars = dict[tuple[str, int], float]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of a network, and one run that was stopped early."""
    root = tmp_path_factory.mktemp("runs")
    small = {"net": "mlp:64-10", "batch_size": 400, "family": "sparse", "log_every": 1, "dims": 3}
    for seed in (0, 1):
        rbd_ref.fit(rbd_ref.Config(**small, epochs=2, seed=seed, correlation=True), out=root / f"s{seed}")
    rbd_ref.fit(rbd_ref.Config(**small, epochs=2, momentum=0.5), out=root / "short", callbacks=[lambda r: r.t == 3])
    return root


def exported(runs: Path, out: Path) -> list[dict[str, str]]:
    assert command.main([str(runs), "--csv", str(out / "runs.csv"), "-o", str(out / "report.html")]) == 0
    return list(csv.DictReader(io.StringIO((out / "runs.csv").read_text())))


def test_a_line_for_each_run_and_evaluation(runs: Path, tmp_path: Path) -> None:
    lines = exported(runs, tmp_path)
    assert list(lines[0]) == [
        *("run", "group", "data", "net", "problem", "method", "family", "d", "D", "lr", "seed", "workers", "momentum"),
        *("step", "epoch", "seconds", "loss", "validation_accuracy", "validation_loss"),
        *("train_accuracy", "test_accuracy"),
    ]
    found = {(line["run"], int(line["step"])): line for line in lines}
    assert sorted(found) == [("s0", 3), ("s0", 6), ("s1", 3), ("s1", 6), ("short", 3)]
    run = rbd_ref.open_run(runs / "s1")
    assert run.result is not None
    last = found["s1", 6]
    assert float(last["validation_accuracy"]) == run.history.metrics["validation_accuracy"][-1]
    assert float(last["test_accuracy"]) == run.result["test_accuracy"]
    assert (last["d"], last["D"], last["seed"], last["data"], last["problem"]) == ("3", "650", "1", "digits", "")
    assert (found["s1", 3]["test_accuracy"], found["short", 3]["test_accuracy"]) == ("", "")
    assert found["s0", 3]["group"] == found["s1", 3]["group"] != found["short", 3]["group"]


def test_the_page_has_the_same_table_to_download(runs: Path, tmp_path: Path) -> None:
    exported(runs, tmp_path)
    text = page.build([runs])
    link = text.split('href="data:text/csv;charset=utf-8,', 1)[1].split('"', 1)[0]
    assert unquote(link) == (tmp_path / "runs.csv").read_text()


def test_sgd_has_no_directions_in_the_table(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text('method = "sgd"\nfamily = "srht"\nlr = 0.5\n')
    (line,) = exported(tmp_path / "run", tmp_path)
    assert (line["method"], line["family"], line["d"], line["lr"]) == ("sgd", "", "", "0.5")


def test_a_run_that_has_just_begun_has_one_line(tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.toml").write_text('method = "rbd"\nname = "a, \\"b\\"\\nc"\n')
    (line,) = exported(tmp_path / "begun", tmp_path)
    assert (line["run"], line["step"], line["loss"]) == ("begun", "", "")


CASTAGNOLI = [0] * 256
for _byte in range(256):
    _value = _byte
    for _ in range(8):
        _value = _value >> 1 ^ (0x82F63B78 if _value & 1 else 0)
    CASTAGNOLI[_byte] = _value


def masked_crc(data: bytes) -> int:
    """Of a TFRecord: CRC-32C, rotated, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CASTAGNOLI[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def tfrecords(content: bytes) -> Iterator[bytes]:
    """The records of a file, their lengths and contents checked: what TensorBoard's own reader does."""
    place = 0
    while place < len(content):
        head = content[place : place + 8]
        (length,) = struct.unpack("<Q", head)
        data = content[place + 12 : place + 12 + length]
        checks = struct.unpack("<I", content[place + 8 : place + 12]) + struct.unpack(
            "<I", content[place + 12 + length : place + 16 + length]
        )
        assert checks == (masked_crc(head), masked_crc(data))
        yield data
        place += 16 + length


def scalars(folder: Path) -> tuple[Scalars, list[float]]:
    """What the event files of a run hold, by tag and step, and their times."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    (path,) = folder.glob("events.out.tfevents.*")
    events = [event_pb2.Event.FromString(record) for record in tfrecords(path.read_bytes())]
    assert events[0].file_version == "brain.Event:2"
    found = {(value.tag, event.step): value.simple_value for event in events for value in event.summary.value}
    return found, [event.wall_time for event in events if event.summary.value]


def test_event_files_hold_every_scalar(runs: Path, tmp_path: Path) -> None:
    target = tmp_path / "events"
    assert command.main([str(runs), "--tensorboard", str(target), "-o", str(tmp_path / "report.html")]) == 0
    assert sorted(path.name for path in target.iterdir()) == ["s0", "s1", "short"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events", "report.html"]
    found, times = scalars(target / "s1")
    (run,) = records.read([runs / "s1"]).runs
    for record in run.steps:
        assert found["steps/loss", record["step"]] == np.float32(record["loss"])
        assert found["steps/correlation/whole", record["step"]] == np.float32(record["correlation"]["whole"])
    assert {step for tag, step in found if tag == "validation_accuracy"} == {3, 6}
    assert found["validation_accuracy", 6] == np.float32(run.evaluations[-1]["validation_accuracy"])
    assert {record["seconds"] for record in run.steps + run.evaluations} == set(times)


def test_a_folder_that_is_not_empty_is_refused(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "mine").write_text("kept")
    for place, wrong in (("events", "exists"), ("events/mine", "exists"), ("missing/events", "cannot be written")):
        assert command.main([str(runs), "--tensorboard", str(tmp_path / place), "-o", str(tmp_path / "r.html")]) == 2
        printed = capsys.readouterr()
        assert printed.err.count("\n") == 1
        assert f"{tmp_path / place} {wrong}" in printed.err
        assert "expected" in printed.err
        assert printed.err.endswith(" with --tensorboard\n")
    assert [path.name for path in tmp_path.rglob("*")] == ["events", "mine"]


def test_a_writer_that_is_missing_is_one_sentence(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert command.main([str(runs), "--tensorboard", str(tmp_path / "events"), "-o", str(tmp_path / "r.html")]) == 2
    assert "pip install 'rbd-ref[tensorboard]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_names_lead_nowhere_else(runs: Path, tmp_path: Path) -> None:
    for name in ("a b", "a-b", "c/b"):
        path = tmp_path / "in" / name
        path.mkdir(parents=True)
        (path / "config.toml").write_text((runs / "s0" / "config.toml").read_text())
    target = tmp_path / "events"
    assert command.main([str(tmp_path / "in"), "--tensorboard", str(target), "-o", str(tmp_path / "r.html")]) == 0
    assert len(list(target.iterdir())) == 3
    assert all(path.is_dir() and any(path.iterdir()) for path in target.iterdir())
