"""Coefficients in fewer bits: what a worker sends in place of floats, and what everyone, the worker too, takes it for.

    int8   s q_i       s = max |a_i| / 127,   q_i = a_i / s rounded to nearest even             8 bits each
    sign   s or -s     s = mean |a_i|, the multiple of the signs that is nearest to a           1 bit each

There is a scale s for each compartment, as gradients of unlike layers have unlike lengths. Within a compartment all
coefficients are coordinates divided by the same length, up to chance, so a code of one is a code of the other.

Codes are packed into 32-bit words. What holds such words between a worker and its readers (rows, messages, the journal)
is an array of floats in name only: it is copied, never computed with, as arithmetic could change the bits of a NaN.
Specification: docs/specification.md, section 11.1. Tests: tests/test_codes.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rbd_ref._types import F32, Bytes, Float32Array, Indices, Words

LITTLE = np.dtype("<u4")  # a word is four bytes, the lowest first, on every machine
LARGEST = 127


class Code(NamedTuple):
    """How coefficients are written.

    bits    of each of them
    scale   of the coefficients a, of which each compartment has so many, in order: a scale for each compartment
    pack    the codes of a, each with its scale, as bytes
    unpack  bytes to coefficients, each with its scale
    """

    bits: int
    scale: Callable[[Float32Array, Indices], Float32Array]
    pack: Callable[[Float32Array, Float32Array], Bytes]
    unpack: Callable[[Bytes, Float32Array], Float32Array]

    def words(self, n: int) -> int:
        """How many words n codes take."""
        return -(-n * self.bits // 32)


def encode(code: Code, a: Float32Array, lengths: Indices) -> tuple[Words, Float32Array]:
    """The words and scales of finite coefficients, of which compartments have `lengths`, in order."""
    scales = code.scale(a, lengths)
    packed = code.pack(a, np.repeat(scales, lengths))
    whole = np.zeros(4 * code.words(a.size), dtype=np.uint8)
    whole[: packed.size] = packed
    return whole.view(LITTLE).astype(np.uint32, copy=False), scales


def decode(code: Code, words: Words, scales: Float32Array, lengths: Indices) -> Float32Array:
    """The coefficients that words and scales stand for."""
    packed = words.astype(LITTLE, copy=False).view(np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):  # of scales that nobody computed
        return code.unpack(packed, np.repeat(scales, lengths))


def mean_scale(a: Float32Array, lengths: Indices) -> Float32Array:
    """float32((|a_0| + |a_1| + ...) / n) of each compartment, the sum in binary64, in order."""
    owners = np.repeat(np.arange(lengths.size), lengths)
    sums = np.bincount(owners, np.abs(a))  # adds one after the other, from +0
    scale: Float32Array = (sums / lengths).astype(F32)
    return scale


def pack_signs(a: Float32Array, s: Float32Array) -> Bytes:
    """A bit each, set where a_i < 0, the first in the lowest bit of the first byte."""
    return np.packbits(a < 0, bitorder="little")


def unpack_signs(packed: Bytes, s: Float32Array) -> Float32Array:
    """-s_i where the bit is set, else s_i: the bit is its sign."""
    bits = np.unpackbits(packed, count=s.size, bitorder="little").astype(np.uint32)
    return (s.view(np.uint32) ^ (bits << 31)).view(F32)


def largest_scale(a: Float32Array, lengths: Indices) -> Float32Array:
    """max |a_i| / 127 of each compartment, rounded once."""
    largest: Float32Array = np.maximum.reduceat(np.abs(a), np.cumsum(lengths) - lengths)
    return largest / F32(LARGEST)


def pack_bytes(a: Float32Array, s: Float32Array) -> Bytes:
    """q_i = a_i / s_i, rounded once, then to the nearest even integer, within -127 .. 127; 0 where s_i is 0."""
    quotients = np.divide(a, s, out=np.zeros_like(a), where=s > 0)
    return np.rint(quotients).clip(-LARGEST, LARGEST).astype(np.int8).view(np.uint8)


def unpack_bytes(packed: Bytes, s: Float32Array) -> Float32Array:
    """s_i * q_i, rounded once."""
    product: Float32Array = s * packed[: s.size].view(np.int8).astype(F32)
    return product


CODES = {
    "int8": Code(8, largest_scale, pack_bytes, unpack_bytes),
    "sign": Code(1, mean_scale, pack_signs, unpack_signs),
}
COEFFICIENTS = ("float32", *CODES)
