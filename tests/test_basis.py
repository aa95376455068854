"""`Basis`: the names that users write, and that each mistake is one clear sentence and never a wrong result."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rbd_ref as rbd
from rbd_ref._types import Float32Array
from rbd_ref.backend import Capabilities
from rbd_ref.kernels.backend import NumbaBackend
from rbd_ref.numpy_backend import NumpyBackend
from rbd_ref.spec.families import FAMILIES
from rbd_ref.spec.operations import Draw
from strategies import bases, vector
from tools import bits

PLAN = rbd.compartments.even(40, k=4, d=3)


def test_the_names_that_users_write() -> None:
    basis = rbd.Basis(PLAN, seed=0, family="normal", normalize="unit", backend="numba")
    g = np.linspace(-1, 1, 40, dtype=np.float32)
    a = basis.project(g, step=3, worker=1)
    u = basis.reconstruct(a, step=3, worker=1)
    both = basis.descend(g, step=3, worker=1)
    phi = basis.directions([0, 1, 7], step=3, worker=1)
    assert (a.dtype, a.shape, u.dtype, u.shape) == (np.float32, (PLAN.d,), np.float32, (PLAN.D,))
    assert np.array_equal(bits(both[0]), bits(a))
    assert np.array_equal(bits(both[1]), bits(u))
    assert phi.shape == (3, 40)
    assert np.count_nonzero(phi[0, 10:]) == np.count_nonzero(phi[2, :20]) == np.count_nonzero(phi[2, 30:]) == 0
    assert np.allclose(a @ basis.directions(range(12), step=3, worker=1), u, atol=1e-6)
    assert repr(basis) == (
        "Basis(Plan(D=40, d=12, compartments=4), seed=0, family='normal', normalize='unit', backend='numba')"
    )


def test_a_basis_of_one_compartment_by_its_two_numbers() -> None:
    basis = rbd.Basis(D=30, d=4, seed=7, family="uniform")
    assert repr(basis) == repr(rbd.Basis(rbd.compartments.whole(30, d=4), 7, "uniform"))


def test_a_picture_shows_directions_and_their_gram_matrix() -> None:
    basis = rbd.Basis(PLAN, seed=1)
    left, right = basis.show(step=2, worker=1).axes[:2]
    phi = basis.directions(range(12), step=2, worker=1)
    assert np.array_equal(left.images[0].get_array(), phi)
    unit = phi / np.linalg.norm(phi, axis=1, keepdims=True)
    assert np.allclose(right.images[0].get_array(), unit @ unit.T, atol=1e-6)


def test_a_picture_of_a_large_basis_is_of_some_of_it() -> None:
    """Evenly over all directions and elements: the first and the last are there."""
    basis = rbd.Basis(D=600, d=100, family="rademacher")
    rows = basis.show().axes[0].images[0].get_array()
    assert rows.shape == (64, 512)
    assert [rows[0, 0], rows[-1, -1]] == [*basis.directions([0], 0)[0, :1], *basis.directions([99], 0)[0, -1:]]


def test_a_picture_without_matplotlib_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"matplotlib is missing .*, expected .*: pip install 'rbd-ref\[plot\]'"):
        rbd.Basis(PLAN).show()


def test_unit_coefficients_are_coordinates_divided_by_the_norm() -> None:
    """c_i = <phi_i, g> / |phi_i| of the paper, and a_i = c_i / |phi_i|."""
    basis, g = rbd.Basis(PLAN, seed=4), np.linspace(-1, 1, 40, dtype=np.float32)
    phi = basis.directions(range(12), step=0).astype(np.float64)
    norms = np.linalg.norm(phi, axis=1)
    c = (phi / norms[:, None]) @ g
    assert np.allclose(basis.project(g, step=0), c / norms, rtol=1e-5, atol=1e-7)
    assert np.allclose(basis.reconstruct(basis.project(g, step=0), step=0), c @ (phi / norms[:, None]), atol=1e-6)


@pytest.mark.parametrize(("normalize", "divisor"), [("none", 1), ("expected", 10 / 3), ("graphcore", 40)])
def test_other_normalisations(normalize: str, divisor: float) -> None:
    g = np.linspace(-1, 1, 40, dtype=np.float32)
    raw = rbd.Basis(PLAN, family="uniform", normalize="none").project(g, step=0)
    got = rbd.Basis(PLAN, family="uniform", normalize=normalize).project(g, step=0)
    assert np.allclose(got * divisor, raw, rtol=1e-6)


def test_float64_and_strided_gradients_are_taken() -> None:
    basis, g = rbd.Basis(PLAN), np.linspace(-1, 1, 80)
    assert np.array_equal(basis.project(g[::2], step=0), basis.project(g[::2].astype(np.float32), step=0))


ONES = np.ones(40, dtype=np.float32)
NAN, INFINITE, HUGE = (np.where(np.arange(40) == 7, value, 1.0) for value in (np.nan, -np.inf, 1e39))
MISTAKES = [
    (lambda b: b.project(NAN, step=0), ValueError, "g has 1 value.s. not finite in float32, the first nan at index 7"),
    (lambda b: b.project(INFINITE, step=0), ValueError, "the first -inf at index 7"),
    (lambda b: b.project(HUGE, step=0), ValueError, "the first inf at index 7"),
    (lambda b: b.descend(NAN, step=0), ValueError, "g has 1 value"),
    (lambda b: b.reconstruct(NAN[:12], step=0), ValueError, "a has 1 value"),
    (lambda b: b.project(ONES.astype(int), step=0), TypeError, "g has dtype int64, expected a floating type"),
    (lambda b: b.project(ONES.astype(complex), step=0), TypeError, "g has dtype complex128"),
    (lambda b: b.project("gradient", step=0), TypeError, "g has dtype <U8"),
    (lambda b: b.project(ONES[:39], step=0), ValueError, r"g has shape \(39,\), expected \(40,\)"),
    (lambda b: b.project(ONES.reshape(4, 10), step=0), ValueError, r"g has shape \(4, 10\)"),
    (lambda b: b.reconstruct(ONES, step=0), ValueError, r"a has shape \(40,\), expected \(12,\)"),
    (lambda b: b.project(ONES * 3e38, step=0), ValueError, "g is too large"),
    (lambda b: b.descend(ONES * 3e38, step=0), ValueError, "g is too large"),
    (lambda b: b.project(ONES, step=-1), ValueError, "step is -1, expected 0 <= step < 4294967296"),
    (lambda b: b.project(ONES, step=2**32), ValueError, "step is 4294967296"),
    (lambda b: b.project(ONES, step=1.5), TypeError, r"step is 1\.5 of type float"),
    (lambda b: b.project(ONES, step=True), TypeError, "step is True"),
    (lambda b: b.project(ONES, step=0, worker=-1), ValueError, "worker is -1"),
    (lambda b: b.project(ONES, step=0, worker=2**32), ValueError, "worker is 4294967296"),
    (lambda b: b.directions([12], step=0), ValueError, "a direction's index is 12"),
    (lambda b: b.directions([-1], step=0), ValueError, "a direction's index is -1"),
    (lambda b: b.directions(0, step=0), TypeError, r"indices is 0 of type int, expected several: .* as in \[0\]"),
    (lambda b: b.reconstruct_part(ONES[:12], 0, 0, k=5, n=2), ValueError, "k is 5, expected 0 <= k < 2"),
    (lambda b: b.reconstruct_part(ONES[:12], 0, 0, k=-1, n=2), ValueError, "k is -1, expected 0 <= k < 2"),
    (lambda b: b.reconstruct_part(ONES[:12], 0, 0, k=0, n=0), ValueError, "n is 0, expected 1 <= n"),
    (lambda b: b.project_part(ONES, 0, 0, slice(12, 15)), ValueError, "the start of directions is 12, expected 0 <="),
    (lambda b: b.project_part(ONES, 0, 0, slice(9, 13)), ValueError, "the stop of directions is 13, expected 10 <="),
    (lambda b: b.project_part(ONES, 0, 0, slice(3, 3)), ValueError, "the stop of directions is 3, expected 4 <="),
    (lambda b: b.project_part(ONES, 0, 0, slice(-3, 12)), ValueError, "the start of directions is -3"),
    (lambda b: b.project_part(ONES, 0, 0, slice(0, 12, 2)), ValueError, "directions has step 2, expected neighbours"),
    (lambda b: b.project_part(ONES, 0, 0, 3), TypeError, "directions is 3 of type int, expected a slice"),
    (lambda b: rbd.Basis(PLAN, seed=-1), ValueError, "seed is -1"),
    (lambda b: rbd.Basis(PLAN, seed=2**64), ValueError, "seed is 18446744073709551616"),
    (lambda b: rbd.Basis(PLAN, seed="0"), TypeError, "seed is '0' of type str"),
    (lambda b: rbd.Basis(PLAN, family="gauss"), ValueError, "family 'gauss' is unknown, expected one of bernoulli"),
    (lambda b: rbd.Basis(PLAN, family="sparse:0"), ValueError, "the window of family sparse is 0"),
    (lambda b: rbd.Basis(PLAN, family="sparse:257"), ValueError, "the window of family sparse is 257"),
    (lambda b: rbd.Basis(PLAN, family="sparse:x"), ValueError, "family 'sparse:x' is unknown"),
    (lambda b: rbd.Basis(PLAN, family=3), TypeError, "family is 3 of type int"),
    (lambda b: rbd.Basis(PLAN, normalize="l2"), ValueError, "normalize 'l2' is unknown"),
    (lambda b: rbd.Basis(PLAN, backend="cupy"), ValueError, "backend 'cupy' is unknown, expected one of"),
    (lambda b: rbd.Basis(40), TypeError, "plan is int, expected a Plan"),
    (lambda b: rbd.Basis(), TypeError, "a basis has nothing to go by, expected either a plan or both D and d"),
    (lambda b: rbd.Basis(D=40), TypeError, "a basis has D to go by, expected either"),
    (lambda b: rbd.Basis(d=4), TypeError, "a basis has d to go by, expected either"),
    (lambda b: rbd.Basis(PLAN, D=40, d=4), TypeError, "a basis has plan, D, d to go by, expected either"),
    (lambda b: rbd.Basis(PLAN, d=4), TypeError, "a basis has plan, d to go by, expected either"),
    (lambda b: rbd.Basis(D=4, d=5), ValueError, "compartment 0 has d = 5, expected 1 <= d <= 4"),
    (lambda b: rbd.prng.root_key(-1), ValueError, "seed is -1"),
    (lambda b: rbd.prng.fold_in(rbd.prng.root_key(0), 2**64), ValueError, "n is 18446744073709551616"),
    (lambda b: rbd.prng.threefry2x32([0, 1], ONES), TypeError, "key has dtype int64, expected uint32"),
    (lambda b: rbd.prng.threefry2x32(rbd.prng.root_key(0), np.zeros(3, np.uint32)), ValueError, "counter has shape"),
]


@pytest.mark.parametrize(("call", "kind", "sentence"), MISTAKES, ids=[m[2][:40] for m in MISTAKES])
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_each_mistake_is_one_clear_sentence(call: object, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence) as caught:
        call(rbd.Basis(PLAN, normalize="none"))  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    assert "expected" in str(caught.value)


@pytest.mark.parametrize("backend", ["numba", "numpy"])
@pytest.mark.parametrize("family", FAMILIES)
def test_inner_products_that_overflow_are_one_clear_sentence(family: str, backend: str) -> None:
    """A backend returns numbers that are not finite, and no update is made of them."""
    basis, g = rbd.Basis(rbd.compartments.whole(1000, d=8), 1, family, backend=backend), np.full(1000, 3e38, np.float32)
    for call in (
        lambda: basis.project(g, step=0),
        lambda: basis.project_part(g, 0, 0, slice(0, 8)),
        lambda: basis.descend(g, step=0),
    ):
        with pytest.raises(
            ValueError, match=r"g is too large: .* coefficients overflow float32, .* the largest .* 3e.38"
        ):
            call()


class OwnParts(NumpyBackend):
    """Cuts an update into parts where it likes."""

    name = "own-parts"

    def reconstruct_part(self, draw: Draw, a: Float32Array, k: int, n: int) -> tuple[int, Float32Array]:
        first, last = draw.plan.D * k // n, draw.plan.D * (k + 1) // n
        return first, self.reconstruct(draw, a)[first:last]


def test_parts_that_are_cut_elsewhere_are_refused() -> None:
    """Ranks of one node on unlike backends would leave a gap between their parts, or write over each other's."""
    basis = rbd.Basis(rbd.compartments.whole(10_000, d=1), backend=OwnParts())
    with pytest.raises(ValueError, match=r"part 0 of 2 of backend own-parts is 0 \.\. 5000, expected 0 \.\. 4096: cut"):
        basis.reconstruct_part([1.0], 0, 0, 0, 2)


