"""Methods as a third party would write them, for tests/test_peers.py: signs with local error, and ways to be wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rbd_ref import Basis
from rbd_ref.methods.base import DecodedSum, Objective, Proposal
from rbd_ref.methods.settings import Settings

Floats = NDArray[np.float32]
SIGNS = 16  # in a float: any whole number below 2^16 is one


class Error(NamedTuple):
    """What a worker keeps: what the signs that it sent did not say."""

    e: Floats


class Counted(NamedTuple):
    """What every replica holds: weights, and beside them something of the method's own, the votes for each element."""

    theta: Floats
    t: int
    votes: Floats

    def with_theta(self, theta: Floats) -> Self:
        return self._replace(theta=theta)


class Signs:
    """e <- e + eta g; sent: s = mean |e| and the signs of e; e <- e - s sign(e); theta <- theta - sum_w s_w sign_w."""

    state_type = Counted
    reads = ("combine",)

    def __init__(self, D: int, settings: Settings) -> None:
        self.D = D
        self.settings = settings
        self.payload_size = 1 - (-D // SIGNS)

    def init_state(self, theta: Floats, t: int) -> Counted:
        return Counted(theta, t, np.zeros_like(theta))

    def init_local(self) -> Error:
        return Error(np.zeros(self.D, dtype=np.float32))

    def encode(self, e: Floats) -> Floats:
        scale = np.cumsum(np.abs(e), dtype=np.float64)[-1] / self.D
        signs = np.zeros((self.payload_size - 1, SIGNS), dtype=np.int64)
        signs.flat[: self.D] = e >= 0
        return np.concatenate([[scale], signs @ 2 ** np.arange(SIGNS)]).astype(np.float32)

    def decode(self, payload: Floats) -> Floats:
        bits = payload[1:].astype(np.int64)[:, np.newaxis] >> np.arange(SIGNS) & 1
        signs = bits.ravel()[: self.D].astype(np.float32) * 2 - 1
        return payload[0] * signs

    def propose(self, objective: Objective, state: Counted, worker: int, local: Error) -> tuple[Proposal, Error]:
        loss, g = objective.loss_and_gradient(state.theta, state.t, worker)
        e = local.e + self.settings.eta(state.t) * g
        payload = self.encode(e)
        return Proposal(loss, payload, g), Error(e - self.decode(payload))

    def collect(self, state: Counted, payloads: Floats, local_updates: Mapping[int, Floats]) -> tuple[Counted, Any]:
        votes = state.votes.copy()
        for payload in payloads:
            votes += np.sign(self.decode(payload))
        return state._replace(votes=votes), DecodedSum(self.D, payloads, self.decode)

    def apply_update(self, state: Counted, u: Floats) -> Counted:
        return Counted(state.theta - u, state.t + 1, state.votes)


def make(basis: Basis, settings: Settings, shapes: object) -> Signs:
    """The toy."""
    return Signs(basis.plan.D, settings)


class Rarely(Signs):
    """The same, at each third step."""

    every = 3

    def propose(self, objective: Objective, state: Counted, worker: int, local: Error) -> tuple[Proposal, Error]:
        if (state.t + 1) % 3 == 0:
            return super().propose(objective, state, worker, local)
        loss, g = objective.loss_and_gradient(state.theta, state.t, worker)
        return Proposal(loss, np.empty(0, dtype=np.float32)), Error(local.e + self.settings.eta(state.t) * g)

    def collect(self, state: Counted, payloads: Floats, local_updates: Mapping[int, Floats]) -> tuple[Counted, Any]:
        if (state.t + 1) % 3 == 0:
            return super().collect(state, payloads, local_updates)
        return state, DecodedSum(self.D, payloads, lambda payload: np.zeros(self.D, dtype=np.float32))


def rarely(basis: Basis, settings: Settings, shapes: object) -> Signs:
    return Rarely(basis.plan.D, settings)


# Ways to be wrong: each is the toy but for what its name says.


def wrong(**changes: Any) -> Any:
    """What makes a toy of which some parts are other ones."""
    return lambda basis, settings, shapes: type("Wrong", (Signs,), changes)(basis.plan.D, settings)


def _propose(change: Any) -> Any:
    """`propose`, and what becomes of its two results."""
    return lambda self, *rest: change(*Signs.propose(self, *rest))


def _write_theta(self: Any, objective: Any, state: Counted, *rest: Any) -> Any:
    state.theta[0] = 1
    return Signs.propose(self, objective, state, *rest)


def _write_local(self: Any, objective: Any, state: Counted, worker: int, local: Error) -> Any:
    local.e[0] += 1
    return Signs.propose(self, objective, state, worker, local)


def _fail(self: Any, *rest: Any) -> Any:
    raise KeyError("a mistake of the author's")


class Reserved(NamedTuple):
    """A local state with a name that files use."""

    info: Floats


class Wide(NamedTuple):
    """A local state that checkpoints cannot hold."""

    e: NDArray[np.float64]


not_a_function = 3
no_method = wrong
two_arguments = lambda basis, settings: None  # noqa: E731
nothing = lambda basis, settings, shapes: None  # noqa: E731
short = wrong(propose=_propose(lambda p, local: (p._replace(payload=p.payload[1:]), local)))
integers = wrong(propose=_propose(lambda p, local: (p._replace(payload=p.payload.view(np.uint32)), local)))
alone = wrong(propose=_propose(lambda p, local: p))
shrinking = wrong(propose=_propose(lambda p, local: (p, Error(local.e[1:]))))
listed = wrong(propose=_propose(lambda p, local: (p, [local.e])))
sizeless = wrong(payload_size=property(lambda self: 0.5, lambda self, size: None))
reserved = wrong(init_local=lambda self: Reserved(np.zeros(self.D, dtype=np.float32)))
wide = wrong(init_local=lambda self: Wide(np.zeros(self.D)))
stateless = wrong(init_state=lambda self, theta, t: (theta, t))
no_update = wrong(collect=lambda self, state, payloads, updates: (state, payloads))
lasting = wrong(apply_update=lambda self, state, u: state._replace(theta=state.theta - u))
double = wrong(
    apply_update=lambda self, state, u: Counted(state.theta - 1.0 * u.astype(np.float64), state.t + 1, state.votes)
)
other_state = wrong(apply_update=lambda self, state, u: (state.theta - u, state.t + 1))
writes_theta = wrong(propose=_write_theta)
writes_local = wrong(propose=_write_local)
fails = wrong(propose=_fail)
unmade = wrong(init_local=lambda self: self.D + "")
