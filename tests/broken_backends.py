"""Backends that are wrong, one realistic mistake each: what the conformance suite must find, and at which level.

Each is `NumpyBackend` with one or two steps replaced. Many declare only a family and a normalisation in which their
mistake shows, which keeps the checks before that few. `MUTANTS` lists them all; tests/test_broken_backends.py feeds
them to the suite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from rbd_ref._types import F32, Float32Array, Indices, Words
from rbd_ref.backend import Capabilities
from rbd_ref.models.networks import Network, loss_and_gradient
from rbd_ref.numpy_backend import NumpyBackend, Part
from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.families import (
    C1,
    C2,
    C3,
    HALF,
    LARGEST,
    ONE,
    Q0,
    Q1,
    Q2,
    Q3,
    Q4,
    Q5,
    S0,
    S1,
    S2,
    STEP_22,
    STEP_23,
    STEP_24,
    TWO,
    TWO_LN_2,
)
from rbd_ref.spec.hadamard import ROW_COUNTER, padded
from rbd_ref.spec.operations import LEAST_COEFFICIENT, Draw
from rbd_ref.spec.prng import PARITY, ROTATIONS, STREAMS, basis_keys, root_key, threefry2x32
from rbd_ref.spec.random import LAWS, counters, entries, number_key

MUTANTS: list[type[Broken]] = []
SIGNS = Capabilities(families=("rademacher",), normalizations=("unit",))
BERNOULLI = Capabilities(families=("bernoulli-graphcore",), normalizations=("unit",))
NORMAL = Capabilities(families=("normal",), normalizations=("unit",))
SPARSE = Capabilities(families=("sparse",), normalizations=("unit",))
SRHT = Capabilities(families=("srht",), normalizations=("unit",))
TILE = 4096


class Broken(NumpyBackend):
    """What all of them share; a subclass with a `bug` is listed."""

    fails_at: ClassVar[str]
    bug: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__
        if "bug" in cls.__dict__:
            MUTANTS.append(cls)


def fused(x: Any, y: Any, z: Any) -> Float32Array:
    """x y + z rounded once to float32, as a fused multiply-add does: the product is exact in float64."""
    return np.asarray(np.multiply(x, y, dtype=np.float64) + z).astype(F32)


def to_11_bits(x: Float32Array) -> Float32Array:
    """float32 with a significand of 11 bits, as matrix units round their inputs."""
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(F32)


# L0: words.


class OwnThreefry(Broken):
    """Threefry written anew in steps that mutants replace; as it stands it is right."""

    rotations: ClassVar[tuple[tuple[int, ...], ...]] = ROTATIONS
    parity: ClassVar[np.uint32] = PARITY
    rounds: ClassVar[int] = 20

    def words(self, key: Words, counter: Words) -> Words:
        keys = (key[0], key[1], key[0] ^ key[1] ^ self.parity)
        with np.errstate(over="ignore"):
            x0, x1 = counter[0] + keys[0], counter[1] + keys[1]
            for n in range(self.rounds):
                r = self.rotations[n // 4 % 2][n % 4]
                x0 = x0 + x1
                x1 = (x1 << np.uint32(r) | x1 >> np.uint32(32 - r)) ^ x0
                if n % 4 == 3:
                    x0 = x0 + keys[(n // 4 + 1) % 3]
                    x1 = x1 + keys[(n // 4 + 2) % 3] + np.uint32(n // 4 + 1)
        return np.array([x0, x1], dtype=np.uint32)


class WrongRotation(OwnThreefry):
    fails_at = "L0"
    bug = "One rotation constant is 25 instead of 26."
    rotations = ((13, 15, 25, 6), (17, 29, 16, 24))


class ParityMissing(OwnThreefry):
    fails_at = "L0"
    bug = "The third key word is the exclusive or of the others without the parity constant."
    parity = np.uint32(0)


class SixteenRounds(OwnThreefry):
    fails_at = "L0"
    bug = "Four rounds are left out."
    rounds = 16


class ThirteenRounds(OwnThreefry):
    fails_at = "L0"
    bug = "Only the thirteen rounds are done that pass tests of randomness."
    rounds = 13


class SwappedKeyWords(Broken):
    fails_at = "L0"
    bug = "A 64-bit key is read with its low word first."

    def words(self, key: Words, counter: Words) -> Words:
        return threefry2x32(key[::-1].copy(), counter)


class FullVectorsOnly(Broken):
    fails_at = "L0"
    bug = "Counters behind the last full group of eight are not worked on."

    def words(self, key: Words, counter: Words) -> Words:
        out = np.zeros_like(counter)
        whole = max(1, counter.shape[1] - counter.shape[1] % 8)
        out[:, :whole] = threefry2x32(key, counter[:, :whole])
        return out


class WordsBuffer(Broken):
    fails_at = "L0"
    bug = "Words of equally many counters come in one buffer, which the next call writes over."

    def __init__(self) -> None:
        self.buffers: dict[tuple[int, ...], Words] = {}

    def words(self, key: Words, counter: Words) -> Words:
        out = self.buffers.setdefault(counter.shape, np.empty_like(counter))
        out[:] = threefry2x32(key, counter)
        return out

    def keys(self, draw: Draw) -> Words:
        return super().keys(draw).copy()


# L1: keys and counters.


class AdditiveSeeds(Broken):
    fails_at = "L1"
    bug = "Seed, step and worker are added up instead of folded in one after the other."

    def basis_key(self, draw: Draw) -> Words:
        return self.fold(root_key((draw.seed + draw.step + draw.worker) % 2**64), STREAMS["bases"])


class WorkerIgnored(Broken):
    fails_at = "L1"
    bug = "All workers have the same directions."

    def basis_key(self, draw: Draw) -> Words:
        return self.fold(self.fold(self.fold(root_key(draw.seed), STREAMS["bases"]), draw.step), 0)


class WorkerBeforeStep(Broken):
    fails_at = "L1"
    bug = "The worker is folded in before the step."

    def basis_key(self, draw: Draw) -> Words:
        return self.fold(self.fold(self.fold(root_key(draw.seed), STREAMS["bases"]), draw.worker), draw.step)


class StreamNotFolded(Broken):
    fails_at = "L1"
    bug = "The tag of the stream is left out of the key."

    def basis_key(self, draw: Draw) -> Words:
        return self.fold(self.fold(root_key(draw.seed), draw.step), draw.worker)


class SeedOf32Bits(Broken):
    fails_at = "L1"
    bug = "The upper half of the seed is lost."

    def basis_key(self, draw: Draw) -> Words:
        return super().basis_key(replace(draw, seed=draw.seed % 2**32))


class SignedStep(Broken):
    fails_at = "L1"
    bug = "A step from 2^31 up is taken as negative, and its sign fills the upper word of the counter."

    def basis_key(self, draw: Draw) -> Words:
        step = draw.step if draw.step < 2**31 else draw.step + (2**64 - 2**32)
        return self.fold(self.fold(self.fold(root_key(draw.seed), STREAMS["bases"]), step), draw.worker)


class CompartmentNotFolded(Broken):
    fails_at = "L1"
    bug = "All compartments use the key of the basis."

    def keys(self, draw: Draw) -> Words:
        return np.repeat(self.basis_key(draw)[:, None], draw.plan.K, axis=1)


class CompartmentInAByte(Broken):
    fails_at = "L1"
    bug = "The number of a compartment is kept in eight bits."
    capabilities = SIGNS

    def keys(self, draw: Draw) -> Words:
        numbers = np.arange(draw.plan.K, dtype=np.uint32) % np.uint32(256)
        return self.words(self.basis_key(draw), np.stack([np.zeros_like(numbers), numbers]))


class SwappedCounter(Broken):
    fails_at = "L1"
    bug = "The counter is (block, direction) instead of (direction, block)."

    def blocks(self, part: Part, i: int, count: int) -> Words:
        block = np.arange(count, dtype=np.uint32)
        return self.words(part.key, np.stack([block, np.full_like(block, i)]))


class BlocksOfTheVector(Broken):
    fails_at = "L1"
    bug = "Blocks are counted from the start of the vector instead of the compartment."

    def blocks(self, part: Part, i: int, count: int) -> Words:
        block = np.arange(count, dtype=np.uint32) + np.uint32(part.elements.start // 2)
        return self.words(part.key, np.stack([np.full_like(block, i), block]))


class DirectionsOfThePlan(Broken):
    fails_at = "L1"
    bug = "Directions are counted over the whole plan instead of within the compartment."

    def row(self, part: Part, i: int) -> Float32Array:
        return super().row(part, i if part.structured else part.coefficients.start + i)


class DirectionInAByte(Broken):
    fails_at = "L1"
    bug = "The number of a direction is kept in eight bits."

    def blocks(self, part: Part, i: int, count: int) -> Words:
        return super().blocks(part, i % 256, count)


class FlatNumber(Broken):
    fails_at = "L1"
    bug = "Direction and element come from one 32-bit number i size + j, which overflows in a large basis."

    def blocks(self, part: Part, i: int, count: int) -> Words:
        flat = (i * count + np.arange(count, dtype=np.int64)) % 2**32
        return self.words(part.key, np.stack([flat // count, flat % count]).astype(np.uint32))


class BlocksOf16Bits(Broken):
    fails_at = "L1"
    bug = "The number of a block is kept in sixteen bits."

    def blocks(self, part: Part, i: int, count: int) -> Words:
        block = np.arange(count, dtype=np.uint32) % np.uint32(2**16)
        return self.words(part.key, np.stack([np.full_like(block, i), block]))


class TilesStartAnew(Broken):
    fails_at = "L1"
    bug = "The number of a block starts again from zero in each tile of 4096 elements."

    def row(self, part: Part, i: int) -> Float32Array:
        if part.structured or part.draw.family.name == "sparse":
            return super().row(part, i)
        tile = Part(part.draw, part.key, slice(0, min(TILE, part.size)), part.coefficients)
        return np.resize(super().row(tile, i), part.size)


class InclusiveEnd(Broken):
    fails_at = "L1"
    bug = "The end of a compartment is taken as its last element, so that it covers one too many."

    def bounds(self, plan: Plan, k: int) -> slice:
        exact = plan.elements(k)
        return slice(exact.start, min(exact.stop + 1, plan.D))


class RowsByFamilyForgotten(Broken):
    fails_at = "L1"
    bug = "A cache of directions is asked by seed, step, worker, compartment and number, but not by family."

    def __init__(self) -> None:
        self.known: dict[tuple[object, ...], Float32Array] = {}

    def row(self, part: Part, i: int) -> Float32Array:
        address = (part.draw.seed, part.draw.step, part.draw.worker, part.elements.start, part.size, i)
        if address not in self.known:
            self.known[address] = super().row(part, i)
        return self.known[address]


class PlanByItsTotals(Broken):
    fails_at = "L1"
    bug = "A cache of plans is asked by the numbers of parameters and directions, but not by the compartments."
    capabilities = SIGNS

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], Plan] = {}

    def directions(self, draw: Draw, indices: Sequence[int]) -> Float32Array:
        plan = self.known.setdefault((draw.plan.D, draw.plan.d), draw.plan)
        return super().directions(replace(draw, plan=plan), indices)


# L1: families.


class BoxMuller(Broken):
    """Box-Muller written anew in steps that mutants replace; as it stands it is right."""

    capabilities = NORMAL

    def multiply_add(self, x: Any, y: Any, z: Any) -> Float32Array:
        return x * y + z

    def angle(self, f: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Sine and cosine of pi/4 f."""
        w, fma = f * f, self.multiply_add
        return fma(fma(S2, w, S1), w, S0) * f, fma(fma(fma(C3, w, C2), w, C1), w, ONE)

    def clamp(self, v: Words) -> Words:
        return np.minimum(v, LARGEST)

    def minus_two_log(self, v: Float32Array) -> Float32Array:
        """-2 ln(v 2^-31)."""
        mantissa, exponent = np.frexp(v)
        low, fma = mantissa < F32(2 / 3), self.multiply_add
        z = np.where(low, TWO * mantissa, mantissa) - ONE
        q = fma(fma(fma(fma(fma(Q5, z, Q4), z, Q3), z, Q2), z, Q1), z, Q0)
        return fma(q, z, (31 - np.where(low, exponent - 1, exponent)).astype(F32) * TWO_LN_2)

    def root(self, x: Float32Array) -> Float32Array:
        return np.sqrt(x)

    def normal(self, x: Words) -> Float32Array:
        sine, cosine = self.angle((2 * (x[1] >> 8 & 0x3FFFFF) + 1).astype(F32) * STEP_22 - ONE)
        r = self.root(self.minus_two_log(self.clamp(x[0] >> 1 | 1).astype(np.int32).astype(F32)))
        a, b = r * np.where(x[1] >> 31 == 1, -cosine, cosine), r * sine
        swap = (x[1] >> 30 & 1) == 1
        return np.stack([np.where(swap, b, a), np.where(swap, a, b)])


