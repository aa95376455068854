"""What is loaded from a run's folder is checked: whoever changes it, with every checksum as it should be, is found."""

from __future__ import annotations

import json
import os
import resource
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rbd_ref import replay
from rbd_ref.runs import folder as runs
from rbd_ref.runs.archives import DEEPEST, MOST_TEXT, parse_json
from rbd_ref.runs.folder import Run
from rbd_ref.runs.journal import START, encode
from rbd_ref.training.recorded import open_run
from run_tools import TINY, copied, experiment_of, refused, resumed, sha, status, suited, trained, unfinished

QUICK = (*TINY, "--family", "sparse", "--epochs", "2")
WAYS = {
    "rbd": ("--momentum", "0.5"),
    "plain": (),
    "fpd": ("--method", "fpd", "--optimiser", "adam", "--lr", "0.1"),
    "sgd": ("--method", "sgd"),
}
D = 650


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs of six steps with checkpoints after the third and the last."""
    folder = tmp_path_factory.mktemp("loaded")
    return {name: trained(folder / name, *suited(*QUICK, *flags)) for name, flags in WAYS.items()}


def parts_of(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What is said in a file, and its arrays."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(str(arrays.pop("info"))), arrays


def rewrite(path: Path, info: dict[str, Any] | None = None, **changes: np.ndarray) -> None:
    """Put other parts into a checkpoint, with the hash that fits its theta."""
    said, arrays = parts_of(path)
    arrays.update(changes)
    said["sha256"] = runs.sha256(arrays["theta"].astype(np.float32))
    np.savez(path, info=np.array(json.dumps({**said, **(info or {})})), **arrays)  # type: ignore[arg-type]


def found_out(run: Run, path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> None:
    """--verify refuses the file; to resume passes over it with a warning, to the same weights, and writes it anew."""
    refused(capsys, [run.folder, "--verify"], str(path), *words, command=replay.main)
    expected = sha(run)
    capsys.readouterr()
    assert status(["--resume", "--out", unfinished(run).folder]) == 0
    warning = capsys.readouterr().err
    assert [word for word in (str(path), *words) if word not in warning] == []
    assert sha(run) == expected
    if path == run.checkpoints[-1] and path.stem[5:].isdigit():
        assert status([run.folder, "--verify"], replay.main) == 0


ones = np.ones(1, dtype=np.float32)
CHANGES = {
    "one theta for all": ("rbd", {"theta": ones}, "theta has shape (1,), expected (650,)"),
    "no theta": ("rbd", {"theta": ones[:0]}, "theta has shape (0,), expected (650,)"),
    "a column": ("rbd", {"theta": np.ones((D, 1), np.float32)}, "theta has shape (650, 1), expected (650,)"),
    "doubles": ("rbd", {"theta": np.ones(D)}, "theta is float64, expected float32"),
    "big-endian": ("rbd", {"theta": np.ones(D, ">f4")}, "theta is >f4, expected float32"),
    "one velocity": ("rbd", {"velocity": ones}, "velocity has shape (1,), expected (650,)"),
    "no velocity": ("rbd", {"velocity": ones[:0]}, "velocity has shape (0,), expected (650,)"),
    "a velocity too many": ("plain", {"velocity": np.ones(D, np.float32)}, "velocity has shape (650,), expected (0,)"),
    "an infinite velocity": ("rbd", {"velocity": np.full(D, np.inf, np.float32)}, "velocity has an element that is"),
    "no numbers": ("rbd", {"theta": np.full(D, np.nan, np.float32)}, "theta has an element that is not finite"),
    "one coordinate": ("fpd", {"c": np.ones((1, 1), np.float32)}, "c has shape (1, 1), expected (1, 3)"),
    "a flat m": ("fpd", {"m": np.ones(3, np.float32)}, "m has shape (3,), expected (1, 3)"),
    "no numbers in v": ("fpd", {"v": np.full((1, 3), np.nan, np.float32)}, "v has an element that is not finite"),
    "one origin": ("fpd", {"origin": ones}, "origin has shape (1,), expected (650,)"),
    "more": ("rbd", {"more": ones}, "it holds info, theta, velocity, more, expected info, theta, velocity"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_arrays_of_another_form(
    name: str, made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found where it stands, though hash and checksums fit; before, one number was spread over all weights."""
    way, changes, words = CHANGES[name]
    run = copied(made[way], tmp_path / "run")
    rewrite(run.checkpoints[-1], **changes)
    found_out(run, run.checkpoints[-1], capsys, words)


