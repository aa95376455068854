"""The methods: what each worker measures, what it sends, and what everyone does with all that was sent.

    sgd    theta <- theta - eta g
    rbd    theta <- theta - eta sum_i c_i phi_i / |phi_i|,   c_i = <phi_i, g> / |phi_i|,   phi re-drawn at every step
    fpd    theta  = theta0 + sum_i c_i phi_i / |phi_i|,      c descends its own gradient,  phi drawn once
    nes    as rbd, but c_i from losses alone: c_i = L(theta + sigma phi_i / |phi_i|) / (sigma d)

A method is three pure functions over a small state. `init` makes the state from weights. `look` is what one worker
does by itself: a loss, and the few numbers that it sends. `step` is what every replica does with the numbers of all
workers; it looks at no data, so replicas that were sent the same numbers hold the same weights to the bit, and a run is
repeated from its numbers. Whoever has seen the three functions of `rbd` has seen the paper's Algorithm 1.

With W workers the update is the sum over workers w = 0, 1, ... of their updates, each rebuilt from 0, added in that
order in float32; then theta <- theta - rate u, with rate = eta (`sum`) or eta / W (`mean`), product and difference each
rounded once. How their bases relate (`exchange`):
    independent  each worker has a basis of its own                          numbers of w: d coefficients
    shared       all have the basis of worker 0; coefficients are added      numbers of w: d coefficients
    split        all have the basis of worker 0; each has a part of it       numbers of w: its d / W coefficients
Tests: tests/test_descent.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple, Protocol

import numpy as np

from rbd_ref._check import integer, member
from rbd_ref._types import F32, TWO_32, Float32Array
from rbd_ref.basis import Basis
from rbd_ref.methods.transforms import composed

METHODS = ("sgd", "rbd", "fpd", "nes", "nes-shared-batch")
EXCHANGES = ("independent", "shared", "split")
COMBINES = ("sum", "mean")
OPTIMISERS = ("plain", "adam")
EMPTY = np.empty(0, dtype=F32)
BETA1, BETA2, EPSILON = F32(0.9), F32(0.999), F32(1e-8)


class Rebuild(NamedTuple):
    """The updates of a step's bases: u_j of length D for j < bases, whole, or part k of n as (first element, u)."""

    D: int
    bases: int
    whole: Callable[[int], Float32Array]
    part: Callable[[int, int, int], tuple[int, Float32Array]]


Total = Callable[[Rebuild], Float32Array]


class Oracle(Protocol):
    """The loss to be descended, as pure functions of weights, step and worker."""

    def gradient(self, theta: Float32Array, t: int, worker: int) -> tuple[float, Float32Array]:
        """Loss and gradient on the worker's batch of step t."""

    def loss(self, theta: Float32Array, t: int, worker: int, offspring: int | None) -> float:
        """The loss on that batch, or on the batch of an offspring of the worker."""


class State(NamedTuple):
    """Weights after t steps, and the velocity where there is momentum."""

    theta: Float32Array
    t: int
    velocity: Float32Array


class Fixed(NamedTuple):
    """Weights after t steps of `fpd`, the first after `since`: theta = origin + P c; m and v are the optimiser's."""

    theta: Float32Array
    t: int
    origin: Float32Array
    c: Float32Array
    m: Float32Array
    v: Float32Array
    since: int


class Look(NamedTuple):
    """What a worker found: its loss, the numbers it sends; its gradient and its update too, where they are at hand."""

    loss: float
    numbers: Float32Array
    g: Float32Array = EMPTY
    u: Float32Array = EMPTY


class Method(NamedTuple):
    """A method as pure functions; `length` is how many numbers a worker sends, `replayable` whether they are few."""

    name: str
    init: Callable[[Float32Array, int], Any]
    look: Callable[[Oracle, Any, int], Look]
    step: Callable[..., Any]
    length: int
    replayable: bool = True


