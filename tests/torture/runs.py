"""The small runs that are tortured, and what they come to undisturbed: made once, in a folder that players share."""

from __future__ import annotations

import json
import os
import shutil
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rbd_ref import train
from rbd_ref.runs import folder as folders
from rbd_ref.training.recorded import open_run
from torture.campaign import demand
from torture.commands import Child, Said, check, run
from torture.events import counted

SIZE = ("--net", "mlp:64-10", "--batch-size", 300, "--log-every", 2, "--workers", 1)  # D = 650
SMALL = (*SIZE, "--dims", 4)
FLAGS: dict[str, tuple[object, ...]] = {
    "rbd": (*SMALL, "--epochs", 3),
    "momentum": (*SMALL, "--epochs", 3, "--momentum", 0.5, "--redraw", 3, "--family", "uniform"),
    "srht": (*SMALL, "--epochs", 4, "--dims", 20, "--family", "srht", "--lr", 0.5),
    "sparse, split": (*SMALL, "--epochs", 6, "--workers", 3, "--exchange", "split", "--family", "sparse:10"),
    "shared": (*SMALL, "--epochs", 10, "--workers", 4, "--exchange", "shared", "--family", "rademacher"),
    "layers": (*SMALL, "--net", "mlp:64-16-10", "--epochs", 3, "--compartments", "layer", "--dims", 30),
    "fpd": (*SMALL, "--epochs", 3, "--method", "fpd", "--momentum", 0.5),
    "fpd, adam": (*SMALL, "--epochs", 6, "--workers", 2, "--method", "fpd", "--optimiser", "adam", "--lr", 0.1),
    "sgd": (*SIZE, "--epochs", 6, "--workers", 2, "--method", "sgd", "--momentum", 0.5),
    "nes": (*SMALL, "--epochs", 3, "--method", "nes", "--antithetic"),
    "nes-shared-batch": (*SMALL, "--steps", 10, "--workers", 5, "--batch-size", 100, "--method", "nes-shared-batch"),
    "rbd, then sgd": (*SMALL, "--epochs", 4, "--switch", "2:sgd"),
    "sgd, then fpd": (*SMALL, "--epochs", 4, "--workers", 2, "--method", "sgd", "--switch", "2:fpd"),
    "memory": (*SMALL, "--epochs", 6, "--workers", 3, "--memory", 0.9, "--schedule", "linear"),
    "feedback": (*SMALL, "--epochs", 4, "--workers", 2, "--feedback", "--family", "srht", "--switch", "2:rbd"),
    "signs": (*SMALL, "--epochs", 4, "--workers", 2, "--dims", 40, "--coefficients", "sign", "--feedback"),
    "bytes, split": (
        *SMALL,
        "--epochs",
        4,
        "--workers",
        3,
        "--dims",
        20,
        "--coefficients",
        "int8",
        "--exchange",
        "split",
    ),
    "mean": (*SMALL, "--steps", 9, "--workers", 5, "--batch-size", 40, "--combine", "mean", "--transforms", "top:2"),
}
LONG_RUN = (*SMALL, "--epochs", 20)  # for what has to overlap
BASE: list[Path] = []


class Undisturbed(NamedTuple):
    """A run that nothing happened to: its flags, its folder, the sha256 of theta after each step, its file events."""

    name: str
    flags: tuple[object, ...]
    folder: Path
    thetas: list[str]
    events: int

    @property
    def steps(self) -> int:
        """How many it has."""
        return len(self.thetas) - 1

    @property
    def sha256(self) -> str:
        """Of theta at the end."""
        return self.thetas[-1]

    @property
    def journal(self) -> bytes:
        """All of it."""
        return (self.folder / "journal.rbd").read_bytes()


def use(base: Path) -> None:
    """Where the runs are kept from now on."""
    BASE[:] = [base]


@cache
def undisturbed(name: str) -> Undisturbed:
    """The run of this name, made by whoever needs it first."""
    return made(name.replace(" ", "-"), FLAGS[name])


def made(name: str, flags: tuple[object, ...]) -> Undisturbed:
    """A run with these flags and all that is known of it."""
    folder = BASE[0] / "undisturbed" / name.replace(",", "")
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.{os.getpid()}")
        part.mkdir(parents=True)
        demand(train.main([*map(str, flags), "--quiet", "--out", str(part / "run")]) == 0, f"{name} cannot be trained")
        recorded = open_run(part / "run")
        thetas = [folders.sha256(recorded.theta(step)) for step in range(recorded.steps + 1)]
        (part / "known.json").write_text(json.dumps([thetas, _events(part, flags)]))
        try:
            part.rename(folder)
        except OSError:
            shutil.rmtree(part)  # another player was first
    thetas, events = json.loads((folder / "known.json").read_text())
    return Undisturbed(name, flags, folder / "run", thetas, events)


def _events(folder: Path, flags: tuple[object, ...]) -> int:
    """How many events of files the run has."""
    log = folder / "events"
    target = folder / "counted"
    child = Child(folder, "train", *flags, "--quiet", "--out", target, hook=lambda: counted(target, log))
    check(child.ended(), [0])
    shutil.rmtree(target)
    return log.stat().st_size


def sha256(folder: Path) -> str:
    """Of theta at the end of a run, by its result."""
    return str(json.loads((folder / "result.json").read_text())["sha256"])


def resume(folder: Path, target: Path, fresh: bool = False) -> Said:
    """A run, continued to its end in a process of its own."""
    return run(folder, "train", "--resume", "--quiet", "--out", target, fresh=fresh)


def check_end(known: Undisturbed, folder: Path, target: Path) -> None:
    """Fail unless a run has come to the end of the undisturbed one, and agrees with its files."""
    found = sha256(target)
    demand(found == known.sha256, f"theta has sha256 {found}, undisturbed {known.sha256}")
    demand((target / "journal.rbd").read_bytes() == known.journal, "the journal is not that of the undisturbed run")
    left = [path.name for path in target.rglob("*") if path.name == "lock"]
    demand(not left, f"the run has ended and left {left}")
    check(run(folder, "replay", target, "--verify"), [0])
