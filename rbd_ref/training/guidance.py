"""Guidance: what a basis costs on this machine, and the settings that go with a learning rate of SGD.

`suggest` answers who asks; `advice` is what a run says of itself, once, where its basis costs more than its gradient.
Tests: tests/test_suggest.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rbd_ref._check import integer, number
from rbd_ref._types import F32, TWO_32
from rbd_ref.basis import Basis
from rbd_ref.methods.base import Replica, State
from rbd_ref.methods.memory import overlap
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.proposals import BESIDE

FAMILIES = ("normal", "uniform", "rademacher", "sparse", "srht")  # but for the biased one
DENSE = ("normal", "uniform", "rademacher", "bernoulli-graphcore")  # those whose cost is D d
PROJECTING = ("rbd", "fpd")  # methods that project a gradient
FEW = 16  # directions that are timed at least, and
ENTRIES = 2**26  # entries of them at most, where more would tell nothing new: cost grows with d
TIMES = 3  # calls, of which the fastest counts
LARGE = 1e6  # from where on the logarithm of Gamma loses digits, and its series does not


@dataclass(frozen=True)
class Suggestion:
    """What to start from.

    family          the one to use
    lr              eta, where eta d / D is the rate of SGD: for runs with memory
    cosine          expected of update and gradient
    milliseconds    of a basis on this machine, by family: what a step takes beside the gradient
    bytes_per_step  that a worker sends; SGD's are 4 (D + 2)
    """

    D: int
    d: int
    family: str
    lr: float
    cosine: float
    milliseconds: dict[str, float]

    @property
    def bytes_per_step(self) -> int:
        """What a worker sends at a step: d coefficients, its loss and its request to stop."""
        return 4 * (self.d + BESIDE)

    def __str__(self) -> str:
        costs = ", ".join(f"{family} {_short(cost)}" for family, cost in self.milliseconds.items())
        lines = (
            ("family", f"{self.family}: a basis takes {_short(self.milliseconds[self.family])} ms of a step here"),
            ("rate", f"{self.lr:g}: eta d / D is {_short(self.lr * self.d / self.D)}, the rate of SGD"),
            ("memory", "the rate is for --memory 0.99; without it, few directions allow about a tenth of the rate"),
            ("cosine", f"{_short(self.cosine)} expected of update and gradient, about sqrt(d / D)"),
            ("sent", f"{self.bytes_per_step:,} bytes a worker and step; data-parallel SGD {4 * (self.D + BESIDE):,}"),
            ("ms a step", f"{costs}, beside the gradient"),
            ("flags", f"--dims {self.d} --family {self.family} --lr {self.lr:g} --memory 0.99 --schedule linear"),
        )
        return "\n".join(f"{name:<12}{text}" for name, text in lines)


def _short(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def suggest(D: int, d: int = 250, sgd_lr: float = 0.1) -> Suggestion:
    """Settings of random bases descent for a network that SGD trains with a known rate, and what they cost here.

        eta = sgd_lr D / d,   as the expected update is d / D times what is projected

    That is a rate for a memory (methods/memory.py), in which the noise of batches averages out. What the paper
    projects, the gradient of a batch, takes less where d << D: on Fashion-MNIST (fc, d = 250) a thirteenth was best.
    Every family is timed on this machine, a fraction of a second each at D = 10^7; of dense ones some directions, as
    their cost grows with d.

    Args:
        D: number of parameters.
        d: number of directions, 1 <= d <= D.
        sgd_lr: the learning rate that SGD has, or would have.

    Returns:
        a `Suggestion`; as text, a line for each figure. `srht` is suggested, unless another family takes less than
        half its time, as for very few directions.

    Raises:
        ValueError, TypeError: a number that is none or out of range, in one sentence.

    Examples:
        >>> import rbd_ref
        >>> found = rbd_ref.suggest(D=10_000, d=250, sgd_lr=0.1)
        >>> found.lr, round(found.cosine, 2), found.bytes_per_step
        (4.0, 0.16, 1008)
        >>> sorted(found.milliseconds)
        ['normal', 'rademacher', 'sparse', 'srht', 'uniform']
    """
    D = integer("D", D, 1, TWO_32)
    d = integer("d", d, 1, D + 1)
    rate = number("sgd_lr", sgd_lr)
    if not 0 < rate < math.inf:
        raise ValueError(f"sgd_lr is {rate}, expected a number above 0: give the learning rate that SGD has")
    costs = {family: 1e3 * basis_seconds(D, d, family) for family in FAMILIES}
    family = chosen(costs)
    return Suggestion(D, d, family, rate * D / d, expected_cosine(D, d, family), costs)


def chosen(costs: dict[str, float]) -> str:
    """srht, unless another family takes less than half its time."""
    fastest = min(costs, key=costs.__getitem__)
    return fastest if costs[fastest] < costs["srht"] / 2 else "srht"


def expected_cosine(D: int, d: int, family: str) -> float:
    """The expected cosine of a gradient and its update along d of D directions.

        E |P g| / |g| = Gamma((d+1)/2) Gamma(D/2) / (Gamma(d/2) Gamma((D+1)/2))      orthogonal directions
        divided by sqrt(1 + (d - 1) r),   r = E <phi_i, phi_j>^2 / |phi|^4            as they are

    For d << D it is sqrt(d/D).
    """
    return math.exp(log_gamma_ratio(d / 2) - log_gamma_ratio(D / 2)) / math.sqrt(1 + (d - 1) * overlap(family, D))


def log_gamma_ratio(x: float) -> float:
    """ln Gamma(x + 1/2) - ln Gamma(x)."""
    return math.lgamma(x + 0.5) - math.lgamma(x) if x < LARGE else 0.5 * math.log(x) - 1 / (8 * x)


def basis_seconds(D: int, d: int, family: str) -> float:
    """What `descend` takes; where cost grows with d, some directions are timed in place of all."""
    timed = d if family == "srht" else min(d, max(FEW, ENTRIES // D))
    return time_basis(Basis(D=D, d=timed, family=family)) * d / timed


def time_basis(basis: Basis) -> float:
    """Seconds of `descend`, with kernels that are compiled."""
    g = np.ones(basis.plan.D, dtype=F32)
    basis.descend(g, step=0)
    return fastest(lambda: basis.descend(g, step=0))


def fastest(body: Callable[[], object]) -> float:
    """Seconds of the fastest of some calls."""
    spent = []
    for _ in range(TIMES):
        start = time.perf_counter()
        body()
        spent.append(time.perf_counter() - start)
    return min(spent)


def advice(experiment: Experiment, replica: Replica[State]) -> str:
    """What to say of a run whose basis costs more than its gradient, where `srht` would cost less; else nothing.

    Gradient and bases are timed apart from the steps, so these take no longer.
    """
    basis = experiment.basis
    dense = basis.family.name in DENSE and replica.method.name in PROJECTING
    if not dense or "srht" not in basis.backend.capabilities.families:
        return ""
    gradient = fastest(lambda: experiment.problem.loss_and_gradient(replica.theta, replica.t, 0))
    own = time_basis(basis)
    if own <= gradient:
        return ""
    other = time_basis(Basis(basis.plan, basis.seed, "srht", basis.normalize, basis.backend))
    if other >= own:
        return ""
    return (
        f"the basis ({basis.family}, d = {basis.plan.d}) takes {_short(1e3 * own)} ms of a step and the gradient "
        f"{_short(1e3 * gradient)} ms: a step costs {1 + own / gradient:.1f} times one of SGD; with --family srht the "
        f"basis would take {_short(1e3 * other)} ms and a step cost {1 + other / gradient:.1f} times one of SGD"
    )
