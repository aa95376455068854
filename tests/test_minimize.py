"""`minimize`: a function is descended as `fit` descends the problem that it stands for."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import rbd_ref as rbd

D = 24
TARGET = np.linspace(-1, 1, D)
START = np.zeros(D)
BRIEF: dict[str, Any] = {"d": 6, "steps": 5, "lr": 0.5}


def bowl(theta: np.ndarray) -> tuple[float, np.ndarray]:
    g = theta - TARGET
    return float(g @ g) / 2, g


def noisy(theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
    g = theta - TARGET - 0.1 * np.random.default_rng((step, worker)).standard_normal(D)
    return float(g @ g) / 2, g


class Noisy:
    """The same as a problem."""

    D = D

    def initial(self, seed: int) -> np.ndarray:
        return START

    def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
        return noisy(theta, step, worker)


@pytest.mark.parametrize("method", ["rbd", "sgd", "nes"])
def test_it_is_fit_of_the_problem(method: str) -> None:
    found = rbd.minimize(noisy, START, method=method, workers=2, **BRIEF)
    dims = None if method == "sgd" else 6
    expected = rbd.fit(rbd.Config(dims=dims, steps=5, lr=0.5, method=method, workers=2), Noisy())
    assert found.sha256 == expected.sha256
    assert (found.steps, found.config.workers, found.config.method) == (5, 2, method)


@pytest.mark.parametrize(
    "function",
    [
        bowl,
        lambda theta: bowl(theta),
        lambda theta, scale=1.0: bowl(scale * theta),
        partial(lambda how, theta: bowl(theta), 1),
        lambda theta, step, worker: bowl(theta),
        lambda theta, step, worker=0: bowl(theta),
        lambda theta, *where: bowl(theta) if len(where) == 2 else None,
        lambda *given: bowl(given[0]) if len(given) == 3 else None,
    ],
)
def test_arguments_are_read_from_the_signature(function: Any) -> None:
    assert rbd.minimize(function, START, **BRIEF).sha256 == rbd.minimize(bowl, START, **BRIEF).sha256


def test_the_start_stays_as_it_was() -> None:
    start = np.ones(D, dtype=np.float32)
    result = rbd.minimize(bowl, start, **BRIEF)
    assert (start == 1).all()
    assert (result.theta != 1).any()


@pytest.mark.parametrize(
    ("function", "theta0", "changes", "sentence"),
    [
        (3, START, {}, "loss_and_gradient is 3, expected a function"),
        (
            lambda theta, step: bowl(theta),
            START,
            {},
            r"takes \(theta, step\), expected \(theta\) or \(theta, step, wor",
        ),
        (lambda: 0, START, {}, r"takes \(\), expected \(theta\)"),
        (lambda a, b, c, d: 0, START, {}, r"takes \(a, b, c, d\), expected \(theta\)"),
        (bowl, START.reshape(4, 6), {}, r"theta0 has shape \(4, 6\), expected \(24,\)"),
        (bowl, [1, 2], {}, "theta0 has dtype int64, expected a floating type"),
        (bowl, START, {"d": 25}, "compartment 0 has d = 25, expected 1 <= d <= 24"),
        (bowl, START, {"method": "adam"}, "method 'adam' is unknown, expected"),
        (bowl, START, {"lr": -1.0}, "learning rate is -1.0, expected"),
    ],
)
def test_each_mistake_is_one_sentence(function: Any, theta0: Any, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError, rbd.RunError), match=sentence) as caught:
        rbd.minimize(function, theta0, **{**BRIEF, **changes})
    assert "\n" not in str(caught.value)
