"""The methods: against their literal definition, against plain NumPy, between workers, at their limits, and to the bit.

`oracles.py` has the losses and the plain loops. Bits are compared where the specification or the docstring of
rbd_ref/methods promises them; elsewhere the tolerance is stated.
"""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from autograd import grad
from hypothesis import given
from hypothesis import strategies as st

import oracles
import rbd_ref as rbd
from oracles import Linear, Quadratic
from rbd_ref import compartments, methods
from rbd_ref.kernels.backend import NumbaBackend
from rbd_ref.methods import METHODS, transforms
from rbd_ref.methods.base import EMPTY, NONE, Method, Proposal, Replica, State
from rbd_ref.methods.fpd import FixedProjectionState
from rbd_ref.methods.memory import Memory
from rbd_ref.methods.phases import Phase, Phases
from rbd_ref.methods.settings import COMBINES, EXCHANGES, Settings
from rbd_ref.methods.sgd import StochasticGradientDescent
from rbd_ref.methods.state import DescentState
from rbd_ref.models import networks
from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.families import FAMILIES
from rbd_ref.spec.operations import NORMALIZATIONS, directions, exact_divisors
from strategies import vector
from tools import COMPILED, bits

F32 = np.float32
BACKEND = NumbaBackend()  # to look for it by name takes longer than most tests here
PLAN = compartments.explicit(13, [(0, 2, 1), (2, 10, 4), (10, 13, 2)])
THETA = vector(8, PLAN.D)
WORKERS = (1, 2, 3, 5)


def basis_of(plan: Plan = PLAN, family: str = "normal", normalize: str = "unit", seed: int = 5) -> rbd.Basis:
    return rbd.Basis(plan, seed, family, normalize, BACKEND)


