"""The operations of the reference: against the dense definitions, adjoint, linear, and the limits of compartments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rbd_ref import compartments
from rbd_ref.conformance.cases import draw_at
from rbd_ref.conformance.operations import bound
from rbd_ref.kernels.backend import NumbaBackend
from rbd_ref.kernels.operations import place
from rbd_ref.numpy_backend import NumpyBackend
from rbd_ref.spec.families import FAMILIES
from rbd_ref.spec.operations import Draw, directions, exact_project, project, reconstruct
from strategies import bases, seeds, vector
from tools import COMPILED, bits

BACKEND = NumbaBackend()
labels = st.integers(0, 10**6)


def tolerance(draw: Draw, g: np.ndarray) -> np.ndarray:
    return bound(draw, directions(draw).astype(np.float64), g)


@given(bases())
def test_directions_are_the_definition(draw: Draw) -> None:
    assert np.array_equal(bits(BACKEND.directions(draw, range(draw.plan.d))), bits(directions(draw)))


@given(bases(), labels)
def test_reconstruct_is_the_definition_to_the_bit(draw: Draw, label: int) -> None:
    a = vector(label, draw.plan.d)
    u = BACKEND.reconstruct(draw, a)
    assert np.array_equal(bits(u), bits(reconstruct(draw, a)))
    assert not (np.signbit(u) & (u == 0)).any()


@given(bases(), labels)
def test_project_is_the_definition_within_tolerance(draw: Draw, label: int) -> None:
    g = vector(label, draw.plan.D)
    error = np.abs(BACKEND.project(draw, g).astype(np.float64) - exact_project(draw, g))
    assert (error <= tolerance(draw, g)).all()


@given(bases(), labels)
def test_project_of_both_own_backends_has_the_bits_of_the_definition(draw: Draw, label: int) -> None:
    """`numba` and `numpy` add in the reference's order (section 6), so nothing is left to a tolerance."""
    g = vector(label, draw.plan.D)
    expected = bits(project(draw, g))
    assert np.array_equal(bits(BACKEND.project(draw, g)), expected)
    assert np.array_equal(bits(NumpyBackend().project(draw, g)), expected)


@given(bases(), labels)
def test_descend_is_both_in_one(draw: Draw, label: int) -> None:
    g = vector(label, draw.plan.D)
    a, u = BACKEND.descend(draw, g)
    assert np.array_equal(bits(a), bits(BACKEND.project(draw, g)))
    assert np.array_equal(bits(u), bits(BACKEND.reconstruct(draw, a)))


@given(bases(), labels)
def test_project_and_reconstruct_are_adjoint(draw: Draw, label: int) -> None:
    """<N project(g), a> = <g, reconstruct(a)>, N taken from the project of the directions themselves."""
    g, a = vector(label, draw.plan.D), vector(label + 1, draw.plan.d)
    raw = Draw(draw.plan, draw.family, "none", draw.seed, draw.step, draw.worker)
    left = float(BACKEND.project(raw, g).astype(np.float64) @ a)
    right = float(BACKEND.reconstruct(draw, a).astype(np.float64) @ g)
    scale = float(np.abs(a) @ np.abs(directions(draw)) @ np.abs(g))
    assert abs(left - right) <= 2.0**-20 * scale


@given(bases(), labels)
def test_both_are_linear(draw: Draw, label: int) -> None:
    """A power of two is an exact factor, to the bit; a sum is one up to rounding."""
    g, a = vector(label, draw.plan.D), vector(label + 1, draw.plan.d)
    assert np.array_equal(
        bits(BACKEND.project(draw, -4 * g)), bits(-4 * BACKEND.project(draw, g)) ^ sign_of_zero(draw, g)
    )
    assert np.array_equal(BACKEND.reconstruct(draw, -4 * a), -4 * BACKEND.reconstruct(draw, a))
    other = vector(label + 2, draw.plan.D)
    together = BACKEND.project(draw, g + other).astype(np.float64)
    apart = BACKEND.project(draw, g).astype(np.float64) + BACKEND.project(draw, other)
    assert (np.abs(together - apart) <= 4 * tolerance(draw, np.abs(g) + np.abs(other))).all()


def sign_of_zero(draw: Draw, g: np.ndarray) -> np.ndarray:
    """-4 times a coefficient of +0 is -0, but project gives +0."""
    return np.where(BACKEND.project(draw, g) == 0, np.uint32(2**31), np.uint32(0))


