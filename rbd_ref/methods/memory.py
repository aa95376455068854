"""What a worker keeps of its gradients, so that what it projects is worth its d coefficients.

A random basis costs in proportion to the energy of what is projected, |v|^2 tr(H) / d for a Hessian H. The gradient of
a mini-batch is mostly noise; an average of many is not:

    memory beta   m <- beta m + (1 - beta) g         a = project(m)     theta <- theta - eta_t u(a)
    feedback      e <- e + eta_t g                   a = project(e)     theta <- theta - s u(a),   e <- e - s u(a)

Both start from 0 and are private to the worker: theta still follows from seeds and coefficients alone. With feedback
nothing of a gradient is lost, it is sent sooner or later: the updates of a worker and what it keeps add up to

    sum_t s u(a_t) + e = sum_t eta_t g_t             to rounding

so its rate is SGD's, inside the memory. s <= 1 makes P P^T a contraction, by which e stays small: s P P^T e is, for a
random basis P of unit directions, as near to e as a multiple of P P^T e can be in the mean,

    s = 1 / (1 + (d - 1) r),   r = E cos^2 of two directions: 1 / D, or less for srht, where 0 if D is a power of two

Elements below 2^-64 become +0, so that the memory of a weight whose gradient has died out does not end among the
subnormal numbers, with which processors are slow.
Tests: tests/test_worker_memory.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rbd_ref._types import F32, Float32Array
from rbd_ref.basis import Basis
from rbd_ref.methods.base import EMPTY
from rbd_ref.spec.hadamard import padded

CHUNK = 2**14  # elements at a time, so that what is between two roundings stays in the cache
LEAST = F32(2.0**-64)


class Memory(NamedTuple):
    """m of `memory` or e of `feedback`, D floats; empty where there is neither."""

    kept: Float32Array = EMPTY


def add_scaled(x: Float32Array, factor: np.float32, y: Float32Array) -> None:
    """x <- x + (factor * y) in place, product and sum each rounded once."""
    for first in range(0, x.size, CHUNK):
        part = slice(first, first + CHUNK)
        x[part] += factor * y[part]


def drop_small(x: Float32Array) -> None:
    """+0 in place of all that is below 2^-64 in magnitude."""
    for first in range(0, x.size, CHUNK):
        part = x[first : first + CHUNK]
        np.putmask(part, np.abs(part) < LEAST, F32(0))  # half the time of an index where zeros lie scattered


def averaged(m: Float32Array, g: Float32Array, beta: float) -> Float32Array:
    """(b * m) + (c * g) with b = float32(beta) and c = 1 - b, each operation rounded once."""
    b = F32(beta)
    after: Float32Array = b * m
    add_scaled(after, F32(1) - b, g)
    drop_small(after)
    return after


def increased(e: Float32Array, g: Float32Array, eta: np.float32) -> Float32Array:
    """e + (eta * g), each operation rounded once."""
    after = e.copy()
    add_scaled(after, eta, g)
    drop_small(after)
    return after


def overlap(family: str, size: int) -> float:
    """r = E <phi_i, phi_j>^2 / (|phi_i|^2 |phi_j|^2) of two directions of a compartment of `size` elements.

    Directions of independent, unbiased entries have 1 / size; the rows of `srht`, cut from length n, drawn without
    replacement, (n - size) / ((n - 1) size).
    """
    if family != "srht":
        return 1 / size
    n = padded(size)
    return (n - size) / (max(n - 1, 1) * size)


def contraction(basis: Basis) -> np.float32:
    """s, the least of 1 / (1 + (d - 1) r) over compartments, in binary64 and rounded once."""
    pairs = zip(basis.plan.sizes, basis.plan.dims, strict=True)
    return F32(min(1 / (1 + (d - 1) * overlap(basis.family.name, size)) for size, d in pairs))
