"""How the bases of W workers relate (`exchange`), and what that makes of the coefficients they send.

    independent  each worker has a basis of its own                          a worker sends d coefficients
    shared       all have the basis of worker 0; coefficients are added      a worker sends d coefficients
    split        all have the basis of worker 0; each has a part of it       a worker sends its d / W coefficients

The update is the sum over bases j = 0, 1, ... of their updates, each rebuilt from 0, added in that order in float32.
Tests: tests/test_methods.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rbd_ref._types import F32, Float32Array
from rbd_ref.basis import Basis
from rbd_ref.methods.base import EMPTY, NONE, Reconstruction, sum_rows
from rbd_ref.methods.settings import Settings
from rbd_ref.methods.transforms import compose


def coordinate_scale(basis: Basis) -> Float32Array:
    """sqrt(N_i), which takes a coefficient a_i to a coordinate c_i; its expectation where N_i is |phi_i|^2.

    So coordinates are those of unit directions up to the spread of |phi_i|, about 1 / sqrt(2 size) of it.
    """
    plan = basis.plan
    divisors = basis.draw(0).divisors
    expected = np.array([basis.family.expected_square(size) for size in plan.sizes])
    squares = np.repeat(np.where(divisors == 0, expected, divisors), plan.dims)
    scale: Float32Array = np.sqrt(squares).astype(F32)
    return scale


class BasisSharing:
    """Which part of which basis a worker has, and what is rebuilt from what all of them sent."""

    def __init__(self, basis: Basis, settings: Settings) -> None:
        self.basis = basis
        self.d = basis.plan.d
        self.workers = settings.workers
        self.mode = settings.exchange if settings.workers > 1 else "independent"
        self.transforms = settings.transforms
        self.scale = coordinate_scale(basis)
        if self.mode == "split" and self.workers > self.d:
            raise ValueError(
                f"{self.workers} workers split {self.d} directions, expected as many directions as workers at least: "
                "choose more directions or fewer workers"
            )

    @property
    def bases(self) -> int:
        """How many bases there are."""
        return self.workers if self.mode == "independent" else 1

    def basis_of(self, worker: int) -> int:
        """The number of the worker's basis."""
        return worker if self.mode == "independent" else 0

    def directions_of(self, worker: int) -> slice:
        """The worker's directions: all, or in `split` parts as even as can be, the larger ones first."""
        if self.mode != "split":
            return slice(0, self.d)
        quotient, rest = divmod(self.d, self.workers)
        first = worker * quotient + min(worker, rest)
        return slice(first, first + quotient + (worker < rest))

    @property
    def payload_size(self) -> int:
        """How many coefficients each worker sends."""
        return -(-self.d // self.workers) if self.mode == "split" else self.d

    def pad(self, a: Float32Array) -> Float32Array:
        """A worker's coefficients, filled up with 0 to the size that all send."""
        return np.concatenate([a, np.zeros(self.payload_size - a.size, dtype=F32)])

    def project(self, g: Float32Array, step: int, worker: int) -> tuple[Float32Array, Float32Array]:
        """The payload of a gradient; and the worker's update, where that costs nothing more."""
        if self.mode == "independent" and not self.transforms:
            return self.basis.descend(g, step, worker)
        directions = self.directions_of(worker)
        a = self.basis.project_part(g, step, self.basis_of(worker), directions)
        if self.transforms:
            scale = self.scale[directions]
            a = compose(self.transforms)(a * scale) / scale
        return self.pad(a), EMPTY

    def update_of(self, payload: Float32Array, step: int, worker: int) -> Float32Array:
        """The worker's own update: what theta would move along if nobody else had sent anything."""
        directions = self.directions_of(worker)
        a = np.zeros(self.d, dtype=F32)
        a[directions] = payload[: directions.stop - directions.start]
        return self.basis.reconstruct(a, step, self.basis_of(worker))

    def coefficients(self, payloads: Float32Array) -> tuple[Float32Array, ...]:
        """The coefficients of each basis from the payloads (workers, payload_size)."""
        if self.mode == "independent":
            return tuple(payloads)
        if self.mode == "shared":
            return (sum_rows(payloads),)
        parts = [self.directions_of(w) for w in range(self.workers)]
        return (np.concatenate([row[: p.stop - p.start] for row, p in zip(payloads, parts, strict=True)]),)

    def reconstruction(
        self, coefficients: tuple[Float32Array, ...], step: int, local_updates: Mapping[int, Float32Array] = NONE
    ) -> Reconstruction:
        """The update that these coefficients of each basis stand for."""
        return Reconstruction(self.basis, step, coefficients, local_updates)
