"""Runs on several ranks of which one is killed, or the launcher, or all are asked to stop: nobody is left behind, and
any number of ranks, or none, continues to the same weights."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from random import Random

from mpi_tools import TRAIN, Job, Outcome, job, why_unusable
from torture.campaign import Campaign, Tally, demand
from torture.commands import check
from torture.kills import arguments, kept
from torture.leftovers import check_left
from torture.runs import FLAGS, Undisturbed, check_end, resume, undisturbed

SECONDS = 6.0  # that a job takes, about
STARTING = "init_import_site"  # what Python says when a signal comes before it has come as far as any package
WAYS = ("rank", "rank", "launcher", "SIGTERM", "SIGINT")


def ranks_of(started: Job) -> list[int]:
    """The processes of the job that run Python."""
    found = []
    for pid in started.processes:
        try:
            name = Path(f"/proc/{pid}/comm").read_text()
        except OSError:
            continue
        if name.startswith("python"):
            found.append(pid)
    return found


def wait_for_moment(random: Random, known: Undisturbed, target: Path, started: Job) -> None:
    """Some time, or until the journal has some length."""
    journal = target / "journal.rbd"
    size = random.uniform(0, len(known.journal)) if random.random() < 0.6 else float("inf")
    end = time.monotonic() + (30 if size < float("inf") else random.uniform(0, SECONDS))
    while time.monotonic() < end and started.process.poll() is None:
        if journal.exists() and journal.stat().st_size >= size:
            return
        time.sleep(0.001)


def hit(random: Random, started: Job, way: str) -> str:
    """Do it; what was done."""
    if way != "rank":
        started.send({"launcher": signal.SIGKILL}.get(way) or signal.Signals[way])
        return way
    pids = ranks_of(started)
    if not pids:
        return "too late"
    try:
        os.kill(random.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return "too late"
    return way


def disturbed(random: Random, known: Undisturbed, folder: Path) -> tuple[str, Outcome]:
    """A job that something happens to, when all of it is gone."""
    target = folder / "run"
    started = job(random.randint(2, 4), (*TRAIN, *arguments(known, target)), folder)
    wait_for_moment(random, known, target, started)
    shared = started.segments
    way = hit(random, started, random.choice(WAYS))
    found = started.ended()
    check_left(shared)
    return way, found


def case(random: Random, folder: Path) -> Tally:
    """One or two kills, then the end with any number of ranks."""
    known = undisturbed(random.choice(list(FLAGS)))
    target = folder / "run"
    tally = Tally()
    for _ in range(random.randint(1, 2)):
        journaled = kept(target)
        way, found = disturbed(random, known, folder)
        demand("Traceback" not in found.err or STARTING in found.err, found.text)
        demand(kept(target).startswith(journaled), "steps that had been journaled are lost")
        tally[way] += 1
    finish(random.randint(0, 4), known, folder)
    return tally


def finish(ranks: int, known: Undisturbed, folder: Path) -> None:
    """The run continues on so many ranks (0: without MPI) to its end, or begins where nobody has."""
    target = folder / "run"
    if ranks or not (target / "config.toml").exists():
        found = job(ranks, (*TRAIN, *arguments(known, target)), folder).ended()
        demand(found.status == 0, found.text)
    else:
        check(resume(folder, target), [0])
    check_end(known, folder, target)


CAMPAIGN = Campaign("kills under MPI", 5, case, why_unusable, limit=300.0)
