"""What rank 0 keeps of a run: its history (history.py), its folder on disk, and what a terminal shows.

    RunWriter   metrics, journal, checkpoints and final figures in the run's folder; or nothing, where there is none
    Console     a progress bar on a terminal, or a line an epoch
    Logbook     hands what happens to the three

Tests: tests/test_training.py, tests/test_fit.py.
"""

from __future__ import annotations

import json
import math
import operator
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

import rbd_ref
from rbd_ref._progress import bar
from rbd_ref._types import Float32Array
from rbd_ref.kernels.compiling import ABOUT, Compiling
from rbd_ref.methods.base import Local, Method, Replica, State, sum_rows
from rbd_ref.runs import folder as folders
from rbd_ref.runs import local_states
from rbd_ref.runs.files import RunError, disk
from rbd_ref.runs.folder import Run
from rbd_ref.runs.journal import Writer
from rbd_ref.runs.lock import FolderLock
from rbd_ref.training.beginning import Beginning
from rbd_ref.training.communicator import World, share
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.guidance import advice
from rbd_ref.training.history import History
from rbd_ref.training.proposals import BESIDE
from rbd_ref.training.resume import Resumed, resume
from rbd_ref.training.trainer import StepRecord, StepTimes

RECENT = 100  # steps whose mean loss the bar shows
BAR = "{l_bar}{bar}| {elapsed}<{remaining}{postfix}"  # without counts, so that the figures fit into 80 columns
NO_TIME = StepTimes(0.0, 0.0, 0.0)

DIGITS = "the last 297 images, of other writers: 89 to 91 % is normal with the defaults"


def stderr(text: str) -> None:
    """A sentence beside the results."""
    print(text, file=sys.stderr, flush=True)


def compiling_sentence() -> str:
    """What the first run says that finds no compiled kernels."""
    return f"compiling kernels (once, about {ABOUT} s; `rbd warmup` does it beforehand)"


def cosine(x: Float32Array, y: Float32Array) -> float:
    """<x, y> / (|x| |y|), 0 where one of them is 0."""
    a = x.astype(np.float64)
    b = y.astype(np.float64)
    norms = math.sqrt(float(np.sum(a * a)) * float(np.sum(b * b)))
    return float(np.sum(a * b)) / norms if norms else 0.0


def correlation(experiment: Experiment, record: StepRecord, workers: range) -> dict[str, float]:
    """Cosine of the step and the gradient of this rank's workers: of the whole vectors, and the mean over tensors."""
    g = record.gradient
    if not g.size:  # of a method that needs none
        theta, t = record.before.theta, record.before.t
        g = sum_rows(experiment.problem.loss_and_gradient(theta, t, worker)[1] for worker in workers)
    u = record.before.theta - record.theta
    bounds = np.cumsum([size for layer in experiment.problem.layers for size in layer])[:-1]
    tensors = [cosine(x, y) for x, y in zip(np.split(u, bounds), np.split(g, bounds), strict=True)]
    return {"whole": cosine(u, g), "tensors": float(np.mean(tensors))}


def worker_bytes(method: Method[State, Any]) -> int:
    """What a worker sends at a step of a method, or would send if it were not alone; where that is not the same at all
    steps, the mean."""
    return round(4 * (method.payload_size / method.every + BESIDE))


def phases(experiment: Experiment, t: int) -> list[dict[str, Any]]:
    """The phases of the first t steps: the first step of each, its method and what a worker sends at a step."""
    return [
        {"step": phase.first, "method": phase.method.name, "bytes_per_step": worker_bytes(phase.method)}
        for phase in experiment.phases.phases
        if phase.first < t
    ]


def mean_bytes(found: list[dict[str, Any]], t: int) -> int:
    """What a worker sends at a step, the mean over the first t steps, which have these phases."""
    firsts = [phase["step"] for phase in found]
    counts = np.diff([*firsts, t])
    return round(float(counts @ [phase["bytes_per_step"] for phase in found]) / t)