@dataclass(frozen=True)
class Settings:
    """What methods can be told beside the basis. `rate` is eta."""

    rate: float
    momentum: float = 0.0
    redraw: int = 1
    workers: int = 1
    exchange: str = "independent"
    combine: str = "sum"
    transforms: tuple[str, ...] = ()
    optimiser: str = "plain"
    sigma: float = 1.0
    antithetic: bool = False

    def __post_init__(self) -> None:
        integer("redraw", self.redraw, 1, TWO_32)
        integer("workers", self.workers, 1, TWO_32)
        with np.errstate(over="ignore"):
            eta, sigma, momentum = self.eta, F32(self.sigma), F32(self.momentum)
        for name, value, fits, expected in (
            ("learning rate", self.rate, 0 < eta < np.inf, "a number above 0 that a float32 can hold"),
            ("sigma", self.sigma, 0 < sigma < np.inf, "a number above 0 that a float32 can hold"),
            ("momentum", self.momentum, 0 <= momentum < 1, "0 or more and, as a float32, less than 1"),
        ):
            if not fits:
                raise ValueError(f"{name} is {value}, expected {expected}: choose another")
        member("exchange", self.exchange, EXCHANGES)
        member("combine", self.combine, COMBINES)
        member("optimiser", self.optimiser, OPTIMISERS)
        composed(self.transforms)

    @property
    def eta(self) -> np.float32:
        """The rate that the sum of all workers' updates is multiplied with."""
        return F32(self.rate / self.workers if self.combine == "mean" else self.rate)


def added(rows: Iterable[Float32Array]) -> Float32Array:
    """The sum of vectors, from the first on, in float32."""
    return reduce(lambda total, row: total + row, rows)


def in_order(rebuild: Rebuild) -> Float32Array:
    """sum_j u_j from j = 0 up: the total of the workers' updates."""
    return added(rebuild.whole(j) for j in range(rebuild.bases))


def moved(state: State, u: Float32Array, settings: Settings) -> State:
    """theta - eta u, or with momentum mu: velocity <- mu velocity + u, theta - eta velocity."""
    velocity = F32(settings.momentum) * state.velocity + u if settings.momentum else EMPTY
    theta = settings.eta * (velocity if settings.momentum else u)
    np.subtract(state.theta, theta, out=theta)
    return State(theta, state.t + 1, velocity)


def at_rest(settings: Settings) -> Callable[[Float32Array, int], State]:
    """`init` of the methods that have weights and, with momentum, a velocity."""
    return lambda theta, t: State(theta, t, np.zeros_like(theta) if settings.momentum else EMPTY)


def sgd(D: int, settings: Settings) -> Method:
    """Stochastic gradient descent: what is sent is the whole gradient."""

    def look(oracle: Oracle, state: State, worker: int) -> Look:
        loss, g = oracle.gradient(state.theta, state.t, worker)
        return Look(loss, g, g)

    def step(
        state: State, gs: Float32Array, hand: Mapping[int, Float32Array] | None = None, total: Total = in_order
    ) -> State:
        return moved(state, added(gs), settings)

    return Method("sgd", at_rest(settings), look, step, D, replayable=False)