@pytest.mark.parametrize("family", ["rademacher", "srht"])
def test_unlike_backends_cut_updates_into_the_same_parts(family: str) -> None:
    plan = rbd.compartments.explicit(20_000, [(0, 9000, 1), (9000, 9001, 1), (9001, 20_000, 1)])
    for n in (1, 2, 3, 7):
        parts = []
        for backend in ("numba", "numpy"):
            basis = rbd.Basis(plan, family=family, backend=backend)
            each = [basis.reconstruct_part(np.ones(3, np.float32), 0, 0, k, n) for k in range(n)]
            parts.append([(first, u.tobytes()) for first, u in each])
        assert parts[0] == parts[1]


class FewerFamilies(NumbaBackend):
    capabilities = Capabilities(families=("uniform",), normalizations=("none",))


def test_what_a_backend_does_not_declare_is_refused_before_it_is_asked() -> None:
    with pytest.raises(ValueError, match="backend numba has no family 'normal', expected one of uniform"):
        rbd.Basis(PLAN, normalize="none", backend=FewerFamilies())
    with pytest.raises(ValueError, match="backend numba has no normalize 'unit', expected one of none"):
        rbd.Basis(PLAN, family="uniform", backend=FewerFamilies())
    assert rbd.Basis(PLAN, family="uniform", normalize="none", backend=FewerFamilies()).plan is PLAN


