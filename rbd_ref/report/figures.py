"""Where the parts of a figure lie: scales, ticks, labels, and curves of a few hundred points however long a run was.

templates/figure.svg.j2 draws it. A figure carries its two scales as attributes, so that whoever reads the page can turn
pixels back into numbers: templates/report.js does, to show the values under the pointer. Colours come from the style
sheet: a curve only says which run it belongs to.
Tests: tests/test_report.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rbd_ref._types import Float64Array

POINTS = 300  # of a curve, at most
SMOOTH_FROM = 100  # points
LARGEST = 1e100  # what is beyond, or no number, is not drawn
LOG_FROM = 30.0  # the ratio of largest to smallest from which on a logarithmic scale is easier to read
LABEL_DISTANCE = 14.0  # between the numbers at the ends of curves,
LABEL_REACH = 16.0  # where these ends are no further apart than this from left to right


class Area(NamedTuple):
    """The picture, and the part of it that curves are in, in pixels."""

    width: int = 480
    height: int = 300
    left: float = 46.0
    right: float = 452.0
    top: float = 14.0
    bottom: float = 254.0


AREA = Area()


class Series(NamedTuple):
    """What a run has to show: x ascending, and y."""

    number: int
    name: str
    x: Float64Array
    y: Float64Array


class Frame(NamedTuple):
    """What a figure says around its curves. `noisy`: long curves are smoothed; `log`: y may be logarithmic, if its
    range asks for it; `log_x`: x is."""

    title: str
    unit: str
    x_label: str
    noisy: bool = False
    log: bool = False
    log_x: bool = False


class Tick(NamedTuple):
    """A mark of an axis: its number, and where it is."""

    text: str
    place: float


class Curve(NamedTuple):
    """A run's line: its points, where it ends, the height of the label there, and the value that it ends at."""

    number: int
    name: str
    points: list[tuple[float, float]]
    label_height: float
    last: float

    @property
    def end(self) -> tuple[float, float]:
        """Where the line ends."""
        return self.points[-1]


