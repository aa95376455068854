"""What a method is, and what passes between its parts.

A `Method` is a handful of pure functions over a small state. `propose` is what one worker does by itself: a loss, the
payload that it sends, and what it keeps to itself, its `Local` state, such as a memory of its gradients. `collect` and
`apply_update` are what every replica does with the payloads of all workers; they look at no data and at no local state,
so replicas that were sent the same payloads hold the same weights to the bit, and a run is repeated from its payloads.
Between the two stands a `PendingUpdate`: the update of the step, not rebuilt yet, so that the ranks of a node can
divide the work of rebuilding it.
Tests: tests/test_methods.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from rbd_ref._types import F32, Float32Array
from rbd_ref.basis import Basis

Shapes = tuple[tuple[int, ...], ...]  # of each tensor, in the order in which they lie in theta

EMPTY = np.empty(0, dtype=F32)
NONE: Mapping[int, Float32Array] = MappingProxyType({})


class Objective(Protocol):
    """The loss to be descended, as pure functions of weights, step and worker."""

    def loss_and_gradient(self, theta: Float32Array, step: int, worker: int) -> tuple[float, Float32Array]:
        """Loss and gradient on the worker's batch of a step."""

    def loss(self, theta: Float32Array, step: int, worker: int, offspring: int | None) -> float:
        """The loss on that batch, or on the batch of an offspring of the worker."""


class State(Protocol):
    """What a method holds between two steps: weights after t steps, and whatever else it needs to continue."""

    @property
    def theta(self) -> Float32Array:
        """The weights."""

    @property
    def t(self) -> int:
        """How many steps were taken."""

    def with_theta(self, theta: Float32Array) -> Self:
        """The same state with the weights in another place."""

    def _asdict(self) -> dict[str, Any]:
        """Fields by name, as every NamedTuple has them: arrays and integers, for checkpoints."""


class Local(Protocol):
    """What one worker keeps to itself between two steps: a NamedTuple of float32 arrays whose shapes never change."""

    def _asdict(self) -> dict[str, Any]:
        """Arrays by name, as every NamedTuple has them, for checkpoints."""


class NoLocal(NamedTuple):
    """The local state of a worker that keeps nothing."""


def size_of(local: Local) -> int:
    """How many floats a worker keeps."""
    return sum(array.size for array in local._asdict().values())


S = TypeVar("S", bound=State)
L = TypeVar("L", bound=Local)
S_co = TypeVar("S_co", bound=State, covariant=True)


class Proposal(NamedTuple):
    """What a worker found: its loss, and the payload it sends. Its gradient and its update stay local."""

    loss: float
    payload: Float32Array
    gradient: Float32Array = EMPTY
    update: Float32Array = EMPTY


class PendingUpdate(Protocol):
    """The update u = ((u_0 + u_1) + u_2) + ... of a step before anyone has rebuilt it."""

    @property
    def D(self) -> int:
        """Its number of elements."""

    @property
    def terms(self) -> int:
        """How many u_j there are."""

    def term(self, j: int) -> Float32Array:
        """u_j."""

    def part(self, j: int, k: int, n: int) -> tuple[int, Float32Array]:
        """Part k of n of u_j: its first element and its values; the same elements for every j."""


def sum_rows(rows: Iterable[Float32Array]) -> Float32Array:
    """The sum of vectors, from the first on, in float32; each is asked for when the ones before are added."""
    following = iter(rows)
    total = next(following).copy()
    for row in following:
        total += row
    return total


def sum_updates(pending: PendingUpdate) -> Float32Array:
    """u, by this process alone."""
    return sum_rows(pending.term(j) for j in range(pending.terms))


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """A pending update along bases: u_j = sum_i a_ji phi_ji in the basis of `step` and worker j.

    Updates that this process has computed already (`local_updates`, by j) are not rebuilt.
    """

    basis: Basis
    step: int
    coefficients: tuple[Float32Array, ...]
    local_updates: Mapping[int, Float32Array] = field(default_factory=dict)

    @property
    def D(self) -> int:
        """Number of parameters."""
        return self.basis.plan.D

    @property
    def terms(self) -> int:
        """Number of bases."""
        return len(self.coefficients)

    def term(self, j: int) -> Float32Array:
        """The update of basis j."""
        if j in self.local_updates:
            return self.local_updates[j]
        return self.basis.reconstruct(self.coefficients[j], self.step, j)

    def part(self, j: int, k: int, n: int) -> tuple[int, Float32Array]:
        """Part k of n of it."""
        return self.basis.reconstruct_part(self.coefficients[j], self.step, j, k, n)


