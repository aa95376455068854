"""How the bases of W workers relate (`exchange`), and what that makes of the coefficients they send.

    independent  each worker has a basis of its own                          a worker sends d coefficients
    shared       all have the basis of worker 0; coefficients are added      a worker sends d coefficients
    split        all have the basis of worker 0; each has a part of it       a worker sends its d / W coefficients

Coefficients are sent as floats, or in fewer bits (codes.py): then the words of the codes come first, the scales after
them, and what everyone goes on with, the sender too, is what they stand for.
The update is the sum over bases j = 0, 1, ... of their updates, each rebuilt from 0, added in that order in float32.
Tests: tests/test_methods.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from rbd_ref._types import F32, Float32Array, Indices
from rbd_ref.basis import Basis
from rbd_ref.methods import codes
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
        self.code = codes.CODES.get(settings.coefficients)  # None: floats as they are
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

    def lengths_of(self, worker: int) -> Indices:
        """How many of the worker's directions each compartment has, without those that have none."""
        directions = self.directions_of(worker)
        ends = self.basis.plan.layout.offsets.clip(directions.start, directions.stop)
        lengths = np.diff(ends)
        return lengths[lengths > 0]

    @cached_property
    def part_size(self) -> int:
        """How many directions a worker has at most."""
        return -(-self.d // self.workers) if self.mode == "split" else self.d

    @cached_property
    def code_words(self) -> int:
        """How many words of a payload hold codes."""
        return self.code.words(self.part_size) if self.code else 0

    @cached_property
    def payload_size(self) -> int:
        """How many floats, or words and scales, each worker sends."""
        if self.code is None:
            return self.part_size
        unlike = range(self.workers if self.mode == "split" else 1)
        return self.code_words + max(self.lengths_of(worker).size for worker in unlike)

    def encode(self, a: Float32Array, worker: int) -> Float32Array:
        """What a worker sends of its coefficients, filled up with 0 to the size that all send."""
        payload = np.zeros(self.payload_size, dtype=F32)
        if self.code is None:
            payload[: a.size] = a
            return payload
        words, scales = codes.encode(self.code, a, self.lengths_of(worker))
        payload[: words.size] = words.view(F32)
        payload[self.code_words : self.code_words + scales.size] = scales
        return payload

    def decode(self, payload: Float32Array, worker: int) -> Float32Array:
        """The worker's coefficients, as everyone takes them, from what it sent."""
        directions = self.directions_of(worker)
        n = directions.stop - directions.start
        if self.code is None:
            return payload[:n]
        lengths = self.lengths_of(worker)
        words = payload[: self.code.words(n)].view(np.uint32)
        return codes.decode(self.code, words, payload[self.code_words :][: lengths.size], lengths)

    def decode_all(self, payloads: Float32Array) -> Float32Array:
        """The coefficients of all workers, a row each, filled up with 0."""
        if self.code is None:
            return payloads
        a = np.zeros((len(payloads), self.part_size), dtype=F32)
        for worker, payload in enumerate(payloads):
            found = self.decode(payload, worker)
            a[worker, : found.size] = found
        return a

    def project(self, g: Float32Array, step: int, worker: int) -> tuple[Float32Array, Float32Array]:
        """The payload of a gradient; and the worker's update, where that costs nothing more."""
        if self.mode == "independent" and not self.transforms and self.code is None:
            return self.basis.descend(g, step, worker)
        directions = self.directions_of(worker)
        a = self.basis.project_part(g, step, self.basis_of(worker), directions)
        if self.transforms:
            scale = self.scale[directions]
            a = compose(self.transforms)(a * scale) / scale
        return self.encode(a, worker), EMPTY

    def update_of(self, payload: Float32Array, step: int, worker: int) -> Float32Array:
        """The worker's own update: what theta would move along if nobody else had sent anything."""
        a = np.zeros(self.d, dtype=F32)
        a[self.directions_of(worker)] = self.decode(payload, worker)
        return self.basis.reconstruct(a, step, self.basis_of(worker))

    def coefficients(self, payloads: Float32Array) -> tuple[Float32Array, ...]:
        """The coefficients of each basis from the payloads (workers, payload_size)."""
        parts = (self.decode(payload, worker) for worker, payload in enumerate(payloads))
        if self.mode == "independent":
            return tuple(parts)
        return (sum_rows(parts) if self.mode == "shared" else np.concatenate(list(parts)),)

    def reconstruction(
        self, coefficients: tuple[Float32Array, ...], step: int, local_updates: Mapping[int, Float32Array] = NONE
    ) -> Reconstruction:
        """The update that these coefficients of each basis stand for."""
        return Reconstruction(self.basis, step, coefficients, local_updates)
