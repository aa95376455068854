"""The operations on a basis: directions, project, reconstruct, descend; first as definitions, then as kernels.

The definitions build the directions as a dense NumPy matrix and say what the operations are; tests hold the kernels
to them. The kernels hold a tile of one direction at a time, so memory is O(D + d), and no thread count changes a bit:
each element of an update and each coefficient is computed by one thread in one order.
Specification: docs/specification.md, sections 5 to 7.
May import: numpy, _jit, prng, distributions, hadamard, compartments. Tests: tests/test_operations.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rbd_ref import hadamard
from rbd_ref._jit import kernel, parallel_kernel, prange
from rbd_ref.compartments import Layout, Plan, Sizes
from rbd_ref.distributions import F32, TILE, Family, KeyPair, Law, Vector, direction_entries, fill
from rbd_ref.prng import Words, basis_keys

NORMALIZATIONS = ("unit", "expected", "none", "graphcore")
LEAST_COEFFICIENT = F32(2.0**-64)  # smaller ones become 0, so that no product in `reconstruct` is subnormal
LANES = 64


@dataclass(frozen=True)
class Draw:
    """One basis: all that its directions and coefficients depend on."""

    plan: Plan
    family: Family
    normalize: str
    seed: int
    step: int
    worker: int

    @cached_property
    def keys(self) -> Words:
        """Keys (2, K), one for each compartment."""
        return basis_keys(self.seed, self.step, self.worker, self.plan.K)

    @cached_property
    def divisors(self) -> NDArray[np.float64]:
        """N_k of a_i = <phi_i, g> / N_k for each compartment; 0 stands for the direction's own |phi_i|^2."""
        if self.normalize == "none":
            return np.ones(self.plan.K)
        if self.normalize == "graphcore":
            return np.full(self.plan.K, float(self.plan.D))
        if self.normalize == "unit" and not self.family.square_is_constant:
            return np.zeros(self.plan.K)
        return np.array([self.family.expected_square(size) for size in self.plan.sizes])


def direction_dense(draw: Draw, k: int, i: int) -> Vector:
    """phi of direction i of compartment k, over that compartment."""
    key, size, d = draw.keys[:, k], draw.plan.sizes[k], draw.plan.dims[k]
    if draw.family.name == "srht":
        return hadamard.row_entries(key, size, int(hadamard.rows(key, size, d)[i]))
    return direction_entries(draw.family, key, i, size)


def directions_dense(draw: Draw) -> Vector:
    """phi as a dense (d, D) matrix, zero outside each direction's compartment."""
    phi = np.zeros((draw.plan.d, draw.plan.D), dtype=F32)
    for index in range(draw.plan.d):
        k, i = draw.plan.locate(index)
        phi[index, draw.plan.elements(k)] = direction_dense(draw, k, i)
    return phi


def flush(a: Vector) -> Vector:
    """Coefficients below 2^-64 in magnitude become +0."""
    flushed: Vector = np.where(np.abs(a) < LEAST_COEFFICIENT, F32(0), a)
    return flushed


def divisors_dense(draw: Draw, phi: NDArray[np.float64]) -> NDArray[np.float64]:
    """N_i of each direction."""
    divisors = np.repeat(draw.divisors, draw.plan.dims)
    return np.where(divisors == 0, np.sum(phi * phi, axis=1), divisors)


def project_dense(draw: Draw, g: Vector) -> Vector:
    """a_i = <phi_i, g> / N_i, in float64 and rounded once: what `project` of every backend comes near to."""
    phi = directions_dense(draw).astype(np.float64)
    with np.errstate(over="ignore"):
        a = (phi @ g.astype(np.float64) / divisors_dense(draw, phi)).astype(F32)
    return flush(a)


def reconstruct_dense(draw: Draw, a: Vector) -> Vector:
    """u = sum_i a_i phi_i, bit for bit: from i = 0 up, product and sum each rounded once; `srht` by its transform."""
    u = np.zeros(draw.plan.D, dtype=F32)
    a = flush(a)
    if draw.family.name == "srht":
        for k in range(draw.plan.K):
            u[draw.plan.elements(k)] += _srht_dense(draw, k, a)
        return u
    for a_i, phi_i in zip(a, directions_dense(draw), strict=True):
        u = u + a_i * phi_i
    return u


