"""Fixed projection descent (Li et al. 2018): one basis, drawn at the start, and coordinates that descend in it.

    theta = theta0 + sum_w sum_i c_wi phi_wi
    each worker w:  a_wi = <phi_wi, g_w> / N_wi                    sent, d floats a worker
    everyone:       m <- mu m + a,  c <- c - eta_t m               or Adam on the coordinates a sqrt(N)
                    theta <- theta0 + u(c)

Local: the gradient. All else (c, m, v) follows from what was sent, and every replica holds it.
Tests: tests/test_methods.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Self

import numpy as np

from rbd_ref._types import F32, Float32Array
from rbd_ref.basis import Basis
from rbd_ref.methods.base import NoLocal, Objective, PendingUpdate, Proposal
from rbd_ref.methods.settings import Settings
from rbd_ref.methods.sharing import BasisSharing

BETA1 = F32(0.9)
BETA2 = F32(0.999)
EPSILON = F32(1e-8)


def power(x: float, n: int) -> float:
    """x^n by squaring, in binary64: the product of x^(2^k) over the bits k of n, from the lowest. The C library's pow
    may differ in the last bit from one CPU to another."""
    result = 1.0
    while n:
        if n & 1:
            result *= x
        x *= x
        n >>= 1
    return result


class FixedProjectionState(NamedTuple):
    """Weights after t steps, the first after `since`: theta = origin + P c; m and v are the optimiser's."""

    theta: Float32Array
    t: int
    origin: Float32Array
    c: Float32Array
    m: Float32Array
    v: Float32Array
    since: int

    def with_theta(self, theta: Float32Array) -> Self:
        """The same with the weights in another place."""
        return self._replace(theta=theta)


class FixedProjectionDescent:
    """`fpd` in the basis of step 0."""

    name: ClassVar[str] = "fpd"
    every: ClassVar[int] = 1
    replayable: ClassVar[bool] = True
    state_type: ClassVar[type[FixedProjectionState]] = FixedProjectionState

    def __init__(self, basis: Basis, settings: Settings) -> None:
        self.settings = settings
        self.sharing = BasisSharing(basis, settings)

    @property
    def payload_size(self) -> int:
        """d coefficients, or the worker's part of them, as floats or in fewer bits."""
        return self.sharing.payload_size

    def init_state(self, theta: Float32Array, t: int) -> FixedProjectionState:
        """c = 0: these weights are theta0."""
        zeros = np.zeros((self.sharing.bases, self.sharing.d), dtype=F32)
        origin = theta.copy()  # ranks of a node write later weights into the memory of these
        return FixedProjectionState(theta, t, origin, zeros, zeros, zeros, since=t)

    def init_local(self) -> NoLocal:
        """Nothing is kept."""
        return NoLocal()

    def propose(
        self, objective: Objective, state: FixedProjectionState, worker: int, local: NoLocal
    ) -> tuple[Proposal, NoLocal]:
        """The gradient's coefficients along the worker's directions."""
        loss, g = objective.loss_and_gradient(state.theta, state.t, worker)
        payload, _ = self.sharing.project(g, 0, worker)  # its update is one of a, and wanted is that of c
        return Proposal(loss, payload, g), local

    def decode(self, payloads: Float32Array) -> Float32Array:
        """The coefficients as they were sent."""
        return self.sharing.decode_all(payloads)

    def collect(
        self, state: FixedProjectionState, payloads: Float32Array, local_updates: Mapping[int, Float32Array]
    ) -> tuple[FixedProjectionState, PendingUpdate]:
        """c, m and v take their step; what is to be rebuilt is all of P c."""
        a = np.stack(self.sharing.coefficients(payloads))
        moved = self._adam(state, a) if self.settings.optimiser == "adam" else self._momentum(state, a)
        return moved, self.sharing.reconstruction(tuple(moved.c), 0)

    def apply_update(self, state: FixedProjectionState, u: Float32Array) -> FixedProjectionState:
        """theta0 + P c."""
        return state._replace(theta=state.origin + u, t=state.t + 1)

    def _momentum(self, state: FixedProjectionState, a: Float32Array) -> FixedProjectionState:
        """m <- mu m + a, c <- c - eta_t m: the same in coefficients as in coordinates."""
        m = F32(self.settings.momentum) * state.m + a
        return state._replace(c=state.c - self.settings.eta(state.t) * m, m=m)

    def _adam(self, state: FixedProjectionState, a: Float32Array) -> FixedProjectionState:
        """Adam (Kingma and Ba 2015) on coordinates: m and v are moving averages of x = a sqrt(N) and of its square."""
        scale = self.sharing.scale
        x = a * scale
        n = state.t - state.since + 1
        m = BETA1 * state.m + (F32(1) - BETA1) * x
        v = BETA2 * state.v + (F32(1) - BETA2) * np.square(x)
        first = m / F32(1 - power(float(BETA1), n))
        second = v / F32(1 - power(float(BETA2), n))
        c = state.c - self.settings.eta(state.t) * (first / (np.sqrt(second) + EPSILON)) / scale
        return state._replace(c=c, m=m, v=v)
