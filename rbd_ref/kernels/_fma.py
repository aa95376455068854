"""Fused multiply-add: a tile of a matrix product in LLVM's vectors, and the same in plain NumPy.

fma(a, b, c) is a b + c rounded once. IEEE 754 says so of every CPU that has it, and where none has, the C library
computes it; so what is made of it has the same bits everywhere. Directions and updates must never use it: not every
device has it. Gradients do (models/product.py), as it doubles what a core can do.

Numba has no vectors of its own, so a tile is written with llvmlite's IR builder: its sums stay in registers from the
first term to the last. Vectors have 64 bytes, which LLVM divides among the registers of the CPU.
Tests: tests/test_product.py, tests/test_fma.py.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from rbd_ref.kernels._jit import config

BYTES = 64  # of a vector
declared: Any = cgutils.get_or_insert_function
unpacked: Any = cgutils.unpack_tuple
I1, I32, I64 = (ir.IntType(bits) for bits in (1, 32, 64))
PROBE = """
define <16 x float> @probe(<16 x float> %a, <16 x float> %b, <16 x float> %c) "prefer-vector-width"="512" {
  %d = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %c)
  ret <16 x float> %d
}
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
"""


@cache
def _probe() -> str:
    """What LLVM makes of sixteen fused multiply-adds on the CPU that Numba compiles for."""
    triple, name, features = cpu_target.target_context.codegen().magic_tuple()
    machine = binding.Target.from_triple(triple).create_target_machine(cpu=name, features=features)
    return str(machine.emit_assembly(binding.parse_assembly(PROBE)))


# Whether a register holds a whole vector: then there are 32 of them, and tiles of two vectors.
WIDE = not config.DISABLE_JIT and "zmm" in _probe()
# Terms that a tile of one vector takes before it looks whether there are more.
TERMS = 4
# Rows of a tile, each a sum in one vector or two: as many as keep the units busy, or as 16 registers of 32 bytes hold.
ROWS = 8 if WIDE else 6


@cache
def check_hardware() -> None:
    """Say once if the CPU has no fused multiply-add."""
    if not config.DISABLE_JIT and "fmaf" in _probe():
        warnings.warn(
            "this CPU has no fused multiply-add, or Numba was told not to use it (NUMBA_CPU_NAME, NUMBA_CPU_FEATURES): "
            "gradients are the same to the bit, but take many times as long",
            stacklevel=2,
        )


# In plain NumPy


def _two_sum(x: Any, y: Any) -> tuple[Any, Any]:
    """x + y rounded, and what rounding took away (Knuth)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _two_product(x: Any, y: Any) -> tuple[Any, Any]:
    """x y rounded, and what rounding took away (Dekker), where nothing over- or underflows."""
    halves = []
    for factor in (x, y):
        wide = factor * 134217729.0
        high = wide - (wide - factor)
        halves.append((high, factor - high))
    (a, b), (c, d) = halves
    result = x * y
    return result, ((a * c - result) + a * d + b * c) + b * d


def _round_to_odd(total: Any, error: Any) -> Any:
    """total + error, rounded to the neighbour with an odd last bit unless it is exact: rounded again, to fewer bits, it
    is what rounding once would have given (Boldo and Melquiond)."""
    exact = ~(np.abs(error) > 0) | (total.view(np.int64) & 1 == 1)
    return np.where(exact, total, np.nextafter(total, np.copysign(np.inf, error)))


def fused(a: Any, b: Any, c: Any) -> Any:
    """a b + c rounded once, of arrays of floats; of float64 where nothing over- or underflows."""
    if c.dtype == np.float32:
        exact = a.astype(np.float64) * b.astype(np.float64)
        return _round_to_odd(*_two_sum(exact, c.astype(np.float64))).astype(np.float32)
    high, low = _two_product(a, b)
    total, first = _two_sum(c, low)
    total, second = _two_sum(high, total)
    return total + _round_to_odd(*_two_sum(first, second))


def plain_tile(
    a: Any, rows: Any, i: int, last: int, shift: int, terms: Any, b: Any, j: int, start: Any, c: Any, places: Any,
    to: int, keep: bool, floor: Any, lanes: int,
) -> None:  # fmt: skip
    """`tile` in plain NumPy."""
    chosen = slice(i, min(i + ROWS, last + 1))
    target = (places[chosen] + to)[:, None] + np.arange(j, j + lanes)
    total = c[target] if keep else np.broadcast_to(start[j : j + lanes], target.shape)
    for k in range(b.shape[0]):
        total = fused(a[rows[chosen] + (shift + terms[k])][:, None], b[k, j : j + lanes], total)
    c[target] = np.where(total <= floor, floor, total)


