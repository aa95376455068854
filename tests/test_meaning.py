"""Settings beside each other: none is accepted in silence, and what is said to have an effect has one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import rbd_ref
from rbd_ref._types import Float32Array
from rbd_ref.methods import METHODS
from rbd_ref.runs import config as configs
from rbd_ref.runs import meaning
from rbd_ref.runs.config import FIELDS, Config, make, overlaid
from tests.run_tools import refused
from tests.test_config import anything, one_sentence

# What the metadata says, against what training does.


class Bowl:
    """A quadratic bowl with a batch of its own for every step and worker."""

    D = 60
    steps_per_epoch = 2

    def initial(self, seed: int) -> Float32Array:
        return np.linspace(-1, 1, self.D, dtype=np.float32)

    def loss_and_gradient(self, theta: Float32Array, step: int, worker: int) -> tuple[float, Float32Array]:
        g = theta * np.linspace(0.5, 2, self.D, dtype=np.float32) + np.float32(0.01 * (step + 3 * worker))
        return float(g @ g), g

    def loss(self, theta: Float32Array, step: int, worker: int, offspring: int | None) -> float:
        return self.loss_and_gradient(theta, step, worker)[0] + 0.01 * float(theta[(offspring or 0) % self.D])


USUAL: dict[str, Any] = {"dims": "10", "lr": 0.05, "workers": 2, "steps": 4}
OTHERS: dict[str, Any] = {
    "dims": "11",
    "compartments": "even:2",
    "family": "uniform",
    "normalize": "none",
    "redraw": 2,
    "momentum": 0.5,
    "schedule": "linear",
    "warmup": 3,
    "memory": 0.9,
    "feedback": True,
    "coefficients": "sign",
    "optimiser": "adam",
    "transforms": ("ranks",),
    "sigma": 0.5,
    "antithetic": True,
    "exchange": "shared",
    "combine": "mean",
}


def weights(**changes: Any) -> str:
    """sha256 of the weights after a few steps."""
    return rbd_ref.fit(Config(**{**USUAL, **changes}), Bowl()).sha256


def test_every_setting_of_some_methods_is_tried_below() -> None:
    apart = {"gradients"}  # of networks: tests/test_gradients.py
    assert {name for name, item in FIELDS.items() if item.metadata.get("methods")} <= {*OTHERS, *apart}


@pytest.mark.compiled
@pytest.mark.parametrize("method", METHODS)
def test_a_setting_changes_the_weights_of_exactly_the_methods_it_names(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "refuse_idle", lambda values, names: None)
    before = weights(method=method)
    for name, value in OTHERS.items():
        meant = method in FIELDS[name].metadata.get("methods", METHODS)
        assert (weights(method=method, **{name: value}) != before) == meant, name


def test_momentum_and_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "refuse_idle", lambda values, names: None)
    adam = {"method": "fpd", "optimiser": "adam"}
    assert weights(**adam) == weights(**adam, momentum=0.5)


def test_a_switch_to_a_method_gives_its_settings_a_meaning() -> None:
    switched = {"switch": ("1:nes:0.1",), "method": "sgd", "dims": "10"}
    assert weights(**switched) != weights(**switched, sigma=0.5)


# What is refused.

SILENT: list[tuple[dict[str, Any], str]] = [
    ({"optimiser": "adam"}, "optimiser is 'adam' and would have no effect, expected method fpd and not rbd"),
    ({"sigma": 2.0}, "sigma is 2.0 and would have no effect, expected method nes or nes-shared-batch and not rbd"),
    ({"antithetic": True}, "antithetic is True and would have no effect"),
    ({"method": "sgd", "optimiser": "adam"}, "expected method fpd and not sgd: leave optimiser out"),
    ({"method": "sgd", "dims": 250}, "dims is '250' and would have no effect, expected method rbd, fpd, nes or"),
    ({"method": "sgd", "family": "srht"}, "family is 'srht' and would have no effect"),
    ({"method": "fpd", "redraw": 5}, "redraw is 5 and would have no effect"),
    ({"method": "fpd", "optimiser": "adam", "momentum": 0.5}, "momentum is 0.5 and would have no effect"),
    ({"method": "sgd", "memory": 0.9}, "memory is 0.9 and would have no effect, expected method rbd and not sgd"),
    ({"method": "fpd", "memory": 0.9}, "memory is 0.9 and would have no effect, expected method rbd and not fpd"),
    ({"method": "nes", "feedback": True}, "feedback is True and would have no effect, expected method rbd and not nes"),
    ({"method": "sgd", "coefficients": "sign"}, "coefficients is 'sign' .* expected method rbd or fpd and not sgd"),
    ({"method": "nes", "coefficients": "int8"}, "coefficients is 'int8' .* expected method rbd or fpd and not nes"),
    ({"compartments": "proportional:10", "dims": 250}, "dims is '250' .* compartments other than proportional"),
    ({"augment": True}, "augment is True .* expected a data set that the paper augments: leave augment out"),
    ({"data_dir": "x"}, "data_dir is 'x' .* as the digits are embedded"),
    ({"mirror": "x"}, "mirror is 'x' .* as the digits are embedded"),
    ({"on_divergence": "resync"}, "on_divergence is 'resync' .* expected check_every"),
    ({"lr": 0}, "learning rate is 0.0, expected a number above 0"),
    ({"epochs": 0}, "epochs is 0, expected 1 <= epochs"),
    ({"steps": 0}, "steps is 0, expected 1 <= steps"),
    ({"workers": 0}, "workers is 0, expected 1 <= workers"),
    ({"switch": ["100:sgd"], "epochs": 5}, "the run has 5 epochs and would never come to switch 100:sgd:0.25"),
    ({"switch": ["40:sgd"]}, "the run has 40 epochs and would never come to switch 40:sgd:0.25"),
]


@pytest.mark.parametrize(("values", "sentence"), SILENT, ids=[str(values) for values, _ in SILENT])
def test_what_would_have_no_effect_is_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        make(values)
    assert one_sentence(caught.value)


def test_a_switch_that_the_steps_never_come_to() -> None:
    values = {"switch": ("2:sgd:0.1",), "lr": 0.1, "dims": "5"}
    with pytest.raises(rbd_ref.RunError, match=r"the run has 4 steps and switch 2:sgd:0\.1 comes after 4, expected"):
        rbd_ref.fit(Config(**values, steps=4), Bowl())
    assert rbd_ref.fit(Config(**values, steps=5), Bowl()).step == 5


@pytest.mark.parametrize(
    "flags", [["--sigma", "1.0"], ["--optimiser", "plain"], ["--no-antithetic"], ["--redraw", "1"]]
)
def test_a_flag_is_refused_even_if_it_says_what_is_the_default(
    flags: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Whoever types it believes that it does something."""
    name = flags[0].removeprefix("--no-").removeprefix("--")
    refused(capsys, ["--method", "sgd", *flags, "--out", tmp_path / "r"], f"{name} is", "would have no effect")


