"""Training from Python: `fit` runs a configuration from its first step to its last, alone or on many ranks.

The command `python -m rbd_ref.train` is a thin layer over `run_job`: flags become a `Job`, signals a `StopRequest`.
Tests: tests/test_fit.py, tests/test_train.py, tests/test_mpi.py.
"""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from rbd_ref._types import Float32Array
from rbd_ref.data.errors import DataError
from rbd_ref.kernels.compiling import Compiling, watch_compiling
from rbd_ref.methods.base import Replica, State
from rbd_ref.runs import config as configs
from rbd_ref.runs import folder as folders
from rbd_ref.runs.config import Config
from rbd_ref.runs.files import RunError
from rbd_ref.runs.folder import Run
from rbd_ref.runs.lock import FolderLock
from rbd_ref.runs.memory import enough_memory
from rbd_ref.runs.paths import trusted
from rbd_ref.training.beginning import Beginning, Interrupted
from rbd_ref.training.communicator import Options, World, collectively, find_world
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.history import History
from rbd_ref.training.logbook import Console, Logbook, compiling_sentence, stderr
from rbd_ref.training.problem import Problem
from rbd_ref.training.resume import Resumed, resume
from rbd_ref.training.trainer import Callback, Log, NullLog, Stopped, StopRequest, Trainer

PATIENCE = 600.0  # seconds, at least, that ranks wait for each other before the first step: kernels are compiled there
EXPECTED = (RunError, DataError, ValueError, TypeError, OSError)  # a user's mistakes, and the machine's


@dataclass
class Job:
    """All that a run is told."""

    config: Config
    problem: Problem | None = None
    out: str = ""
    resume: bool = False
    callbacks: Sequence[Callback] = ()
    forget_memory: bool = False
    quiet: bool = False
    verbose: bool = False
    stop: StopRequest = field(default_factory=StopRequest)
    needs: str = ""  # of memory, once that is known
    compiling: Compiling = field(default_factory=Compiling)

    @property
    def speaks(self) -> bool:
        """Whether there are lines beside the results."""
        return self.verbose and not self.quiet


@dataclass(frozen=True)
class Result:
    """How a run ended.

    history  losses and figures as plain arrays; of rank 0, on others the figures of evaluations are missing
    theta    the weights
    config   the configuration with all defaults filled in
    values   final figures by name: accuracies, seconds, bytes_per_step, ...
    steps    how many steps there were to take; `step` is how many were taken
    out      the run's folder, None where none was written
    stopped  why the run stopped before its end: 0 if it did not, a signal's number, or `trainer.CALLBACK`
    """

    history: History
    theta: Float32Array
    config: Config
    values: dict[str, Any]
    steps: int
    out: Path | None
    stopped: int = 0

    @property
    def step(self) -> int:
        """How many steps were taken."""
        return len(self.history.losses)

    @property
    def sha256(self) -> str:
        """Of the little-endian bytes of theta."""
        return folders.sha256(self.theta)


def fit(
    config: Config,
    problem: Problem | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    forget_memory: bool = False,
    world: World | None = None,
) -> Result:
    """Train a network, or a problem of your own, along random directions.

        theta <- theta - eta sum_i a_i phi_i,   a_i = <phi_i, g> / |phi_i|^2,   phi redrawn at every step

    Args:
        config: the settings that you care about; the others have the defaults of `python -m rbd_ref.train`.
        problem: anything with `D`, `initial(seed)` and `loss_and_gradient(theta, step, worker)`; without one, the
            network and the data set that the configuration names.
        out: a folder for the run's journal, metrics and checkpoints; without one nothing is written.
        resume: continue the run in `out`, to the same bits.
        callbacks: functions of a `StepRecord` (t, loss, theta, payloads, ...), called after every step on every rank;
            one that returns something true stops the run after the step that follows, which all ranks take together.
        forget_memory: with `resume`, what the workers kept of their gradients is not computed again, they start from 0.
        world: the processes that train together; by default those of an MPI launcher, or this one alone.

    Returns:
        a `Result` with `history`, `theta` and `sha256`.

    Raises:
        rbd_ref.RunError: a wrong setting, a folder that holds a run, a loss that is not finite: in one sentence.

    >>> import rbd_ref
    >>> result = rbd_ref.fit(rbd_ref.Config(data="digits", dims=50, family="srht", steps=20))
    >>> result.history.loss.shape, result.theta.shape
    ((20,), (9610,))
    >>> bool(result.history.loss[-1] < result.history.loss[0])
    True

    References: Gressmann, Eaton-Rosen, Luschi, Improving neural network training in low dimensional random bases,
    NeurIPS 2020.
    """
    job = Job(config, problem, str(out or ""), resume, callbacks, forget_memory)
    found = world or _own_world()
    return found.lifecycle.abort_on_error(lambda: run_job(job, found))


