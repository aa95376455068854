"""The reference backend: the kernels of operations.py behind the backend protocol, registered as `numba`.

May import: numpy, numba, operations, hadamard, tiles, distributions, backend. Tests: tests/test_operations.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numba
import numpy as np
from numpy.typing import NDArray

from rbd_ref import hadamard, operations
from rbd_ref._jit import parallel_kernel, prange
from rbd_ref.backend import Capabilities
from rbd_ref.compartments import Layout
from rbd_ref.distributions import F32, TILE, Vector
from rbd_ref.operations import Draw
from rbd_ref.prng import Words, threefry
from rbd_ref.tiles import LARGEST_ROOM, SCRATCH, fill, room

SMALL = 4 * TILE  # compartments up to this size are worked on by one thread each
ROOM = 2**17  # words of directions that `descend` holds at a time, where two vectors of the size are not more than that
SUMS = 4  # words that the two sums of a tile take
config: Any = numba.config
GRAIN = 2**15  # entries of directions that are worth a thread
LINE = 64  # bytes of a cache line
EMPTY = np.empty(0, dtype=F32)


@parallel_kernel
def words_kernel(k0: np.uint32, k1: np.uint32, counter: Words, out: Words) -> None:
    """Each counter of its own."""
    for p in prange(counter.shape[1]):
        out[0, p], out[1, p] = threefry(k0, k1, counter[0, p], counter[1, p])


def aligned(make: Callable[..., NDArray[Any]], shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """What np.empty or np.zeros makes, from the start of a cache line on: no vector in it touches two of them."""
    count = math.prod(shape) * np.dtype(dtype).itemsize
    room = make(count + LINE, dtype=np.uint8)
    first = -room.__array_interface__["data"][0] % LINE
    part: NDArray[Any] = room[first : first + count].view(dtype)
    return part.reshape(shape)


def rows_held(size: int, d: int, words: int) -> int:
    """How many directions of `size` elements `descend` holds at a time, where each takes `words` with its sums: what
    there is room for, or what two vectors of the size would take, and two at least; or fewer in as many turns."""
    most = min(d, max(2, max(ROOM, 2 * size) // words))
    turns = -(-d // most)
    return -(-d // turns)


class Running:
    """Around kernels that make so many entries of directions: as many threads as are worth starting."""

    def __init__(self, entries: int) -> None:
        self.before = numba.get_num_threads()
        self.threads = min(self.before, max(1, entries // GRAIN))

    def __enter__(self) -> None:
        if self.threads != self.before:
            numba.set_num_threads(self.threads)

    def __exit__(self, *_: object) -> None:
        if self.threads != self.before:
            numba.set_num_threads(self.before)


class NumbaBackend:
    """The reference implementation: any number of threads, always the same bits."""

    name: ClassVar[str] = "numba"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def words(self, key: Words, counter: Words) -> Words:
        """`prng.threefry2x32`."""
        out = np.empty_like(counter)
        with Running(2 * counter.shape[1]):
            words_kernel(key[0], key[1], counter, out)
        return out

    def directions(self, draw: Draw, indices: Sequence[int]) -> Vector:
        """Rows of `operations.directions_dense`."""
        phi = np.zeros((len(indices), draw.plan.D), dtype=F32)
        with Running(phi.size):
            for row, index in zip(phi, indices, strict=True):
                k, i = draw.plan.locate(index)
                self._direction(draw, k, i, row[draw.plan.elements(k)])
        return phi

    def _direction(self, draw: Draw, k: int, i: int, row: Vector) -> None:
        """Direction i of compartment k into `row`."""
        key = (draw.keys[0, k], draw.keys[1, k])
        if draw.family.name == "srht":
            chosen = hadamard.rows_kernel(key, row.size, draw.plan.dims[k])[i : i + 1]
            x = np.empty(hadamard.padded(row.size), dtype=F32)
            hadamard.synthesise(key, chosen, np.ones(1, dtype=F32), row, x)
            return
        scratch, held = np.empty(SCRATCH, dtype=np.uint32), np.empty(LARGEST_ROOM, dtype=np.uint32)
        for first in range(0, row.size, TILE):
            fill(draw.family.law, key, i, first, row.size, scratch, held, row[first : first + TILE])

    def project(self, draw: Draw, g: Vector) -> Vector:
        """`operations.project_dense`, near enough."""
        plan, a = draw.plan, np.empty(draw.plan.d, dtype=F32)
        with Running(plan.entries):
            if draw.family.name == "srht":
                self._srht(draw, range(plan.K), g, a, EMPTY)
            else:
                operations.project_kernel(draw.family.law, draw.keys, plan.layout, plan.owners, draw.divisors, g, a)
        return a

    def project_part(self, draw: Draw, g: Vector, directions: slice) -> Vector:
        """Some of the coefficients of `project`."""
        if draw.family.name == "srht":
            return self.project(draw, g)[directions]
        plan, owners = draw.plan, draw.plan.owners[directions]
        a, layout = np.empty(owners.size, dtype=F32), Layout(plan.layout.bounds, plan.layout.offsets - directions.start)
        with Running(plan.entries * owners.size // plan.d):
            operations.project_kernel(draw.family.law, draw.keys, layout, owners, draw.divisors, g, a)
        return a

    def reconstruct(self, draw: Draw, a: Vector) -> Vector:
        """`operations.reconstruct_dense`, to the bit."""
        return self.reconstruct_part(draw, a, 0, 1)[1]

    def reconstruct_part(self, draw: Draw, a: Vector, k: int, n: int) -> tuple[int, Vector]:
        """Part k of n of `reconstruct`: some of the tiles, or of srht's compartments, and where they begin."""
        plan, a, u = draw.plan, operations.flush(a), aligned(np.zeros, (draw.plan.D,), F32)
        bounds, whole = plan.layout.bounds, draw.family.name == "srht"
        places = np.stack([np.arange(plan.K), np.zeros(plan.K, np.int64)]) if whole else plan.tiles(TILE)
        starts = np.append(bounds[places[0]] + places[1], plan.D)
        first, last = places.shape[1] * k // n, places.shape[1] * (k + 1) // n
        with Running(plan.entries // n):
            if whole:
                self._srht(draw, range(first, last), EMPTY, a, u)
            else:
                tiles = np.ascontiguousarray(places[:, first:last])
                operations.reconstruct_kernel(draw.family.law, draw.keys, plan.layout, tiles, a, u)
        return int(starts[first]), u[starts[first] : starts[last]]

    def descend(self, draw: Draw, g: Vector) -> tuple[Vector, Vector]:
        """`project` and `reconstruct` with each direction generated once."""
        plan, a, srht = draw.plan, np.empty(draw.plan.d, dtype=F32), draw.family.name == "srht"
        u = aligned(np.zeros if srht else np.empty, (plan.D,), F32)
        with Running(plan.entries):
            if srht:
                self._srht(draw, range(plan.K), g, a, u)
            else:
                self._descend(draw, g, a, u)
        return a, u

    def _srht(self, draw: Draw, compartments: range, g: Vector, a: Vector, u: Vector) -> None:
        """Some compartments of `srht`, large ones by all threads together if there are some; g or u may be empty."""
        plan = draw.plan
        small, large = plan.by_size(SMALL if numba.get_num_threads() > 1 else plan.D)
        small = small[(small >= compartments.start) & (small < compartments.stop)]
        if small.size:
            operations.srht_apart(draw.keys, plan.layout, small, draw.divisors, g, a, u)
        for k in (k for k in large if k in compartments):
            key, here = (draw.keys[0, k], draw.keys[1, k]), plan.elements(k)
            operations.srht_together(key, plan.sizes[k], draw.divisors[k], g[here], a[plan.directions(k)], u[here])

    def _descend(self, draw: Draw, g: Vector, a: Vector, u: Vector) -> None:
        """Small compartments apart, one thread each; large ones one after the other, all threads together."""
        plan = draw.plan
        small, large = plan.by_size(SMALL)
        if small.size:
            operations.descend_apart(draw.family.law, draw.keys, plan.layout, small, draw.divisors, g, a, u)
        for k in large:
            self._descend_together(draw, k, g[plan.elements(k)], a[plan.directions(k)], u[plan.elements(k)])

    def _descend_together(self, draw: Draw, k: int, g: Vector, a: Vector, u: Vector) -> None:
        """Compartment k, whose parts of the vectors are given."""
        law, key, tiles = draw.family.law, (draw.keys[0, k], draw.keys[1, k]), -(-g.size // TILE)
        words, threads = room(law, g.size), numba.get_num_threads()
        held = rows_held(g.size, a.size, tiles * (words + SUMS))
        rows, sums = aligned(np.empty, (tiles + threads - 1, held, words), np.uint32), np.empty((tiles, held, 2))
        operations.descend_together(law, key, draw.divisors[k], threads, rows, sums, g, a, u)

    def set_threads(self, n: int) -> int:
        """Numba's threads, at most as many as it started with."""
        if n > 0:
            numba.set_num_threads(min(n, config.NUMBA_NUM_THREADS))
        return int(numba.get_num_threads())