def test_a_slice_without_ends_is_all_directions() -> None:
    basis = rbd.Basis(PLAN)
    assert np.array_equal(basis.project_part(ONES, 0, 0, slice(None)), basis.project(ONES, step=0))


@given(bases(), st.data())
def test_parts_of_project_and_reconstruct_have_the_bits_of_the_whole(draw: Draw, data: st.DataObject) -> None:
    basis = rbd.Basis(draw.plan, draw.seed, str(draw.family), draw.normalize)
    g, a = vector(1, draw.plan.D), vector(2, draw.plan.d)
    first = data.draw(st.integers(0, draw.plan.d - 1))
    chosen = slice(first, data.draw(st.integers(first + 1, draw.plan.d)))
    part = basis.project_part(g, draw.step, draw.worker, chosen)
    assert np.array_equal(bits(part), bits(basis.project(g, draw.step, draw.worker)[chosen]))
    n = data.draw(st.integers(1, 5))
    parts = [basis.reconstruct_part(a, draw.step, draw.worker, k, n) for k in range(n)]
    ends = [start + values.size for start, values in parts]
    assert [start for start, _ in parts] == [0, *ends[:-1]]
    assert np.array_equal(
        bits(np.concatenate([u for _, u in parts])), bits(basis.reconstruct(a, draw.step, draw.worker))
    )