@cache
def _own_world() -> World:
    """The processes that were started together, which part when Python ends."""
    world = find_world()
    atexit.register(world.lifecycle.close)
    return world


def run_job(job: Job, world: World) -> Result:
    """From the settings to the end of the run, or to where it was asked to stop."""
    values: dict[str, Any] = {}
    stopped = 0
    with enough_memory("the run was trained", lambda: job.needs), watch_compiling() as job.compiling:
        experiment, first, log = _set_up(job, world)
        try:
            trainer = Trainer(experiment, world, log, job.callbacks, job.stop)
            replica = trainer.train(_recall(trainer, first, job))
            values = log.finish(replica)
        except Stopped as stop:
            stopped, replica = stop.reason, stop.replica
        finally:
            log.close()
        out = Path(job.out) if job.out else None
        return Result(log.history, replica.theta.copy(), experiment.config, values, experiment.steps, out, stopped)


def _recall(trainer: Trainer, first: list[Beginning | None], job: Job) -> Replica[State]:
    """The replica to go on from; what is in the list is taken from it, or the first weights would stay to the end."""
    replica = trainer.recall(first.pop(), job.stop)
    if trainer.unlike and trainer.world.communicator.rank == 0:
        _warn(job, trainer.unlike)
    return replica


def _set_up(job: Job, world: World) -> tuple[Experiment, list[Beginning | None], Log]:
    """Experiment, what rank 0 begins with (in a list, to be taken from it) and log, on all ranks; what is wrong is said
    before anything is written."""
    communicator, node = world.communicator, world.node
    if job.speaks and communicator.rank == 0:
        job.compiling.tell = _say_compiling
    experiment = collectively(communicator, lambda: _prepare(job, world), *EXPECTED)
    c = experiment.config
    cooperate = c.reconstruct == "node"
    world.lifecycle.configure(Options(max(c.timeout, PATIENCE), cooperate))
    collectively(communicator, lambda: _check_same(world, c), *EXPECTED)
    collectively(communicator, lambda: node.first_on_each_node(experiment.problem.prepare), *EXPECTED)
    if communicator.size > 1:
        collectively(communicator, lambda: node.first_on_each_node(experiment.rehearse), *EXPECTED)
    started = _start(job, experiment, world)
    job.out = communicator.broadcast(job.out)
    world.lifecycle.configure(Options(c.timeout, cooperate, job.out))
    if started and not job.resume:
        started[1].introduce()
    return experiment, [started[0] if started else None], started[1] if started else NullLog()


def _say_compiling(watch: Compiling) -> None:
    """At the first function that is compiled."""
    if watch.count == 0 and watch.depth == 1:
        stderr(compiling_sentence())


def _start(job: Job, experiment: Experiment, world: World) -> tuple[Beginning, Logbook] | None:
    """What rank 0 begins with, None on others; all ranks leave where it is interrupted."""
    communicator = world.communicator

    def begin() -> tuple[Beginning, Logbook] | Interrupted | None:
        try:
            return _begin(job, experiment, world) if communicator.rank == 0 else None
        except Interrupted as interrupted:
            return interrupted

    started = collectively(communicator, begin, *EXPECTED)
    interrupted = communicator.broadcast(started if isinstance(started, Interrupted) else None)
    if interrupted is not None:
        raise interrupted
    assert not isinstance(started, Interrupted)
    return started


def _prepare(job: Job, world: World) -> Experiment:
    """The experiment of a new run, or of one to resume."""
    experiment = Experiment(job.config, job.problem, world.communicator.size)
    c = experiment.config
    if c.on_divergence == "resync" and not job.out:
        raise ValueError("on_divergence is resync and there is no journal to go by, expected a folder: give out=")
    if job.resume and world.communicator.rank == 0:  # others are compared with it
        _check_resumed(job, c)
    _check_forgetting(job, experiment)
    job.needs = experiment.needs(world.communicator.size, bool(job.callbacks))
    experiment.use_threads(world.node.threads)
    return experiment


def run_to_resume(out: str) -> Run:
    """The run in the folder that was named."""
    if not out:
        raise RunError("--resume has no folder, expected --out DIR with that of the run")
    return Run(Path(out))


