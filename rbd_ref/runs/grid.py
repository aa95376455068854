"""A grid: the settings that all runs of a sweep share, and the values of those that vary.

Values are written `2^-3..2^1` (powers of two), `0..4` (whole numbers), both inclusive, or one after the other:
`1e-3,1e-2`, `srht,normal`, `true,false`. In a TOML file a list does as well. A point of the grid is a value for each
setting that varies, and its name, such as `lr=0.5,seed=3`, is that of its run's folder.
Tests: tests/test_sweep.py.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from rbd_ref.runs import config as configs
from rbd_ref.runs.config import Config
from rbd_ref.runs.files import RunError
from rbd_ref.runs.folder import write_text
from rbd_ref.runs.paths import IMPORTED, refuse_paths

POWER = re.compile(r"2\^([+-]?[0-9]{1,4})")
WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
EXPONENTS = range(-1022, 1024)  # of the powers of two that a float holds in full precision
MOST = 10_000  # runs of a sweep, and values of a range
LONGEST = 200  # characters of a folder's name
SEARCHED = "lr"
HOLDOUT = 0.25  # of the training images: what a search is scored on
FILE = "sweep.toml"
PLACES = ("data_dir", "mirror")  # settings that may change when a sweep goes on
VERBATIM = (*PLACES, "preset", "problem")  # texts that may have commas
SETTINGS = {item.name: item for item in fields(Config)}


def _numeric(name: str) -> bool:
    """Whether the values of a setting are numbers."""
    return name == "dims" or configs.kind_of(SETTINGS[name]) in (int, float)


def _typed(name: str, number: int | float, text: str) -> Any:
    """A number as the setting takes it."""
    if configs.kind_of(SETTINGS[name]) is float:
        return float(number)
    if number != int(number):
        raise ValueError(f"{name} has the value {text!r}, expected a whole number: correct it")
    return str(int(number)) if name == "dims" else int(number)


def _power(name: str, text: str) -> int | None:
    """The exponent of a power of two, None where the text is none."""
    found = POWER.fullmatch(text)
    if found and int(found[1]) not in EXPONENTS:
        raise ValueError(f"{name} has the value {text!r}, expected an exponent from -1022 to 1023: choose another")
    return int(found[1]) if found else None


def _range(name: str, text: str) -> list[Any]:
    """The values of `2^A..2^B` or `A..B`, both ends included."""
    ends = text.split("..")
    exponents = [_power(name, end) for end in ends]
    powers = all(exponent is not None for exponent in exponents)
    if len(ends) != 2 or not (powers or all(WHOLE.fullmatch(end) for end in ends)):
        raise ValueError(
            f"{name} has the range {text!r}, expected whole numbers as in 0..4 or powers of two as in 2^-3..2^1: "
            "correct it"
        )
    first, last = ((exponent or 0) for exponent in exponents) if powers else map(int, ends)
    if not 0 <= last - first < MOST:
        raise ValueError(
            f"{name} has the range {text!r}, expected one that ascends to {MOST} values at most: correct its ends"
        )
    return [_typed(name, 2.0**k if powers else k, text) for k in range(first, last + 1)]


def _scalar(name: str, text: str) -> Any:
    """One value, of the setting's type."""
    kind = configs.kind_of(SETTINGS[name])
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"{name} has the value {text!r}, expected true or false: correct it")
        return text == "true"
    if kind is tuple:
        return (text,)
    if _numeric(name) and (exponent := _power(name, text)) is not None:
        return _typed(name, 2.0**exponent, text)
    if kind is str:
        return text
    try:
        return kind(text)
    except ValueError as error:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} has the value {text!r}, expected {wanted}: correct it") from error


def parse(name: str, text: str) -> list[Any]:
    """The values of a setting that a text stands for.

    >>> parse("lr", "2^-2..2^1"), parse("seed", "0..2"), parse("family", "srht,normal"), parse("augment", "true,false")
    ([0.25, 0.5, 1.0, 2.0], [0, 1, 2], ['srht', 'normal'], [True, False])
    """
    values: list[Any] = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            raise ValueError(f"{name} is {text!r}, expected a value between commas and at each end: correct it")
        values += _range(name, part) if ".." in part and _numeric(name) else [_scalar(name, part)]
    return values


