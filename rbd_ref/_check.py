"""Checks of what callers hand in: each mistake becomes one sentence of what is wrong, what was expected, what to do.

Tests: tests/test_basis.py, tests/test_compartments.py, tests/test_random.py.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rbd_ref._types import TWO_32, TWO_64, Float32Array

Shape = int | Sequence[int]
BLOCK = 2**16  # numbers that are looked at together, so that a check takes little memory


class NotFiniteError(ValueError):
    """Numbers that overflowed or were none: what a learning rate that is too high ends in."""


def integer(name: str, value: Any, low: int, high: int) -> int:
    """`value` as an int with low <= value < high."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r}, expected an integer: pass a number instead of a truth value")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} is {value!r} of type {type(value).__name__}, expected an integer: convert it first"
        ) from None
    if not low <= number < high:
        raise ValueError(f"{name} is {number}, expected {low} <= {name} < {high}: choose one in that range")
    return number


def number(name: str, value: Any) -> float:
    """`value` as a float."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} is {value!r} of type {type(value).__name__}, expected a number: convert it first")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is larger than any float, expected a number that one can hold: lower it") from None


def several(name: str, value: Any) -> list[Any]:
    """`value` as a list of what it has one after the other."""
    try:
        return list(value)
    except TypeError:
        raise TypeError(
            f"{name} is {value!r} of type {type(value).__name__}, expected several: pass a list, as in [{value!r}]"
        ) from None


def within(name: str, value: Any, length: int) -> slice:
    """`value` as a slice of at least one of `length` things, with both ends as numbers and no step."""
    if not isinstance(value, slice):
        raise TypeError(
            f"{name} is {value!r} of type {type(value).__name__}, expected a slice: pass slice(0, {length})"
        )
    start = integer(f"the start of {name}", 0 if value.start is None else value.start, 0, length)
    stop = integer(f"the stop of {name}", length if value.stop is None else value.stop, start + 1, length + 1)
    if value.step not in (None, 1):
        raise ValueError(f"{name} has step {value.step!r}, expected neighbours: leave the step out")
    return slice(start, stop)


def member(name: str, value: Any, known: Iterable[str]) -> str:
    """`value` as one of the `known` names."""
    names = sorted(known)
    if not isinstance(value, str):
        raise TypeError(
            f"{name} is {value!r} of type {type(value).__name__}, expected one of the names {', '.join(names)}"
        )
    if value not in names:
        raise ValueError(f"{name} {value!r} is unknown, expected one of {', '.join(names)}: correct the name")
    return value


def vector(name: str, value: Any, length: int) -> Float32Array:
    """`value` as a contiguous float32 vector of `length` finite numbers."""
    array = np.asarray(value)
    if array.dtype != np.float32:
        array = narrowed(name, array)
    if array.shape != (length,):
        raise ValueError(f"{name} has shape {array.shape}, expected ({length},): flatten it or change the plan")
    finite(name, array)
    return np.ascontiguousarray(array)


def narrowed(name: str, array: NDArray[Any]) -> Float32Array:
    """Other floats as float32, infinite where they are too large."""
    if not np.issubdtype(array.dtype, np.floating):
        raise TypeError(f"{name} has dtype {array.dtype}, expected a floating type: convert it with astype(np.float32)")
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def finite(name: str, array: Float32Array) -> None:
    """Refuse NaN and infinity, naming the first place; looked for block by block, in little memory."""
    for first in range(0, array.size, BLOCK):
        if not np.isfinite(array[first : first + BLOCK]).all():
            break
    else:
        return
    bad = np.flatnonzero(~np.isfinite(array))
    raise NotFiniteError(
        f"{name} has {bad.size} value(s) not finite in float32, the first {array[bad[0]]} at index {bad[0]}, "
        "expected finite numbers only: lower the learning rate or look for an overflow"
    )


def checked_shape(shape: Shape) -> tuple[int, ...]:
    """A shape as a tuple; a number n stands for (n,)."""
    sizes = [shape] if hasattr(shape, "__index__") else several("shape", shape)
    return tuple(integer(f"size {axis} of the shape", size, 0, TWO_64) for axis, size in enumerate(sizes))


def checked_place(seed: int, stream: int, offset: int, count: int) -> tuple[int, int, int]:
    """Seed, stream and offset of `count` portable random numbers, all of which the stream has."""
    return (
        integer("seed", seed, 0, TWO_64),
        integer("stream", stream, 0, TWO_32),
        integer("offset", offset, 0, TWO_64 - count + 1),
    )
