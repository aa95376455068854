"""One compartment of a draw, as the programs of this package take it; NumPy only.

Tests: tests/test_jax_backend.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rbd_ref._types import F32
from rbd_ref.spec.families import Family, window_starts
from rbd_ref.spec.operations import Draw

KINDS = {"rademacher": "bits", "bernoulli-graphcore": "bits"}  # other families are their own kind


@dataclass(frozen=True)
class Compartment:
    """One compartment of a draw: where its elements and coefficients are, and its family's arguments."""

    draw: Draw
    k: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.draw.plan.sizes[self.k]

    @property
    def d(self) -> int:
        """Number of directions."""
        return self.draw.plan.dims[self.k]

    @staticmethod
    def kind_of(family: Family) -> str:
        """The family's name, or `bits` for two that differ only in their entries."""
        return KINDS.get(family.name, family.name)

    @property
    def kind(self) -> str:
        """Of this compartment's family."""
        return self.kind_of(self.draw.family)

    @property
    def divisor(self) -> np.float32:
        """N, or 0 for each direction's own square."""
        return F32(self.draw.divisors[self.k])

    @cached_property
    def windows(self) -> int:
        """The number of windows of `sparse`, and 1 elsewhere."""
        window = self.draw.family.window
        return window_starts(self.size, window).size - 1 if window else 1

    @property
    def parameters(self) -> dict[str, Any]:
        """The fields of `families.FamilyParameters`."""
        shift = F32(0.5) if self.draw.family.name == "bernoulli-graphcore" else F32(0)
        length, longer = divmod(self.size, self.windows)
        numbers = {"windows": np.uint32(self.windows), "length": np.uint32(length), "longer": np.uint32(longer)}
        entries = {"clear": F32(1) - shift, "set_": F32(-1) - shift}
        return {"key": self.draw.keys[:, self.k], "zero": np.uint32(0)} | entries | numbers
