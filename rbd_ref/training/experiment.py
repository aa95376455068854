"""An experiment: everything that follows from a configuration and its problem, before any step is taken.

Plan, basis, schedule of methods, theta0, how many steps; and how a step is repeated from what the workers sent.
Trainer and replay both advance the replicas that it makes.
Tests: tests/test_training.py.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from rbd_ref import backend as backends
from rbd_ref import methods
from rbd_ref._types import F32
from rbd_ref.backend import Backend
from rbd_ref.basis import Basis
from rbd_ref.methods.base import Replica, State, size_of, sum_rows
from rbd_ref.methods.phases import Phase, Phases
from rbd_ref.methods.rates import RateSchedule
from rbd_ref.methods.settings import Settings
from rbd_ref.runs import config as configs
from rbd_ref.runs import meaning
from rbd_ref.runs.config import FIELDS, REFERENCE, Config
from rbd_ref.runs.files import RunError
from rbd_ref.runs.journal import Record
from rbd_ref.runs.layouts import Layout, Layouts, Stretch
from rbd_ref.runs.memory import step_needs
from rbd_ref.training import third_party
from rbd_ref.training.problem import NetworkProblem, OwnProblem, Problem, TrainingProblem
from rbd_ref.training.proposals import VECTORS


class Experiment:
    """What a configuration trains, and how.

    `problem` is a problem of the caller's own (training/problem.py); without one the configuration names data and
    network. `ranks` is the default number of workers.
    """

    def __init__(self, config: Config, problem: Problem | None = None, ranks: int = 1) -> None:
        own = None if problem is None else OwnProblem(problem)
        complete = configs.complete(_described(config, own), ranks)
        backend = backends.load(complete.backend)
        self.config = _with_gradients(complete, backend)
        self.problem: TrainingProblem = own or NetworkProblem(self.config, backend)
        self.plan = configs.plan(self.config, self.problem.layers)
        self.basis = Basis(self.plan, self.config.seed, self.config.family, self.config.normalize, backend)
        self.steps_per_epoch = self.problem.steps_per_epoch or self._whole_run()
        self.steps = self._length()
        rates = RateSchedule(self.config.schedule, self.config.warmup, self.steps)
        self.phases = Phases(
            tuple(
                self._phase(epoch * self.steps_per_epoch, name, replace(settings, schedule=rates))
                for epoch, name, settings in self.config.phases
            )
        )

    def _phase(self, first: int, name: str, settings: Settings) -> Phase[State]:
        """One of this package's methods, or that of a third party, from a step on."""
        if backends.is_path(name):
            method = third_party.make(name, self.basis, settings, self.problem.shapes)
            third_party.refuse_unread(method, self.config)
            return Phase(first, method)
        return methods.make(name, self.basis, settings, first)

    def _whole_run(self) -> int:
        """Steps of an epoch, where the problem does not say: all that there are."""
        if self.config.steps is None or self.config.switch:
            raise ValueError(
                "the problem has no steps_per_epoch, expected it where epochs are counted: add it to the problem, or "
                "give steps and no switch"
            )
        return self.config.steps

    def _length(self) -> int:
        """Steps of the run: as many as its epochs have or as were given, whichever is less."""
        c = self.config
        given = c.epochs and c.epochs * self.steps_per_epoch, c.steps
        steps = min(length for length in given if length is not None)
        last = c.phases[-1][0] * self.steps_per_epoch
        if last >= steps:
            raise ValueError(
                f"the run has {steps} steps and switch {c.switch[-1]} comes after {last}, expected an earlier one: "
                "lower its epoch, or raise steps"
            )
        return steps

    def use_threads(self, n: int) -> None:
        """Kernels of networks and directions, and whoever computes gradients, use n threads, or (0) as they do."""
        backends.load("numba").set_threads(n)
        self.basis.backend.set_threads(n)
        self.problem.use_threads(n)

    def rehearse(self) -> None:
        """One step of each method that leads nowhere: afterwards all kernels are compiled and kept on disk."""
        for phase in self.phases.phases:
            replica = phase.start(self.start().theta, phase.first)
            rows = self.config.workers if phase.method.replayable else 1
            proposal, _ = replica.propose(self.problem, 0, phase.method.init_local())
            replica.step(np.stack([proposal.payload] * rows))

    def needs(self, ranks: int = 1, callbacks: bool = False) -> str:
        """What a step takes of the memory of a rank that plays the most workers, for a sentence."""
        W = self.config.workers
        here = -(-W // ranks)
        sent = 0 if all(phase.method.replayable for phase in self.phases.phases) else W
        kept = here * (2 * callbacks + (ranks > 1))
        local = here * max(size_of(phase.method.init_local()) for phase in self.phases.phases) // self.plan.D
        return step_needs(self.plan.D, W, VECTORS + sent + kept + local)

    def start(self) -> Replica[State]:
        """The replica before the first step."""
        return self.phases.start(self.problem.initial(self.config.seed))

    def blank(self, t: int) -> State:
        """A state of the form that those after t steps have, for checkpoints to be compared with."""
        return self.phases.blank(self.plan.D, t)

    def blank_local(self, t: int) -> Any:
        """What a worker that has kept nothing keeps after t steps: its arrays have their shapes."""
        return self.phases.at(max(t - 1, 0)).method.init_local()

    @property
    def keeps(self) -> bool:
        """Whether workers keep something in any phase."""
        return any(size_of(phase.method.init_local()) for phase in self.phases.phases)

    @property
    def forgotten(self) -> dict[int, str]:
        """The steps after which the workers forgot what they had kept, with the journal's chain value there."""
        return {int(step): chain for step, chain in (text.split(":") for text in self.config.forgotten)}

    @property
    def layouts(self) -> Layouts:
        """What the records are like: what each worker sent, where that is kept, and its loss."""
        return Layouts(*map(self._stretch, self.phases.phases))

    def _stretch(self, phase: Phase[State]) -> Stretch:
        """The records of a phase."""
        method = phase.method
        layout = Layout(self.config.workers, 1)
        if method.replayable:
            layout = Layout(self.config.workers, method.payload_size + 1, method.decode)
        return Stretch(phase.first, layout, method.every)

    def repeat(self, replica: Replica[State], record: Record) -> Replica[State]:
        """A step from what was sent; from the data, if what was sent was too much to be kept."""
        replica = self.phases.enter_phase(replica)
        with np.errstate(over="ignore", invalid="ignore"):
            if replica.method.replayable:
                return replica.step(record.payloads)
            local = replica.method.init_local()  # empty: what is not journaled keeps nothing
            proposals = (replica.propose(self.problem, w, local)[0] for w in range(self.config.workers))
            u = sum_rows(proposal.payload.astype(F32, copy=False) for proposal in proposals)
            return replica.step(u[np.newaxis])  # what was sent is the gradients, and their sum is all that counts


def _with_gradients(config: Config, backend: Backend) -> Config:
    """The configuration with who computes its gradients, by name, so that a run says it."""
    if config.gradients is not None or meaning.idle(FIELDS["gradients"], asdict(config)):
        return config
    return replace(config, gradients=config.backend if getattr(backend, "faster_gradients", False) else REFERENCE)


def _described(config: Config, own: OwnProblem | None) -> Config:
    """The configuration with the problem's description, so that a run says what it was a run of."""
    if own is None:
        if config.problem:
            raise RunError(
                f"this is a run of a problem of its author's own ({config.problem}), expected that problem: open it "
                "with rbd_ref.open_run(folder, problem), or continue with rbd_ref.fit"
            )
        return config
    description = own.describe(config.seed)
    if config.problem not in ("", description):
        raise RunError(f"the run's problem is {config.problem}, expected the same, this one is {description}")
    return replace(config, problem=description, data="", net="")