class FusedPolynomials(BoxMuller):
    fails_at = "L1"
    bug = "The compiler fuses multiplication and addition in the polynomials of Box-Muller."

    def multiply_add(self, x: Any, y: Any, z: Any) -> Float32Array:
        return fused(x, y, z)


class FusedLast(BoxMuller):
    fails_at = "L1"
    bug = "The compiler fuses only the last multiplication and addition of the logarithm."

    def minus_two_log(self, v: Float32Array) -> Float32Array:
        mantissa, exponent = np.frexp(v)
        low = mantissa < F32(2 / 3)
        z = np.where(low, TWO * mantissa, mantissa) - ONE
        q = ((((Q5 * z + Q4) * z + Q3) * z + Q2) * z + Q1) * z + Q0
        return fused((31 - np.where(low, exponent - 1, exponent)).astype(F32), TWO_LN_2, q * z)


class LibraryLogarithm(BoxMuller):
    fails_at = "L1"
    bug = "The logarithm is the library's, rounded from float64."

    def minus_two_log(self, v: Float32Array) -> Float32Array:
        return (-2 * np.log(v.astype(np.float64) * 2.0**-31)).astype(F32)


class LibrarySine(BoxMuller):
    fails_at = "L1"
    bug = "Sine and cosine are the library's, rounded from float64."

    def angle(self, f: Float32Array) -> tuple[Float32Array, Float32Array]:
        angle = np.pi / 4 * f.astype(np.float64)
        return np.sin(angle).astype(F32), np.cos(angle).astype(F32)