class Relation:
    """How the workers' bases relate: which part of which basis a worker has, what is rebuilt from what all sent."""

    def __init__(self, basis: Basis, settings: Settings) -> None:
        self.basis, self.workers, self.d = basis, settings.workers, basis.plan.d
        self.mode = settings.exchange if settings.workers > 1 else "independent"
        if self.mode == "split" and self.workers > self.d:
            raise ValueError(
                f"{self.workers} workers split {self.d} directions, expected as many directions as workers at least: "
                "choose more directions or fewer workers"
            )

    def of(self, worker: int) -> int:
        """The number of the worker's basis."""
        return worker if self.mode == "independent" else 0

    def part(self, worker: int) -> slice:
        """The worker's directions: all, or in `split` parts as even as can be, the larger ones first."""
        if self.mode != "split":
            return slice(0, self.d)
        quotient, rest = divmod(self.d, self.workers)
        first = worker * quotient + min(worker, rest)
        return slice(first, first + quotient + (worker < rest))

    @property
    def length(self) -> int:
        """How many numbers each worker sends."""
        return -(-self.d // self.workers) if self.mode == "split" else self.d

    def sent(self, part: Float32Array) -> Float32Array:
        """A worker's coefficients at the length that all send, filled up with 0."""
        return np.concatenate([part, np.zeros(self.length - part.size, dtype=F32)])

    def blocks(self, numbers: Float32Array) -> list[Float32Array]:
        """The coefficients of each basis from what the workers sent, (workers, length)."""
        if self.mode == "independent":
            return list(numbers)
        if self.mode == "shared":
            return [added(numbers)]
        parts = [self.part(w) for w in range(self.workers)]
        return [np.concatenate([row[: p.stop - p.start] for row, p in zip(numbers, parts, strict=True)])]

    def update(
        self, blocks: list[Float32Array], draw: int, hand: Mapping[int, Float32Array], total: Total
    ) -> Float32Array:
        """sum_j sum_i a_ji phi_ji over bases j; updates that are at hand need not be rebuilt."""
        basis = self.basis
        rebuild = Rebuild(
            basis.plan.D,
            len(blocks),
            lambda j: hand[j] if j in hand else basis.reconstruct(blocks[j], draw, j),
            lambda j, k, n: basis.reconstruct_part(blocks[j], draw, j, k, n),
        )
        return total(rebuild)


def roots(basis: Basis) -> Float32Array:
    """What makes a coefficient a coordinate, c_i = a_i sqrt(N_i), with the expectation for N_i where it is |phi_i|^2.

    So the coordinates are those of unit directions up to the spread of |phi_i|, about 1 / sqrt(2 size) of it.
    """
    plan, divisors = basis.plan, basis.draw(0).divisors
    expected = np.array([basis.family.expected_square(size) for size in plan.sizes])
    squares = np.repeat(np.where(divisors == 0, expected, divisors), plan.dims)
    found: Float32Array = np.sqrt(squares).astype(F32)
    return found


def _along_bases(name: str, relation: Relation, settings: Settings, measure: Callable[..., Look]) -> Method:
    """A method whose update is rebuilt from coefficients, along bases re-drawn every `redraw` steps."""

    def look(oracle: Oracle, state: State, worker: int) -> Look:
        return measure(oracle, state, state.t // settings.redraw, worker)

    def step(
        state: State, a: Float32Array, hand: Mapping[int, Float32Array] | None = None, total: Total = in_order
    ) -> State:
        u = relation.update(relation.blocks(a), state.t // settings.redraw, hand or {}, total)
        return moved(state, u, settings)

    return Method(name, at_rest(settings), look, step, relation.length)


def _coefficients(
    relation: Relation, settings: Settings
) -> Callable[[Float32Array, int, int], tuple[Float32Array, Float32Array]]:
    """What takes a gradient to the coefficients that a worker sends, and to its update where that comes with them."""
    basis, transform, scale = relation.basis, composed(settings.transforms), roots(relation.basis)

    def coefficients(g: Float32Array, draw: int, worker: int) -> tuple[Float32Array, Float32Array]:
        if relation.mode == "independent" and not settings.transforms:
            return basis.descend(g, draw, worker)
        part = relation.part(worker)
        a = basis.project_part(g, draw, relation.of(worker), part)
        if settings.transforms:
            a = transform(a * scale[part]) / scale[part]
        return relation.sent(a), EMPTY

    return coefficients


def rbd(basis: Basis, settings: Settings) -> Method:
    """Random bases descent: the gradient's coefficients along random directions that are drawn anew."""
    relation = Relation(basis, settings)
    coefficients = _coefficients(relation, settings)

    def measure(oracle: Oracle, state: State, draw: int, worker: int) -> Look:
        loss, g = oracle.gradient(state.theta, state.t, worker)
        a, u = coefficients(g, draw, worker)
        return Look(loss, a, g, u)

    return _along_bases("rbd", relation, settings, measure)


def nes(basis: Basis, settings: Settings, shared_batch: bool = False) -> Method:
    """Natural evolution strategies: c_i = f_i / (sigma d) from the losses L(theta + sigma phi_i / sqrt(N_i)) alone.

    f is the losses or, if antithetic, half the difference of those at +sigma and -sigma, after the transforms. Each
    offspring i has a mini-batch of its own, or all have the worker's (`shared_batch`).
    """
    relation, transform = Relation(basis, settings), composed(settings.transforms)

    def fitness(oracle: Oracle, state: State, worker: int, i: int, shift: Float32Array) -> float:
        batch = None if shared_batch else i
        above = oracle.loss(state.theta + shift, state.t, worker, batch)
        if not settings.antithetic:
            return above
        return (above - oracle.loss(state.theta - shift, state.t, worker, batch)) / 2

    def measure(oracle: Oracle, state: State, draw: int, worker: int) -> Look:
        part, j = relation.part(worker), relation.of(worker)
        lengths, f = np.empty(part.stop - part.start, dtype=F32), np.empty(part.stop - part.start, dtype=F32)
        for place, i in enumerate(range(part.start, part.stop)):
            phi = basis.directions([i], draw, j)[0]
            lengths[place] = length(basis, i, phi)
            f[place] = fitness(oracle, state, worker, i, F32(settings.sigma) / lengths[place] * phi)
        a: Float32Array = (transform(f) / F32(settings.sigma * basis.plan.d) / lengths).astype(F32)
        return Look(oracle.loss(state.theta, state.t, worker, None), relation.sent(a))

    return _along_bases("nes-shared-batch" if shared_batch else "nes", relation, settings, measure)


def length(basis: Basis, i: int, phi: Float32Array) -> float:
    """sqrt(N_i) of direction i, whose entries are phi."""
    divisor = float(basis.draw(0).divisors[basis.plan.locate(i)[0]])
    return float(np.sqrt(divisor or np.sum(phi * phi, dtype=np.float64)))


def fpd(basis: Basis, settings: Settings) -> Method:
    """Fixed projection descent: theta = theta0 + P c for one P, drawn at the start; c by gradient descent or Adam."""
    relation = Relation(basis, settings)
    coefficients, scale = _coefficients(relation, settings), roots(basis)

    def init(theta: Float32Array, t: int) -> Fixed:
        zeros = np.zeros((settings.workers if relation.mode == "independent" else 1, basis.plan.d), dtype=F32)
        return Fixed(theta, t, theta, zeros, zeros, zeros, t)

    def look(oracle: Oracle, state: Fixed, worker: int) -> Look:
        loss, g = oracle.gradient(state.theta, state.t, worker)
        return Look(loss, coefficients(g, 0, worker)[0], g)

    def step(
        state: Fixed, a: Float32Array, hand: Mapping[int, Float32Array] | None = None, total: Total = in_order
    ) -> Fixed:
        move = _adam if settings.optimiser == "adam" else _momentum
        c, m, v = move(state, np.stack(relation.blocks(a)), settings, scale)
        theta = state.origin + relation.update(list(c), 0, {}, total)
        return Fixed(theta, state.t + 1, state.origin, c, m, v, state.since)

    return Method("fpd", init, look, step, relation.length)


def _momentum(
    state: Fixed, a: Float32Array, settings: Settings, scale: Float32Array
) -> tuple[Float32Array, Float32Array, Float32Array]:
    """m <- mu m + a, c <- c - eta m: the same in coefficients as in coordinates."""
    m = F32(settings.momentum) * state.m + a
    return state.c - settings.eta * m, m, state.v


def _adam(
    state: Fixed, a: Float32Array, settings: Settings, scale: Float32Array
) -> tuple[Float32Array, Float32Array, Float32Array]:
    """Adam (Kingma and Ba 2015) on coordinates: m and v are moving averages of x = a sqrt(N) and of its square."""
    x: Any = a * scale
    n = state.t - state.since + 1
    m = BETA1 * state.m + (F32(1) - BETA1) * x
    v = BETA2 * state.v + (F32(1) - BETA2) * (x * x)
    first, second = m / F32(1 - float(BETA1) ** n), v / F32(1 - float(BETA2) ** n)
    return state.c - settings.eta * (first / (np.sqrt(second) + EPSILON)) / scale, m, v


def make(name: str, basis: Basis, settings: Settings) -> Method:
    """The method of this name."""
    member("method", name, METHODS)
    if name == "sgd":
        return sgd(basis.plan.D, settings)
    if name == "rbd":
        return rbd(basis, settings)
    if name == "fpd":
        return fpd(basis, settings)
    return nes(basis, settings, shared_batch=name == "nes-shared-batch")


class Schedule(NamedTuple):
    """Methods and the step from which on each is used; the first from step 0."""

    phases: tuple[tuple[int, Method], ...]

    def at(self, t: int) -> Method:
        """The method of step t."""
        return [method for first, method in self.phases if first <= t][-1]

    def entered(self, state: Any) -> Any:
        """The state as the method of its next step takes it: where that is a new one, it starts from the weights."""
        starts = dict(self.phases)
        return starts[state.t].init(state.theta, state.t) if state.t in starts else state
