"""Runs on a disk that is full at some moment: one sentence; with more room they continue to the same weights."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random

from run_tools import small_disk
from torture.campaign import Campaign, Tally, demand
from torture.commands import Child, Said, check
from torture.kills import arguments, kept
from torture.runs import FLAGS, Undisturbed, check_end, resume, undisturbed

PAGE = 4096  # bytes by which a disk's size counts
PAGES = 16  # that a run needs, about
FRESH = 0.04  # of the cases are commands in new processes


def unusable(folder: Path) -> str:
    """Whether a disk can be mounted here."""
    with small_disk(folder / "disk", PAGE) as grow:
        return "" if grow else "no tmpfs can be mounted here; it takes root"


def filled(known: Undisturbed, folder: Path, fresh: bool) -> Said:
    """A run, new or continued, on a disk where it may not find room; nothing that is half written stays."""
    target = folder / "disk" / "run"
    before = kept(target)
    said = check(Child(folder, "train", *arguments(known, target), fresh=fresh).ended())
    demand(said.status == 0 or "No space left on device" in said.err, said.text)
    demand(kept(target).startswith(before), "steps that had been journaled are lost")
    parts = [path.name for path in target.rglob("*.part")]
    demand(not parts, f"{parts} were left half written")
    demand(not (target / "lock").exists(), "the folder stays locked")
    return said


def enlarge(disk: Path, pages: int) -> None:
    """Make the disk one of so many pages."""
    subprocess.run(["mount", "-o", f"remount,size={PAGE * pages}", str(disk)], check=True)


def case(random: Random, folder: Path) -> Tally:
    """A disk of some pages, on which a run is tried with more and more room."""
    known = undisturbed(random.choice(list(FLAGS)))
    fresh = random.random() < FRESH
    tally = Tally()
    pages = random.randint(1, PAGES)
    disk = folder / "disk"
    with small_disk(disk, PAGE * pages):
        while filled(known, folder, fresh).status:
            tally["full"] += 1
            pages += random.randint(1, PAGES)
            enlarge(disk, pages)
        enlarge(disk, 10 * PAGES)
        check(resume(folder, disk / "run", fresh), [0])
        check_end(known, folder, disk / "run")
    return tally


CAMPAIGN = Campaign("full disk", 1.5, case, unusable)