class RunWriter:
    """Writes a run's folder: what happened, in an order that no crash can break."""

    def __init__(self, experiment: Experiment, run: Run, resumed: Resumed | None) -> None:
        self.experiment = experiment
        self.run = run
        digest = experiment.config.digest
        self.journal = (
            Writer.create(run.journal, digest) if resumed is None else Writer.reopen(run.journal, resumed.place)
        )

    def line(self, kind: str, t: int, seconds: float, **values: Any) -> None:
        """A line of metrics."""
        epoch = t / self.experiment.steps_per_epoch
        text = json.dumps({"kind": kind, "step": t, "epoch": epoch, **values, "seconds": seconds})
        with disk(self.run.metrics, "written"), self.run.metrics.open("a", encoding="utf-8") as out:
            out.write(text + "\n")

    def checkpoint(self, replica: Replica[State], kept: Sequence[str], seconds: float) -> None:
        """The journal first, then what a run can be resumed from; then older ones may go."""
        self.journal.sync()
        local = local_states.combined(kept) if kept else ""
        digest = folders.save_checkpoint(
            self.run, replica.state, self.experiment.config.digest, self.journal.chain, local
        )
        self.line("checkpoint", replica.t, seconds, sha256=digest)
        folders.remove_checkpoints(self.run, replica.t, self.experiment.config.keep)
        local_states.remove_old(self.run, replica.t)

    def has_checkpoint(self, t: int) -> bool:
        """Whether the checkpoint after t steps is there, whole, and of the steps in the journal."""
        path = folders.checkpoint_path(self.run, t)
        try:
            found = folders.load_checkpoint(path, self.experiment.config.digest, self.experiment.blank)
            blank = self.experiment.blank_local(t)
            local_states.check(self.run, t, self.experiment.config.workers, blank, found.local)
        except RunError:
            return False
        return found.chain == self.journal.chain

    def finish(self, replica: Replica[State], values: dict[str, Any]) -> None:
        """theta and the final figures, these last of all."""
        info = {"sha256": values["sha256"]}
        folders.save_arrays(self.run.folder / "final.npz", info, theta=replica.theta)
        folders.write_text(self.run.folder / "result.json", json.dumps(values, indent=1) + "\n")


class Console:
    """What a terminal shows of a run."""

    def __init__(self, experiment: Experiment, quiet: bool, verbose: bool, terminal: bool | None) -> None:
        c = experiment.config
        self.experiment = experiment
        self.verbose = verbose and not quiet
        self.latest: deque[float] = deque(maxlen=RECENT)
        self.note = ""
        self.name = f"{c.data} {c.net} {c.method}" if not c.problem else f"{c.problem.split(',')[0]} {c.method}"
        self.shown = False if quiet else terminal

    def introduce(self, run: Run) -> None:
        """Where the run is written to, before anything else."""
        if self.verbose:
            self.bar.write(f"{'run folder':<12}{run.folder}", file=sys.stdout)
            sys.stdout.flush()

    def compiling(self, watch: Compiling) -> None:
        """Once a sentence, then on the bar how far it is."""
        if watch.count == 0 and watch.depth == 1:
            self.say(compiling_sentence() if self.verbose else "")
        if not self.bar.disable:
            self.bar.set_postfix_str(f"compiling kernels: {watch.count} in {watch.seconds:.0f} s")

    def start(self, done: int) -> None:
        """The bar, from the steps that are done."""
        self.bar = bar(self.name, self.experiment.steps, self.shown, done, bar_format=BAR)

    def step(self, t: int, loss: float, speed: float) -> None:
        """The bar moves."""
        self.latest.append(loss)
        if not self.bar.disable:
            self.bar.set_postfix_str(
                f"loss {np.mean(self.latest):.3f}{self.note}, {speed:,.0f} images/s", refresh=False
            )
            self.bar.update(t - self.bar.n)

    def evaluation(self, t: int, loss: float, values: dict[str, float]) -> None:
        """On the bar, or as a line where there is none."""
        accuracy = values.get("validation_accuracy")
        if accuracy is not None:
            self.note = f", val {100 * accuracy:.1f} %"
        if self.verbose and self.bar.disable:
            epoch = t / self.experiment.steps_per_epoch
            figures = "" if accuracy is None else f", validation {100 * accuracy:.2f} %"
            print(f"epoch {epoch:g}: loss {loss:.4f}{figures}", flush=True)

    def say(self, text: str) -> None:
        """A line beside the bar, if there is something to say."""
        if text:
            self.bar.write(text, file=sys.stderr)

    def summary(self, values: dict[str, Any], run: Run | None) -> None:
        """The final figures."""
        self.bar.close()
        if self.verbose:
            print(summary(values, run, DIGITS if self.experiment.config.data == "digits" else ""))


