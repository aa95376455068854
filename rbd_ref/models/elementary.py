"""exp and log in binary64 from + - * / alone, each rounded once: the same bits on every machine.

The C library's differ in the last bit from one version or CPU to another, and NumPy's with the vectors it finds. These
follow Sun's fdlibm (1993), whose error is below 1 unit in the last place: reduce the argument, then a polynomial
inside a quotient. Constants are binary64 numbers, and operations are done in the order that is written.
Tests: tests/test_elementary.py.
"""

from __future__ import annotations

import math

from rbd_ref.kernels._jit import kernel

LEAST = -708.0  # exp of less is 0
MOST = 709.0  # exp of more is infinite
HALF_ROOT = 0.7071067811865476  # sqrt(1/2)
INVERSE = 1.44269504088896338700e00  # 1 / ln 2
LN2_HIGH = 6.93147180369123816490e-01  # its last 21 bits are zeros: an integer of 11 bits times it is exact
LN2_LOW = 1.90821492927058770002e-10
P1 = 1.66666666666666019037e-01
P2 = -2.77777777770155933842e-03
P3 = 6.61375632143793436117e-05
P4 = -1.65339022054652515390e-06
P5 = 4.13813679705723846039e-08
L1 = 6.666666666666735130e-01
L2 = 3.999999999940941908e-01
L3 = 2.857142874366239149e-01
L4 = 2.222219843214978396e-01
L5 = 1.818357216161805012e-01
L6 = 1.531383769920937332e-01
L7 = 1.479819860511658591e-01


@kernel
def exp(x: float) -> float:
    """e^x: with k = floor(x / ln 2 + 1/2) and r = high - low, where high = x - k LN2_HIGH and low = k LN2_LOW,

        t = r r,  c = r - t (P1 + t (P2 + t (P3 + t (P4 + t P5)))),  e^r = 1 - ((low - (r c) / (2 - c)) - high)

    and 2^k e^r, which is exact. 0 below -708, infinite above 709."""
    if not x >= LEAST:  # or not a number
        return 0.0 if x < LEAST else x
    if x > MOST:
        return math.inf
    k = math.floor(x * INVERSE + 0.5)
    high = x - k * LN2_HIGH
    low = k * LN2_LOW
    r = high - low
    t = r * r
    c = r - t * (P1 + t * (P2 + t * (P3 + t * (P4 + t * P5))))
    return math.ldexp(1.0 - ((low - (r * c) / (2.0 - c)) - high), int(k))


@kernel
def log(x: float) -> float:
    """ln x of a positive number that is not subnormal: with x = 2^k (1 + f) and sqrt(1/2) <= 1 + f < sqrt 2,

    s = f / (2 + f),  z = s s,  w = z z,  h = (f / 2) f
    R = w (L2 + w (L4 + w L6)) + z (L1 + w (L3 + w (L5 + w L7)))
    ln x = k LN2_HIGH - ((h - (s (h + R) + k LN2_LOW)) - f)
    """
    m, k = math.frexp(x)
    if m < HALF_ROOT:
        m = m * 2.0
        k = k - 1
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    h = (0.5 * f) * f
    rest = w * (L2 + w * (L4 + w * L6)) + z * (L1 + w * (L3 + w * (L5 + w * L7)))
    return k * LN2_HIGH - ((h - (s * (h + rest) + k * LN2_LOW)) - f)
