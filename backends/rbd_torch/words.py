"""Threefry2x32-20 on tensors: torch has no arithmetic of uint32, so words are int32 that wrap around.

Specification: docs/specification.md, section 1.
Tests: tests/test_torch_backend.py.
"""

from __future__ import annotations

from torch import Tensor

from rbd_ref.spec.prng import PARITY, ROTATIONS

Pair = tuple[Tensor, Tensor]
SIGN = -(2**31)  # bit 31 of an int32


def shift_right(x: Tensor, r: int) -> Tensor:
    """x >> r filling with zeros, 0 < r < 32, as a new tensor; torch's own shift of int32 repeats the sign."""
    return (x >> r).bitwise_and_((1 << (32 - r)) - 1)


def rotate(x: Tensor, r: int) -> Tensor:
    """x rotated left by r bits: the upper bits, and 2^r x on top of them. The result is a new tensor."""
    return shift_right(x, 32 - r).add_(x, alpha=1 << r)


def four_rounds(x0: Tensor, x1: Tensor, group: int) -> Pair:
    """Four times: add, rotate, exclusive or."""
    for r in ROTATIONS[group % 2]:
        x0 = x0 + x1
        x1 = rotate(x1, r).bitwise_xor_(x0)
    return x0, x1


def threefry(k0: Tensor, k1: Tensor, c0: Tensor, c1: Tensor) -> Pair:
    """The two words of each key and counter, all int32; c1 + k1 has the shape of the result and c0 + k0 fits it."""
    keys = (k0, k1, k0 ^ k1 ^ int(PARITY))
    x0, x1 = c0 + k0, c1 + k1
    for group in range(5):
        x0, x1 = four_rounds(x0, x1, group)
        x0 = x0.add_(keys[(group + 1) % 3])
        x1 = x1.add_(keys[(group + 2) % 3] + (group + 1))
    return x0, x1