class Logbook:
    """Rank 0's log: hands what happens to history, folder and console."""

    def __init__(
        self,
        experiment: Experiment,
        world: World,
        console: Console,
        compiling: Compiling,
        run: Run | None,
        resumed: Resumed | None = None,
    ) -> None:
        self.experiment = experiment
        self.config = experiment.config
        self.world = world
        self.console = console
        self.run = run
        self.lock: FolderLock | None = None  # of the folder, released when the book is closed
        self.history = History(list(resumed.losses) if resumed else [])
        self.seconds_before = 0.0
        if run is not None:
            self._read(run)
        self.writer = RunWriter(experiment, run, resumed) if run is not None else None
        self.console.latest.extend(self.history.losses)
        self.compiling = compiling
        self.began = time.perf_counter() - compiling.seconds
        self.unwritten = 0  # steps since the last line of metrics
        self.advised = not console.verbose  # whether all was said of what the basis costs
        self.spent = NO_TIME  # on the steps since that line
        self.compiled = compiling.seconds  # before the step that is timed
        self.console.start(resumed.place.t if resumed else 0)
        compiling.tell = self.console.compiling

    def introduce(self) -> None:
        """What is said of a new run."""
        if self.run is not None:
            self.console.introduce(self.run)

    def _read(self, run: Run) -> None:
        """What the folder holds of the steps before a resumption."""
        self.seconds_before = max((values["seconds"] for values, _ in folders.metrics(run.metrics)), default=0.0)
        self.history.evaluations |= folders.evaluations(run)

    @property
    def seconds(self) -> float:
        """Since the start, the time before a resumption included, that of compiling not."""
        return self.seconds_before + time.perf_counter() - self.began - self.compiling.seconds

    @property
    def speed(self) -> float:
        """Images a second while training, of all workers."""
        images = self.unwritten * self.config.workers * self.config.batch_size
        seconds = sum(self.spent)
        return images / seconds if seconds else 0.0

    def restore(self) -> Beginning | None:
        """What leads to the replica after the last step that was journaled."""
        if self.run is None or self.writer is None:
            return None
        self.writer.journal.sync()
        return resume(self.experiment, self.run).beginning

    def journal(self, replica: Replica[State], rows: Float32Array) -> None:
        """All that was sent or, of methods that send whole gradients, the losses."""
        if self.writer is not None:
            self.writer.journal.append(replica.t, rows if replica.method.replayable else rows[:, -1:])

    def step(self, record: StepRecord) -> None:
        """Every few steps a line of metrics; the bar moves at all of them."""
        loss = record.loss
        self.history.losses.append(loss)
        self.unwritten += 1
        self.spent = StepTimes(*map(operator.add, self.spent, self._times(record)))
        self.console.step(record.t, loss, self.speed)
        if record.t % self.config.log_every == 0:
            self._step_line(record)
            self.unwritten = 0
            self.spent = NO_TIME
            self._advise(record.before)

    def _times(self, record: StepRecord) -> StepTimes:
        """What a step took, without what was compiled meanwhile, most of it for the workers' proposals."""
        compiled, self.compiled = self.compiling.seconds - self.compiled, self.compiling.seconds
        return record.times._replace(propose=max(record.times.propose - compiled, 0.0))

    def _advise(self, replica: Replica[State]) -> None:
        """Once, after the first steps: whether another family would cost less."""
        if not self.advised:
            self.advised = True
            self.console.say(advice(self.experiment, replica))

    def _step_line(self, record: StepRecord) -> None:
        """What the last steps were like."""
        if self.writer is None:
            return
        method, steps = record.before.method, self.unwritten
        values: dict[str, Any] = {"method": method.name, "loss": float(np.mean(self.history.losses[-steps:]))}
        if method.replayable and record.payloads.size:
            a = method.decode(record.payloads).astype(np.float64)
            values["coordinates"] = {"mean": a.mean(), "std": a.std(), "largest": np.abs(a).max()}
        if self.config.correlation:
            communicator = self.world.communicator
            workers = share(self.config.workers, communicator.rank, communicator.size)
            values["correlation"] = correlation(self.experiment, record, workers)
        values["bytes_per_step"] = worker_bytes(method)
        values["milliseconds"] = {part: 1e3 * seconds / steps for part, seconds in self.spent._asdict().items()}
        self.writer.line("step", record.t, self.seconds, **values, images_per_second=self.speed)

    def evaluate(self, replica: Replica[State]) -> None:
        """The problem's figures, once for each step."""
        if replica.t in self.history.evaluations:
            return
        since = max((t for t in self.history.evaluations if t < replica.t), default=0)
        loss = float(np.mean(self.history.losses[since : replica.t]))
        values = self.experiment.problem.evaluate(replica.theta)
        self.history.evaluations[replica.t] = values
        if self.writer is not None:
            self.writer.line("evaluation", replica.t, self.seconds, loss=loss, **values)
        self.console.evaluation(replica.t, loss, values)

    def has_checkpoint(self, replica: Replica[State]) -> bool:
        """Whether there is nothing to write: the checkpoint is there, or there is no folder."""
        return self.writer is None or self.writer.has_checkpoint(replica.t)

    def keep(self, t: int, worker: int, local: Local) -> str:
        """What a worker keeps, in a file; its fingerprint."""
        return local_states.save(self.run, t, worker, local) if self.run is not None else ""

    def checkpoint(self, replica: Replica[State], kept: Sequence[str]) -> None:
        """What a run can be resumed from."""
        if self.writer is not None:
            self.writer.checkpoint(replica, kept, self.seconds)

    def finish(self, replica: Replica[State]) -> dict[str, Any]:
        """The final figures, written down and shown."""
        values = self._final(replica)
        if self.writer is not None:
            self.writer.finish(replica, values)
        self.console.summary(values, self.run)
        return values

    def _final(self, replica: Replica[State]) -> dict[str, Any]:
        """What result.json holds."""
        c, seconds = self.config, self.seconds
        sent = phases(self.experiment, replica.t)
        return {
            "sha256": folders.sha256(replica.theta),
            "step": replica.t,
            "epoch": replica.t / self.experiment.steps_per_epoch,
            **self.experiment.problem.final(replica.theta),
            "seconds": seconds,
            "images_per_second": replica.t * c.workers * c.batch_size / seconds,
            "D": self.experiment.plan.D,
            "d": self.experiment.plan.d,
            "workers": c.workers,
            "bytes_per_step": mean_bytes(sent, replica.t),
            "phases": sent,
            "version": rbd_ref.__version__,
            **({"journal": self.writer.journal.chain.hex()} if self.writer is not None else {}),
        }

    def close(self) -> None:
        """Nothing more is written."""
        self.console.bar.close()
        if self.writer is not None:
            self.writer.journal.close()
        if self.lock is not None:
            self.lock.release()


