"""Where the parts of a figure lie: scales, ticks, labels, and curves of a few hundred points however long a run was.

templates/figure.svg.j2 draws it. A figure carries its two scales as attributes, so that whoever reads the page can turn
pixels back into numbers: templates/report.js does, to show the values under the pointer. Colours come from the style
sheet: a curve only says which group of runs it belongs to. Labels stand in the margin beside the curves, where no line
is, joined to the ends of their curves.
Tests: tests/test_report.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rbd_ref._types import Float64Array, Indices

POINTS = 300  # of a curve, at most,
ALL_POINTS = 6000  # of a figure, about, and
FEWEST = 60  # of a curve of a figure that has many
SMOOTH_FROM = 100  # points
LARGEST = 1e100  # what is beyond, or no number, is not drawn
LOG_FROM = 30.0  # the ratio of largest to smallest from which on a logarithmic scale is easier to read
LABEL_DISTANCE = 14.0  # between the labels in the margin
COLOURS = 7  # of lines; as many again are dashed
LABELS = 2 * COLOURS  # in the margin at most; where there are more curves, only the first COLOURS have one
TICK_DISTANCE = 40.0  # between values that have a tick each


class Area(NamedTuple):
    """The picture, and the part of it that curves are in, in pixels."""

    width: int = 480
    height: int = 300
    left: float = 54.0
    right: float = 416.0
    top: float = 14.0
    bottom: float = 254.0


AREA = Area()


class Series(NamedTuple):
    """What a group has to show: x ascending, y, and the standard error of y, 0 where there is none.

    `marks`: the numbers of the groups that the points are of, where a point is a group.
    """

    number: str
    name: str
    x: Float64Array
    y: Float64Array
    error: Float64Array
    marks: tuple[int, ...] = ()


class Reference(NamedTuple):
    """A value to compare with: a line across, for the groups of these numbers."""

    label: str
    value: float
    numbers: tuple[int, ...]


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


Points = list[tuple[float, float]]


class Curve(NamedTuple):
    """A group's line: its points, the outline of its band, the height of its label (None: none), its last value."""

    number: str
    name: str
    points: Points
    band: Points
    marks: tuple[int, ...]
    label_height: float | None
    last: float

    @property
    def end(self) -> tuple[float, float]:
        """Where the line ends."""
        return self.points[-1]


class Line(NamedTuple):
    """A reference as it is drawn: at what height, and the height of its label."""

    reference: Reference
    height: float
    label_height: float


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
    lines: list[Line]


def drawable(series: Series, log_x: bool = False) -> Series:
    """The points that are numbers (and above zero, where x is logarithmic)."""
    keep = (np.abs(series.x) < LARGEST) & (np.abs(series.y) < LARGEST) & ((series.x > 0) | (not log_x))
    return chosen(series, np.flatnonzero(keep))


def chosen(series: Series, index: Indices) -> Series:
    """These points of it."""
    marks = tuple(series.marks[i] for i in index) if series.marks else ()
    return series._replace(x=series.x[index], y=series.y[index], error=series.error[index], marks=marks)


