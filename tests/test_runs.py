"""The folder of a run: states to the bit, files that are whole or not there, and what is said of those that are not."""

from __future__ import annotations

import gc
import hashlib
import json
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rbd_ref.methods.base import EMPTY
from rbd_ref.methods.fpd import FixedProjectionState
from rbd_ref.methods.state import DescentState
from rbd_ref.runs import config as configs
from rbd_ref.runs import folder as runs
from rbd_ref.runs.files import RunError, write_whole
from rbd_ref.runs.folder import Run, load_checkpoint, newest, save_checkpoint
from rbd_ref.runs.journal import Journal, Writer, chain_start, encode
from rbd_ref.runs.layouts import CHAIN, Layout, Layouts, Stretch
from run_tools import TINY, lines, trained
from tools import ROOT, bits, run_python

DIGEST = "ab" * 32
STATE = DescentState(np.array([1.0, -0.0, 3e-45], dtype=np.float32), 7, np.array([0.5, 2.0, 4.0], dtype=np.float32))
ROWS = np.ones((1, 2), dtype=np.float32)  # what is sent at every step

vectors = hnp.arrays(np.uint32, st.integers(0, 6)).map(lambda words: words.view(np.float32))
matrices = hnp.arrays(np.uint32, st.tuples(st.integers(1, 3), st.integers(1, 4))).map(lambda x: x.view(np.float32))
counts = st.integers(0, 2**32)
states = st.builds(DescentState, vectors, counts, vectors)
fixed = st.builds(FixedProjectionState, vectors, counts, vectors, matrices, matrices, matrices, counts)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return runs.create(tmp_path / "run", configs.make({}))


def same(a: Any, b: Any) -> bool:
    """The same kind of state, its arrays to the bit."""
    return type(a) is type(b) and all(
        x == y if isinstance(x, int) else x.shape == y.shape and np.array_equal(bits(x), bits(y))
        for x, y in zip(a, b, strict=True)
    )


def refused(path: Path, digest: str = DIGEST) -> str:
    """The sentence about a checkpoint that is no good, which names it."""
    with pytest.raises(RunError) as caught:
        load_checkpoint(path, digest)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path} ")
    assert "\n" not in sentence
    return sentence


def unharmed_or_named(path: Path) -> bool:
    """Whether a file that was changed gives the same state or a sentence that names it, and nothing else."""
    try:
        return same(load_checkpoint(path, DIGEST).state, STATE)
    except RunError as error:
        return str(error).startswith(f"{path} ")


def chain_after(steps: int) -> bytes:
    """The chain value of a journal of steps that are all alike."""
    chain = chain_start(DIGEST)
    for t in range(steps):
        chain = encode(t, ROWS, chain)[-CHAIN:]
    return chain


def journal(run: Run, steps: int = 210) -> Journal:
    """The journal of a run of such steps."""
    run.journal.unlink(missing_ok=True)
    writer = Writer.create(run.journal, DIGEST)
    for t in range(steps):
        writer.append(t, ROWS)
    writer.close()
    return Journal(run.journal, DIGEST, Layouts(Stretch(0, Layout(*ROWS.shape))))


def saved(run: Run, state: Any = STATE, digest: str = DIGEST) -> Path:
    """A checkpoint that fits the journal; of states that it does not reach, one that follows its start."""
    save_checkpoint(run, state, digest, chain_after(state.t if state.t < 300 else 0))
    return run.folder / "checkpoints" / f"step-{state.t:08d}.npz"


# Checkpoints.