def _check_resumed(job: Job, config: Config) -> None:
    """Refuse to resume a run of another configuration."""
    run = run_to_resume(job.out)
    settings = run.settings()
    kept = {"gradients": settings.get("gradients")}  # only compared, so that a class at a path does no harm
    before = run.config(**(trusted(settings, asdict(config)) | kept))
    if config.digest == before.digest:
        return
    names = config.decisive | before.decisive
    changed = [name for name in names if getattr(config, name) != getattr(before, name)]
    by_length = set(changed) <= set(configs.LENGTHS)
    why = f" as schedule {config.schedule} goes by the length of the run" if by_length else ""
    raise RunError(
        f"{job.out} is a run of another configuration: {', '.join(changed)} would change, expected the same{why}: "
        "leave the flag out, or start a new run in another folder"
    )


def _check_forgetting(job: Job, experiment: Experiment) -> None:
    """Refuse to forget where there is nothing to forget."""
    if job.forget_memory and not job.resume:
        raise ValueError("forget_memory is for runs that go on, and this one starts: add resume, or leave it out")
    if job.forget_memory and not experiment.keeps:
        raise ValueError(
            "forget_memory would have no effect, expected a run whose workers keep something, by memory or feedback: "
            "leave it out"
        )


def _check_same(world: World, config: Config) -> None:
    """Refuse ranks that would train something else, or wait for exchanges that never come."""
    first = world.communicator.broadcast(config.shared)
    other = [name for name, value in config.shared.items() if value != first[name]]
    if other:
        raise RunError(
            f"rank {world.communicator.rank} has another configuration than rank 0 ({', '.join(other)}), expected the "
            "same: give all ranks the same flags"
        )


def _begin(job: Job, experiment: Experiment, world: World) -> tuple[Beginning, Logbook]:
    """On rank 0, what to begin with and the log, of a new run or of one to resume."""
    console = Console(experiment, job.quiet, job.verbose, world.lifecycle.terminal)
    if not job.out:
        return Beginning(experiment.start()), Logbook(experiment, world, console, job.compiling, None)
    lock = FolderLock(Path(job.out))
    try:
        beginning, log = _open_folder(job, experiment, world, console)
    except BaseException:
        lock.release()
        raise
    log.lock = lock
    job.out = str(Path(job.out).absolute())
    return beginning, log


def _open_folder(job: Job, experiment: Experiment, world: World, console: Console) -> tuple[Beginning, Logbook]:
    """What is in the folder that was locked, or put there."""
    run = Run(Path(job.out))
    if job.resume:
        folders.remove_parts(run)
    if job.resume and folders.begun(run):
        return _continue(job, experiment, world, console, run)
    first = Beginning(experiment.start())  # before anything is written: it may be too large
    if job.resume:
        run.journal.unlink(missing_ok=True)
        folders.cut_metrics(run, 0)
    else:
        folders.create(run.folder, experiment.config)
    return first, Logbook(experiment, world, console, job.compiling, run)


def _warn(job: Job, text: str) -> None:
    """What a user should know: a line of the command, a warning from Python."""
    if job.verbose:
        if job.speaks:
            stderr(text)
    else:
        warnings.warn(text, stacklevel=2)


def _continue(job: Job, experiment: Experiment, world: World, console: Console, run: Run) -> tuple[Beginning, Logbook]:
    """What leads to the replica after the last whole record of a run's journal, and the log from there on."""
    resumed = resume(experiment, run, job.stop, job.forget_memory)
    for text in resumed.warnings:
        _warn(job, text)
    if job.speaks:
        stderr(_continues(experiment, run, resumed, job.forget_memory))
    if job.forget_memory:
        forgotten = f"{resumed.place.t}:{resumed.place.chain.hex()}"
        experiment.config = replace(experiment.config, forgotten=(*experiment.config.forgotten, forgotten))
    folders.write_text(run.folder / "config.toml", configs.to_toml(experiment.config))
    folders.cut_metrics(run, resumed.place.t)
    return resumed.beginning, Logbook(experiment, world, console, job.compiling, run, resumed)


def _continues(experiment: Experiment, run: Run, resumed: Resumed, forget: bool) -> str:
    """What is said of a run that goes on."""
    text = f"{run.folder} continues after step {resumed.place.t} of {experiment.steps}"
    if forget:
        return f"{text}; its workers have forgotten what they kept: the weights will not be those of a run that did not"
    steps = resumed.beginning.steps
    return f"{text}; what its workers keep is computed again from step {resumed.place.t - steps} on" if steps else text