def test_what_only_a_preset_says_is_left_out_for_another_method() -> None:
    """Nobody asked for directions of sgd."""
    c = make({"preset": "table1-fc-mnist-rbd", "method": "sgd"})
    assert (c.method, c.dims, c.lr) == ("sgd", None, 1.0)


# Length.


def test_of_epochs_and_steps_the_later_counts() -> None:
    assert overlaid({"epochs": 9, "steps": 3}, {"epochs": 5}) == {"epochs": 5}
    assert overlaid({"epochs": 9}, {"steps": 5, "epochs": None}) == {"steps": 5, "epochs": None}
    assert overlaid({"epochs": 9}, {"epochs": 2, "steps": 5}) == {"epochs": 2, "steps": 5}
    assert overlaid({"epochs": 9}, {"lr": 5}) == {"epochs": 9, "lr": 5}
    c = make({"preset": "table1-fc-mnist-rbd", "steps": 7})
    assert (c.epochs, c.steps) == (None, 7)


@pytest.mark.parametrize(("epochs", "steps", "taken"), [(3, None, 6), (None, 5, 5), (3, 5, 5), (3, 60, 6)])
def test_of_both_the_one_that_comes_first_ends_the_run(epochs: int | None, steps: int | None, taken: int) -> None:
    assert rbd_ref.fit(Config(dims=5, lr=0.1, epochs=epochs, steps=steps), Bowl()).step == taken


# Any settings at all.


def made(values: dict[str, Any]) -> Config | None:
    """The configuration, or none after a sentence."""
    try:
        return make(values)
    except ValueError as error:
        if not one_sentence(error):
            raise
        return None


@pytest.mark.compiled  # not that it needs any kernel, but once is enough
@settings(max_examples=2000, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(anything, st.data())
def test_a_setting_is_refused_or_changes_the_configuration(values: dict[str, Any], data: st.DataObject) -> None:
    """Either there is a sentence, or the configuration is another without the setting; of those that weights depend on,
    its digest is, unless it names what is meant where nothing is named."""
    assume(values)
    name = data.draw(st.sampled_from(sorted(values)))
    c, without = made(values), made({key: value for key, value in values.items() if key != name})
    if c is None or without is None:  # refused; or the setting gave others their meaning
        return
    if asdict(c) != asdict(without):
        decisive = FIELDS[name].metadata["bits"] and values[name] != configs.REFERENCE
        assert (c.digest != without.digest) >= decisive
    else:
        assert says_the_default(without, name, values[name])


def says_the_default(without: Config, name: str, value: Any) -> bool:
    """Whether a value is what the configuration has without it."""
    found = getattr(without, name)
    return bool(found == (tuple(value) if isinstance(value, list) else str(value) if name == "dims" else value))


@given(anything)
def test_what_is_idle_can_be_left_out(values: dict[str, Any]) -> None:
    left = {name: value for name, value in values.items() if name not in configs.idle(values)}
    assert configs.idle(left) == {}
    make(left)


def test_every_need_is_of_a_setting_that_there_is() -> None:
    assert set(meaning.NEEDS) <= set(FIELDS)
