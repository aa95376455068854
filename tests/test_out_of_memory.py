"""Memory that runs out, in a real process whose address space may not grow: one sentence and status 2, or success."""

from __future__ import annotations

import gzip
import json
import struct
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from rbd_ref.runs.files import RunError
from rbd_ref.runs.memory import enough_memory
from run_tools import ONE_THREAD, TINY, one_line, refused, suited, trained, whole_names
from test_data import IDX
from tools import run_python

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(sys.platform != "linux", reason="address spaces are limited as on Linux"),
]

NET = "mlp:64-10000-30-10"
D = 950_340  # of this network: a vector has 3.8 MB
LARGE = ("--net", NET, "--dims", "3", "--batch-size", "40", "--steps", "2", "--family", "srht", "--quiet")
NEEDS = f"a step of D = {D} parameters and {{}} workers takes about {{}} vectors of D floats, {{}} MB"
ONE = NEEDS.format(1, 8, 30)
DRIVER = str(Path(__file__).with_name("limit_driver.py"))
HEAP = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"}  # a vector that is freed leaves no room behind
SHAPES = ((60000, 28, 28), (60000,), (10000, 28, 28), (10000,))  # of the files of MNIST


class Outcome(NamedTuple):
    """What came of a command."""

    status: int
    out: str
    err: str


def empty_mnist(folder: Path) -> Path:
    """MNIST's files with 55 MB of black images."""
    folder.mkdir()
    for name, shape in zip(IDX, SHAPES, strict=True):
        size = shape[0] * (784 if len(shape) > 1 else 1)
        head = struct.pack(f">{1 + len(shape)}I", 0x800 + len(shape), *shape)
        (folder / f"{name}.gz").write_bytes(gzip.compress(head + bytes(size), compresslevel=1))
    return folder


def talkative(folder: Path) -> Path:
    """A run with a line of metrics for each of 20,000 steps."""
    run = trained(folder, *TINY, "--steps", "1", "--log-every", "1")
    line = run.metrics.read_text().splitlines()[0]
    run.metrics.write_text("".join(line.replace('"step": 1,', f'"step": {t},') + "\n" for t in range(1, 20_001)))
    return folder


def cases(folder: Path) -> dict[str, tuple[str, list[float | None], list[object]]]:
    """Commands, the room that they get, and their flags."""
    rooms = [None, 2, *range(4, 36, 8), 200]
    sgd = ["--method", "sgd", "--workers", 2]
    mnist = ["--data", "mnist", "--data-dir", empty_mnist(folder / "mnist"), "--net", "mlp:784-10", "--dims", "3"]
    page = [talkative(folder / "talkative"), "-o", folder / "page-{}.html"]
    return {
        "rbd": ("train", rooms, [*LARGE, "--workers", 4, "--out", folder / "rbd-{}"]),
        "sgd": ("train", rooms, [*suited(*LARGE, *sgd), "--out", folder / "sgd-{}"]),
        "fit": ("fit", [None, 2, 12, 24], [NET]),
        "verify": ("replay", [None, 0.2, 6, 12, 24, 200], [folder / "rbd-0", "--verify"]),
        "step": ("replay", [None, 0.2, 6, 12, 24, 200], [folder / "rbd-0", "--step", 2]),
        "mnist": ("train", [20], [*mnist, "--out", folder / "mnist-{}"]),
        "report": ("report", [None, 0.2, 4, 8, 400], page),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("limited")


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[str, list[Outcome]]:
    """Of every case; those without a limit end well."""
    known = cases(folder)
    texts = [(name, rooms, [str(flag) for flag in flags]) for name, rooms, flags in known.values()]
    (folder / "cases.json").write_text(json.dumps(texts))
    found = run_python(DRIVER, str(folder / "cases.json"), **HEAP, **ONE_THREAD)
    assert found.returncode == 0, found.stderr
    lines = [[Outcome(*each) for each in json.loads(line)] for line in found.stdout.splitlines()]
    for (_, rooms, _), attempts in zip(known.values(), lines, strict=True):
        assert [each for room, each in zip(rooms, attempts, strict=True) if room is None and each.status] == []
    return dict(zip(known, lines, strict=True))


def sentences(found: list[Outcome]) -> set[str]:
    """The sentences of the attempts that failed; some did, and none but with one sentence."""
    assert {each.status for each in found} <= {0, 2}
    assert [each.err for each in found if each.status == 0 and each.err] == []
    failed = [each.err for each in found if each.status]
    assert failed
    return {one_line(err, "memory ran out while ", "expected more that is free: ") for err in failed}


@pytest.mark.parametrize(("method", "needs"), [("rbd", NEEDS.format(4, 8, 30)), ("sgd", NEEDS.format(2, 10, 38))])
def test_training(outcomes: dict[str, list[Outcome]], folder: Path, method: str, needs: str) -> None:
    """At whatever place: theta0, gradient, kernel, sum, checkpoint. No file is half written."""
    assert [sentence for sentence in sentences(outcomes[method]) if needs not in sentence] == []
    assert outcomes[method][-1].status == 0
    assert [name for name in whole_names(folder) if name.endswith((".part", "lock"))] == []
    assert list((folder / f"{method}-1").iterdir()) == []  # there was no room for theta0


def test_fit(outcomes: dict[str, list[Outcome]]) -> None:
    assert [sentence for sentence in sentences(outcomes["fit"]) if ONE not in sentence] == []


@pytest.mark.parametrize("what", ["verify", "step"])
def test_replay(outcomes: dict[str, list[Outcome]], what: str) -> None:
    """A checkpoint that there is no room for is not taken for one that is broken."""
    needs = NEEDS.format(4, 8, 30)
    assert [sentence for sentence in sentences(outcomes[what]) if needs not in sentence] == []
    assert outcomes[what][-1].status == 0


def test_data_that_there_is_no_room_for(outcomes: dict[str, list[Outcome]]) -> None:
    """The network has its memory: the sentence is about the data."""
    said = sentences(outcomes["mnist"])
    assert {sentence.split(",")[0] for sentence in said} == {
        "rbd_ref.train: memory ran out while the data set mnist was loaded"
    }


def test_report(outcomes: dict[str, list[Outcome]], folder: Path) -> None:
    said = sentences(outcomes["report"])
    assert {sentence.split(",")[0] for sentence in said} == {
        "rbd_ref.report: memory ran out while the runs were read and the page was made"
    }
    assert outcomes["report"][-1].status == 0
    assert not (folder / "page-1.html").exists()


def test_other_faults_stay_what_they_are() -> None:
    with pytest.raises(SystemError, match="broken"), enough_memory("nothing was done"):
        raise SystemError("broken")


def test_memory_that_a_kernel_does_not_find() -> None:
    """In a parallel loop: Numba hands it over as the cause of another error."""
    with pytest.raises(RunError, match="memory ran out while it ran"), enough_memory("it ran"):
        raise SystemError("a result with an exception set") from MemoryError()


@pytest.mark.parametrize(
    ("net", "words"),
    [
        ("mlp:64-60000000-10", "D, the number of parameters, is 4500000010, expected 1 <= "),
        ("mlp:64-99999999999999999999-10", "of 10 digits at most"),
    ],
)
def test_networks_too_large_to_be_written_down(
    tmp_path: Path, net: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, ["--net", net, "--compartments", "layer", "--out", tmp_path / "run"], words)
    assert list(tmp_path.iterdir()) == []
