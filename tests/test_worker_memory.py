"""Worker memory and error feedback: the literal definition with dense P, the bits, the theory, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oracles
import rbd_ref as rbd
from oracles import Quadratic, Reals
from rbd_ref import compartments, methods
from rbd_ref.kernels.backend import NumbaBackend
from rbd_ref.methods.base import Method, Replica
from rbd_ref.methods.memory import CHUNK, Memory, averaged, contraction, increased, overlap
from rbd_ref.methods.rates import RateSchedule
from rbd_ref.methods.settings import EXCHANGES, Settings
from rbd_ref.runs import config as configs
from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.families import FAMILIES
from strategies import vector
from tools import bits

F32 = np.float32
BACKEND = NumbaBackend()
PLAN = compartments.explicit(13, [(0, 2, 1), (2, 10, 4), (10, 13, 2)])
THETA = vector(8, PLAN.D)
UNBIASED = [family for family in FAMILIES if family != "bernoulli-graphcore"]
HOW: dict[str, dict[str, Any]] = {"memory": {"memory": 0.9}, "feedback": {"feedback": True}}
STEPS = 6


def basis_of(plan: Plan = PLAN, family: str = "normal", seed: int = 5) -> rbd.Basis:
    return rbd.Basis(plan, seed, family, "unit", BACKEND)


def same(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype == np.float32 and np.array_equal(bits(x), bits(y))


class Run:
    """A run by hand: states, what was sent, and what each worker keeps after each step."""

    def __init__(
        self, settings: Settings, basis: rbd.Basis, oracle: Any, steps: int = STEPS, theta: np.ndarray = THETA
    ) -> None:
        self.method: Method[Any, Any] = methods.make("rbd", basis, settings).method
        self.replicas = [Replica(self.method, self.method.init_state(theta[: basis.plan.D], 0))]
        self.kept: list[list[Memory]] = [[self.method.init_local()] * settings.workers]
        self.sent: list[np.ndarray] = []
        for _ in range(steps):
            self.step(oracle)

    def step(self, oracle: Any) -> None:
        """All workers propose; with local updates, as the trainer has it."""
        found = [self.replicas[-1].propose(oracle, w, local) for w, local in enumerate(self.kept[-1])]
        self.sent.append(np.stack([proposal.payload for proposal, _ in found]))
        updates = {w: proposal.update for w, (proposal, _) in enumerate(found) if proposal.update.size}
        self.replicas.append(self.replicas[-1].step(self.sent[-1], updates))
        self.kept.append([local for _, local in found])  # type: ignore[misc]

    @property
    def thetas(self) -> list[np.ndarray]:
        return [replica.theta for replica in self.replicas]


# The literal definition: P has the columns phi_i / |phi_i|, written out, in float64.


def dense(s: Settings, basis: rbd.Basis, oracle: Quadratic, steps: int = STEPS) -> list[Reals]:
    """theta after each step, by the words of rbd_ref/methods/memory.py."""
    theta = THETA.astype(np.float64)
    kept = np.zeros((s.workers, basis.plan.D))
    thetas = []
    factor = min(1 / (1 + (d - 1) / size) for d, size in zip(basis.plan.dims, basis.plan.sizes, strict=True))
    for t in range(steps):
        eta = oracles.eta(s) * s.schedule.factor(t)
        u = np.zeros_like(theta)
        for w, (p, _) in enumerate(oracles.parts(basis, s, t // s.redraw)):
            g = oracle.loss_and_gradient(theta, t, w)[1]
            kept[w] = kept[w] + eta * g if s.feedback else s.memory * kept[w] + (1 - s.memory) * g
            moved = p.T @ (p @ kept[w])
            kept[w] -= factor * moved if s.feedback else 0
            u += moved
        theta = theta - (factor if s.feedback else eta) * u
        thetas.append(theta)
    return thetas


@pytest.mark.parametrize("combine", ["sum", "mean"])
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("how", HOW)
def test_the_literal_definition(how: str, exchange: str, combine: str) -> None:
    """Dense P, several workers, a schedule, bases that stay for two steps."""
    rates = RateSchedule("linear", 2, STEPS)
    s = Settings(0.3, redraw=2, workers=3, exchange=exchange, combine=combine, schedule=rates, **HOW[how])
    found = Run(s, basis_of(), Quadratic(PLAN.D)).thetas
    for theta, expected in zip(found[1:], dense(s, basis_of(), Quadratic(PLAN.D)), strict=True):
        assert np.abs(theta - expected).max() <= 2e-6 * np.abs(expected).max()
    assert np.abs(found[-1] - THETA).max() > 0.05


@pytest.mark.parametrize("family", UNBIASED)
@pytest.mark.parametrize("how", HOW)
def test_replicas_need_what_was_sent_and_nothing_else(how: str, family: str) -> None:
    s = Settings(0.1, workers=3, **HOW[how])
    run = Run(s, basis_of(family=family), Quadratic(PLAN.D))
    replica = run.replicas[0]
    for payloads, theta in zip(run.sent, run.thetas[1:], strict=True):
        replica = replica.step(payloads)
        assert same(replica.theta, theta)


@pytest.mark.parametrize("how", HOW)
def test_workers_do_not_share_what_they_keep(how: str) -> None:
    """Worker 1 beside another keeps what it keeps alone, as far as it sees the same weights: after the first step."""
    s = Settings(0.1, workers=2, **HOW[how])
    first = Run(s, basis_of(), Quadratic(PLAN.D), steps=1).kept[1]
    method = methods.make("rbd", basis_of(), s).method
    _, alone = method.propose(Quadratic(PLAN.D), method.init_state(THETA, 0), 1, method.init_local())
    assert same(first[1].kept, alone.kept)
    assert not same(first[0].kept, first[1].kept)


# The bits.

LONG = 2 * CHUNK + 5


def rounded(x: np.ndarray) -> np.ndarray:
    """Without what is below 2^-64."""
    return np.where(np.abs(x) < F32(2**-64), F32(0), x)


@pytest.mark.parametrize("beta", [0.3, 0.9, 0.99])
def test_the_bits_of_an_average(beta: float) -> None:
    """(b * m) + (c * g) with b = float32(beta), c = 1 - b, at any place of a long vector."""
    m, g = vector(1, LONG), vector(2, LONG) * F32(1e-3)
    expected = (F32(beta) * m).astype(F32) + ((F32(1) - F32(beta)) * g).astype(F32)
    assert same(averaged(m, g, beta), expected)


def test_the_bits_of_what_is_kept_for_later() -> None:
    e, g, eta = vector(1, LONG), vector(2, LONG), F32(0.1)
    assert same(increased(e, g, eta), e + (eta * g).astype(F32))


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_the_bits_of_a_run_with_feedback(exchange: str) -> None:
    """e <- (e + eta g) - s u, theta <- theta - s u, where u is rebuilt from what the worker sent."""
    s = Settings(0.1, workers=2, exchange=exchange, feedback=True)
    run, basis = Run(s, basis_of(), Quadratic(PLAN.D)), basis_of()
    factor = contraction(basis)
    for t in range(STEPS):
        for w in range(2):
            g = Quadratic(PLAN.D).loss_and_gradient(run.thetas[t], t, w)[1]
            p = rounded(run.kept[t][w].kept + (F32(0.1) * g).astype(F32))
            a, where = run.sent[t][w], w if exchange == "independent" else 0
            if exchange == "split":
                a = np.concatenate([a, np.zeros(3, F32)]) if w == 0 else np.concatenate([np.zeros(4, F32), a[:3]])
            assert same(run.kept[t + 1][w].kept, p - (factor * basis.reconstruct(a, t, where)).astype(F32))


@pytest.mark.parametrize("how", HOW)
def test_proposals_are_pure(how: str) -> None:
    """Nothing that was given is written to, and the same comes from the same."""
    run = Run(Settings(0.1, **HOW[how]), basis_of(), Quadratic(PLAN.D), steps=2)
    replica, kept = run.replicas[-1], run.kept[-1][0].kept.copy()
    kept.flags.writeable = False
    first, again = (replica.propose(Quadratic(PLAN.D), 0, Memory(kept)) for _ in range(2))
    assert same(first[0].payload, again[0].payload)
    assert same(first[1].kept, again[1].kept)  # type: ignore[attr-defined]
    assert not same(first[1].kept, kept)  # type: ignore[attr-defined]


def test_without_memory_there_is_nothing_to_keep() -> None:
    """And the bits are those of the paper's method."""
    run = Run(Settings(0.1), basis_of(), Quadratic(PLAN.D), steps=1)
    g = Quadratic(PLAN.D).loss_and_gradient(THETA, 0, 0)[1]
    assert same(run.sent[0][0], basis_of().project(g, 0))
    assert run.kept[1][0].kept.size == 0