class Scale(NamedTuple):
    """Numbers from `low` to `high` onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def pixels(self, values: Float64Array) -> Float64Array:
        """Where the values are in the picture."""
        low, high = np.log10([self.low, self.high]) if self.log else (self.low, self.high)
        places = np.log10(values) if self.log else values
        return np.asarray(self.start + (places - low) / (high - low) * (self.end - self.start))

    def ticks(self, marks: Sequence[float]) -> list[Tick]:
        """Marks at these numbers."""
        places = self.pixels(np.array(marks)).tolist()
        return [Tick(numeral(mark), place) for mark, place in zip(marks, places, strict=True)]

    def attribute(self) -> str:
        """The five numbers, for those who want to go back from pixels to values."""
        return f"{self.low!r} {self.high!r} {self.start!r} {self.end!r} {int(self.log)}"


class Figure(NamedTuple):
    """All that is drawn."""

    frame: Frame
    note: str  # of how the numbers are shown, after the unit
    x: Scale
    x_ticks: list[Tick]
    y: Scale
    y_ticks: list[Tick]
    curves: list[Curve]


def drawable(series: Series, log_x: bool = False) -> Series:
    """The points that are numbers (and above zero, where x is logarithmic)."""
    keep = (np.abs(series.x) < LARGEST) & (np.abs(series.y) < LARGEST) & ((series.x > 0) | (not log_x))
    return series._replace(x=series.x[keep], y=series.y[keep])


def smooth(series: Series) -> Series:
    """Running means over 2 % of the run, for curves of many points."""
    size = len(series.y)
    if size <= SMOOTH_FROM:
        return series
    window = np.ones(size // 50 | 1)
    return series._replace(y=np.convolve(series.y, window, "same") / np.convolve(np.ones(size), window, "same"))


def thin(series: Series, limit: int = POINTS) -> Series:
    """At most `limit` points: the first, the last, and the lowest and highest of each of many equal stretches."""
    size = len(series.x)
    if size <= limit:
        return series
    keep = {0, size - 1}
    for part in np.array_split(np.arange(size), limit // 2 - 1):
        keep |= {int(part[series.y[part].argmin()]), int(part[series.y[part].argmax()])}
    index = np.array(sorted(keep))
    return series._replace(x=series.x[index], y=series.y[index])


def ticks(low: float, high: float) -> list[float]:
    """Round numbers 1, 2 or 5 times a power of ten apart, from the last one before `low` to the first after `high`."""
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * (1 - 1e-9))
    first, last = math.floor(round(low / step, 6)), math.ceil(round(high / step, 6))
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within the range, every second or third where they are many, with 2 and 5 times those where few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if math.log10(high / low) < 2.5 else (1,)
    decades = range(first, last + 1, 1 + (last - first) // 8)
    marks = [float(f"{factor}e{decade}") for decade in decades for factor in factors]
    return [mark for mark in marks if low <= mark <= high]


def axis(values: Float64Array, start: float, end: float, log: bool, fit: bool) -> tuple[Scale, list[float]]:
    """The scale for these values and its ticks; `fit`: from zero to the largest value, else with round ends."""
    low, high = float(values.min()), float(values.max())
    if log:
        low, high = low / 1.08, high * 1.08
        return Scale(low, high, start, end, True), log_ticks(low, high)
    low = min(low, 0.0) if fit else low
    if high - low <= 1e-7 * abs(high):
        pad = abs(high) / 10 or 1.0
        low, high = low - pad, high + pad
    marks = ticks(low, high)
    if fit:
        return Scale(low, high, start, end, False), [mark for mark in marks if low <= mark <= high]
    return Scale(marks[0], marks[-1], start, end, False), marks


def pushed(ends: Sequence[tuple[float, float]], heights: list[float], sign: int, limit: float) -> list[float]:
    """Heights moved down (1) or up (-1) as far as labels would overlap or lie before the limit."""
    heights = list(heights)
    order = sorted(range(len(ends)), key=lambda index: ends[index][1])[::sign]
    for place, index in enumerate(order):
        near = [i for i in order[:place] if abs(ends[i][0] - ends[index][0]) < LABEL_REACH]
        bounds = [sign * heights[i] + LABEL_DISTANCE for i in near]
        heights[index] = sign * max([sign * heights[index], sign * limit, *bounds])
    return heights


def spread(ends: Sequence[tuple[float, float]]) -> list[float]:
    """Heights for labels beside these ends of curves: apart, around the middle of the ends, and inside the frame."""
    heights = [y for _, y in ends]
    down, up = pushed(ends, heights, 1, AREA.top), pushed(ends, heights, -1, AREA.bottom)
    middle = [(a + b) / 2 for a, b in zip(down, up, strict=True)]
    return pushed(ends, pushed(ends, middle, 1, AREA.top), -1, AREA.bottom)


def numeral(value: float) -> str:
    """A tick's number, like 20,000 or 0.05 or 8e-5."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.9g}"
    digits, exponent = f"{value:.8e}".split("e")
    return f"{float(digits):.9g}e{int(exponent)}"


def curves(series: Sequence[Series], x: Scale, y: Scale) -> list[Curve]:
    """A line for each run."""
    lines = [list(zip(x.pixels(one.x).tolist(), y.pixels(one.y).tolist(), strict=True)) for one in series]
    heights = spread([line[-1] for line in lines])
    return [
        Curve(one.number, one.name, line, height, float(one.y[-1]))
        for one, line, height in zip(series, lines, heights, strict=True)
    ]


def note(log: bool, smoothed: bool) -> str:
    """How the numbers are shown."""
    return ", logarithmic" * log + ", running means over 2 % of a run" * smoothed


def figure(frame: Frame, series: Sequence[Series]) -> Figure | None:
    """A picture of the runs that have something to show; None if there are none."""
    shown = [one for one in (drawable(one, frame.log_x) for one in series) if one.x.size]
    if not shown:
        return None
    smoothed = frame.noisy and max(one.x.size for one in shown) > SMOOTH_FROM
    shown = [thin(smooth(one) if frame.noisy else one) for one in shown]
    every_y = np.concatenate([one.y for one in shown])
    log = frame.log and bool(0 < LOG_FROM * every_y.min() < every_y.max())
    x, x_marks = axis(np.concatenate([one.x for one in shown]), AREA.left, AREA.right, frame.log_x, fit=True)
    y, y_marks = axis(every_y, AREA.bottom, AREA.top, log, fit=False)
    lines = curves(shown, x, y)
    return Figure(frame, note(log, smoothed), x, x.ticks(x_marks), y, y.ticks(y_marks), lines)
