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

import math
from dataclasses import replace

import numpy as np

from rbd_ref._types import F32, Float32Array
from rbd_ref.basis import Basis
from rbd_ref.methods.base import Objective, Proposal
from rbd_ref.methods.memory import Memory
from rbd_ref.methods.rbd import RandomBasesDescent
from rbd_ref.methods.settings import Settings
from rbd_ref.methods.state import DescentState
from rbd_ref.methods.transforms import compose
from rbd_ref.spec.operations import inner_product


def direction_length(basis: Basis, i: int, phi: Float32Array) -> float:
    """sqrt(N_i) of direction i, whose entries are phi."""
    compartment = basis.plan.locate(i)[0]
    entries = phi[basis.plan.elements(compartment)]
    return math.sqrt(basis.draw(0).divisors[compartment] or inner_product(entries, entries))


class EvolutionStrategies(RandomBasesDescent):
    """`nes`, or with one batch for all offspring `nes-shared-batch`: random bases descent but for its proposals."""

    def __init__(self, basis: Basis, settings: Settings, shared_batch: bool = False) -> None:
        # There is no gradient to remember; and where a direction costs a loss, fewer bits buy no more of them.
        super().__init__(basis, replace(settings, memory=0.0, feedback=False, coefficients="float32"))
        self.name = "nes-shared-batch" if shared_batch else "nes"
        self.shared_batch = shared_batch

    def propose(self, objective: Objective, state: DescentState, worker: int, local: Memory) -> tuple[Proposal, Memory]:
        """One loss, or two, along each of the worker's directions."""
        directions = self.sharing.directions_of(worker)
        lengths = np.empty(directions.stop - directions.start, dtype=F32)
        f = np.empty_like(lengths)
        for place, i in enumerate(range(directions.start, directions.stop)):
            phi = self.sharing.basis.directions([i], self._draw(state), self.sharing.basis_of(worker))[0]
            lengths[place] = direction_length(self.sharing.basis, i, phi)
            shift = F32(self.settings.sigma) / lengths[place] * phi
            f[place] = self._fitness(objective, state, worker, i, shift)
        c = compose(self.settings.transforms)(f) / F32(self.settings.sigma * self.sharing.basis.plan.d)
        a: Float32Array = (c / lengths).astype(F32)
        return Proposal(objective.loss(state.theta, state.t, worker, None), self.sharing.encode(a, worker)), local

    def _fitness(self, objective: Objective, state: DescentState, worker: int, i: int, shift: Float32Array) -> float:
        """f of offspring i, whose weights are theta + shift."""
        offspring = None if self.shared_batch else i
        above = objective.loss(state.theta + shift, state.t, worker, offspring)
        if not self.settings.antithetic:
            return above
        return (above - objective.loss(state.theta - shift, state.t, worker, offspring)) / 2
