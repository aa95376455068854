"""The operations on a basis: directions, project, reconstruct, descend; first as definitions, then as kernels.

The definitions build the directions as a dense NumPy matrix and say what the operations are; tests hold the kernels
to them. The kernels hold tiles of a few directions at a time (tiles.py), so memory is O(D + d), and no thread count
changes a bit: each element of an update and each coefficient is computed by one thread in one order.
Specification: docs/specification.md, sections 5 to 7.
May import: numpy, _check, _jit, prng, distributions, tiles, hadamard, compartments. Tests: tests/test_operations.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from rbd_ref import hadamard
from rbd_ref._check import WORD
from rbd_ref._jit import borrowed, kernel, parallel_kernel, prange
from rbd_ref.compartments import Layout, Plan, Sizes
from rbd_ref.distributions import F32, TILE, Family, KeyPair, Law, Vector, direction_entries
from rbd_ref.prng import Words, basis_keys_kernel
from rbd_ref.tiles import LARGEST_ROOM as ROOM
from rbd_ref.tiles import SCRATCH, STRETCH, Sums, add, dot, hold, room, stretch

NORMALIZATIONS = ("unit", "expected", "none", "graphcore")
LEAST_COEFFICIENT = F32(2.0**-64)  # smaller ones become 0, so that no product in `reconstruct` is subnormal


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
        return basis_keys_kernel(divmod(self.seed, WORD), self.step, self.worker, self.plan.K)

    @property
    def divisors(self) -> NDArray[np.float64]:
        """N_k of a_i = <phi_i, g> / N_k for each compartment; 0 stands for the direction's own |phi_i|^2."""
        return divisors(self.plan, self.family, self.normalize)


@lru_cache(maxsize=8)
def divisors(plan: Plan, family: Family, normalize: str) -> NDArray[np.float64]:
    """`Draw.divisors`, which are those of every step: not to be written to."""
    if normalize == "none":
        return np.ones(plan.K)
    if normalize == "graphcore":
        return np.full(plan.K, float(plan.D))
    if normalize == "unit" and not family.square_is_constant:
        return np.zeros(plan.K)
    return np.asarray(family.expected_square(plan.lengths), dtype=np.float64)


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
    given = np.repeat(draw.divisors, draw.plan.dims)
    return np.where(given == 0, np.sum(phi * phi, axis=1), given)


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
def coefficient(inner: float, square: float, divisor: float) -> np.float32:
    """a = inner / N, rounded to float32, +0 where it is below 2^-64; N is `divisor` or, where that is 0, `square`."""
    a = np.float32(inner / (square if divisor == 0 else divisor))
    return np.float32(0) if abs(a) < LEAST_COEFFICIENT else a


