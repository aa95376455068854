"""What a method can be told beside the basis.

Tests: tests/test_methods.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rbd_ref._check import integer, member, number
from rbd_ref._types import F32, TWO_32
from rbd_ref.methods.codes import COEFFICIENTS
from rbd_ref.methods.rates import CONSTANT, RateSchedule
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
    memory: float = 0.0
    feedback: bool = False
    coefficients: str = "float32"
    schedule: RateSchedule = CONSTANT

    def __post_init__(self) -> None:
        integer("redraw", self.redraw, 1, TWO_32)
        integer("workers", self.workers, 1, TWO_32)
        member("exchange", self.exchange, EXCHANGES)
        member("combine", self.combine, COMBINES)
        member("optimiser", self.optimiser, OPTIMISERS)
        member("coefficients", self.coefficients, COEFFICIENTS)
        compose(self.transforms)
        self._check_numbers()
        self._check_feedback()
        self._check_coefficients()

    def _check_numbers(self) -> None:
        """Refuse what is no rate, no length or no momentum once it is a float32."""
        for name in ("rate", "sigma", "momentum", "memory"):
            number(name, getattr(self, name))
        with np.errstate(over="ignore"):
            eta = F32(self.combined_rate)
            sigma = F32(self.sigma)
            momentum = F32(self.momentum)
            memory = F32(self.memory)
        for name, value, fits, expected in (
            ("learning rate", self.rate, 0 < eta < np.inf, "a number above 0 that a float32 can hold"),
            ("sigma", self.sigma, 0 < sigma < np.inf, "a number above 0 that a float32 can hold"),
            ("momentum", self.momentum, 0 <= momentum < 1, "0 or more and, as a float32, less than 1"),
            ("memory", self.memory, 0 <= memory < 1, "0 or more and, as a float32, less than 1"),
        ):
            if not fits:
                raise ValueError(f"{name} is {value}, expected {expected}: choose another")

    def _check_feedback(self) -> None:
        """Refuse what would keep theta from moving by what was sent, once."""
        for name in ("memory", "momentum"):
            if self.feedback and getattr(self, name):
                raise ValueError(
                    f"{name} is {getattr(self, name)} beside feedback, expected one of the two, as feedback keeps "
                    f"whole gradients until they are sent: leave {name} or feedback out"
                )

    def _check_coefficients(self) -> None:
        """Refuse two ways to change what is sent: the zeros of `top:K` have no sign, and a scale undoes others."""
        if self.coefficients != "float32" and self.transforms:
            raise ValueError(
                f"transforms are {', '.join(self.transforms)} beside coefficients {self.coefficients}, expected one of "
                "the two, as both change what is sent: leave transforms or coefficients out"
            )

    @property
    def combined_rate(self) -> float:
        """What the sum of all workers' updates is multiplied by: the rate or, for `mean`, the rate / workers."""
        return self.rate / self.workers if self.combine == "mean" else self.rate

    def eta(self, t: int) -> np.float32:
        """The same at step t, as the schedule has it."""
        return F32(self.combined_rate * self.schedule.factor(t))
