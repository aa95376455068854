"""The kernels: words, entries of every family, inner products, updates and the Walsh-Hadamard transform on the device.

A *job* is what one CUDA block does, a row of a table that backend.py makes; one launch works on all compartments.
Families come in three shapes by what a block of two words gives: `pairs` (normal, uniform), `bits` (rademacher,
bernoulli-graphcore: 64 elements) and `sparse` (two windows). No sum hangs on the order in which threads run: each
element of an update belongs to one thread, and inner products are added by a fixed tree.
Specification: docs/specification.md, sections 1, 4, 6 and 7.
Tests: tests/test_cuda_backend.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from rbd_cuda.arithmetic import (
    SIMULATED,
    add,
    add64,
    bits_of,
    cooperative,
    cuda,
    device,
    divide64,
    float_of,
    multiply,
    rounded,
    square_root,
    subtract,
)
from rbd_cuda.codes import BERNOULLI, NORMAL
from rbd_ref._types import Float32Array, Words
from rbd_ref.spec.families import (
    C1,
    C2,
    C3,
    HALF,
    LARGEST,
    MIDDLE,
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
    THRESHOLD,
    TWO_LN_2,
)
from rbd_ref.spec.hadamard import ROW_COUNTER, SIGN_COUNTER
from rbd_ref.spec.operations import LEAST_COEFFICIENT
from rbd_ref.spec.prng import PARITY

types: Any = numba.types
float32, float64, int64, uint32, void = types.float32, types.float64, types.int64, types.uint32, types.void
Jobs = NDArray[np.int64]
Sums = NDArray[np.float64]

THREADS = 32 if SIMULATED else 256  # of a CUDA block; the simulator starts a thread of Python for each
STAGED = 2 * THREADS  # words that a CUDA block holds in shared memory, two from each thread
TOGETHER = 16  # directions whose words are staged together by `rebuild_bits`
ELEMENTS = 4 * THREADS  # elements of a job of `rebuild_bits`, four a thread
BITS = ELEMENTS // 32  # words of them in one direction
RUN = 16  # pairs that a thread adds in float32 before it goes on in binary64
FAN = 8  # sums that a thread adds between two barriers
SPAN = 8 * THREADS  # elements of a job of the transform
PARTS = 2 if SIMULATED else 16  # of a direction, at most, that are dotted apart
MOST_BLOCKS = 2 if SIMULATED else 2**31 - 1  # that a launch without jobs starts; their threads take what is left
ZERO = np.float32(0)


@device
def mix(x0: np.uint32, x1: np.uint32, r: int) -> tuple[np.uint32, np.uint32]:
    """One round: add, rotate left by r bits, exclusive or."""
    total = np.uint32(x0 + x1)
    turned = np.uint32(np.uint32(x1 << np.uint32(r)) | np.uint32(x1 >> np.uint32(32 - r)))
    return total, np.uint32(turned ^ total)


@device
def threefry(k0: np.uint32, k1: np.uint32, x0: np.uint32, x1: np.uint32) -> tuple[np.uint32, np.uint32]:
    """Threefry2x32 with 20 rounds; a loop, which the compiler unrolls, since inlining is slow to compile."""
    k2 = np.uint32(np.uint32(k0 ^ k1) ^ PARITY)
    x0, x1 = np.uint32(x0 + k0), np.uint32(x1 + k1)
    for group in range(5):
        odd = group % 2 == 1
        x0, x1 = mix(x0, x1, 17 if odd else 13)
        x0, x1 = mix(x0, x1, 29 if odd else 15)
        x0, x1 = mix(x0, x1, 16 if odd else 26)
        x0, x1 = mix(x0, x1, 24 if odd else 6)
        x0, x1 = np.uint32(x0 + k1), np.uint32(x1 + np.uint32(k2 + np.uint32(group + 1)))
        k0, k1, k2 = k1, k2, k0
    return x0, x1


@device
def horner(q: np.float32, z: np.float32, c: np.float32) -> np.float32:
    """(q z) + c, rounded twice."""
    return add(multiply(q, z), c)


@device
def radius(x0: np.uint32) -> np.float32:
    """r of Box and Muller: the exponent is read from the bits of the float."""
    v = np.int32(np.uint32(x0 >> np.uint32(1)) | np.uint32(1))
    y = bits_of(np.float32(min(v, np.int32(LARGEST))))
    e = np.int32(np.int32(y - THRESHOLD) >> np.int32(23))
    z = subtract(float_of(np.int32(y - np.int32(e << np.int32(23)))), ONE)
    q = horner(horner(horner(Q5, z, Q4), z, Q3), z, Q2)
    q = horner(horner(q, z, Q1), z, Q0)
    scale = multiply(np.float32(np.int32(np.int32(31) - e)), TWO_LN_2)
    return square_root(add(multiply(q, z), scale))


@device
def normal_pair(x0: np.uint32, x1: np.uint32) -> tuple[np.float32, np.float32]:
    """Two entries of `normal`."""
    odd = np.int32(np.uint32(np.uint32(x1 >> np.uint32(7)) & np.uint32(0x7FFFFE)) | np.uint32(1))
    f = subtract(multiply(np.float32(odd), STEP_22), ONE)
    w = multiply(f, f)
    sine = multiply(horner(horner(S2, w, S1), w, S0), f)
    cosine = horner(horner(horner(C3, w, C2), w, C1), w, ONE)
    r = radius(x0)
    a = multiply(r, -cosine if np.uint32(x1 >> np.uint32(31)) == 1 else cosine)
    b = multiply(r, sine)
    swap = np.uint32(np.uint32(x1 >> np.uint32(30)) & np.uint32(1)) == 1
    return (b if swap else a), (a if swap else b)


@device
def uniform_value(x: np.uint32) -> np.float32:
    """An entry of `uniform`."""
    return add(multiply(subtract(np.float32(np.int32(x >> np.uint32(8))), MIDDLE), STEP_23), STEP_24)


@device
def pair(code: int, x0: np.uint32, x1: np.uint32) -> tuple[np.float32, np.float32]:
    """Two entries of `normal` or `uniform`."""
    if code == NORMAL:
        return normal_pair(x0, x1)
    return uniform_value(x0), uniform_value(x1)


@device
def bit_value(x: np.uint32, b: int, shift: np.float32) -> np.float32:
    """+1 or -1, less the shift, as bit b is clear or set."""
    odd = np.uint32(np.uint32(x >> np.uint32(b)) & np.uint32(1))
    return subtract(ONE if odd == 0 else -ONE, shift)


@device
def shift_of(code: int) -> np.float32:
    """What `bernoulli-graphcore` takes from signs."""
    return HALF if code == BERNOULLI else ZERO


@device
def window_shape(size: int, window: int) -> tuple[int, int, int]:
    """The number of windows, their length, and how many are longer by one."""
    windows = (size + window - 1) // window
    length = size // windows
    return windows, length, size - windows * length


@device
def place(x: np.uint32, v: int, length: int, longer: int) -> int:
    """The element where window v has its entry."""
    here = length + (1 if v < longer else 0)
    scaled = np.uint32(np.uint32(x >> np.uint32(8)) * np.uint32(here))
    j: int = v * length + min(v, longer) + int64(np.uint32(scaled >> np.uint32(24)))
    return j


@device
def coefficient(inner: float, divisor: float) -> np.float32:
    """inner / divisor as a float, +0 below 2^-64."""
    a = rounded(divide64(inner, divisor))
    return ZERO if -LEAST_COEFFICIENT < a < LEAST_COEFFICIENT else a


def words(k0: np.uint32, k1: np.uint32, counter: Words, out: Words) -> None:
    """The words of all counters."""
    for p in range(cuda.grid(1), counter.shape[1], cuda.gridsize(1)):
        out[0, p], out[1, p] = threefry(k0, k1, counter[0, p], counter[1, p])


def clear(x: Float32Array) -> None:
    """Zeros."""
    for p in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        x[p] = ZERO


# Updates. A job is (compartment, first block, first direction, number of directions, where their coefficients begin,
# where the compartment begins in u).


def rebuild_pairs(code: int, jobs: Jobs, keys: Words, sizes: Jobs, a: Float32Array, u: Float32Array) -> None:
    """A thread for each pair of elements, which takes the directions in order."""
    job = cuda.blockIdx.x
    k = jobs[job, 0]
    p = jobs[job, 1] + cuda.threadIdx.x
    first = jobs[job, 2]
    k0 = keys[0, k]
    k1 = keys[1, k]
    at = jobs[job, 4]
    here = jobs[job, 5] + 2 * p
    if 2 * p < sizes[k]:
        even, odd = ZERO, ZERO
        for i in range(jobs[job, 3]):
            x0, x1 = threefry(k0, k1, np.uint32(first + i), np.uint32(p))
            left, right = pair(code, x0, x1)
            even, odd = add(even, multiply(a[at + i], left)), add(odd, multiply(a[at + i], right))
        u[here] = even
        if 2 * p + 1 < sizes[k]:
            u[here + 1] = odd


def rebuild_bits(code: int, jobs: Jobs, keys: Words, sizes: Jobs, a: Float32Array, u: Float32Array) -> None:
    """Four elements a thread; the words of some directions are made by all threads together and read by all."""
    staged = cuda.shared.array(STAGED, uint32)
    job, t = cuda.blockIdx.x, cuda.threadIdx.x
    k = jobs[job, 0]
    first = jobs[job, 2]
    number = jobs[job, 3]
    at = jobs[job, 4]
    row = t // (BITS // 2)
    block = jobs[job, 1] + t % (BITS // 2)
    shift = shift_of(code)
    u0, u1, u2, u3 = ZERO, ZERO, ZERO, ZERO
    for begin in range(0, number, TOGETHER):
        x0, x1 = threefry(keys[0, k], keys[1, k], np.uint32(first + begin + row), np.uint32(block))
        cuda.syncthreads()
        staged[2 * t], staged[2 * t + 1] = x0, x1
        cuda.syncthreads()
        for i in range(min(TOGETHER, number - begin)):
            c, w = a[at + begin + i], i * BITS + t // 32
            u0 = add(u0, multiply(c, bit_value(staged[w], t % 32, shift)))
            u1 = add(u1, multiply(c, bit_value(staged[w + BITS // 4], t % 32, shift)))
            u2 = add(u2, multiply(c, bit_value(staged[w + BITS // 2], t % 32, shift)))
            u3 = add(u3, multiply(c, bit_value(staged[w + BITS // 4 * 3], t % 32, shift)))
    j = 64 * jobs[job, 1] + t
    for _ in range(4):
        if j < sizes[k]:
            u[jobs[job, 5] + j] = u0
        u0, u1, u2, j = u1, u2, u3, j + THREADS


def rebuild_sparse(window: int, jobs: Jobs, keys: Words, sizes: Jobs, a: Float32Array, u: Float32Array) -> None:
    """Two windows a thread, which adds their entries to u, zero before, direction by direction."""
    job = cuda.blockIdx.x
    k = jobs[job, 0]
    p = jobs[job, 1] + cuda.threadIdx.x
    first = jobs[job, 2]
    k0 = keys[0, k]
    k1 = keys[1, k]
    at = jobs[job, 4]
    here = jobs[job, 5]
    windows, length, longer = window_shape(sizes[k], window)
    for i in range(jobs[job, 3] if 2 * p < windows else 0):
        x0, x1 = threefry(k0, k1, np.uint32(first + i), np.uint32(p))
        j = here + place(x0, 2 * p, length, longer)
        u[j] = add(u[j], multiply(a[at + i], bit_value(x0, 0, ZERO)))
        if 2 * p + 1 < windows:
            j = here + place(x1, 2 * p + 1, length, longer)
            u[j] = add(u[j], multiply(a[at + i], bit_value(x1, 0, ZERO)))


# Inner products. A job is (compartment, first block, last block, direction, where the compartment begins in g).


@cooperative
def reduce(inner: float, square: float, sums: Sums) -> None:
    """Add the sums of all threads, at most FAN by a thread and barrier; thread 0 writes them."""
    both = cuda.shared.array((2, THREADS), float64)
    t, number = cuda.threadIdx.x, THREADS
    both[0, t], both[1, t] = inner, square
    while number > 1:
        adders = (number + FAN - 1) // FAN
        cuda.syncthreads()
        for s in range(t + adders, number if t < adders else 0, adders):
            both[0, t], both[1, t] = add64(both[0, t], both[0, s]), add64(both[1, t], both[1, s])
        number = adders
    if t == 0:
        sums[cuda.blockIdx.x, 0], sums[cuda.blockIdx.x, 1] = both[0, 0], both[1, 0]


def dot_pairs(code: int, jobs: Jobs, keys: Words, sizes: Jobs, g: Float32Array, sums: Sums) -> None:
    """Each thread takes every 256th pair: some in float32, and their sums in binary64."""
    job = cuda.blockIdx.x
    k = jobs[job, 0]
    last = jobs[job, 2]
    start = jobs[job, 4]
    inner, square = float64(0), float64(0)
    for begin in range(jobs[job, 1] + cuda.threadIdx.x, last, RUN * THREADS):
        s, t = ZERO, ZERO
        for p in range(begin, min(last, begin + RUN * THREADS), THREADS):
            x0, x1 = threefry(keys[0, k], keys[1, k], np.uint32(jobs[job, 3]), np.uint32(p))
            left, right = pair(code, x0, x1)
            s, t = add(s, multiply(left, g[start + 2 * p])), add(t, multiply(left, left))
            if 2 * p + 1 < sizes[k]:
                s, t = add(s, multiply(right, g[start + 2 * p + 1])), add(t, multiply(right, right))
        inner, square = add64(inner, float64(s)), add64(square, float64(t))
    reduce(inner, square, sums)


def dot_bits(code: int, jobs: Jobs, keys: Words, sizes: Jobs, g: Float32Array, sums: Sums) -> None:
    """The threads make a block of words each; then each takes every 256th element of those."""
    staged = cuda.shared.array(STAGED, uint32)
    job = cuda.blockIdx.x
    t = cuda.threadIdx.x
    shift = shift_of(code)
    k = jobs[job, 0]
    last = jobs[job, 2]
    start = jobs[job, 4]
    inner, square = float64(0), float64(0)
    for begin in range(jobs[job, 1], last, THREADS):
        x0, x1 = threefry(keys[0, k], keys[1, k], np.uint32(jobs[job, 3]), np.uint32(begin + t))
        cuda.syncthreads()
        staged[2 * t], staged[2 * t + 1] = x0, x1
        cuda.syncthreads()
        s, q = ZERO, ZERO
        for j in range(64 * begin + t, min(sizes[k], 64 * min(last, begin + THREADS)), THREADS):
            value = bit_value(staged[j // 32 - 2 * begin], t % 32, shift)
            s, q = add(s, multiply(value, g[start + j])), add(q, multiply(value, value))
        inner, square = add64(inner, float64(s)), add64(square, float64(q))
    reduce(inner, square, sums)


def dot_sparse(window: int, jobs: Jobs, keys: Words, sizes: Jobs, g: Float32Array, sums: Sums) -> None:
    """Each thread takes the two windows of every 256th block, in binary64."""
    job = cuda.blockIdx.x
    k, start = jobs[job, 0], jobs[job, 4]
    windows, length, longer = window_shape(sizes[k], window)
    inner, square = float64(0), float64(0)
    for p in range(jobs[job, 1] + cuda.threadIdx.x, jobs[job, 2], THREADS):
        x0, x1 = threefry(keys[0, k], keys[1, k], np.uint32(jobs[job, 3]), np.uint32(p))
        value = multiply(bit_value(x0, 0, ZERO), g[start + place(x0, 2 * p, length, longer)])
        inner, square = add64(inner, float64(value)), add64(square, float64(1))
        if 2 * p + 1 < windows:
            value = multiply(bit_value(x1, 0, ZERO), g[start + place(x1, 2 * p + 1, length, longer)])
            inner, square = add64(inner, float64(value)), add64(square, float64(1))
    reduce(inner, square, sums)


def finish(first: Jobs, sums: Sums, divisors: Sums, a: Float32Array) -> None:
    """Coefficients: the sums of their jobs in order, divided by N; N is their square where that is 0."""
    for q in range(cuda.grid(1), a.shape[0], cuda.gridsize(1)):
        inner, square = float64(0), float64(0)
        for job in range(first[q], first[q + 1]):
            inner, square = add64(inner, sums[job, 0]), add64(square, sums[job, 1])
        a[q] = coefficient(inner, square if divisors[q] == 0 else divisors[q])


# The structured family. A job is (compartment, first element, where the compartment begins in the one vector, in the
# other) for signs, (compartment, first block, where the padded compartment begins, padded size) for words of rows,
# (compartment, first element, row, where the direction begins) for directions, and (where the padded compartment
# begins, first element, padded size) for the transform.


@device
def sign(k0: np.uint32, k1: np.uint32, j: int) -> np.float32:
    """s_j of `srht`."""
    x0, x1 = threefry(k0, k1, np.uint32(SIGN_COUNTER), np.uint32(j // 64))
    return bit_value(x0 if j % 64 < 32 else x1, j % 32, ZERO)


def srht_words(jobs: Jobs, keys: Words, x: NDArray[np.uint32]) -> None:
    """The words of all rows: a thread for each block of two."""
    job = cuda.blockIdx.x
    k, p = jobs[job, 0], jobs[job, 1] + cuda.threadIdx.x
    here = jobs[job, 2] + 2 * p
    if 2 * p < jobs[job, 3]:
        x0, x1 = threefry(keys[0, k], keys[1, k], np.uint32(ROW_COUNTER), np.uint32(p))
        x[here] = x0
        if 2 * p + 1 < jobs[job, 3]:
            x[here + 1] = x1


def srht_rows(jobs: Jobs, keys: Words, sizes: Jobs, phi: Float32Array) -> None:
    """Elements of directions: signs, turned where an odd number of bits is set in both the row and the element."""
    job = cuda.blockIdx.x
    k, row = jobs[job, 0], jobs[job, 2]
    for j in range(jobs[job, 1] + cuda.threadIdx.x, min(sizes[k], jobs[job, 1] + SPAN), THREADS):
        s = sign(keys[0, k], keys[1, k], j)
        phi[jobs[job, 3] + j] = s if cuda.popc(np.uint32(row & j)) % 2 == 0 else -s


def srht_signs(jobs: Jobs, keys: Words, sizes: Jobs, x: Float32Array, y: Float32Array) -> None:
    """y_j = 0 + s_j x_j; an eighth of the threads make the words that all read."""
    staged = cuda.shared.array(STAGED, uint32)
    job, t = cuda.blockIdx.x, cuda.threadIdx.x
    k, first = jobs[job, 0], jobs[job, 1]
    if t < SPAN // 64:
        x0, x1 = threefry(keys[0, k], keys[1, k], np.uint32(SIGN_COUNTER), np.uint32(first // 64 + t))
        staged[2 * t], staged[2 * t + 1] = x0, x1
    cuda.syncthreads()
    for j in range(first + t, min(sizes[k], first + SPAN), THREADS):
        s = bit_value(staged[(j - first) // 32], t % 32, ZERO)
        y[jobs[job, 3] + j] = add(ZERO, multiply(s, x[jobs[job, 2] + j]))


def srht_tile(jobs: Jobs, x: Float32Array) -> None:
    """The levels of the transform that stay within a job's elements, in shared memory."""
    tile = cuda.shared.array(SPAN, float32)
    job, t = cuda.blockIdx.x, cuda.threadIdx.x
    start, number = jobs[job, 0] + jobs[job, 1], min(SPAN, jobs[job, 2])
    for j in range(t, number, THREADS):
        tile[j] = x[start + j]
    h = 1
    while h < number:
        cuda.syncthreads()
        for r in range(t, number // 2, THREADS):
            j = 2 * r - (r & (h - 1))
            low, high = tile[j], tile[j + h]
            tile[j], tile[j + h] = add(low, high), subtract(low, high)
        h *= 2
    cuda.syncthreads()
    for j in range(t, number, THREADS):
        x[start + j] = tile[j]


def srht_level(h: int, jobs: Jobs, x: Float32Array) -> None:
    """One level of the transform for compartments of more than h elements: a job does half as many pairs."""
    job = cuda.blockIdx.x
    first = jobs[job, 1] // 2
    for r in range(first + cuda.threadIdx.x, first + SPAN // 2, THREADS):
        j = jobs[job, 0] + 2 * r - (r & (h - 1))
        low, high = x[j], x[j + h]
        x[j], x[j + h] = add(low, high), subtract(low, high)


def srht_pick(places: Jobs, divisors: Sums, x: Float32Array, a: Float32Array) -> None:
    """Coefficients: their rows of the transform, divided by N."""
    for q in range(cuda.grid(1), a.shape[0], cuda.gridsize(1)):
        a[q] = coefficient(float64(x[places[q]]), divisors[q])


def srht_place(places: Jobs, a: Float32Array, x: Float32Array) -> None:
    """Coefficients, each put at its row."""
    for q in range(cuda.grid(1), a.shape[0], cuda.gridsize(1)):
        x[places[q]] = a[q]


class Kernel(NamedTuple):
    """A kernel as it is written, and the types it is compiled for."""

    function: Callable[..., None]
    signature: Any


_jobs, _words, _numbers = int64[:, ::1], uint32[:, ::1], int64[::1]
_vector, _doubles, _sums = float32[::1], float64[::1], float64[:, ::1]
_rebuild = void(int64, _jobs, _words, _numbers, _vector, _vector)
_dot = void(int64, _jobs, _words, _numbers, _vector, _sums)
KERNELS: dict[str, Kernel] = {
    kernel.function.__name__: kernel
    for kernel in (
        Kernel(words, void(uint32, uint32, _words, _words)),
        Kernel(clear, void(_vector)),
        Kernel(rebuild_pairs, _rebuild),
        Kernel(rebuild_bits, _rebuild),
        Kernel(rebuild_sparse, _rebuild),
        Kernel(dot_pairs, _dot),
        Kernel(dot_bits, _dot),
        Kernel(dot_sparse, _dot),
        Kernel(finish, void(_numbers, _sums, _doubles, _vector)),
        Kernel(srht_words, void(_jobs, _words, uint32[::1])),
        Kernel(srht_rows, void(_jobs, _words, _numbers, _vector)),
        Kernel(srht_signs, void(_jobs, _words, _numbers, _vector, _vector)),
        Kernel(srht_tile, void(_jobs, _vector)),
        Kernel(srht_level, void(int64, _jobs, _vector)),
        Kernel(srht_pick, void(_numbers, _doubles, _vector, _vector)),
        Kernel(srht_place, void(_numbers, _vector, _vector)),
    )
}
