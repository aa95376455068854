"""`IpuBackend`: the host's side. It cuts a basis into cells of fixed shape, runs the graphs, and puts results together.

A compartment is cut into tiles; a *lane* is one tile of one compartment. A graph makes a few directions of a few lanes
at a time, so memory is O(D + d) and a handful of graphs serves every plan. The host does what a graph of fixed shape
does badly: keys, the choice of `srht`'s rows, the sums over tiles in binary64 and the quotient.
Tests: tests/test_ipu_backend.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rbd_ipu import device
from rbd_ref._types import F32, Float32Array, Words
from rbd_ref.backend import Capabilities
from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.hadamard import ROW_COUNTER, padded
from rbd_ref.spec.operations import Draw, flush

SMALL_TILE, LARGE_TILE = 256, 4096  # elements of a lane; multiples of every block
SMALL_SIZE = 1024  # compartments up to this size are cut into small tiles
WORDS = (512, 16384)  # counters that a graph takes at once
Integers = NDArray[np.int64]
Inputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Lane:
    """Tile `first` .. `first` + `count` - 1 of the elements of compartment k, counted from its start."""

    k: int
    first: int
    count: int


def lanes_of(plan: Plan, k: int, tile: int) -> list[Lane]:
    """The tiles of one compartment, in order."""
    size = plan.sizes[k]
    return [Lane(k, first, min(tile, size - first)) for first in range(0, size, tile)]


def tile_of(size: int) -> int:
    """How long the tiles of a compartment are."""
    return SMALL_TILE if size <= SMALL_SIZE else LARGE_TILE


def place(plan: Plan, lane: Lane) -> slice:
    """Where a lane lies in the whole vector."""
    start = int(plan.layout.bounds[lane.k]) + lane.first
    return slice(start, start + lane.count)


def spread(plan: Plan, lanes: Sequence[Lane], shape: tuple[int, ...], x: Float32Array) -> Float32Array:
    """The lanes' parts of x as rows of `shape`, zero where a lane is shorter."""
    rows = np.zeros(shape, dtype=F32)
    for row, lane in zip(rows.reshape(-1, shape[-1]), lanes, strict=False):
        row[: lane.count] = x[place(plan, lane)]
    return rows


