"""The operations on a basis: directions, project, reconstruct, descend.

    a_i = <phi_i, g> / N_i          project: what is sent
    u   = sum_i a_i phi_i           reconstruct: what everyone rebuilds, bit for bit

The basis is a dense (d, D) matrix here, so this file says what the operations are and not how to make them fast.
Specification: docs/specification.md, sections 5 to 7. Twin: kernels/operations.py. Tests: tests/test_operations.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from rbd_ref._types import F32, Float32Array, Float64Array, Indices, Words
from rbd_ref.spec import hadamard
from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.families import Family, direction_entries
from rbd_ref.spec.prng import basis_keys

NORMALIZATIONS = ("unit", "expected", "none", "graphcore")
LEAST_COEFFICIENT = F32(2.0**-64)  # smaller ones become 0, so that no product in `reconstruct` is subnormal
TILE = 4096  # elements whose products are added in float32; the sums of tiles are added in float64
LANES = 64  # partial sums of a tile: enough for the widest vector registers to work side by side


@dataclass(frozen=True)
class Draw:
    """One basis: all that its directions and coefficients depend on.

    plan       sizes and numbers of directions of the compartments
    family     the law of the entries
    normalize  one of NORMALIZATIONS
    seed       0 <= seed < 2^64
    step       0 <= step < 2^32
    worker     0 <= worker < 2^32
    """

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

    @property
    def divisors(self) -> Float64Array:
        """N_k of a_i = <phi_i, g> / N_k for each compartment; 0 stands for the direction's own |phi_i|^2."""
        return divisors(self.plan, self.family, self.normalize)


@lru_cache(maxsize=8)
def divisors(plan: Plan, family: Family, normalize: str) -> Float64Array:
    """`Draw.divisors`, which are those of every step: not to be written to."""
    if normalize == "none":
        return np.ones(plan.K)
    if normalize == "graphcore":
        return np.full(plan.K, float(plan.D))
    if normalize == "unit" and not family.square_is_constant:
        return np.zeros(plan.K)
    return np.asarray(family.expected_square(plan.size_array), dtype=np.float64)


def direction(draw: Draw, k: int, i: int) -> Float32Array:
    """phi of direction i of compartment k, over that compartment."""
    if draw.family.name == "srht":
        return hadamard.row_entries(draw.keys[:, k], draw.plan.sizes[k], int(srht_rows(draw, k)[i]))
    return direction_entries(draw.family, draw.keys[:, k], i, draw.plan.sizes[k])


def srht_rows(draw: Draw, k: int) -> Indices:
    """The rows of compartment k, where the family is `srht`."""
    return hadamard.rows(draw.keys[:, k], draw.plan.sizes[k], draw.plan.dims[k])


def directions(draw: Draw) -> Float32Array:
    """phi as a dense (d, D) matrix, zero outside each direction's compartment."""
    phi = np.zeros((draw.plan.d, draw.plan.D), dtype=F32)
    for index in range(draw.plan.d):
        k, i = draw.plan.locate(index)
        phi[index, draw.plan.elements(k)] = direction(draw, k, i)
    return phi


