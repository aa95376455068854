"""The runs of a grid, side by side: each in an ordinary run folder, finished ones skipped, failed ones recorded.

    fit_grid   from Python
    Runner     points of a grid on a pool of processes, with one bar over all; the command uses it too

Tests: tests/test_sweep.py.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from rbd_ref._check import integer
from rbd_ref._launch import launched
from rbd_ref._progress import bar
from rbd_ref._types import Float32Array
from rbd_ref.runs import grid as grids
from rbd_ref.runs.archives import parse_json
from rbd_ref.runs.config import Config
from rbd_ref.runs.files import RunError, reading
from rbd_ref.runs.folder import Run, write_text
from rbd_ref.runs.grid import Grid, Point
from rbd_ref.runs.lock import FolderLock
from rbd_ref.runs.paths import paths_in
from rbd_ref.training.beginning import Interrupted
from rbd_ref.training.communicator import SingleProcess, World
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.fit import EXPECTED, Job, run_job
from rbd_ref.training.pools import Context, Pool, local_pool
from rbd_ref.training.problem import Problem
from rbd_ref.training.recorded import RecordedRun, open_run
from rbd_ref.training.table import Entry, Table, summarise
from rbd_ref.training.trainer import StopRequest

FAILED = "failed.json"  # in the folder of a run that came to no end
BAR = "{l_bar}{bar}| {elapsed}<{remaining}{postfix}"
MOST_JOBS = 1025
KERNELS = ("data", "net", "family", "backend", "gradients")  # runs that agree in these use the same compiled kernels


class SweepStopped(RunError):
    """A signal asked a sweep to end, and it did: what was done is kept."""

    def __init__(self, reason: int, done: int, total: int) -> None:
        super().__init__(reason, done, total)
        self.reason = reason
        self.done = done
        self.total = total


class Task(NamedTuple):
    """A run that a process is to train."""

    point: Point
    folder: Path
    problem: Problem | None = None


@dataclass(frozen=True)
class GridRun:
    """A run of a grid.

    settings  what tells it from the others
    config    all of its settings
    figures   at the end: `loss` (training, the mean since the last evaluation but one), and those of the problem
    out       its folder
    error     why it failed, or nothing
    """

    settings: dict[str, Any]
    config: Config
    figures: dict[str, float]
    out: Path
    problem: Problem | None = None
    error: str = ""
    stopped: int = 0

    @cached_property
    def run(self) -> RecordedRun:
        """What was written of it: history, weights at any step."""
        return open_run(self.out, self.problem, **paths_in(asdict(self.config)))

    @property
    def entry(self) -> Entry:
        """As the table takes it."""
        return Entry(self.settings, self.figures, self.error)


class GridRuns(list[GridRun]):
    """The runs of a grid in its order, and their table."""

    @property
    def summary(self) -> Table:
        """The table as an object."""
        return summarise([run.entry for run in self])

    def table(self) -> dict[str, list[Any]]:
        """Settings, n, failed, and mean and standard error of every figure by column, the best on validation first."""
        return self.summary.by_column()


class CountingProcess(SingleProcess):
    """One process that plays all workers and tells how far its run is."""

    def __init__(self, threads: int, steps: int, report: Callable[[float], object]) -> None:
        self.threads = threads
        self.steps = steps
        self.report = report
        self.taken = 0

    def allgather_rows(self, rows: Float32Array, counts: Sequence[int]) -> Float32Array:
        """Once a step."""
        self.taken += 1
        self.report(min(1.0, self.taken / self.steps))
        return rows


def _ended(task: Task, error: str = "", stopped: int = 0, figures: Mapping[str, float] | None = None) -> GridRun:
    """A task's run, and how it ended."""
    settings, config = task.point
    return GridRun(settings, config, dict(figures or {}), task.folder, task.problem, error, stopped)


def known(task: Task) -> GridRun | None:
    """The run as its folder has it, None where it has neither ended nor failed."""
    run = Run(task.folder)
    failure = task.folder / FAILED
    try:
        with reading(failure):
            if failure.is_file():
                return _ended(task, str(parse_json(failure.read_bytes())["error"]))
        result = run.result()
        return None if result is None else _ended(task, figures=_figures(run, result))
    except (RunError, ValueError, LookupError, TypeError) as error:
        return _ended(task, f"{task.folder} cannot be read: {error}")


