"""`CudaBackend`: the operations as launches of kernels, and the tables of jobs that the kernels work through.

numba-cuda is imported when the backend is made, not when this module is. Nothing of size D d is stored: kernels make
entries where they need them, and `descend`, too, makes them twice rather than store them.
Specification: docs/specification.md.
Tests: tests/test_cuda_backend.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rbd_cuda.codes import CODES
from rbd_ref._types import F32, Float32Array, Words
from rbd_ref.backend import Capabilities
from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.families import Family
from rbd_ref.spec.hadamard import padded
from rbd_ref.spec.operations import Draw, flush

Table = NDArray[np.int64]
SIMULATED = Capabilities(
    families=("sparse",),
    normalizations=("unit",),
    reason="Numba's simulator makes too few entries a second for the suite's long plans in more of them",
)


class Shape(NamedTuple):
    """How a family is worked on: the end of its kernels' names, their first argument, how many elements a block of
    words covers (for `sparse` two windows), and what a job is in threads of blocks."""

    kernels: str
    code: int
    cover: int
    rebuilt: float
    dotted: int


def ceiling(x: Any, y: Any) -> Any:
    """x / y, rounded up; numbers or arrays."""
    return -(-x // y)


def shape_of(family: Family) -> Shape:
    """The shape of any family but `srht`."""
    if family.name == "sparse":
        return Shape("sparse", family.window, 2, 1, 1)
    if family.name in ("normal", "uniform"):
        return Shape("pairs", CODES[family.name], 2, 1, 16)
    return Shape("bits", CODES[family.name], 64, 1 / 16, 1)


def block_counts(draw: Draw) -> Table:
    """Blocks of words that a direction of each compartment takes."""
    units = np.array(draw.plan.sizes)
    if draw.family.name == "sparse":
        units = ceiling(units, draw.family.window)
    counts: Table = ceiling(units, shape_of(draw.family).cover)
    return counts


def cut(lengths: Table, step: Table | int) -> tuple[Table, Table]:
    """Ranges 0 .. length - 1 in pieces of at most `step`: which range a piece is of, and where it begins."""
    counts = ceiling(lengths, step)
    owner = np.repeat(np.arange(lengths.size), counts)
    number = np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return owner, number * np.broadcast_to(step, lengths.shape)[owner]


def table(*columns: Any) -> Table:
    """Jobs, a row each; single numbers hold for all of them."""
    return np.stack(np.broadcast_arrays(*columns), axis=1).astype(np.int64)


class CudaBackend:
    """NVIDIA GPUs by numba-cuda: directions and updates to the bit, inner products always added by the same tree."""

    name = "cuda"
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.device = self.open_device()
        if self.device.simulated:
            self.name, self.capabilities = "cuda-simulated", SIMULATED

    def open_device(self) -> Any:
        """What kernels run on; tests put another thing here."""
        if find_spec("numba_cuda") is None:
            raise ImportError("numba-cuda is not installed, expected it: pip install 'rbd-ref[cuda]'")
        from rbd_cuda.gpu import Gpu

        return Gpu()

    def words(self, key: Words, counter: Words) -> Words:
        """All counters in one launch."""
        if counter.shape[1] == 0:
            return np.empty_like(counter)
        out = self.device.empty(counter.shape, np.uint32)
        self._each("words", counter.shape[1], key[0], key[1], self.device.array(counter), out)
        return self._host(out)

    def directions(self, draw: Draw, indices: Sequence[int]) -> Float32Array:
        """Rows of phi: updates of one coefficient that is 1, or rows of the Hadamard matrix under signs."""
        plan = draw.plan
        if len(indices) == 0:
            return np.empty((0, plan.D), dtype=F32)
        phi = self._zeros(len(indices) * plan.D)
        chosen = np.array(indices, dtype=np.int64)
        owners = plan.owners[chosen]
        begins = np.arange(chosen.size) * plan.D + plan.layout.bounds[owners]
        if draw.family.name == "srht":
            self._srht_directions(draw, chosen, owners, begins, phi)
        else:
            numbers = chosen - plan.layout.offsets[owners]
            self._rebuild(draw, owners, (numbers, 1, 0, begins), self.device.array(np.ones(1, F32)), phi)
        return self._host(phi).reshape(-1, plan.D)

    def project(self, draw: Draw, g: Float32Array) -> Float32Array:
        """Inner products in a fixed tree, divided by N."""
        return self._host(self._project(draw, self.device.array(g)))

    def reconstruct(self, draw: Draw, a: Float32Array) -> Float32Array:
        """Every element takes its directions in order."""
        return self._host(self._reconstruct(draw, self.device.array(flush(a))))

    def descend(self, draw: Draw, g: Float32Array) -> tuple[Float32Array, Float32Array]:
        """`project` and then `reconstruct`; the coefficients stay on the device between them."""
        a = self._project(draw, self.device.array(g))
        return self._host(a), self._host(self._reconstruct(draw, a))

    def set_threads(self, n: int) -> int:
        """One thread of the host; those of the device cannot be chosen."""
        return 1

    def _host(self, x: Any) -> NDArray[Any]:
        """What is on the device."""
        return np.asarray(self.device.host(x))

    def _each(self, name: str, count: int, *arguments: Any) -> None:
        """A kernel with a thread for each of `count` things, or as many threads as the device starts."""
        blocks = min(ceiling(count, self.device.threads), self.device.most_blocks)
        self.device.launch(name, blocks, *arguments)

    def _zeros(self, count: int) -> Any:
        """Zeros on the device."""
        x = self.device.empty(count, F32)
        self._each("clear", count, x)
        return x

    def _plan(self, draw: Draw) -> tuple[Any, Any]:
        """Keys and sizes of the compartments on the device."""
        return self.device.array(draw.keys), self.device.array(np.array(draw.plan.sizes, dtype=np.int64))

    def _project(self, draw: Draw, g: Any) -> Any:
        """Coefficients on the device."""
        if draw.family.name == "srht":
            return self._srht_project(draw, g)
        plan = draw.plan
        shape = shape_of(draw.family)
        a = self.device.empty(draw.plan.d, F32)
        q, jobs = self._dot_jobs(draw)
        sums = self.device.empty((q.size, 2), np.float64)
        self.device.launch(
            f"dot_{shape.kernels}", q.size, shape.code, self.device.array(jobs), *self._plan(draw), g, sums
        )
        begins = self.device.array(np.searchsorted(q, np.arange(plan.d + 1)))
        self._each("finish", plan.d, begins, sums, self._divisors(draw), a)
        return a

    def _dot_jobs(self, draw: Draw) -> tuple[Table, Table]:
        """Directions in a few parts each: which direction a part is of, and the jobs."""
        plan, unit = draw.plan, shape_of(draw.family).dotted * self.device.threads
        counts = block_counts(draw)[plan.owners]
        parts = ceiling(ceiling(counts, unit), self.device.parts) * unit
        q, first = cut(counts, parts)
        k, last = plan.owners[q], np.minimum(first + parts[q], counts[q])
        return q, table(k, first, last, q - plan.layout.offsets[k], plan.layout.bounds[k])

    def _divisors(self, draw: Draw) -> Any:
        """N of each direction, or 0 where it is its own square, on the device."""
        return self.device.array(draw.divisors[draw.plan.owners])

    def _reconstruct(self, draw: Draw, a: Any) -> Any:
        """The update on the device."""
        if draw.family.name == "srht":
            return self._srht_reconstruct(draw, a)
        plan, u = draw.plan, self._zeros(draw.plan.D)
        numbers, at = np.array(plan.dims), plan.layout.offsets[:-1]
        self._rebuild(draw, np.arange(plan.K), (0, numbers, at, plan.layout.bounds[:-1]), a, u)
        return u

    def _rebuild(self, draw: Draw, owners: Table, columns: tuple[Any, ...], a: Any, u: Any) -> None:
        """Updates of the compartments `owners`; columns are the first direction of each, how many, and where their
        coefficients and the update begin."""
        shape = shape_of(draw.family)
        which, first = cut(block_counts(draw)[owners], max(1, int(shape.rebuilt * self.device.threads)))
        jobs = table(owners[which], first, *(np.broadcast_to(column, owners.shape)[which] for column in columns))
        self.device.launch(
            f"rebuild_{shape.kernels}", which.size, shape.code, self.device.array(jobs), *self._plan(draw), a, u
        )

    # The structured family. All compartments lie one after the other in one vector, each padded to a power of two.

    def _places(self, draw: Draw) -> Table:
        """Where the row of each direction is in the padded vector: words from the device, the smallest by the host."""
        plan, begins = draw.plan, padded_bounds(draw.plan)
        sizes, words = np.diff(begins), self.device.empty(int(begins[-1]), np.uint32)
        k, first = cut(ceiling(sizes, 2), self.device.threads)
        jobs = self.device.array(table(k, first, begins[k], sizes[k]))
        self.device.launch("srht_words", k.size, jobs, self.device.array(draw.keys), words)
        parts = np.split(self.device.host(words), begins[1:-1])
        rows = (np.sort(np.argsort(part, kind="stable")[:d]) for part, d in zip(parts, plan.dims, strict=True))
        return np.concatenate([begin + row for begin, row in zip(begins[:-1], rows, strict=True)])

    def _signs(self, draw: Draw, x: Any, x_begins: Table, y: Any, y_begins: Table) -> None:
        """y_j = s_j x_j in every compartment, which may lie at different places in x and y."""
        k, first = cut(np.array(draw.plan.sizes), self.device.span)
        jobs = table(k, first, x_begins[k], y_begins[k])
        self.device.launch("srht_signs", k.size, self.device.array(jobs), *self._plan(draw), x, y)

    def _transform(self, plan: Plan, x: Any) -> None:
        """H x of every compartment: the first levels in shared memory, then one launch a level; large ones first."""
        sizes = np.array([padded(size) for size in plan.sizes])
        order = np.argsort(-sizes, kind="stable")
        which, first = cut(sizes[order], self.device.span)
        lengths = sizes[order][which]
        jobs = self.device.array(table(padded_bounds(plan)[order][which], first, lengths))
        self.device.launch("srht_tile", which.size, jobs, x)
        h = self.device.span
        while h < lengths[0]:
            self.device.launch("srht_level", int(np.sum(lengths > h)), h, jobs, x)
            h *= 2

    def _srht_project(self, draw: Draw, g: Any) -> Any:
        """Signs, transform, and the rows of the result."""
        plan, begins = draw.plan, padded_bounds(draw.plan)
        x, a = self._zeros(int(begins[-1])), self.device.empty(plan.d, F32)
        self._signs(draw, g, plan.layout.bounds, x, begins)
        self._transform(plan, x)
        self._each("srht_pick", plan.d, self.device.array(self._places(draw)), self._divisors(draw), x, a)
        return a

    def _srht_reconstruct(self, draw: Draw, a: Any) -> Any:
        """The coefficients at their rows, transform, signs."""
        plan, begins = draw.plan, padded_bounds(draw.plan)
        x, u = self._zeros(int(begins[-1])), self.device.empty(plan.D, F32)
        self._each("srht_place", plan.d, self.device.array(self._places(draw)), a, x)
        self._transform(plan, x)
        self._signs(draw, x, begins, u, plan.layout.bounds)
        return u

    def _srht_directions(self, draw: Draw, chosen: Table, owners: Table, begins: Table, phi: Any) -> None:
        """Chosen directions of `srht`, entry by entry."""
        plan = draw.plan
        row = self._places(draw)[chosen] - padded_bounds(plan)[owners]
        which, first = cut(np.array(plan.sizes)[owners], self.device.span)
        jobs = self.device.array(table(owners[which], first, row[which], begins[which]))
        self.device.launch("srht_rows", which.size, jobs, *self._plan(draw), phi)


def padded_bounds(plan: Plan) -> Table:
    """Where each compartment begins in the vector of padded ones, and its length at the end."""
    return np.array([0, *np.cumsum([padded(size) for size in plan.sizes])], dtype=np.int64)