@pytest.mark.parametrize("how", HOW)
def test_the_memory_of_a_gradient_that_has_died_out_becomes_zero(how: str) -> None:
    """Not subnormal, where processors are slow and a rounded product by beta never shrinks."""
    kept = np.full(3, 2.0**-63, dtype=F32)
    nothing = np.zeros(3, dtype=F32)
    for _ in range(200):
        kept = averaged(kept, nothing, 0.99) if how == "memory" else increased(kept * F32(0.99), nothing, F32(1))
    assert same(kept, nothing)
    assert same(averaged(-nothing, nothing, 0.9), nothing)


# The theory, at small size. Means over many bases; seeds are fixed, so that what passes once passes always.

DRAWS = 2000


def units(basis: rbd.Basis, step: int) -> Reals:
    """P^T of a basis."""
    phi = basis.directions(range(basis.plan.d), step).astype(np.float64)
    return phi / np.linalg.norm(phi, axis=1)[:, None]


def projected(D: int, d: int, family: str, v: Reals) -> Reals:
    """P P^T v for many bases, a row each."""
    basis = rbd.Basis(compartments.whole(D, d=d), 1, family, "unit", BACKEND)
    return np.stack([p.T @ (p @ v) for p in (units(basis, t) for t in range(DRAWS))])


