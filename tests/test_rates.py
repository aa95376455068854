"""Schedules of the learning rate: against exact rational arithmetic, in every method, and over the whole run."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rbd_ref
from oracles import Quadratic
from rbd_ref import compartments, methods
from rbd_ref.methods import METHODS
from rbd_ref.methods.base import Replica
from rbd_ref.methods.rates import HALF_PI, SCHEDULES, RateSchedule, sine
from rbd_ref.methods.settings import Settings
from rbd_ref.runs.config import make
from rbd_ref.training.experiment import Experiment
from strategies import vector
from tools import bits

F32 = np.float32
PI = Fraction(3141592653589793238462643383279502884197, 10**39)


def exact_sine(z: Fraction) -> Fraction:
    """The series of the sine, far beyond binary64."""
    term, total = z, z
    for k in range(1, 30):
        term = -term * z * z / (2 * k * (2 * k + 1))
        total += term
    return total


def exact_factor(kind: str, warmup: int, steps: int, t: int) -> Fraction:
    """The formulas of rbd_ref/methods/rates.py, as (1 + cos) / 2 where that is the usual form."""
    if t < warmup:
        return Fraction(t + 1, warmup)
    if kind == "constant":
        return Fraction(1)
    x = Fraction(t - warmup, steps - warmup)
    return 1 - x if kind == "linear" else (1 + exact_sine(PI * (Fraction(1, 2) - x))) / 2


@st.composite
def places(draw: st.DrawFn) -> tuple[str, int, int, int]:
    """A schedule and a step of it."""
    steps = draw(st.integers(1, 50) | st.integers(1, 2**32 - 1))
    warmup = draw(st.integers(0, steps))
    t = draw(st.integers(0, steps - 1) | st.sampled_from([0, steps - 1, max(warmup - 1, 0), min(warmup, steps - 1)]))
    return draw(st.sampled_from(SCHEDULES)), warmup, steps, t


@given(places())
def test_factors_are_the_formulas(place: tuple[str, int, int, int]) -> None:
    """Quotients of integers rounded once; a cosine within a few units in the last place, also where it is near 0."""
    kind, warmup, steps, t = place
    found, exact = RateSchedule(kind, warmup, steps).factor(t), exact_factor(kind, warmup, steps, t)
    if kind == "cosine" and t >= warmup:
        assert abs(Fraction(found) - exact) <= 2 ** Fraction(-50) * exact
    else:
        assert found == float(exact)


@given(st.floats(0, HALF_PI))
def test_the_sine(z: float) -> None:
    assert abs(Fraction(sine(z)) - exact_sine(Fraction(z))) <= Fraction(2) ** -52 * Fraction(z)


# The bits of some factors, from the definition: another order of operations would change them.
FROZEN = {
    1: "0x1.ffdfa974e8845p-1",
    37: "0x1.65ab7bf1f3a71p-1",
    50: "0x1.ffffffffffffep-2",
    99: "0x1.02b458bbde98cp-12",
}


def test_the_bits_of_the_cosine() -> None:
    cosine = RateSchedule("cosine", steps=100)
    assert {t: cosine.factor(t).hex() for t in FROZEN} == FROZEN
    assert Settings(0.1, schedule=cosine).eta(0) == F32(0.1)


def test_a_rate_is_rounded_once_from_binary64() -> None:
    s = Settings(0.1, workers=3, combine="mean", schedule=RateSchedule("linear", 2, 9))
    for t in range(9):
        assert s.eta(t) == F32(float(Fraction(0.1 / 3) * Fraction(s.schedule.factor(t))))
    assert Settings(0.1).eta(10**6) == F32(0.1)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_the_rate_of_its_step(name: str) -> None:
    """A step with the rate that the schedule has there, to the bit; and not with the first one."""
    basis = rbd_ref.Basis(compartments.whole(13, d=4), 5)
    rates = RateSchedule("linear", 1, 8)
    theta = vector(8, 13)
    for t in (0, 3, 7):
        scheduled = methods.make(name, basis, Settings(0.5, schedule=rates)).method
        fixed = methods.make(name, basis, Settings(0.5 * rates.factor(t))).method
        after = [one_step(method, theta, t) for method in (scheduled, fixed)]
        assert np.array_equal(bits(after[0]), bits(after[1]))
    usual = one_step(methods.make(name, basis, Settings(0.5)).method, theta, 7)
    assert not np.array_equal(usual, after[0])


def one_step(method: Any, theta: np.ndarray, t: int) -> np.ndarray:
    """The weights after a step from rest."""
    replica = Replica(method, method.init_state(theta, t))
    payload = replica.propose(Quadratic(13), 0, method.init_local())[0].payload
    return replica.step(payload[np.newaxis]).theta


# Over a run.


class Bowl(Quadratic):
    """A problem of its own."""

    D = 13
    steps_per_epoch = 5

    def __init__(self) -> None:
        super().__init__(self.D)

    def initial(self, seed: int) -> np.ndarray:
        return vector(8, self.D)


USUAL: dict[str, Any] = {"dims": 4, "lr": 0.1, "workers": 2}


def rates_of(**settings: Any) -> list[float]:
    """The rate of each step of a run."""
    experiment = Experiment(rbd_ref.Config(**{**USUAL, **settings}), Bowl())
    phases = [experiment.phases.at(t).method for t in range(experiment.steps)]
    return [float(method.settings.eta(t)) for t, method in enumerate(phases)]  # type: ignore[attr-defined]


def test_the_length_is_that_of_the_whole_run() -> None:
    """Whichever of epochs and steps ends it; over a switch the factor goes on, each method with its own rate."""
    line = [F32(0.1 * (10 - t) / 10) for t in range(10)]
    assert rates_of(schedule="linear", epochs=2) == pytest.approx(line)
    assert rates_of(schedule="linear", epochs=3, steps=10) == pytest.approx(line)
    switched = rates_of(schedule="linear", epochs=2, switch=("1:sgd:0.2",))
    assert switched == pytest.approx(line[:5] + [2 * rate for rate in line[5:]])
    assert rates_of(epochs=1, warmup=5) == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])


@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedules_train(kind: str) -> None:
    shas = {rbd_ref.fit(rbd_ref.Config(**USUAL, steps=12, warmup=w, schedule=kind), Bowl()).sha256 for w in (0, 2)}
    assert len(shas) == 2
    assert rbd_ref.fit(rbd_ref.Config(**USUAL, steps=12), Bowl()).sha256 in shas or kind != "constant"


def test_the_digest_knows_the_length_where_the_rate_goes_by_it() -> None:
    assert make({"epochs": 3}).digest == make({"epochs": 4}).digest
    assert make({"epochs": 3, "schedule": "linear"}).digest != make({"epochs": 4, "schedule": "linear"}).digest
    assert len({make({"schedule": kind, "warmup": w}).digest for kind in SCHEDULES for w in (0, 5)}) == 6


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"schedule": "exponential", "steps": 4},
            "schedule 'exponential' is unknown, expected one of constant, cosine, linear",
        ),
        ({"warmup": -1, "steps": 4}, "warmup is -1, expected 0 <= warmup"),
        ({"warmup": 5, "steps": 4}, "warmup has 5 steps and the run 4, expected no more than the run has"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(rbd_ref.RunError, match=sentence) as caught:
        rbd_ref.fit(rbd_ref.Config(**USUAL, **settings), Bowl())
    assert "\n" not in str(caught.value)