def lane_sums(products: Float32Array) -> Float32Array:
    """The sum of each tile of float32 numbers: number j goes to lane j mod 64, j ascending, from +0 on; then lane l
    takes lane l + 32, then l + 16, ..., l + 1."""
    tiles = np.zeros((-(-products.size // TILE), TILE // LANES, LANES), dtype=F32)
    tiles.reshape(-1)[: products.size] = products
    lanes = np.zeros_like(tiles[:, 0])
    for row in range(tiles.shape[1]):
        lanes = lanes + tiles[:, row]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


def inner_product(x: Float32Array, y: Float32Array) -> float:
    """<x, y> as the reference takes it: `lane_sums` of the products, added in float64 from the first tile on."""
    total = 0.0
    for tile in lane_sums(x * y):
        total += float(tile)
    return total


def coefficient(inner: float, divisor: float) -> np.float32:
    """inner / N in float64, rounded once to float32; then +0 where it is below 2^-64 in magnitude."""
    with np.errstate(over="ignore"):
        a = F32(inner / divisor)
    return F32(0) if abs(a) < LEAST_COEFFICIENT else a


def flush(a: Float32Array) -> Float32Array:
    """Coefficients below 2^-64 in magnitude become +0."""
    flushed: Float32Array = np.where(np.abs(a) < LEAST_COEFFICIENT, F32(0), a)
    return flushed


def project(draw: Draw, g: Float32Array) -> Float32Array:
    """a_i = <phi_i, g> / N_i with the bits of the reference; other backends come near to them (section 6)."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.concatenate([_project_compartment(draw, k, g[draw.plan.elements(k)]) for k in range(draw.plan.K)])


def _project_compartment(draw: Draw, k: int, g: Float32Array) -> Float32Array:
    """The coefficients of compartment k; g is its part of the gradient."""
    d, divisor = draw.plan.dims[k], float(draw.divisors[k])
    if draw.family.name == "srht":
        return np.array([coefficient(float(inner), divisor) for inner in _srht_inner_products(draw, k, g)], dtype=F32)
    a = np.empty(d, dtype=F32)
    for i in range(d):
        phi = direction(draw, k, i)
        a[i] = coefficient(inner_product(phi, g), divisor or inner_product(phi, phi))
    return a


def _srht_inner_products(draw: Draw, k: int, g: Float32Array) -> Float32Array:
    """H (s g) at the rows, g padded with zeros."""
    x = np.zeros(hadamard.padded(g.size), dtype=F32)
    x[: g.size] = hadamard.signs(draw.keys[:, k], g.size) * g
    return hadamard.transform(x)[srht_rows(draw, k)]


def reconstruct(draw: Draw, a: Float32Array) -> Float32Array:
    """u = sum_i a_i phi_i, bit for bit: from i = 0 up, product and sum each rounded once; `srht` by its transform."""
    u = np.zeros(draw.plan.D, dtype=F32)
    a = flush(a)
    if draw.family.name == "srht":
        for k in range(draw.plan.K):
            u[draw.plan.elements(k)] += _srht_update(draw, k, a)
        return u
    for a_i, phi_i in zip(a, directions(draw), strict=True):
        u = u + a_i * phi_i
    return u


def _srht_update(draw: Draw, k: int, a: Float32Array) -> Float32Array:
    """s (H z) over compartment k, with the coefficients in z at their rows."""
    size = draw.plan.sizes[k]
    z = np.zeros(hadamard.padded(size), dtype=F32)
    z[srht_rows(draw, k)] = a[draw.plan.directions(k)]
    return hadamard.signs(draw.keys[:, k], size) * hadamard.transform(z)[:size]


def part(draw: Draw, k: int, n: int) -> slice:
    """The elements of part k of n of an update, which may be cut at tiles, or for `srht` at compartments.

    Replicas that divide an update among themselves may be on unlike backends, so all cut at the same places.
    """
    bounds = draw.plan.layout.bounds
    if draw.family.name != "srht":
        owners, firsts = draw.plan.tiles(TILE)
        bounds = np.append(bounds[owners] + firsts, draw.plan.D)
    pieces = bounds.size - 1
    return slice(int(bounds[pieces * k // n]), int(bounds[pieces * (k + 1) // n]))


def descend(draw: Draw, g: Float32Array) -> tuple[Float32Array, Float32Array]:
    """(a, u) with a = project(g) and u = reconstruct(a)."""
    a = project(draw, g)
    return a, reconstruct(draw, a)


# In real numbers, as nearly as float64 can: what the tolerance of `project` is measured from.


def exact_divisors(draw: Draw, phi: Float64Array) -> Float64Array:
    """N_i of each direction."""
    given = np.repeat(draw.divisors, draw.plan.dims)
    return np.where(given == 0, np.sum(phi * phi, axis=1), given)


def exact_project(draw: Draw, g: Float32Array) -> Float32Array:
    """a_i = <phi_i, g> / N_i in float64 and rounded once: what `project` of every backend comes near to."""
    phi = directions(draw).astype(np.float64)
    with np.errstate(over="ignore"):
        a = (phi @ g.astype(np.float64) / exact_divisors(draw, phi)).astype(F32)
    return flush(a)
