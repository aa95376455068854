"""The backend `numpy`: the definitions of spec/ behind the backend protocol, one direction at a time.

The backend to start from when you write one. Every step is a method of its own, so that one can be replaced at a time:
by a device's version of it, or, in tests/broken_backends.py, by a wrong one. docs/specification.md has the sections
that the comments name.
Tests: tests/test_conformance.py, tests/test_operations.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rbd_ref._types import F32, Float32Array, Indices, Words
from rbd_ref.backend import Capabilities
from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.families import HALF, ONE, TWO, normal_pairs, uniform_pairs, window_starts
from rbd_ref.spec.hadamard import ROW_COUNTER, SIGN_COUNTER, padded, transform
from rbd_ref.spec.operations import Draw, flush, inner_product
from rbd_ref.spec.prng import STREAMS, root_key, threefry2x32

UNWARNED = np.errstate(over="ignore", invalid="ignore")  # what overflows is infinite, and `Basis` says so


@dataclass(frozen=True)
class Part:
    """One compartment of a draw: its key, and the slices where its elements and its coefficients lie."""

    draw: Draw
    key: Words
    elements: slice
    coefficients: slice

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.elements.stop - self.elements.start)

    @property
    def d(self) -> int:
        """Number of directions."""
        return int(self.coefficients.stop - self.coefficients.start)

    @property
    def structured(self) -> bool:
        """Whether all directions together are cheaper than one after the other."""
        return self.draw.family.name == "srht"


class NumpyBackend:
    """Memory for one direction, one gradient, one update and the coefficients; the same bits with any `threads`."""

    name: ClassVar[str] = "numpy"
    capabilities: ClassVar[Capabilities] = Capabilities()
    threads = 1

    # Words and keys: sections 1 and 2.

    def words(self, key: Words, counter: Words) -> Words:
        """threefry2x32 of each column of `counter`."""
        return threefry2x32(key, counter)

    def fold(self, key: Words, n: int) -> Words:
        """A new key from a key and a number below 2^64."""
        return self.words(key, np.array([[n >> 32], [n % 2**32]], dtype=np.uint32))[:, 0]

    def basis_key(self, draw: Draw) -> Words:
        """The key of seed, step and worker."""
        key = root_key(draw.seed)
        for number in (STREAMS["bases"], draw.step, draw.worker):
            key = self.fold(key, number)
        return key

    def keys(self, draw: Draw) -> Words:
        """Keys (2, K), one for each compartment."""
        numbers = np.arange(draw.plan.K, dtype=np.uint32)
        return self.words(self.basis_key(draw), np.stack([np.zeros_like(numbers), numbers]))

    def blocks(self, part: Part, i: int, count: int) -> Words:
        """Words (2, count) of direction i: its number is the first word of the counter, the block's the second."""
        block = np.arange(count, dtype=np.uint32)
        return self.words(part.key, np.stack([np.full_like(block, i), block]))

    # Compartments: section 3.

    def bounds(self, plan: Plan, k: int) -> slice:
        """The elements of compartment k."""
        return plan.elements(k)

    def parts(self, draw: Draw) -> Iterator[Part]:
        """The compartments, first to last."""
        keys = self.keys(draw)
        for k in range(draw.plan.K):
            yield Part(draw, keys[:, k], self.bounds(draw.plan, k), draw.plan.directions(k))

    # Directions: section 4.

    def row(self, part: Part, i: int) -> Float32Array:
        """phi_i over the elements of its compartment."""
        family = part.draw.family
        if family.name == "normal":
            return self.interleave(self.normal(self.blocks(part, i, -(-part.size // 2))))[: part.size]
        if family.name == "uniform":
            return self.interleave(self.uniform(self.blocks(part, i, -(-part.size // 2))))[: part.size]
        if family.name == "sparse":
            return self.sparse(part, i, family.window)
        if family.name == "srht":
            return self.signs(part, SIGN_COUNTER) * self.hadamard_row(part, i)
        signs = self.signs(part, i)
        return self.shift(signs) if family.name == "bernoulli-graphcore" else signs

    def each(self, part: Part) -> Iterable[Float32Array]:
        """The directions of a compartment in order, never two at a time."""
        return (self.row(part, i) for i in range(part.d))

    def interleave(self, pairs: NDArray[Any]) -> NDArray[Any]:
        """Elements 2p and 2p + 1 from column p."""
        return pairs.T.reshape(-1)

    def normal(self, x: Words) -> Float32Array:
        """Box-Muller of each column."""
        return normal_pairs(x)

    def uniform(self, x: Words) -> Float32Array:
        """Odd multiples of 2^-24 in (-1, 1)."""
        return uniform_pairs(x)

    def signs(self, part: Part, i: int) -> Float32Array:
        """+1 where the bit is clear and -1 where it is set, 64 bits a block, the lowest first."""
        octets = self.blocks(part, i, -(-part.size // 64)).T.astype("<u4", order="C").view(np.uint8)
        return ONE - TWO * np.unpackbits(octets, count=part.size, bitorder="little").astype(F32)

    def shift(self, signs: Float32Array) -> Float32Array:
        """The entries of `bernoulli-graphcore`: 1/2 and -3/2."""
        return signs - HALF

    def windows(self, size: int, window: int) -> Indices:
        """Where each window starts, and `size`: the fewest of at most `window` elements, as even as can be."""
        return window_starts(size, window)

    def sparse(self, part: Part, i: int, window: int) -> Float32Array:
        """One entry of +-1 in each window of elements."""
        starts = self.windows(part.size, window)
        x = self.interleave(self.blocks(part, i, starts.size // 2))[: starts.size - 1]
        phi = np.zeros(part.size, dtype=F32)
        phi[starts[:-1] + self.place(x, np.diff(starts))] = ONE - TWO * (x & 1).astype(F32)
        return phi

    def place(self, x: Words, length: Indices) -> Indices:
        """Where in its window of `length` elements each entry is, from the upper 24 bits of its word."""
        return (x >> 8).astype(np.int64) * length >> 24

    def rows(self, part: Part) -> Indices:
        """The Hadamard rows of `srht`: those with the d smallest words, the lower row first among equals, ascending."""
        n = padded(part.size)
        words = self.interleave(self.blocks(part, ROW_COUNTER, -(-n // 2)))[:n]
        return np.sort(np.argsort(words, kind="stable")[: part.d])

    def hadamard_row(self, part: Part, i: int) -> Float32Array:
        """(-1)^popcount(r_i & j) for each element j."""
        odd: Float32Array = (np.bitwise_count(self.rows(part)[i] & np.arange(part.size)) & 1).astype(F32)
        return ONE - TWO * odd

    # Operations: sections 5 to 7.

    def inner(self, x: Float32Array, y: Float32Array) -> float:
        """sum_j x_j y_j in the reference's order."""
        return inner_product(x, y)

    def divisor(self, part: Part, phi: Float32Array) -> float:
        """N of a = <phi, g> / N."""
        if part.draw.normalize == "none":
            return 1.0
        if part.draw.normalize == "graphcore":
            return float(part.draw.plan.D)
        if part.draw.normalize == "expected" or part.draw.family.square_is_constant:
            return float(part.draw.family.expected_square(part.size))
        return self.inner(phi, phi)

    def coefficient(self, inner: Any, divisor: float) -> Float32Array:
        """inner / N rounded once to float32, and +0 if it is below 2^-64."""
        return self.flush(np.divide(inner, divisor).astype(F32))

    def flush(self, a: Float32Array) -> Float32Array:
        """A new array with +0 for what is below 2^-64 in magnitude."""
        return flush(a)

    def add(self, a: np.float32, phi: Float32Array, u: Float32Array) -> None:
        """u <- u + a phi, product and sum each rounded once to float32, never fused."""
        u += a * phi

    def transform(self, x: Float32Array) -> Float32Array:
        """The Hadamard matrix times x, by levels 1, 2, 4, ..."""
        return transform(x)

    def analyse(self, part: Part, g: Float32Array) -> Float32Array:
        """<phi_i, g> of all directions of `srht`: signs, transform, and the rows of the result."""
        x = np.zeros(padded(part.size), dtype=F32)
        x[: part.size] = self.signs(part, SIGN_COUNTER) * g
        return self.transform(x)[self.rows(part)]

    def synthesise(self, part: Part, a: Float32Array) -> Float32Array:
        """sum_i a_i phi_i of `srht`: the coefficients at their rows, transform, signs."""
        x = np.zeros(padded(part.size), dtype=F32)
        x[self.rows(part)] = a
        return self.signs(part, SIGN_COUNTER) * self.transform(x)[: part.size]

    def measure(self, part: Part, g: Float32Array, a: Float32Array) -> None:
        """The coefficients of one compartment into a; all directions of `srht` are as long as its signs."""
        if part.structured:
            a[:] = self.coefficient(self.analyse(part, g), self.divisor(part, self.signs(part, SIGN_COUNTER)))
            return
        for i, phi in enumerate(self.each(part)):
            a[i] = self.coefficient(self.inner(phi, g), self.divisor(part, phi))

    def rebuild(self, part: Part, a: Float32Array, u: Float32Array) -> None:
        """The update of one compartment into u, which is zero; adding to zero leaves no -0."""
        if part.structured:
            u += self.synthesise(part, a)
            return
        for a_i, phi in zip(a, self.each(part), strict=True):
            self.add(a_i, phi, u)

    def both(self, part: Part, g: Float32Array, a: Float32Array, u: Float32Array) -> None:
        """`measure` and `rebuild` of one compartment with each direction made once."""
        if part.structured:
            self.measure(part, g, a)
            self.rebuild(part, a, u)
            return
        for i, phi in enumerate(self.each(part)):
            a[i] = self.coefficient(self.inner(phi, g), self.divisor(part, phi))
            self.add(a[i], phi, u)

    # What the protocol asks for.

    def directions(self, draw: Draw, indices: Sequence[int]) -> Float32Array:
        """Chosen rows of phi, zero outside their compartment."""
        phi, parts = np.zeros((len(indices), draw.plan.D), dtype=F32), list(self.parts(draw))
        for line, index in zip(phi, indices, strict=True):
            k, i = draw.plan.locate(index)
            line[parts[k].elements] = self.row(parts[k], i)
        return phi

    @UNWARNED
    def project(self, draw: Draw, g: Float32Array) -> Float32Array:
        """a_i = <phi_i, g> / N_i."""
        a = np.empty(draw.plan.d, dtype=F32)
        for part in self.parts(draw):
            self.measure(part, g[part.elements], a[part.coefficients])
        return a

    @UNWARNED
    def reconstruct(self, draw: Draw, a: Float32Array) -> Float32Array:
        """u = sum_i a_i phi_i, from i = 0 up."""
        a, u = self.flush(a), np.zeros(draw.plan.D, dtype=F32)
        for part in self.parts(draw):
            self.rebuild(part, a[part.coefficients], u[part.elements])
        return u

    @UNWARNED
    def descend(self, draw: Draw, g: Float32Array) -> tuple[Float32Array, Float32Array]:
        """(a, u) with the bits of `project` and then `reconstruct`."""
        a, u = np.empty(draw.plan.d, dtype=F32), np.zeros(draw.plan.D, dtype=F32)
        for part in self.parts(draw):
            self.both(part, g[part.elements], a[part.coefficients], u[part.elements])
        return a, u

    def set_threads(self, n: int) -> int:
        """Remember n, unless it is 0; there is only ever one thread here."""
        self.threads = n or self.threads
        return self.threads