class ReciprocalRoot(BoxMuller):
    fails_at = "L1"
    bug = "The square root of x is x times a rounded 1 / sqrt(x)."

    def root(self, x: Float32Array) -> Float32Array:
        return x * (ONE / np.sqrt(x))


class ClampForgotten(BoxMuller):
    fails_at = "L1"
    bug = "Words near 2^32 round to u = 1, for which the entries are zero."

    def clamp(self, v: Words) -> Words:
        return v


class SwappedPair(Broken):
    fails_at = "L1"
    bug = "Elements 2p and 2p + 1 are exchanged."
    capabilities = NORMAL

    def normal(self, x: Words) -> Float32Array:
        return super().normal(x)[::-1]


class Halves(Broken):
    fails_at = "L1"
    bug = "The first words of all blocks fill the first half of a direction and the second words the second half."

    def interleave(self, pairs: Any) -> Any:
        return pairs.reshape(-1)


class HighBitFirst(Broken):
    fails_at = "L1"
    bug = "The bits of a word are taken from the highest down."
    capabilities = SIGNS

    def signs(self, part: Part, i: int) -> Float32Array:
        x = self.interleave(self.blocks(part, i, -(-part.size // 64)))
        places = np.arange(31, -1, -1, dtype=np.uint32)
        return ONE - TWO * (x[:, None] >> places & 1).reshape(-1)[: part.size].astype(F32)


class SignsNegated(Broken):
    fails_at = "L1"
    bug = "A bit that is set means +1."
    capabilities = SIGNS

    def signs(self, part: Part, i: int) -> Float32Array:
        return -super().signs(part, i)


class NoHalfStep(Broken):
    fails_at = "L1"
    bug = "Uniform entries are (x >> 8) 2^-23 - 1, without the half step that makes them symmetric."
    capabilities = Capabilities(families=("uniform",))

    def uniform(self, x: Words) -> Float32Array:
        return (x >> 8).astype(F32) * STEP_23 - ONE


class UniformOf32Bits(Broken):
    fails_at = "L1"
    bug = "Uniform entries come from all 32 bits of a word, rounded."
    capabilities = Capabilities(families=("uniform",))

    def uniform(self, x: Words) -> Float32Array:
        return ((x.astype(np.float64) + 0.5) * 2.0**-31 - 1).astype(F32)


class ZeroMean(Broken):
    fails_at = "L1"
    bug = "The entries of bernoulli-graphcore are made to have mean zero: 1/2 and -1/2."
    capabilities = BERNOULLI

    def shift(self, signs: Float32Array) -> Float32Array:
        return signs * HALF


class Modulo(Broken):
    fails_at = "L1"
    bug = "The place in a window is the word modulo its length."
    capabilities = SPARSE

    def place(self, x: Words, length: Indices) -> Indices:
        return x.astype(np.int64) % length


class AllBitsOfTheWord(Broken):
    fails_at = "L1"
    bug = "The place in a window is x L >> 32 from the whole word instead of its upper 24 bits."
    capabilities = SPARSE

    def place(self, x: Words, length: Indices) -> Indices:
        return x.astype(np.int64) * length >> 32


class PlaceInFloat(Broken):
    fails_at = "L1"
    bug = "The place in a window is computed in float32, where the product is rounded, at times to the next place."
    capabilities = SPARSE

    def place(self, x: Words, length: Indices) -> Indices:
        return ((x >> 8).astype(F32) * STEP_24 * length.astype(F32)).astype(np.int64)


class ShortLastWindow(Broken):
    fails_at = "L1"
    bug = "Windows have S elements each and the last one the rest, instead of lengths that differ by one at most."
    capabilities = SPARSE

    def windows(self, size: int, window: int) -> Indices:
        return np.append(np.arange(0, size, window), size)


class LongerWindowsLast(Broken):
    fails_at = "L1"
    bug = "The windows with one element more are the last ones instead of the first."
    capabilities = SPARSE

    def windows(self, size: int, window: int) -> Indices:
        return size - super().windows(size, window)[::-1]


class LengthOfTheFirst(Broken):
    fails_at = "L1"
    bug = "All windows are drawn with the length of the first one, so that an entry may fall into the next window."
    capabilities = SPARSE

    def place(self, x: Words, length: Indices) -> Indices:
        place = super().place(x, np.full_like(length, length[0]))
        place[-1] = min(place[-1], length[-1] - 1)
        return place


class WindowOf100(Broken):
    fails_at = "L1"
    bug = "The window is always 100, whatever the family says."
    capabilities = SPARSE

    def sparse(self, part: Part, i: int, window: int) -> Float32Array:
        return super().sparse(part, i, 100)


class NegativeZeros(Broken):
    fails_at = "L1"
    bug = "Sparse directions are signs times a mask, which leaves -0 between the entries."
    capabilities = SPARSE

    def sparse(self, part: Part, i: int, window: int) -> Float32Array:
        phi = super().sparse(part, i, window)
        return np.where(phi == 0, np.copysign(F32(0), self.signs(part, i)), phi)


class RowsWithReplacement(Broken):
    fails_at = "L1"
    bug = "The Hadamard rows are drawn with replacement."
    capabilities = SRHT

    def rows(self, part: Part) -> Indices:
        x = self.interleave(self.blocks(part, ROW_COUNTER, -(-part.d // 2)))[: part.d]
        return np.sort(x.astype(np.int64) * padded(part.size) >> 32)


class RowsByWord(Broken):
    fails_at = "L1"
    bug = "The Hadamard rows are in the order of their words instead of ascending."
    capabilities = SRHT

    def rows(self, part: Part) -> Indices:
        n = padded(part.size)
        words = self.interleave(self.blocks(part, ROW_COUNTER, -(-n // 2)))[:n]
        return np.argsort(words, kind="stable")[: part.d]


class RowsBelowSize(Broken):
    fails_at = "L1"
    bug = "The Hadamard rows are drawn from the first `size` instead of all n."
    capabilities = SRHT

    def rows(self, part: Part) -> Indices:
        words = self.interleave(self.blocks(part, ROW_COUNTER, -(-part.size // 2)))[: part.size]
        return np.sort(np.argsort(words, kind="stable")[: part.d])


class HigherRowOfEquals(Broken):
    fails_at = "L1"
    bug = "Of two rows with equal words the sort, which is not stable, takes the higher one first."
    capabilities = SRHT

    def rows(self, part: Part) -> Indices:
        n = padded(part.size)
        words = self.interleave(self.blocks(part, ROW_COUNTER, -(-n // 2)))[:n]
        return np.sort(n - 1 - np.argsort(words[::-1], kind="stable")[: part.d])


class UnitLength(Broken):
    fails_at = "L1"
    bug = "Directions are returned with length one."

    def row(self, part: Part, i: int) -> Float32Array:
        phi = super().row(part, i)
        return phi / F32(np.linalg.norm(phi))


class Float64Rows(Broken):
    fails_at = "L1"
    bug = "Directions are float64."

    def directions(self, draw: Draw, indices: Sequence[int]) -> Any:
        return super().directions(draw, indices).astype(np.float64)


class DirectionsBuffer(Broken):
    fails_at = "L1"
    bug = "Directions come in one buffer, which the next call writes over."
    capabilities = SIGNS

    def __init__(self) -> None:
        self.buffers: dict[tuple[int, ...], Float32Array] = {}

    def directions(self, draw: Draw, indices: Sequence[int]) -> Float32Array:
        phi = super().directions(draw, indices)
        buffer = self.buffers.setdefault(phi.shape, np.empty_like(phi))
        buffer[:] = phi
        return buffer


class RightNumbers(Broken):
    """Portable random numbers by a method of its own, in steps that mutants replace; as it stands it is right."""

    def place(self, offset: int, law: str) -> tuple[int, int]:
        """The first block, and the place in it."""
        return divmod(offset, LAWS[law].per_block)

    def stream_key(self, seed: int, stream: int) -> Words:
        return number_key(seed, stream)

    def counters(self, first: int, blocks: int, law: str) -> Words:
        return counters(first, blocks, LAWS[law].per_block)

    def numbers(self, law: str, seed: int, stream: int, offset: int, count: int) -> Float32Array:
        first, before = self.place(offset, law)
        blocks = -(-(before + count) // LAWS[law].per_block)
        x = self.words(self.stream_key(seed, stream), self.counters(first, blocks, law))
        return entries(law, x)[before : before + count]


class OffsetByBlocks(RightNumbers):
    capabilities = SIGNS
    fails_at = "L1"
    bug = "Numbers begin with the first of the block that their offset is in."

    def place(self, offset: int, law: str) -> tuple[int, int]:
        return offset // LAWS[law].per_block, 0


class OffsetInAWord(RightNumbers):
    capabilities = NORMAL
    fails_at = "L1"
    bug = "The offset is taken modulo 2^32, so numbers beyond that are those of the beginning again."

    def place(self, offset: int, law: str) -> tuple[int, int]:
        return super().place(offset % 2**32, law)


class CarryLost(RightNumbers):
    capabilities = NORMAL
    fails_at = "L1"
    bug = "Numbers that run over the end of a direction go on at the beginning of the same one."

    def counters(self, first: int, blocks: int, law: str) -> Words:
        right = super().counters(first, blocks, law)
        right[0] = right[0, :1]
        return right


class StreamsAdded(RightNumbers):
    capabilities = NORMAL
    fails_at = "L1"
    bug = "The stream is added to the seed, so stream 1 of seed 7 is stream 7 of seed 1."

    def stream_key(self, seed: int, stream: int) -> Words:
        return number_key((seed + stream) % 2**64, 0)


class NumbersOfTheBases(RightNumbers):
    capabilities = SIGNS
    fails_at = "L1"
    bug = "Numbers are the directions of the bases of their seed, without a tag of their own."

    def stream_key(self, seed: int, stream: int) -> Words:
        return basis_keys(seed, stream, 0, 1)[:, 0]


class UniformAboutZero(RightNumbers):
    capabilities = Capabilities(families=("uniform",), normalizations=("unit",))
    fails_at = "L1"
    bug = "Uniform numbers are those of the family, in (-1, 1), and not in [0, 1)."

    def numbers(self, law: str, seed: int, stream: int, offset: int, count: int) -> Float32Array:
        return F32(2) * super().numbers(law, seed, stream, offset, count) - F32(1)


# L2: the update, reconstruct.


class TwoPasses(Broken):
    """`descend` by `project` and `reconstruct`, so that a mistake in either is not betrayed by the other way."""

    capabilities = BERNOULLI

    def both(self, part: Part, g: Float32Array, a: Float32Array, u: Float32Array) -> None:
        self.measure(part, g, a)
        self.rebuild(part, a, u)


class FusedUpdate(Broken):
    fails_at = "L2"
    bug = "Multiplication and addition are fused in reconstruct."
    capabilities = BERNOULLI

    def add(self, a: np.float32, phi: Float32Array, u: Float32Array) -> None:
        u[:] = fused(a, phi, u)


class Float64Update(TwoPasses):
    fails_at = "L2"
    bug = "Reconstruct adds up in float64 and rounds once at the end."

    def rebuild(self, part: Part, a: Float32Array, u: Float32Array) -> None:
        total = np.zeros(part.size)
        for a_i, phi in zip(a, self.each(part), strict=True):
            total += np.multiply(a_i, phi, dtype=np.float64)
        u += total.astype(F32)


class ReversedUpdate(TwoPasses):
    fails_at = "L2"
    bug = "Reconstruct adds the last direction first."

    def rebuild(self, part: Part, a: Float32Array, u: Float32Array) -> None:
        for i in reversed(range(part.d)):
            self.add(a[i], self.row(part, i), u)


class MatrixProductUpdate(TwoPasses):
    fails_at = "L2"
    bug = "Reconstruct takes eight directions at a time and leaves their sum to a matrix product."

    def rebuild(self, part: Part, a: Float32Array, u: Float32Array) -> None:
        for first in range(0, part.d, 8):
            chosen = range(first, min(first + 8, part.d))
            u += a[chosen.start : chosen.stop] @ np.stack([self.row(part, i) for i in chosen])


class PairwiseUpdate(TwoPasses):
    fails_at = "L2"
    bug = "Reconstruct adds halves of the directions, then the halves' sums."

    def rebuild(self, part: Part, a: Float32Array, u: Float32Array) -> None:
        u += self.total(part, a, 0, part.d)

    def total(self, part: Part, a: Float32Array, first: int, stop: int) -> Float32Array:
        if stop - first == 1:
            return a[first] * self.row(part, first)
        middle = (first + stop) // 2
        return self.total(part, a, first, middle) + self.total(part, a, middle, stop)


class CompensatedUpdate(TwoPasses):
    fails_at = "L2"
    bug = "Reconstruct carries the rounding error of each sum along (Kahan)."

    def rebuild(self, part: Part, a: Float32Array, u: Float32Array) -> None:
        error = np.zeros_like(u)
        for a_i, phi in zip(a, self.each(part), strict=True):
            term = a_i * phi - error
            total = u + term
            error[:] = (total - u) - term
            u[:] = total


class StartsWithFirstProduct(TwoPasses):
    fails_at = "L2"
    bug = "The first product is written to the update instead of added to zero, which leaves -0."
    capabilities = SPARSE

    def rebuild(self, part: Part, a: Float32Array, u: Float32Array) -> None:
        for i, phi in enumerate(self.each(part)):
            if i == 0:
                u[:] = a[0] * phi
            else:
                self.add(a[i], phi, u)


class UpdateEndsEarly(TwoPasses):
    fails_at = "L2"
    bug = "Reconstruct's grid ends at 65,536 elements of a compartment; what lies behind stays zero."

    def add(self, a: np.float32, phi: Float32Array, u: Float32Array) -> None:
        super().add(a, phi[: 2**16], u[: 2**16])


class UpdateDirectionInAByte(TwoPasses):
    fails_at = "L2"
    bug = "Reconstruct, unlike directions, keeps the number of a direction in eight bits."

    def rebuild(self, part: Part, a: Float32Array, u: Float32Array) -> None:
        for i in range(part.d):
            self.add(a[i], self.row(part, i % 256), u)


class SrhtBySums(TwoPasses):
    fails_at = "L2"
    bug = "Reconstruct of srht adds direction after direction instead of by the transform."
    capabilities = SRHT

    def synthesise(self, part: Part, a: Float32Array) -> Float32Array:
        u = np.zeros(part.size, dtype=F32)
        for a_i, phi in zip(a, self.each(part), strict=True):
            self.add(a_i, phi, u)
        return u


class LevelsDescending(Broken):
    fails_at = "L2"
    bug = "The transform's levels go down from h = n / 2 to 1."
    capabilities = SRHT

    def transform(self, x: Float32Array) -> Float32Array:
        y, h = x.astype(F32), x.size // 2
        while h > 0:
            pair = y.reshape(-1, 2, h)
            y = np.stack([pair[:, 0] + pair[:, 1], pair[:, 0] - pair[:, 1]], axis=1).reshape(-1)
            h //= 2
        return y


class OrthonormalTransform(Broken):
    fails_at = "L2"
    bug = "The transform is divided by sqrt(n), as libraries do that make it orthonormal."
    capabilities = SRHT

    def transform(self, x: Float32Array) -> Float32Array:
        return super().transform(x) / F32(np.sqrt(x.size))


class SrhtZerosNegative(Broken):
    fails_at = "L2"
    bug = "The update of srht is the signs times the transform, which leaves -0 where that is zero."
    capabilities = SRHT

    def rebuild(self, part: Part, a: Float32Array, u: Float32Array) -> None:
        if part.structured:
            u[:] = self.synthesise(part, a)
        else:
            super().rebuild(part, a, u)


# L2: the coefficients, project.


class NormForgotten(Broken):
    fails_at = "L2"
    bug = "Project returns the inner product itself under `unit`."
    capabilities = SIGNS

    def divisor(self, part: Part, phi: Float32Array) -> float:
        return 1.0 if part.draw.normalize == "unit" else super().divisor(part, phi)


class DividedOnce(Broken):
    fails_at = "L2"
    bug = "Project divides by |phi| only once under `unit`."
    capabilities = SIGNS

    def divisor(self, part: Part, phi: Float32Array) -> float:
        square = super().divisor(part, phi)
        return float(np.sqrt(square)) if part.draw.normalize == "unit" else square


class ExpectedForUnit(Broken):
    fails_at = "L2"
    bug = "Project divides by the expected |phi|^2 under `unit`."
    capabilities = BERNOULLI

    def divisor(self, part: Part, phi: Float32Array) -> float:
        if part.draw.normalize == "unit":
            return part.draw.family.expected_square(part.size)
        return super().divisor(part, phi)


class NormOfTheFirst(Broken):
    fails_at = "L2"
    bug = "Project divides by the |phi|^2 of a compartment's first direction under `unit`."
    capabilities = BERNOULLI

    def divisor(self, part: Part, phi: Float32Array) -> float:
        return super().divisor(part, self.row(part, 0))


class UnitForExpected(Broken):
    fails_at = "L2"
    bug = "Project divides by the direction's own |phi|^2 under `expected`."
    capabilities = Capabilities(families=("bernoulli-graphcore",), normalizations=("expected",))

    def divisor(self, part: Part, phi: Float32Array) -> float:
        return self.inner(phi, phi) if part.draw.normalize == "expected" else super().divisor(part, phi)


class FractionOfAWindow(Broken):
    fails_at = "L2"
    bug = "The expected |phi|^2 of a sparse direction is size / window, but its windows are that rounded up."
    capabilities = Capabilities(families=("sparse",), normalizations=("expected",))

    def divisor(self, part: Part, phi: Float32Array) -> float:
        if part.draw.normalize == "expected" and part.draw.family.window:
            return part.size / part.draw.family.window
        return super().divisor(part, phi)


class GraphcoreByCompartment(Broken):
    fails_at = "L2"
    bug = "Graphcore's divisor is the compartment's size instead of D."
    capabilities = Capabilities(families=("rademacher",), normalizations=("graphcore",))

    def divisor(self, part: Part, phi: Float32Array) -> float:
        return float(part.size) if part.draw.normalize == "graphcore" else super().divisor(part, phi)


class RoundedTo11Bits(Broken):
    fails_at = "L2"
    bug = "Project leaves its products to matrix units, which round the directions and the gradient to 11 bits."
    capabilities = BERNOULLI

    def inner(self, x: Float32Array, y: Float32Array) -> float:
        return super().inner(to_11_bits(x), to_11_bits(y))


class HalfPrecisionGradient(Broken):
    fails_at = "L2"
    bug = "Project takes the gradient in float16."
    capabilities = SIGNS

    def inner(self, x: Float32Array, y: Float32Array) -> float:
        return super().inner(x, y.astype(np.float16).astype(F32))


class RunningSum(Broken):
    fails_at = "L2"
    bug = "Project adds up in one float32 number, which misses the tolerance on a long vector along a direction."
    capabilities = Capabilities(families=("normal",), normalizations=("none",))

    def inner(self, x: Float32Array, y: Float32Array) -> float:
        return float(np.add.accumulate(x * y)[-1])


class SumEndsEarly(Broken):
    fails_at = "L2"
    bug = "Project's grid ends at 65,536 elements of a compartment; what lies behind is not summed."
    capabilities = SIGNS

    def inner(self, x: Float32Array, y: Float32Array) -> float:
        return super().inner(x[: 2**16], y[: 2**16])


class ProjectTilesStartAnew(Broken):
    fails_at = "L2"
    bug = "Project, unlike directions, makes the first tile of 4096 elements of a direction again for every tile."
    capabilities = SIGNS

    def measure(self, part: Part, g: Float32Array, a: Float32Array) -> None:
        for i, phi in enumerate(self.each(part)):
            repeated = np.resize(phi[:TILE], part.size)
            a[i] = self.coefficient(self.inner(repeated, g), self.divisor(part, repeated))

    def descend(self, draw: Draw, g: Float32Array) -> tuple[Float32Array, Float32Array]:
        a = self.project(draw, g)
        return a, self.reconstruct(draw, a)


class ProjectDirectionInAByte(Broken):
    fails_at = "L2"
    bug = "Project, unlike directions, keeps the number of a direction in eight bits."
    capabilities = SIGNS

    def measure(self, part: Part, g: Float32Array, a: Float32Array) -> None:
        for i in range(part.d):
            phi = self.row(part, i % 256)
            a[i] = self.coefficient(self.inner(phi, g), self.divisor(part, phi))

    def descend(self, draw: Draw, g: Float32Array) -> tuple[Float32Array, Float32Array]:
        a = self.project(draw, g)
        return a, self.reconstruct(draw, a)


class Float64Coefficients(Broken):
    fails_at = "L2"
    bug = "Coefficients are returned in float64."
    capabilities = SIGNS

    def project(self, draw: Draw, g: Float32Array) -> Any:
        return super().project(draw, g).astype(np.float64)


class ThreadSums(Broken):
    fails_at = "L2"
    bug = "Each thread adds up its part of an inner product in float32, so that the bits depend on their number."
    capabilities = SIGNS

    def inner(self, x: Float32Array, y: Float32Array) -> float:
        shares = np.array_split(x * y, min(self.threads, 64))
        return float(np.sum([np.sum(share, dtype=F32) for share in shares], dtype=F32))


class OtherOrderEachTime(Broken):
    fails_at = "L2"
    bug = "Partial sums are added in the order in which they happen to be ready, another one each time."
    capabilities = SIGNS
    calls = 0

    def inner(self, x: Float32Array, y: Float32Array) -> float:
        self.calls += 1
        return float(np.sum(np.roll(x * y, self.calls), dtype=F32))


# L2: small coefficients.


class ProjectDoesNotFlush(Broken):
    fails_at = "L2"
    bug = "Project keeps coefficients below 2^-64."
    capabilities = SIGNS

    def coefficient(self, inner: Any, divisor: float) -> Float32Array:
        return np.divide(inner, divisor).astype(F32)


class ReconstructDoesNotFlush(Broken):
    fails_at = "L2"
    bug = "Reconstruct keeps coefficients below 2^-64."
    capabilities = SIGNS

    def reconstruct(self, draw: Draw, a: Float32Array) -> Float32Array:
        u = np.zeros(draw.plan.D, dtype=F32)
        for part in self.parts(draw):
            self.rebuild(part, a[part.coefficients], u[part.elements])
        return u


class FlushTooMuch(Broken):
    fails_at = "L2"
    bug = "A coefficient of 2^-64 itself becomes zero."
    capabilities = SIGNS

    def flush(self, a: Float32Array) -> Float32Array:
        return np.where(np.abs(a) <= LEAST_COEFFICIENT, F32(0), a)


class FlushBeforeDivision(Broken):
    fails_at = "L2"
    bug = "The inner product is compared with 2^-64 before it is divided by N."
    capabilities = SIGNS

    def coefficient(self, inner: Any, divisor: float) -> Float32Array:
        return np.divide(0.0 if abs(inner) < LEAST_COEFFICIENT else inner, divisor).astype(F32)


class FlushInPlace(Broken):
    fails_at = "L2"
    bug = "Reconstruct writes its zeros into the caller's coefficients."
    capabilities = SIGNS

    def reconstruct(self, draw: Draw, a: Float32Array) -> Float32Array:
        a[np.abs(a) < LEAST_COEFFICIENT] = 0
        return super().reconstruct(draw, a)


# L2: descend.


class OtherCoefficients(Broken):
    fails_at = "L2"
    bug = "Descend's update multiplies by a rounded 1 / N, so that its coefficients differ in the last bit."
    capabilities = SIGNS

    def both(self, part: Part, g: Float32Array, a: Float32Array, u: Float32Array) -> None:
        for i, phi in enumerate(self.each(part)):
            inner, divisor = self.inner(phi, g), self.divisor(part, phi)
            a[i] = self.coefficient(inner, divisor)
            self.add(F32(inner) * (ONE / F32(divisor)), phi, u)


class CoefficientKeptInFloat64(Broken):
    fails_at = "L2"
    bug = "Descend's update uses the coefficient before it is rounded to float32."
    capabilities = BERNOULLI

    def both(self, part: Part, g: Float32Array, a: Float32Array, u: Float32Array) -> None:
        for i, phi in enumerate(self.each(part)):
            exact = self.inner(phi, g) / self.divisor(part, phi)
            a[i] = self.flush(F32(exact))
            u += (exact * phi.astype(np.float64)).astype(F32)


class DescendInThreads(Broken):
    fails_at = "L2"
    bug = "In descend each thread adds up the directions of its share, and the shares are added at the end."
    capabilities = SIGNS

    def both(self, part: Part, g: Float32Array, a: Float32Array, u: Float32Array) -> None:
        self.measure(part, g, a)
        for share in np.array_split(np.arange(part.d), min(self.threads, part.d)):
            mine = np.zeros_like(u)
            for i in share.tolist():
                self.add(a[i], self.row(part, i), mine)
            u += mine


class ReconstructInThreads(Broken):
    fails_at = "L2"
    bug = "In reconstruct each thread adds up the directions of its share, and the shares are added at the end."
    capabilities = SIGNS

    def rebuild(self, part: Part, a: Float32Array, u: Float32Array) -> None:
        for share in np.array_split(np.arange(part.d), min(self.threads, part.d)):
            mine = np.zeros_like(u)
            for i in share.tolist():
                self.add(a[i], self.row(part, i), mine)
            u += mine


# L2: memory, and whose arrays they are.


class StoredBasis(Broken):
    fails_at = "L2"
    bug = "All directions are held while one after the other is used."
    capabilities = SIGNS

    def each(self, part: Part) -> Iterable[Float32Array]:
        return np.stack(list(super().each(part)))


class StoredNormal(Broken):
    fails_at = "L2"
    bug = "All directions are held, but only those of the family normal."
    capabilities = Capabilities(families=("normal", "rademacher"), normalizations=("unit",))

    def each(self, part: Part) -> Iterable[Float32Array]:
        each = super().each(part)
        return np.stack(list(each)) if part.draw.family.name == "normal" else each


class StoredInDescend(Broken):
    fails_at = "L2"
    bug = "Descend holds all directions between its two passes."
    capabilities = SIGNS

    def both(self, part: Part, g: Float32Array, a: Float32Array, u: Float32Array) -> None:
        phi = np.stack(list(self.each(part)))
        for i in range(part.d):
            a[i] = self.coefficient(self.inner(phi[i], g), self.divisor(part, phi[i]))
        for i in range(part.d):
            self.add(a[i], phi[i], u)


class StoredAsBytes(Broken):
    fails_at = "L2"
    bug = "All directions are held as one byte for each entry."
    capabilities = SIGNS

    def each(self, part: Part) -> Iterable[Float32Array]:
        held = np.stack([phi.astype(np.int8) for phi in super().each(part)])
        return (phi.astype(F32) for phi in held)


class GradientScaledInPlace(Broken):
    fails_at = "L2"
    bug = "Project halves the caller's gradient to keep clear of overflow."
    capabilities = SIGNS

    def project(self, draw: Draw, g: Float32Array) -> Float32Array:
        g *= HALF
        return super().project(draw, g) * TWO


class UpdateBuffer(Broken):
    fails_at = "L2"
    bug = "Updates of the same length come in one buffer, which the next call writes over."
    capabilities = SIGNS

    def __init__(self) -> None:
        self.buffers: dict[int, Float32Array] = {}

    def reconstruct(self, draw: Draw, a: Float32Array) -> Float32Array:
        u = self.buffers.setdefault(draw.plan.D, np.empty(draw.plan.D, dtype=F32))
        u[:] = super().reconstruct(draw, a)
        return u


class ReadOnlyResults(Broken):
    fails_at = "L2"
    bug = "Results are views of the device library's memory, which the caller cannot write to."
    capabilities = SIGNS

    def reconstruct(self, draw: Draw, a: Float32Array) -> Float32Array:
        u = super().reconstruct(draw, a)
        u.flags.writeable = False
        return u


class NoThreadCount(Broken):
    fails_at = "L2"
    bug = "set_threads does not say how many threads are used."
    capabilities = SIGNS

    def set_threads(self, n: int) -> Any:
        self.threads = n


class ZeroThreads(Broken):
    fails_at = "L2"
    bug = "set_threads(0), which asks how many threads are used, is taken as a number of threads."
    capabilities = SIGNS

    def set_threads(self, n: int) -> int:
        self.threads = n
        return n


class ProjectCompartmentInAByte(Broken):
    """Seen with more than 256 compartments."""

    fails_at = "L2"
    bug = "Project, unlike directions, keeps the number of a compartment in eight bits."
    capabilities = SIGNS

    def project(self, draw: Draw, g: Float32Array) -> Float32Array:
        a, keys = np.empty(draw.plan.d, dtype=F32), self.keys(draw)
        for k, part in enumerate(self.parts(draw)):
            self.measure(replace(part, key=keys[:, k % 256]), g[part.elements], a[part.coefficients])
        return a


class DescendDirectionInAByte(Broken):
    """Seen with more than 256 directions."""

    fails_at = "L2"
    bug = "Descend, unlike project and reconstruct, keeps the number of a direction in eight bits."
    capabilities = SIGNS

    def both(self, part: Part, g: Float32Array, a: Float32Array, u: Float32Array) -> None:
        for i in range(part.d):
            phi = self.row(part, i % 256)
            a[i] = self.coefficient(self.inner(phi, g), self.divisor(part, phi))
            self.add(a[i], phi, u)


class DescendEndsEarly(Broken):
    """Seen in long compartments."""

    fails_at = "L2"
    bug = "Descend leaves out what lies beyond 65,536 elements of a compartment."
    capabilities = SIGNS

    def both(self, part: Part, g: Float32Array, a: Float32Array, u: Float32Array) -> None:
        super().both(part, np.where(np.arange(g.size) < 2**16, g, F32(0)), a, u)


class OffsetOf16Bits(Broken):
    """Seen in compartments that start late."""

    fails_at = "L1"
    bug = "The start of a compartment is kept in sixteen bits."
    capabilities = SIGNS

    def bounds(self, plan: Plan, k: int) -> slice:
        elements = plan.elements(k)
        start = elements.start % 2**16
        return slice(start, start + elements.stop - elements.start)


class NegativeFlush(Broken):
    """Seen by the sign of zero."""

    fails_at = "L2"
    bug = "Coefficients below 2^-64 become a zero that keeps their sign."
    capabilities = SIGNS

    def flush(self, a: Float32Array) -> Float32Array:
        return np.where(np.abs(a) < LEAST_COEFFICIENT, np.copysign(F32(0), a), a)


class StoredSrht(Broken):
    """Seen by its memory."""

    fails_at = "L2"
    bug = "The rows of srht are held as a dense matrix in project."
    capabilities = SRHT

    def analyse(self, part: Part, g: Float32Array) -> Float32Array:
        phi = np.ones((part.d, part.size), dtype=F32)
        return super().analyse(part, g) * phi[:, 0]


class SignedProduct(Broken):
    """Seen in windows of more than 128 elements."""

    fails_at = "L1"
    bug = "The place in a window is a product of signed words, which overflows in long windows."
    capabilities = SPARSE

    def place(self, x: Words, length: Indices) -> Indices:
        product = ((x >> 8) * length.astype(np.uint32)).astype(np.uint32).view(np.int32)
        return (product >> 24).astype(np.int64) % length


class DescendRoundsInThreads(Broken):
    """Seen with more than one thread."""

    fails_at = "L2"
    bug = "With several threads, descend returns coefficients that differ in the last bit from those it used."
    capabilities = SIGNS

    def descend(self, draw: Draw, g: Float32Array) -> tuple[Float32Array, Float32Array]:
        a, u = super().descend(draw, g)
        return (np.nextafter(a, F32(9)), u) if self.threads > 1 else (a, u)


# L3: gradients by the backend's own means.


class OwnGradient(Broken):
    """Gradients of its own, in steps that mutants replace; as it stands it is right."""

    capabilities = SIGNS

    def loss_and_gradient(
        self, network: Network, theta: Float32Array, x: Float32Array, y: Indices
    ) -> tuple[float, Float32Array]:
        loss, g = loss_and_gradient(network, self.point(theta), x, self.labels(y, network.classes))
        return self.loss(loss, len(y)), self.gradient(network, g, len(y))

    def point(self, theta: Float32Array) -> Float32Array:
        return theta

    def labels(self, y: Indices, classes: int) -> Indices:
        return y

    def loss(self, loss: float, n: int) -> float:
        return loss

    def gradient(self, network: Network, g: Float32Array, n: int) -> Float32Array:
        return g


class SummedGradient(OwnGradient):
    """The loss is right."""

    fails_at = "L3"
    bug = "The gradient is that of the sum over a batch, not of its mean."

    def gradient(self, network: Network, g: Float32Array, n: int) -> Float32Array:
        return g * F32(n)


class SummedLoss(OwnGradient):
    """The gradient is right."""

    fails_at = "L3"
    bug = "The loss is the sum over a batch, not its mean."

    def loss(self, loss: float, n: int) -> float:
        return loss * n


class TransposedWeights(OwnGradient):
    """As where weights are kept as (out, in)."""

    fails_at = "L3"
    bug = "The gradient of each matrix of weights is laid out with outputs before inputs."

    def gradient(self, network: Network, g: Float32Array, n: int) -> Float32Array:
        tensors = np.split(g, np.cumsum([size for layer in network.sizes for size in layer])[:-1])
        shaped = [x.reshape(shape) for x, shape in zip(tensors, network.shapes, strict=True)]
        return np.concatenate([(x.T if x.ndim == 2 else x).reshape(-1) for x in shaped])


class ForgottenBiases(OwnGradient):
    """As where biases are not among what is differentiated."""

    fails_at = "L3"
    bug = "The gradient of biases is 0."

    def gradient(self, network: Network, g: Float32Array, n: int) -> Float32Array:
        sizes = [size for layer in network.sizes for size in layer]
        kept = [np.full(size, len(shape) > 1) for size, shape in zip(sizes, network.shapes, strict=True)]
        return np.where(np.concatenate(kept), g, F32(0))


class StaleWeights(OwnGradient):
    """As where weights reach the device too late."""

    fails_at = "L3"
    bug = "The gradient is taken at the weights of the call before."
    before: Float32Array | None = None

    def point(self, theta: Float32Array) -> Float32Array:
        same = self.before is not None and self.before.shape == theta.shape
        used = self.before if same else theta
        self.before = theta.copy()
        assert used is not None
        return used


class LabelsFromOne(OwnGradient):
    """As of a data set whose classes are counted from 1."""

    fails_at = "L3"
    bug = "Classes are off by one."

    def labels(self, y: Indices, classes: int) -> Indices:
        return (y + 1) % classes


class HalfGradient(OwnGradient):
    """As of mixed precision that was left on."""

    fails_at = "L3"
    bug = "Gradients are rounded to half precision."

    def gradient(self, network: Network, g: Float32Array, n: int) -> Float32Array:
        return g.astype(np.float16).astype(F32)


class DoubleGradient(OwnGradient):
    """The numbers are right."""

    fails_at = "L3"
    bug = "Gradients are returned as float64."

    def gradient(self, network: Network, g: Float32Array, n: int) -> Any:
        return g.astype(np.float64)


# L4 and L5: what is kept from one step to the next.


class KeptKeys(Broken):
    """Keys kept in a table; a subclass says in which place those of a step are, and none looks whose they are."""

    capabilities = SIGNS

    def __init__(self) -> None:
        self.table: dict[object, Words] = {}

    def keys(self, draw: Draw) -> Words:
        where = (draw.seed, draw.worker, draw.plan, self.slot(draw.step))
        if where not in self.table:
            self.table[where] = super().keys(draw)
        return self.table[where]

    def slot(self, step: int) -> int:
        return step


class KeysOfTwoSteps(KeptKeys):
    """Steps that follow each other in a run are what shows it."""

    fails_at = "L4"
    bug = "Keys are kept for two steps, as if bases were re-drawn every second step."

    def slot(self, step: int) -> int:
        return (step + 1) // 2


class ClearedPadding(Broken):
    """A vector whose length is a multiple of 64 needs no padding, so it is no copy: what a worker keeps is lost."""

    fails_at = "L4"
    bug = "Gradients are padded to whole blocks of 64, and what was padded is cleared for the next one."
    capabilities = SIGNS

    def project(self, draw: Draw, g: Float32Array) -> Float32Array:
        missing = -g.size % 64
        padded = np.concatenate([g, np.zeros(missing, dtype=F32)]) if missing else g
        a = super().project(draw, padded[: g.size])
        padded[:] = 0
        return a

    def descend(self, draw: Draw, g: Float32Array) -> tuple[Float32Array, Float32Array]:
        a = self.project(draw, g)
        return a, self.reconstruct(draw, a)


class FactoredSigns(Broken):
    """Coefficients that were sent as signs are what it is meant for: additions alone, and one rounded product."""

    fails_at = "L4"
    bug = "Where all coefficients have one magnitude, signs are added up and multiplied by it at the end."
    capabilities = SIGNS

    def rebuild(self, part: Part, a: Float32Array, u: Float32Array) -> None:
        s = np.abs(a).max()
        one = bool((np.abs(a) == s).all())
        super().rebuild(part, np.sign(a) if one else a, u)
        u *= s if one else ONE


class KeysOfSixteenSteps(KeptKeys):
    """Seen in a run of more than sixteen steps."""

    fails_at = "L5"
    bug = "Keys are kept in a ring of sixteen places that is never written again."

    def slot(self, step: int) -> int:
        return step % 16
