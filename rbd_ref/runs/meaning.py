"""Which settings have a meaning beside which others, so that none is accepted in silence.

A setting says in its metadata (`methods`, runs/config.py) which methods it is for. What else it needs is said here.
Help, validation, sweeps and docs/settings.md all go by `needs` and `idle`. A method of a third party says by itself
what it reads, once it is made: `unread`.
Tests: tests/test_meaning.py, tests/test_peers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import Field
from typing import Any, NamedTuple

from rbd_ref.backend import is_path
from rbd_ref.data.augmentation import RECIPES

ALONG_DIRECTIONS = ("rbd", "fpd", "nes", "nes-shared-batch")
REDRAWING = ("rbd", "nes", "nes-shared-batch")
FROM_LOSSES = ("nes", "nes-shared-batch")
FROM_GRADIENTS = ("sgd", "rbd", "fpd")
UNRECORDED = ("sgd",)  # what is sent is not journaled: whoever repeats a step computes the gradients again
ENCODING = ("rbd", "fpd")  # what is sent is coefficients of a gradient
PROJECTING = ("rbd",)  # a gradient along new directions; in the fixed ones of fpd a memory would be its momentum
OF_EACH = ("momentum", "combine")  # read by every method of this package, and by others that say so
OF_NONE = ("gradients",)  # acts on the gradient before any method has it
EMBEDDED = "digits"

Values = Mapping[str, Any]


def methods_of(values: Values) -> list[str]:
    """The methods of a run: the first, and those it switches to."""
    return [values["method"], *(text.split(":")[1] for text in values["switch"] if text.count(":"))]


class Need(NamedTuple):
    """What a setting needs of others: in words, and as a function of them and of its own value."""

    words: str
    met: Callable[[Values], bool]


def _moves(values: Values) -> bool:
    """Whether a method has a velocity: Adam's moments are fixed."""
    return values["optimiser"] == "plain" or set(methods_of(values)) != {"fpd"}


def is_augmented(data: str) -> bool:
    """Whether there is an augmentation of the images of a data set."""
    return data in RECIPES and RECIPES[data].pad > 0


NEEDS = {
    "dims": Need(
        "compartments other than proportional, which have their own numbers of directions",
        lambda values: not values["compartments"].startswith("proportional"),
    ),
    "momentum": Need("a method beside fpd with optimiser adam, which has moments of its own", _moves),
    "augment": Need(
        "a data set that the paper augments", lambda values: not values["augment"] or is_augmented(values["data"])
    ),
    "gradients": Need(
        "a network of this package, as a problem of one's own computes its gradients itself",
        lambda values: not values["problem"],
    ),
    "data_dir": Need("a data set in files, as the digits are embedded", lambda values: values["data"] != EMBEDDED),
    "mirror": Need("a data set in files, as the digits are embedded", lambda values: values["data"] != EMBEDDED),
    "on_divergence": Need(
        "check_every, without which nothing is compared",
        lambda values: values["on_divergence"] == "stop" or values["check_every"] != 0,
    ),
}


def needs(item: Field[Any]) -> list[str]:
    """All that a setting needs, in words."""
    methods = item.metadata.get("methods")
    found = [_either(methods)] if methods else []
    return found + ([NEEDS[item.name].words] if item.name in NEEDS else [])


def idle(item: Field[Any], values: Values) -> str:
    """What a setting would need to have a meaning beside these values, or nothing where it has one."""
    methods = item.metadata.get("methods")
    named = methods_of(values)
    if methods and not set(methods) & set(named) and not any(map(is_path, named)):
        return f"method {_either(methods)} and not {' or '.join(named)}"
    need = NEEDS.get(item.name)
    return need.words if need and not need.met(values) else ""


def unread(item: Field[Any], values: Values, reads: Container[str]) -> bool:
    """Whether a setting was changed that no method of a run reads, where that of a third party `reads` these.

    What every method reads by `Settings.eta`, rate and schedule, is not asked for; nor is what acts outside of methods.
    """
    methods = item.metadata.get("methods", ())
    asked = (methods or item.name in OF_EACH) and item.name not in OF_NONE
    if not asked or values[item.name] == item.default or item.name in reads:
        return False
    return not any(name in methods or not methods for name in methods_of(values) if not is_path(name))


def _either(names: tuple[str, ...]) -> str:
    """Like a, b or c."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last
