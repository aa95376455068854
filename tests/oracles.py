"""What the methods are compared with: small losses, and plain NumPy in float64 with every direction written out.

Here p_i = phi_i / sqrt(N_i), so all numbers are the coordinates c_i of the formulas in rbd_ref/methods. Of that
package nothing is used but `Settings`, as a bag of values.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rbd_ref import Basis
from rbd_ref._types import F32, Float32Array
from rbd_ref.methods.settings import Settings
from rbd_ref.spec.operations import directions, exact_divisors

Reals = NDArray[np.float64]
Update = Callable[[Reals, int], Reals]


class Quadratic:
    """L(theta) = (theta - m)^T A (theta - m) / 2 with an m for each batch, near a common one; without noise that one.

    `asked` is which batches were asked for: (step, worker), and after them the offspring and 1 where there is one.
    """

    def __init__(self, D: int, noise: float = 0.5, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        root = generator.standard_normal((D, D))
        self.A, self.target = root @ root.T / D + np.eye(D) / 4, generator.standard_normal(D)
        self.noise, self.seed = noise, seed
        self.asked: list[tuple[int, ...]] = []

    def away(self, theta: NDArray, batch: tuple[int, ...]) -> Reals:
        """theta - m of a batch."""
        self.asked.append(batch)
        shift = np.random.default_rng([self.seed, *batch]).standard_normal(self.target.size)
        return theta.astype(np.float64) - self.target - self.noise * shift

    def loss_and_gradient(self, theta: NDArray, t: int, worker: int) -> tuple[float, Float32Array]:
        x = self.away(theta, (t, worker))
        return float(x @ self.A @ x / 2), (self.A @ x).astype(F32)

    def loss(self, theta: NDArray, t: int, worker: int, offspring: int | None) -> float:
        x = self.away(theta, (t, worker) if offspring is None else (t, worker, offspring + 1))
        return float(x @ self.A @ x / 2)


class Linear:
    """L(theta) = <g, theta>: the gradient is g everywhere."""

    def __init__(self, g: Float32Array) -> None:
        self.g = g

    def loss_and_gradient(self, theta: NDArray, t: int, worker: int) -> tuple[float, Float32Array]:
        return self.loss(theta, t, worker, None), self.g

    def loss(self, theta: NDArray, t: int, worker: int, offspring: int | None) -> float:
        return float(self.g.astype(np.float64) @ theta.astype(np.float64))


def rows(basis: Basis, draw: int, worker: int = 0) -> Reals:
    """p_i = phi_i / sqrt(N_i), a row each."""
    one = basis.draw(draw, worker)
    phi = directions(one).astype(np.float64)
    return phi / np.sqrt(exact_divisors(one, phi))[:, None]


def stretch(basis: Basis, draw: int, worker: int = 0) -> Reals:
    """|phi_i| / sqrt(E |phi_i|^2) where N_i is |phi_i|^2, else 1: transforms and Adam know no better coordinates."""
    if basis.normalize != "unit":
        return np.ones(basis.plan.d)
    expected = Basis(basis.plan, basis.seed, str(basis.family), "expected", basis.backend)
    return np.linalg.norm(rows(expected, draw, worker), axis=1)


def parts(basis: Basis, s: Settings, draw: int) -> list[tuple[Reals, Reals]]:
    """The p_i of each worker and their `stretch`."""
    if s.exchange == "independent":
        return [(rows(basis, draw, w), stretch(basis, draw, w)) for w in range(s.workers)]
    p, q = rows(basis, draw), stretch(basis, draw)
    if s.exchange == "shared":
        return [(p, q)] * s.workers
    ends = np.cumsum([0] + [len(part) for part in np.array_split(np.arange(len(p)), s.workers)])
    return [(p[first:last], q[first:last]) for first, last in pairwise(ends)]


def transformed(names: tuple[str, ...], c: Reals) -> Reals:
    """The transforms, with SciPy where it has them."""
    for name in names:
        if name == "ranks":
            c = (stats.rankdata(c, method="ordinal") - 1) / (c.size - 1) - 0.5
        elif name == "normalised":
            c = stats.zscore(c)
        else:
            kept = sorted(range(c.size), key=lambda i: -abs(c[i]))[: int(name.removeprefix("top:"))]
            c = np.where(np.isin(np.arange(c.size), kept), c, 0)
    return c


def eta(s: Settings) -> float:
    """What the sum over workers is multiplied with."""
    return s.rate / s.workers if s.combine == "mean" else s.rate


def weights(theta: NDArray, s: Settings, steps: int, update: Update) -> list[Reals]:
    """theta after each step of v <- mu v + u, theta <- theta - eta v."""
    theta, found = theta.astype(np.float64), []
    v = np.zeros_like(theta)
    for t in range(steps):
        v = s.momentum * v + update(theta, t)
        theta = theta - eta(s) * v
        found.append(theta)
    return found


def sgd(oracle: Quadratic, s: Settings) -> Update:
    """u = sum_w g_w."""
    return lambda theta, t: sum(oracle.loss_and_gradient(theta, t, w)[1].astype(np.float64) for w in range(s.workers))


def rbd(oracle: Quadratic, basis: Basis, s: Settings) -> Update:
    """u = sum_w sum_i c_wi p_wi with c_wi = <p_wi, g_w>, the directions being those of step t / redraw."""

    def update(theta: Reals, t: int) -> Reals:
        u = np.zeros_like(theta)
        for w, (p, q) in enumerate(parts(basis, s, t // s.redraw)):
            c = p @ oracle.loss_and_gradient(theta, t, w)[1]
            u += (transformed(s.transforms, c / q) * q if s.transforms else c) @ p
        return u

    return update


def nes(oracle: Quadratic, basis: Basis, s: Settings, shared_batch: bool) -> Update:
    """u = sum_w sum_i c_wi p_wi with c_wi = f_wi / (sigma d), f from losses; a split basis is numbered through."""

    def update(theta: Reals, t: int) -> Reals:
        u, first = np.zeros_like(theta), 0
        for w, (p, _) in enumerate(parts(basis, s, t // s.redraw)):
            numbers = [None if shared_batch else first + i for i in range(len(p))]
            f = np.array([oracle.loss(theta + s.sigma * p[i], t, w, n) for i, n in enumerate(numbers)])
            if s.antithetic:
                below = [oracle.loss(theta - s.sigma * p[i], t, w, n) for i, n in enumerate(numbers)]
                f = (f - np.array(below)) / 2
            u += transformed(s.transforms, f) / (s.sigma * basis.plan.d) @ p
            first += len(p) if s.exchange == "split" else 0
        return u

    return update


class Heavy:
    """Momentum: m <- mu m + x."""

    def __init__(self, s: Settings) -> None:
        self.mu, self.m = s.momentum, 0.0

    def __call__(self, x: Reals) -> Reals:
        self.m = self.mu * self.m + x
        return self.m


class Adam:
    """Algorithm 1 of Kingma and Ba, with its usual constants."""

    def __init__(self) -> None:
        self.m = self.v = 0.0
        self.n = 0

    def __call__(self, x: Reals) -> Reals:
        self.n += 1
        self.m, self.v = 0.9 * self.m + 0.1 * x, 0.999 * self.v + 0.001 * x**2
        return self.m / (1 - 0.9**self.n) / (np.sqrt(self.v / (1 - 0.999**self.n)) + 1e-8)


def fpd(oracle: Quadratic | Linear, basis: Basis, s: Settings, theta0: NDArray, steps: int) -> list[Reals]:
    """theta = theta0 + sum_i c_i p_i over the directions of all bases; c follows its gradient x plainly or by Adam."""
    each, theta = parts(basis, s, 0), theta0.astype(np.float64)
    p, q = (np.concatenate(both) for both in zip(*(each[:1] if s.exchange == "shared" else each), strict=True))
    follow, c, found = Adam() if s.optimiser == "adam" else Heavy(s), np.zeros(len(p)), []
    for t in range(steps):
        xs = [part @ oracle.loss_and_gradient(theta, t, w)[1] for w, (part, _) in enumerate(each)]
        x = sum(xs) if s.exchange == "shared" else np.concatenate(xs)
        c = c - eta(s) * follow(x) * (q if s.optimiser == "adam" else 1)
        theta = theta0 + c @ p
        found.append(theta)
    return found
