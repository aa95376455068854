"""The first levels of a Walsh-Hadamard transform inside a vector, and the same in plain NumPy.

A level pairs the elements l and l + h, for h = 1, 2, 4, ...: (a, b) become (a + b, a - b). While h is less than a
vector has lanes, both are in one, where a loop that LLVM vectorises has nothing to do. So these levels are written with
llvmlite's IR builder: every lane adds its partner, which a shuffle brings, to itself, with its sign flipped where it is
b. a + (-b) is a - b to the bit.
Tests: tests/test_hadamard.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rbd_ref.kernels._jit import config

LANES = 16  # of a vector, which LLVM divides among the registers of the CPU
SIGN = 2**31
I32 = ir.IntType(32)
FLOATS = ir.VectorType(ir.FloatType(), LANES)
WORDS = ir.VectorType(I32, LANES)


def plain_levels(x: Any, j: int) -> None:
    """`first_levels` in plain NumPy."""
    h = 1
    while h < LANES:
        pairs = x[j : j + LANES].reshape(-1, 2, h)
        pairs[:] = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        h *= 2


def _level(builder: Any, v: Any, h: int) -> Any:  # pragma: no cover
    """One level of a vector."""
    partners = ir.Constant(WORDS, [lane ^ h for lane in range(LANES)])
    signs = ir.Constant(WORDS, [SIGN if lane & h else 0 for lane in range(LANES)])
    flipped = builder.bitcast(builder.xor(builder.bitcast(v, WORDS), signs), FLOATS)
    return builder.fadd(builder.shuffle_vector(v, ir.Constant(FLOATS, ir.Undefined), partners), flipped)


def _typing(_: Any, x: Any, j: Any) -> Any:  # pragma: no cover
    """Typing and code of `first_levels`: code that runs only while Numba compiles."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.bitcast(builder.gep(array.data, [arguments[1]]), FLOATS.as_pointer())
        v = builder.load(place, align=4)
        h = 1
        while h < LANES:
            v = _level(builder, v, h)
            h *= 2
        builder.store(v, place, align=4)
        return context.get_dummy_value()

    return types.none(x, types.intp), generate


# first_levels(x, j): all levels below LANES of the float32 elements j .. j + LANES - 1.
first_levels: Any = plain_levels if config.DISABLE_JIT else intrinsic(_typing)
