"""Families: how the words of one direction become its float32 entries.

For each family a plain NumPy definition and the kernel held to it. Every float operation is float32, rounded
once and never fused, in the order written here: the bits are the specification (docs/specification.md, section 4).
tiles.py puts the kernels together, and hadamard.py has `srht`.
May import: numpy, _jit, _check, prng. Tests: tests/test_distributions.py, tests/test_statistics.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rbd_ref._check import integer, member
from rbd_ref._jit import device, kernel, widest
from rbd_ref.prng import Words, threefry, threefry2x32

Vector = NDArray[np.float32]
KeyPair = tuple[np.uint32, np.uint32]

TILE = 4096  # elements that a kernel holds at a time; a multiple of every block
NORMAL, UNIFORM, RADEMACHER, BERNOULLI, SPARSE, SRHT = range(6)
CODES = {
    "normal": NORMAL,
    "uniform": UNIFORM,
    "rademacher": RADEMACHER,
    "bernoulli-graphcore": BERNOULLI,
    "sparse": SPARSE,
    "srht": SRHT,
}
FAMILIES = tuple(CODES)
DEFAULT_WINDOW = 100
LARGEST_WINDOW = 256


class Law(NamedTuple):
    """What a kernel needs to know of a family."""

    code: int
    window: int


@dataclass(frozen=True)
class Family:
    """A family by name; `window` is the S of `sparse`, one non-zero in S elements or a few less, and 0 elsewhere."""

    name: str
    window: int = 0

    @property
    def law(self) -> Law:
        """The family as kernels take it."""
        return Law(CODES[self.name], self.window)

    def __str__(self) -> str:
        return f"{self.name}:{self.window}" if self.name == "sparse" else self.name

    def expected_square(self, size: Any) -> Any:
        """E |phi|^2 of a direction over `size` elements, a number or many."""
        if self.name == "sparse":
            return -(-size // self.window) * 1.0
        return size * {"uniform": 1 / 3, "bernoulli-graphcore": 1.25}.get(self.name, 1.0)

    @property
    def square_is_constant(self) -> bool:
        """Whether |phi|^2 is the same for every direction: all entries are +-1 or their number is fixed."""
        return self.name in ("rademacher", "srht", "sparse")


def parse_family(text: Any) -> Family:
    """A `Family` from its name: one of FAMILIES, or `sparse:S` for one non-zero in S."""
    name, colon, window = text.partition(":") if isinstance(text, str) else (text, "", "")
    if colon and name == "sparse" and window.isdecimal():
        return Family("sparse", integer("the window of family sparse", int(window), 1, LARGEST_WINDOW + 1))
    known = member("family", text, FAMILIES)
    return Family(known, DEFAULT_WINDOW if known == "sparse" else 0)


# Box-Muller constants: docs/specification.md, section 4.1, says how they were found and judged.
F32 = np.float32
TWO_LN_2 = F32(float.fromhex("0x1.62e43p+0"))
Q5, Q4, Q3, Q2, Q1, Q0 = (
    F32(float.fromhex(digits))
    for digits in (
        "0x1.999868p-2",
        "-0x1.d3ddfcp-2",
        "0x1.fb0b4p-2",
        "-0x1.53e30ap-1",
        "0x1.0005fcp+0",
        "-0x1.0000f6p+1",
    )
)
S2, S1, S0 = (F32(float.fromhex(digits)) for digits in ("0x1.3e2184p-9", "-0x1.4a9ad2p-4", "0x1.921f32p-1"))
C3, C2, C1 = (F32(float.fromhex(digits)) for digits in ("-0x1.4eb112p-12", "0x1.03b18ep-6", "-0x1.3bd3a2p-2"))
LARGEST = 2**31 - 2**7  # the integer below 2^31 that is a float32: u stays below 1
ONE, TWO, HALF = F32(1), F32(2), F32(0.5)
STEP_22, STEP_23, STEP_24, MIDDLE = F32(2.0**-22), F32(2.0**-23), F32(2.0**-24), F32(2.0**23)


def block_words(key: Words, direction: int, blocks: int) -> Words:
    """Words (2, blocks) of one direction: threefry(key, (direction, block))."""
    block = np.arange(blocks, dtype=np.uint32)
    return threefry2x32(key, np.stack([np.full_like(block, direction), block]))


def radius(x0: Words) -> Vector:
    """r = sqrt(-2 ln u) of u = float32(min(x0 >> 1 | 1, 2^31 - 2^7)) 2^-31.

    u = m 2^-E with 2/3 <= m < 4/3, z = m - 1, and -2 ln(1 + z) is z Q(z).
    """
    mantissa, exponent = np.frexp(np.minimum(x0 >> 1 | 1, LARGEST).astype(np.int32).astype(F32))
    low = mantissa < F32(2 / 3)
    m = np.where(low, TWO * mantissa, mantissa)
    e = (31 - np.where(low, exponent - 1, exponent)).astype(F32)
    z = m - ONE
    q = ((((Q5 * z + Q4) * z + Q3) * z + Q2) * z + Q1) * z + Q0
    r: Vector = np.sqrt(q * z + e * TWO_LN_2)
    return r


def normal_pairs(x: Words) -> Vector:
    """Box-Muller: pairs (2, n) of N(0, 1) from words (2, n); the angle is pi/4 f within a quadrant from two bits."""
    f = (2 * (x[1] >> 8 & 0x3FFFFF) + 1).astype(F32) * STEP_22 - ONE
    w = f * f
    sine = ((S2 * w + S1) * w + S0) * f
    cosine = ((C3 * w + C2) * w + C1) * w + ONE
    r = radius(x[0])
    a, b = r * np.where(x[1] >> 31 == 1, -cosine, cosine), r * sine
    swap = x[1] >> 30 & 1 == 1
    return np.stack([np.where(swap, b, a), np.where(swap, a, b)])


def uniform_pairs(x: Words) -> Vector:
    """(2 (x >> 8) + 1) 2^-24 - 1: odd multiples of 2^-24 in (-1, 1), exact and symmetric about 0."""
    return ((x >> 8).astype(F32) - MIDDLE) * STEP_23 + STEP_24


def bits(x: Words) -> NDArray[np.uint32]:
    """The 64 bits of each block, bit b of x0 at place b and of x1 at place 32 + b, as one long vector."""
    places = np.arange(32, dtype=np.uint32)
    return (x.T[:, :, None] >> places & np.uint32(1)).reshape(-1)


def window_starts(size: int, window: int) -> NDArray[np.int64]:
    """Where the windows start, and `size` at the end: the fewest of at most `window` elements, longer ones first."""
    windows = -(-size // window)
    length, longer = divmod(size, windows)
    v = np.arange(windows + 1)
    return v * length + np.minimum(v, longer)


def sparse_entries(key: Words, direction: int, size: int, window: int) -> tuple[NDArray[np.int64], Vector]:
    """Place and value of each window's non-zero: the place is (x >> 8) L >> 24 of its L elements, the sign is bit 0."""
    starts = window_starts(size, window)
    windows = starts.size - 1
    x = block_words(key, direction, -(-windows // 2)).T.reshape(-1)[:windows]
    place = starts[:-1] + ((x >> 8) * np.diff(starts).astype(np.uint32) >> 24).astype(np.int64)
    return place, ONE - TWO * (x & 1).astype(F32)


def direction_entries(family: Family, key: Words, direction: int, size: int) -> Vector:
    """phi of one direction over a compartment of `size` elements; every family but `srht`."""
    if family.name == "normal":
        return normal_pairs(block_words(key, direction, -(-size // 2))).T.reshape(-1)[:size]
    if family.name == "uniform":
        return uniform_pairs(block_words(key, direction, -(-size // 2))).T.reshape(-1)[:size]
    if family.name == "sparse":
        phi = np.zeros(size, dtype=F32)
        place, value = sparse_entries(key, direction, size, family.window)
        phi[place] = value
        return phi
    signs = ONE - TWO * bits(block_words(key, direction, -(-size // 64)))[:size].astype(F32)
    return signs - HALF if family.name == "bernoulli-graphcore" else signs


THRESHOLD = np.int32(F32(2 / 3).view(np.int32))
SIGN_BIT = np.uint32(2**31)


@device
def radius_kernel(x0: np.uint32) -> np.float32:
    """The kernel of `radius`: the exponent is read from the bits of the float."""
    v = np.int32(np.uint32(x0 >> np.uint32(1)) | np.uint32(1))
    i = np.float32(min(v, np.int32(LARGEST))).view(np.int32)
    e = np.int32(np.int32(i - THRESHOLD) >> np.int32(23))
    z = np.float32(np.int32(i - np.int32(e << np.int32(23))).view(np.float32) - ONE)
    q = Q5 * z + Q4
    q = q * z + Q3
    q = q * z + Q2
    q = q * z + Q1
    q = q * z + Q0
    return np.float32(np.sqrt(q * z + np.float32(np.int32(np.int32(31) - e)) * TWO_LN_2))


@device
def normal_pair(x0: np.uint32, x1: np.uint32) -> tuple[np.float32, np.float32]:
    """The kernel of `normal_pairs`."""
    k = np.int32(np.uint32(np.uint32(x1 >> np.uint32(7)) & np.uint32(0x7FFFFE)) | np.uint32(1))
    f = np.float32(np.float32(k) * STEP_22 - ONE)
    w = f * f
    sine = ((S2 * w + S1) * w + S0) * f
    cosine = ((C3 * w + C2) * w + C1) * w + ONE
    r = radius_kernel(x0)
    sign = np.uint32(x1 & np.uint32(0x80000000))
    a = np.uint32(np.float32(r * cosine).view(np.uint32) ^ sign).view(np.float32)
    b = np.float32(r * sine)
    swap = np.uint32(x1 & np.uint32(0x40000000)) != np.uint32(0)
    return (b if swap else a), (a if swap else b)


@device
def uniform_value(x: np.uint32) -> np.float32:
    """The kernel of `uniform_pairs`."""
    return np.float32((np.float32(np.int32(x >> np.uint32(8))) - MIDDLE) * STEP_23 + STEP_24)


@kernel
def fill_words(key: KeyPair, i: int, first: int, x0: Words, x1: Words) -> None:
    """Words of direction i for the blocks first, first + 1, ... into x0 and x1."""
    widest()
    for p in range(x0.size):
        x0[p], x1[p] = threefry(key[0], key[1], np.uint32(i), np.uint32(first + p))


@kernel
def fill_normal(x0: Words, x1: Words, phi: Vector) -> None:
    """Elements 2p and 2p + 1 from block p."""
    widest()
    for p in range(x0.size):
        phi[2 * p], phi[2 * p + 1] = normal_pair(x0[p], x1[p])


@kernel
def fill_uniform(x0: Words, x1: Words, phi: Vector) -> None:
    """Elements 2p and 2p + 1 from block p."""
    widest()
    for p in range(x0.size):
        phi[2 * p] = uniform_value(x0[p])
        phi[2 * p + 1] = uniform_value(x1[p])


@device
def flip(x: np.float32, word: np.uint32, b: int) -> np.float32:
    """x, or -x if bit b of the word is set: an exclusive or with the sign bit."""
    sign = np.uint32(np.uint32(word << np.uint32(31 - b)) & SIGN_BIT)
    return np.uint32(np.float32(x).view(np.uint32) ^ sign).view(np.float32)


@kernel
def fill_bernoulli(x0: Words, x1: Words, phi: Vector) -> None:
    """Elements 64p .. 64p + 63 from block p: +-1 as the bit is, less 1/2."""
    widest()
    for p in range(x0.size):
        for b in range(32):
            phi[64 * p + b] = flip(ONE, x0[p], b) - HALF
        for b in range(32):
            phi[64 * p + 32 + b] = flip(ONE, x1[p], b) - HALF


@device
def window_of(j: int, length: int, longer: int) -> int:
    """The window of element j, where the first `longer` windows have length + 1 elements and the others length."""
    return j // (length + 1) if j < longer * (length + 1) else longer + (j - longer * (length + 1)) // length


@device
def sparse_entry(x: np.uint32, v: np.uint32, length: np.uint32, longer: np.uint32, first: np.uint32) -> np.uint32:
    """The non-zero of window v from its word x: twice its place, counted from element `first`, and the bit of its sign.

    The kernel of `sparse_entries`.
    """
    scaled = np.uint32(np.uint32(x >> np.uint32(8)) * np.uint32(length + np.uint32(v < longer)))
    start = np.uint32(np.uint32(v * length) + min(v, longer))
    place = np.uint32(np.uint32(start - first) + np.uint32(scaled >> np.uint32(24)))
    return np.uint32(np.uint32(place << np.uint32(1)) | np.uint32(x & np.uint32(1)))


@kernel
def fill_sparse(x0: Words, x1: Words, v: int, length: int, longer: int, first: int, entries: Words) -> None:
    """The non-zeros of the windows v + 2p and v + 2p + 1 from block p; v is even."""
    widest()
    for p in range(x0.size):
        here, size, more, origin = np.uint32(v + 2 * p), np.uint32(length), np.uint32(longer), np.uint32(first)
        entries[2 * p] = sparse_entry(x0[p], here, size, more, origin)
        entries[2 * p + 1] = sparse_entry(x1[p], np.uint32(here + np.uint32(1)), size, more, origin)