@pytest.mark.compiled
@pytest.mark.parametrize(("D", "d"), [(16, 4), (11, 1), (11, 5)])
@pytest.mark.parametrize("family", UNBIASED)
def test_a_projection_is_d_of_D_of_a_vector_in_the_mean(family: str, D: int, d: int) -> None:
    """E P P^T v = (d/D) v for unit directions, and E |P P^T v|^2 = (d/D) (1 + (d - 1) r) |v|^2, where r is their mean
    squared cosine: (d/D) |v|^2 if they are orthogonal. So s = 1 / (1 + (d - 1) r) leaves the least behind."""
    v = vector(3, D).astype(np.float64)
    found = projected(D, d, family, v)
    mean, square = found.mean(axis=0), float(v @ v)
    assert np.abs(mean - d / D * v).max() <= 5 * found.std(axis=0).max() / np.sqrt(DRAWS)
    energy = (found**2).sum(axis=1)
    s = 1 / (1 + (d - 1) * overlap(family, D))
    assert abs(energy.mean() - d / D * square / s) <= 5 * energy.std() / np.sqrt(DRAWS)
    assert overlap("srht", 16) == 0
    left = [((v - factor * found) ** 2).sum(axis=1).mean() for factor in (0.8 * s, s, 1.25 * s)]
    assert left[1] == min(left)
    assert left[1] <= (1 - s * d / D) * square * 1.03


def test_a_memory_is_an_average_whose_weights_add_up() -> None:
    """Of equal gradients it becomes the gradient; of independent ones it keeps (1 - b) / (1 + b) of the energy."""
    g = vector(4, 50)
    m = np.zeros(50, dtype=F32)
    for _ in range(2000):
        m = averaged(m, g, 0.99)
    assert np.abs(m - g).max() <= 1e-4
    generator = np.random.default_rng(0)
    m, energies = np.zeros(200, dtype=F32), []
    for _ in range(1500):
        m = averaged(m, generator.standard_normal(200).astype(F32), 0.9)
        energies.append(float(m @ m) / 200)
    assert np.mean(energies[100:]) == pytest.approx(0.1 / 1.9, rel=0.05)


