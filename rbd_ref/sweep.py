"""The command `python -m rbd_ref.sweep`: a grid of settings to runs side by side, and a table of them.

Tests: tests/test_sweep.py.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

import rbd_ref
from rbd_ref import train
from rbd_ref.runs import config as configs
from rbd_ref.runs import grid as grids
from rbd_ref.runs.config import Config
from rbd_ref.runs.files import RunError
from rbd_ref.runs.folder import write_text
from rbd_ref.runs.grid import FILE, Grid
from rbd_ref.runs.lock import FolderLock
from rbd_ref.training.command import Command, stop_on_signals
from rbd_ref.training.communicator import World, collectively
from rbd_ref.training.fit import EXPECTED
from rbd_ref.training.grid import GridRuns, Runner, SweepStopped, check_jobs
from rbd_ref.training.logbook import stderr
from rbd_ref.training.pools import Pool, lead_ranks, local_pool
from rbd_ref.training.search import Search, search_rates
from rbd_ref.training.table import LOSS, to_json
from rbd_ref.training.trainer import StopRequest

DESCRIPTION = """\
Train every combination of some settings, side by side, and rank them by validation accuracy.
Every setting takes one value or several: 2^-3..2^1 (powers of two), 0..4, 1e-3,1e-2, srht,normal, true,false.
"""
EXAMPLES = """\
examples:
  python -m rbd_ref.sweep --lr 2^-3..2^1 --seed 0..4 --family srht,normal --jobs 2 --out sweep
  python -m rbd_ref.sweep --out sweep                              continue the sweep in this folder
  python -m rbd_ref.sweep --search lr=2^-19..2^7 --seed 0..4       the best rate of a search, then the seeds with it
  python -m rbd_ref.sweep --config grid.toml --jobs 4              settings from a file, where a list varies
  mpirun -n 17 python -m rbd_ref.sweep --lr 2^-3..2^1 --seed 0..9  16 runs at a time, rank 0 hands them out