@kernel
def dot_direction(
    law: Law,
    key: KeyPair,
    i: int,
    g: Vector,
    divisor: float,
    scratch: Words,
    sums: Sums,
    held: Words,
    stride: int,
) -> np.float32:
    """The coefficient of direction i: the sums of its tiles are added in float64, from the first tile on.

    The stretches are held `stride` words apart; where that is 0, each is written over the one before.
    """
    g, scratch, sums, held = borrowed(g), borrowed(scratch), borrowed(sums), borrowed(held)
    inner, square, length = 0.0, 0.0, stretch(law) * TILE
    for b in range((g.size + length - 1) // length):
        part, here = g[b * length : (b + 1) * length], held[b * stride :]
        hold(law, key, i, b * length, part.size, g.size, scratch, here)
        dot(law, here, part, divisor == 0, sums[:, 0])
        for t in range((part.size + TILE - 1) // TILE):
            inner += sums[t, 0, 0]
            square += sums[t, 0, 1]
    return coefficient(inner, square, divisor)


@parallel_kernel
def project_kernel(
    law: Law, keys: Words, layout: Layout, owners: Sizes, divisors: NDArray[np.float64], g: Vector, a: Vector
) -> None:
    """Each coefficient in one thread."""
    for q in prange(a.size):
        k = owners[q]
        part = g[layout.bounds[k] : layout.bounds[k + 1]]
        scratch, held = np.empty(SCRATCH, np.uint32), np.empty(ROOM, np.uint32)
        i, sums = q - layout.offsets[k], np.empty((STRETCH, 1, 2))
        a[q] = dot_direction(law, (keys[0, k], keys[1, k]), i, part, divisors[k], scratch, sums, held, 0)


@kernel
def rebuild_tile(
    law: Law, key: KeyPair, first: int, size: int, a: Vector, u: Vector, scratch: Words, held: Words
) -> None:
    """The elements of u, those from `first` on of a compartment of `size`, take all directions in order."""
    a, u, scratch, held = borrowed(a), borrowed(u), borrowed(scratch), borrowed(held)
    for i in range(a.size):
        hold(law, key, i, first, u.size, size, scratch, held)
        add(law, a[i], held, u)


@parallel_kernel
def reconstruct_kernel(law: Law, keys: Words, layout: Layout, tiles: Sizes, a: Vector, u: Vector) -> None:
    """Each tile of the update in one thread."""
    for q in prange(tiles.shape[1]):
        k, first = tiles[0, q], tiles[1, q]
        start, stop = layout.bounds[k], layout.bounds[k + 1]
        part, some = u[start + first : min(start + first + TILE, stop)], a[layout.offsets[k] : layout.offsets[k + 1]]
        scratch, held = np.empty(SCRATCH, np.uint32), np.empty(ROOM, np.uint32)
        rebuild_tile(law, (keys[0, k], keys[1, k]), first, stop - start, some, part, scratch, held)


@kernel
def descend_compartment(
    law: Law,
    key: KeyPair,
    divisor: float,
    g: Vector,
    a: Vector,
    u: Vector,
    scratch: Words,
    sums: Sums,
    held: Words,
) -> None:
    """u from 0 on: each direction is made once, dotted with g, and added while it is at hand."""
    g, a, u, scratch = borrowed(g), borrowed(a), borrowed(u), borrowed(scratch)
    sums, held = borrowed(sums), borrowed(held)
    length, stride = stretch(law) * TILE, stretch(law) * room(law, g.size)
    u[:] = np.float32(0)
    for i in range(a.size):
        a[i] = dot_direction(law, key, i, g, divisor, scratch, sums, held, stride)
        for b in range((g.size + length - 1) // length):
            add(law, a[i], held[b * stride :], u[b * length : (b + 1) * length])


@parallel_kernel
def descend_apart(
    law: Law, keys: Words, layout: Layout, chosen: Sizes, divisors: NDArray[np.float64], g: Vector, a: Vector, u: Vector
) -> None:
    """Small compartments, each in one thread."""
    for q in prange(chosen.size):
        k = chosen[q]
        here = slice(layout.bounds[k], layout.bounds[k + 1])
        there = slice(layout.offsets[k], layout.offsets[k + 1])
        part, key = g[here], (keys[0, k], keys[1, k])
        scratch, sums = np.empty(SCRATCH, np.uint32), np.empty((STRETCH, 1, 2))
        held = np.empty((part.size + TILE - 1) // TILE * room(law, part.size), np.uint32)
        descend_compartment(law, key, divisors[k], part, a[there], u[here], scratch, sums, held)


@kernel
def place(t: int, s: int, tiles: int, held: int, threads: int) -> int:
    """Where the directions of tile t are held at turn s: at t or, if threads share the tile, at every other turn behind
    all tiles, so that none writes over what another still reads."""
    k = 1
    while tiles * held * k // threads <= t * held:
        k += 1
    shared = tiles * held * k // threads < (t + 1) * held
    return tiles + k - 1 if shared and s % 2 == 1 else t


@kernel
def turn(
    law: Law,
    key: KeyPair,
    s: int,
    share: tuple[int, int],
    a: Vector,
    rows: Words,
    sums: Sums,
    g: Vector,
    u: Vector,
    square: bool,
    scratch: Words,
) -> None:
    """What one thread, k of n = `share`, does at turn s with its pairs of tile and direction, numbered tile by tile.

    Tiles of which it has all pairs are taken by stretches. Where a tile begins, u is set to 0 or takes the directions
    of the turn before, whose coefficients are known by then. Then each of the next directions is held, and its sums
    are kept at sums[t, r], for tile t and row r.
    """
    tiles, (held, words), (k, n) = sums.shape[0], rows.shape[1:], share
    a, flat, sums, g, u = borrowed(a), borrowed(rows.reshape(-1)), borrowed(sums), borrowed(g), borrowed(u)
    scratch, begin, end = borrowed(scratch), tiles * held * k // n, tiles * held * (k + 1) // n
    t = begin // held
    while t * held < end:
        first, last = max(begin - t * held, 0), min(end - t * held, held)
        count = min(stretch(law), end // held - t) if last - first == held else 1
        here, stride = slice(t * TILE, (t + count) * TILE), count * words
        if first == 0 and s == 0:
            u[here] = np.float32(0)
        elif first == 0:
            old = flat[place(t, s - 1, tiles, held, n) * held * words :]
            for r in range(min(held, a.size - (s - 1) * held)):
                add(law, a[(s - 1) * held + r], old[r * stride :], u[here])
        part, new = g[here], flat[place(t, s, tiles, held, n) * held * words :]
        for r in range(first, min(last, a.size - s * held)):
            hold(law, key, s * held + r, t * TILE, part.size, g.size, scratch, new[r * stride :])
            dot(law, new[r * stride :], part, square, sums[t:, r])
        t += count


@kernel
def coefficients(sums: Sums, divisor: float, a: Vector) -> None:
    """The coefficients of some directions from the sums of their tiles, added from the first tile on."""
    for t in range(1, sums.shape[0]):
        for r in range(a.size):
            sums[0, r, 0] += sums[t, r, 0]
            sums[0, r, 1] += sums[t, r, 1]
    for r in range(a.size):
        a[r] = coefficient(sums[0, r, 0], sums[0, r, 1], divisor)


@parallel_kernel
def descend_together(
    law: Law, key: KeyPair, divisor: float, threads: int, rows: Words, sums: Sums, g: Vector, a: Vector, u: Vector
) -> None:
    """One large compartment: the threads share its tiles, some directions (`rows`) at a turn, and meet once a turn."""
    held = rows.shape[1]
    for s in range((a.size + held - 1) // held + 1):
        for k in prange(threads):
            scratch = np.empty(SCRATCH, np.uint32)
            turn(law, key, s, (k, threads), a, rows, sums, g, u, divisor == 0, scratch)
        coefficients(sums, divisor, a[s * held : (s + 1) * held])


@parallel_kernel
def srht_apart(
    keys: Words, layout: Layout, chosen: Sizes, divisors: NDArray[np.float64], g: Vector, a: Vector, u: Vector
) -> None:
    """Small compartments of `srht`, each in one thread: g into a unless g is empty, then a into u unless u is empty."""
    for q in prange(chosen.size):
        k = chosen[q]
        here = slice(layout.bounds[k], layout.bounds[k + 1])
        part, key = a[layout.offsets[k] : layout.offsets[k + 1]], (keys[0, k], keys[1, k])
        size = layout.bounds[k + 1] - layout.bounds[k]
        rows = hadamard.rows_kernel(key, size, part.size)
        x = np.empty(hadamard.padded_kernel(size), np.float32)
        if g.size > 0:
            inner = hadamard.analyse(key, rows, g[here], x)
            for i in range(part.size):
                part[i] = coefficient(float(inner[i]), 1.0, divisors[k])
        if u.size > 0:
            hadamard.synthesise(key, rows, part, u[here], x)


@kernel
def srht_together(key: KeyPair, size: int, divisor: float, g: Vector, a: Vector, u: Vector) -> None:
    """`srht_apart` of one large compartment, whose parts of the vectors are given, by all threads together."""
    rows = hadamard.rows_together(key, size, a.size)
    x = np.zeros(hadamard.padded_kernel(size), np.float32)
    if g.size > 0:
        hadamard.add_signed_together(key, g, x[:size])
        hadamard.transform_together(x)
        for i in range(a.size):
            a[i] = coefficient(float(x[rows[i]]), 1.0, divisor)
        x[:] = np.float32(0)
    if u.size > 0:
        x[rows] = a
        hadamard.transform_together(x)
        hadamard.add_signed_together(key, x, u)