@pytest.mark.compiled
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("family", UNBIASED)
def test_with_feedback_no_gradient_is_lost(family: str, exchange: str) -> None:
    """The updates and what all workers keep add up to all rates times gradients, to rounding."""
    rates = RateSchedule("cosine", 3, 40)
    s = Settings(0.1, workers=3, exchange=exchange, feedback=True, schedule=rates)
    run = Run(s, basis_of(family=family), Quadratic(PLAN.D), steps=40)
    total = np.zeros(PLAN.D)
    for t, theta in enumerate(run.thetas[:-1]):
        total += sum(float(s.eta(t)) * Quadratic(PLAN.D).loss_and_gradient(theta, t, w)[1] for w in range(3))
    kept = sum(local.kept.astype(np.float64) for local in run.kept[-1])
    moved = THETA.astype(np.float64) - run.thetas[-1]
    assert np.abs(moved + kept - total).max() <= 40 * 3 * 2.0**-22
    assert np.abs(kept).max() > 1e-3


@pytest.mark.compiled
@pytest.mark.parametrize("family", ["normal", "uniform", "rademacher", "sparse:3", "srht"])
@pytest.mark.parametrize("d", [1, 30, 60, 100])
def test_what_is_kept_does_not_grow(family: str, d: int) -> None:
    """All eigenvalues of s P P^T are below 2, but for what chance adds, so I - s P P^T lengthens nothing, even if the
    basis stays for many steps. Those of P P^T alone are not, for many independent directions."""
    basis = rbd.Basis(compartments.whole(100, d=d), 3, family, "unit", BACKEND)
    grams = [p @ p.T for p in (units(basis, t) for t in range(20))]
    largest = max(float(np.linalg.eigvalsh(gram).max()) for gram in grams)
    assert contraction(basis) * largest < 2.1
    assert (largest > 2) == (d >= 30 and family != "srht")


@pytest.mark.parametrize("how", HOW)
def test_all_directions_that_are_orthogonal_give_sgd(how: str) -> None:
    """d = D rows of a Hadamard matrix: P P^T = 1. Nothing is kept back, and a memory is an average of gradients."""
    D = 8
    basis, oracle = basis_of(compartments.whole(D, d=D), "srht"), Quadratic(D)
    run = Run(Settings(0.1, **HOW[how]), basis, oracle)
    theta, m = THETA[:D].astype(np.float64), np.zeros(D)
    for t in range(STEPS):
        g = oracle.loss_and_gradient(theta, t, 0)[1]
        m = 0.9 * m + 0.1 * g if how == "memory" else g
        theta = theta - 0.1 * m
        assert np.abs(run.thetas[t + 1] - theta).max() <= 1e-6
        assert how == "memory" or np.abs(run.kept[t + 1][0].kept).max() <= 1e-6
    assert contraction(basis) == 1


# What is refused.


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"memory": 1.0}, "memory is 1.0, expected 0 or more and, as a float32, less than 1"),
        ({"memory": 1 - 2.0**-40}, "expected 0 or more and, as a float32, less than 1"),
        ({"memory": -0.1}, "memory is -0.1, expected 0 or more"),
        ({"memory": float("nan")}, "memory is nan, expected"),
        ({"memory": 0.9, "feedback": True}, "memory is 0.9 beside feedback, expected one of the two"),
        ({"momentum": 0.9, "feedback": True}, "momentum is 0.9 beside feedback, expected one of the two"),
    ],
)
def test_numbers_that_are_refused(values: dict[str, Any], sentence: str) -> None:
    for refuse in (lambda: Settings(0.1, **values), lambda: configs.make(values)):  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match=sentence) as caught:
            refuse()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("family", "normalize"), [("bernoulli-graphcore", "unit"), ("normal", "expected"), ("srht", "none")]
)
def test_feedback_needs_unit_directions_without_bias(family: str, normalize: str) -> None:
    basis = rbd.Basis(PLAN, 5, family, normalize, BACKEND)
    methods.make("rbd", basis, Settings(0.1, memory=0.9))
    with pytest.raises(ValueError, match=f"directions of {family} with normalize {normalize}, expected unbiased ones"):
        methods.make("rbd", basis, Settings(0.1, feedback=True))


def test_feedback_takes_the_rate_of_sgd_where_none_is_given() -> None:
    rates = [configs.make({"data": "fashion-mnist", **more}).lr for more in ({}, {"feedback": True})]  # type: ignore[attr-defined]
    assert rates == [0.5, 0.25]
