"""Top-k with error feedback, as a method of a third party: `--method benchmarks.peers.topk:make --dims 250`.

    each worker w:  e <- e + eta_t g                                   all of its gradients that was not sent yet
    sent:           the k elements of e of greatest magnitude          k indices and k values
                    e <- 0 there
    everyone:       theta <- theta - sum_w (what worker w sent)

An index and a value take 8 bytes, so `--dims d` gives k = d div 2: the 4 d bytes of d coefficients. The rate is SGD's.
There is no basis to make. But workers choose different indices: sums cannot be formed on the way, everyone receives
W k pairs, and all of e, D floats a worker, has to survive a crash (what was sent does not tell what is left).

Order of operations: e + (eta_t * g), each rounded once, elements below 2^-64 become +0 (`methods.memory.increased`). Of
equal magnitudes the lower index is sent. A payload is k indices in ascending order, the bits of each as an unsigned
32-bit integer, then the k values. Updates are added in the order of workers.
References: Aji, Heafield 2017; Stich, Cordonnier, Jaggi 2018; Karimireddy et al. 2019.
Tests: tests/test_peers.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rbd_ref import Basis
from rbd_ref.methods import state as states
from rbd_ref.methods.base import DecodedSum, Objective, PendingUpdate, Proposal, Shapes
from rbd_ref.methods.memory import increased
from rbd_ref.methods.settings import Settings
from rbd_ref.methods.state import DescentState

F32 = np.float32
Float32Array = NDArray[np.float32]
FINITE = 0x7F800000  # the least index whose bits are no finite float, which nobody may send


def largest(e: Float32Array, k: int) -> NDArray[np.int64]:
    """The places of the k elements of greatest magnitude, ascending; of equals the first."""
    magnitude = np.abs(e)
    least = np.partition(magnitude, e.size - k)[e.size - k]
    above = np.flatnonzero(magnitude > least)
    equal = np.flatnonzero(magnitude == least)[: k - above.size]
    return np.sort(np.concatenate([above, equal]))


class Unsent(NamedTuple):
    """e, D floats: what of its gradients a worker has not sent."""

    e: Float32Array


class TopK:
    """Top-k for D parameters."""

    state_type: ClassVar[type[DescentState]] = DescentState
    reads: ClassVar[tuple[str, ...]] = ("dims", "combine")

    def __init__(self, D: int, d: int, settings: Settings) -> None:
        if d < 2 or D >= FINITE:
            raise ValueError(
                f"top-k has {d} floats to send of D = {D}, expected 2 or more, as a pair takes 8 bytes, of less than "
                f"{FINITE}: choose more dims, or a smaller network"
            )
        self.D = D
        self.k = d // 2
        self.payload_size = 2 * self.k
        self.settings = settings

    def init_state(self, theta: Float32Array, t: int) -> DescentState:
        """Weights at rest."""
        return states.init_state(theta, t, momentum=0)

    def init_local(self) -> Unsent:
        """No gradient has been seen."""
        return Unsent(np.zeros(self.D, dtype=F32))

    def propose(self, objective: Objective, state: DescentState, worker: int, local: Unsent) -> tuple[Proposal, Unsent]:
        """The largest elements of what was not sent, which then are."""
        loss, g = objective.loss_and_gradient(state.theta, state.t, worker)
        e = increased(local.e, g, self.settings.eta(state.t))
        if not np.isfinite(e).all():
            return Proposal(loss, np.full(self.payload_size, np.nan, dtype=F32), g), local  # all ranks hear of it
        places = largest(e, self.k)
        payload = np.concatenate([places.astype(np.uint32).view(F32), e[places]])
        e[places] = 0
        return Proposal(loss, payload, g), Unsent(e)

    def decode(self, payload: Float32Array) -> Float32Array:
        """What a payload stands for, as D floats."""
        places = payload[: self.k].view(np.uint32)
        if places.max() >= self.D:
            raise ValueError(
                f"top-k was sent index {places.max()}, expected less than D = {self.D}: restore the journal"
            )
        u = np.zeros(self.D, dtype=F32)
        u[places] = payload[self.k :]
        return u

    def collect(
        self, state: DescentState, payloads: Float32Array, local_updates: Mapping[int, Float32Array]
    ) -> tuple[DescentState, PendingUpdate]:
        """The sum of what all workers sent."""
        return state, DecodedSum(self.D, payloads, self.decode)

    def apply_update(self, state: DescentState, u: Float32Array) -> DescentState:
        """theta - u, as the rate is in what was sent."""
        return states.apply_update(state, u, F32(1), momentum=0)


def make(basis: Basis, settings: Settings, shapes: Shapes) -> TopK:
    """Top-k with the bytes of d coefficients."""
    return TopK(basis.plan.D, basis.plan.d, settings)