@given(states | fixed)
def test_states_come_back_to_the_bit(tmp_path_factory: pytest.TempPathFactory, state: Any) -> None:
    """Of either kind, of any size; no byte of the file is pickled."""
    run = Run(tmp_path_factory.getbasetemp() / "states")
    (run.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    path = saved(run, state)
    assert same(load_checkpoint(path, DIGEST).state, state)
    with np.load(path, allow_pickle=False) as file:
        assert all(file[name].dtype in (np.float32, file["info"].dtype) for name in file.files)
        assert json.loads(str(file["info"]))["sha256"] == hashlib.sha256(state.theta.tobytes()).hexdigest()
    path.unlink()


def test_the_hash_of_theta() -> None:
    """Of its little-endian bytes, however they lie in memory."""
    theta = np.arange(6, dtype=np.float32)
    expected = hashlib.sha256(b"".join(np.float32(k).tobytes() for k in range(6))).hexdigest()
    assert sys.byteorder == "little"
    assert runs.sha256(theta) == runs.sha256(theta.astype(">f4")) == runs.sha256(np.repeat(theta, 2)[::2]) == expected
    assert runs.sha256(-theta) != expected


def test_every_place_to_cut_a_checkpoint(run: Run) -> None:
    path = saved(run)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        assert "is no whole checkpoint" in refused(path)
    path.write_bytes(whole)
    assert same(load_checkpoint(path, DIGEST).state, STATE)
    gc.collect()  # a file that was left open would complain


def test_every_byte_of_a_checkpoint(run: Run) -> None:
    """Whatever has changed in the archive: it is named, or the state is the same."""
    path = saved(run)
    whole = path.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        assert unharmed_or_named(path)


@pytest.mark.parametrize("mask", [0x01, 0x40])
@pytest.mark.parametrize("place", [6, 8, 10])
def test_what_the_archive_says_of_its_parts(run: Run, place: int, mask: int) -> None:
    """Version, flags and method of compression that nobody knows."""
    path = saved(run)
    changed = bytearray(path.read_bytes())
    changed[changed.index(b"PK\x01\x02") + place] ^= mask
    path.write_bytes(changed)
    assert unharmed_or_named(path)


def test_every_byte_of_the_numbers(run: Run) -> None:
    """Of theta, of the velocity and of what is said of them."""
    path = saved(run)
    whole = path.read_bytes()
    info = whole[whole.index("{".encode("utf-32-le")) :][:200]
    for part in (STATE.theta.tobytes(), STATE.velocity.tobytes(), info):
        start = whole.index(part)
        for place in range(start, start + len(part)):
            changed = bytearray(whole)
            changed[place] ^= 1 << place % 8
            path.write_bytes(changed)
            refused(path)


def foreign(path: Path, kind: str) -> None:
    """A file of that name that is something else."""
    path.unlink(missing_ok=True)
    if kind == "a folder":
        path.mkdir()
    elif kind == "another archive":
        np.savez(path, theta=STATE.theta)
    elif kind == "another state":
        np.savez(path, info=np.array(json.dumps({"state": "Adam", "digest": DIGEST})), theta=STATE.theta)
    elif kind == "objects":
        np.savez(path, info=np.array([{"state": "DescentState"}], dtype=object))
    elif kind == "an array":
        with path.open("wb") as out:
            np.save(out, STATE.theta)
    elif kind[0] in "3[{n":
        np.savez(path, info=np.array(kind), theta=STATE.theta, velocity=STATE.theta)
    else:
        path.write_bytes({"nothing": b"", "a page": b"<html>" * 99, "zeros": bytes(1000)}[kind])


KINDS = ["nothing", "a page", "zeros", "a folder", "another archive", "another state", "objects", "an array"]
KINDS += ["3", "[]", "null", '{"state": []}', '{"state": "DescentState", "t": 5}']


@pytest.mark.parametrize("kind", KINDS)
def test_other_files_are_named_and_passed_over(run: Run, kind: str) -> None:
    saved(run)
    path = run.folder / "checkpoints" / "step-00000009.npz"
    foreign(path, kind)
    assert "is no whole checkpoint" in refused(path)
    found, _, wrong = newest(run, journal(run), DIGEST, 100)
    assert found is not None
    assert same(found.state, STATE)
    assert len(wrong) == 1
    assert wrong[0].startswith(f"{path} is no whole checkpoint")


def test_a_checkpoint_of_another_run(run: Run) -> None:
    saved(run)
    path = saved(run, STATE._replace(t=9), digest="00" * 32)
    assert "is not this run's checkpoint or its theta has changed" in refused(path)
    found, _, wrong = newest(run, journal(run), DIGEST, 100)
    assert found is not None
    assert same(found.state, STATE)
    assert [path.name in text for text in wrong] == [True]


def test_a_checkpoint_with_another_theta(run: Run) -> None:
    """A whole file in which only the hash tells that something was changed."""
    path = saved(run)
    with np.load(path, allow_pickle=False) as file:
        parts = dict(file)
    parts["theta"] = -parts["theta"]
    np.savez(path, **parts)
    assert "its theta has changed" in refused(path)


def test_the_newest_checkpoint(run: Run) -> None:
    """The last of so many steps at most; of those between only the broken ones are mentioned."""
    found = journal(run)
    assert newest(run, found, DIGEST, 100) == (None, found.first, [])
    for t in (3, 10, 200, 99_999_999):
        saved(run, STATE._replace(t=t))
    foreign(run.folder / "checkpoints" / "step-00000150.npz", "nothing")
    foreign(run.folder / "checkpoints" / "step-00000002.npz", "nothing")
    for steps, t, broken in ((2, 0, 1), (3, 3, 0), (9, 3, 0), (10, 10, 0), (199, 10, 1), (200, 200, 0), (None, 200, 1)):
        chosen, place, wrong = newest(run, found, DIGEST, steps)
        assert (chosen.state.t if chosen else 0) == t
        assert place == found.place(t)
        assert len(wrong) == broken


def test_a_checkpoint_that_does_not_fit_the_journal(run: Run) -> None:
    """Of another run of the same configuration: one of the two is forged. Of more steps than are journaled: an earlier
    one will do."""
    saved(run, STATE._replace(t=3))
    path = saved(run, STATE._replace(t=9))
    save_checkpoint(run, STATE._replace(t=9), DIGEST, chain_after(8))
    chosen, place, wrong = newest(run, journal(run), DIGEST)
    assert chosen is not None
    assert (chosen.state.t, place.t, place.chain) == (3, 3, chain_after(3))
    sentence = f"{path} follows the journal's chain value {chain_after(8).hex()}, expected the one after step 9 in "
    assert [
        text.startswith(f"{sentence}journal.rbd, {chain_after(9).hex()}: restore one of them") for text in wrong
    ] == [True]
    found = journal(run)
    newest(run, found, DIGEST)
    read = found.records(place)
    assert [next(read).t for _ in range(5)] == [3, 4, 5, 6, 7]
    with pytest.raises(RunError, match="follows the journal's chain value"):
        next(read)
    saved(run, STATE._replace(t=9))
    _, place, wrong = newest(run, journal(run, 8), DIGEST)
    assert place.t == 3
    assert [f"{path} is the state after step 9, expected one that journal.rbd reaches" in text for text in wrong] == [
        True
    ]
    assert newest(run, journal(run, 9), DIGEST)[1].t == 9


@pytest.mark.parametrize("value", [None, 3, "", "00" * 31, "zz" * 32, ["00" * 32]])
def test_a_checkpoint_without_a_chain_value(run: Run, value: object) -> None:
    path = saved(run)
    with np.load(path, allow_pickle=False) as file:
        found = dict(file)
    info = {**json.loads(str(found["info"])), "journal": value}
    np.savez(path, **{**found, "info": np.array(json.dumps(info))})
    assert "is no whole checkpoint" in refused(path)


def test_the_checkpoints_are_in_the_order_of_steps(run: Run) -> None:
    for t in (100, 20, 3):
        saved(run, DescentState(STATE.theta, t, EMPTY))
    (run.folder / "checkpoints" / ".step-00000500.npz.77.part").write_bytes(b"half")
    assert [path.name for path in run.checkpoints] == [f"step-{t:08d}.npz" for t in (3, 20, 100)]


def test_nothing_in_a_run_is_pickled(tmp_path: Path) -> None:
    found = trained(tmp_path / "run", *TINY, "--method", "fpd", "--steps", "3")
    arrays = [*found.checkpoints, found.folder / "final.npz"]
    assert len(arrays) == 2
    for path in arrays:
        with np.load(path, allow_pickle=False) as file:
            assert {file[name].dtype.kind for name in file.files} == {"f", "U"}


# Files that are whole or not there.


def half(out: BinaryIO) -> None:
    out.write(b"half")
    out.flush()
    raise OSError(28, "No space left on device")


def interrupted(out: BinaryIO) -> None:
    out.write(b"half")
    raise KeyboardInterrupt


@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize(("writer", "error"), [(half, RunError), (interrupted, KeyboardInterrupt)])
def test_a_fault_leaves_the_old_file(tmp_path: Path, before: bytes | None, writer: Any, error: type) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)
    with pytest.raises(error):
        write_whole(path, writer)
    assert (path.read_bytes() if path.exists() else None) == before
    assert {item.name for item in tmp_path.iterdir()} <= {"file"}
    write_whole(path, lambda out: out.write(b"new"))
    assert [(item.name, item.read_bytes()) for item in tmp_path.iterdir()] == [("file", b"new")]


