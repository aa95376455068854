"""Runs that are killed at any moment, again and again, and resumed: the same weights, and no journaled step is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from torture.campaign import Campaign, Tally, demand
from torture.commands import Child, Said, check
from torture.events import killed
from torture.journal_format import whole
from torture.runs import FLAGS, Undisturbed, check_end, resume, undisturbed

MOST = 4  # kills of a run
FRESH = 0.04  # of the cases are commands in new processes, which take seconds
SECONDS = {False: 0.08, True: 2.5}  # that a run takes in a fork, and as a command
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def kept(target: Path) -> bytes:
    """What is journaled, but for a torn record."""
    path = target / "journal.rbd"
    return whole(path.read_bytes()) if path.exists() else b""


def arguments(known: Undisturbed, target: Path) -> tuple[object, ...]:
    """What to start, or to continue where there is something to continue."""
    begin = ("--resume",) if (target / "config.toml").exists() else known.flags
    return (*begin, "--quiet", "--out", target)


def at_event(random: Random, known: Undisturbed, target: Path, number: int) -> Callable[[], None]:
    """A hook that ends its process at an event of files."""
    event = random.randint(1, known.events)
    part = random.random()
    return lambda: killed(target, number, event, part)


def disturbed(random: Random, known: Undisturbed, folder: Path, fresh: bool) -> Said:
    """A run, new or continued, that a signal hits: at an event of files, or after a time."""
    target = folder / "run"
    number = random.choice(SIGNALS[:2] if fresh else SIGNALS)
    if not fresh and random.random() < 0.7:
        hook = at_event(random, known, target, number)
        return Child(folder, "train", *arguments(known, target), hook=hook).ended()
    child = Child(folder, "train", *arguments(known, target), fresh=fresh)
    time.sleep(random.uniform(0, SECONDS[fresh]))
    child.kill(number)
    return child.ended()


def case(random: Random, folder: Path) -> Tally:
    """A run that is killed some times and then left alone."""
    known = undisturbed(random.choice(list(FLAGS)))
    fresh = random.random() < FRESH
    target = folder / "run"
    tally = Tally()
    for _ in range(random.randint(1, MOST)):
        before = kept(target)
        said = disturbed(random, known, folder, fresh)
        check(said, [0, 128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT])
        demand(kept(target).startswith(before), "steps that had been journaled are lost")
        tally[signal.Signals(-said.status).name if said.status < 0 else "stopped" if said.status else "too late"] += 1
    if not (target / "config.toml").exists():
        tally["before the start"] += 1
        check(Child(folder, "train", *arguments(known, target), fresh=fresh).ended(), [0])
    check(resume(folder, target, fresh), [0])
    check_end(known, folder, target)
    return tally


CAMPAIGN = Campaign("kills", 5, case)
