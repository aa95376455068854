"""What a check is, how the checks are run against a backend, and the report that comes out.

Tests: tests/test_conformance.py.
"""

from __future__ import annotations

import json
import platform
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

import rbd_ref
from rbd_ref.backend import LEVELS, Backend
from rbd_ref.conformance.golden import VERSION
from rbd_ref.spec.families import FAMILIES
from rbd_ref.spec.random import LAWS

MODULES = ("words", "directions", "random", "operations", "descents")
NEAR = 16  # ulp: as far as one rounding less takes the sum of a few products
GRADIENTS = "L3"  # the first level that needs gradients of networks


class Mismatch(Exception):
    """What a check found wrong, in one sentence."""


@dataclass(frozen=True)
class Check:
    """One thing that a backend must do, for one family or, where `family` is None, for none in particular."""

    level: str
    title: str
    family: str | None
    run: Callable[[Backend], None]

    def __str__(self) -> str:
        return f"{self.level} {self.title}" + (f" [{self.family}]" if self.family else "")


CHECKS: dict[str, Check] = {}


def _add(item: Check) -> None:
    CHECKS[str(item)] = item


def check(level: str, title: str) -> Callable[[Callable[[Backend], None]], Callable[[Backend], None]]:
    """Register a function of a backend as a check."""

    def register(function: Callable[[Backend], None]) -> Callable[[Backend], None]:
        _add(Check(level, title, None, function))
        return function

    return register


def check_families(
    level: str, title: str
) -> Callable[[Callable[[Backend, str], None]], Callable[[Backend, str], None]]:
    """Register a function of a backend and a family as one check for each family."""

    def register(function: Callable[[Backend, str], None]) -> Callable[[Backend, str], None]:
        for family in FAMILIES:
            _add(Check(level, title, family, _of_family(function, family)))
        return function

    return register


def check_laws(level: str, title: str) -> Callable[[Callable[[Backend, str], None]], Callable[[Backend, str], None]]:
    """Register a function of a backend and a law of portable random numbers as one check for the family of each."""

    def register(function: Callable[[Backend, str], None]) -> Callable[[Backend, str], None]:
        for law in LAWS:
            _add(Check(level, title, LAWS[law].family, _of_family(function, law)))
        return function

    return register


def _of_family(function: Callable[[Backend, str], None], family: str) -> Callable[[Backend], None]:
    return lambda backend: function(backend, family)


def all_checks() -> list[Check]:
    """Every check, in order of level."""
    for module in MODULES:
        import_module(f"rbd_ref.conformance.{module}")
    return sorted(CHECKS.values(), key=lambda item: LEVELS.index(item.level))


def expect(condition: bool, message: str) -> None:
    """Raise `Mismatch` with the message unless the condition holds."""
    if not condition:
        raise Mismatch(message)


def same_bits(what: str, got: object, expected: np.ndarray) -> None:
    """Demand an array of the expected type, shape and bits."""
    expect(isinstance(got, np.ndarray), f"{what} is {type(got).__name__}, expected a NumPy array")
    array = np.asarray(got)
    expect(array.dtype == expected.dtype, f"{what} has dtype {array.dtype}, expected {expected.dtype}")
    expect(array.shape == expected.shape, f"{what} has shape {array.shape}, expected {expected.shape}")
    mine, theirs = (np.ascontiguousarray(x).view(np.uint32) for x in (array, expected))
    places = np.argwhere(mine != theirs)
    if len(places):
        at = tuple(int(i) for i in places[0])
        raise Mismatch(
            f"{what}: {len(places)} of {mine.size} words differ, the first at {at}: "
            f"got {int(mine[at]):#010x} ({array[at]}), expected {int(theirs[at]):#010x} ({expected[at]})"
            + (suspicion(mine, theirs) if array.dtype == np.float32 else "")
        )


def suspicion(mine: np.ndarray, theirs: np.ndarray) -> str:
    """What floats that are near their counterparts, by their bits, make one think of."""
    ordered = [np.where(x >> 31 == 1, -(x & 0x7FFFFFFF).astype(np.int64), x) for x in (mine, theirs)]
    distance = int(np.abs(ordered[0] - ordered[1]).max())
    return f", all within {distance} ulp: fused multiply-add?" if distance <= NEAR else ""


