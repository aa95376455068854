"""A step of random bases descent on the parameters of a layout: what is sent, and how theta moves by it.

    a  = project(v)              of a worker, v being its gradient or its memory: sent
    u  = sum_j reconstruct(a_j)  of all workers' bases j, in order
    theta <- theta - eta u       or v <- mu v + u, theta <- theta - eta v with momentum mu

The order of operations is that of docs/specification.md, section 11: in float32, product and sum each rounded once. The
last difference alone is taken in the wider of float32 and the parameter's type, and rounded to that once.
Tests: tests/test_torch_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rbd_ref._types import F32, Float32Array
from rbd_ref.basis import Basis
from rbd_ref.methods.settings import Settings
from rbd_ref.methods.sharing import BasisSharing
from rbd_ref.spec.operations import Draw
from rbd_torch import engines
from rbd_torch.engines import EVERYTHING
from rbd_torch.layout import Layout

LARGEST_DROPPED = float(np.nextafter(F32(2.0**-64), F32(0)))  # the largest float below 2^-64


class Options(NamedTuple):
    """What all groups have in common: their bases, and what workers do with them."""

    family: str
    normalize: str
    redraw: int
    seed: int
    exchange: str
    combine: str
    coefficients: str


class Rate(NamedTuple):
    """What a group's update is multiplied by, and its momentum, both rounded to float32."""

    eta: float
    momentum: float


class Proposed(NamedTuple):
    """What a worker sends, and its update where that was made on the way; no payload where g was not finite."""

    payload: Float32Array | None
    update: Tensor | None


class Descent:
    """The bases of a layout and of so many workers."""

    def __init__(self, layout: Layout, options: Options, workers: int) -> None:
        self.layout = layout
        self.redraw = options.redraw
        # BasisSharing plans and codes what is sent; of its basis only names are used, so the plainest backend will do.
        basis = Basis(layout.plan, options.seed, options.family, options.normalize, backend="numpy")
        settings = Settings(rate=1.0, workers=workers, exchange=options.exchange, coefficients=options.coefficients)
        self.sharing = BasisSharing(basis, settings)
        self.engine = engines.engine_for(layout.device)

    def draw(self, t: int, j: int) -> Draw:
        """Basis j of step t."""
        return self.sharing.basis.draw(t // self.redraw, j)

    def propose(self, v: Tensor, t: int, worker: int, keep_update: bool) -> Proposed:
        """What a worker sends of v (D) at step t."""
        draw = self.draw(t, self.sharing.basis_of(worker))
        update = None
        if keep_update and self.sharing.mode == "independent" and self.sharing.code is None:
            a, update = self.engine.descend(draw, v)
        else:
            split = self.sharing.mode == "split"
            a = self.engine.project(draw, v, self.sharing.directions_of(worker) if split else EVERYTHING)
        coefficients = a.cpu().numpy()
        if not np.isfinite(coefficients).all():
            return Proposed(None, None)
        return Proposed(self.sharing.encode(coefficients, worker), update)

    def update(self, payloads: Float32Array, t: int, own: Mapping[int, Tensor]) -> Tensor:
        """u (D) from the payloads of all workers; updates of bases that are known already are not made again."""
        total: Tensor | None = None
        for j, a in enumerate(self.sharing.coefficients(payloads)):
            term = own[j] if j in own else self._term(a, t, j)
            total = term if total is None else total.add_(term)
        assert total is not None, "there is a basis at least"
        return total

    def _term(self, a: Float32Array, t: int, j: int) -> Tensor:
        """The update of basis j."""
        return self.engine.reconstruct(self.draw(t, j), torch.tensor(a, device=self.layout.device))

    def move(self, u: Tensor, rates: Sequence[Rate], velocity: Tensor | None, present: Sequence[bool]) -> None:
        """Theta along u, which is written over; parameters that are not present stay, and so does their velocity."""
        for group, here in self.layout.ranges(present):
            eta, momentum = rates[group]
            part = u[here]
            if momentum and velocity is not None:
                moved = velocity[here].mul_(momentum).add_(part)
                torch.mul(moved, eta, out=part)
            else:
                part.mul_(eta)
        chosen = [spot for spot, here in zip(self.layout.spots, present, strict=True) if here]
        # One difference for every type: torch takes it in the wider of both types and rounds to the parameter's.
        torch._foreach_sub_([spot.parameter for spot in chosen], [self.layout.view(u, spot) for spot in chosen])


def average(m: Tensor, g: Tensor, beta: float) -> None:
    """m <- (b * m) + (c * g) with b = float32(beta) and c = 1 - b; what is below 2^-64 becomes +0. g is float32."""
    b = F32(beta)
    m.mul_(float(b)).add_(g * float(F32(1) - b))
    torch.ops.aten.hardshrink.out(m, LARGEST_DROPPED, out=m)