COUNTS: dict[str, tuple[dict[str, Any], str]] = {
    "another t": ({"t": 5}, "the state after step 5, expected that after step 6"),
    "true": ({"t": True}, "t is True, expected a number of steps"),
    "negative": ({"t": -6}, "t is -6, expected a number of steps"),
    "a fraction": ({"t": 6.0}, "t is 6.0, expected a number of steps"),
    "a list": ({"since": []}, "since is [], expected a number of steps"),
    "another since": ({"since": 2}, "since is 2, expected 0"),
    "another method": ({"state": "DescentState"}, "it holds a DescentState, expected a FixedProjectionState"),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_another_kind(
    name: str, made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(made["fpd"], tmp_path / "run")
    info, words = COUNTS[name]
    rewrite(run.checkpoints[-1], info)
    found_out(run, run.checkpoints[-1], capsys, words)


def test_the_state_of_another_method(made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole, but not what this run's method holds; before, to resume was refused where an earlier one would do."""
    run = copied(made["fpd"], tmp_path / "run")
    other = runs.load_checkpoint(made["plain"].checkpoints[-1], made["plain"].config().digest)
    runs.save_checkpoint(run, other.state, run.config().digest, other.chain)
    found_out(run, run.checkpoints[-1], capsys, "expected info, theta, origin, c, m, v")


def test_a_name_that_is_none(made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = copied(made["rbd"], tmp_path / "run")
    path = run.checkpoints[-1].rename(run.checkpoints[-1].with_name("step-six.npz"))
    found_out(run, path, capsys, "is no checkpoint's name, expected one such as step-00000037.npz")


def test_the_form_is_that_of_every_state(made: dict[str, Run]) -> None:
    for run in made.values():
        experiment = experiment_of(run)
        for path in run.checkpoints:
            state, *_ = runs.load_checkpoint(path, run.config().digest, experiment.blank)
            assert runs.shapes(state) == runs.shapes(experiment.blank(state.t))


# Files that would grow.


def peak() -> int:
    """The most memory that this process has had, in kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_a_compressed_archive_is_not_expanded(
    made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of some 300 kB that promises 300 MB of theta."""
    run = copied(made["rbd"], tmp_path / "run")
    path = run.checkpoints[-1]
    with np.load(path, allow_pickle=False) as file:
        info, velocity = file["info"], file["velocity"]
    size = 300 << 20
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in (("info", info), ("velocity", velocity)):
            with archive.open(f"{name}.npy", "w") as out:
                np.lib.format.write_array(out, array)
        with archive.open("theta.npy", "w", force_zip64=True) as out:
            np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": (size // 4,)})
            for _ in range(size >> 20):
                out.write(bytes(1 << 20))
    before = peak()
    with pytest.raises(runs.RunError, match="is compressed to "):
        runs.load_checkpoint(path, run.config().digest)
    found_out(run, path, capsys, "is compressed to ")
    assert peak() - before < 100_000


def test_a_head_that_promises_more_than_there_is(made: dict[str, Run], tmp_path: Path) -> None:
    """No memory is asked for that the numbers would need, even where no shape is expected."""
    run = copied(made["rbd"], tmp_path / "run")
    path = run.checkpoints[-1]
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content.replace(b"(650,), }      ", b"(650000000,), }"))
    for template in (None, experiment_of(run).blank):
        with pytest.raises(runs.RunError, match=r"theta has (2728 bytes|shape \(650000000,\)), expected "):
            runs.load_checkpoint(path, run.config().digest, template)


def test_a_file_that_is_too_long(made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = copied(made["rbd"], tmp_path / "run")
    path = run.checkpoints[-1]
    content = path.read_bytes()
    with path.open("wb") as out:  # zip allows anything before the archive
        out.seek(1 << 30)
        out.write(content)
    found_out(run, path, capsys, f"it has {(1 << 30) + len(content)} bytes, expected ")


# Texts.


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 500 + "]" * 500, '{"a":' * 9 + "1" + "}" * 9, "9" * 5000])
def test_texts_that_are_too_deep(text: str, made: dict[str, Run], tmp_path: Path) -> None:
    """In a checkpoint, in the result and in the metrics."""
    run = copied(made["rbd"], tmp_path / "run")
    path = run.checkpoints[-1]
    arrays = parts_of(path)[1]
    np.savez(path, info=np.array(text), **arrays)  # type: ignore[arg-type]
    (run.folder / "result.json").write_text(text)
    run.metrics.write_text(text + "\n")
    for read in (lambda: runs.load_checkpoint(path, ""), run.result, lambda: run.records("step")):
        with pytest.raises(runs.RunError):
            read()


def test_texts_that_are_too_long(made: dict[str, Run], tmp_path: Path) -> None:
    run = copied(made["rbd"], tmp_path / "run")
    text = json.dumps({"step": 6, "sha256": sha(run), "kind": "step", "seconds": 1, "more": "x" * MOST_TEXT})
    (run.folder / "result.json").write_text(text)
    run.metrics.write_text(text + "\n")
    for read in (run.result, lambda: run.records("step")):
        with pytest.raises(runs.RunError, match=f"expected {MOST_TEXT} at most"):
            read()


@contextmanager
def memory_below(size: int) -> Iterator[None]:
    """No more bytes than these are held at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


def test_metrics_without_an_end_are_not_held(made: dict[str, Run], tmp_path: Path) -> None:
    """2 GB of zeros, of which the disk has none, after lines that are as they were written."""
    run = copied(made["rbd"], tmp_path / "run")
    before = run.metrics.read_bytes()
    os.truncate(run.metrics, 1 << 31)
    words = f"metrics.jsonl has a line of more than {MOST_TEXT} bytes, expected {MOST_TEXT} at most: restore or remove"
    for read in (lambda: run.records("step"), lambda: runs.cut_metrics(run, 3)):
        with memory_below(8 * MOST_TEXT), pytest.raises(runs.RunError, match=words):
            read()
    assert run.metrics.stat().st_size == 1 << 31
    with run.metrics.open("rb") as file:
        assert file.read(len(before)) == before


def test_lines_of_metrics_are_held_one_at_a_time(made: dict[str, Run], tmp_path: Path) -> None:
    run = copied(made["rbd"], tmp_path / "run")
    lines = [json.dumps({"kind": "step", "step": t, "seconds": 1, "more": "x" * 100_000}) + "\n" for t in range(300)]
    run.metrics.write_text("".join(lines))
    with memory_below(8 * MOST_TEXT):
        assert sum(1 for _ in runs.metrics(run.metrics)) == 300
        runs.cut_metrics(run, 200)
    assert run.metrics.stat().st_size == sum(map(len, lines[:201]))


def test_texts_as_deep_as_may_be() -> None:
    assert parse_json("[" * DEEPEST + "]" * DEEPEST)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1))


# Records of the journal.


def replace_record(run: Run, step: int, rows: np.ndarray) -> None:
    """Another record of a step, with the checksums that belong to it."""
    journal = runs.journal_of(run, run.config())
    at = [journal.first, *(record.next for record in journal.records())]
    content = run.journal.read_bytes()
    record = encode(step, rows.astype(np.float32), at[step].chain)
    run.journal.write_bytes(content[: at[step].offset] + record + content[at[step + 1].offset :])


def layouts(way: str) -> dict[str, tuple[np.ndarray, str]]:
    """Records that are none of a run with one worker, and what is said of them."""
    n = 1 if way == "sgd" else 4
    infinite = np.full((1, n), 1.0)
    infinite[0, -1] = np.inf
    return {
        "two workers": (np.ones((2, n)), f"it has 2 rows of {n} numbers where 1 of {n} were sent"),
        "no workers": (np.ones((0, n)), f"it has 0 rows of {n} numbers where 1 of {n} were sent"),
        "a number too many": (np.ones((1, n + 1)), f"it has 1 rows of {n + 1} numbers where 1 of {n} were sent"),
        "a number too few": (np.ones((1, n - 1)), f"it has 1 rows of {n - 1} numbers where 1 of {n} were sent"),
        "an infinite loss": (infinite, "some of its numbers are not finite"),
        "no numbers": (np.full((1, n), np.nan), "some of its numbers are not finite"),
    }


@pytest.mark.parametrize("name", layouts("rbd"))
@pytest.mark.parametrize("way", ["rbd", "fpd", "sgd"])
def test_records_of_another_form(
    way: str, name: str, made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a checkpoint and before one, which a record of another length puts out of its place."""
    rows, words = layouts(way)[name]
    for step in (5, 1):
        run = copied(made[way], tmp_path / f"run-{step}")
        replace_record(run, step, rows)
        place = f"{run.journal} is damaged at step {step}, offset "
        refused(capsys, [run.folder, "--verify"], place, words, command=replay.main)
        if step == 1 and run.journal.stat().st_size == made[way].journal.stat().st_size:
            assert sha(resumed(unfinished(run))) == sha(made[way])
        else:
            refused(capsys, ["--resume", "--quiet", "--out", unfinished(run).folder], place, words)


@pytest.mark.parametrize("shape", [(1, 0), (0, 4), (2, 4)])
def test_the_history_needs_a_loss_of_each_worker(shape: tuple[int, int], made: dict[str, Run], tmp_path: Path) -> None:
    """Though without the problem it cannot know how much each has sent."""
    run = copied(made["rbd"], tmp_path / "run")
    replace_record(run, 5, np.ones(shape))
    with pytest.raises(runs.RunError, match=r"damaged at step 5, .* where 1 of 1 or more were sent"):
        print(open_run(run.folder).history)


def append_record(run: Run, step: int) -> None:
    before = [record.chain for record in runs.journal_of(run, run.config()).records()][-1]
    with run.journal.open("ab") as out:
        out.write(encode(step, np.full((1, 4), 0.5, dtype=np.float32), before))


def test_a_surplus_record(made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a run that has ended nothing can follow the end."""
    run = copied(made["rbd"], tmp_path / "run")
    append_record(run, 6)
    words = "has records of 7 steps, expected 6, after which the run has ended by its result.json"
    refused(capsys, [run.folder, "--verify"], str(run.journal), words, command=replay.main)


def test_records_of_a_run_that_is_prolonged(made: dict[str, Run], tmp_path: Path) -> None:
    """Killed after nine of twelve steps it still has the result of the first six."""
    run = copied(made["rbd"], tmp_path / "run")
    ended = (run.folder / "result.json").read_bytes()
    final = (run.folder / "final.npz").read_bytes()
    trained(run.folder, "--resume", "--epochs", "4")
    assert status([run.folder, "--verify"], replay.main) == 0
    os.truncate(run.journal, START + 9 * 72)
    (run.folder / "result.json").write_bytes(ended)
    (run.folder / "final.npz").write_bytes(final)
    run.checkpoints[-1].unlink()
    runs.cut_metrics(run, 9)
    assert status([run.folder, "--verify"], replay.main) == 0


# All that a run says of itself.


def false(capsys: pytest.CaptureFixture[str], run: Run, *words: str) -> None:
    """--verify refuses the run."""
    refused(capsys, [run.folder, "--verify"], *words, command=replay.main)


def nudged(values: np.ndarray) -> np.ndarray:
    """The same but for the last bit of one number."""
    found = values.copy()
    found.reshape(-1).view(np.uint32)[-1] ^= 1
    return found


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(("way", "name"), [("rbd", "velocity"), *(("fpd", name) for name in ("origin", "c", "m", "v"))])
def test_another_bit_of_a_state(
    way: str, name: str, place: int, made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of what no hash covers."""
    run = copied(made[way], tmp_path / "run")
    path = run.checkpoints[place]
    rewrite(path, **{name: nudged(parts_of(path)[1][name])})
    false(capsys, run, f"{path} does not agree with the journal: its {name} is another")


def test_the_sign_of_a_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal numbers are not enough."""
    run = trained(tmp_path / "run", *QUICK, "--method", "fpd")
    path = run.checkpoints[0]
    v = parts_of(path)[1]["v"]
    assert not v.any()
    rewrite(path, v=-v)
    false(capsys, run, f"{path} does not agree with the journal: its v is another")


def garbage(path: Path, kind: str) -> None:
    """Something else in final.npz."""
    info, arrays = parts_of(path)
    theta = arrays["theta"]
    if kind == "another theta":
        rewrite(path, theta=nudged(theta))
    elif kind == "another hash":
        np.savez(path, info=np.array(json.dumps({**info, "sha256": "00" * 32})), theta=theta)
    elif kind == "one theta":
        rewrite(path, theta=theta[:1])
    elif kind == "more":
        rewrite(path, more=theta)
    elif kind == "a list":
        np.savez(path, info=np.array("[]"), theta=theta)
    else:
        path.write_bytes({"nothing": b"", "a page": b"<html>" * 99, "cut": path.read_bytes()[:-9]}[kind])


@pytest.mark.parametrize(
    "kind", ["another theta", "another hash", "one theta", "more", "a list", "nothing", "a page", "cut"]
)
def test_garbage_in_the_final_file(
    kind: str, made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(made["rbd"], tmp_path / "run")
    path = run.folder / "final.npz"
    garbage(path, kind)
    false(capsys, run, f"{path} ", "restore or remove it")


def test_the_final_theta_of_another_step(
    made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the run, but not of its end."""
    run = copied(made["rbd"], tmp_path / "run")
    path = run.folder / "final.npz"
    rewrite(path, theta=parts_of(run.checkpoints[0])[1]["theta"])
    false(capsys, run, f"{path} has a theta with sha256 ", f"expected that of the run's end, {sha(run)}")


def test_a_run_killed_between_its_last_files(made: dict[str, Run], tmp_path: Path) -> None:
    """final.npz comes first: then there is no result yet, or that of the end before."""
    run = copied(made["rbd"], tmp_path / "run")
    before = (run.folder / "result.json").read_bytes()
    trained(run.folder, "--resume", "--epochs", "3")
    (run.folder / "result.json").write_bytes(before)
    assert status([run.folder, "--verify"], replay.main) == 0
    (run.folder / "result.json").unlink()
    assert status([run.folder, "--verify"], replay.main) == 0
    (run.folder / "final.npz").unlink()
    assert status([run.folder, "--verify"], replay.main) == 0


@pytest.mark.parametrize("change", [{"step": "6"}, {"step": -1}, {"step": True}, {"sha256": 3}, {"sha256": []}])
def test_a_result_of_another_kind(
    change: dict[str, Any], made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(made["rbd"], tmp_path / "run")
    path = run.folder / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    false(capsys, run, f"{path} has step ", "expected a number and a text")


def test_a_chain_value_without_end(made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = copied(made["rbd"], tmp_path / "run")
    path = run.folder / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "journal": "x" * 100_000}))
    assert status([run.folder, "--verify"], replay.main) == 2
    said = capsys.readouterr().err
    assert "result.json says that its chain value is xxx" in said
    assert len(said) < 1000


def test_the_step_of_the_result(made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = copied(made["rbd"], tmp_path / "run")
    path = run.folder / "result.json"
    for step in (3, 5):
        path.write_text(json.dumps({**json.loads(path.read_text()), "step": step}))
        false(capsys, run, f"does not agree with its journal at step {step}: ")
    path.write_text(json.dumps({**json.loads(path.read_text()), "step": 7}))
    false(capsys, run, "at steps [7], expected none after step 6")


@pytest.mark.parametrize("change", [{"sha256": None}, {"sha256": []}])
def test_a_line_of_metrics_of_another_kind(
    change: dict[str, Any], made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(made["rbd"], tmp_path / "run")
    line = {"kind": "checkpoint", "step": 3, "seconds": 1.0, "sha256": "00" * 32, **change}
    run.metrics.write_text(json.dumps(line) + "\n" + run.metrics.read_text())
    false(capsys, run, f"{run.metrics} has step ", "expected a number and a text")


LARGE: list[dict[str, Any]] = [{"seconds": 10**400}, {"seconds": 1e400}, {"step": 10**400}]


@pytest.mark.parametrize(
    "change", [{"step": "3"}, {"step": []}, {"step": -1}, {"seconds": "1"}, {"seconds": None}, *LARGE]
)
def test_a_line_of_metrics_without_numbers(
    change: dict[str, Any], made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither verified nor continued with, before which there was a traceback."""
    run = copied(made["rbd"], tmp_path / "run")
    line = {"kind": "step", "step": 3, "seconds": 1.0, **change}
    run.metrics.write_text(json.dumps(line) + "\n" + run.metrics.read_text())
    words = f"{run.metrics}, line 1, has {next(iter(change))} "
    false(capsys, run, words)
    refused(capsys, ["--resume", "--quiet", "--out", unfinished(run).folder], words)


@pytest.mark.parametrize("lost", [0, 3, 70, 90])
def test_pages_of_the_journal_that_were_never_written(
    lost: int, made: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A power cut leaves zeros at the end: said, cut off, and the run ends with the same weights."""
    run = unfinished(copied(made["rbd"], tmp_path / "run"))
    run.checkpoints[-1].unlink()
    whole = run.journal.read_bytes()
    run.journal.write_bytes(whole[: len(whole) - lost] + bytes(lost + 4096))
    capsys.readouterr()
    assert status(["--resume", "--out", run.folder]) == 0
    steps = 6 - -(-lost // 72)
    size = len(whole) + 4096 - START - 72 * steps
    assert f"{run.journal} ends with a torn record of {size} bytes after step {steps}, " in capsys.readouterr().err
    assert run.journal.read_bytes() == whole
    assert sha(run) == sha(made["rbd"])