def smooth(series: Series) -> Series:
    """Running means over 2 % of the run, for curves of many points."""
    size = len(series.y)
    if size <= SMOOTH_FROM:
        return series
    window = np.ones(size // 50 | 1)
    weights = np.convolve(np.ones(size), window, "same")
    y, error = (np.convolve(values, window, "same") / weights for values in (series.y, series.error))
    return series._replace(y=y, error=error)


def thin(series: Series, limit: int = POINTS) -> Series:
    """At most `limit` points: the first, the last, and the lowest and highest of each of many equal stretches."""
    size = len(series.x)
    if size <= limit:
        return series
    keep = {0, size - 1}
    for part in np.array_split(np.arange(size), limit // 2 - 1):
        keep |= {int(part[series.y[part].argmin()]), int(part[series.y[part].argmax()])}
    return chosen(series, np.array(sorted(keep)))


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


def value_ticks(scale: Scale, values: Float64Array, marks: list[float]) -> list[float]:
    """A tick at every value, where they are few and apart; else the usual ones."""
    known = np.unique(values)
    places = scale.pixels(known)
    crowded = known.size > 1 and bool(np.diff(places).min() < TICK_DISTANCE)
    return marks if crowded else [float(f"{value:.4g}") for value in known]


def pushed(heights: Sequence[float], sign: int, limit: float) -> list[float]:
    """Heights moved down (1) or up (-1) as far as labels would overlap or lie before the limit."""
    placed = list(heights)
    bound = sign * limit
    for index in sorted(range(len(heights)), key=lambda index: heights[index])[::sign]:
        placed[index] = sign * max(sign * placed[index], bound)
        bound = sign * placed[index] + LABEL_DISTANCE
    return placed


def spread(heights: Sequence[float]) -> list[float]:
    """Heights for labels beside these: apart, around the middle of those that are too close, and inside the frame."""
    down = pushed(heights, 1, -math.inf)
    up = pushed(heights, -1, math.inf)
    middle = [(a + b) / 2 for a, b in zip(down, up, strict=True)]
    return pushed(pushed(middle, 1, AREA.top), -1, AREA.bottom)


def numeral(value: float) -> str:
    """A tick's number, like 20,000 or 0.05 or 8e-5."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.9g}"
    digits, exponent = f"{value:.8e}".split("e")
    return f"{float(digits):.9g}e{int(exponent)}"


def edges(series: Series, log: bool) -> tuple[Float64Array, Float64Array]:
    """The lower and upper edge of the band; above zero, where y is logarithmic."""
    low = series.y - series.error
    return np.where(low > 0, low, series.y) if log else low, series.y + series.error


def outline(series: Series, x: Scale, y: Scale) -> Points:
    """Of the band, forth along its upper edge and back along its lower one; of marks, the ends of their bars."""
    if not series.error.any():
        return []
    low, high = (y.pixels(edge).tolist() for edge in edges(series, y.log))
    across = x.pixels(series.x).tolist()
    return [*zip(across, high, strict=True), *list(zip(across, low, strict=True))[::-1]]


def drawn(series: Sequence[Series], references: Sequence[Reference], x: Scale, y: Scale) -> Iterator[Curve | Line]:
    """A curve for each of the series and a line for each of the references, with labels as far as there is room."""
    points = [list(zip(x.pixels(one.x).tolist(), y.pixels(one.y).tolist(), strict=True)) for one in series]
    across = y.pixels(np.array([one.value for one in references])).tolist()
    room = COLOURS if len(series) > LABELS else LABELS
    heights = spread([*(line[-1][1] for line in points[:room]), *across])
    labels = [*heights[: len(points[:room])], *[None] * len(points[room:])]
    for one, line, label in zip(series, points, labels, strict=True):
        yield Curve(one.number, one.name, line, outline(one, x, y), one.marks, label, float(one.y[-1]))
    for reference, height, label in zip(references, across, heights[len(points[:room]) :], strict=True):
        yield Line(reference, height, label)


def note(log: bool, smoothed: bool, banded: bool) -> str:
    """How the numbers are shown."""
    return (
        ", logarithmic" * log
        + ", running means over 2 % of a run" * smoothed
        + ", means with their standard error" * banded
    )


def prepared(frame: Frame, series: Sequence[Series]) -> list[Series]:
    """What of the series is drawn: numbers, smoothed, and not too many of them."""
    shown = [one for one in (drawable(one, frame.log_x) for one in series) if one.x.size]
    limit = min(POINTS, max(FEWEST, ALL_POINTS // max(len(shown), 1)))
    return [thin(smooth(one) if frame.noisy else one, limit) for one in shown]


def figure(frame: Frame, series: Sequence[Series], references: Sequence[Reference] = ()) -> Figure | None:
    """A picture of the groups that have something to show, the first on top; None if there are none."""
    shown = prepared(frame, series)
    if not shown:
        return None
    every_x = np.concatenate([one.x for one in shown])
    every_y = np.concatenate([*(one.y for one in shown), [one.value for one in references]])
    log = frame.log and bool(0 < LOG_FROM * every_y.min() < every_y.max())
    reached = np.concatenate([every_y, *(edge for one in shown for edge in edges(one, log))])
    x, x_marks = axis(every_x, AREA.left, AREA.right, frame.log_x, fit=True)
    x_marks = value_ticks(x, every_x, x_marks) if shown[0].marks else x_marks
    y, y_marks = axis(reached, AREA.bottom, AREA.top, log, fit=False)
    parts = list(drawn(shown, references, x, y))
    curves = [part for part in parts if isinstance(part, Curve)]
    lines = [part for part in parts if isinstance(part, Line)]
    said = note(log, frame.noisy and any(one.x.size > SMOOTH_FROM for one in series), any(c.band for c in curves))
    return Figure(frame, said, x, x.ticks(x_marks), y, y.ticks(y_marks), curves, lines)
