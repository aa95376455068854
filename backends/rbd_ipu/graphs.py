"""The graphs: words, directions, project, reconstruct and the transform of `srht` in PopART's dialect of ONNX.

The dialect is opset 11 of the default domain and opset 1 of `ai.graphcore`, whose bitwise operators know UINT32. It has
no shift and no reading of a float's bits: a shift is a product or a quotient with a power of two, and the exponent is
found by comparing. All shapes are fixed. A *cell* is one tile of one direction: `directions` x `lanes` cells are made
at once, and each cell has its own key, direction number and first element, as inputs of shape (directions, lanes, 1).
Specification: docs/specification.md, sections 1, 4, 6 and 7.
Tests: tests/test_ipu_backend.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from rbd_ref.spec import families as spec
from rbd_ref.spec.prng import PARITY, ROTATIONS

DOMAIN = "ai.graphcore"
OPSET = 11
DOMAIN_OPSET = 1
IR_VERSION = 6
FLOAT, UINT32, BOOL = TensorProto.FLOAT, TensorProto.UINT32, TensorProto.BOOL

# What is used of PopART's operators, with the types that its own definitions allow for their results.
DIALECT = {
    **{("", name): {UINT32, FLOAT} for name in ("Add", "Sub", "Mul", "Div", "Concat", "Reshape", "Slice", "Where")},
    **{("", name): {FLOAT} for name in ("Min", "Sqrt")},
    ("", "Cast"): {UINT32, FLOAT, BOOL},
    ("", "Less"): {BOOL},
    **{(DOMAIN, name): {UINT32} for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
}
CELL_INPUTS = ("k0", "k1", "i", "first")
WINDOW_INPUTS = ("length", "longer")
U32, F32 = np.uint32, np.float32
TWO_THIRDS_TWICE = F32(2) * F32(2 / 3)
KINDS = {np.dtype(U32): UINT32, np.dtype(F32): FLOAT}


@dataclass(frozen=True)
class Shape:
    """How many cells a graph makes, `directions` x `lanes`, and how many elements each of them has."""

    directions: int
    lanes: int
    tile: int

    @property
    def cells(self) -> tuple[int, int, int]:
        """The shape of what each cell has one of."""
        return self.directions, self.lanes, 1

    @property
    def elements(self) -> tuple[int, int, int]:
        """The shape of the directions."""
        return self.directions, self.lanes, self.tile


@dataclass(frozen=True)
class Value:
    """A tensor of a graph that is being built; its operators add nodes."""

    graph: Graph
    name: str
    __array_ufunc__ = None  # NumPy leaves `number * value` to this class

    def __add__(self, other: Operand) -> Value:
        return self.graph.node("Add", self, other)

    def __sub__(self, other: Operand) -> Value:
        return self.graph.node("Sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self.graph.node("Sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return self.graph.node("Mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self.graph.node("Mul", other, self)

    def __floordiv__(self, other: Operand) -> Value:
        return self.graph.node("Div", self, other)

    def __and__(self, other: Operand) -> Value:
        return self.graph.node("BitwiseAnd", self, other, domain=DOMAIN)

    def __or__(self, other: Operand) -> Value:
        return self.graph.node("BitwiseOr", self, other, domain=DOMAIN)

    def __xor__(self, other: Operand) -> Value:
        return self.graph.node("BitwiseXor", self, other, domain=DOMAIN)

    def __lt__(self, other: Operand) -> Value:
        return self.graph.node("Less", self, other)

    def __rshift__(self, places: int) -> Value:
        return self // U32(1 << places)

    def cast(self, kind: int) -> Value:
        """The numbers as another type; true is 1."""
        return self.graph.node("Cast", self, to=kind)

    def float(self) -> Value:
        """Words below 2^24, which is exact."""
        return self.cast(FLOAT)

    def where(self, yes: Operand, no: Operand) -> Value:
        """`yes` where this is true, else `no`."""
        return self.graph.node("Where", self, yes, no)

    def reshape(self, *shape: int) -> Value:
        """The same numbers in another shape."""
        return self.graph.node("Reshape", self, np.array(shape, dtype=np.int64))

    def part(self, axis: int, start: int, stop: int) -> Value:
        """start .. stop - 1 of one axis."""
        bounds = (np.array([number], dtype=np.int64) for number in (start, stop, axis))
        return self.graph.node("Slice", self, *bounds)

    def beside(self, other: Value, axis: int) -> Value:
        """This one and the other one, along an axis."""
        return self.graph.node("Concat", self, other, axis=axis)


Operand: TypeAlias = Value | np.generic | np.ndarray
Pair: TypeAlias = tuple[Value, Value]
Cells: TypeAlias = dict[str, Value]


class Graph:
    """A graph that is being built: inputs, constants and nodes, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[ValueInfoProto] = []
        self.nodes: list[NodeProto] = []
        self.constants: dict[tuple[str, tuple[int, ...], bytes], TensorProto] = {}

    def input(self, name: str, kind: type[Any], *shape: int) -> Value:
        """A tensor that the host sends."""
        self.inputs.append(helper.make_tensor_value_info(name, KINDS[np.dtype(kind)], shape))
        return Value(self, name)

    def constant(self, number: np.generic | np.ndarray) -> str:
        """The name of an initialiser with this content; equal ones are one."""
        array = np.atleast_1d(number)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = numpy_helper.from_array(array, f"constant_{len(self.constants)}")
        return str(self.constants[key].name)

    def node(self, operator: str, *operands: Operand, domain: str = "", **attributes: Any) -> Value:
        """One operation."""
        names = [each.name if isinstance(each, Value) else self.constant(each) for each in operands]
        result = f"tensor_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [result], domain=domain, **attributes))
        return Value(self, result)

    def model(self, outputs: Mapping[str, tuple[Value, type[Any], tuple[int, ...]]]) -> ModelProto:
        """The whole as a model whose outputs have these names, types and shapes."""
        for name, (value, _, _) in outputs.items():
            self.nodes = [renamed(node, value.name, name) for node in self.nodes]
        results = [helper.make_tensor_value_info(n, KINDS[np.dtype(k)], s) for n, (_, k, s) in outputs.items()]
        graph = helper.make_graph(
            self.nodes, self.name, self.inputs, results, initializer=list(self.constants.values())
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, DOMAIN_OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="rbd-ref")


