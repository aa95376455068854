"""Intrinsic dimension: the least number of directions with which a method reaches a share of SGD's accuracy.

    d* = min { d : accuracy(d) >= share * accuracy of SGD },   share = 0.9 (Li et al. 2018)

It is found by bisection over d on a logarithmic scale. At each d some seeds are trained, side by side, each in a run
folder of its own, so that a search that was interrupted goes on where it was. Seeds differ, so that there are three
answers, each with a bisection of its own over the same runs:

    any       the least d at which some seed reaches the share of the worst SGD
    mean      the least d at which the seeds reach it in the mean: the estimate
    every     the least d at which every seed reaches the share of the best SGD

The interval goes from the largest d that was tried and at which no seed had come so far to the third.
Tests: tests/test_analysis.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rbd_ref._check import integer, member, number
from rbd_ref._types import TWO_32
from rbd_ref.runs import config as configs
from rbd_ref.runs.config import Config
from rbd_ref.runs.files import RunError
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.grid import GridRun, fit_grid
from rbd_ref.training.guidance import PROJECTING
from rbd_ref.training.problem import Problem
from rbd_ref.training.table import RANKING

SHARE = 0.9
SEEDS = 3
RESOLUTION = 1.1


@dataclass(frozen=True)
class DimensionSearch:
    """What is searched, and how finely.

    method      `fpd` or `rbd`
    share       of SGD's accuracy that counts as reached
    seeds       how many: 0, 1, ...
    low, high   the least and the largest d, which is tried first; None is D
    resolution  the bisection ends when two numbers of directions differ by this factor, or by one
    rates       learning rates of the method: at each d the one that is best in the mean counts; none is the default
    sgd_rates   the same of SGD
    """

    method: str = "fpd"
    share: float = SHARE
    seeds: int = SEEDS
    low: int = 1
    high: int | None = None
    resolution: float = RESOLUTION
    rates: tuple[float, ...] = ()
    sgd_rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        member("method", self.method, PROJECTING)
        integer("seeds", self.seeds, 1, TWO_32)
        integer("low", self.low, 1, TWO_32)
        if not 0 < number("share", self.share) <= 1:
            raise ValueError(f"share is {self.share}, expected a number above 0 up to 1: choose another")
        if not 1 < number("resolution", self.resolution) < math.inf:
            raise ValueError(f"resolution is {self.resolution}, expected a factor above 1: choose another")

    def bounds(self, D: int) -> tuple[int, int]:
        """The range of d, which has to hold two numbers."""
        high = D if self.high is None else self.high
        if not self.low < high <= D:
            raise ValueError(
                f"d goes from {self.low} to {high}, expected low < high <= D = {D}: correct --low and --high"
            )
        return self.low, high


@dataclass(frozen=True)
class Trial:
    """Runs with d directions, 0 for SGD: the accuracy of each seed, 0 where it failed, with the best of the rates."""

    d: int
    lr: float | None
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return float(np.mean(self.accuracies))


@dataclass(frozen=True)
class Dimension:
    """What was found.

    threshold  share * the mean accuracy of SGD
    estimate   the least d that was tried and reaches it in the mean; None if none does
    low        at this d and below no seed reaches it; None where some seed does at the least d of the range
    high       at this d and above every seed reaches it; None where some seed does not at the largest d
    trials     all that were tried, by d
    """

    method: str
    D: int
    share: float
    threshold: float
    estimate: int | None
    low: int | None
    high: int | None
    sgd: Trial
    trials: list[Trial]

    def __str__(self) -> str:
        found = "more directions than were tried" if self.estimate is None else f"{self.estimate:,} directions"
        low = "it may be less than was tried" if self.low is None else f"no seed at {self.low:,}"
        high = "not every seed at the most" if self.high is None else f"every seed at {self.high:,}"
        return f"{self.method} takes {found} for {self.share:.0%} of SGD's accuracy: {low}, {high}; D = {self.D:,}"


class Bracket(NamedTuple):
    """The largest number that was not enough, and the least that was; None beyond the ends."""

    below: int | None
    reached: int | None


def bisect(reaches: Callable[[int], bool], low: int, high: int, resolution: float = RESOLUTION) -> Bracket:
    """Where a condition begins to hold that holds for all larger numbers: low < d <= high, on a logarithmic scale.

    Args:
        reaches: whether d is enough.
        low: the least d, which is tried.
        high: the largest d, which is tried first.
        resolution: it ends when the two differ by this factor at most, or by one.

    Returns:
        a `Bracket`: (None, low) if already the least is enough, (high, None) if the largest is not.

    Examples:
        >>> tried = []
        >>> bisect(lambda d: tried.append(d) or d >= 37, 1, 1000, resolution=1.01)
        Bracket(below=36, reached=37)
        >>> tried
        [1000, 1, 32, 179, 76, 49, 40, 36, 38, 37]
    """
    if not reaches(high):
        return Bracket(high, None)
    if reaches(low):
        return Bracket(None, low)
    while high - low > 1 and high > resolution * low:
        middle = min(max(round(math.sqrt(low * high)), low + 1), high - 1)
        if reaches(middle):
            high = middle
        else:
            low = middle
    return Bracket(low, high)


@dataclass
class Trials:
    """Trains what is asked for, once."""

    config: Config
    search: DimensionSearch
    problem: Problem | None
    out: Path | None
    jobs: int

    def __post_init__(self) -> None:
        self.known: dict[int, Trial] = {}

    def at(self, d: int) -> Trial:
        """With d directions; 0 is SGD."""
        if d not in self.known:
            self.known[d] = self._train(d)
        return self.known[d]

    def _train(self, d: int) -> Trial:
        """All rates and seeds."""
        search = self.search
        rates = search.rates if d else search.sgd_rates
        method = {"method": search.method, "dims": str(d)} if d else {"method": "sgd"}
        grid: dict[str, Sequence[Any]] = {"seed": range(search.seeds)}
        if rates:
            grid["lr"] = list(rates)
        out = None if self.out is None else self.out / (f"d={d}" if d else "sgd")
        runs = fit_grid(settings(self.config, method), grid, self.problem, out=out, jobs=self.jobs)
        if all(run.error for run in runs):
            raise RunError(
                f"none of the runs of {method['method']}{f' with d = {d}' if d else ''} came to its end, expected a "
                f"rate with which some do: add lower ones with {'--lr' if d else '--sgd-lr'}; the first of them: "
                f"{runs[0].error}"
            )
        return best_rate(d, runs)


def settings(config: Config, changes: Mapping[str, Any]) -> Config:
    """The configuration with another method, without what would mean nothing to it, and without a rate of its own."""
    given = {item.name: getattr(config, item.name) for item in fields(Config)}
    changed = {name: value for name, value in given.items() if value != configs.FIELDS[name].default}
    values = {**changed, **changes}
    return Config(**{name: value for name, value in values.items() if name not in configs.idle(values)})


def best_rate(d: int, runs: Sequence[GridRun]) -> Trial:
    """The accuracies with the rate that is best in the mean."""
    groups: dict[float | None, list[float]] = {}
    for run in runs:
        groups.setdefault(run.settings.get("lr"), []).append(accuracy(run))
    return max((Trial(d, lr, tuple(found)) for lr, found in groups.items()), key=lambda trial: trial.mean)


def accuracy(run: GridRun) -> float:
    """On the validation set; 0 where the run failed."""
    if run.error:
        return 0.0
    if RANKING not in run.figures:
        raise RunError(f"the runs have no {RANKING}, expected it of the problem's `evaluate`: add it there")
    return run.figures[RANKING]


def find_dimension(
    config: Config,
    search: DimensionSearch | None = None,
    problem: Problem | None = None,
    *,
    out: str | Path | None = None,
    jobs: int = 1,
) -> Dimension:
    """The least d at which a method reaches a share of SGD's accuracy on the validation set, with an interval.

    Args:
        config: data, network, length and family; method, dims, rate and seed are those of the search.
        search: method, share, seeds, range and rates.
        problem: one of your own, whose `evaluate` has `validation_accuracy`.
        out: a folder for the runs; called again with it, only what is missing is trained.
        jobs: runs side by side.

    Returns:
        a `Dimension`.

    Raises:
        rbd_ref.RunError: all runs of some d have failed, or the folder holds another search.
        ValueError: a range without numbers, or another setting that cannot be.

    Examples:
        >>> import rbd_ref
        >>> base = rbd_ref.Config(net="mlp:64-10", family="srht", epochs=2)
        >>> found = find_dimension(base, DimensionSearch(method="rbd", seeds=1, low=2, high=400, resolution=3))
        >>> found.D, found.estimate is not None, [trial.d for trial in found.trials][-1]
        (650, True, 400)
    """
    wanted = search or DimensionSearch()
    if config.compartments.startswith("proportional"):
        raise ValueError(
            f"compartments are {config.compartments}, which says how many directions there are, expected a kind that "
            "takes any number: use whole, even:K, layer or tensor"
        )
    plain = settings(config, {"method": wanted.method, "lr": None, "dims": "each:1", "seed": 0})
    D = Experiment(plain, problem).plan.D
    low, high = wanted.bounds(D)
    trials = Trials(plain, wanted, problem, None if out is None else Path(out), jobs)
    sgd = trials.at(0)
    mean, some, every = brackets(trials.at, sgd, wanted, low, high)
    found = [trials.known[d] for d in sorted(trials.known) if d]
    threshold = wanted.share * sgd.mean
    return Dimension(wanted.method, D, wanted.share, threshold, mean.reached, some.below, every.reached, sgd, found)


def brackets(
    at: Callable[[int], Trial], sgd: Trial, search: DimensionSearch, low: int, high: int
) -> tuple[Bracket, Bracket, Bracket]:
    """Where seeds reach the share in the mean, where some seed does of the worst SGD, and where all do of the best."""
    share = search.share
    fine = search.resolution
    mean = bisect(lambda d: at(d).mean >= share * sgd.mean, low, high, fine)
    some = bisect(lambda d: max(at(d).accuracies) >= share * min(sgd.accuracies), low, high, fine)
    every = bisect(lambda d: min(at(d).accuracies) >= share * max(sgd.accuracies), low, high, fine)
    return mean, some, every
