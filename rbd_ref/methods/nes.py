"""Natural evolution strategies: coordinates from losses alone, along the same bases.

    each worker w:  f_wi = L(theta + sigma p_wi)                   p_wi = phi_wi / sqrt(N_wi), i < d
                    or, antithetic, (L(theta + sigma p_wi) - L(theta - sigma p_wi)) / 2
                    c_wi = transform(f_w)_i / (sigma d)
    sent:           a_wi = c_wi / sqrt(N_wi)                       d floats a worker, as rbd sends
    everyone:       as rbd

Each offspring i has a mini-batch of its own; in `nes-shared-batch` all have the worker's.
Local: the losses. Nothing is differentiated.
Tests: tests/test_methods.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from rbd_ref._types import F32, Float32Array
from rbd_ref.basis import Basis
from rbd_ref.methods import state as states
from rbd_ref.methods.base import Objective, PendingUpdate, Proposal
from rbd_ref.methods.settings import Settings
from rbd_ref.methods.sharing import BasisSharing
from rbd_ref.methods.state import DescentState
from rbd_ref.methods.transforms import compose


def direction_length(basis: Basis, i: int, phi: Float32Array) -> float:
    """sqrt(N_i) of direction i, whose entries are phi."""
    divisor = float(basis.draw(0).divisors[basis.plan.locate(i)[0]])
    return float(np.sqrt(divisor or np.sum(phi * phi, dtype=np.float64)))


class EvolutionStrategies:
    """`nes`, or with one batch for all offspring `nes-shared-batch`."""

    replayable: ClassVar[bool] = True
    state_type: ClassVar[type[DescentState]] = DescentState

    def __init__(self, basis: Basis, settings: Settings, shared_batch: bool = False) -> None:
        self.basis = basis
        self.settings = settings
        self.shared_batch = shared_batch
        self.sharing = BasisSharing(basis, settings)

    @property
    def name(self) -> str:
        """As in METHODS."""
        return "nes-shared-batch" if self.shared_batch else "nes"

    @property
    def payload_size(self) -> int:
        """d coefficients, or the worker's part of them."""
        return self.sharing.payload_size

    def init_state(self, theta: Float32Array, t: int) -> DescentState:
        """Weights at rest."""
        return states.init_state(theta, t, self.settings)

    def propose(self, objective: Objective, state: DescentState, worker: int) -> Proposal:
        """One loss, or two, along each of the worker's directions."""
        directions = self.sharing.directions_of(worker)
        lengths = np.empty(directions.stop - directions.start, dtype=F32)
        f = np.empty_like(lengths)
        for place, i in enumerate(range(directions.start, directions.stop)):
            phi = self.basis.directions([i], self._draw(state), self.sharing.basis_of(worker))[0]
            lengths[place] = direction_length(self.basis, i, phi)
            shift = F32(self.settings.sigma) / lengths[place] * phi
            f[place] = self._fitness(objective, state, worker, i, shift)
        c = compose(self.settings.transforms)(f) / F32(self.settings.sigma * self.basis.plan.d)
        a: Float32Array = (c / lengths).astype(F32)
        return Proposal(objective.loss(state.theta, state.t, worker, None), self.sharing.pad(a))

    def _fitness(self, objective: Objective, state: DescentState, worker: int, i: int, shift: Float32Array) -> float:
        """f of offspring i, whose weights are theta + shift."""
        offspring = None if self.shared_batch else i
        above = objective.loss(state.theta + shift, state.t, worker, offspring)
        if not self.settings.antithetic:
            return above
        return (above - objective.loss(state.theta - shift, state.t, worker, offspring)) / 2

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
