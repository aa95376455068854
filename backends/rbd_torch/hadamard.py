"""The family `srht` on tensors: signs, rows and the Walsh-Hadamard transform, of many compartments at once.

The specification orders the levels of the transform and so every rounding, but not where numbers lie meanwhile: here
they are transposed once on the way, so that no level works on neighbours closer than about sqrt(n), which is slow.
Specification: docs/specification.md, section 4.6.
Tests: tests/test_torch_backend.py.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rbd_ref.spec.families import Family
from rbd_ref.spec.hadamard import ROW_COUNTER, SIGN_COUNTER, padded
from rbd_torch.families import Lines, interleave
from rbd_torch.words import SIGN


def signs(lines: Lines) -> Tensor:
    """s (n, size) of each line's compartment."""
    numbers = torch.full_like(lines.numbers, SIGN_COUNTER)
    return replace(lines, family=Family("rademacher"), numbers=numbers).entries()


def rows(lines: Lines, d: int) -> Tensor:
    """The rows (n, d) of each line's compartment: those with the d smallest words, ascending. The words are compared
    together with their rows, so no two are equal; turning bit 31 orders int32 as unsigned numbers."""
    n = padded(lines.size)
    numbers = torch.full_like(lines.numbers, ROW_COUNTER)
    words = interleave(replace(lines, numbers=numbers).blocks(0, -(-n // 2)))[:, :n]
    ordered = ((words ^ SIGN).long() << 32) + torch.arange(n, device=words.device)
    return torch.topk(ordered, d, dim=1, largest=False, sorted=False).indices.sort(dim=1).values


def levels(x: Tensor) -> Tensor:
    """The levels 1, 2, 4, ... of the transform along the middle one of three axes."""
    h = x.shape[2]
    while h < x.shape[1] * x.shape[2]:
        pair = x.reshape(-1, 2, h)
        after = torch.empty_like(pair)
        torch.add(pair[:, 0], pair[:, 1], out=after[:, 0])
        torch.sub(pair[:, 0], pair[:, 1], out=after[:, 1])
        x, h = after.view(x.shape), 2 * h
    return x


def transform(x: Tensor) -> Tensor:
    """H x of each line, of a power of two: the levels below about its root with the line transposed, then the rest."""
    n = x.shape[1]
    low = 1 << (n.bit_length() // 2)
    narrow = levels(x.view(-1, n // low, low).transpose(1, 2).contiguous())
    return levels(narrow.transpose(1, 2).contiguous()).view(x.shape)


def analyse(lines: Lines, chosen: Tensor, g: Tensor) -> Tensor:
    """<phi_i, g> (n, d) of the chosen rows: signs, transform, and those rows of the result."""
    x = g.new_zeros(len(g), padded(lines.size))
    torch.mul(signs(lines), g, out=x[:, : lines.size])
    return transform(x).gather(1, chosen)


def synthesise(lines: Lines, chosen: Tensor, a: Tensor) -> Tensor:
    """sum_i a_i phi_i (n, size) of the chosen rows: the coefficients at their rows, transform, signs."""
    z = a.new_zeros(len(a), padded(lines.size)).scatter_(1, chosen, a)
    return transform(z)[:, : lines.size] * signs(lines)


def entries(lines: Lines, d: int) -> Tensor:
    """phi (n, size), each line a row of its compartment's d."""
    chosen = rows(lines, d).gather(1, lines.numbers.long()[:, None])
    return synthesise(lines, chosen, torch.ones(chosen.shape, dtype=torch.float32, device=chosen.device))
