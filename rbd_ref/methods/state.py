"""Weights that an update moves: the state of sgd, rbd and nes.

    theta <- theta - eta_t u                                      product and difference each rounded once
    v <- mu v + u,  theta <- theta - eta_t v                      with momentum mu

Tests: tests/test_methods.py.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from rbd_ref._types import F32, Float32Array
from rbd_ref.methods.base import EMPTY


class DescentState(NamedTuple):
    """Weights after t steps, and the velocity where there is momentum (empty where there is none)."""

    theta: Float32Array
    t: int
    velocity: Float32Array

    def with_theta(self, theta: Float32Array) -> Self:
        """The same with the weights in another place."""
        return self._replace(theta=theta)


def init_state(theta: Float32Array, t: int, momentum: float) -> DescentState:
    """Weights at rest."""
    return DescentState(theta, t, np.zeros_like(theta) if momentum else EMPTY)


def apply_update(state: DescentState, u: Float32Array, eta: np.float32, momentum: float) -> DescentState:
    """The state after a step with the update u."""
    velocity = F32(momentum) * state.velocity + u if momentum else EMPTY
    theta: Float32Array = eta * (velocity if momentum else u)
    np.subtract(state.theta, theta, out=theta)  # in place: no third vector of D elements
    return DescentState(theta, state.t + 1, velocity)