def renamed(node: NodeProto, old: str, new: str) -> NodeProto:
    """A node with another name for one of its tensors."""
    for names in (node.input, node.output):
        for place, name in enumerate(names):
            if name == old:
                names[place] = new
    return node


# Words: section 1.


def rotate(x: Value, r: int) -> Value:
    """x rotated left by r bits: the product loses the upper bits, the quotient is those, and no bit is in both."""
    return x * U32(1 << r) + (x >> (32 - r))


def threefry(k0: Value, k1: Value, x0: Value, x1: Value) -> Pair:
    """Threefry2x32 with 20 rounds."""
    keys = (k0, k1, k0 ^ k1 ^ PARITY)
    x0, x1 = x0 + k0, x1 + k1
    for group in range(5):
        for r in ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = rotate(x1, r) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + (keys[(group + 2) % 3] + U32(group + 1))
    return x0, x1


def block_words(cells: Cells, first: Value, count: int) -> Pair:
    """The words of `count` blocks from `first` on, of each cell."""
    blocks = np.arange(count, dtype=U32).reshape(1, 1, count)
    return threefry(cells["k0"], cells["k1"], cells["i"], first + blocks)


# Directions: section 4.


def radius(x0: Value) -> Value:
    """r = sqrt(-2 ln u): both halves of the word are exact floats, their sum is rounded once, and m and E are found
    by halving as long as a power of two fits."""
    v = (x0 >> 1) | U32(1)
    y = (v >> 12).float() * F32(2**12) + (v & U32(0xFFF)).float()
    m, left = y.graph.node("Min", y, F32(spec.LARGEST)), []
    for bound, shift in [*((F32(2**k), k) for k in (16, 8, 4, 2, 1)), (TWO_THIRDS_TWICE, 1)]:
        small = m < bound
        m = m * small.where(F32(1), F32(2.0**-shift))
        left.append(small.where(F32(shift), F32(0)))
    z, E = m - spec.ONE, reduce(add, left) - spec.ONE
    q = spec.Q5 * z + spec.Q4
    for constant in (spec.Q3, spec.Q2, spec.Q1, spec.Q0):
        q = q * z + constant
    return z.graph.node("Sqrt", q * z + E * spec.TWO_LN_2)


