"""What a run writes down: metrics, journal, checkpoints, a progress bar, and the figures at its end.

Tests: tests/test_training.py.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import deque
from typing import Any, Self

import numpy as np

import rbd_ref
from rbd_ref._progress import bar
from rbd_ref._types import Float32Array
from rbd_ref.methods.descent import Method
from rbd_ref.runs import folder as runs
from rbd_ref.runs.files import disk
from rbd_ref.runs.folder import Run
from rbd_ref.runs.journal import Writer
from rbd_ref.training.communicator import Exchange
from rbd_ref.training.experiment import Replica
from rbd_ref.training.trainer import Resumed, Taken, Times, resumed

BAR = "{l_bar}{bar}| {elapsed}<{remaining}{postfix}"  # without counts, so that the figures fit into 80 columns


def cosine(x: Float32Array, y: Float32Array) -> float:
    """<x, y> / (|x| |y|), 0 where one of them is 0."""
    a, b = x.astype(np.float64), y.astype(np.float64)
    norms = math.sqrt(float(np.sum(a * a)) * float(np.sum(b * b)))
    return float(np.sum(a * b)) / norms if norms else 0.0


def correlation(replica: Replica, taken: Taken) -> dict[str, float]:
    """Cosine of the step and the gradient of this rank's workers: of the whole vectors, and the mean over tensors."""
    gradients = [
        look.g if look.g.size else replica.problem.gradient(taken.before.theta, taken.before.t, w)[1]
        for w, look in taken.looks.items()
    ]
    g, u = np.sum(gradients, axis=0), taken.before.theta - taken.after.theta
    bounds = np.cumsum([size for layer in replica.network.sizes for size in layer])[:-1]
    tensors = [cosine(x, y) for x, y in zip(np.split(u, bounds), np.split(g, bounds), strict=True)]
    return {"whole": cosine(u, g), "tensors": float(np.mean(tensors))}


