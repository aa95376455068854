"""Hypothesis strategies for plans, bases and vectors; small where kernels run as plain Python."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from rbd_ref import compartments
from rbd_ref._types import Float32Array
from rbd_ref.conformance.cases import draw_at, pseudo_random
from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.families import FAMILIES
from rbd_ref.spec.operations import NORMALIZATIONS, Draw
from tools import COMPILED

LARGEST_SIZE = 3000 if COMPILED else 70
LARGEST_D_DIMENSION = 12 if COMPILED else 3

numbers = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 2**31, 2**32 - 1])
seeds = st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**32 - 1, 2**32, 2**64 - 1])
families = st.sampled_from(FAMILIES) | st.integers(1, 256).map(lambda s: f"sparse:{s}")
normalizations = st.sampled_from(NORMALIZATIONS)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans of up to six compartments, sizes of one and odd ones among them."""
    sizes = draw(st.lists(st.integers(1, LARGEST_SIZE // 6) | st.integers(1, 5), min_size=1, max_size=6))
    if draw(st.booleans()):
        sizes = [draw(st.integers(1, LARGEST_SIZE))]
    dims = [draw(st.integers(1, min(size, LARGEST_D_DIMENSION))) for size in sizes]
    bounds = np.cumsum([0, *sizes]).tolist()
    return compartments.explicit(bounds[-1], list(zip(bounds[:-1], bounds[1:], dims, strict=True)))


@st.composite
def bases(draw: st.DrawFn) -> Draw:
    """Any basis."""
    return draw_at(draw(plans()), draw(families), draw(normalizations), draw(seeds), draw(numbers), draw(numbers))


def vector(label: int, n: int) -> Float32Array:
    """Numbers in (-1, 1)."""
    return pseudo_random(label, n)
