"""The command: campaigns share the minutes by weight, cases are played until these are over, a table says how many
failed."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rbd_ref._machine import cores
from rbd_ref._progress import bar
from tools import ROOT
from torture import runs
from torture.campaign import Campaign, Tally
from torture.campaigns import CAMPAIGNS
from torture.pool import Outcome, Pool

PAGE = ROOT / "docs" / "reliability.json"  # what docs/reliability.md is written from
MEMORY = Path("/dev/shm")
ROOM = 2 << 30  # bytes
SHOWN = 3000  # characters of what a case found
Row = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    """All flags."""
    result = argparse.ArgumentParser("python tests/torture", description=__doc__)
    result.add_argument("--minutes", type=float, default=2.0, help="for all campaigns together (2)")
    result.add_argument("--seed", type=int, default=0, help="of all cases (0)")
    result.add_argument("--campaign", action="append", choices=list(CAMPAIGNS), help="only this one; may be repeated")
    result.add_argument("--case", type=int, metavar="N", help="only this case of the campaign")
    result.add_argument("--jobs", type=int, default=cores(), help="cases at a time (one for each core)")
    result.add_argument(
        "--json", type=Path, metavar="FILE", help="where the figures go; docs/reliability.json: page too"
    )
    return result


def until(deadline: float) -> Iterator[int]:
    """Numbers of cases until the time is over; one at least."""
    case = 0
    while case == 0 or time.monotonic() < deadline:
        yield case
        case += 1


def complain(campaign: Campaign, seed: int, found: Outcome, base: Path) -> None:
    """What a case found, where its folder is, and how to repeat it."""
    again = f"{sys.executable} tests/torture --campaign '{campaign.name}' --case {found.case} --seed {seed}"
    folder = base / f"{campaign.name}-{found.case}"
    text = found.text if len(found.text) <= SHOWN else f"{found.text[:SHOWN]} ..."
    print(f"FAILED {campaign.name} {found.case}: {text}\n    kept: {folder}\n    repeat: {again}", flush=True)


def fight(campaign: Campaign, options: argparse.Namespace, pool: Pool, base: Path, seconds: float) -> Row:
    """A campaign, for so many seconds; its row of the table."""
    began = time.monotonic()
    cases = iter([options.case]) if options.case is not None else until(began + seconds)
    tally = Tally()
    count = 0
    failed = []
    with bar(campaign.name, round(seconds)) as progress:
        for found in pool.outcomes(campaign, options.seed, cases):
            count += 1
            tally += found.tally
            if found.text:
                failed.append(found.case)
                complain(campaign, options.seed, found, base)
            progress.update(min(round(time.monotonic() - began), progress.total) - progress.n)
    print(f"{campaign.name}: {count} cases in {time.monotonic() - began:.0f} s, {len(failed)} failed", flush=True)
    return {"campaign": campaign.name, "cases": count, "failed": len(failed), "of these": dict(sorted(tally.items()))}


def skipped(campaign: Campaign, why: str) -> Row:
    """The row of a campaign that cannot run here."""
    print(f"{campaign.name}: left out: {why}", flush=True)
    return {"campaign": campaign.name, "cases": 0, "failed": 0, "left out": why}


def all_rows(options: argparse.Namespace, base: Path) -> list[Row]:
    """All campaigns, one after the other; what one leaves of its minutes is for those that follow."""
    names = options.campaign or CAMPAIGNS
    waiting = [CAMPAIGNS[name] for name in names]
    rows = []
    runs.use(base)
    for name in runs.FLAGS:
        runs.undisturbed(name)  # here, so that players find them and have all kernels
    pool = Pool(base, 1 if options.case is not None else options.jobs)
    deadline = time.monotonic() + 60 * options.minutes
    try:
        while waiting:
            campaign = waiting.pop(0)
            probe = Path(tempfile.mkdtemp(dir=base))
            if why := campaign.unusable(probe):
                rows.append(skipped(campaign, why))
                continue
            left = max(0.0, deadline - time.monotonic())
            share = campaign.weight / (campaign.weight + sum(other.weight for other in waiting))
            rows.append(fight(campaign, options, pool, base, left * share))
    finally:
        pool.end()
    return rows


def roomy() -> Path | None:
    """Memory to keep files in, if there is plenty: no case waits for a disk there."""
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM else None


def unmount(base: Path) -> None:
    """What cases that were killed have left mounted."""
    for line in Path("/proc/mounts").read_text().splitlines() if Path("/proc/mounts").exists() else ():
        place = line.split()[1].replace("\\040", " ")
        if place.startswith(f"{base}/"):
            subprocess.run(["umount", "-l", place], check=False)


def tidy(base: Path) -> None:
    """Leave the folders of failed cases only."""
    unmount(base)
    for path in base.iterdir():
        if not any(path.name.startswith(f"{name}-") for name in CAMPAIGNS):
            shutil.rmtree(path)
    if not any(base.iterdir()):
        base.rmdir()


def figures(options: argparse.Namespace, rows: list[Row]) -> Row:
    """What the page is made of; no date and no time, so that it can be compared."""
    packages = ("rbd-ref", "numpy", "numba", "mpi4py", "mpich")
    return {
        "seed": options.seed,
        "minutes": options.minutes,
        "jobs": options.jobs,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "rows": rows,
    }


def show(rows: list[Row]) -> None:
    """The table."""
    print(f"{'campaign':<20}{'cases':>8}{'failed':>8}  of these")
    for row in rows:
        more = row.get("left out") or ", ".join(f"{name} {count}" for name, count in row["of these"].items())
        print(f"{row['campaign']:<20}{row['cases']:>8}{row['failed']:>8}  {more}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 if a case failed."""
    options = parser().parse_args(arguments)
    base = Path(tempfile.mkdtemp(prefix="torture-", dir=roomy()))
    try:
        rows = all_rows(options, base)
    finally:
        tidy(base)
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(figures(options, rows), indent=1) + "\n")
    if options.json and options.json.resolve() == PAGE:
        subprocess.run([sys.executable, ROOT / "docs" / "reliability_table.py"], check=True)
    return 1 if any(row["failed"] for row in rows) else 0
