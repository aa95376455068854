"""The search of the learning rate, as in the paper: trained on 75 % of the training images, least loss on the others.

For each combination of the other settings, the seed apart, rates are tried from a start outwards, in steps of the range
(powers of two), until the loss turns on both sides: the best rate has worse neighbours, or is an end of the range.
Tests: tests/test_sweep.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from rbd_ref.runs.files import RunError
from rbd_ref.runs.grid import SEARCHED, Grid, Point, name_of
from rbd_ref.training.grid import GridRun, Runner

LOSS = "validation_loss"


@dataclass
class Search:
    """The rates of a range that were tried, and the loss of each: infinite where the run failed.

    >>> search = Search({}, [0.25, 0.5, 1.0, 2.0, 4.0], start=2)
    >>> while search.wanted:
    ...     search.losses |= {rate: (rate - 0.4) ** 2 for rate in search.wanted}
    >>> search.best, sorted(search.losses)
    (0.5, [0.25, 0.5, 1.0, 2.0])
    """

    fixed: Mapping[str, Any]
    rates: Sequence[float]
    start: int
    losses: dict[float, float] = field(default_factory=dict)

    @property
    def best(self) -> float:
        """The rate of least loss; of equals, the lowest."""
        return min(self.losses, key=lambda rate: (self.losses[rate], rate))

    @property
    def wanted(self) -> list[float]:
        """The rates to be tried next: the start with its neighbours, then the neighbours of the best, or none."""
        middle = self.rates.index(self.best) if self.losses else self.start
        near = self.rates[max(0, middle - 1) : middle + 2]
        return [rate for rate in near if rate not in self.losses]

    def add(self, run: GridRun) -> None:
        """A trial has ended."""
        loss = run.figures.get(LOSS, math.inf)
        self.losses[run.settings[SEARCHED]] = loss if math.isfinite(loss) else math.inf

    def sentence(self) -> str:
        """What was found."""
        if math.isinf(self.losses[self.best]):
            raise RunError(
                f"no learning rate from {self.rates[0]:g} up to {max(self.losses):g} gives a finite loss with "
                f"{name_of(self.fixed)}, expected one that does: look at failed.json of the runs, or search lower"
            )
        end = ", an end of the range" if self.best in (self.rates[0], self.rates[-1]) else ""
        where = f" with {name_of(self.fixed)}" if self.fixed else ""
        return f"best lr{where}: {self.best!r}{end} (loss {self.losses[self.best]:.4f}, {len(self.losses)} rates tried)"


def _start(grid: Grid) -> int:
    """The place in the range to start from: that next to the configuration's rate, or the middle."""
    if rate := grid.base.get(SEARCHED):
        return min(range(len(grid.rates)), key=lambda k: abs(math.log(grid.rates[k] / rate)))
    return len(grid.rates) // 2


class Begun(NamedTuple):
    """A search, and the run that tries one of its rates."""

    search: Search
    trial: Callable[[float], Point]


def finish(begun: Sequence[Begun], runner: Runner, tried: Callable[[int, GridRun], object] | None = None) -> None:
    """Try rates until no search wants any; all that want one are served side by side. `tried` is told the number of a
    search and each of its runs, once the search knows of it."""
    while wanted := [(number, rate) for number, one in enumerate(begun) for rate in one.search.wanted]:
        runs = runner.run([begun[number].trial(rate) for number, rate in wanted])
        for (number, _), run in zip(wanted, runs, strict=True):
            begun[number].search.add(run)
            if tried:
                tried(number, run)


def search_rates(grid: Grid, runner: Runner) -> list[Search]:
    """A finished search for each combination."""
    start = _start(grid)
    begun = [Begun(Search(fixed, grid.rates, start), partial(grid.trial, fixed)) for fixed in grid.fixed]
    finish(begun, runner)
    return [one.search for one in begun]