def sent_line(values: dict[str, Any]) -> str:
    """What a worker sends in each phase, beside what it would send of SGD's gradients."""
    first, *later = values["phases"]
    parts = [f"{first['bytes_per_step']:,} bytes a worker and step"]
    parts += [f"from step {phase['step']:,} on {phase['bytes_per_step']:,} ({phase['method']})" for phase in later]
    whole = 4 * values["D"]
    ratio = f", {whole / first['bytes_per_step']:.1f} times as much" if not later else ""
    return f"{', '.join(parts)}; data-parallel SGD {whole:,}{ratio}"


def summary(values: dict[str, Any], run: Run | None, test: str = "") -> str:
    """The final figures for the eye; `test` is what is to be known of the test images."""
    scores = [
        f"{n} {100 * values[f'{n}_accuracy']:.2f} %"
        for n in ("train", "validation", "test")
        if f"{n}_accuracy" in values
    ]
    lines = [
        ("run folder", str(run.folder) if run else ""),
        ("steps", f"{values['step']:,} ({values['epoch']:g} epochs) in {values['seconds']:.1f} s"),
        ("accuracy", ", ".join(scores)),
        ("test split", test),
        ("sent", sent_line(values)),
        ("sha256", values["sha256"]),
    ]
    return "\n".join(f"{name:<12}{text}" for name, text in lines if text)
