"""The command `python -m rbd_ref.paper`: repeat the paper, list what there is, and check a result to the bit.

    run       train what has no result yet, for as long as one lets it
    list      the cells of every table, what the paper has and what was found
    verify    train one again and compare the sha256 of its weights

Tests: tests/test_paper.py.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from rbd_ref._machine import cores
from rbd_ref.paper.results import path_of, read_result
from rbd_ref.paper.runner import PaperRunner
from rbd_ref.paper.summary import all_results, figures, missing
from rbd_ref.paper.tables import Table, read_tables
from rbd_ref.runs.files import RunError
from rbd_ref.training.command import stop_on_signals
from rbd_ref.training.fit import fit
from rbd_ref.training.grid import SweepStopped, check_jobs
from rbd_ref.training.logbook import stderr
from rbd_ref.training.pools import local_pool
from rbd_ref.training.trainer import StopRequest

DESCRIPTION = "Repeat the paper's tables and figures, and check what was found."
FOLDER = Path("benchmarks/paper")


def parser() -> argparse.ArgumentParser:
    """All flags."""
    result = argparse.ArgumentParser("python -m rbd_ref.paper", description=DESCRIPTION)
    commands = result.add_subparsers(dest="command", required=True, metavar="run|list|verify")
    run = commands.add_parser("run", help="train what has no result yet")
    run.add_argument("--jobs", type=int, default=cores(), metavar="N", help="runs side by side (default: one a core)")
    run.add_argument("--minutes", type=float, metavar="N", help="stop after so long; what was begun goes on next time")
    run.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds of each cell (default: %(default)s)")
    run.add_argument("--only", default="", metavar="TEXT", help="tables whose name has this in it")
    run.add_argument("--work", type=Path, default=Path("runs/paper"), metavar="DIR", help="where unfinished runs are")
    listed = commands.add_parser("list", help="all cells, the paper's figures and ours")
    verify = commands.add_parser("verify", help="train a result again and compare the sha256 of its weights")
    verify.add_argument("name", help="of a result, or its file")
    for each in (run, listed, verify):
        each.add_argument("--folder", type=Path, default=FOLDER, metavar="DIR", help="of the tables (%(default)s)")
    for each in (run, verify):
        each.add_argument("--data-dir", default="", metavar="DIR", help="where the data sets are")
    return result


def run(flags: argparse.Namespace) -> int:
    """What is missing."""
    places = {"data_dir": flags.data_dir} if flags.data_dir else {}
    tables = [table for table in read_tables(flags.folder, places) if flags.only in table.name]
    with stop_on_signals() as stop, local_pool(check_jobs(flags.jobs), stop) as pool:
        timer = threading.Timer(60 * (flags.minutes or 0), _stop, [stop])
        timer.daemon = True
        if flags.minutes:
            timer.start()
        try:
            PaperRunner(flags.folder / "results", flags.work, pool, stop).run(tables, flags.seeds)
        except SweepStopped as stopped:
            stderr(f"stopped, {stopped.done} of {stopped.total} runs of a table done: repeat the command to go on")
            return 0 if flags.minutes else 128 + stopped.reason
        finally:
            timer.cancel()
    return 0


def _stop(stop: StopRequest) -> None:
    """As a signal would."""
    stop.reason = signal.SIGTERM


def show(flags: argparse.Namespace) -> int:
    """All tables."""
    results = all_results(flags.folder / "results")
    for table in read_tables(flags.folder):
        print(f"{table.name}: {table.title}, {missing(table, results)} runs missing")
        print("\n".join(lines(table, flags.folder)))
    return 0


def lines(table: Table, folder: Path) -> list[str]:
    """A line for each figure of a table."""
    found = []
    for figure in figures(table, all_results(folder / "results")):
        varying = ", ".join(f"{name} {value}" for name, value in figure.settings.items())
        cell = figure.cell
        found.append(f"  {cell.name:<32}{cell.rates:<16}{varying:<24}paper {cell.in_print:<16}here {figure}")
    return found


def verify(flags: argparse.Namespace) -> int:
    """One result."""
    given = Path(flags.name)
    path = given if given.suffix == ".json" else path_of(flags.folder / "results", flags.name)
    expected = read_result(path)
    places = {"data_dir": flags.data_dir} if flags.data_dir else {}
    found = fit(expected.config(**places)).sha256
    if found != expected.sha256:
        stderr(f"rbd_ref.paper: {expected.name} gives {found}, expected {expected.sha256}: its weights are others")
        return 1
    print(f"{expected.name}: {found}, the same on this machine as on {expected.machine}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0, 1 if a result is not confirmed, 2 after a sentence of what is wrong."""
    flags = parser().parse_args(arguments)
    try:
        return {"run": run, "list": show, "verify": verify}[flags.command](flags)
    except (RunError, ValueError) as error:
        stderr(f"rbd_ref.paper: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
