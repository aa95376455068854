"""The operations on a basis in torch: compartments of one size and d that follow each other are worked on together.

Directions are made a few at a time, `TILE` entries or one direction, so memory is O(D + d). Every step treats elements
on their own; sums are taken by a fixed tree of such steps. So the number of threads changes no bit, nor does the
device as far as it rounds float32 sums and products correctly.
Specification: docs/specification.md, sections 5 to 7.
Tests: tests/test_torch_backend.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.hadamard import padded
from rbd_ref.spec.operations import LEAST_COEFFICIENT, Draw
from rbd_torch import hadamard
from rbd_torch.families import TILE, Lines
from rbd_torch.makers import Makers


def tree_sum(x: Tensor) -> Tensor:
    """The sums over the last axis, which are written over x: the upper half is added to the lower until one is left."""
    n = x.shape[-1]
    while n > 1:
        half = -(-n // 2)
        x[..., : n - half].add_(x[..., half:n])
        n = half
    return x[..., 0]


def coefficients(inner: Tensor, divisor: float | Tensor) -> Tensor:
    """inner / N, and +0 where it is below 2^-64."""
    a = inner / divisor
    return a.masked_fill_(a.abs() < float(LEAST_COEFFICIENT), 0.0)


def add(u: Tensor, a: Tensor, phi: Tensor) -> None:
    """u (C, size) <- u + a_r phi_r for r = 0, 1, ... of a (C, r) and phi (C, r, size), which is written over."""
    phi.mul_(a[..., None])
    for r in range(phi.shape[1]):
        u.add_(phi[:, r])


def add_sparse(u: Tensor, a: Tensor, places: Tensor, values: Tensor) -> None:
    """`add` of directions that are zero but at `places` (C, r, windows), of which no two in a direction are equal."""
    values.mul_(a[..., None])
    for r in range(values.shape[1]):
        u.scatter_add_(1, places[:, r], values[:, r])


@dataclass(frozen=True)
class Stack:
    """Compartments of one size and d that follow each other: their keys (2, C), their parts of the gradient (C, size),
    of the coefficients (C, d) and of the update (C, size). Without g the coefficients are given; u may be missing."""

    lines: Lines
    divisor: float
    a: Tensor
    g: Tensor | None
    u: Tensor | None

    def chosen(self, first: int, count: int) -> Lines:
        """`count` directions of each compartment from `first` on, compartment by compartment."""
        C = self.a.shape[0]
        numbers = torch.arange(first, first + count, dtype=torch.int32, device=self.a.device).repeat(C)
        return replace(self.lines, keys=self.lines.keys.repeat_interleave(count, dim=1), numbers=numbers)

    def run(self) -> None:
        """g into a, if there is g, then a into u, if there is u."""
        name = self.lines.family.name
        if name == "srht":
            self._srht()
            return
        step = self._sparse if name == "sparse" else self._dense
        C, d = self.a.shape
        for first in range(0, d, at_once := max(1, TILE // (C * self.lines.share))):
            count = min(at_once, d - first)
            step(self.chosen(first, count), self.a[:, first : first + count])

    def _dense(self, lines: Lines, a: Tensor) -> None:
        """Some directions, made once."""
        phi = lines.entries().view(*a.shape, -1)
        if self.g is not None:
            inner = tree_sum(phi * self.g[:, None])
            a.copy_(coefficients(inner, self.divisor or tree_sum(phi * phi)))
        if self.u is not None:
            add(self.u, a, phi)

    def _sparse(self, lines: Lines, a: Tensor) -> None:
        """Some directions by the places where they are not zero."""
        places, values = (x.view(*a.shape, -1) for x in lines.sparse())
        if self.g is not None:
            found = self.g.gather(1, places.flatten(1)).view(values.shape)
            a.copy_(coefficients(tree_sum(found.mul_(values)), self.divisor))
        if self.u is not None:
            add_sparse(self.u, a, places, values)

    def _srht(self) -> None:
        """All directions by two transforms."""
        chosen = hadamard.rows(self.lines, self.a.shape[1])
        if self.g is not None:
            self.a.copy_(coefficients(hadamard.analyse(self.lines, chosen, self.g), self.divisor))
        if self.u is not None:
            self.u.add_(hadamard.synthesise(self.lines, chosen, self.a))


def together(plan: Plan) -> Iterator[slice]:
    """Compartments in order, those of one size and d together that follow each other and have room for a direction
    each in a tile."""
    first = 0
    for (size, _), group in groupby(zip(plan.sizes, plan.dims, strict=True)):
        last = first + len(list(group))
        most = max(1, TILE // padded(size))
        for start in range(first, last, most):
            yield slice(start, min(start + most, last))
        first = last


def lines_of(draw: Draw, k: int, keys: Tensor, numbers: Tensor, makers: Makers) -> Lines:
    """Directions with these keys and numbers, of compartments as large as k."""
    return Lines(draw.family, draw.plan.sizes[k], keys, numbers, makers)


def run(draw: Draw, keys: Tensor, makers: Makers, a: Tensor, g: Tensor | None, u: Tensor | None) -> None:
    """`Stack.run` of all compartments: a (d) is written if there is g (D), and u (D), which is zero, if there is u."""
    bounds, offsets = (x.tolist() for x in draw.plan.layout)
    for part in together(draw.plan):
        k, C = part.start, part.stop - part.start
        elements, numbers = slice(bounds[k], bounds[part.stop]), torch.zeros(C, dtype=torch.int32, device=a.device)
        Stack(
            lines_of(draw, k, keys[:, part], numbers, makers),
            float(draw.divisors[k]),
            a[offsets[k] : offsets[part.stop]].view(C, -1),
            None if g is None else g[elements].view(C, -1),
            None if u is None else u[elements].view(C, -1),
        ).run()


def directions(draw: Draw, keys: Tensor, makers: Makers, indices: Sequence[int]) -> Tensor:
    """phi (len(indices), D): those of one size and d together, a tile at a time."""
    phi = torch.zeros(len(indices), draw.plan.D, dtype=torch.float32, device=keys.device)
    alike: dict[tuple[int, int], list[int]] = {}
    for row, index in enumerate(indices):
        k = draw.plan.owners[index]
        alike.setdefault((draw.plan.sizes[k], draw.plan.dims[k]), []).append(row)
    for (size, _), places in alike.items():
        most = max(1, TILE // padded(size))
        for first in range(0, len(places), most):
            some = places[first : first + most]
            found = [draw.plan.locate(indices[row]) for row in some]
            for row, (k, _), line in zip(some, found, entries(draw, keys, makers, found), strict=True):
                phi[row, draw.plan.elements(k)] = line
    return phi


def entries(draw: Draw, keys: Tensor, makers: Makers, found: list[tuple[int, int]]) -> Tensor:
    """The entries (n, size) of directions that are given by compartment, all of one size and d, and number."""
    compartments = torch.tensor([k for k, _ in found], device=keys.device)
    numbers = torch.tensor([i for _, i in found], dtype=torch.int32, device=keys.device)
    k = found[0][0]
    lines = lines_of(draw, k, keys[:, compartments], numbers, makers)
    if draw.family.name == "srht":
        return hadamard.entries(lines, draw.plan.dims[k])
    if draw.family.name == "sparse":
        places, values = lines.sparse()
        return values.new_zeros(len(found), lines.size).scatter_(1, places, values)
    return lines.entries()