def _srht_dense(draw: Draw, k: int, a: Vector) -> Vector:
    """s (H z) over compartment k, with the coefficients in z at their rows."""
    key, size, d = draw.keys[:, k], draw.plan.sizes[k], draw.plan.dims[k]
    z = np.zeros(hadamard.padded(size), dtype=F32)
    z[hadamard.rows(key, size, d)] = a[draw.plan.directions(k)]
    return hadamard.signs(key, size) * hadamard.transform(z)[:size]


def descend_dense(draw: Draw, g: Vector) -> tuple[Vector, Vector]:
    """(a, u) with a = project(g) and u = reconstruct(a)."""
    a = project_dense(draw, g)
    return a, reconstruct_dense(draw, a)


@kernel
def lane_sum(x: Vector, y: Vector, lanes: Vector) -> float:
    """sum_j x_j y_j over one tile, j < y.size: element j goes to lane j mod 64, and the lanes are added by halves."""
    lanes[:] = np.float32(0)
    whole = y.size - y.size % LANES
    for first in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += x[first + lane] * y[first + lane]
    for lane in range(y.size - whole):
        lanes[lane] += x[whole + lane] * y[whole + lane]
    half = LANES // 2
    while half > 0:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return float(lanes[0])


@kernel
def coefficient(inner: float, square: float, divisor: float) -> np.float32:
    """a = inner / N, rounded to float32, +0 where it is below 2^-64; N is `divisor` or, where that is 0, `square`."""
    a = np.float32(inner / (square if divisor == 0 else divisor))
    return np.float32(0) if abs(a) < LEAST_COEFFICIENT else a


@kernel
def add_multiple(a: np.float32, phi: Vector, u: Vector) -> None:
    """u <- u + a phi, product and sum each rounded once."""
    for j in range(u.size):
        u[j] = u[j] + np.float32(a * phi[j])


@kernel
def dot_tile(
    law: Law, key: KeyPair, i: int, first: int, g: Vector, square: bool, scratch: Words, lanes: Vector, phi: Vector
) -> tuple[float, float]:
    """Write the tile of direction i from `first` on into phi; return its sums with g and, if asked, with itself."""
    n = min(TILE, g.size - first)
    fill(law, key, i, first, n, g.size, scratch, phi)
    inner = lane_sum(phi, g[first : first + n], lanes)
    return inner, (lane_sum(phi, phi[:n], lanes) if square else 0.0)


@kernel
def dot_direction(
    law: Law, key: KeyPair, i: int, g: Vector, divisor: float, scratch: Words, lanes: Vector, phi: Vector
) -> np.float32:
    """The coefficient of direction i: the sums of its tiles are added in float64, from the first tile on.

    phi has room for one tile, which is then written over, or for all of them and a tile more.
    """
    inner, square = 0.0, 0.0
    for first in range(0, g.size, TILE):
        place = first if phi.size > TILE else 0
        s, t = dot_tile(law, key, i, first, g, divisor == 0, scratch, lanes, phi[place : place + TILE])
        inner += s
        square += t
    return coefficient(inner, square, divisor)


@parallel_kernel
def project_kernel(
    law: Law, keys: Words, layout: Layout, owners: Sizes, divisors: NDArray[np.float64], g: Vector, a: Vector
) -> None:
    """Each coefficient in one thread."""
    for q in prange(a.size):
        k = owners[q]
        part = g[layout.bounds[k] : layout.bounds[k + 1]]
        scratch, lanes = np.empty(TILE, np.uint32), np.empty(LANES, np.float32)
        phi = np.empty(TILE, np.float32)
        i = q - layout.offsets[k]
        a[q] = dot_direction(law, (keys[0, k], keys[1, k]), i, part, divisors[k], scratch, lanes, phi)


