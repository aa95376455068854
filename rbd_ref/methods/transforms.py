"""Transforms of coordinates: small functions from d numbers to d numbers, composed in the order they are named.

Random bases descent takes its coordinates as they are; evolution strategies usually do not take their losses so. Each
transform depends on its argument alone, in an order that is fixed, so it gives the same bits everywhere.
Tests: tests/test_methods.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np

from rbd_ref._check import integer, member
from rbd_ref._types import F32, TWO_32, Float32Array, Float64Array

Transform = Callable[[Float32Array], Float32Array]


def ranks(c: Float32Array) -> Float32Array:
    """Centred ranks: -1/2 for the least, +1/2 for the greatest, evenly between; of equals the first is the lesser."""
    if c.size == 1:
        return np.zeros_like(c)
    place = np.empty(c.size, dtype=np.int64)
    place[np.argsort(c, kind="stable")] = np.arange(c.size)
    return (place / (c.size - 1) - 0.5).astype(F32)


def _mean(x: Float64Array) -> float:
    """The sum from the first to the last, as a running sum has it, divided by their number."""
    return float(np.cumsum(x)[-1]) / x.size


def normalised(c: Float32Array) -> Float32Array:
    """(c - mean) / standard deviation, in float64 and rounded once; all 0 where the numbers are all equal.

    Both means are of sums in order; the deviation is the root of the mean of the squares of c - mean."""
    wide = c.astype(np.float64)
    centred = wide - _mean(wide)
    deviation = math.sqrt(_mean(centred * centred))
    return (centred / deviation).astype(F32) if deviation > 0 else np.zeros_like(c)


def top(k: int) -> Transform:
    """Keeps the k numbers of greatest magnitude, of equals the first; the others become 0."""
    count = integer("k of top:k", k, 1, TWO_32)

    def keep(c: Float32Array) -> Float32Array:
        chosen = np.argsort(-np.abs(c), kind="stable")[:count]
        kept = np.zeros_like(c)
        kept[chosen] = c[chosen]
        return kept

    return keep


def by_name(text: str) -> Transform:
    """One transform by its name: `raw` (none), `ranks`, `normalised` or `top:K`."""
    name, _, number = text.partition(":")
    member("transform", name if number else text, ("raw", "ranks", "normalised", "top"))
    if name == "top":
        if not number.isdecimal():
            raise ValueError(f"transform {text!r} has no number of coordinates to keep, expected top:K, as in top:100")
        return top(int(number))
    if number:
        raise ValueError(f"transform {text!r} has a number, expected {name} alone: remove :{number}")
    return {"raw": lambda c: c, "ranks": ranks, "normalised": normalised}[name]


def compose(texts: tuple[str, ...]) -> Transform:
    """The named transforms one after the other; none leaves the numbers as they are. Where not all are numbers, the
    result has none either, so that no rank or mean hides it."""
    functions = [by_name(text) for text in texts]

    def apply(c: Float32Array) -> Float32Array:
        if not np.isfinite(c).all():
            return np.full_like(c, np.nan)
        return reduce(lambda value, function: function(value), functions, c)

    return apply