@dataclass(frozen=True, eq=False)
class GradientSum:
    """A pending update that was sent whole: u_j is the gradient of worker j."""

    gradients: Float32Array

    @property
    def D(self) -> int:
        """Number of parameters."""
        return int(self.gradients.shape[1])

    @property
    def terms(self) -> int:
        """Number of workers."""
        return len(self.gradients)

    def term(self, j: int) -> Float32Array:
        """The gradient of worker j."""
        row: Float32Array = self.gradients[j]
        return row

    def part(self, j: int, k: int, n: int) -> tuple[int, Float32Array]:
        """Part k of n of it."""
        first = self.D * k // n
        last = self.D * (k + 1) // n
        return first, self.gradients[j, first:last]


@dataclass(frozen=True, eq=False)
class DecodedSum:
    """A pending update of which each payload (a row of `payloads`) holds a part: u_j = decode(payload of worker j)."""

    D: int
    payloads: Float32Array
    decode: Callable[[Float32Array], Float32Array]

    @property
    def terms(self) -> int:
        """Number of workers."""
        return len(self.payloads)

    def term(self, j: int) -> Float32Array:
        """What worker j has sent."""
        return self.decode(self.payloads[j])

    def part(self, j: int, k: int, n: int) -> tuple[int, Float32Array]:
        """Part k of n of it."""
        first = self.D * k // n
        last = self.D * (k + 1) // n
        return first, self.term(j)[first:last]


class Method(Protocol[S, L]):
    """A method as pure functions over its state S, which every replica holds, and the local state L of each worker."""

    @property
    def name(self) -> str:
        """As in METHODS."""

    @property
    def payload_size(self) -> int:
        """How many floats a worker sends at each step at which it sends: 32 bits each, see `decode`."""

    @property
    def every(self) -> int:
        """n, if workers send at steps n - 1, 2 n - 1, ... and at others nothing but their losses; 1: at each step."""

    @property
    def replayable(self) -> bool:
        """Whether payloads are few enough to be journaled; only then may workers keep something."""

    @property
    def state_type(self) -> type[S]:
        """The class of its states."""

    def init_state(self, theta: Float32Array, t: int) -> S:
        """The state that starts from these weights after t steps."""

    def init_local(self) -> L:
        """What a worker keeps before its first step with the method: the same for all workers."""

    def propose(self, objective: Objective, state: S, worker: int, local: L) -> tuple[Proposal, L]:
        """Local: what one worker finds at the state, and what it keeps from then on."""

    def decode(self, payloads: Float32Array) -> Float32Array:
        """The numbers in payloads (workers, payload_size), a row each: if one is not finite, the step has failed."""

    def collect(
        self, state: S, payloads: Float32Array, local_updates: Mapping[int, Float32Array]
    ) -> tuple[S, PendingUpdate]:
        """Global: what follows from the payloads (workers, payload_size): the state, but for its weights, and u."""

    def apply_update(self, state: S, u: Float32Array) -> S:
        """Global: the state after the step, once u is known."""


def payload_size_at(method: Method[Any, Any], t: int) -> int:
    """How many floats a worker sends at step t."""
    return method.payload_size if (t + 1) % method.every == 0 else 0


@dataclass(frozen=True, eq=False)
class Replica(Generic[S_co]):
    """A method and its state: all that a replica holds between two steps.

    Covariant, so that whoever trains can hold a `Replica[State]` without knowing which method it is: method and state
    only ever come together, and so always fit. Local states are not in it: whoever plays a worker holds the worker's.
    """

    method: Method[S_co, Any]
    state: S_co

    @property
    def theta(self) -> Float32Array:
        """The weights."""
        return self.state.theta

    @property
    def t(self) -> int:
        """How many steps were taken."""
        return self.state.t

    def propose(self, objective: Objective, worker: int, local: Local) -> tuple[Proposal, Local]:
        """What one worker finds, and what it keeps."""
        return self.method.propose(objective, self.state, worker, local)

    def collect(
        self, payloads: Float32Array, local_updates: Mapping[int, Float32Array] = NONE
    ) -> tuple[Replica[S_co], PendingUpdate]:
        """The replica with all payloads taken in, and the update that it waits for."""
        state, pending = self.method.collect(self.state, payloads, local_updates)
        return Replica(self.method, state), pending

    def apply_update(self, u: Float32Array) -> Replica[S_co]:
        """The replica after the step."""
        return Replica(self.method, self.method.apply_update(self.state, u))

    def step(self, payloads: Float32Array, local_updates: Mapping[int, Float32Array] = NONE) -> Replica[S_co]:
        """A whole step by this process alone: collect, rebuild, apply."""
        waiting, pending = self.collect(payloads, local_updates)
        return waiting.apply_update(sum_updates(pending))

    def with_theta(self, theta: Float32Array) -> Replica[S_co]:
        """The replica with its weights in another place."""
        return Replica(self.method, self.state.with_theta(theta))
