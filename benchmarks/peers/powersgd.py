"""PowerSGD with error feedback and warm start, as a method of a third party:
`--method benchmarks.peers.powersgd:make --dims 250`.

The idea (Vogels, Karimireddy, Jaggi 2019): the gradient of a weight matrix, n x m, is nearly of low rank. One step of
power iteration from the factor Q that the step before ended with finds P, n x r, and Q, m x r, with M near P Q^T.

    each worker w:  e <- e + eta_t g                                   all of its gradients that was not sent yet
                    for each matrix M of e:  P = orthonormal(M Q),  Q <- M^T P
    sent:           P and Q of each matrix, r (n + m) floats, and vectors as they are
                    e <- e - P Q^T, and 0 where it was sent whole
    everyone:       theta <- theta - sum_w (P_w Q_w^T of each matrix, and vectors)

How this differs from the paper. There, workers exchange twice a step: P is averaged over workers before it is made
orthonormal, then Q is, so all have one approximation of rank r, and sums are formed on the way. Here a step has one
exchange: each worker approximates its own matrix, the sum of W of them has up to rank W r, and everyone receives the
factors of all. With one worker both are the same. The rate is inside of e, as for top-k, and there is no momentum.

Bytes. `--dims d` is the budget, 4 d bytes a step. If rank 1 fits, the rank is the greatest that fits. If not, it is 1
and workers send at each n-th step only, with the least n for which the mean over steps fits; between, they go on
adding to e while theta rests. The network fc of Fashion-MNIST takes 784 + 128 + 128 + 10 floats for its matrices and
138 for its biases, 4,752 bytes; with d = 250 that is every 5 steps, 950.4 bytes a step.

Order of operations: e + (eta_t * g), each rounded once, elements below 2^-64 become +0 (`methods.memory.increased`). A
kernel (k, k, i, j) is a matrix (k k i, j); one that takes fewer floats whole is sent whole. M Q, M^T P and inner
products are sums in binary64 from the first term to the last; columns are made orthonormal in binary64 by modified
Gram-Schmidt, the first first, and P and Q are rounded to float32 once. P Q^T is ((p_0 q_0) + p_1 q_1) + ... in float32,
each operation rounded once. Q starts with entries of N(0, 1): direction 0 of step 0 of the family normal. Payloads
hold tensor after tensor, a matrix as P, then Q, row after row. Updates are added in the order of workers.
Tests: tests/test_peers.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rbd_ref import Basis, compartments
from rbd_ref.methods import state as states
from rbd_ref.methods.base import EMPTY, DecodedSum, Objective, PendingUpdate, Proposal, Shapes
from rbd_ref.methods.memory import increased
from rbd_ref.methods.settings import Settings
from rbd_ref.methods.state import DescentState

F32 = np.float32
Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
DEPENDENT = 2.0**-40  # what is left of a column, in proportion, if the ones before it had it already


class Tensor(NamedTuple):
    """A tensor as a matrix n x m of rank r, or sent whole where r is 0."""

    n: int
    m: int
    r: int

    @property
    def size(self) -> int:
        """Its elements."""
        return self.n * self.m

    @property
    def sent(self) -> int:
        """Floats that are sent of it."""
        return self.r * (self.n + self.m) or self.size


def tensor(shape: Sequence[int], rank: int) -> Tensor:
    """How a tensor of this shape is sent."""
    n = math.prod(shape[:-1])
    m = shape[-1]
    return Tensor(n, m, rank if len(shape) > 1 and rank * (n + m) < n * m else 0)


def cost(shapes: Shapes, rank: int) -> int:
    """Floats that are sent."""
    return sum(tensor(shape, rank).sent for shape in shapes)


def budget(shapes: Shapes, d: int) -> tuple[int, int]:
    """The greatest rank whose floats are d at most, sent at each step; or rank 1, and every how many steps."""
    ranks = range(1, max(min(math.prod(shape[:-1]), shape[-1]) for shape in shapes) + 1)
    fitting = [rank for rank in ranks if cost(shapes, rank) <= d]
    return (max(fitting), 1) if fitting else (1, -(-cost(shapes, 1) // d))


def total(x: Float64Array) -> Float64Array:
    """The sums along the last axis, each from the first term to the last."""
    sums: Float64Array = np.cumsum(x, axis=-1)[..., -1]
    return sums


def product(a: Float32Array, b: Float32Array) -> Float64Array:
    """a b, of a (n, m) and b (m, r), in binary64."""
    wide = a.astype(np.float64)
    return np.stack([total(wide * column) for column in b.T.astype(np.float64)], axis=1)


def orthonormal(p: Float64Array) -> Float64Array:
    """The columns made orthonormal, one after the other; 0 where one follows from those before it."""
    columns: list[Float64Array] = []
    for column in p.T:
        v = column
        for before in columns:
            v = v - total(before * v) * before
        length = math.sqrt(total(v * v))
        independent = length > DEPENDENT * math.sqrt(total(column * column))
        columns.append(v / length if independent else np.zeros_like(v))
    return np.stack(columns, axis=1)


def expand(p: Float32Array, q: Float32Array) -> Float32Array:
    """p q^T in float32, added column by column."""
    x: Float32Array = np.multiply.outer(p[:, 0], q[:, 0])
    for k in range(1, p.shape[1]):
        x += np.multiply.outer(p[:, k], q[:, k])
    return x


class Factors(NamedTuple):
    """What a worker keeps: e, what of its gradients it has not sent, and the last Q of each matrix."""

    e: Float32Array
    q: Float32Array


class PowerSGD:
    """PowerSGD for tensors of these shapes, with d floats a step in the mean."""

    state_type: ClassVar[type[DescentState]] = DescentState
    reads: ClassVar[tuple[str, ...]] = ("dims", "combine")

    def __init__(self, basis: Basis, settings: Settings, shapes: Shapes) -> None:
        self.rank, self.every = budget(shapes, basis.plan.d)
        self.tensors = [tensor(shape, self.rank) for shape in shapes]
        self.D = basis.plan.D
        self.payload_size = sum(part.sent for part in self.tensors)
        self.settings = settings
        self.first = _normal(basis, sum(part.m * part.r for part in self.tensors))

    def init_state(self, theta: Float32Array, t: int) -> DescentState:
        """Weights at rest."""
        return states.init_state(theta, t, momentum=0)

    def init_local(self) -> Factors:
        """No gradient has been seen; the same Q for all workers."""
        return Factors(np.zeros(self.D, dtype=F32), self.first)

    def propose(
        self, objective: Objective, state: DescentState, worker: int, local: Factors
    ) -> tuple[Proposal, Factors]:
        """The factors of what was not sent; between the steps that send, nothing."""
        loss, g = objective.loss_and_gradient(state.theta, state.t, worker)
        e = increased(local.e, g, self.settings.eta(state.t))
        if (state.t + 1) % self.every:
            return Proposal(loss, EMPTY, g), local._replace(e=e)
        if not np.isfinite(e).all():
            return Proposal(loss, np.full(self.payload_size, np.nan, dtype=F32), g), local  # all ranks hear of it
        payload, q = self.encode(e, local.q)
        return Proposal(loss, payload, g), Factors(e - self.decode(payload), q)

    def encode(self, e: Float32Array, q: Float32Array) -> tuple[Float32Array, Float32Array]:
        """The payload, and Q of each matrix to start from the next time."""
        sent: list[Float32Array] = []
        ends: list[Float32Array] = []
        elements = _pieces(e, [part.size for part in self.tensors])
        starts = _pieces(q, [part.m * part.r for part in self.tensors])
        for part, x, start in zip(self.tensors, elements, starts, strict=True):
            if not part.r:
                sent.append(x)
                continue
            matrix = x.reshape(part.n, part.m)
            before = start.reshape(part.m, part.r)
            p = orthonormal(product(matrix, before)).astype(F32)
            after = product(matrix.T, p).astype(F32)
            sent += [p.ravel(), after.ravel()]
            ends.append(np.where(after.any(axis=0), after, before).ravel())  # from 0 there is no way back
        return np.concatenate(sent), np.concatenate([EMPTY, *ends])

    def decode(self, payload: Float32Array) -> Float32Array:
        """What a payload stands for, as D floats; nothing where nothing was sent."""
        if not payload.size:
            return np.zeros(self.D, dtype=F32)
        found: list[Float32Array] = []
        for part, sent in zip(self.tensors, _pieces(payload, [part.sent for part in self.tensors]), strict=True):
            if part.r:
                p, q = np.split(sent, [part.n * part.r])
                sent = expand(p.reshape(part.n, part.r), q.reshape(part.m, part.r)).ravel()
            found.append(sent)
        return np.concatenate(found)

    def collect(
        self, state: DescentState, payloads: Float32Array, local_updates: Mapping[int, Float32Array]
    ) -> tuple[DescentState, PendingUpdate]:
        """The sum of what all workers sent."""
        return state, DecodedSum(self.D, payloads, self.decode)

    def apply_update(self, state: DescentState, u: Float32Array) -> DescentState:
        """theta - u, as the rate is in what was sent."""
        return states.apply_update(state, u, F32(1), momentum=0)


def _pieces(x: Float32Array, sizes: Sequence[int]) -> list[Float32Array]:
    """A vector cut into pieces of these sizes."""
    return np.split(x, np.cumsum(sizes)[:-1])


def _normal(basis: Basis, size: int) -> Float32Array:
    """So many numbers of N(0, 1), a function of the seed."""
    if not size:
        return EMPTY
    normal = Basis(compartments.whole(size, d=1), basis.seed, "normal", "none", basis.backend)
    entries: Float32Array = normal.directions([0], step=0)[0]
    return entries


def make(basis: Basis, settings: Settings, shapes: Shapes) -> PowerSGD:
    """PowerSGD with the bytes of d coefficients."""
    return PowerSGD(basis, settings, shapes)