def _listed(name: str, values: Iterable[Any]) -> list[Any]:
    """The values in a list of a file or of Python: numbers may be texts, or NumPy's."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, str) and configs.kind_of(SETTINGS[name]) is not str:
            found += parse(name, value)
        else:
            found.append(tuple(value) if isinstance(value, list) else getattr(value, "item", lambda v=value: v)())
    return found


class Values(NamedTuple):
    """The values of a setting, and whether it varies."""

    values: list[Any]
    vary: bool


def _values(name: str, given: Any) -> Values:
    """What a setting of a flag, of a file or from Python stands for."""
    if isinstance(given, str) and given and name not in VERBATIM:
        values = parse(name, given)
        return Values(values, len(values) > 1)
    if isinstance(given, str) or not isinstance(given, Iterable):
        return Values([given], False)
    if configs.kind_of(SETTINGS[name]) is tuple and not any(isinstance(part, list | tuple) for part in given):
        return Values([tuple(given)], False)  # as in a run's config.toml
    return Values(list(dict.fromkeys(_listed(name, given))), True)


class Point(NamedTuple):
    """A run of a sweep: the settings that tell it from the others, and all of them."""

    settings: dict[str, Any]
    config: Config

    @property
    def name(self) -> str:
        """Of its folder."""
        return name_of(self.settings)


def shown(value: Any) -> str:
    """A value as it stands in names and tables."""
    if isinstance(value, tuple):
        return "+".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def name_of(settings: Mapping[str, Any]) -> str:
    """A folder's name that says what varies, shortened where no file system would take it.

    >>> name_of({"net": "mlp:64-10", "lr": 0.5, "seed": 3})
    'net=mlp:64-10,lr=0.5,seed=3'
    """
    name = ",".join(f"{key}={quote(shown(value), safe=':+@')}" for key, value in settings.items()) or "run"
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 17]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Grid:
    """What the runs of a sweep share, the values of what varies, and the rates to search, all in `Config`'s order."""

    base: dict[str, Any]
    axes: dict[str, list[Any]] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)

    @property
    def fixed(self) -> list[dict[str, Any]]:
        """Each combination of what varies, the seed apart; those that differ in nothing that has an effect are one."""
        return list({name_of(point): point for point in map(self._effective, self._combinations)}.values())

    @property
    def _combinations(self) -> list[dict[str, Any]]:
        """Each combination of what varies, the seed apart, on which it does not depend what has an effect."""
        return _product({name: values for name, values in self.axes.items() if name != "seed"})

    def _effective(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings of a point without those that mean nothing to its method, as --dims to sgd."""
        unused = configs.without_effect({**self.base, **settings})
        return {name: value for name, value in settings.items() if name not in unused}

    @property
    def seeds(self) -> list[int]:
        """The seeds of each combination."""
        return self.axes.get("seed", [self.base.get("seed", 0)])

    def point(self, settings: Mapping[str, Any], **hidden: Any) -> Point:
        """The point with these settings; hidden ones are not part of its name."""
        ordered = {name: settings[name] for name in SETTINGS if name in settings}
        values = {**self.base, **ordered, **hidden}
        idle = configs.idle(values)
        return Point(ordered, configs.make({name: value for name, value in values.items() if name not in idle}))

    def points(self, rates: Sequence[float] = ()) -> list[Point]:
        """All runs; `rates` are those that were found for each of `fixed`, if there was a search."""
        found = [{SEARCHED: rate} for rate in rates] or [{}] * len(self.fixed)
        seeds = [{"seed": seed} for seed in self.axes.get("seed", [])] or [{}]
        both = zip(self.fixed, found, strict=True)
        return [self.point({**fixed, **rate, **seed}) for fixed, rate in both for seed in seeds]

    def trial(self, fixed: Mapping[str, Any], rate: float, **hidden: Any) -> Point:
        """A run of the search: with the first seed, on a part of the training images, scored on the others; `hidden`
        are settings that trials have in place of the grid's."""
        return self.point({**fixed, SEARCHED: rate}, seed=self.seeds[0], holdout=HOLDOUT, **hidden)

    def check(self) -> None:
        """Refuse too many runs, and settings that no run could have."""
        count = math.prod(len(values) for values in self.axes.values())
        if count > MOST:
            raise ValueError(f"the grid has {count} runs, expected {MOST} at most: choose fewer values")
        if self.rates and (SEARCHED in self.axes or len(self.rates) < 2):
            raise ValueError(
                f"a search of {SEARCHED} has {len(self.rates)} rates and the grid {len(self.axes.get(SEARCHED, []))}, "
                "expected two or more to search and none in the grid: give a range to --search alone"
            )
        self._check_effects()
        self.points(self.rates[:1] * len(self.fixed))

    def _check_effects(self) -> None:
        """Refuse a setting that has an effect on none of the runs; that it has none on some is no fault."""
        points = [{**self.base, **settings} for settings in self._combinations]
        always = set.intersection(*(set(configs.idle(values)) for values in points))
        configs.refuse_idle(configs.filled(points[0]), sorted(always))

    def contains(self, other: Grid) -> bool:
        """Whether all runs of another grid are runs of this one, of the same names."""
        same = all(self.base.get(name) == other.base.get(name) for name in SETTINGS if name not in PLACES)
        return (
            same
            and list(self.axes) == list(other.axes)
            and all(set(values) <= set(self.axes[name]) for name, values in other.axes.items())
            and bool(self.rates) == bool(other.rates)
            and set(other.rates) <= set(self.rates)
        )

    def to_toml(self) -> str:
        """What `read` reads: a list is a setting that varies."""
        lines = ["# A sweep of rbd_ref.sweep: `python -m rbd_ref.sweep --config THIS` repeats it. A list varies."]
        lines += [configs.toml_line(name, value) for name, value in self.base.items()]
        lines += [configs.toml_line(name, values) for name, values in self.axes.items()]
        lines += [configs.toml_line("search", {SEARCHED: self.rates}).replace(":", " =", 1)] if self.rates else []
        return "\n".join(lines) + "\n"


def _product(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations, the last setting fastest."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def make(values: Mapping[str, Any], search: Any = None) -> Grid:
    """The grid of settings that may have several values each, checked."""
    unknown = sorted(set(values) - set(SETTINGS))
    if unknown:
        raise ValueError(f"setting {unknown[0]!r} is unknown, expected some of {', '.join(SETTINGS)}: correct the name")
    found = {name: _values(name, values[name]) for name in SETTINGS if name in values}
    if empty := [name for name, (known, _) in found.items() if not known]:
        raise ValueError(f"{empty[0]} has no values, expected one or more: add some, or leave it out")
    base = {name: known[0] for name, (known, vary) in found.items() if not vary}
    axes = {name: known for name, (known, vary) in found.items() if vary}
    grid = Grid(base, axes, _rates(search))
    grid.check()
    return grid


def _rates(search: Any) -> list[float]:
    """The rates to search, of `lr=2^-19..2^7` or of the table in a file, ascending."""
    if not search:
        return []
    if isinstance(search, str):
        name, _, text = search.partition("=")
        search = {name: text}
    if not isinstance(search, dict) or list(search) != [SEARCHED]:
        raise ValueError(f"search is {search!r}, expected the learning rate and its range, as in lr=2^-19..2^7")
    return sorted({float(rate) for rate in _values(SEARCHED, search[SEARCHED]).values})


def read(path: Path) -> Grid:
    """The grid in a sweep's folder; what it names by its path has to be given again."""
    grid = _read(path)
    refuse_named(path, grid, {})
    return grid


def _read(path: Path) -> Grid:
    """The same, whatever it names."""
    try:
        values = configs.read_toml(path)
        search = values.pop("search", None)
        return make(values, search)
    except (ValueError, TypeError) as error:
        raise RunError(f"{path} is not as it was written: {error}") from error


def refuse_named(path: Path, grid: Grid, given: Mapping[str, Any]) -> None:
    """Refuse backends and methods that a file names by their paths, unless the user has named some."""
    for name in IMPORTED:
        for value in grid.axes.get(name, [grid.base.get(name, "")]):
            refuse_paths(path, {name: value}, given)


def write(folder: Path, grid: Grid) -> None:
    """Put the grid into its folder, unless another is there that this one does not contain."""
    path = folder / FILE
    if path.exists():
        before = _read(path)
        if not grid.contains(before):
            raise RunError(
                f"{folder} holds another sweep, expected the same one or one that this grid contains: choose another "
                f"folder with --out, or compare with {path}"
            )
        if before == grid:
            return
    write_text(path, grid.to_toml())