def same(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype == np.float32 and x.shape == y.shape and np.array_equal(bits(x), bits(y))


def same_state(x: Any, y: Any) -> bool:
    """All that two states or looks hold, to the bit."""
    pairs = list(zip(x, y, strict=True))
    return type(x) is type(y) and all(same(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)


def make(name: str, basis: rbd.Basis, settings: Settings) -> Method[Any, Any]:
    return methods.make(name, basis, settings).method


def step(method: Method[Any, Any], state: Any, payloads: np.ndarray, local_updates: Any = NONE) -> Any:
    """A step by one process."""
    return Replica(method, state).step(payloads, local_updates).state


def propose(method: Method[Any, Any], oracle: Any, state: Any, worker: int) -> Proposal:
    """What a worker finds that keeps nothing, or that has kept nothing so far."""
    return method.propose(oracle, state, worker, method.init_local())[0]


def advance(method: Method[Any, Any], oracle: Any, state: Any, workers: int = 1) -> tuple[Any, np.ndarray]:
    """A step as the trainer takes it, with local updates; and what was sent, the loss of each worker last."""
    proposals = [propose(method, oracle, state, w) for w in range(workers)]
    rows = np.stack([np.append(proposal.payload, F32(proposal.loss)) for proposal in proposals])
    local_updates = {w: proposal.update for w, proposal in enumerate(proposals) if proposal.update.size}
    return step(method, state, rows[:, :-1], local_updates), rows


def run(
    method: Method[Any, Any], oracle: Any, workers: int = 1, steps: int = 4, theta: np.ndarray = THETA
) -> tuple[list, list]:
    """The states from the first on, and what was sent at each step."""
    states, sent = [method.init_state(theta, 0)], []
    for _ in range(steps):
        state, numbers = advance(method, oracle, states[-1], workers)
        states.append(state)
        sent.append(numbers)
    return states, sent


def assert_near(states: list, expected: list[np.ndarray], tolerance: float = 2e-6) -> None:
    """Each theta within `tolerance` of what is expected or, where that is more, of the way it has gone."""
    assert [state.t for state in states] == list(range(len(expected) + 1))
    for state, theta in zip(states[1:], expected, strict=True):
        way = np.abs(theta - states[0].theta).max()
        assert way > 0.01
        assert state.theta.dtype == np.float32
        assert np.abs(state.theta - theta).max() <= tolerance * max(way, 1.0)


# The literal definition: c is the gradient of L(theta + P c) at c = 0, and P has the columns phi_i / sqrt(N_i).

NET = networks.make("mlp:4-3-2")
IMAGES, LABELS, POINT = vector(1, 24).reshape(6, 4), np.array([0, 1, 1, 0, 1, 0]), vector(2, NET.D)
PLANS = {
    "whole": compartments.whole(NET.D, d=5),
    "even": compartments.even(NET.D, k=4, d=2),
    "layer": compartments.by_layer(NET.sizes, total=6),
    "tensor": compartments.by_tensor(NET.sizes, total=7),
    "proportional": compartments.proportional([sum(layer) for layer in NET.sizes], 3),
}


def cross_entropy(theta: Any) -> Any:
    """The network's loss in float64, for autograd."""
    logits = networks.apply(NET, theta, IMAGES.astype(np.float64))
    return anp.mean(anp.log(anp.sum(anp.exp(logits), axis=1)) - logits[np.arange(6), LABELS])


class NetworkLoss:
    def loss_and_gradient(self, theta: np.ndarray, t: int, worker: int) -> tuple[float, np.ndarray]:
        return networks.loss_and_gradient(NET, theta, IMAGES, LABELS)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("family", [*FAMILIES, "sparse:3"])
def test_the_literal_definition(family: str, normalize: str, plan: str) -> None:
    basis = basis_of(PLANS[plan], family, normalize)
    phi = directions(basis.draw(2)).astype(np.float64)
    N = exact_divisors(basis.draw(2), phi)
    P = (phi / np.sqrt(N)[:, None]).T
    c = grad(lambda c: cross_entropy(POINT.astype(np.float64) + anp.dot(P, c)))(np.zeros(basis.plan.d))
    g = NetworkLoss().loss_and_gradient(POINT, 2, 0)[1]
    scale = np.linalg.norm(P, axis=0) * np.linalg.norm(g)
    assert (np.abs(basis.project(g, step=2) * np.sqrt(N) - c) <= 1e-6 * scale).all()
    assert np.abs(c).max() > 0.01 * scale.max()
    assert_steps_along(basis, P @ c)


def assert_steps_along(basis: rbd.Basis, u: np.ndarray) -> None:
    """`rbd` goes from theta to theta - eta u, within 1e-6 of a step of 1/2."""
    rate = 0.5 / np.abs(u).max()
    after, _ = advance(make("rbd", basis, Settings(rate)), NetworkLoss(), DescentState(POINT, 2, EMPTY))
    assert np.abs(after.theta - (POINT - rate * u)).max() <= 1e-6


# Each method against a plain loop.


@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd(momentum: float, workers: int, combine: str) -> None:
    s, oracle = Settings(0.1, momentum, workers=workers, combine=combine), Quadratic(PLAN.D)
    states, _ = run(make("sgd", basis_of(), s), oracle, workers)
    assert_near(states, oracles.weights(THETA, s, 4, oracles.sgd(oracle, s)))


@pytest.mark.parametrize("redraw", [1, 2, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("family", "normalize"), [("normal", "unit"), ("uniform", "none"), ("sparse:3", "graphcore")])
def test_rbd(family: str, normalize: str, momentum: float, redraw: int) -> None:
    basis, oracle = basis_of(family=family, normalize=normalize), Quadratic(PLAN.D)
    s = Settings(0.1, momentum, redraw)
    states, _ = run(make("rbd", basis, s), oracle, steps=5)
    assert_near(states, oracles.weights(THETA, s, 5, oracles.rbd(oracle, basis, s)))


@pytest.mark.parametrize("names", [("top:2",), ("ranks",), ("normalised", "top:3")])
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("family", ["normal", "rademacher"])
def test_transforms_of_rbd_are_of_coordinates(family: str, normalize: str, names: tuple[str, ...]) -> None:
    """Compartments differ in size, so the greatest coordinate c_i is not always the greatest coefficient a_i."""
    plan, theta = compartments.explicit(40, [(0, 10, 3), (10, 40, 4)]), vector(8, 40)
    basis, oracle, s = basis_of(plan, family, normalize), Quadratic(40), Settings(0.1, transforms=names)
    states, sent = run(make("rbd", basis, s), oracle, theta=theta)
    assert_near(states, oracles.weights(theta, s, 4, oracles.rbd(oracle, basis, s)))
    if names[-1].startswith("top:"):
        assert [np.count_nonzero(numbers[0, :-1]) for numbers in sent] == [int(names[-1][4:])] * 4


RAW, RANKS, SCORES, TOP = (), ("ranks",), ("normalised",), ("normalised", "top:3")


@pytest.mark.parametrize("name", ["nes", "nes-shared-batch"])
@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("names", [RAW, RANKS, SCORES, TOP])
@pytest.mark.parametrize(("family", "normalize"), [("normal", "unit"), ("uniform", "expected")])
def test_nes(family: str, normalize: str, names: tuple[str, ...], antithetic: bool, name: str) -> None:
    basis, oracle = basis_of(family=family, normalize=normalize), Quadratic(PLAN.D)
    s = Settings(0.5, 0.5, 2, transforms=names, sigma=0.7, antithetic=antithetic)
    states, _ = run(make(name, basis, s), oracle)
    expected = oracles.weights(THETA, s, 4, oracles.nes(oracle, basis, s, name == "nes-shared-batch"))
    assert_near(states, expected, tolerance=1e-5)


@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("name", ["nes", "nes-shared-batch"])
def test_which_batch_an_offspring_gets(name: str, antithetic: bool) -> None:
    """Its own or the worker's, in both senses the same; the loss that is reported is of the weights themselves."""
    oracle, s = Quadratic(PLAN.D), Settings(0.5, workers=3, antithetic=antithetic)
    look = propose(make(name, basis_of(), s), oracle, DescentState(THETA, 4, EMPTY), 2)
    own = [(4, 2, i + 1) if name == "nes" else (4, 2) for i in range(PLAN.d) for _ in range(1 + antithetic)]
    assert oracle.asked == [*own, (4, 2)]
    assert look.loss == oracle.loss(THETA, 4, 2, None)


@pytest.mark.parametrize("workers", [2, 3])
def test_offspring_of_a_split_basis_are_numbered_through(workers: int) -> None:
    oracle = Quadratic(PLAN.D)
    method = make("nes", basis_of(), Settings(0.5, workers=workers, exchange="split"))
    asked = []
    for w in range(workers):
        propose(method, oracle, DescentState(THETA, 4, EMPTY), w)
        assert {batch[:2] for batch in oracle.asked} == {(4, w)}
        asked += [batch[2] for batch in oracle.asked if len(batch) == 3]
        oracle.asked.clear()
    assert asked == list(range(1, PLAN.d + 1))


FOLLOWED = {"plain": {}, "momentum": {"momentum": 0.8}, "adam": {"optimiser": "adam"}}


@pytest.mark.parametrize("how", FOLLOWED)
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("family", ["normal", "uniform", "rademacher"])
def test_fpd(family: str, normalize: str, how: str) -> None:
    basis, oracle, s = basis_of(family=family, normalize=normalize), Quadratic(PLAN.D), Settings(0.1, **FOLLOWED[how])
    states, _ = run(make("fpd", basis, s), oracle, steps=6)
    assert_near(states, oracles.fpd(oracle, basis, s, THETA, 6), tolerance=2e-5 if how == "adam" else 2e-6)


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_adam_is_on_coordinates(normalize: str) -> None:
    """The epsilon of Adam has their unit, which is seen where they are as small as it is."""
    basis, oracle = basis_of(family="rademacher", normalize=normalize), Linear(F32(1e-8) * vector(3, PLAN.D))
    s = Settings(0.1, optimiser="adam")
    states, _ = run(make("fpd", basis, s), oracle, steps=3)
    assert_near(states, oracles.fpd(oracle, basis, s, THETA, 3), tolerance=2e-5)


@pytest.mark.parametrize("how", FOLLOWED)
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_fpd_stays_where_its_directions_lead(exchange: str, how: str) -> None:
    """theta - theta0 is in the span of the bases of step 0: what least squares leave is rounding."""
    workers = 2 if exchange == "independent" else 3
    basis, s = basis_of(compartments.whole(20, d=4)), Settings(0.2, workers=workers, exchange=exchange, **FOLLOWED[how])
    states, _ = run(make("fpd", basis, s), Quadratic(20), workers, steps=8, theta=vector(3, 20))
    span = np.concatenate([oracles.rows(basis, 0, w) for w in range(2 if exchange == "independent" else 1)])
    way = states[-1].theta.astype(np.float64) - states[0].theta
    found = np.linalg.lstsq(span.T, way, rcond=None)[0]
    assert np.abs(way).max() > 0.1
    assert np.abs(found @ span - way).max() <= 1e-6


# Bits: a step is a pure function, and what was sent is enough to repeat a run.


def cases() -> dict[str, tuple[str, Settings]]:
    """Every method with every exchange, and every other thing that a method can be told."""
    found = {
        f"{name}-{mode}": (name, Settings(0.1, workers=3, exchange=mode)) for name in METHODS for mode in EXCHANGES
    }
    for name in METHODS:
        found[f"{name}-momentum"] = name, Settings(0.1, 0.9, redraw=2, workers=2, combine="mean")
        found[f"{name}-alone"] = name, Settings(0.1)
    for name in METHODS[1:]:
        found[f"{name}-transforms"] = name, Settings(0.1, transforms=("normalised", "top:3"), workers=2)
    found["fpd-adam"] = "fpd", Settings(0.1, workers=3, optimiser="adam")
    found["fpd-adam-split"] = "fpd", Settings(0.1, workers=3, exchange="split", optimiser="adam")
    found["nes-antithetic"] = "nes", Settings(0.1, antithetic=True, sigma=0.1)
    return found


CASES = cases()


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_repeated_from_what_was_sent(case: str) -> None:
    """Every state, to the bit, by `step` alone, without a look at data and without what was at hand."""
    name, s = CASES[case]
    method = make(name, basis_of(), s)
    states, sent = run(method, Quadratic(PLAN.D), s.workers)
    state = method.init_state(THETA.copy(), 0)
    for numbers, expected in zip(sent, states[1:], strict=True):
        record = np.frombuffer(numbers.tobytes(), dtype=np.float32).reshape(numbers.shape)
        state = step(method, state, record[:, :-1])
        assert same_state(state, expected)
    assert not same(state.theta, THETA)


def frozen(value: Any) -> Any:
    """A copy whose arrays cannot be written to."""
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flags.writeable = False
    elif isinstance(value, tuple):
        value = type(value)(*map(frozen, value))
    return value


@pytest.mark.parametrize("case", CASES)
def test_propose_and_step_are_pure(case: str) -> None:
    """The same from the same, to the bit, and nothing that was given is written to."""
    name, s = CASES[case]
    method = make(name, basis_of(), s)
    state = frozen(run(method, Quadratic(PLAN.D), s.workers, steps=2)[0][-1])
    looks = [propose(method, Quadratic(PLAN.D), state, w) for w in range(s.workers)]
    assert all(same_state(look, propose(method, Quadratic(PLAN.D), state, w)) for w, look in enumerate(looks))
    numbers = frozen(np.stack([look.payload for look in looks]))
    local = {w: frozen(look.update) for w, look in enumerate(looks) if look.update.size}
    after = step(method, state, numbers, local)
    assert same_state(after, step(method, state, numbers, local))
    assert same_state(after, step(make(name, basis_of(), s), state, numbers))


@pytest.mark.parametrize("case", CASES)
def test_what_a_worker_sends(case: str) -> None:
    """`payload_size` float32 numbers; the gradient of sgd is too much to be kept."""
    name, s = CASES[case]
    method = make(name, basis_of(), s)
    looks = [propose(method, Quadratic(PLAN.D), method.init_state(THETA, 0), w) for w in range(s.workers)]
    expected = PLAN.D if name == "sgd" else -(-PLAN.d // s.workers) if s.exchange == "split" else PLAN.d
    assert {(look.payload.dtype.name, look.payload.shape) for look in looks} == {("float32", (expected,))}
    assert (method.name, method.payload_size, method.replayable) == (name, expected, name != "sgd")
    for w, look in enumerate(looks):
        assert look.gradient.size == 0 or same(look.gradient, Quadratic(PLAN.D).loss_and_gradient(THETA, 0, w)[1])
        assert bool(look.gradient.size) == (name in ("sgd", "rbd", "fpd"))
        assert look.loss == Quadratic(PLAN.D).loss(THETA, 0, w, None)


# Workers.


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_workers_of_rbd(exchange: str, combine: str, workers: int) -> None:
    basis, oracle = basis_of(), Quadratic(PLAN.D)
    s = Settings(0.1, 0.5, 2, workers, exchange, combine)
    states, _ = run(make("rbd", basis, s), oracle, workers)
    assert_near(states, oracles.weights(THETA, s, 4, oracles.rbd(oracle, basis, s)))


@pytest.mark.parametrize("how", FOLLOWED)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_workers_of_fpd(exchange: str, combine: str, workers: int, how: str) -> None:
    basis, oracle = basis_of(), Quadratic(PLAN.D)
    s = Settings(0.1, workers=workers, exchange=exchange, combine=combine, **FOLLOWED[how])
    states, _ = run(make("fpd", basis, s), oracle, workers)
    assert_near(states, oracles.fpd(oracle, basis, s, THETA, 4), tolerance=2e-5 if how == "adam" else 2e-6)


@pytest.mark.parametrize("names", [RAW, RANKS])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_workers_of_nes(exchange: str, combine: str, workers: int, names: tuple[str, ...]) -> None:
    """Each worker ranks the losses that it has itself."""
    basis, oracle = basis_of(), Quadratic(PLAN.D)
    s = Settings(0.5, workers=workers, exchange=exchange, combine=combine, transforms=names, antithetic=True)
    states, _ = run(make("nes", basis, s), oracle, workers)
    assert_near(states, oracles.weights(THETA, s, 4, oracles.nes(oracle, basis, s, False)), tolerance=1e-5)


def gradients(workers: int) -> list[np.ndarray]:
    """Those of step 4."""
    return [Quadratic(PLAN.D).loss_and_gradient(THETA, 4, w)[1] for w in range(workers)]


def added(vectors: list[np.ndarray]) -> np.ndarray:
    """From the first on, in float32."""
    total = vectors[0]
    for one in vectors[1:]:
        total = total + one
    return total


def update_to_the_bit(basis: rbd.Basis, exchange: str, workers: int, backwards: bool = False) -> np.ndarray:
    """The update of step 4 as rbd_ref/methods/sharing.py says it, or with the order of workers reversed."""
    gs, turn = gradients(workers), slice(None, None, -1 if backwards else 1)
    if exchange == "independent":
        a = [basis.project(g, 4, w) for w, g in enumerate(gs)]
        return added([basis.reconstruct(a_w, 4, w) for w, a_w in enumerate(a)][turn])
    a = [basis.project(g, 4, 0) for g in gs]
    if exchange == "shared":
        return basis.reconstruct(added(a[turn]), 4, 0)
    numbers = np.array_split(np.arange(basis.plan.d), workers)
    return basis.reconstruct(np.concatenate([a_w[part] for a_w, part in zip(a, numbers, strict=True)]), 4, 0)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("family", ["normal", "srht"])
def test_workers_to_the_bit(family: str, exchange: str, combine: str, workers: int) -> None:
    basis, s = basis_of(family=family), Settings(0.3, workers=workers, exchange=exchange, combine=combine)
    after, _ = advance(make("rbd", basis, s), Quadratic(PLAN.D), DescentState(THETA, 4, EMPTY), workers)
    rate = F32(0.3 / workers if combine == "mean" else 0.3)
    assert same(after.theta, THETA - rate * update_to_the_bit(basis, exchange, workers))


@pytest.mark.parametrize("exchange", ["independent", "shared"])
def test_the_order_of_workers_can_be_seen_in_the_bits(exchange: str) -> None:
    """Else the test above could not tell one order from another."""
    forth, back = (update_to_the_bit(basis_of(), exchange, 5, backwards) for backwards in (False, True))
    assert np.allclose(forth, back, atol=1e-5)
    assert not same(forth, back)


@pytest.mark.parametrize("workers", [2, 3, 5, 7])
def test_the_parts_of_a_split_basis_cover_it_once(workers: int) -> None:
    """The numbers of all workers, without what fills them up, are one projection, since all see one gradient."""
    basis, g = basis_of(), vector(4, PLAN.D)
    method = make("rbd", basis, Settings(0.1, workers=workers, exchange="split"))
    sent = [propose(method, Linear(g), DescentState(THETA, 4, EMPTY), w).payload for w in range(workers)]
    quotient, rest = divmod(PLAN.d, workers)
    counts = [quotient + (w < rest) for w in range(workers)]
    assert {len(numbers) for numbers in sent} == {max(counts)}
    assert same(np.concatenate([a[:n] for a, n in zip(sent, counts, strict=True)]), basis.project(g, 4))
    assert all((a[n:] == 0).all() for a, n in zip(sent, counts, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_one_worker_has_the_same_bits_in_every_exchange(name: str) -> None:
    runs = [
        run(make(name, basis_of(), Settings(0.1, 0.5, exchange=exchange, combine=combine)), Quadratic(PLAN.D))
        for exchange in EXCHANGES
        for combine in COMBINES
    ]
    for states, sent in runs[1:]:
        assert all(same_state(a, b) for a, b in zip(states, runs[0][0], strict=True))
        assert all(same(a, b) for a, b in zip(sent, runs[0][1], strict=True))


@pytest.mark.parametrize("name", METHODS[1:])
def test_more_workers_than_directions_cannot_split_them(name: str) -> None:
    make(name, basis_of(), Settings(0.1, workers=PLAN.d, exchange="split"))
    with pytest.raises(ValueError, match="8 workers split 7 directions, expected as many directions as workers"):
        make(name, basis_of(), Settings(0.1, workers=PLAN.d + 1, exchange="split"))
    make(name, basis_of(), Settings(0.1, workers=PLAN.d + 1, exchange="shared"))
    make("sgd", basis_of(), Settings(0.1, workers=PLAN.d + 1, exchange="split"))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_pending_update_can_be_rebuilt_in_parts(exchange: str, name: str) -> None:
    """It says how many terms there are and gives each, whole or part by part, to the same bits."""
    method = make(name, basis_of(), Settings(0.1, workers=3, exchange=exchange))
    state = method.init_state(THETA, 0)
    payloads = np.stack([propose(method, Quadratic(PLAN.D), state, w).payload for w in range(3)])
    expected = step(method, state, payloads)
    for n in (1, 2, 5):
        waiting, pending = Replica(method, state).collect(payloads)
        u = added([joined([pending.part(j, k, n) for k in range(n)]) for j in range(pending.terms)])
        assert same_state(waiting.apply_update(u).state, expected)
        assert (pending.D, pending.terms) == (PLAN.D, 3 if exchange == "independent" or name == "sgd" else 1)


def joined(found: list[tuple[int, np.ndarray]]) -> np.ndarray:
    """The parts of an update, which begin where the one before ends."""
    ends = np.cumsum([0, *(part.size for _, part in found)])
    assert [first for first, _ in found] == ends[:-1].tolist()
    return np.concatenate([part for _, part in found])


def test_local_updates_are_not_rebuilt() -> None:
    method, hand = make("rbd", basis_of(), Settings(1.0, workers=2)), vector(6, PLAN.D)
    numbers = np.stack([vector(7, PLAN.d), vector(8, PLAN.d)])
    after = step(method, DescentState(THETA, 3, EMPTY), numbers, {1: hand})
    assert same(after.theta, THETA - (basis_of().reconstruct(numbers[0], 3, 0) + hand))


def test_fpd_has_no_local_updates() -> None:
    """Its update is of c, which is more than what was sent at one step."""
    method = make("fpd", basis_of(), Settings(1.0, workers=2))
    state, numbers = method.init_state(THETA, 0), np.stack([vector(7, PLAN.d), vector(8, PLAN.d)])
    assert same_state(step(method, state, numbers, {0: THETA, 1: THETA}), step(method, state, numbers))


# Means over many bases, with fixed seeds.

COPIES, STEPS = 100, 60 if COMPILED else 2


def mean_and_error(family: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(d / D) g for a gradient that is constant, the mean update over many draws, and its standard error.

    D = 12 and d = 6, drawn at each step in a hundred compartments that have the same gradient.
    """
    basis, g = basis_of(compartments.even(12 * COPIES, k=COPIES, d=6), family), F32(1) + F32(0.5) * vector(3, 12)
    method, rest = make("rbd", basis, Settings(1.0)), np.zeros(basis.plan.D, dtype=F32)
    oracle = Linear(np.tile(g, COPIES))
    updates = [-advance(method, oracle, DescentState(rest, t, EMPTY))[0].theta for t in range(STEPS)]
    wide = np.concatenate(updates).reshape(-1, 12).astype(np.float64)
    return g / 2, wide.mean(axis=0), wide.std(axis=0, ddof=1) / np.sqrt(len(wide))


@pytest.mark.parametrize("family", ["normal", "uniform", "rademacher", "sparse:3", "srht"])
def test_the_mean_update_is_a_part_of_the_gradient(family: str) -> None:
    """d / D of it. A right family fails with probability 1e-5 at most (12 elements, five standard errors); compiled,
    an element that is off by a tenth is seen."""
    expected, mean, error = mean_and_error(family)
    assert (np.abs(mean - expected) <= 5 * error).all()
    assert (5 * error <= (0.1 if COMPILED else 0.6) * np.abs(expected).max()).all()


def test_the_mean_update_of_a_biased_family_is_not() -> None:
    """The gradient above has a mean, as have these directions: they see it far too large."""
    expected, mean, error = mean_and_error("bernoulli-graphcore")
    assert (np.abs(mean - expected) > 5 * error).all()


class Integers(Quadratic):
    """A quadratic whose values, and whose differences from x to x + phi with phi of +-1, float32 holds exactly."""

    def __init__(self, D: int) -> None:
        super().__init__(D, noise=0.0)
        self.A = np.round(4 * self.A)
        self.A, self.target = self.A + self.A.T, np.round(4 * self.target)


def test_antithetic_nes_on_a_quadratic_is_rbd_exactly() -> None:
    """(L(x + s) - L(x - s)) / 2 = <g, s> for a quadratic, so c_i = <g, p_i> / d: rbd's, to the bit where all is exact.

    D = 16 and sigma = 4 make sigma phi / |phi| = phi, and d = 4 is a power of two.
    """
    basis, theta = basis_of(compartments.whole(16, d=4), "rademacher"), np.round(8 * vector(1, 16)).astype(F32)
    nes = make("nes", basis, Settings(4 * 0.125, sigma=4.0, antithetic=True))
    plain = make("rbd", basis, Settings(0.125))
    by_losses, sent = advance(nes, Integers(16), DescentState(theta, 3, EMPTY))
    by_gradient, expected = advance(plain, Integers(16), DescentState(theta, 3, EMPTY))
    assert same(4 * sent[:, :-1], expected[:, :-1])
    assert same(by_losses.theta, by_gradient.theta)
    assert not same(by_losses.theta, theta)


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("family", [*FAMILIES, "sparse:3"])
def test_antithetic_nes_on_a_quadratic_is_rbd(family: str, normalize: str) -> None:
    """For every basis, up to the rounding of theta + s and of the losses."""
    basis, state = basis_of(family=family, normalize=normalize), DescentState(THETA, 3, EMPTY)
    method = make("nes-shared-batch", basis, Settings(1.0, sigma=0.5, antithetic=True))
    a = propose(method, Quadratic(PLAN.D), state, 0).payload
    expected = propose(make("rbd", basis, Settings(1.0)), Quadratic(PLAN.D), state, 0).payload
    assert np.abs(PLAN.d * a - expected).max() <= 1e-5 * np.abs(expected).max()


# Schedules.


def schedule(**more: Any) -> Phases:
    """rbd with momentum, fpd from step 3 on, sgd from step 5 on, fpd again from step 6 on."""
    basis, fpd = basis_of(), Settings(0.05, **more)
    phases = (("rbd", Settings(0.05, 0.5), 0), ("fpd", fpd, 3), ("sgd", Settings(0.05, 0.5), 5), ("fpd", fpd, 6))
    return Phases(tuple(methods.make(name, basis, settings, first) for name, settings, first in phases))


def run_schedule(plan: Phases, oracle: Any, steps: int) -> list:
    """The states as each step's method takes them, and the last."""
    replica, states = plan.start(THETA), []
    for _ in range(steps):
        replica = plan.enter_phase(replica)
        states.append(replica.state)
        state, _ = advance(replica.method, oracle, replica.state)
        replica = Replica(replica.method, state)
    return [*states, replica.state]


def test_methods_are_switched_at_their_steps() -> None:
    names = [schedule().at(t).method.name for t in range(9)]
    assert names == ["rbd"] * 3 + ["fpd"] * 2 + ["sgd"] + ["fpd"] * 3


def test_a_method_that_is_entered_knows_the_weights_alone() -> None:
    plan = schedule(optimiser="adam")
    states = run_schedule(plan, Quadratic(PLAN.D), 9)
    for t in (3, 6):
        entered = states[t]
        zeros = np.zeros((1, PLAN.d), dtype=F32)
        assert same_state(entered, FixedProjectionState(entered.theta, t, entered.theta, zeros, zeros, zeros, t))
    assert same_state(states[5], DescentState(states[5].theta, 5, np.zeros(PLAN.D, dtype=F32)))
    assert same_state(states[0], DescentState(THETA, 0, np.zeros(PLAN.D, dtype=F32)))
    assert not same(states[3].origin, states[6].origin)
    assert [type(state) for state in states] == [DescentState] * 3 + [FixedProjectionState] * 2 + [DescentState] + [
        FixedProjectionState
    ] * 4


def kept(plan: Phases, t: int) -> Replica[State]:
    """A replica after t steps, as the method of its last step leaves it."""
    phase = plan.at(t - 1)
    return Replica(phase.method, phase.method.init_state(THETA, t))


@pytest.mark.parametrize("t", [1, 2, 4, 7])
def test_between_switches_the_replica_stays_as_it_is(t: int) -> None:
    replica = kept(schedule(), t)
    assert schedule().enter_phase(replica) is replica


@pytest.mark.parametrize("t", [3, 5, 6])
def test_weights_go_over_a_switch_to_the_bit(t: int) -> None:
    plan = schedule()
    replica = plan.enter_phase(kept(plan, t))
    assert same(replica.theta, THETA)
    assert replica.method is plan.at(t).method


@pytest.mark.parametrize("t", range(1, 9))
def test_a_state_is_resumed_by_the_method_that_left_it(t: int) -> None:
    """At a switch that is the one before: the switch itself is still to come."""
    plan = schedule()
    state = kept(plan, t).state
    assert plan.resume(state).method is plan.at(t - 1).method
    assert plan.resume(state).state is state


def test_a_method_that_is_not_journaled_keeps_nothing() -> None:
    """Nobody could tell what its workers kept when it is resumed."""

    class Hoarding(StochasticGradientDescent):
        def init_local(self) -> Any:
            return Memory(THETA)

    with pytest.raises(ValueError, match="method sgd is not journaled and its workers keep something, expected one or"):
        Phase(0, Hoarding(PLAN.D, Settings(0.1)))


def test_a_state_of_another_method_is_refused() -> None:
    state = DescentState(THETA, 4, EMPTY)
    with pytest.raises(ValueError, match="after step 4 is a DescentState, expected a FixedProjectionState, as fpd"):
        schedule().resume(state)


@pytest.mark.parametrize("how", FOLLOWED)
def test_fpd_after_a_switch_is_fpd_from_those_weights(how: str) -> None:
    """Its directions, its optimiser's count of steps and its origin are as at a start: only t is another."""
    plan, still = schedule(**FOLLOWED[how]), Quadratic(PLAN.D, noise=0.0)
    late = run_schedule(plan, still, 9)[6:]
    early, _ = run(plan.at(6).method, still, steps=3, theta=late[0].theta)
    for a, b in zip(late, early, strict=True):
        assert same_state(a._replace(t=b.t, since=0), b)


@pytest.mark.parametrize("how", FOLLOWED)
def test_the_loss_does_not_jump_at_a_switch(how: str) -> None:
    """Small steps on a quadratic go down, switch or not."""
    still = Quadratic(PLAN.D, noise=0.0)
    losses = [still.loss(state.theta, 0, 0, None) for state in run_schedule(schedule(**FOLLOWED[how]), still, 9)]
    assert (np.diff(losses) < 0).all()


# Limits in which a method is another.


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("family", ["rademacher", "srht", "sparse"])
def test_a_compartment_for_each_parameter_is_sgd_to_the_bit(family: str, momentum: float, workers: int) -> None:
    basis, s = basis_of(compartments.even(PLAN.D, k=PLAN.D, d=1), family), Settings(0.1, momentum, workers=workers)
    ours, theirs = (run(make(name, basis, s), Quadratic(PLAN.D), workers)[0] for name in ("rbd", "sgd"))
    assert all(same_state(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["rbd", "fpd"])
def test_a_compartment_for_each_parameter_is_sgd(name: str, family: str) -> None:
    """Whatever the family, and if c is followed plainly in fpd too, up to rounding."""
    basis, s, oracle = basis_of(compartments.even(PLAN.D, k=PLAN.D, d=1), family), Settings(0.1), Quadratic(PLAN.D)
    states, _ = run(make(name, basis, s), oracle)
    assert_near(states, oracles.weights(THETA, s, 4, oracles.sgd(oracle, s)))


@pytest.mark.parametrize("name", ["rbd", "fpd"])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_full_orthogonal_basis_is_sgd(exchange: str, name: str) -> None:
    """srht with d = D, a power of two. Of a split basis each worker has its share, so together they see g once."""
    basis, oracle, theta = basis_of(compartments.whole(16, d=16), "srht"), Quadratic(16, noise=0.0), vector(8, 16)
    method = make(name, basis, Settings(0.1, workers=2, exchange=exchange))
    s = Settings(0.1, workers=1 if exchange == "split" else 2)
    states, _ = run(method, oracle, workers=2, theta=theta)
    assert_near(states, oracles.weights(theta, s, 4, oracles.sgd(oracle, s)))


# What methods can be told, and what not.

MISTAKES = [
    ({"rate": 0.0}, "learning rate is 0.0, expected"),
    ({"rate": -1.0}, "learning rate is -1.0, expected"),
    ({"rate": float("nan")}, "learning rate is nan, expected"),
    ({"rate": float("inf")}, "learning rate is inf, expected"),
    ({"sigma": 0.0}, "sigma is 0.0, expected"),
    ({"sigma": -0.5}, "sigma is -0.5, expected"),
    ({"sigma": float("nan")}, "sigma is nan, expected"),
    ({"sigma": float("inf")}, "sigma is inf, expected"),
    ({"momentum": 1.0}, "momentum is 1.0, expected"),
    ({"momentum": 1.5}, "momentum is 1.5, expected"),
    ({"momentum": -0.1}, "momentum is -0.1, expected"),
    ({"momentum": float("nan")}, "momentum is nan, expected"),
    ({"redraw": 0}, "redraw is 0, expected 1 <= redraw"),
    ({"redraw": 2**32}, "redraw is 4294967296, expected"),
    ({"workers": 0}, "workers is 0, expected 1 <= workers"),
    ({"workers": -1}, "workers is -1, expected"),
    ({"exchange": "ring"}, "exchange 'ring' is unknown, expected one of independent, shared, split"),
    ({"combine": "median"}, "combine 'median' is unknown, expected one of mean, sum"),
    ({"optimiser": "lion"}, "optimiser 'lion' is unknown, expected one of adam, plain"),
    ({"transforms": ("sign",)}, "transform 'sign' is unknown, expected one of normalised, ranks, raw, top"),
    ({"transforms": ("ranks", "top")}, "transform 'top' has no number of coordinates to keep, expected top:K"),
]


def one_sentence(error: Exception) -> bool:
    return "\n" not in str(error) and "expected" in str(error)


@pytest.mark.parametrize(("changes", "sentence"), MISTAKES, ids=[sentence[:30] for _, sentence in MISTAKES])
def test_each_mistake_is_one_clear_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        Settings(**{"rate": 0.1, **changes})
    assert one_sentence(caught.value)


@pytest.mark.parametrize("name", ["rate", "sigma", "momentum"])
@pytest.mark.parametrize("value", ["a", None, True, [0.1]], ids=repr)
def test_numbers_of_the_wrong_type(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} is .* of type {type(value).__name__}, expected a number") as caught:
        Settings(**{"rate": 0.1, name: value})
    assert one_sentence(caught.value)


def test_a_number_that_no_float_holds() -> None:
    with pytest.raises(ValueError, match="rate is larger than any float, expected"):
        Settings(rate=10**400)


def test_a_method_takes_a_basis_and_settings() -> None:
    nothing: Any = None
    with pytest.raises(TypeError, match=r"basis is None, expected a Basis: make one with rbd_ref\.basis"):
        make("rbd", nothing, Settings(0.1))
    with pytest.raises(TypeError, match="settings is None, expected a Settings"):
        make("sgd", basis_of(), nothing)


def test_a_method_has_to_be_known() -> None:
    with pytest.raises(
        ValueError, match="method 'adam' is unknown, expected one of fpd, nes, nes-shared-batch, rbd, sgd"
    ):
        make("adam", basis_of(), Settings(0.1))


# Transforms.

NAMES = ("transform '{}' is unknown, expected one of", "transform '{}' has no number", "transform '{}' has a number")
BAD_NAMES = {
    "": NAMES[0],
    "rank": NAMES[0],
    "Ranks": NAMES[0],
    "ranks:": NAMES[0],
    "top:": NAMES[0],
    "top-3": NAMES[0],
    "top": NAMES[1],
    "top:x": NAMES[1],
    "top:-1": NAMES[1],
    "top:1.5": NAMES[1],
    "top:1:2": NAMES[1],
    "top:0": "k of top:k is 0, expected 1 <= k",
    "top:4294967296": "k of top:k is 4294967296, expected",
    "ranks:3": NAMES[2],
    "normalised:1": NAMES[2],
    "raw:1": NAMES[2],
}


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_of_transforms(name: str) -> None:
    with pytest.raises(ValueError, match=BAD_NAMES[name].format(name)) as caught:
        transforms.compose(("ranks", name))
    assert one_sentence(caught.value)


def unlike(least: int = 1) -> st.SearchStrategy[np.ndarray]:
    """Numbers whose magnitudes all differ, as float32 holds them, of either sign."""
    whole = st.lists(st.integers(1, 10**6), min_size=least, max_size=40, unique=True)
    signs = st.lists(st.sampled_from([-1, 1]), min_size=40, max_size=40)
    return st.tuples(whole, signs).map(lambda pair: np.array(pair[0], dtype=F32) * F32(pair[1][: len(pair[0])]))


anything = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40).map(lambda c: np.array(c, dtype=F32))
any_transform = st.sampled_from(["raw", "ranks", "normalised", "top:1", "top:3", "top:100"])


@given(unlike(), any_transform, st.randoms())
def test_transforms_do_not_know_the_order(c: np.ndarray, name: str, random: Any) -> None:
    """Where there are no ties; `normalised` up to the rounding of its sums."""
    order = random.sample(range(c.size), c.size)
    found, expected = transforms.by_name(name)(c[order]), transforms.by_name(name)(c)[order]
    assert np.allclose(found, expected, rtol=0, atol=1e-6) if name == "normalised" else same(found, expected)


@given(anything, st.lists(any_transform, max_size=3))
def test_transforms_are_composed_in_order_and_leave_their_argument(c: np.ndarray, names: list[str]) -> None:
    expected = c
    for name in names:
        expected = transforms.by_name(name)(expected)
    assert same(transforms.compose(tuple(names))(frozen(c)), expected)
    assert expected.shape == c.shape


def test_another_order_is_another_transform() -> None:
    c = F32([5, -7, 1, 2])
    assert transforms.compose(("ranks", "top:1"))(c).tolist() == [0.5, 0, 0, 0]
    assert transforms.compose(("top:1", "ranks"))(c).tolist() == pytest.approx([-1 / 6, -0.5, 1 / 6, 0.5])
    assert same(transforms.compose(())(c), c)
    assert same(transforms.compose(("raw",))(c), c)


@given(anything)
def test_ranks(c: np.ndarray) -> None:
    """Evenly from -1/2 to 1/2 in the order of the numbers, of equals the first the lesser, and 0 for one alone."""
    found = transforms.ranks(c)
    order = sorted(range(c.size), key=lambda i: (c[i], i))
    expected = np.linspace(-0.5, 0.5, c.size) if c.size > 1 else np.zeros(1)
    assert found.dtype == np.float32
    assert np.allclose(found[order], expected, rtol=0, atol=1e-7)
    assert abs(float(found.sum(dtype=np.float64))) <= 1e-6
    assert same(transforms.ranks(found), found)


@given(unlike(least=2), st.integers(-3, 3), st.integers(-9, 9))
def test_normalised(c: np.ndarray, power: int, shift: int) -> None:
    """Mean 0 and deviation 1, whatever the unit and the zero of the numbers, which keep their proportions."""
    found = transforms.normalised(c).astype(np.float64)
    assert abs(found.mean()) <= 1e-6
    assert found.std() == pytest.approx(1, abs=1e-6)
    wide = c.astype(np.float64)
    assert np.allclose(found * wide.std() + wide.mean(), wide, rtol=0, atol=1e-6 * np.abs(wide).max())
    assert np.allclose(transforms.normalised(F32(2.0**power) * (c + F32(shift))), found, rtol=0, atol=1e-6)
    assert np.allclose(transforms.normalised(transforms.normalised(c)), found, rtol=0, atol=1e-6)


@given(st.floats(-(2.0**100), 2.0**100, width=32), st.integers(1, 1000))
def test_normalised_equals_are_zero(value: float, n: int) -> None:
    assert not transforms.normalised(np.full(n, value, dtype=F32)).any()


@given(anything, st.integers(1, 45))
def test_top(c: np.ndarray, k: int) -> None:
    """k numbers stay as they are, the others, none of them greater, become +0; what is kept would be kept again."""
    found = transforms.top(k)(c)
    order = sorted(range(c.size), key=lambda i: (-abs(c[i]), i))
    assert same(found[order[:k]], c[order[:k]])
    assert not bits(found[order[k:]]).any()
    assert same(transforms.top(k)(found), found)


@given(unlike(), st.integers(1, 45))
def test_top_keeps_k(c: np.ndarray, k: int) -> None:
    assert np.count_nonzero(transforms.by_name(f"top:{k}")(c)) == min(k, c.size)


@pytest.mark.parametrize("texts", [(), ("ranks",), ("normalised",), ("top:1",), ("top:1", "ranks")])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_transforms_do_not_hide_what_is_no_number(texts: tuple[str, ...], bad: float) -> None:
    assert np.isnan(transforms.compose(texts)(np.array([1, bad, 2], dtype=np.float32))).all()