def normal(x0: Value, x1: Value) -> Pair:
    """Box and Muller's two numbers."""
    f = (((x1 >> 7) & U32(0x7FFFFE)) | U32(1)).float() * spec.STEP_22 - spec.ONE
    w = f * f
    sine = ((spec.S2 * w + spec.S1) * w + spec.S0) * f
    cosine = ((spec.C3 * w + spec.C2) * w + spec.C1) * w + spec.ONE
    r, sign = radius(x0), spec.ONE - spec.TWO * (x1 >> 31).float()
    a, b = r * (cosine * sign), r * sine
    swap = ((x1 >> 30) & U32(1)).cast(BOOL)
    return swap.where(b, a), swap.where(a, b)


def uniform(x: Value) -> Value:
    """Odd multiples of 2^-24 in (-1, 1), exactly."""
    return ((x >> 8).float() - spec.MIDDLE) * spec.STEP_23 + spec.STEP_24


def pairs(shape: Shape, a: Value, b: Value) -> Value:
    """Elements 2p from a and 2p + 1 from b."""
    half = (shape.directions, shape.lanes, shape.tile // 2, 1)
    return a.reshape(*half).beside(b.reshape(*half), 3).reshape(*shape.elements)


def signs(shape: Shape, cells: Cells) -> Value:
    """+1 where the bit is clear and -1 where it is set, 64 bits a block, the lowest first."""
    count = shape.tile // 64
    x0, x1 = block_words(cells, cells["first"] >> 6, count)
    split = (shape.directions, shape.lanes, count, 1, 1)
    x = x0.reshape(*split).beside(x1.reshape(*split), 3)
    bits = (x // (U32(1) << np.arange(32, dtype=U32))) & U32(1)
    return (spec.ONE - spec.TWO * bits.float()).reshape(*shape.elements)


def sparse(shape: Shape, cells: Cells) -> Value:
    """Every element finds its window and that window's word, and is not zero where the word's place is its own.

    The first `longer` windows have length + 1 elements; an element of theirs has `early` 1. Words do not branch: what
    belongs to the other case is multiplied by zero.
    """
    length, longer = cells["length"], cells["longer"]
    j = cells["first"] + np.arange(shape.tile, dtype=U32).reshape(1, 1, shape.tile)
    end = longer * (length + U32(1))
    early = (j < end).cast(UINT32)
    late = U32(1) - early
    window = early * (j // (length + U32(1))) + late * (longer + (j - end) // length)
    x0, x1 = threefry(cells["k0"], cells["k1"], cells["i"], window >> 1)
    odd = window & U32(1)
    x = x0 * (U32(1) - odd) + x1 * odd
    place = ((x >> 8) * (length + early)) >> 24
    away = j - (window * (length + early) + late * longer + place)
    return (away.float() < F32(0.5)).where(spec.ONE - spec.TWO * (x & U32(1)).float(), F32(0))


def entries(family: str, shape: Shape, cells: Cells) -> Value:
    """phi of every cell: (directions, lanes, tile)."""
    if family == "sparse":
        return sparse(shape, cells)
    if family in ("rademacher", "bernoulli-graphcore"):
        phi = signs(shape, cells)
        return phi - spec.HALF if family == "bernoulli-graphcore" else phi
    x0, x1 = block_words(cells, cells["first"] >> 1, shape.tile // 2)
    return pairs(shape, *(normal(x0, x1) if family == "normal" else (uniform(x0), uniform(x1))))


def cell_inputs(graph: Graph, family: str, shape: Shape) -> Cells:
    """What the host says of each cell."""
    names = CELL_INPUTS + (WINDOW_INPUTS if family == "sparse" else ())
    return {name: graph.input(name, U32, *shape.cells) for name in names}


# Operations: sections 6 and 7.


def tree(x: Value, n: int) -> Value:
    """The sum over the last of three axes, n numbers, by halves: n / 2, n / 4, ..., 1."""
    while n > 1:
        n //= 2
        x = x.part(2, 0, n) + x.part(2, n, 2 * n)
    return x


def transform(x: Value, lanes: int, n: int) -> Value:
    """The Walsh-Hadamard matrix times each of `lanes` vectors, by levels 1, 2, 4, ..., n / 2."""
    h = 1
    while h < n:
        pair = x.reshape(lanes, n // (2 * h), 2, h)
        low, high = pair.part(2, 0, 1), pair.part(2, 1, 2)
        x = (low + high).beside(low - high, 2)
        h *= 2
    return x.reshape(lanes, n)


def words_model(n: int) -> ModelProto:
    """x0, x1 of n keys and counters."""
    graph = Graph("words")
    x0, x1 = threefry(*(graph.input(name, U32, n) for name in ("k0", "k1", "c0", "c1")))
    return graph.model({"x0": (x0, U32, (n,)), "x1": (x1, U32, (n,))})


def directions_model(family: str, shape: Shape) -> ModelProto:
    """phi of the cells."""
    graph = Graph("directions")
    phi = entries(family, shape, cell_inputs(graph, family, shape))
    return graph.model({"phi": (phi, F32, shape.elements)})


def project_model(family: str, shape: Shape, squares: bool) -> ModelProto:
    """<phi, g> of each cell and, if asked, <phi, phi> over the first `count` elements of its lane."""
    graph = Graph("project")
    phi = entries(family, shape, cell_inputs(graph, family, shape))
    g = graph.input("g", F32, 1, shape.lanes, shape.tile)
    outputs = {"inner": (tree(phi * g, shape.tile), F32, shape.cells)}
    if squares:
        count = graph.input("count", F32, 1, shape.lanes, 1)
        place = np.arange(shape.tile, dtype=F32).reshape(1, 1, shape.tile)
        inside = graph.node("Less", place, count).where(phi * phi, F32(0))
        outputs["square"] = (tree(inside, shape.tile), F32, shape.cells)
    return graph.model(outputs)


def reconstruct_model(family: str, shape: Shape) -> ModelProto:
    """u + a_0 phi_0 + a_1 phi_1 + ..., in this order, product and sum each rounded once."""
    graph = Graph("reconstruct")
    phi = entries(family, shape, cell_inputs(graph, family, shape))
    terms = phi * graph.input("a", F32, *shape.cells)
    u = graph.input("u", F32, 1, shape.lanes, shape.tile)
    for i in range(shape.directions):
        u = u + terms.part(0, i, i + 1)
    return graph.model({"sum": (u, F32, (1, shape.lanes, shape.tile))})


def srht_model(lanes: int, n: int, forward: bool) -> ModelProto:
    """H (s x) of each lane's vector if `forward`, else s (H x); signs s come from the lane's key."""
    graph, shape = Graph("analyse" if forward else "synthesise"), Shape(1, lanes, n)
    s = signs(shape, cell_inputs(graph, "srht", shape)).reshape(lanes, n)
    x = graph.input("x", F32, lanes, n)
    y = transform(s * x, lanes, n) if forward else s * transform(x, lanes, n)
    return graph.model({"y": (y, F32, (lanes, n))})
