"""Compartments: how the flat vector of D parameters is cut into ranges that each have directions of their own.

A `Plan` is a list of (size, d). The functions here make the usual ones; d is either given for each compartment
(`d=`, one number for all or a list) or split from a `total=` in proportion to size.
Specification: docs/specification.md, section 3. Tests: tests/test_compartments.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from rbd_ref._check import integer, several
from rbd_ref._types import TWO_32, Indices


class Layout(NamedTuple):
    """A plan as kernels take it: compartment k covers the elements bounds[k] .. bounds[k + 1] - 1 and has the
    coefficients offsets[k] .. offsets[k + 1] - 1."""

    bounds: Indices
    offsets: Indices


@dataclass(frozen=True)
class Plan:
    """Compartment k covers `sizes[k]` elements, after those before it, with `dims[k]` directions.

    Args:
        sizes: elements of each compartment, 1 <= size < 2^32.
        dims: directions of each compartment, 1 <= d <= size.

    Examples:
        >>> from rbd_ref.spec.compartments import Plan
        >>> plan = Plan(sizes=(6, 4), dims=(2, 1))
        >>> (plan.D, plan.d, plan.K, plan.elements(1), plan.directions(1))
        (10, 3, 2, slice(6, 10, None), slice(2, 3, None))
    """

    sizes: tuple[int, ...]
    dims: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or len(self.sizes) != len(self.dims):
            raise ValueError(
                f"a plan has {len(self.sizes)} sizes and {len(self.dims)} numbers of directions, "
                "expected as many of one as of the other and at least one: give each compartment a size and a d"
            )
        for k, (size, d) in enumerate(zip(self.sizes, self.dims, strict=True)):
            integer(f"the size of compartment {k}", size, 1, TWO_32)
            if not 1 <= integer(f"d of compartment {k}", d, 0, TWO_32) <= size:
                raise ValueError(f"compartment {k} has d = {d}, expected 1 <= d <= {size}, its size: choose another d")

    @cached_property
    def _hash(self) -> int:
        return hash((self.sizes, self.dims))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def D(self) -> int:
        """Number of parameters."""
        return sum(self.sizes)

    @cached_property
    def d(self) -> int:
        """Number of directions, which is the number of coefficients."""
        return sum(self.dims)

    @cached_property
    def entries(self) -> int:
        """Number of entries of all directions, each counted over its compartment."""
        return sum(size * d for size, d in zip(self.sizes, self.dims, strict=True))

    @property
    def K(self) -> int:
        """Number of compartments."""
        return len(self.sizes)

    @cached_property
    def layout(self) -> Layout:
        """Where each compartment's elements and coefficients lie."""
        return Layout(*(np.array([0, *accumulate(counts)], dtype=np.int64) for counts in (self.sizes, self.dims)))

    @cached_property
    def size_array(self) -> Indices:
        """The sizes as an array."""
        return np.array(self.sizes, dtype=np.int64)

    @cached_property
    def owners(self) -> Indices:
        """The compartment of each direction of the plan."""
        return np.repeat(np.arange(self.K), self.dims)

    def elements(self, k: int) -> slice:
        """The elements of compartment k."""
        return slice(*self.layout.bounds[k : k + 2].tolist())

    def directions(self, k: int) -> slice:
        """The directions of compartment k, which are its coefficients."""
        return slice(*self.layout.offsets[k : k + 2].tolist())

    @cached_property
    def _halves(self) -> dict[int, tuple[Indices, list[int]]]:
        return {}

    def by_size(self, most: int) -> tuple[Indices, list[int]]:
        """The compartments with at most so many elements, and the others."""
        if most not in self._halves:
            small = self.size_array <= most
            self._halves[most] = np.flatnonzero(small), np.flatnonzero(~small).tolist()
        return self._halves[most]

    @cached_property
    def _tilings(self) -> dict[int, Indices]:
        return {}

    def tiles(self, length: int) -> Indices:
        """All compartments cut into tiles of `length` elements: (2, tiles), the compartment and the first element."""
        if length not in self._tilings:
            self._tilings[length] = self._tiles(length)
        return self._tilings[length]

    def _tiles(self, length: int) -> Indices:
        counts = -(-self.size_array // length)
        owners = np.repeat(np.arange(self.K), counts)
        before = np.repeat(np.cumsum(counts) - counts, counts)
        return np.stack([owners, (np.arange(owners.size) - before) * length])

    def locate(self, index: int) -> tuple[int, int]:
        """Compartment and number within it of a direction of the whole plan."""
        k = int(self.owners[index])
        return k, index - self.directions(k).start

    def __repr__(self) -> str:
        return f"Plan(D={self.D}, d={self.d}, compartments={self.K})"


def split(total: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """A total d in proportion to size: d_k is about total size_k / D.

    Each compartment gets its share rounded down, but 1 at least; then one more or one less where the share is missed by
    most (the first of equals) until the sum is right. All in integers.

    Args:
        total: how many directions, from the number of compartments up to D.
        sizes: elements of each compartment; D is their sum.

    Returns:
        d of each compartment, `total` in all.

    Examples:
        >>> from rbd_ref import compartments
        >>> compartments.split(10, [70, 20, 10, 1])
        (6, 2, 1, 1)
    """
    D = sum(sizes)
    total = integer("total", total, 0, D + 1)
    if total < len(sizes):
        raise ValueError(
            f"a total of {total} directions does not reach {len(sizes)} compartments, expected at least one each"
        )
    dims = [max(1, total * size // D) for size in sizes]
    change = 1 if sum(dims) <= total else -1

    def missed(k: int) -> tuple[int, int]:
        return change * (dims[k] * D - total * sizes[k]), k

    heap = [missed(k) for k in range(len(sizes)) if dims[k] + change >= 1]
    heapq.heapify(heap)
    for _ in range(abs(total - sum(dims))):
        _, k = heapq.heappop(heap)
        dims[k] += change
        if dims[k] + change >= 1:
            heapq.heappush(heap, missed(k))
    return tuple(dims)


def _plan(sizes: Iterable[Any], d: Any, total: Any) -> Plan:
    """The plan of these sizes with `d` for each compartment, or a `total` split among them."""
    whole = tuple(integer(f"the size of compartment {k}", size, 1, TWO_32) for k, size in enumerate(sizes))
    if (d is None) == (total is None):
        raise ValueError(
            "d and total are both given or both missing, expected one: d for each compartment, or total to split"
        )
    if total is not None:
        return Plan(whole, split(total, whole))
    if isinstance(d, (Sequence, np.ndarray)) and not isinstance(d, str):
        return Plan(whole, tuple(integer("d", value, 0, TWO_32) for value in d))
    return Plan(whole, (integer("d", d, 1, TWO_32),) * len(whole))


def whole(D: int, d: int) -> Plan:
    """One compartment.

    Args:
        D: number of parameters.
        d: number of directions, 1 <= d <= D.

    Returns:
        A `Plan`.

    Examples:
        >>> from rbd_ref import compartments
        >>> compartments.whole(1000, d=10)
        Plan(D=1000, d=10, compartments=1)
    """
    return _plan([D], d, None)


def even(D: int, k: int, d: int | Sequence[int] | None = None, total: int | None = None) -> Plan:
    """k compartments whose sizes differ by at most one, the larger ones first.

    Args:
        D: number of parameters.
        k: number of compartments, 1 <= k <= D.
        d: directions of each compartment, one number for all or a list; or
        total: directions of all together, which `split` divides.

    Returns:
        A `Plan`.

    Examples:
        >>> from rbd_ref import compartments
        >>> plan = compartments.even(10, k=3, total=5)
        >>> (plan.sizes, plan.dims)
        ((4, 3, 3), (2, 2, 1))
    """
    D = integer("D", D, 1, TWO_32)
    k = integer("k", k, 1, D + 1)
    quotient, rest = divmod(D, k)
    return _plan([quotient + 1] * rest + [quotient] * (k - rest), d, total)


def _tensors(layers: Any) -> list[list[int]]:
    """The sizes of the tensors of each layer; a layer that is a number has one tensor."""
    parts = [layer if isinstance(layer, Sequence) else [layer] for layer in several("layers", layers)]
    return [
        [integer(f"the size of tensor {t} of layer {number}", size, 0, TWO_32) for t, size in enumerate(part)]
        for number, part in enumerate(parts)
    ]


def by_layer(layers: Sequence[Any], d: int | Sequence[int] | None = None, total: int | None = None) -> Plan:
    """One compartment for each layer.

    Args:
        layers: for each layer its size, or the list of its tensors' sizes.
        d: directions of each compartment, one number for all or a list; or
        total: directions of all together, which `split` divides.

    Returns:
        A `Plan`.

    Examples:
        >>> from rbd_ref import compartments
        >>> compartments.by_layer([[784 * 128, 128], [128 * 10, 10]], d=5).sizes
        (100480, 1290)
    """
    return _plan([sum(layer) for layer in _tensors(layers)], d, total)


def by_tensor(layers: Sequence[Any], d: int | Sequence[int] | None = None, total: int | None = None) -> Plan:
    """One compartment for each tensor of each layer.

    Args:
        layers: for each layer its size, or the list of its tensors' sizes.
        d: directions of each compartment, one number for all or a list; or
        total: directions of all together, which `split` divides.

    Returns:
        A `Plan`.

    Examples:
        >>> from rbd_ref import compartments
        >>> compartments.by_tensor([[784 * 128, 128], [128 * 10, 10]], d=5).sizes
        (100352, 128, 1280, 10)
    """
    return _plan([size for layer in _tensors(layers) for size in layer], d, total)


def proportional(sizes: Sequence[int], reduction: float, floor: int = 1) -> Plan:
    """d_k = size_k / reduction rounded down, but `floor` at least and the size at most.

    Args:
        sizes: elements of each compartment.
        reduction: how many elements share a direction, 1 or more.
        floor: the least d of a compartment.

    Returns:
        A `Plan`.

    Examples:
        >>> from rbd_ref import compartments
        >>> compartments.proportional([1000, 250, 3], reduction=100).dims
        (10, 2, 1)
    """
    if not 1 <= reduction < float("inf"):
        raise ValueError(f"reduction is {reduction}, expected a number from 1 up: d is the size divided by it")
    floor = integer("floor", floor, 1, TWO_32)
    checked = [integer(f"the size of compartment {k}", size, 1, TWO_32) for k, size in enumerate(sizes)]
    return _plan(checked, [min(size, max(floor, int(size / reduction))) for size in checked], None)


def explicit(D: int, ranges: Sequence[tuple[int, int, int]]) -> Plan:
    """Compartments (start, stop, d) in order, which together cover 0 .. D - 1.

    Args:
        D: number of parameters.
        ranges: start, stop and number of directions of each compartment.

    Returns:
        A `Plan`.

    Examples:
        >>> from rbd_ref import compartments
        >>> plan = compartments.explicit(10, [(0, 7, 2), (7, 10, 1)])
        >>> (plan.sizes, plan.dims)
        ((7, 3), (2, 1))
    """
    end = 0
    for start, stop, _ in ranges:
        if start != end or stop <= start:
            remedy = "close the gap" if start > end else "they may not overlap" if start < end else "leave it out"
            raise ValueError(
                f"a compartment is {start} .. {stop}, expected it to start at {end} and end after that: {remedy}"
            )
        end = stop
    if end != D:
        raise ValueError(f"the compartments end at {end}, expected D = {D}: cover every parameter once")
    return _plan([stop - start for start, stop, _ in ranges], [d for _, _, d in ranges], None)
