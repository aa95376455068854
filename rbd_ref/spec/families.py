"""Families: how the words of one direction become its float32 entries.

Every float operation is float32, rounded once and never fused, in the order written here: the bits are the
specification (docs/specification.md, section 4). `srht` is in hadamard.py.
Twin: kernels/families.py. Tests: tests/test_families.py, tests/test_statistics.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rbd_ref._check import integer, member
from rbd_ref._types import F32, Float32Array, Indices, Words
from rbd_ref.spec.prng import threefry2x32

FAMILIES = ("normal", "uniform", "rademacher", "bernoulli-graphcore", "sparse", "srht")
DEFAULT_WINDOW = 100
LARGEST_WINDOW = 256


@dataclass(frozen=True)
class Family:
    """A family by name; `window` is the S of `sparse`, one non-zero in S elements or a few less, and 0 elsewhere."""

    name: str
    window: int = 0

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
TWO_THIRDS = F32(2 / 3)  # the mantissa is taken from here to 4/3, where -2 ln is small on both sides
THRESHOLD = np.int32(TWO_THIRDS.view(np.int32))  # its bits, for those who read exponents from bits
ONE = F32(1)
TWO = F32(2)
HALF = F32(0.5)
STEP_22 = F32(2.0**-22)
STEP_23 = F32(2.0**-23)
STEP_24 = F32(2.0**-24)
MIDDLE = F32(2.0**23)


def block_words(key: Words, direction: int, blocks: int) -> Words:
    """Words (2, blocks) of one direction: threefry(key, (direction, block))."""
    block = np.arange(blocks, dtype=np.uint32)
    return threefry2x32(key, np.stack([np.full_like(block, direction), block]))


def radius(x0: Words) -> Float32Array:
    """r = sqrt(-2 ln u) of u = float32(min(x0 >> 1 | 1, 2^31 - 2^7)) 2^-31.

    u = m 2^-E with 2/3 <= m < 4/3, z = m - 1, and -2 ln(1 + z) is z Q(z).
    """
    mantissa, exponent = np.frexp(np.minimum(x0 >> 1 | 1, LARGEST).astype(np.int32).astype(F32))
    low = mantissa < TWO_THIRDS
    m = np.where(low, TWO * mantissa, mantissa)
    e = (31 - np.where(low, exponent - 1, exponent)).astype(F32)
    z = m - ONE
    q = ((((Q5 * z + Q4) * z + Q3) * z + Q2) * z + Q1) * z + Q0
    r: Float32Array = np.sqrt(q * z + e * TWO_LN_2)
    return r


def normal_pairs(x: Words) -> Float32Array:
    """Box-Muller: pairs (2, n) of N(0, 1) from words (2, n); the angle is pi/4 f within a quadrant from two bits."""
    f = (2 * (x[1] >> 8 & 0x3FFFFF) + 1).astype(F32) * STEP_22 - ONE
    w = f * f
    sine = ((S2 * w + S1) * w + S0) * f
    cosine = ((C3 * w + C2) * w + C1) * w + ONE
    r = radius(x[0])
    a, b = r * np.where(x[1] >> 31 == 1, -cosine, cosine), r * sine
    swap = x[1] >> 30 & 1 == 1
    return np.stack([np.where(swap, b, a), np.where(swap, a, b)])


def uniform_pairs(x: Words) -> Float32Array:
    """Odd multiples of 2^-24 in (-1, 1), symmetric about 0: (2 (x >> 8) + 1 - 2^24) 2^-24, exact.

    The integer has 24 bits and a sign, so it is a float32. Devices without signed integers take
    ((x >> 8) - 2^23) 2^-23 + 2^-24 in floats (MIDDLE, STEP_23, STEP_24), which is exact too.
    """
    odd = 2 * (x >> 8).astype(np.int32) + 1 - 2**24
    return odd.astype(F32) * STEP_24


def bits(x: Words) -> Words:
    """The 64 bits of each block, bit b of x0 at place b and of x1 at place 32 + b, as one long vector."""
    places = np.arange(32, dtype=np.uint32)
    return (x.T[:, :, None] >> places & np.uint32(1)).reshape(-1)


def window_starts(size: int, window: int) -> Indices:
    """Where the windows start, and `size` at the end: the fewest of at most `window` elements, longer ones first."""
    windows = -(-size // window)
    length, longer = divmod(size, windows)
    v = np.arange(windows + 1)
    return v * length + np.minimum(v, longer)


def sparse_entries(key: Words, direction: int, size: int, window: int) -> tuple[Indices, Float32Array]:
    """Place and value of each window's non-zero: the place is (x >> 8) L >> 24 of its L elements, the sign is bit 0."""
    starts = window_starts(size, window)
    windows = starts.size - 1
    x = block_words(key, direction, -(-windows // 2)).T.reshape(-1)[:windows]
    place = starts[:-1] + ((x >> 8) * np.diff(starts).astype(np.uint32) >> 24).astype(np.int64)
    return place, ONE - TWO * (x & 1).astype(F32)


def direction_entries(family: Family, key: Words, direction: int, size: int) -> Float32Array:
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
