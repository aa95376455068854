"""What the devices of an axis exchange: everyone's coefficients, and their sum in one order.

A reduction over devices may add in an order of its own, which differs between machines; so coefficients are gathered,
and every device adds them up by itself, those of the first device first.
Tests: tests/test_jax_optax.py.
"""

from __future__ import annotations

import inspect
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rbd_jax.rounding import Array

CAN_TELL = "to" in inspect.signature(lax.all_gather).parameters  # not an older JAX


def varies(x: Array) -> bool:
    """Whether `shard_map` has found that x differs between devices, which it looks for unless it is told not to."""
    kind: Any = jax.typeof(x)
    names = getattr(kind, "vma", None)
    return bool(getattr(getattr(kind, "mat", None), "varying", ()) if names is None else names)


def all_gather(x: Array, axis_name: Any) -> Array:
    """x of each device of the axis, as rows, which are the same everywhere; `shard_map` is told so."""
    options = {"to": "invarying"} if CAN_TELL and varies(x) else {}
    return lax.all_gather(x, axis_name, **options)


def in_order(rows: Array) -> Array:
    """((row 0 + row 1) + row 2) + ..."""
    return reduce(jnp.add, rows)


def axis_size(axis_name: Any) -> int:
    """How many devices the axis has, as a number."""
    return int(lax.psum(1, axis_name))  # type: ignore[no-untyped-call]