ARRAYS = ("words", "directions", "project", "reconstruct", "project_part", "numbers")


@dataclass(frozen=True)
class Watched:
    """A backend whose answers are looked at before a check works with them."""

    backend: Backend

    def __getattr__(self, name: str) -> Any:
        part = getattr(self.backend, name)
        if name in ARRAYS:
            return partial(_array, name, part)
        return partial(_arrays, name, part) if name == "descend" else part


def _array(name: str, method: Callable[..., object], *arguments: object) -> object:
    """What a method returns, if it is an array."""
    answer = method(*arguments)
    expect(isinstance(answer, np.ndarray), f"{name} returned {type(answer).__name__}, expected a NumPy array")
    return answer


def _arrays(name: str, method: Callable[..., object], *arguments: object) -> object:
    """What a method returns, if it is two arrays."""
    answer = method(*arguments)
    kinds = [type(part).__name__ for part in answer] if isinstance(answer, tuple) else [type(answer).__name__]
    fits = isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(part, np.ndarray) for part in answer)
    expect(fits, f"{name} returned {' and '.join(kinds) or 'nothing'}, expected a tuple of two NumPy arrays")
    return answer


@dataclass
class Outcome:
    """How one check ended: `passed`, `failed`, or `undeclared` where the backend does not claim it."""

    level: str
    title: str
    family: str | None
    outcome: str
    seconds: float = 0.0
    message: str = ""


@dataclass
class Report:
    """All outcomes of one backend: the highest level fully passed, the one it fails, and what it does not declare.

    `gradients` says whose they were in L3 and above, `its own` or `the reference's`.
    """

    backend: str
    declared: dict[str, object]
    asked: str
    missing: list[str] = field(default_factory=list)
    level: str | None = None
    failed_at: str | None = None
    gradients: str | None = None
    rbd_ref: str = rbd_ref.__version__
    vectors: str = VERSION
    machine: str = field(default_factory=lambda: f"{platform.system()} {platform.machine()}")
    python: str = field(default_factory=platform.python_version)
    checks: list[Outcome] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The last line of the command's output."""
        if self.failed_at:
            return f"{self.backend}: fails at {self.failed_at}"
        return f"{self.backend}: conforms to {self.level}"

    def write(self, path: Path) -> None:
        """Save as JSON."""
        path.write_text(json.dumps(asdict(self) | {"verdict": self.verdict}, indent=1) + "\n")


def undeclared(backend: Backend, item: Check) -> str:
    """Why a check does not apply to this backend; empty if it does."""
    can = backend.capabilities
    if LEVELS.index(item.level) > LEVELS.index(can.level):
        return f"{backend.name} declares {can.level} as its highest level" + (f": {can.reason}" if can.reason else "")
    if item.family and item.family not in can.families:
        return f"{backend.name} does not declare the family {item.family}" + (f": {can.reason}" if can.reason else "")
    return ""


def run_check(backend: Backend, item: Check) -> Outcome:
    """Run one check; anything it raises is a failure with its message."""
    result = Outcome(item.level, item.title, item.family, "passed")
    if reason := undeclared(backend, item):
        result.outcome, result.message = "undeclared", reason
        return result
    start = time.perf_counter()
    try:
        item.run(cast(Backend, Watched(backend)))
    except Mismatch as error:
        result.outcome, result.message = "failed", str(error)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"raised {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        result.outcome, result.message = "failed", text
    result.seconds = round(time.perf_counter() - start, 3)
    return result


def run(backend: Backend, highest: str = LEVELS[-1]) -> Iterator[Check | Outcome | Report]:
    """Each check before it runs and then its outcome, level by level up to `highest`, none after a level that is not
    passed; last the report."""
    report = Report(backend.name, asdict(backend.capabilities), highest, missing=backend.capabilities.missing())
    for level in LEVELS[: LEVELS.index(highest) + 1]:
        for item in all_checks():
            if item.level == level:
                yield item
                report.checks.append(run_check(backend, item))
                yield report.checks[-1]
        outcomes = {item.outcome for item in report.checks if item.level == level}
        if level == GRADIENTS and outcomes != {"undeclared"}:
            report.gradients = "its own" if hasattr(backend, "loss_and_gradient") else "the reference's"
        if "failed" in outcomes:
            report.failed_at = level
            break
        if "passed" in outcomes:
            report.level = level
    yield report