def test_a_fault_of_the_disk_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        write_whole(tmp_path / "file", half)
    sentence = f"{tmp_path / 'file'} cannot be written (No space left on device), expected a folder with room"
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_process_killed_while_it_writes(tmp_path: Path) -> None:
    """The old file is there, the stray part is in nobody's way."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    code = (
        "import os, pathlib, rbd_ref.runs.files as files\n"
        "write = lambda out: [out.write(b'x' * 99999), os.kill(os.getpid(), 9)]\n"
        f"files.write_whole(pathlib.Path({str(path)!r}), write)"
    )
    assert run_python("-c", code, folder=ROOT).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert [item.suffix for item in tmp_path.iterdir() if item != path] == [".part"]
    write_whole(path, lambda out: out.write(b"new"))
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("below", ["/proc/no", "/dev/null/run"])
def test_a_folder_that_cannot_be_made(below: str) -> None:
    with pytest.raises(RunError) as caught:
        runs.create(Path(below), configs.make({}))
    assert str(caught.value).startswith(f"{below} cannot be made (No")
    assert "choose another folder with --out" in str(caught.value)


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 300)
    for call in (lambda: runs.create(folder, configs.make({})), Run(folder).config, lambda: runs.begun(Run(folder))):
        with pytest.raises(RunError, match=r"\(File name too long\)"):
            call()


def test_a_folder_that_cannot_be_written_to() -> None:
    for write in (lambda path: runs.write_text(path, "x"), lambda path: runs.save_arrays(path, {}, theta=STATE.theta)):
        with pytest.raises(RunError, match=r"^/dev/null/file cannot be written \(Not a directory\)"):
            write(Path("/dev/null/file"))


# The folder and its texts.


def test_a_new_folder(tmp_path: Path) -> None:
    config = configs.make({"data": "mnist", "method": "sgd", "seed": 5})
    run = runs.create(tmp_path / "a" / "b", config)
    assert run.config() == config
    assert run.config(data_dir="elsewhere").data_dir == "elsewhere"
    assert (run.checkpoints, run.result()) == ([], None)
    assert sorted(item.name for item in run.folder.iterdir()) == ["checkpoints", "config.toml"]


def test_a_folder_that_holds_a_run(run: Run) -> None:
    before = (run.folder / "config.toml").read_bytes()
    with pytest.raises(RunError, match=r"holds a run already, expected a new folder: .*--resume"):
        runs.create(run.folder, configs.make({"seed": 1}))
    assert (run.folder / "config.toml").read_bytes() == before


def test_a_folder_that_holds_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lacks = {".": "has no config.toml", "no": "does not exist", "file": "is no folder"}
    for name, lack in lacks.items():
        for read in (Run(tmp_path / name).config, Run(tmp_path / name).settings):
            with pytest.raises(RunError, match=f"^{tmp_path / name} is no run: it {lack}, expected the folder that"):
                read()


@pytest.mark.parametrize("text", ["method = ", "colour = 3", 'method = "adam"', "lr = true", "\0", "lr = -1.0"])
def test_a_configuration_that_was_changed(run: Run, text: str) -> None:
    (run.folder / "config.toml").write_text(text)
    with pytest.raises(RunError) as caught:
        run.config()
    assert str(caught.value).startswith(f"{run.folder / 'config.toml'} is not as it was written: ")
    assert "\n" not in str(caught.value)


def test_the_journal_of_another_run(run: Run) -> None:
    Writer.create(run.journal, configs.make({"seed": 1}).digest).close()
    assert runs.journal_of(run, configs.make({"seed": 1})).torn == 0
    with pytest.raises(RunError, match="is the journal of another configuration"):
        runs.journal_of(run, run.config())


def metric(t: int) -> str:
    return json.dumps({"kind": "step", "step": t, "loss": 1 / (t + 1), "seconds": 0.5}) + "\n"


def test_metrics_after_a_step_are_cut(run: Run) -> None:
    """The others stay as they are, letter by letter."""
    run.metrics.write_text("".join(metric(t) for t in (1, 2, 3, 4)))
    runs.cut_metrics(run, 3)
    assert run.metrics.read_text() == metric(1) + metric(2) + metric(3)
    runs.cut_metrics(run, 0)
    assert run.metrics.read_text() == ""


def test_a_torn_line_of_metrics_is_left_out(run: Run) -> None:
    """Wherever it was cut, even where the rest would make sense by itself."""
    whole = metric(1) + metric(2)
    for cut in range(len(metric(1)), len(whole)):
        run.metrics.write_text(whole[:cut])
        assert [text for _, text in runs.metrics(run.metrics)] == [metric(1)]
        runs.cut_metrics(run, 9)
        assert run.metrics.read_text() == metric(1)


@pytest.mark.parametrize("text", ["garbage", '{"a": 3}', "3", "\x00\x00", '{"step": 1}', "[]"])
def test_a_damaged_line_of_metrics_is_named(run: Run, text: str) -> None:
    run.metrics.write_text(metric(1) + text + "\n" + metric(2))
    with pytest.raises(RunError) as caught:
        runs.cut_metrics(run, 1)
    assert f"{run.metrics}, line 2, " in str(caught.value)
    assert run.metrics.read_text() == metric(1) + text + "\n" + metric(2)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"a": 3}', "null"])
def test_a_damaged_result_is_named(run: Run, text: str) -> None:
    (run.folder / "result.json").write_text(text)
    with pytest.raises(RunError, match=f"^{run.folder / 'result.json'} "):
        run.result()


def test_metrics_that_are_not_there(run: Run) -> None:
    assert list(runs.metrics(run.metrics)) == []
    runs.cut_metrics(run, 3)
    assert lines(run) == []


def test_a_line_torn_within_a_letter(run: Run) -> None:
    """A process that is killed does not care where a letter of two bytes ends."""
    torn = '{"kind": "step", "step": 2, "seconds": 1.0, "name": "é'.encode()[:-1]
    run.metrics.write_bytes(metric(1).encode() + torn)
    assert [values["step"] for values, _ in runs.metrics(run.metrics)] == [1]
    run.metrics.write_bytes(torn + b"\n" + metric(1).encode())
    with pytest.raises(RunError, match=rf"^{run.metrics}, line 1, is no JSON \("):
        list(runs.metrics(run.metrics))


def test_records_in_order_each_step_once(run: Run) -> None:
    """A step that was done again after an interruption counts as it was last, whatever was written between."""
    rows = [("step", 1), ("step", 3), ("evaluation", 3), ("step", 2), ("step", 3), ("step", 20)]
    lines = [json.dumps({"kind": kind, "step": t, "seconds": k}) + "\n" for k, (kind, t) in enumerate(rows)]
    run.metrics.write_text("".join(lines))
    assert [(values["step"], values["seconds"]) for values in run.records("step")] == [(1, 0), (2, 3), (3, 4), (20, 5)]
    assert [values["step"] for values in run.records("evaluation")] == [3]
    assert run.records("checkpoint") == []


def test_keys_are_asked_for_by_those_who_need_them(run: Run) -> None:
    """The report shows runs of other versions, with lines that training could not go on from."""
    run.metrics.write_text('{"kind": "step", "step": 1}\n{"loss": 9}\n' + metric(2))
    (run.folder / "result.json").write_text('{"test_accuracy": 0.5}')
    assert [values["step"] for values in run.records("step", needed=())] == [1, 2]
    assert run.result(needed=()) == {"test_accuracy": 0.5}
    with pytest.raises(RunError, match=rf"^{run.metrics}, line 1, lacks seconds, expected"):
        run.records("step")
    with pytest.raises(RunError, match=r"result.json lacks step, sha256, journal, expected"):
        run.result()


def test_settings_of_another_version(run: Run) -> None:
    (run.folder / "config.toml").write_text('method = "adam"\ncolour = 3\n')
    assert run.settings() == {"method": "adam", "colour": 3}


@pytest.mark.parametrize("content", [b"[" * 100_000, b"{" + b'"a":{' * 100_000, b"\xff", b"9" * 10_000])
def test_results_that_no_parser_reads(run: Run, content: bytes) -> None:
    (run.folder / "result.json").write_bytes(content)
    with pytest.raises(RunError, match=r"result.json is no JSON"):
        run.result()


def test_a_file_that_cannot_be_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even by root, who may read everything."""

    def broken(path: Path, *_: object) -> bytes:
        raise OSError(5, "Input/output error")

    run.metrics.write_text(metric(1))
    (run.folder / "result.json").write_text("{}")
    monkeypatch.setattr(Path, "read_bytes", broken)
    monkeypatch.setattr(Path, "open", broken)
    for read in (lambda: run.records("step"), run.result):
        with pytest.raises(RunError, match=r"cannot be read \(Input/output error\), expected the folder of a run: "):
            read()
