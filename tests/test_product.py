"""The matrix product against its definition, bit by bit, and the definition against exact arithmetic."""

from __future__ import annotations

import math
import platform
from fractions import Fraction
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbd_ref.conformance.cases import pseudo_random
from rbd_ref.kernels._fma import ROWS, fused
from rbd_ref.models import product as products
from rbd_ref.models.product import Product, product
from tools import COMPILED, run_python

F32 = np.float32
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, -3.4028235e38, 1.0]
singles = st.integers(0, 2**32 - 1).map(lambda word: float(np.uint32(word).view(F32)))
singles |= st.sampled_from(SPECIAL).map(lambda x: float(F32(x)))
sides = st.integers(1, 4) | st.integers(1, 40 if COMPILED else 9)


def words(x: Any) -> Any:
    """The bits of floats, all that are not numbers alike."""
    plain = np.where(np.isnan(x), np.array(np.nan, dtype=x.dtype), x)
    return plain.view(np.uint32 if x.dtype == F32 else np.uint64)


def definition(a: Any, b: Any, start: Any) -> Any:
    """Each sum in order of k, one fused multiply-add each."""
    c = np.zeros((a.shape[0], b.shape[1]), dtype=b.dtype) + start
    with np.errstate(all="ignore"):
        for k in range(a.shape[1]):
            c = fused(a[:, k, None], b[k], c)
    return c


def nearest(value: Fraction, dtype: Any) -> float:
    """The float nearest to a number, of equally near ones the even; Python divides integers so, for float64."""
    if dtype == np.float64 or value == 0:
        return value.numerator / value.denominator
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - 23, -149)
    return float(round(value / unit) * unit)


@given(singles, singles, singles)
def test_the_twin_is_exact(a: float, b: float, c: float) -> None:
    with np.errstate(all="ignore"):
        found = fused(*(np.array([x], dtype=F32) for x in (a, b, c)))
        expected = a * b + c  # right where it is exactly 0, or no number, or infinite because one of them is
        if all(map(math.isfinite, (a, b, c))):
            exact = Fraction(a) * Fraction(b) + Fraction(c)
            expected = math.copysign(nearest(exact, F32), exact or expected)
        np.testing.assert_array_equal(words(found), words(np.array([expected]).astype(F32)))


@given(*[st.floats(1e-60, 1e60) | st.floats(-1e60, -1e-60)] * 3)
def test_the_twin_of_float64_is_exact(a: float, b: float, c: float) -> None:
    found = fused(*(np.array([x]) for x in (a, b, c)))[0]
    assert found == nearest(Fraction(a) * Fraction(b) + Fraction(c), np.float64)


def test_the_twin_rounds_once() -> None:
    """2^-24 would be lost if the product were rounded first; just above the middle of two floats is rounded up."""
    one_and = F32(1 + 2**-12)
    square = np.array([one_and])
    assert fused(square, square, np.array([-1], dtype=F32))[0] == F32(2**-11 + 2**-24)
    tiny = np.array([2.0**-40], dtype=F32)
    assert fused(tiny, tiny, np.array([1], dtype=F32))[0] == 1
    middle = np.array([2.0**-24 * (1 + 2.0**-23)], dtype=F32)
    assert fused(middle, np.array([1], dtype=F32), np.array([1], dtype=F32))[0] == F32(1 + 2**-23)


@given(st.data(), sides, sides, sides, st.booleans(), st.booleans())
def test_a_product_is_its_definition_to_the_bit(
    data: st.DataObject, m: int, k: int, n: int, turned: bool, special: bool
) -> None:
    a, b, start = (pseudo_random(i, math.prod(shape)).reshape(shape) for i, shape in enumerate([(m, k), (k, n), (n,)]))
    if special:
        for array in (a, b, start):
            for value in data.draw(st.lists(singles, max_size=3)):
                array.flat[data.draw(st.integers(0, array.size - 1))] = value
    given_a = np.asfortranarray(a) if turned else a
    np.testing.assert_array_equal(words(product(given_a, b, start)), words(definition(a, b, start)))