Each run has an ordinary folder, such as sweep/lr=0.5,seed=3. A sweep that is killed goes on where it was; finished runs
are skipped, failed ones recorded in failed.json. At the end there are table.csv and table.json: mean, standard error
and n over seeds, sorted by the validation set, never by the test set.
"""


def add_setting(group: Any, item: Field[Any]) -> None:
    """A flag for the values of a setting."""
    flag = "--" + item.name.replace("_", "-")
    if configs.kind_of(item) is bool:
        group.add_argument(flag, nargs="?", const="true", metavar="VALUES", help=train.help_of(item))
        group.add_argument(f"--no-{flag[2:]}", dest=item.name, action="store_const", const="false")
    else:
        group.add_argument(flag, metavar="VALUES", help=train.help_of(item))


def parser() -> argparse.ArgumentParser:
    """All flags."""
    result = argparse.ArgumentParser(
        "python -m rbd_ref.sweep",
        usage="python -m rbd_ref.sweep [flags]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sweep = result.add_argument_group("sweep")
    sweep.add_argument("--out", metavar="DIR", default="sweep", help="folder of the sweep (default: sweep)")
    sweep.add_argument("--jobs", metavar="N", type=int, help="runs side by side, which divide the threads (default: 1)")
    sweep.add_argument("--search", metavar="lr=RANGE", help="find the learning rate of least loss first")
    sweep.add_argument("--retry", action="store_true", help="try runs again that have failed")
    sweep.add_argument("--quiet", action="store_true", help="no bar and no table, only what goes wrong")
    sweep.add_argument("--preset", metavar="NAME", help="a cell of the paper's tables")
    sweep.add_argument("--config", metavar="FILE", help="a TOML file of settings; flags come after")
    groups: dict[str, Any] = {}
    for item in fields(Config):
        if not item.metadata.get("hidden"):
            name = item.metadata["group"]
            groups[name] = groups.get(name) or result.add_argument_group(name)
            add_setting(groups[name], item)
    result.add_argument("--version", action="version", version=f"rbd-ref {rbd_ref.__version__}")
    return result


@dataclass(frozen=True)
class Plan:
    """What the flags ask for."""

    grid: Grid
    folder: Path
    jobs: int
    retry: bool
    quiet: bool


def make_grid(flags: argparse.Namespace) -> Grid:
    """The grid of flags, file and preset; without any of them, that of the sweep to go on with."""
    values = train.given(flags)
    path = Path(flags.out) / FILE
    if not values and not flags.search and path.is_file():
        return grids.read(path)
    search = values.pop("search", None)
    grid = grids.make(values, flags.search or search)
    if flags.config:
        grids.refuse_named(Path(flags.config), grid, train.spoken(flags))
    return grid


def make_plan(flags: argparse.Namespace, world: World) -> Plan:
    """What the flags ask for, checked."""
    if world.communicator.size > 1 and flags.jobs is not None:
        raise ValueError(f"--jobs is {flags.jobs} under an MPI launcher, expected none: runs go to its ranks")
    jobs = check_jobs(1 if flags.jobs is None else flags.jobs)
    return Plan(make_grid(flags), Path(flags.out), jobs, flags.retry, flags.quiet)


def say(plan: Plan, text: str) -> None:
    """A result, unless none are wanted."""
    if not plan.quiet:
        print(text, flush=True)


def run_plan(plan: Plan, pool: Pool, stop: StopRequest, terminal: bool | None) -> None:
    """The search, if there is one, then the runs, and the table."""
    shown = False if plan.quiet else terminal
    rates: list[float] = []
    if plan.grid.rates:
        trials = Runner(plan.folder / "search", pool, stop, retry=plan.retry, shown=shown)
        searches = search_rates(plan.grid, trials)
        report_search(plan, searches)
        rates = [search.best for search in searches]
        if not plan.grid.axes:
            return
    runs = Runner(plan.folder, pool, stop, retry=plan.retry, shown=shown).run(plan.grid.points(rates))
    report(plan, runs)


def report_search(plan: Plan, searches: Sequence[Search]) -> None:
    """What was found, written down and said."""
    for search in searches:
        say(plan, search.sentence())
    found = [
        {
            "settings": search.fixed,
            "lr": search.best,
            "loss": {repr(r): search.losses[r] for r in sorted(search.losses)},
        }
        for search in searches
    ]
    write_text(plan.folder / "search.json", to_json(found))


def report(plan: Plan, runs: GridRuns) -> None:
    """The table, written down and said."""
    failed = [run for run in runs if run.error]
    if len(failed) == len(runs):
        raise RunError(f"none of the {len(runs)} runs came to its end; the first: {failed[0].error}")
    table = runs.summary
    write_text(plan.folder / "table.csv", table.to_csv())
    write_text(plan.folder / "table.json", table.to_json([run.entry for run in runs]))
    if table.ranked_by == LOSS:
        say(plan, "without a validation accuracy, runs are ranked by their final training loss")
    say(plan, table.to_text())
    for run in failed:
        say(plan, f"failed: {run.out.name}: {run.error}")


def sweep(plan: Plan, pool: Pool, stop: StopRequest, terminal: bool | None) -> int:
    """The sweep in its folder, which is locked, and its exit status."""
    lock = FolderLock(plan.folder)
    try:
        grids.write(plan.folder, plan.grid)
        run_plan(plan, pool, stop, terminal)
        return 0
    except SweepStopped as stopped:
        name = signal.Signals(stopped.reason).name
        done = f"{stopped.done} of {stopped.total} runs done"
        stderr(f"stopped by {name}, {done}: continue with python -m rbd_ref.sweep --out {plan.folder}")
        return 128 + stopped.reason
    except RunError as error:
        stderr(f"rbd_ref.sweep: {error}")
        return 2
    finally:
        lock.release()


def run_all(plan: Plan, world: World) -> int:
    """The sweep on this process, some processes, or ranks."""
    with stop_on_signals() as stop:
        terminal = world.lifecycle.terminal
        if world.communicator.size > 1:
            return lead_ranks(world, stop, lambda pool: sweep(plan, pool, stop, terminal))
        with local_pool(plan.jobs, stop) as pool:
            return sweep(plan, pool, stop, terminal)


def work(flags: argparse.Namespace, world: World) -> int:
    """The sweep, and its exit status."""
    return run_all(collectively(world.communicator, lambda: make_plan(flags, world), *EXPECTED), world)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0, 2 after a sentence of what is wrong, or 128 + the number of the signal that ended it."""
    kept = "what was completed is kept, repeat the command to continue"
    return Command("rbd_ref.sweep", parser().parse_args, work, kept).main(arguments)


if __name__ == "__main__":
    sys.exit(main())