def _figures(run: Run, result: Mapping[str, Any]) -> dict[str, float]:
    """Those of the last evaluation, and the accuracies at the end."""
    usual = ("kind", "step", "epoch", "seconds")
    last = run.records("evaluation")[-1]
    accuracies = {name: value for name, value in result.items() if name.endswith("_accuracy")}
    return {**accuracies, **{name: value for name, value in last.items() if name not in usual}}


def record_failure(task: Task, error: str) -> GridRun:
    """Write down why a run came to no end."""
    task.folder.mkdir(parents=True, exist_ok=True)
    write_text(task.folder / FAILED, json.dumps({"error": error}, indent=1) + "\n")
    return _ended(task, error)


def train(task: Task, context: Context) -> GridRun:
    """A run from its first step, or from where it was when it was interrupted, to its end."""
    try:
        steps = Experiment(task.point.config, task.problem).steps
        alone = CountingProcess(context.threads, steps, context.report)
        resume = (task.folder / "config.toml").exists()
        job = Job(task.point.config, task.problem, str(task.folder), resume, quiet=True, verbose=True)
        job.stop = context.stop
        result = run_job(job, World(alone, alone, alone))
    except Interrupted as interrupted:
        return _ended(task, stopped=interrupted.reason)
    except EXPECTED as error:
        return record_failure(task, str(error))
    except Exception as error:  # of a problem of the user's own: one run of many
        return record_failure(task, f"{type(error).__name__}: {error}")
    return _ended(task, stopped=result.stopped) if result.stopped else known(task) or _ended(task)


def rehearse(task: Task, context: Context) -> None:
    """Have data and compiled kernels on disk before others look for them; what is wrong, the run itself will say."""
    with suppress(Exception):
        experiment = Experiment(task.point.config, task.problem)
        experiment.problem.prepare()
        experiment.rehearse()


def _rehearsals(tasks: Iterable[Task]) -> list[Task]:
    """One run for each kind of kernels."""
    return list({tuple(getattr(task.point.config, name) for name in KERNELS): task for task in tasks}.values())


class SweepBar:
    """One bar over all runs; each counts by the share of it that is done."""

    def __init__(self, total: int, done: int, shown: bool | None) -> None:
        self.total = total
        self.done = done
        self.failed = 0
        self.shares: dict[Path, float] = {}
        self.bar = bar("sweep", total, shown, done, bar_format=BAR)

    def progress(self, task: Task, share: float) -> None:
        """A run has come as far as this."""
        self.shares[task.folder] = share
        self._show()

    def end(self, run: GridRun) -> None:
        """A run has ended, or was stopped."""
        self.shares.pop(run.out, None)
        self.done += not run.stopped
        self.failed += bool(run.error)
        self._show()

    def _show(self) -> None:
        failed = f", {self.failed} failed" if self.failed else ""
        self.bar.set_postfix_str(f"{self.done} of {self.total} runs{failed}", refresh=False)
        self.bar.update(self.done + sum(self.shares.values()) - self.bar.n)


@dataclass
class Runner:
    """Trains points of a grid in a folder, on a pool."""

    folder: Path
    pool: Pool
    stop: StopRequest = field(default_factory=StopRequest)
    problem: Problem | None = None
    retry: bool = False
    shown: bool | None = None  # the bar: always, never, or at a terminal
    ended: Callable[[GridRun], object] = lambda run: None  # told of each run that was trained, as soon as it ends

    def run(self, points: Sequence[Point]) -> GridRuns:
        """All of them, in their order; those that have ended are only read."""
        tasks = [self._task(point) for point in points]
        if self.retry:
            for task in tasks:
                (task.folder / FAILED).unlink(missing_ok=True)
        found = {task.folder: run for task in tasks if (run := known(task)) is not None}
        missing = [task for task in tasks if task.folder not in found]
        if missing:
            found |= self._train(missing, len(tasks))
        if len(found) < len(tasks):
            raise SweepStopped(self.stop.reason, len(found), len(tasks))
        return GridRuns(found[task.folder] for task in tasks)

    def _task(self, point: Point) -> Task:
        """The run of a point; a problem of the user's own describes itself when its run begins."""
        config = replace(point.config, problem="")
        return Task(point._replace(config=config), self.folder / point.name, self.problem)

    def _train(self, missing: Sequence[Task], total: int) -> dict[Path, GridRun]:
        """The runs that are not there yet, but for those that were stopped."""
        shown = SweepBar(total, total - len(missing), self.shown)
        found = {}
        try:
            self._rehearse(missing)
            for task, result in self.pool.run(train, missing, shown.progress):
                run = record_failure(task, str(result)) if isinstance(result, RunError) else result
                shown.end(run)
                self.ended(run)
                found[task.folder] = run
        finally:
            shown.bar.close()
        return {folder: run for folder, run in found.items() if not run.stopped}

    def _rehearse(self, tasks: Sequence[Task]) -> None:
        """One process compiles, and all others find what it has left on disk."""
        if self.pool.size > 1:
            for task in _rehearsals(tasks):
                list(self.pool.run(rehearse, [task], lambda task, share: None))


