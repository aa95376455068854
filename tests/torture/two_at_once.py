"""Several processes on one folder, some to write and some to read: one writes, who else wants to is told who does."""

from __future__ import annotations

import re
import signal
import time
from functools import cache
from pathlib import Path
from random import Random

from torture.campaign import Campaign, Tally, demand
from torture.commands import Child, Said, check
from torture.runs import LONG_RUN, Undisturbed, check_end, made, resume

SPREAD = 0.25  # seconds over which processes start
FRESH = 0.03  # of the cases are commands in new processes
HELD = re.compile(r"is being written by process (\d+) on \S+ since ")
OTHERWISE = ("holds a run already, expected a new folder", "is no run: it ")


@cache
def known_run() -> Undisturbed:
    """The run that all want to write: one that takes longer than others."""
    return made("long", LONG_RUN)


def started(random: Random, folder: Path, what: str, fresh: bool) -> Child:
    """One process more, a moment after the one before."""
    target = folder / "run"
    commands = {
        "new": ("train", *known_run().flags, "--quiet", "--out", target),
        "resume": ("train", "--resume", "--quiet", "--out", target),
        "verify": ("replay", target, "--verify"),
        "report": ("report", target, "-o", folder / f"report-{random.random()}.html"),
    }
    time.sleep(random.uniform(0, SPREAD * (10 if fresh else 1)) / 3)
    return Child(folder, *commands[what], fresh=fresh)


def check_writer(said: Said, pids: list[int]) -> None:
    """It wrote, or says who does, or that it is too early or too late."""
    check(said)
    if said.status == 2 and not any(words in said.err for words in OTHERWISE):
        holder = HELD.search(said.err)
        demand(holder is not None and int(holder[1]) in pids, f"who holds it is not said: {said.text}")


def case(random: Random, folder: Path) -> Tally:
    """A first writer, then two to five others; one of the writers may be killed."""
    fresh = random.random() < FRESH
    kinds = ["new", *random.choices(["new", "resume", "verify", "report"], k=random.randint(2, 5))]
    random.shuffle(kinds)
    children = [started(random, folder, kind, fresh) for kind in kinds]
    dead = random.choice(children) if random.random() < 0.3 else None
    if dead is not None:
        dead.kill(signal.SIGKILL)
    ends = [child.ended() for child in children]
    writers = [child.pid for child in children if child.name == "train"]
    for child, said in zip(children, ends, strict=True):
        if child is not dead:
            check_writer(said, writers) if child.name == "train" else check(said)
    if dead is None:
        made_new = [said.status for kind, said in zip(kinds, ends, strict=True) if kind == "new"]
        demand(made_new.count(0) == 1, f"of those who begin the run {made_new.count(0)} succeed: {ends}")
    finish(folder)
    return tallied(kinds, ends)


def finish(folder: Path) -> None:
    """Whatever happened, the run can be continued to its end, or begun where nobody has."""
    begun = (folder / "run" / "config.toml").exists()
    flags = ("--resume",) if begun else known_run().flags
    check(Child(folder, "train", *flags, "--quiet", "--out", folder / "run").ended(), [0])
    check(resume(folder, folder / "run"), [0])
    check_end(known_run(), folder, folder / "run")


def tallied(kinds: list[str], ends: list[Said]) -> Tally:
    """Processes, and how many were told to wait or saw something unfinished."""
    tally = Tally(f"{'writers' if kind in ('new', 'resume') else 'readers'}" for kind in kinds)
    tally["held"] = sum("is being written by" in said.err for said in ends)
    return tally


CAMPAIGN = Campaign("two at once", 2, case)