@parallel_kernel
def reconstruct_kernel(law: Law, keys: Words, layout: Layout, tiles: Sizes, a: Vector, u: Vector) -> None:
    """Each tile of the update in one thread: its elements take all directions in order."""
    for q in prange(tiles.shape[1]):
        k, first = tiles[0, q], tiles[1, q]
        start, stop = layout.bounds[k], layout.bounds[k + 1]
        n = min(TILE, stop - start - first)
        scratch, phi = np.empty(TILE, np.uint32), np.empty(TILE, np.float32)
        part = u[start + first : start + first + n]
        for i in range(layout.offsets[k + 1] - layout.offsets[k]):
            fill(law, (keys[0, k], keys[1, k]), i, first, n, stop - start, scratch, phi)
            add_multiple(a[layout.offsets[k] + i], phi, part)


@kernel
def descend_compartment(law: Law, key: KeyPair, divisor: float, g: Vector, a: Vector, u: Vector) -> None:
    """Each direction is written once, dotted with g, and added to u while it is at hand."""
    phi = np.empty(g.size + TILE, np.float32)
    scratch, lanes = np.empty(TILE, np.uint32), np.empty(LANES, np.float32)
    for i in range(a.size):
        a[i] = dot_direction(law, key, i, g, divisor, scratch, lanes, phi)
        add_multiple(a[i], phi, u)


@parallel_kernel
def descend_apart(
    law: Law, keys: Words, layout: Layout, chosen: Sizes, divisors: NDArray[np.float64], g: Vector, a: Vector, u: Vector
) -> None:
    """Small compartments, each in one thread."""
    for q in prange(chosen.size):
        k = chosen[q]
        here = slice(layout.bounds[k], layout.bounds[k + 1])
        there = slice(layout.offsets[k], layout.offsets[k + 1])
        descend_compartment(law, (keys[0, k], keys[1, k]), divisors[k], g[here], a[there], u[here])


@parallel_kernel
def descend_together(
    law: Law, key: KeyPair, divisor: float, rows: Vector, sums: NDArray[np.float64], g: Vector, a: Vector, u: Vector
) -> None:
    """One large compartment: the threads share its tiles, a few directions (`rows`) at a time."""
    tiles = sums.shape[1]
    for start in range(0, a.size, rows.shape[0]):
        count = min(rows.shape[0], a.size - start)
        for t in prange(tiles):
            scratch, lanes = np.empty(TILE, np.uint32), np.empty(LANES, np.float32)
            for r in range(count):
                phi = rows[r, t * TILE : (t + 1) * TILE]
                s = dot_tile(law, key, start + r, t * TILE, g, divisor == 0, scratch, lanes, phi)
                sums[r, t, 0], sums[r, t, 1] = s
        for r in range(count):
            inner, square = 0.0, 0.0
            for t in range(tiles):
                inner += sums[r, t, 0]
                square += sums[r, t, 1]
            a[start + r] = coefficient(inner, square, divisor)
        for t in prange(tiles):
            for r in range(count):
                add_multiple(a[start + r], rows[r, t * TILE : (t + 1) * TILE], u[t * TILE : (t + 1) * TILE])


@parallel_kernel
def srht_kernel(keys: Words, layout: Layout, divisors: NDArray[np.float64], g: Vector, a: Vector, u: Vector) -> None:
    """Compartments of `srht`, each in one thread: g into a unless g is empty, then a into u unless u is empty."""
    for k in prange(divisors.size):
        here = slice(layout.bounds[k], layout.bounds[k + 1])
        part = a[layout.offsets[k] : layout.offsets[k + 1]]
        key = (keys[0, k], keys[1, k])
        chosen = hadamard.rows_kernel(key, layout.bounds[k + 1] - layout.bounds[k], part.size)
        if g.size > 0:
            inner = hadamard.analyse(key, chosen, g[here])
            for i in range(part.size):
                part[i] = coefficient(float(inner[i]), 1.0, divisors[k])
        if u.size > 0:
            hadamard.synthesise(key, chosen, part, u[here])