# In vectors: code that runs only while Numba compiles, so not where coverage is measured


class _Vectors:  # pragma: no cover
    """Loads, stores and arithmetic of one kind of vector, all lanes of it or only the first `lanes`."""

    def __init__(self, builder: Any, item: Any, size: int, lanes: Any | None) -> None:
        self.builder = builder
        self.size = size
        self.count = BYTES // size
        self.type = ir.VectorType(item, self.count)
        self.pointer = self.type.as_pointer()
        self.mask = None if lanes is None else self._mask(lanes)

    def _mask(self, lanes: Any) -> Any:
        """Which lanes there are."""
        numbers = ir.VectorType(I64, self.count)
        return self.builder.icmp_signed("<", ir.Constant(numbers, list(range(self.count))), self.splat(lanes, numbers))

    def _call(self, name: str, result: Any, arguments: list[Any], suffix: str = "") -> Any:
        """A call of one of LLVM's intrinsics."""
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        name = f"llvm.{name}.v{self.count}f{8 * self.size}{suffix}"
        return self.builder.call(declared(self.builder.module, kind, name), arguments)

    def _place(self, pointer: Any) -> tuple[Any, str]:
        """A pointer to a vector, and how LLVM names its type."""
        opaque = getattr(self.pointer, "is_opaque", True)
        return self.builder.bitcast(pointer, self.pointer), ".p0" if opaque else f".p0v{self.count}f{8 * self.size}"

    def columns(self, number: int) -> range:
        """Where so many vectors in a row begin."""
        return range(0, number * self.count, self.count)

    def splat(self, scalar: Any, kind: Any = None) -> Any:
        """The same number in all lanes."""
        undefined = ir.Constant(kind or self.type, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, self.count), [0] * self.count)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def load(self, pointer: Any) -> Any:
        """The vector there; lanes that are not there are 0."""
        place, suffix = self._place(pointer)
        if self.mask is None:
            return self.builder.load(place, align=self.size)
        zeros = ir.Constant(self.type, [0.0] * self.count)
        arguments = [place, ir.Constant(I32, self.size), self.mask, zeros]
        return self._call("masked.load", self.type, arguments, suffix)

    def store(self, value: Any, pointer: Any) -> None:
        """The vector is put there, but for lanes that are not there."""
        place, suffix = self._place(pointer)
        if self.mask is None:
            self.builder.store(value, place, align=self.size)
        else:
            arguments = [value, place, ir.Constant(I32, self.size), self.mask]
            self._call("masked.store", ir.VoidType(), arguments, suffix)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a b + c."""
        return self._call("fma", self.type, [a, b, c])

    def at_least(self, value: Any, floor: Any) -> Any:
        """floor where value <= floor, else value."""
        return self.builder.select(self.builder.fcmp_ordered("<=", value, floor), floor, value)


class _Depth(NamedTuple):
    """The terms k of a tile: where terms[k] and b[0] are, how far the rows of b are apart, and how many there are."""

    terms: Any
    b: Any
    step: Any
    depth: Any


def _term(vectors: _Vectors, factors: list[Any], place: Any, b: Any, sums: list[Any]) -> list[Any]:  # pragma: no cover
    """Each sum takes fma(factor[place], b, sum), row by row of one vector, then of the next."""
    builder = vectors.builder
    columns = [vectors.load(builder.gep(b, [I64(j)])) for j in vectors.columns(len(sums) // len(factors))]
    taken = [vectors.splat(builder.load(builder.gep(factor, [place]))) for factor in factors]
    pairs = [(a, column) for column in columns for a in taken]
    return [vectors.fma(a, column, total) for (a, column), total in zip(pairs, sums, strict=True)]


def _sums(
    vectors: _Vectors, factors: list[Any], along: _Depth, first: Any, sums: list[Any], at_once: int
) -> Any:  # pragma: no cover
    """The loop over k from `first` on, so many terms in each round, as long as there are that many."""
    builder = vectors.builder
    before = builder.block
    loop = builder.append_basic_block("terms")
    after = builder.append_basic_block("sums")
    last = builder.sub(along.depth, I64(at_once))
    begun = (first, builder.gep(along.b, [builder.mul(first, along.step)]), *sums)
    builder.cbranch(builder.icmp_signed("<=", first, last), loop, after)
    builder.position_at_end(loop)
    phis = [builder.phi(value.type) for value in begun]
    k, pointer, *further = phis
    for _ in range(at_once):
        further = _term(vectors, factors, builder.load(builder.gep(along.terms, [k])), pointer, further)
        k = builder.add(k, I64(1))
        pointer = builder.gep(pointer, [along.step])
    following = (k, pointer, *further)
    for phi, start, other in zip(phis, begun, following, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(other, loop)
    builder.cbranch(builder.icmp_signed("<=", k, last), loop, after)
    builder.position_at_end(after)
    results = [builder.phi(value.type) for value in (first, *sums)]
    for phi, start, other in zip(results, (first, *sums), (k, *further), strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(other, loop)
    return results


def _generate(
    context: Any, builder: Any, signature: Any, arguments: Any, *, number: int, masked: bool
) -> Any:  # pragma: no cover
    """The code of a tile that is `number` vectors wide."""
    kinds = signature.args
    views = [context.make_array(kind)(context, builder, value) if isinstance(kind, types.Array) else value
             for kind, value in zip(kinds, arguments, strict=True)]  # fmt: skip
    a, rows, i, last, shift, terms, b, j, start, c, places, to, keep, floor, lanes = views
    item = kinds[0].dtype
    vectors = _Vectors(builder, context.get_data_type(item), item.bitwidth // 8, lanes if masked else None)
    factors = []
    rows_of_c = []
    for r in range(ROWS):  # beyond the last row it is the last row again, which is stored several times
        place = builder.add(i, I64(r))
        place = builder.select(builder.icmp_signed("<", place, last), place, last)
        factors.append(builder.gep(a.data, [builder.add(builder.load(builder.gep(rows.data, [place])), shift)]))
        target = builder.add(builder.load(builder.gep(places.data, [place])), builder.add(to, j))
        rows_of_c.append(builder.gep(c.data, [target]))
    first = builder.gep(start.data, [j])
    columns = vectors.columns(number)
    targets = [builder.gep(row, [I64(column)]) for column in columns for row in rows_of_c]
    firsts = [builder.gep(first, [I64(column)]) for column in columns for _ in rows_of_c]
    sums = [vectors.load(builder.select(keep, *places)) for places in zip(targets, firsts, strict=True)]
    depth = unpacked(builder, b.shape, 2)[0]
    step = builder.sdiv(unpacked(builder, b.strides, 2)[0], I64(vectors.size))
    along = _Depth(terms.data, builder.gep(b.data, [j]), step, depth)
    k = I64(0)
    if number == 1:  # more vectors have enough to do in a round
        k, *sums = _sums(vectors, factors, along, k, sums, TERMS)
    _, *sums = _sums(vectors, factors, along, k, sums, 1)
    least = vectors.splat(floor)
    for value, target in zip(sums, targets, strict=True):
        vectors.store(vectors.at_least(value, least), target)
    return context.get_dummy_value()


def _make_tile(number: int, *, masked: bool) -> Any:
    """`tile` for so many whole vectors, or for the first lanes of one."""

    def typing(
        _: Any, a: Any, rows: Any, i: Any, last: Any, shift: Any, terms: Any, b: Any, j: Any, start: Any, c: Any,
        places: Any, to: Any, keep: Any, floor: Any, lanes: Any,
    ) -> Any:  # fmt: skip
        n = types.intp
        signature = types.none(
            a, rows, n, n, n, terms, b, n, start, c, places, n, types.boolean, a.dtype, n
        )  # fmt: skip
        return signature, lambda *code: _generate(*code, number=number, masked=masked)

    return plain_tile if config.DISABLE_JIT else intrinsic(typing)


# tile(a, rows, i, last, shift, terms, b, j, start, c, places, to, keep, floor, lanes): of ROWS rows m from i on, up to
# `last`, and of the `lanes` columns of a vector from j on, c[places[m] + to + j ..] becomes at least `floor`, or the
# sum of a[rows[m] + shift + terms[k]] b[k, j ..] by fma over k = 0, 1, 2, ..., from start[j ..] or from c (`keep`).
tile: Any = _make_tile(1, masked=False)
# The same of two vectors. Where a register holds a whole vector, one alone waits for the factors to be loaded.
wide_tile: Any = _make_tile(2, masked=False)
# The same of the first `lanes` columns of a vector.
edge_tile: Any = _make_tile(1, masked=True)
