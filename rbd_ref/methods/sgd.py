"""Stochastic gradient descent, data-parallel: what the other methods are measured against.

    u = g_0 + g_1 + ...,   theta <- theta - eta_t u

Sent: the whole gradient, D floats a worker. Local: nothing. Too much is sent to be journaled; a replay computes the
gradients again from the data.
Tests: tests/test_methods.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rbd_ref._types import Float32Array
from rbd_ref.methods import state as states
from rbd_ref.methods.base import GradientSum, NoLocal, Objective, PendingUpdate, Proposal
from rbd_ref.methods.settings import Settings
from rbd_ref.methods.state import DescentState


@dataclass(frozen=True)
class StochasticGradientDescent:
    """`sgd` for D parameters."""

    D: int
    settings: Settings

    name: ClassVar[str] = "sgd"
    every: ClassVar[int] = 1
    replayable: ClassVar[bool] = False
    state_type: ClassVar[type[DescentState]] = DescentState

    @property
    def payload_size(self) -> int:
        """The whole gradient."""
        return self.D

    def init_state(self, theta: Float32Array, t: int) -> DescentState:
        """Weights at rest."""
        return states.init_state(theta, t, self.settings.momentum)

    def init_local(self) -> NoLocal:
        """Nothing is kept."""
        return NoLocal()

    def propose(
        self, objective: Objective, state: DescentState, worker: int, local: NoLocal
    ) -> tuple[Proposal, NoLocal]:
        """The gradient of the worker's batch."""
        loss, g = objective.loss_and_gradient(state.theta, state.t, worker)
        return Proposal(loss, g, g), local

    def decode(self, payloads: Float32Array) -> Float32Array:
        """Gradients as they are."""
        return payloads

    def collect(
        self, state: DescentState, payloads: Float32Array, local_updates: Mapping[int, Float32Array]
    ) -> tuple[DescentState, PendingUpdate]:
        """The sum of the gradients, in worker order."""
        return state, GradientSum(payloads)

    def apply_update(self, state: DescentState, u: Float32Array) -> DescentState:
        """theta - eta_t u."""
        return states.apply_update(state, u, self.settings.eta(state.t), self.settings.momentum)