def windows(draw: Draw, k: Integers) -> dict[str, Integers]:
    """For each compartment k the length of the shorter windows of `sparse`, and how many are longer by one."""
    sizes = np.array(draw.plan.sizes)[k]
    count = -(-sizes // draw.family.window)
    return {"length": sizes // count, "longer": sizes % count}


def transform_shape(size: int) -> tuple[int, int]:
    """Lanes and length of the transform for a compartment of `srht`.

    A longer transform than the least power of two has the same numbers in its first part: zeros are added to them.
    """
    n = padded(size)
    return (8, SMALL_TILE) if n <= SMALL_TILE else (1, max(n, LARGE_TILE))


class IpuBackend:
    """A basis by graphs in PopART's dialect, run by what RBD_IPU_RUNTIME names: onnxruntime, reference or popart."""

    name: ClassVar[str] = "ipu"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self) -> None:
        self._load = device.runtime(os.environ.get(device.VARIABLE, device.DEFAULT))
        from rbd_ipu import graphs  # not before it is known that onnx is here

        self._graphs = graphs
        self._programs: dict[tuple[Any, ...], device.Program] = {}
        self._shapes = {tile: graphs.Shape(4, lanes, tile) for tile, lanes in ((SMALL_TILE, 8), (LARGE_TILE, 4))}

    def _run(self, model: str, arguments: tuple[Any, ...], inputs: Inputs) -> list[np.ndarray]:
        """The outputs of a graph, which is built and loaded the first time."""
        if (model, *arguments) not in self._programs:
            built = getattr(self._graphs, f"{model}_model")(*arguments)
            self._programs[model, *arguments] = self._load(built)
        return self._programs[model, *arguments](inputs)

    # Words and cells.

    def words(self, key: Words, counter: Words) -> Words:
        """Any number of counters, a few graphs' worth at a time."""
        return self._words(np.broadcast_to(key[:, None], counter.shape), counter)

    def _words(self, keys: Words, counter: Words) -> Words:
        """The words of keys (2, n) and counters (2, n)."""
        out = np.empty(counter.shape, dtype=np.uint32)
        done = 0
        total = counter.shape[1]
        while done < total:
            n = WORDS[0] if total - done <= WORDS[0] else WORDS[1]
            part = np.zeros((4, n), dtype=np.uint32)
            here = slice(done, min(done + n, total))
            used = here.stop - done
            part[:2, :used], part[2:, :used] = keys[:, here], counter[:, here]
            x = self._run("words", (n,), dict(zip(("k0", "k1", "c0", "c1"), part, strict=True)))
            out[:, here] = [words[:used] for words in x]
            done = here.stop
        return out

    def _cells(self, draw: Draw, tile: int, k: Any, i: Any, first: Any) -> Inputs:
        """The inputs that say which cells to make: compartment, direction and first element of each."""
        shape = self._shapes[tile].cells[:2]
        k, i, first = (np.broadcast_to(np.asarray(each, dtype=np.int64), shape) for each in (k, i, first))
        said = {"k0": draw.keys[0, k], "k1": draw.keys[1, k], "i": i, "first": first}
        if draw.family.name == "sparse":
            said |= windows(draw, k)
        return {name: np.ascontiguousarray(array[..., None], dtype=np.uint32) for name, array in said.items()}

    def _groups(self, plan: Plan) -> Iterator[tuple[int, list[Lane]]]:
        """All lanes of a plan with the length of their tiles, as many at a time as a graph takes."""
        for tile, shape in self._shapes.items():
            chosen = (k for k, size in enumerate(plan.sizes) if tile_of(size) == tile)
            lanes = [lane for k in chosen for lane in lanes_of(plan, k, tile)]
            for start in range(0, len(lanes), shape.lanes):
                yield tile, lanes[start : start + shape.lanes]

    def _blocks(self, draw: Draw, tile: int, lanes: list[Lane]) -> Iterator[tuple[int, Inputs]]:
        """The directions of a group of lanes, a few at a time: the first one's number, and the cells."""
        shape, plan = self._shapes[tile], draw.plan
        spare = [Lane(lanes[0].k, 0, 0)] * (shape.lanes - len(lanes))
        k, first = ([getattr(lane, name) for lane in lanes + spare] for name in ("k", "first"))
        for i in range(0, max(plan.dims[lane.k] for lane in lanes), shape.directions):
            yield i, self._cells(draw, tile, k, i + np.arange(shape.directions)[:, None], first)

    # Directions.

    def directions(self, draw: Draw, indices: Sequence[int]) -> Float32Array:
        """Chosen rows of phi, zero outside their compartment."""
        phi = np.zeros((len(indices), draw.plan.D), dtype=F32)
        located = [draw.plan.locate(index) for index in indices]
        if draw.family.name == "srht":
            rows = self._rows(draw) if located else []
            for line, (k, i) in zip(phi, located, strict=True):
                self._synthesise(draw, {k: (rows[k][i : i + 1], np.ones(1, dtype=F32))}, line)
            return phi
        for tile in self._shapes:
            here = [(n, k, i) for n, (k, i) in enumerate(located) if tile_of(draw.plan.sizes[k]) == tile]
            self._fill(draw, tile, [(n, i, lane) for n, k, i in here for lane in lanes_of(draw.plan, k, tile)], phi)
        return phi

    def _fill(self, draw: Draw, tile: int, cells: list[tuple[int, int, Lane]], phi: Float32Array) -> None:
        """Write cells, each a row of phi, a direction of its compartment, and a lane."""
        shape = self._shapes[tile]
        room = shape.directions * shape.lanes
        for start in range(0, len(cells), room):
            part = cells[start : start + room]
            full = part + part[:1] * (room - len(part))
            k, i, first = np.array([(lane.k, i, lane.first) for _, i, lane in full]).T.reshape(3, -1, shape.lanes)
            (made,) = self._run("directions", (draw.family.name, shape), self._cells(draw, tile, k, i, first))
            for (n, _, lane), row in zip(part, made.reshape(-1, tile), strict=False):
                phi[n, place(draw.plan, lane)] = row[: lane.count]

    # Operations.

    def project(self, draw: Draw, g: Float32Array) -> Float32Array:
        """a_i = <phi_i, g> / N_i: tiles are summed in the graphs, their sums here, in binary64 and in order."""
        sums = np.zeros((2, draw.plan.d))
        if draw.family.name == "srht":
            self._analyse(draw, g, sums[0])
        else:
            for tile, lanes in self._groups(draw.plan):
                self._measure(draw, tile, lanes, g, sums)
        divisors = np.repeat(draw.divisors, draw.plan.dims)
        with np.errstate(over="ignore"):
            return flush((sums[0] / np.where(divisors == 0, sums[1], divisors)).astype(F32))

    def _measure(self, draw: Draw, tile: int, lanes: list[Lane], g: Float32Array, sums: NDArray[np.float64]) -> None:
        """Add a few lanes' part of <phi, g> and, where it is wanted, of <phi, phi> to `sums`."""
        shape, squares = self._shapes[tile], bool(draw.divisors[0] == 0)
        also: Inputs = {"g": spread(draw.plan, lanes, (1, shape.lanes, tile), g)}
        if squares:
            counts = [lane.count for lane in lanes] + [0] * (shape.lanes - len(lanes))
            also["count"] = np.array(counts, dtype=F32).reshape(1, -1, 1)
        for i, cells in self._blocks(draw, tile, lanes):
            found = self._run("project", (draw.family.name, shape, squares), cells | also)
            for row, result in zip(sums, found, strict=False):
                for c, lane in enumerate(lanes):
                    part = row[draw.plan.directions(lane.k)][i : i + shape.directions]
                    part += result[: part.size, c, 0]

    def reconstruct(self, draw: Draw, a: Float32Array) -> Float32Array:
        """u = sum_i a_i phi_i, from i = 0 up."""
        a, u = flush(a), np.zeros(draw.plan.D, dtype=F32)
        if draw.family.name == "srht":
            rows = self._rows(draw)
            self._synthesise(draw, {k: (rows[k], a[draw.plan.directions(k)]) for k in range(draw.plan.K)}, u)
            return u
        for tile, lanes in self._groups(draw.plan):
            self._rebuild(draw, tile, lanes, a, u)
        return u

    def _rebuild(self, draw: Draw, tile: int, lanes: list[Lane], a: Float32Array, u: Float32Array) -> None:
        """The update of a few lanes; directions that a lane does not have get the coefficient 0, which adds nothing."""
        shape = self._shapes[tile]
        total = np.zeros((1, shape.lanes, tile), dtype=F32)
        for i, cells in self._blocks(draw, tile, lanes):
            given = np.zeros(shape.cells, dtype=F32)
            for c, lane in enumerate(lanes):
                part = a[draw.plan.directions(lane.k)][i : i + shape.directions]
                given[: part.size, c, 0] = part
            (total,) = self._run("reconstruct", (draw.family.name, shape), cells | {"a": given, "u": total})
        for row, lane in zip(total[0], lanes, strict=False):
            u[place(draw.plan, lane)] = row[: lane.count]

    def descend(self, draw: Draw, g: Float32Array) -> tuple[Float32Array, Float32Array]:
        """`project`, then `reconstruct`: directions are made twice, as they are cheaper to make than to send."""
        a = self.project(draw, g)
        return a, self.reconstruct(draw, a)

    # The structured family `srht`.

    def _rows(self, draw: Draw) -> list[Integers]:
        """The rows of each compartment: those with the smallest words, the lower row first among equals, ascending."""
        sizes = np.array([padded(size) for size in draw.plan.sizes])
        counts = -(-sizes // 2)
        ends = np.cumsum(counts)
        block = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        counter = np.stack([np.full_like(block, ROW_COUNTER), block]).astype(np.uint32)
        x = self._words(np.repeat(draw.keys, counts, axis=1), counter).T.reshape(-1)
        starts = 2 * (ends - counts)
        return [
            np.sort(np.argsort(x[start : start + n], kind="stable")[:d])
            for start, n, d in zip(starts, sizes, draw.plan.dims, strict=True)
        ]

    def _transforms(self, draw: Draw, chosen: Sequence[int]) -> Iterator[tuple[list[int], tuple[int, int], Inputs]]:
        """Compartments a few at a time, with the lanes and length of their transform, and their keys as inputs."""
        shapes = {k: transform_shape(draw.plan.sizes[k]) for k in chosen}
        for shape in sorted(set(shapes.values())):
            same = [k for k in chosen if shapes[k] == shape]
            for start in range(0, len(same), shape[0]):
                part = same[start : start + shape[0]]
                cells: Inputs = {n: np.zeros((1, shape[0], 1), dtype=np.uint32) for n in self._graphs.CELL_INPUTS}
                cells["k0"][0, : len(part), 0], cells["k1"][0, : len(part), 0] = draw.keys[:, part]
                yield part, shape, cells

    def _analyse(self, draw: Draw, g: Float32Array, inner: NDArray[np.float64]) -> None:
        """<phi_i, g> of every direction: signs and transform in the graph, the rows taken here."""
        rows = self._rows(draw)
        for part, shape, cells in self._transforms(draw, range(draw.plan.K)):
            x = spread(draw.plan, [Lane(k, 0, draw.plan.sizes[k]) for k in part], shape, g)
            (y,) = self._run("srht", (*shape, True), cells | {"x": x})
            for line, k in zip(y, part, strict=False):
                inner[draw.plan.directions(k)] = line[rows[k]]

    def _synthesise(self, draw: Draw, given: dict[int, tuple[Integers, Float32Array]], u: Float32Array) -> None:
        """s (H z) of compartments with given rows and coefficients into u, which is zero: adding leaves no -0."""
        for part, shape, cells in self._transforms(draw, list(given)):
            z = np.zeros(shape, dtype=F32)
            for line, k in zip(z, part, strict=False):
                rows, a = given[k]
                line[rows] = a
            (y,) = self._run("srht", (*shape, False), cells | {"x": z})
            for line, k in zip(y, part, strict=False):
                u[draw.plan.elements(k)] += line[: draw.plan.sizes[k]]

    def set_threads(self, n: int) -> int:
        """There is one thread, whatever n is."""
        return 1
