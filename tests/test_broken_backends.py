"""The conformance suite finds every backend of broken_backends.py, at the right level, and lets honest ones pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import ClassVar

import numpy as np
import pytest

import rbd_ref.conformance.directions
import rbd_ref.conformance.operations
import rbd_ref.spec.operations
from broken_backends import (
    MUTANTS,
    AllBitsOfTheWord,
    BoxMuller,
    Broken,
    ClampForgotten,
    DirectionInAByte,
    FlatNumber,
    Float64Coefficients,
    FusedLast,
    FusedPolynomials,
    FusedUpdate,
    HigherRowOfEquals,
    OwnThreefry,
    PlaceInFloat,
    SwappedPair,
    WrongRotation,
)
from rbd_ref._types import Float32Array
from rbd_ref.backend import LEVELS, PARTS, Capabilities
from rbd_ref.conformance import __main__ as command
from rbd_ref.conformance.cases import ADDRESSES, draw_at
from rbd_ref.conformance.operations import near
from rbd_ref.conformance.suite import Mismatch, Outcome, Report, run, same_bits
from rbd_ref.models.networks import loss_and_gradient
from rbd_ref.numpy_backend import NumpyBackend, Part
from rbd_ref.spec.compartments import whole
from rbd_ref.spec.families import FAMILIES
from rbd_ref.spec.operations import Draw, directions
from tools import bits

LONG = 131_075


@pytest.fixture(scope="module", autouse=True)
def definitions_made_once() -> Iterator[None]:
    """The suite compares every backend with the same few dense bases: here each of them is made once for all."""

    @cache
    def made(basis: Draw) -> Float32Array:
        phi = directions(basis)
        phi.flags.writeable = False
        return phi

    with pytest.MonkeyPatch.context() as patch:
        for module in (rbd_ref.spec.operations, rbd_ref.conformance.directions, rbd_ref.conformance.operations):
            patch.setattr(module, "directions", lambda draw: made(replace(draw, normalize="none")))
        yield


def report_of(backend: NumpyBackend, highest: str = "L2") -> Report:
    """The last thing that the suite yields."""
    *_, report = run(backend, highest)
    assert isinstance(report, Report)
    return report


def first_failure(backend: NumpyBackend) -> Outcome | None:
    """The first check that fails, whose level is the one that the report would name; no further check is run."""
    for item in run(backend):
        if isinstance(item, Outcome) and item.outcome == "failed":
            return item
    return None


@pytest.mark.compiled  # plain Python would do the same work again
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.fails_at}-{mutant.__name__}")
def test_is_found(mutant: type[Broken]) -> None:
    failure = first_failure(mutant())
    assert failure is not None, mutant.bug
    assert failure.level == mutant.fails_at, failure
    assert len(failure.message.split()) >= 4, failure
    assert not failure.message.startswith("raised"), failure


@pytest.mark.parametrize("mutant", [WrongRotation, SwappedPair, Float64Coefficients])
def test_report_ends_with_the_level_that_is_not_passed(mutant: type[Broken]) -> None:
    report, passed = report_of(mutant()), LEVELS[: LEVELS.index(mutant.fails_at)]
    assert (report.failed_at, report.level) == (mutant.fails_at, passed[-1] if passed else None)
    assert report.verdict == f"{mutant.name}: fails at {mutant.fails_at}"
    assert {item.level for item in report.checks} == {*passed, mutant.fails_at}
    assert {item.level for item in report.checks if item.outcome == "failed"} == {mutant.fails_at}


def test_mutants_are_many_and_described() -> None:
    assert len(MUTANTS) >= 30
    assert set(Counter(mutant.fails_at for mutant in MUTANTS)) == set(LEVELS)
    assert len({mutant.name for mutant in MUTANTS}) == len({mutant.bug for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.bug.endswith(".") for mutant in MUTANTS)


@pytest.mark.compiled
def test_the_backend_numpy_conforms() -> None:
    """As far as its directions go; `make test` has the levels above among its reports."""
    backend = NumpyBackend()
    assert all(hasattr(backend, part) for part in PARTS)
    report = report_of(backend, "L1")
    assert (report.level, report.failed_at) == ("L1", None)
    assert {item.outcome for item in report.checks} == {"passed"}
    assert report.missing == []
    assert report.verdict == "numpy: conforms to L1"


def test_steps_written_anew_are_right() -> None:
    """What mutants share has the bits of the definition, so that each is wrong by its own change alone."""
    key, counter = np.array([1, 2], dtype=np.uint32), np.arange(20_000, dtype=np.uint32).reshape(2, -1)
    words = NumpyBackend().words(key, counter)
    assert np.array_equal(OwnThreefry().words(key, counter), words)
    assert np.array_equal(bits(BoxMuller().normal(words)), bits(NumpyBackend().normal(words)))


@pytest.mark.parametrize(
    ("mutant", "family", "d", "direction"),
    [
        (DirectionInAByte, "rademacher", LONG, 65_611),
        (FlatNumber, "normal", LONG, 65_611),
        (ClampForgotten, "normal", LONG, 65_611),
        (AllBitsOfTheWord, "sparse", LONG, 65_630),
        (PlaceInFloat, "sparse", LONG, 65_630),
        (HigherRowOfEquals, "srht", 19_101, 2_926),
    ],
)
def test_rare_mistake_shows(mutant: type[Broken], family: str, d: int, direction: int) -> None:
    """Where mistakes that most directions do not betray can be seen."""
    draw = draw_at(whole(LONG, d=d), family, "unit", *ADDRESSES[5])
    wrong, right = (bits(backend.directions(draw, [direction])) for backend in (mutant(), NumpyBackend()))
    assert not np.array_equal(wrong, right)


class Modest(NumpyBackend):
    """Honest, and able to do less than everything: it raises when it is asked for what it does not declare."""

    name: ClassVar[str] = "modest"

    def parts(self, draw: Draw) -> Iterator[Part]:
        if draw.family.name not in self.capabilities.families:
            raise NotImplementedError(f"no family {draw.family}")
        return super().parts(draw)


class FewFamilies(Modest):
    capabilities = Capabilities(families=("rademacher", "sparse"), reason="the device has no square root")


class FirstLevel(Modest):
    capabilities = Capabilities(families=("uniform",), level="L1", reason="the device adds in no fixed order")


class OnlyUnnormalised(NumpyBackend):
    """Honest: it raises where it would have to divide by what it does not declare."""

    capabilities = Capabilities(families=("rademacher",), normalizations=("none",))

    def divisor(self, part: Part, phi: Float32Array) -> float:
        if part.draw.normalize not in self.capabilities.normalizations:
            raise NotImplementedError(f"no normalisation {part.draw.normalize}")
        return super().divisor(part, phi)


def test_fewer_families_conform_and_the_rest_is_named() -> None:
    report = report_of(FewFamilies())
    assert (report.level, report.failed_at) == ("L2", None)
    assert set(report.missing) == set(FAMILIES) - {"rademacher", "sparse"}
    left_out = [item for item in report.checks if item.outcome == "undeclared"]
    assert {item.family for item in left_out} == set(FAMILIES) - {"rademacher", "sparse"}
    for item in left_out:
        assert str(item.family) in item.message
        assert "no square root" in item.message


def test_lower_level_conforms_and_the_rest_is_named() -> None:
    report = report_of(FirstLevel())
    assert (report.level, report.failed_at) == ("L1", None)
    assert {item.outcome for item in report.checks if item.level == "L2"} == {"undeclared"}
    messages = {item.message for item in report.checks if item.level == "L2"}
    assert all("L1" in message and "no fixed order" in message for message in messages)


def test_fewer_normalisations_conform_and_the_rest_is_named() -> None:
    report = report_of(OnlyUnnormalised())
    assert [item.message for item in report.checks if item.outcome == "failed"] == []
    assert (report.level, report.failed_at) == ("L2", None)
    assert {"unit", "expected", "graphcore"} <= set(report.missing)


class Raises(NumpyBackend):
    """Breaks down whenever a direction is asked for."""

    name: ClassVar[str] = "raises"

    def row(self, part: Part, i: int) -> Float32Array:
        raise RuntimeError("the device is out of memory")


class NoAnswer(NumpyBackend):
    """Forgets to return anything."""

    name: ClassVar[str] = "no-answer"
    capabilities = Capabilities(families=("rademacher",), normalizations=("unit",))

    def project(self, draw: Draw, g: Float32Array) -> Float32Array:
        return None  # type: ignore[return-value]


class ListOfAnswers(NoAnswer):
    """Returns both of its arrays in a list."""

    def project(self, draw: Draw, g: Float32Array) -> Float32Array:
        return NumpyBackend.project(self, draw, g)

    def descend(self, draw: Draw, g: Float32Array) -> tuple[Float32Array, Float32Array]:
        return list(super().descend(draw, g))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("backend", "sentence"),
    [
        (NoAnswer, "project returned NoneType, expected a NumPy array"),
        (ListOfAnswers, "descend returned list, expected a tuple of two NumPy arrays"),
    ],
)
def test_an_operation_that_returns_no_array_is_one_sentence(backend: type[NumpyBackend], sentence: str) -> None:
    report = report_of(backend())
    assert report.failed_at == "L2"
    assert {item.message for item in report.checks if item.outcome == "failed"} == {sentence}


def test_a_long_direction_says_where_it_first_differs_and_what_it_shows() -> None:
    failure = first_failure(ClampForgotten())
    assert failure is not None
    assert "(block 52,279 has x0 = 0xffffffba, where v is clamped to 2^31 - 2^7)" in failure.message
    assert "words differ, the first at (0, 10455" in failure.message


@pytest.mark.parametrize(("mutant", "ulp"), [(FusedPolynomials, 1), (FusedLast, 2), (FusedUpdate, 16)])
def test_a_fused_multiply_add_is_suspected(mutant: type[Broken], ulp: int) -> None:
    failure = first_failure(mutant())
    assert failure is not None
    assert failure.message.endswith(f", all within {ulp} ulp: fused multiply-add?")


def test_a_fused_multiply_add_is_suspected_of_neighbours_only() -> None:
    x = np.array([1.0, -1.0, 0.0, 2.0], dtype=np.float32)
    above = np.nextafter(x, np.float32(9))
    for other, suspected in ((above, True), (-x, False), (x + 17 * np.spacing(x), False)):
        with pytest.raises(Mismatch) as caught:
            same_bits("it", other, x)
        assert ("fused" in str(caught.value)) == suspected
    with pytest.raises(Mismatch) as caught:
        same_bits("words", np.array([1], np.uint32), np.array([2], np.uint32))
    assert "fused" not in str(caught.value)


def test_zero_is_right_at_the_threshold_of_small_coefficients() -> None:
    """Both answers are, where 2^-64 is within the tolerance of the exact quotient; and nowhere else."""

    class Above(NumpyBackend):
        """Takes everything below 2^-63 for zero."""

        def flush(self, a: Float32Array) -> Float32Array:
            return np.where(np.abs(a) < 2.0**-63, np.float32(0), a)

    draw = draw_at(whole(70, d=1), "rademacher", "unit", 1, 2, 3)
    phi = directions(draw).astype(np.float64)
    for size, allowed in ((2.0**-64, True), (2.0**-64 * (1 + 2.0**-22), True), (2.0**-64 * 1.5, False)):
        g = phi[0].astype(np.float32) * np.float32(size)
        exact = phi @ g / 70
        near(NumpyBackend(), draw, phi, g, exact)
        if allowed:
            near(Above(), draw, phi, g, exact)
        else:
            with pytest.raises(Mismatch, match=r"coefficient 0 is 0\.0"):
                near(Above(), draw, phi, g, exact)


class WithGradients(NumpyBackend):
    """Has gradients of its own."""

    capabilities = Capabilities(families=("rademacher",), normalizations=("unit",), level="L3")

    def loss_and_gradient(self, network: object, theta: object, x: object, y: object) -> object:
        return loss_and_gradient(network, theta, x, y)  # type: ignore[arg-type]


class WithoutGradients(NumpyBackend):
    """Has none."""

    capabilities = WithGradients.capabilities


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("backend", "whose"), [(WithGradients(), "its own"), (WithoutGradients(), "the reference's"), (FirstLevel(), None)]
)
def test_the_report_says_whose_gradients_they_were(
    backend: NumpyBackend, whose: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    report = report_of(backend, "L3")
    assert (report.failed_at, report.gradients) == (None, whose)
    command.conclude(report)
    assert (f"gradients: {whose}\n" in capsys.readouterr().out) == (whose is not None)


def test_backend_that_raises_fails_with_its_message() -> None:
    report = report_of(Raises())
    assert (report.level, report.failed_at) == ("L0", "L1")
    failed = [item for item in report.checks if item.level == "L1" and item.outcome == "failed"]
    assert all("RuntimeError: the device is out of memory" in item.message for item in failed)
    passed = {item.title for item in report.checks if item.level == "L1" and item.outcome != "failed"}
    assert len(failed) > len(passed)
    assert passed == {  # of a method that it does not have
        "portable random numbers equal the golden vectors, by the method `numbers`",
        "portable random numbers begin at any offset",
    }
