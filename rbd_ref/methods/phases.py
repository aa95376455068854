"""Which method is used at which step: a method each phase, the first from step 0.

Where a phase begins, its method starts from the weights of the one before (the paper's "hybrid training").
Tests: tests/test_methods.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from rbd_ref._types import F32, Float32Array
from rbd_ref.methods.base import Method, Replica, S_co, State, size_of


@dataclass(frozen=True, eq=False)
class Phase(Generic[S_co]):
    """A method, and the step from which on it is used."""

    first: int
    method: Method[S_co, Any]

    def __post_init__(self) -> None:
        if not self.method.replayable and size_of(self.method.init_local()):
            raise ValueError(
                f"method {self.method.name} is not journaled and its workers keep something, expected one or the "
                "other, as only the journal tells what they kept: send less, or keep nothing"
            )

    def start(self, theta: Float32Array, t: int) -> Replica[S_co]:
        """The method from these weights on, after t steps."""
        return Replica(self.method, self.method.init_state(theta, t))

    def resume(self, state: State) -> Replica[S_co]:
        """The method from a state on that was kept."""
        if not isinstance(state, self.method.state_type):
            raise ValueError(
                f"the state after step {state.t} is a {type(state).__name__}, expected a "
                f"{self.method.state_type.__name__}, as {self.method.name} makes it: use an earlier checkpoint"
            )
        return Replica(self.method, state)


@dataclass(frozen=True, eq=False)
class Phases:
    """Phases in the order of their first steps."""

    phases: tuple[Phase[State], ...]

    def at(self, t: int) -> Phase[State]:
        """The phase of step t."""
        return [phase for phase in self.phases if phase.first <= t][-1]

    def start(self, theta: Float32Array) -> Replica[State]:
        """Before the first step."""
        return self.at(0).start(theta, 0)

    def resume(self, state: State) -> Replica[State]:
        """From a kept state on, which the method of its last step made."""
        return self.at(max(state.t - 1, 0)).resume(state)

    def blank(self, D: int, t: int) -> State:
        """A state of the form of those after t steps: its arrays have their shapes, what it was started with stays."""
        phase = self.at(max(t - 1, 0))
        return phase.start(np.zeros(D, dtype=F32), phase.first).state

    def enter_phase(self, replica: Replica[State]) -> Replica[State]:
        """The replica as the method of its next step takes it: where that is a new one, it starts from the weights."""
        phase = self.at(replica.t)
        return phase.start(replica.theta, replica.t) if phase.first == replica.t else replica
