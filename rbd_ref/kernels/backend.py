"""The backend `numba`: chooses kernels and threads, and holds what kernels work in.

Tests: tests/test_operations.py, tests/test_threads.py.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from rbd_ref._types import F32, TWO_32, Float32Array, Float64Array, Words
from rbd_ref.backend import Capabilities
from rbd_ref.kernels import hadamard, operations
from rbd_ref.kernels.families import SRHT, FamilyCode, KeyPair
from rbd_ref.kernels.prng import basis_keys, fill_threefry
from rbd_ref.kernels.tiles import MOST_TILE_WORDS, SCRATCH, family_code, fill, tile_words
from rbd_ref.spec.compartments import Layout, Plan
from rbd_ref.spec.operations import TILE, Draw, flush

SMALL = 4 * TILE  # compartments up to this size are worked on by one thread each
LARGE = 2**20  # compartments up to this size are given new memory to work in where there is but one thread
HELD_WORDS = 2**17  # words of directions that `descend` holds at a time, or two vectors of the size if these are more
SUMS = 4  # words that the two sums of a tile take
GRAIN = 2**15  # entries of directions that are worth a thread
TRANSFORMED = 2**14  # elements of `srht` that are worth a thread
LINE = 64  # bytes of a cache line
EMPTY = np.empty(0, dtype=F32)

config: Any = numba.config


class Room(threading.local):
    """Words to work in that a thread keeps from one call to the next: for large vectors the system would have to find
    and clear new pages at every call, which takes longer than the work."""

    def __init__(self) -> None:
        self.words = np.empty(0, dtype=np.uint32)

    def take(self, n: int) -> Words:
        """n words, whatever is in them."""
        if self.words.size < n:
            self.words = aligned(np.empty, (n,), np.uint32)
        return self.words[:n]


ROOM = Room()


class Lowered(NamedTuple):
    """A `Draw` as kernels take it; the keys (2, K) are made by a kernel too."""

    plan: Plan
    family: FamilyCode
    keys: Words
    divisors: Float64Array

    @property
    def is_srht(self) -> bool:
        """Whether all directions of a compartment are made together."""
        return self.family.code == SRHT

    def key(self, k: int) -> KeyPair:
        """The key of compartment k."""
        return self.keys[0, k], self.keys[1, k]


def lower(draw: Draw) -> Lowered:
    """The `Lowered` of a draw."""
    keys = basis_keys(divmod(draw.seed, TWO_32), draw.step, draw.worker, draw.plan.K)
    return Lowered(draw.plan, family_code(draw.family), keys, draw.divisors)


def aligned(make: Callable[..., NDArray[Any]], shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """What np.empty or np.zeros makes, from the start of a cache line on: no vector in it touches two of them."""
    count = math.prod(shape) * np.dtype(dtype).itemsize
    room = make(count + LINE, dtype=np.uint8)
    first = -room.__array_interface__["data"][0] % LINE
    part: NDArray[Any] = room[first : first + count].view(dtype)
    return part.reshape(shape)


def directions_per_turn(size: int, d: int, words: int) -> int:
    """How many directions of `size` elements `descend` holds at a time, where each takes `words` with its sums: what
    there is room for, or what two vectors of the size would take, and two at least; or fewer in as many turns."""
    most = min(d, max(2, max(HELD_WORDS, 2 * size) // words))
    turns = -(-d // most)
    return -(-d // turns)


@contextmanager
def thread_limit(work: int, grain: int = GRAIN, parts: int = sys.maxsize) -> Iterator[None]:
    """Around kernels with so much work, in entries of directions unless `grain` is of something else, in parts that are
    not divided: as many threads as are worth starting. One too many costs little on an idle machine, but on a busy one
    everything waits until the system lets it run."""
    before = numba.get_num_threads()
    threads = min(before, parts, max(1, work // grain))
    if threads == before:
        yield
        return
    numba.set_num_threads(threads)
    try:
        yield
    finally:
        numba.set_num_threads(before)


class NumbaBackend:
    """The reference implementation: any number of threads, always the same bits."""

    name: ClassVar[str] = "numba"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def words(self, key: Words, counter: Words) -> Words:
        """`spec.prng.threefry2x32`."""
        out = np.empty_like(counter)
        with thread_limit(2 * counter.shape[1]):
            fill_threefry(key[0], key[1], counter, out)
        return out

    def directions(self, draw: Draw, indices: Sequence[int]) -> Float32Array:
        """Rows of `spec.operations.directions`."""
        low, phi = lower(draw), np.zeros((len(indices), draw.plan.D), dtype=F32)
        with thread_limit(phi.size):
            for row, index in zip(phi, indices, strict=True):
                k, i = draw.plan.locate(index)
                _direction(low, k, i, row[draw.plan.elements(k)])
        return phi

    def project(self, draw: Draw, g: Float32Array) -> Float32Array:
        """`spec.operations.project`, to the bit."""
        low, a = lower(draw), np.empty(draw.plan.d, dtype=F32)
        with thread_limit(draw.plan.entries):
            if low.is_srht:
                _srht(low, range(draw.plan.K), g, a, EMPTY)
            else:
                operations.project(low.family, low.keys, draw.plan.layout, draw.plan.owners, low.divisors, g, a)
        return a

    def project_part(self, draw: Draw, g: Float32Array, directions: slice) -> Float32Array:
        """Some of the coefficients of `project`."""
        low = lower(draw)
        plan = draw.plan
        owners = draw.plan.owners[directions]
        if low.is_srht:
            return self.project(draw, g)[directions]
        a = np.empty(owners.size, dtype=F32)
        layout = Layout(plan.layout.bounds, plan.layout.offsets - directions.start)
        with thread_limit(plan.entries * owners.size // plan.d):
            operations.project(low.family, low.keys, layout, owners, low.divisors, g, a)
        return a

    def reconstruct(self, draw: Draw, a: Float32Array) -> Float32Array:
        """`spec.operations.reconstruct`, to the bit."""
        return self.reconstruct_part(draw, a, 0, 1)[1]

    def reconstruct_part(self, draw: Draw, a: Float32Array, k: int, n: int) -> tuple[int, Float32Array]:
        """Part k of n of `reconstruct`: some of the tiles, or of srht's compartments, and where they begin."""
        low, plan = lower(draw), draw.plan
        places = np.stack([np.arange(plan.K), np.zeros(plan.K, np.int64)]) if low.is_srht else plan.tiles(TILE)
        starts = np.append(plan.layout.bounds[places[0]] + places[1], plan.D)
        first = places.shape[1] * k // n
        last = places.shape[1] * (k + 1) // n
        a, u = flush(a), aligned(np.zeros, (plan.D,), F32)
        with thread_limit(plan.entries // n):
            if low.is_srht:
                _srht(low, range(first, last), EMPTY, a, u)
            else:
                operations.reconstruct(
                    low.family, low.keys, plan.layout, np.ascontiguousarray(places[:, first:last]), a, u
                )
        return int(starts[first]), u[starts[first] : starts[last]]

    def descend(self, draw: Draw, g: Float32Array) -> tuple[Float32Array, Float32Array]:
        """`project` and `reconstruct` with each direction generated once."""
        low, a = lower(draw), np.empty(draw.plan.d, dtype=F32)
        u = aligned(np.zeros if low.is_srht else np.empty, (draw.plan.D,), F32)
        with thread_limit(draw.plan.entries):
            if low.is_srht:
                _srht(low, range(draw.plan.K), g, a, u)
            else:
                _descend(low, g, a, u)
        return a, u

    def set_threads(self, n: int) -> int:
        """Numba's threads, at most as many as it started with."""
        if n > 0:
            numba.set_num_threads(min(n, config.NUMBA_NUM_THREADS))
        return int(numba.get_num_threads())


def _direction(low: Lowered, k: int, i: int, row: Float32Array) -> None:
    """Direction i of compartment k into `row`."""
    if low.is_srht:
        chosen = hadamard.rows(low.key(k), row.size, low.plan.dims[k])[i : i + 1]
        x = np.empty(hadamard.padded(row.size), dtype=F32)
        hadamard.synthesise(low.key(k), chosen, np.ones(1, dtype=F32), row, x)
        return
    scratch, held = np.empty(SCRATCH, dtype=np.uint32), np.empty(MOST_TILE_WORDS, dtype=np.uint32)
    for first in range(0, row.size, TILE):
        fill(low.family, low.key(k), i, first, row.size, scratch, held, row[first : first + TILE])


def _srht(low: Lowered, compartments: range, g: Float32Array, a: Float32Array, u: Float32Array) -> None:
    """Some compartments of `srht`, large ones by all threads together if there are some; g or u may be empty."""
    plan = low.plan
    small, large = plan.by_size(SMALL if numba.get_num_threads() > 1 else LARGE)
    small = small[(small >= compartments.start) & (small < compartments.stop)]
    if small.size:
        where = operations.srht_address()
        with thread_limit(plan.D, TRANSFORMED, small.size):
            operations.srht_per_compartment(where, low.keys, plan.layout, small, low.divisors, g, a, u)
    for k in (k for k in large if k in compartments):
        here = plan.elements(k)
        scratch = ROOM.take(hadamard.padded(plan.sizes[k]))
        operations.srht_cooperative(low.key(k), low.divisors[k], scratch, g[here], a[plan.directions(k)], u[here])


def _descend(low: Lowered, g: Float32Array, a: Float32Array, u: Float32Array) -> None:
    """Small compartments, one thread each; then large ones, one after the other, by all threads together."""
    plan = low.plan
    small, large = plan.by_size(SMALL)
    if small.size:
        with thread_limit(plan.entries, parts=small.size):
            operations.descend_per_compartment(low.family, low.keys, plan.layout, small, low.divisors, g, a, u)
    for k in large:
        _descend_cooperative(low, k, g[plan.elements(k)], a[plan.directions(k)], u[plan.elements(k)])


def _descend_cooperative(low: Lowered, k: int, g: Float32Array, a: Float32Array, u: Float32Array) -> None:
    """Compartment k, whose parts of the vectors are given."""
    tiles = -(-g.size // TILE)
    words = tile_words(low.family, g.size)
    threads = numba.get_num_threads()
    batch = directions_per_turn(g.size, a.size, tiles * (words + SUMS))
    rows = aligned(np.empty, (tiles + threads - 1, batch, words), np.uint32)
    sums = np.empty((tiles, batch, 2))
    operations.descend_cooperative(low.family, low.key(k), low.divisors[k], threads, rows, sums, g, a, u)
