"""exp and log against arithmetic of forty digits, and their bits."""

from __future__ import annotations

import hashlib
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbd_ref.models.elementary import LEAST, MOST, exp, log


def error(found: float, exact: Decimal) -> float:
    """In units of the last place of what was found."""
    return abs(float((Decimal(found) - exact) / Decimal(math.ulp(found))))


@given(st.floats(LEAST, MOST) | st.floats(-1, 1) | st.floats(-50, 0))
def test_exp_is_within_a_unit_of_the_last_place(x: float) -> None:
    with localcontext(prec=40):
        assert error(exp(x), Decimal(x).exp()) < 1


@given(st.floats(2.0**-1022, 1e308) | st.floats(0.5, 2) | st.floats(1, 1000))
def test_log_is_within_a_unit_of_the_last_place(x: float) -> None:
    with localcontext(prec=40):
        assert error(log(x), Decimal(x).ln()) < 1


def test_where_there_is_nothing_to_compute() -> None:
    assert (exp(0.0), exp(-0.0), log(1.0)) == (1, 1, 0)
    assert (exp(-709.0), exp(-math.inf), exp(710.0), exp(math.inf)) == (0, 0, math.inf, math.inf)
    assert exp(math.nextafter(LEAST, 0)) > 0
    assert math.isnan(exp(math.nan))


@pytest.mark.parametrize(
    ("function", "first", "expected"), [(exp, -700.0, "5cc852647f047267"), (log, 2.0**-1000, "afe8a4dd7848861b")]
)
def test_bits_are_frozen(function: object, first: float, expected: str) -> None:
    """They must never depend on a library: this is where a machine would show that they do."""
    points = np.linspace(first, 700, 2001)
    digest = hashlib.sha256(np.array([function(x) for x in points]).astype("<f8").tobytes())  # type: ignore[operator]
    assert digest.hexdigest()[:16] == expected
