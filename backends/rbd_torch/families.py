"""Families on tensors: the words of many directions become their float32 entries, to the bit of the specification.

Each line of a tensor is one direction, with the key of its compartment and its number in it, so directions of several
compartments are made at once. `srht` takes its signs from here and its rows from hadamard.py.
Specification: docs/specification.md, section 4.
Tests: tests/test_torch_backend.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from rbd_ref.spec.families import Family, window_starts
from rbd_torch.makers import Makers
from rbd_torch.words import Pair, shift_right

TILE = 2**17  # entries that are made at a time; what lies between words and entries stays near the core


def uniform(x0: Tensor, x1: Tensor) -> Pair:
    """Odd multiples of 2^-24 in (-1, 1), exact."""
    first, second = (shift_right(x, 8).float().sub_(2.0**23).mul_(2.0**-23).add_(2.0**-24) for x in (x0, x1))
    return first, second


def interleave(pair: Pair) -> Tensor:
    """Elements 2p and 2p + 1 from column p; floats as parts of complex numbers, which is five times as fast."""
    if pair[0].is_floating_point():
        return torch.view_as_real(torch.complex(*pair)).flatten(-2)
    return torch.stack(pair, dim=-1).flatten(-2)


@cache
def octets(clear: float, device: torch.device) -> Tensor:
    """For each of 256 octets its eight entries, the lowest bit first: `clear`, or 2 less where the bit is set."""
    bits = torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device) & 1
    return clear - 2.0 * bits.float()


def signs(x0: Tensor, x1: Tensor, clear: float = 1.0) -> Tensor:
    """Elements 64p .. 64p + 63 from block p, an octet at a time."""
    places = torch.arange(0, 32, 8, dtype=torch.int32, device=x0.device)
    found = (torch.stack([x0, x1], dim=-1)[..., None] >> places).bitwise_and_(0xFF)
    return octets(clear, x0.device).index_select(0, found.flatten()).view(*x0.shape[:-1], -1)


@dataclass(frozen=True)
class Lines:
    """Directions of one family and size: keys (2, n) of their compartments and numbers (n) in them, as int32."""

    family: Family
    size: int
    keys: Tensor
    numbers: Tensor
    makers: Makers

    def blocks(self, first: int, last: int) -> Pair:
        """The words (n, last - first) of the blocks first .. last - 1."""
        block = torch.arange(first, last, dtype=torch.int32, device=self.keys.device)[None]
        return self.makers.words(self.keys[0][:, None], self.keys[1][:, None], self.numbers[:, None], block)

    def tile(self, first: int, n: int) -> Tensor:
        """Entries (n of them) of each line from `first` on, which is a multiple of 64; not of sparse and srht."""
        pairs = {"normal": self.makers.normal, "uniform": uniform}.get(self.family.name)
        each = 2 if pairs else 64
        x = self.blocks(first // each, -(-(first + n) // each))
        clear = 0.5 if self.family.name == "bernoulli-graphcore" else 1.0
        return (interleave(pairs(*x)) if pairs else signs(*x, clear))[:, :n]

    def entries(self) -> Tensor:
        """phi (n, size)."""
        tiles = [self.tile(first, min(TILE, self.size - first)) for first in range(0, self.size, TILE)]
        return tiles[0] if len(tiles) == 1 else torch.cat(tiles, dim=1)

    @property
    def share(self) -> int:
        """What a direction takes of a tile: its non-zeros; an eighth of that where entries are signs, of few words."""
        if self.family.name in ("rademacher", "bernoulli-graphcore"):
            return -(-self.size // 8)
        return self.windows if self.family.name == "sparse" else self.size

    @property
    def windows(self) -> int:
        """Non-zeros of a sparse direction."""
        return int(self.family.expected_square(self.size))

    def sparse(self) -> Pair:
        """Place and value (n, windows) of each window's non-zero, the place counted from the start of the line."""
        starts = torch.from_numpy(window_starts(self.size, self.family.window)).to(self.keys.device)
        x = interleave(self.blocks(0, -(-self.windows // 2)))[:, : self.windows]
        place = shift_right(shift_right(x, 8).mul_(starts.diff().int()), 24).long().add_(starts[:-1])
        return place, (x & 1).float().mul_(-2.0).add_(1.0)
