"""Random bases descent, the paper's Algorithm 1.

    each worker w:  g_w   = gradient of its batch at theta
                    a_wi  = <phi_wi, g_w> / |phi_wi|^2             i < d, along its basis of this step
    sent:           a_w                                            d floats a worker, or in fewer bits (codes.py)
    everyone:       u     = sum_w sum_i a_wi phi_wi                every basis regenerated from its seed
                    theta <- theta - eta_t u

Local: the gradient; with `memory` or `feedback`, what the worker keeps of its gradients (memory.py), which is then
projected in place of g. With `redraw` n, the bases are those of step t div n. `exchange` says how the workers' bases
relate (sharing.py); transforms act on the coordinates c_wi = a_wi |phi_wi| before they are sent.
Tests: tests/test_methods.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from rbd_ref._types import F32, Float32Array
from rbd_ref.basis import Basis
from rbd_ref.methods import state as states
from rbd_ref.methods.base import EMPTY, Objective, PendingUpdate, Proposal
from rbd_ref.methods.memory import Memory, add_scaled, averaged, contraction, increased
from rbd_ref.methods.settings import Settings
from rbd_ref.methods.sharing import BasisSharing
from rbd_ref.methods.state import DescentState

BIASED = "bernoulli-graphcore"


class RandomBasesDescent:
    """`rbd` along the bases of `basis`."""

    name = "rbd"
    every: ClassVar[int] = 1
    replayable: ClassVar[bool] = True
    state_type: ClassVar[type[DescentState]] = DescentState

    def __init__(self, basis: Basis, settings: Settings) -> None:
        self.settings = settings
        self.sharing = BasisSharing(basis, settings)
        if settings.feedback:
            _check_unit(basis)
        self.contraction = contraction(basis)

    @property
    def payload_size(self) -> int:
        """d coefficients, or the worker's part of them, as floats or in fewer bits."""
        return self.sharing.payload_size

    def init_state(self, theta: Float32Array, t: int) -> DescentState:
        """Weights at rest."""
        return states.init_state(theta, t, self.settings.momentum)

    def init_local(self) -> Memory:
        """No gradient has been seen."""
        keeps = self.settings.memory or self.settings.feedback
        return Memory(np.zeros(self.sharing.basis.plan.D, dtype=F32) if keeps else EMPTY)

    def propose(self, objective: Objective, state: DescentState, worker: int, local: Memory) -> tuple[Proposal, Memory]:
        """The coefficients of the gradient, or of what the worker keeps, along the worker's directions."""
        loss, g = objective.loss_and_gradient(state.theta, state.t, worker)
        kept = self._remember(local.kept, g, state.t)
        payload, update = self.sharing.project(kept if kept.size else g, self._draw(state), worker)
        if self.settings.feedback:
            sent = update if update.size else self.sharing.update_of(payload, self._draw(state), worker)
            add_scaled(kept, -self.contraction, sent)
            update = sent if self.sharing.bases == self.settings.workers else update  # else it is a part of one
        return Proposal(loss, payload, g, update), Memory(kept)

    def _remember(self, kept: Float32Array, g: Float32Array, t: int) -> Float32Array:
        """What the worker keeps once it has seen g; empty where it keeps nothing."""
        if self.settings.memory:
            return averaged(kept, g, self.settings.memory)
        return increased(kept, g, self.settings.eta(t)) if self.settings.feedback else EMPTY

    def decode(self, payloads: Float32Array) -> Float32Array:
        """The coefficients as they were sent."""
        return self.sharing.decode_all(payloads)

    def collect(
        self, state: DescentState, payloads: Float32Array, local_updates: Mapping[int, Float32Array]
    ) -> tuple[DescentState, PendingUpdate]:
        """The update that all coefficients stand for."""
        coefficients = self.sharing.coefficients(payloads)
        return state, self.sharing.reconstruction(coefficients, self._draw(state), local_updates)

    def apply_update(self, state: DescentState, u: Float32Array) -> DescentState:
        """theta - eta_t u; with feedback theta - s u, as the rate is in what was sent."""
        eta = self.contraction if self.settings.feedback else self.settings.eta(state.t)
        return states.apply_update(state, u, eta, self.settings.momentum)

    def _draw(self, state: DescentState) -> int:
        """The step whose bases are used."""
        return state.t // self.settings.redraw


def _check_unit(basis: Basis) -> None:
    """Refuse directions for which P P^T is no contraction: what is kept would grow without end."""
    if basis.normalize != "unit" or basis.family.name == BIASED:
        raise ValueError(
            f"feedback has directions of {basis.family} with normalize {basis.normalize}, expected unbiased ones of "
            f"unit length, or what is kept would grow without end: use normalize unit and a family other than {BIASED}"
        )