@pytest.mark.parametrize("dtype", [F32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (8, 3, 16), (9, 4, 17), (7, 1, 15), (13, 9, 8), (25, 2, 9)])
def test_edges_of_tiles_and_vectors(shape: tuple[int, int, int], dtype: Any) -> None:
    m, k, n = shape
    a, b = (pseudo_random(i, x * y).reshape(x, y).astype(dtype) for i, (x, y) in enumerate([(m, k), (k, n)]))
    expected = words(definition(a, b, dtype(0)))
    np.testing.assert_array_equal(words(product(a, b)), expected)
    np.testing.assert_array_equal(words(product(np.asfortranarray(a), b)), expected)


@pytest.mark.compiled
@pytest.mark.parametrize("shape", [(32, 3072, 128), (32, 784, 128), (900, 27, 32), (169, 288, 64), (32, 64, 10)])
def test_a_large_product_is_its_definition_with_any_number_of_threads(shape: tuple[int, int, int]) -> None:
    """The shapes of fc and cnn; at 32 x 784 x 128 the bits of OpenBLAS 0.3.31 changed with its number of threads."""
    m, k, n = shape
    a, b = (pseudo_random(i, x * y).reshape(x, y) for i, (x, y) in enumerate([(m, k), (k, n)]))
    expected = words(definition(a, b, F32(0)))
    most = numba.get_num_threads()
    try:
        for threads in range(1, min(most, 3) + 1):
            numba.set_num_threads(threads)
            np.testing.assert_array_equal(words(product(a, b)), expected)
    finally:
        numba.set_num_threads(most)
    np.testing.assert_allclose(product(a, b), a.astype(float) @ b.astype(float), atol=2e-3)


@pytest.mark.parametrize("parts", [2, 3, 5])
@pytest.mark.parametrize("count", [1, 7])
def test_parts_do_not_change_a_bit(count: int, parts: int) -> None:
    """Of rows or of images, with several taps, and not below a floor."""
    m, k, n, taps = 2 * ROWS + 3, 3, 5, 2
    a = pseudo_random(1, count * (m + taps) * k)
    b = pseudo_random(2, taps * k * n).reshape(taps, k, n)
    index = Product(
        np.arange(m) * k, np.arange(k), np.arange(m) * n, taps=([0, k], [0, 0]), count=count,
        images=((m + taps) * k, m * n),
    )  # fmt: skip
    expected = np.empty(count * m * n, dtype=F32)
    found = np.empty_like(expected)
    start = pseudo_random(3, n)
    index(a, b, expected, start, floor=-0.25)
    products.multiply_in_parallel(
        products._address(a.dtype),
        a,
        *index.indices[:2],
        b,
        start,
        found,
        *index.indices[2:],
        False,
        F32(-0.25),
        count,
        parts,
    )
    np.testing.assert_array_equal(words(found), words(expected))
    images = a.reshape(count, m + taps, k)
    for i in range(count):
        total = np.broadcast_to(start, (m, n))
        for t in range(taps):
            for term in range(k):
                total = fused(images[i, t : t + m, term, None], b[t, term], total)
        wanted = np.where(total <= F32(-0.25), F32(-0.25), total)
        np.testing.assert_array_equal(words(expected.reshape(count, m, n)[i]), words(wanted))


SLOW = """
import numpy as np
from rbd_ref.models.product import product
a, start = np.full((1, 1), 1 + 2**-12, np.float32), np.full(1, -1, np.float32)
for _ in range(2):
    print(float(product(a, a, start)[0, 0]).hex())
"""


@pytest.mark.compiled
def test_without_fused_multiply_add_in_hardware_bits_are_the_same_and_a_line_says_so() -> None:
    result = run_python("-W", "always", "-c", SLOW, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    assert result.stdout == 2 * f"{(2**-11 + 2**-24).hex()}\n", result.stderr
    assert result.stderr.count("this CPU has no fused multiply-add") == (platform.machine() == "x86_64")
