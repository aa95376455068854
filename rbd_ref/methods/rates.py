"""Schedules of the learning rate: eta_t = float32(eta factor(t)), a function of the step alone.

With T the steps of the whole run and w those of the warm-up, for t = 0 .. T - 1:

    warm-up     (t + 1) / w                                       t < w
    constant    1                                                 w <= t
    linear      v = (T - t) / (T - w)                             from 1 to 1 / (T - w); it would be 0 after the end
    cosine      sin(v pi / 2)^2 = (1 + cos(pi (1 - v))) / 2

All in binary64 by + - * / alone: the C library's sine may differ in the last bit from one machine to another.
Tests: tests/test_rates.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from rbd_ref._check import integer, member
from rbd_ref._types import TWO_32

SCHEDULES = ("constant", "linear", "cosine")
HALF_PI = 1.5707963267948966  # the binary64 number nearest to pi / 2
TERMS = 10  # of the sine's series beside the first: the rest is below 2e-18 up to pi / 2


def sine(z: float) -> float:
    """sin z of 0 <= z <= pi / 2 by its series, from the last term to the first:

    sin z = z (1 - z^2 / (2 3) (1 - z^2 / (4 5) (1 - ... z^2 / (20 21))))
    """
    square = z * z
    s = 1.0
    for k in range(TERMS, 0, -1):
        s = 1.0 - (square / (2 * k * (2 * k + 1))) * s
    return z * s


@dataclass(frozen=True)
class RateSchedule:
    """How the learning rate changes over a run of `steps` steps, of which the first `warmup` lead up to it.

    >>> linear = RateSchedule("linear", warmup=2, steps=6)
    >>> [linear.factor(t) for t in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """

    kind: str = "constant"
    warmup: int = 0
    steps: int = TWO_32 - 1  # a constant rate does not ask for them

    def __post_init__(self) -> None:
        member("schedule", self.kind, SCHEDULES)
        integer("warmup", self.warmup, 0, TWO_32)
        integer("steps", self.steps, 1, TWO_32)
        if self.warmup > self.steps:
            raise ValueError(
                f"warmup has {self.warmup} steps and the run {self.steps}, expected no more than the run has: lower "
                "warmup, or train longer"
            )

    def factor(self, t: int) -> float:
        """What the learning rate is multiplied by at step t."""
        if t < self.warmup:
            return (t + 1) / self.warmup
        if self.kind == "constant":
            return 1.0
        v = (self.steps - t) / (self.steps - self.warmup)
        if self.kind == "linear":
            return v
        s = sine(HALF_PI * v)
        return s * s


CONSTANT = RateSchedule()