class Logbook:
    """Writes a run down as it happens."""

    def __init__(
        self, replica: Replica, run: Run, exchange: Exchange, before: Resumed | None = None, quiet: bool = False
    ) -> None:
        self.replica, self.config, self.run, self.exchange, self.quiet = replica, replica.config, run, exchange, quiet
        seconds = max((values["seconds"] for values, _ in runs.metrics(run.metrics)), default=0.0)
        self.writer = (
            Writer.create(run.journal, self.config.digest) if before is None else Writer.go_on(run.journal, before.end)
        )
        self.began, self.before, self.spent, self.sent = time.perf_counter(), seconds, np.zeros(3), exchange.sent
        self.recent: list[float] = []
        self.evaluated = {v["step"] for v, _ in runs.metrics(run.metrics) if v["kind"] == "evaluation"}
        self.losses = (before.losses if before else [])[max(self.evaluated, default=0) :]
        self.latest: deque[float] = deque(self.losses, maxlen=100)
        self.note = ""
        self.first = before.state.t if before else 0

    @property
    def seconds(self) -> float:
        """Since the start, the time before a resumption included."""
        return self.before + time.perf_counter() - self.began

    @property
    def speed(self) -> float:
        """Images a second while training, of all workers."""
        images = len(self.recent) * self.config.workers * self.config.batch_size
        return images / float(self.spent.sum()) if self.spent.any() else 0.0

    def line(self, kind: str, t: int, **values: Any) -> None:
        """A line of metrics."""
        epoch = t / self.replica.steps_per_epoch
        text = json.dumps({"kind": kind, "step": t, "epoch": epoch, **values, "seconds": self.seconds})
        with disk(self.run.metrics, "written"), self.run.metrics.open("a", encoding="utf-8") as out:
            out.write(text + "\n")

    def restored(self) -> Any:
        """The state after the last step that was journaled."""
        self.writer.sync()
        return resumed(self.replica, self.run).state

    def journal(self, t: int, method: Method, numbers: Float32Array) -> None:
        """All that was sent or, of methods that send whole gradients, the losses."""
        self.writer.append(t, numbers if method.replayable else numbers[:, -1:])

    def step(self, taken: Taken) -> None:
        """Every few steps a line of metrics; the bar moves at all of them."""
        t, loss = taken.after.t, float(taken.numbers[:, -1].mean())
        self.recent.append(loss)
        self.losses.append(loss)
        self.latest.append(loss)
        self.spent = self.spent + np.array(taken.times)
        if not self.bar.disable:
            self.bar.set_postfix_str(f"loss {self.mean_loss():.3f}{self.note}, {self.speed:,.0f} images/s", False)
            self.bar.update(t - self.bar.n)
        if t % self.config.log_every == 0:
            self._step_line(taken)
            self.recent, self.spent, self.sent = [], np.zeros(3), self.exchange.sent

    def mean_loss(self) -> float:
        """Of the last steps."""
        return float(np.mean(self.latest))

    def _step_line(self, taken: Taken) -> None:
        values: dict[str, Any] = {"method": taken.method.name, "loss": float(np.mean(self.recent))}
        if taken.method.replayable:
            a = taken.numbers[:, :-1].astype(np.float64)
            values["coordinates"] = {"mean": a.mean(), "std": a.std(), "largest": np.abs(a).max()}
        if self.config.correlation:
            values["correlation"] = correlation(self.replica, taken)
        steps = len(self.recent)
        values["bytes_per_step"] = (self.exchange.sent - self.sent) / steps
        values["milliseconds"] = dict(zip(Times._fields, (1e3 * self.spent / steps).tolist(), strict=True))
        self.line("step", taken.after.t, **values, images_per_second=self.speed)

    def evaluate(self, state: Any) -> None:
        """Accuracy and loss on the validation set, once for each step."""
        if state.t in self.evaluated:
            return
        self.evaluated.add(state.t)
        accuracy, loss = self.replica.problem.evaluate(state.theta, "validation")
        self.note = f", val {100 * accuracy:.1f} %"
        seen = float(np.mean(self.losses))
        self.line("evaluation", state.t, loss=seen, validation_accuracy=accuracy, validation_loss=loss)
        self.losses = []
        if not self.quiet and self.bar.disable:
            epoch = state.t / self.replica.steps_per_epoch
            print(f"epoch {epoch:g}: loss {seen:.4f}, validation {100 * accuracy:.2f} %", flush=True)

    def checkpoint(self, state: Any) -> None:
        """The journal first, then what can be gone on from, unless it is there."""
        if runs.checkpoint_path(self.run, state.t).exists():
            return
        self.writer.sync()
        self.line("checkpoint", state.t, sha256=runs.save_checkpoint(self.run, state, self.config.digest))

    def finish(self, state: Any) -> None:
        """Theta and the final figures."""
        problem, c = self.replica.problem, self.config
        found = {f"{name}_accuracy": problem.evaluate(state.theta, name)[0] for name in ("train", "validation", "test")}
        length = self.replica.schedule.at(0).length
        values = {
            "sha256": runs.sha256(state.theta),
            "step": state.t,
            "epoch": state.t / self.replica.steps_per_epoch,
            **found,
            "seconds": self.seconds,
            "images_per_second": state.t * c.workers * c.batch_size / self.seconds,
            "D": self.replica.network.D,
            "d": self.replica.plan.d,
            "workers": c.workers,
            "bytes_per_step": 4 * (length + 1),
            "version": rbd_ref.__version__,
        }
        runs.save_arrays(self.run.folder / "final.npz", {"sha256": values["sha256"]}, theta=state.theta)
        runs.write_text(self.run.folder / "result.json", json.dumps(values, indent=1) + "\n")
        self.bar.close()
        if not self.quiet:
            print(summary(self.run, values))

    def say(self, text: str) -> None:
        """A sentence beside the results."""
        self.bar.close()
        stderr(text)

    def __enter__(self) -> Self:
        label = f"{self.config.data} {self.config.net} {self.config.method}"
        shown = False if self.quiet else self.exchange.terminal
        self.bar = bar(label, self.replica.steps, shown, self.first, bar_format=BAR)
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        self.writer.close()


def summary(run: Run, values: dict[str, Any]) -> str:
    """The final figures for the eye."""
    sent, whole = values["bytes_per_step"], 4 * values["D"]
    lines = [
        ("run folder", str(run.folder)),
        ("steps", f"{values['step']:,} ({values['epoch']:g} epochs) in {values['seconds']:.1f} s"),
        ("accuracy", ", ".join(f"{n} {100 * values[f'{n}_accuracy']:.2f} %" for n in ("train", "validation", "test"))),
        ("sent", f"{sent:,} bytes a worker and step; data-parallel SGD {whole:,}, {whole / sent:.1f} times as much"),
        ("sha256", values["sha256"]),
    ]
    return "\n".join(f"{name:<12}{text}" for name, text in lines)


def stderr(text: str) -> None:
    """A sentence beside the results."""
    print(text, file=sys.stderr, flush=True)
