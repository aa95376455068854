"""Kernels called at an address: the same results, casts and errors as a call by name, and only the family in use."""

from __future__ import annotations

import numpy as np
import pytest
from numba import types

from rbd_ref.kernels._jit import kernel
from rbd_ref.kernels._pointers import address, caller
from tools import run_python

READ = types.Array(types.float32, 1, "C", readonly=True)
SIGNATURE = types.void(types.int64, types.float32, READ, types.float32[::1])
call = caller(lambda *_: SIGNATURE)


@kernel
def scaled(n, factor, x, out):
    """Some elements."""
    if n > x.size:
        raise ValueError("too many")
    for j in range(n):
        out[j] = factor * x[j]


@kernel
def negated(n, factor, x, out):
    """The same arguments."""
    for j in range(n):
        out[j] = -x[j]


@kernel
def through(where, n, factor, x, out):
    """Whatever is at the address."""
    call(where, (n, factor, x, out))


def test_a_call_at_an_address_is_a_call_of_that_kernel() -> None:
    x = np.arange(4, dtype=np.float32)
    for function, expected in ((scaled, 3 * x), (negated, -x)):
        out = np.zeros(4, dtype=np.float32)
        through(address(function, SIGNATURE), 4, 3.0, x, out)
        assert out.tolist() == expected.tolist()
    assert address(scaled, SIGNATURE) == address(scaled, SIGNATURE) != address(negated, SIGNATURE)


def test_arguments_are_cast_and_may_be_read_only() -> None:
    x = np.arange(4, dtype=np.float32)
    x.flags.writeable = False
    out = np.zeros(4, dtype=np.float32)
    through(address(scaled, SIGNATURE), np.int32(3), np.float64(0.5), x, out)
    assert out.tolist() == [0, 0.5, 1, 0]


def test_what_a_kernel_raises_comes_through() -> None:
    x = np.zeros(2, dtype=np.float32)
    with pytest.raises(ValueError, match="too many"):
        through(address(scaled, SIGNATURE), 3, 1.0, x, x)


SCRIPT = """
import numpy as np, rbd_ref as rbd
from rbd_ref.kernels import tiles
basis = rbd.Basis(D=1000, d=3, family="rademacher")
basis.descend(np.ones(1000, dtype=np.float32), 0)
names = ("hold_bits", "dot_signs", "add_signs", "hold_normal", "hold_sparse", "dot_floats", "add_sparse")
print(*(name for name in names if getattr(tiles, name).overloads))
"""


@pytest.mark.compiled
def test_only_the_family_in_use_is_compiled() -> None:
    """Or loaded."""
    assert run_python("-c", SCRIPT).stdout.split() == ["hold_bits", "dot_signs", "add_signs"]
