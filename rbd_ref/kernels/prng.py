"""Words by machine code: the twin of spec/prng.py.

Tests: tests/test_prng.py.
"""

from __future__ import annotations

import numpy as np

from rbd_ref._types import Words
from rbd_ref.kernels._jit import device, kernel, parallel_kernel, prange
from rbd_ref.spec.prng import PARITY, STREAMS

BASES = STREAMS["bases"]

# As numbers of a type and not as literals, of each of which Numba would compile functions of its own.
R0, R1, R2, R3, R4, R5, R6, R7 = (np.uint32(r) for r in (13, 15, 26, 6, 17, 29, 16, 24))
G0, G1, G2, G3, G4, G5 = (np.uint32(group) for group in range(6))


@device
def rotate(x: np.uint32, r: np.uint32) -> np.uint32:
    """x rotated left by r bits."""
    return np.uint32(np.uint32(x << r) | np.uint32(x >> np.uint32(np.uint32(32) - r)))


@device
def four_rounds(
    x0: np.uint32, x1: np.uint32, r0: np.uint32, r1: np.uint32, r2: np.uint32, r3: np.uint32
) -> tuple[np.uint32, np.uint32]:
    """Four times: add, rotate, exclusive or."""
    x0 = np.uint32(x0 + x1)
    x1 = np.uint32(rotate(x1, r0) ^ x0)
    x0 = np.uint32(x0 + x1)
    x1 = np.uint32(rotate(x1, r1) ^ x0)
    x0 = np.uint32(x0 + x1)
    x1 = np.uint32(rotate(x1, r2) ^ x0)
    x0 = np.uint32(x0 + x1)
    x1 = np.uint32(rotate(x1, r3) ^ x0)
    return x0, x1


@device
def inject(x0: np.uint32, x1: np.uint32, ka: np.uint32, kb: np.uint32, group: np.uint32) -> tuple[np.uint32, np.uint32]:
    """Add two key words and the number of the group."""
    return np.uint32(x0 + ka), np.uint32(x1 + np.uint32(kb + group))


@device
def threefry2x32(k0: np.uint32, k1: np.uint32, x0: np.uint32, x1: np.uint32) -> tuple[np.uint32, np.uint32]:
    """Threefry2x32-20 of one key and one counter."""
    k2 = np.uint32(k0 ^ k1 ^ PARITY)
    x0, x1 = inject(x0, x1, k0, k1, G0)
    x0, x1 = four_rounds(x0, x1, R0, R1, R2, R3)
    x0, x1 = inject(x0, x1, k1, k2, G1)
    x0, x1 = four_rounds(x0, x1, R4, R5, R6, R7)
    x0, x1 = inject(x0, x1, k2, k0, G2)
    x0, x1 = four_rounds(x0, x1, R0, R1, R2, R3)
    x0, x1 = inject(x0, x1, k0, k1, G3)
    x0, x1 = four_rounds(x0, x1, R4, R5, R6, R7)
    x0, x1 = inject(x0, x1, k1, k2, G4)
    x0, x1 = four_rounds(x0, x1, R0, R1, R2, R3)
    return inject(x0, x1, k2, k0, G5)


@kernel
def basis_key(seed: tuple[int, int], step: int, worker: int) -> tuple[np.uint32, np.uint32]:
    """The key of one basis, before that of a compartment is folded in; the seed is its high and its low word."""
    k0, k1 = np.uint32(seed[0]), np.uint32(seed[1])
    for number in (BASES, step, worker):
        k0, k1 = threefry2x32(k0, k1, np.uint32(0), np.uint32(number))
    return k0, k1


@kernel
def basis_keys(seed: tuple[int, int], step: int, worker: int, compartments: int) -> Words:
    """Keys (2, K) of one basis. With `basis_key` written out here, LLVM takes four times as long."""
    k0, k1 = basis_key(seed, step, worker)
    keys = np.empty((2, compartments), np.uint32)
    high, low = keys[0], keys[1]
    for k in range(compartments):
        high[k], low[k] = threefry2x32(k0, k1, np.uint32(0), np.uint32(k))
    return keys


@parallel_kernel
def fill_threefry(k0: np.uint32, k1: np.uint32, counter: Words, out: Words) -> None:
    """The words of each column of `counter`."""
    for p in prange(counter.shape[1]):
        out[0, p], out[1, p] = threefry2x32(k0, k1, counter[0, p], counter[1, p])