@given(st.sampled_from(FAMILIES), st.integers(1, 40), seeds)
@example("rademacher", 5000 if COMPILED else 50, 0)
def test_as_many_compartments_as_parameters_give_the_gradient(family: str, D: int, seed: int) -> None:
    """K = D with d = 1: plain SGD, exactly for entries of +-1, up to rounding for the others."""
    draw = draw_at(compartments.even(D, k=D, d=1), family, "unit", seed, 3, 1)
    g = vector(1, D)
    u = BACKEND.descend(draw, g)[1]
    if family in ("rademacher", "srht", "sparse"):
        assert np.array_equal(bits(u), bits(g))
    else:
        assert np.allclose(u, g, rtol=1e-6, atol=0)


@pytest.mark.parametrize("m", [0, 1, 5, 6, pytest.param(12, marks=pytest.mark.compiled)])
def test_a_full_orthogonal_basis_gives_the_gradient(m: int) -> None:
    """srht with d = D, a power of two: a rotated SGD."""
    g = vector(1, 2**m)
    draw = draw_at(compartments.whole(2**m, d=2**m), "srht", "unit", 5, 0, 0)
    assert np.allclose(BACKEND.descend(draw, g)[1], g, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_more_directions_come_nearer_to_the_gradient(family: str) -> None:
    """The cosine with g grows like sqrt(d / D) for every family."""
    D, g = 64, vector(1, 64)
    cosines = []
    for d in (1, 8, 64):
        draw = draw_at(compartments.whole(D, d=d), family, "unit", 5, 0, 0)
        u = BACKEND.descend(draw, g)[1].astype(np.float64)
        cosines.append(u @ g / np.linalg.norm(u) / np.linalg.norm(g))
    assert 0 < cosines[0] < cosines[1] < cosines[2]


@pytest.mark.compiled
@pytest.mark.parametrize("family", FAMILIES)
def test_large_compartments_have_the_same_bits(family: str) -> None:
    """Compartments of many tiles, beside small ones, against the definition."""
    plan = compartments.explicit(61_000, [(0, 5, 2), (5, 40_005, 7), (40_005, 40_006, 1), (40_006, 61_000, 3)])
    draw, g = draw_at(plan, family, "unit", 2**63, 2**32 - 1, 9), vector(1, 61_000)
    a, u = BACKEND.descend(draw, g)
    assert (np.abs(a.astype(np.float64) - exact_project(draw, g)) <= tolerance(draw, g)).all()
    assert np.array_equal(bits(u), bits(reconstruct(draw, a)))
    assert np.array_equal(bits(a), bits(BACKEND.project(draw, g)))


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 50))
def test_no_thread_writes_over_what_another_reads(tiles: int, held: int, threads: int) -> None:
    """At a turn every place is read by the one thread that writes it or written by none, and no two tiles share one."""
    spans = [range(tiles * held * k // threads, tiles * held * (k + 1) // threads) for k in range(threads)]
    for s in (1, 2):
        readers, writers = {}, {}
        for k, span in enumerate(spans):
            for t, r in (divmod(q, held) for q in span):
                writers.setdefault((place(t, s, tiles, held, threads), r), []).append(k)
                if r == 0:
                    readers |= {(place(t, s - 1, tiles, held, threads), i): k for i in range(held)}
        assert len(writers) == len(readers) == tiles * held
        for where, ks in writers.items():
            assert len(ks) == 1
            assert readers.get(where, ks[0]) == ks[0]
            assert where[0] < tiles + threads - 1


@pytest.mark.parametrize("family", ["rademacher", "sparse", "srht"])
def test_threads_share_a_large_compartment(family: str) -> None:
    """One of more than four tiles, small enough for kernels that run as plain Python."""
    draw, g = draw_at(compartments.whole(16_500, d=1), family, "unit", 3, 2, 1), vector(1, 16_500)
    a, u = BACKEND.descend(draw, g)
    assert np.array_equal(bits(a), bits(BACKEND.project(draw, g)))
    assert np.array_equal(bits(u), bits(reconstruct(draw, a)))


@pytest.mark.compiled
def test_project_of_the_reference_has_frozen_bits() -> None:
    """The reference's own order of summation: the weights of a run depend on it."""
    draw = draw_at(compartments.whole(10_007, d=2), "normal", "unit", 1, 2, 3)
    g = vector(4, 10_007)
    phi = directions(draw)
    expected = [float32_lanes(row, g) / float32_lanes(row, row) for row in phi]
    assert np.array_equal(bits(BACKEND.project(draw, g)), bits(np.array(expected, dtype=np.float32)))


def float32_lanes(x: np.ndarray, y: np.ndarray) -> float:
    """Section 6 of the specification, in NumPy: tiles of 4096, 64 lanes, halves, then float64."""
    total = 0.0
    for first in range(0, x.size, 4096):
        product = x[first : first + 4096] * y[first : first + 4096]
        lanes = np.zeros(64, dtype=np.float32)
        for row in np.pad(product, (0, -product.size % 64)).reshape(-1, 64):
            lanes = lanes + row
        while lanes.size > 1:
            lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
        total += float(lanes[0])
    return total
