"""What a method can be told beside the basis.

Tests: tests/test_methods.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rbd_ref._check import integer, member, number
from rbd_ref._types import F32, TWO_32
from rbd_ref.methods.transforms import compose

EXCHANGES = ("independent", "shared", "split")
COMBINES = ("sum", "mean")
OPTIMISERS = ("plain", "adam")


@dataclass(frozen=True)
class Settings:
    """`rate` is the learning rate eta; how each setting acts is said in the file of the method that uses it."""

    rate: float
    momentum: float = 0.0
    redraw: int = 1
    workers: int = 1
    exchange: str = "independent"
    combine: str = "sum"
    transforms: tuple[str, ...] = ()
    optimiser: str = "plain"
    sigma: float = 1.0
    antithetic: bool = False

    def __post_init__(self) -> None:
        integer("redraw", self.redraw, 1, TWO_32)
        integer("workers", self.workers, 1, TWO_32)
        member("exchange", self.exchange, EXCHANGES)
        member("combine", self.combine, COMBINES)
        member("optimiser", self.optimiser, OPTIMISERS)
        compose(self.transforms)
        self._check_numbers()

    def _check_numbers(self) -> None:
        """Refuse what is no rate, no length or no momentum once it is a float32."""
        for name in ("rate", "sigma", "momentum"):
            number(name, getattr(self, name))
        with np.errstate(over="ignore"):
            eta = self.eta
            sigma = F32(self.sigma)
            momentum = F32(self.momentum)
        for name, value, fits, expected in (
            ("learning rate", self.rate, 0 < eta < np.inf, "a number above 0 that a float32 can hold"),
            ("sigma", self.sigma, 0 < sigma < np.inf, "a number above 0 that a float32 can hold"),
            ("momentum", self.momentum, 0 <= momentum < 1, "0 or more and, as a float32, less than 1"),
        ):
            if not fits:
                raise ValueError(f"{name} is {value}, expected {expected}: choose another")

    @property
    def eta(self) -> np.float32:
        """What the sum of all workers' updates is multiplied by: the rate or, for `mean`, the rate / workers."""
        return F32(self.rate / self.workers if self.combine == "mean" else self.rate)
