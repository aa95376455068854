"""Threefry2x32-20 of many counters in lockstep, in LLVM's vectors, and the same in plain Python.

A round waits for the one before it, so one vector of counters alone leaves the core idle most of the time. Here FOUR
vectors take each operation one after the other. It is written with llvmlite's IR builder, since Numba would compile a
function for each operation, and LLVM would have to find the vectors in a loop: that takes most of a second.
Tests: tests/test_prng.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rbd_ref.kernels._fma import WIDE
from rbd_ref.kernels._jit import config
from rbd_ref.spec.prng import PARITY, ROTATIONS, threefry2x32

FOUR = 4
LANES = 16 if WIDE else 8  # of a vector: the four of both words fit into registers, with room for one more
COUNTERS = FOUR * LANES
I32 = ir.IntType(32)
VECTOR = ir.VectorType(I32, LANES)

Vectors = list[Any]


def plain_words(key: Any, i: int, first: int, x0: Any, x1: Any, p: int) -> None:
    """`fill_counters` in plain Python."""
    blocks = (first + np.arange(COUNTERS)).astype(np.uint32)
    words = threefry2x32(np.array(key), np.stack([np.full_like(blocks, i), blocks]))
    x0[p : p + COUNTERS], x1[p : p + COUNTERS] = words


def _vector(values: Any) -> Any:  # pragma: no cover
    """A constant vector."""
    return ir.Constant(VECTOR, [int(value) for value in values])


def _spread(builder: Any, word: Any) -> Any:  # pragma: no cover
    """A vector of equal words."""
    undefined = ir.Constant(VECTOR, ir.Undefined)
    one = builder.insert_element(undefined, word, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, undefined, _vector([0] * LANES))


def _each(operation: Callable[[Any, Any], Any], x: Vectors, y: Vectors) -> Vectors:  # pragma: no cover
    """An operation on each of the four vectors, one after the other."""
    return [operation(*pair) for pair in zip(x, y, strict=True)]


def _rotated(builder: Any, x: Vectors, r: int) -> Vectors:  # pragma: no cover
    """Each word rotated left by r bits."""
    left = [builder.shl(v, _vector([r] * LANES)) for v in x]
    right = [builder.lshr(v, _vector([32 - r] * LANES)) for v in x]
    return _each(builder.or_, left, right)


def _rounds(builder: Any, keys: Vectors, x0: Vectors, x1: Vectors) -> tuple[Vectors, Vectors]:  # pragma: no cover
    """All 20 rounds: after every four, two of the three words of the key and the number of the group are added."""
    for group in range(5):
        for r in ROTATIONS[group % 2]:
            x0 = _each(builder.add, x0, x1)
            x1 = _each(builder.xor, _rotated(builder, x1, r), x0)
        ka = keys[(group + 1) % 3]
        kb = builder.add(keys[(group + 2) % 3], _vector([group + 1] * LANES))
        x0 = _each(builder.add, x0, [ka] * FOUR)
        x1 = _each(builder.add, x1, [kb] * FOUR)
    return x0, x1


def _typing(_: Any, key: Any, i: Any, first: Any, x0: Any, x1: Any, p: Any) -> Any:  # pragma: no cover
    """Typing and code of `fill_counters`: code that runs only while Numba compiles."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        together, direction, block, *arrays, place = arguments
        k0, k1 = (_spread(builder, builder.extract_value(together, n)) for n in range(2))
        k2 = builder.xor(builder.xor(k0, k1), _vector([int(PARITY)] * LANES))
        start = _spread(builder, block)
        counters = [builder.add(start, _vector(range(n * LANES, (n + 1) * LANES))) for n in range(FOUR)]
        begun0 = [builder.add(_spread(builder, direction), k0)] * FOUR
        begun1 = _each(builder.add, counters, [k1] * FOUR)
        words = _rounds(builder, [k0, k1, k2], begun0, begun1)
        for array, kind, vectors in zip(arrays, signature.args[3:5], words, strict=True):
            data = context.make_array(kind)(context, builder, array).data
            target = builder.bitcast(builder.gep(data, [place]), VECTOR.as_pointer())
            for n, vector in enumerate(vectors):
                builder.store(vector, builder.gep(target, [ir.Constant(I32, n)]), align=4)
        return context.get_dummy_value()

    return types.none(key, types.uint32, types.uint32, x0, x1, types.intp), generate


# fill_counters(key, i, first, x0, x1, p): the words of direction i for the blocks first .. first + COUNTERS - 1, into
# x0[p], x0[p + 1], ... and x1.
fill_counters: Any = plain_words if config.DISABLE_JIT else intrinsic(_typing)