def check_jobs(jobs: int) -> int:
    """How many processes are wanted."""
    try:
        return integer("jobs", jobs, 1, MOST_JOBS)
    except (ValueError, TypeError) as error:
        raise RunError(str(error)) from error


def fit_grid(
    config: Config,
    grid: Mapping[str, Iterable[Any]],
    problem: Problem | None = None,
    *,
    out: str | Path | None = None,
    jobs: int = 1,
    retry: bool = False,
) -> GridRuns:
    """Train every combination of some settings, side by side.

    Args:
        config: the settings that all runs share.
        grid: the values of each setting that varies.
        problem: one of your own, as for `rbd_ref.fit`; with several jobs, one that can be pickled.
        out: a folder for the runs, each an ordinary run folder named like `lr=0.5,seed=3`; called again with it, only
            what is missing is trained. Without one, the runs are kept until the result is forgotten.
        jobs: processes that train side by side and divide the threads; 1 is this process.
        retry: whether runs in `out` that have failed are tried again.

    Returns:
        a list of `GridRun` (settings, config, figures, error, run) with `table()`: columns by name, one row for each
        combination of settings but the seed, the best validation accuracy first.

    Raises:
        rbd_ref.RunError: a wrong setting, or a folder that holds another sweep. A run that fails is no error: it has
            its sentence as `error`.

    >>> import rbd_ref
    >>> base = rbd_ref.Config(data="digits", net="mlp:64-10", dims=50, epochs=1)
    >>> runs = rbd_ref.fit_grid(base, {"lr": [0.5, 2.0], "seed": range(2)})
    >>> [run.settings for run in runs][:2]
    [{'lr': 0.5, 'seed': 0}, {'lr': 0.5, 'seed': 1}]
    >>> table = runs.table()
    >>> table["lr"], table["n"], table["validation_accuracy"][0] > table["validation_accuracy"][1]
    ([2.0, 0.5], [2, 2], True)
    """
    if launched():
        raise RunError("fit_grid was started by an MPI launcher, expected `mpirun -n N python -m rbd_ref.sweep` there")
    size = check_jobs(jobs)
    made = _made(config, grid, problem)
    folder = Path(out or tempfile.mkdtemp(prefix="rbd_ref-"))
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    try:
        runs = _fitted(made, folder, size, problem, retry)
    except BaseException:
        if not out:
            remove()
        raise
    if not out:
        weakref.finalize(runs, remove)
    return runs


def _fitted(grid: Grid, folder: Path, size: int, problem: Problem | None, retry: bool) -> GridRuns:
    """The runs of a grid in a folder, which is locked meanwhile."""
    stop = StopRequest()
    lock = FolderLock(folder)
    try:
        grids.write(folder, grid)
        points = grid.points()
        with local_pool(min(size, len(points)), stop) as pool:
            return Runner(folder, pool, stop, problem, retry).run(points)
    finally:
        lock.release()


def _made(config: Config, grid: Mapping[str, Iterable[Any]], problem: Problem | None) -> Grid:
    """The grid of a configuration and of values, in which each setting of `grid` varies."""
    given = {item.name: (getattr(config, item.name), item.default) for item in fields(Config)}
    base = {name: value for name, (value, default) in given.items() if value != default}
    if problem is not None:
        base["problem"] = type(problem).__name__
    axes = {name: values if isinstance(values, str) else list(values) for name, values in grid.items()}
    try:
        return grids.make({**base, **axes})
    except (ValueError, TypeError) as error:
        raise RunError(str(error)) from error
