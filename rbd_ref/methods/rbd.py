"""Random bases descent, the paper's Algorithm 1.

    each worker w:  g_w   = gradient of its batch at theta
                    a_wi  = <phi_wi, g_w> / |phi_wi|^2             i < d, along its basis of this step
    sent:           a_w                                            d floats a worker
    everyone:       u     = sum_w sum_i a_wi phi_wi                every basis regenerated from its seed
                    theta <- theta - eta u

Local: the gradient. With `redraw` n, the bases are those of step t div n. `exchange` says how the workers' bases
relate (sharing.py); transforms act on the coordinates c_wi = a_wi |phi_wi| before they are sent.
Tests: tests/test_methods.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rbd_ref._types import Float32Array
from rbd_ref.basis import Basis
from rbd_ref.methods import state as states
from rbd_ref.methods.base import Objective, PendingUpdate, Proposal
from rbd_ref.methods.settings import Settings
from rbd_ref.methods.sharing import BasisSharing
from rbd_ref.methods.state import DescentState


class RandomBasesDescent:
    """`rbd` along the bases of `basis`."""

    name = "rbd"
    replayable: ClassVar[bool] = True
    state_type: ClassVar[type[DescentState]] = DescentState

    def __init__(self, basis: Basis, settings: Settings) -> None:
        self.settings = settings
        self.sharing = BasisSharing(basis, settings)

    @property
    def payload_size(self) -> int:
        """d coefficients, or the worker's part of them."""
        return self.sharing.payload_size

    def init_state(self, theta: Float32Array, t: int) -> DescentState:
        """Weights at rest."""
        return states.init_state(theta, t, self.settings)

    def propose(self, objective: Objective, state: DescentState, worker: int) -> Proposal:
        """The gradient's coefficients along the worker's directions."""
        loss, g = objective.loss_and_gradient(state.theta, state.t, worker)
        payload, update = self.sharing.project(g, self._draw(state), worker)
        return Proposal(loss, payload, g, update)

    def collect(
        self, state: DescentState, payloads: Float32Array, local_updates: Mapping[int, Float32Array]
    ) -> tuple[DescentState, PendingUpdate]:
        """The update that all coefficients stand for."""
        coefficients = self.sharing.coefficients(payloads)
        return state, self.sharing.reconstruction(coefficients, self._draw(state), local_updates)

    def apply_update(self, state: DescentState, u: Float32Array) -> DescentState:
        """theta - eta u."""
        return states.apply_update(state, u, self.settings)

    def _draw(self, state: DescentState) -> int:
        """The step whose bases are used."""
        return state.t // self.settings.redraw
