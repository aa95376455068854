"""Curves as SVG: scales, ticks, and pictures of a few hundred points however long a run was.

A figure carries its two scales as attributes, so that whoever reads the page can turn pixels back into numbers: SCRIPT
does, to show the values under the pointer. Colours come from the page: a curve only says which run it belongs to.
Tests: tests/test_report.py.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 46.0, 452.0, 14.0, 254.0
POINTS = 300  # of a curve, at most
SMOOTH_FROM = 100  # points
LARGEST = 1e100  # what is beyond, or no number, is not drawn
LOG_FROM = 30.0  # the ratio of largest to smallest from which on a logarithmic scale is easier to read
LABEL_DISTANCE = 14.0  # between the numbers at the ends of curves,
LABEL_REACH = 16.0  # where these ends are no further apart than this from left to right

SCRIPT = """
for (const svg of document.querySelectorAll("figure svg")) {
  const box = svg.nextElementSibling, cursor = svg.querySelector(".cursor");
  const [x, y] = [svg.dataset.x, svg.dataset.y].map(text => text.split(" ").map(Number));
  const value = ([low, high, start, end, log], pixel) => {
    const part = (pixel - start) / (end - start);
    const number = log ? low * (high / low) ** part : low + part * (high - low);
    return number.toLocaleString("en", {maximumSignificantDigits: 4});
  };
  const runs = [...svg.querySelectorAll(".run")].map(run => {
    run.querySelector("title").remove();
    const pairs = run.querySelector("polyline").getAttribute("points").split(" ");
    return {run, points: pairs.map(pair => pair.split(",").map(Number))};
  });
  const line = (colour, ...texts) => {
    for (const text of ["", ...texts]) box.appendChild(document.createElement("span")).textContent = text;
    box.children[box.children.length - 3].className = colour;
  };
  const move = event => {
    const frame = svg.getBoundingClientRect();
    const at = Math.min(x[3], Math.max(x[2], (event.clientX - frame.left) * svg.viewBox.baseVal.width / frame.width));
    cursor.setAttribute("transform", `translate(${at} 0)`);
    svg.classList.add("read");
    box.hidden = false;
    box.classList.toggle("left", at > (x[2] + x[3]) / 2);
    box.replaceChildren();
    line("", svg.dataset.label, value(x, at));
    for (const {run, points} of runs) {
      const near = points.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a);
      const {number, name} = run.dataset;
      if (near[0] > at - 12) line(`dot r${number}`, `${number} ${name}`, value(y, near[1]));
    }
  };
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointerleave", () => { box.hidden = true; svg.classList.remove("read"); });
}
"""


class Series(NamedTuple):
    """What a run has to show: x ascending, and y."""

    number: int
    name: str
    x: Array
    y: Array


class Frame(NamedTuple):
    """What a figure says around its curves. `noisy`: long curves are smoothed; `log`: y may be logarithmic, if its
    range asks for it; `log_x`: x is."""

    title: str
    unit: str
    x_label: str
    noisy: bool = False
    log: bool = False
    log_x: bool = False


class Scale(NamedTuple):
    """Numbers from `low` to `high` onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def pixels(self, values: Array) -> Array:
        """Where the values are in the picture."""
        low, high = np.log10([self.low, self.high]) if self.log else (self.low, self.high)
        places = np.log10(values) if self.log else values
        return np.asarray(self.start + (places - low) / (high - low) * (self.end - self.start))

    def attribute(self) -> str:
        """The five numbers, for those who want to go back from pixels to values."""
        return f"{self.low!r} {self.high!r} {self.start!r} {self.end!r} {int(self.log)}"


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


def axis(values: Array, start: float, end: float, log: bool, fit: bool) -> tuple[Scale, list[float]]:
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
    down, up = pushed(ends, heights, 1, TOP), pushed(ends, heights, -1, BOTTOM)
    middle = [(a + b) / 2 for a, b in zip(down, up, strict=True)]
    return pushed(ends, pushed(ends, middle, 1, TOP), -1, BOTTOM)


def numeral(value: float) -> str:
    """A tick's number, like 20,000 or 0.05 or 8e-5."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.9g}"
    digits, exponent = f"{value:.8e}".split("e")
    return f"{float(digits):.9g}e{int(exponent)}"


def _grid(x: Scale, x_ticks: list[float], y: Scale, y_ticks: list[float]) -> str:
    """Lines across at the ticks of y, marks below at those of x, and their numbers."""
    parts = []
    for value, place in zip(y_ticks, y.pixels(np.array(y_ticks)), strict=True):
        parts.append(f'<path class="grid" d="M{LEFT:g} {place:.2f}H{RIGHT:g}"/>')
        parts.append(f'<text class="tick y" x="{LEFT - 7:g}" y="{place:.2f}" dy=".35em">{numeral(value)}</text>')
    for value, place in zip(x_ticks, x.pixels(np.array(x_ticks)), strict=True):
        parts.append(f'<path class="mark" d="M{place:.2f} {BOTTOM:g}v5"/>')
        parts.append(f'<text class="tick x" x="{place:.2f}" y="{BOTTOM + 9:g}" dy=".8em">{numeral(value)}</text>')
    parts.append(f'<path class="mark" d="M{LEFT:g} {BOTTOM:g}H{RIGHT:g}"/>')
    return "".join(parts)


def _curves(series: Sequence[Series], x: Scale, y: Scale) -> str:
    """A line for each run, with a dot and the number of the run at its end."""
    lines = [(x.pixels(one.x), y.pixels(one.y)) for one in series]
    heights = spread([(float(across[-1]), float(up[-1])) for across, up in lines])
    parts = []
    for one, (across, up), height in zip(series, lines, heights, strict=True):
        name = html.escape(one.name)
        points = " ".join(f"{a:.2f},{b:.2f}" for a, b in zip(across, up, strict=True))
        parts.append(
            f'<g class="run r{one.number}" data-number="{one.number}" data-name="{name}">'
            f"<title>{one.number} {name}: {one.y[-1]:.4g} at the end</title>"
            f'<polyline points="{points}"/><circle cx="{across[-1]:.2f}" cy="{up[-1]:.2f}" r="3"/>'
            f'<text class="end" x="{across[-1] + 7:.2f}" y="{height:.2f}" dy=".35em">{one.number}</text></g>'
        )
    return "".join(parts)


def figure(frame: Frame, series: Sequence[Series]) -> str:
    """A picture of the runs that have something to show, or nothing."""
    shown = [one for one in (drawable(one, frame.log_x) for one in series) if one.x.size]
    if not shown:
        return ""
    smoothed = frame.noisy and max(one.x.size for one in shown) > SMOOTH_FROM
    shown = [thin(smooth(one) if frame.noisy else one) for one in shown]
    every_x, every_y = np.concatenate([one.x for one in shown]), np.concatenate([one.y for one in shown])
    log = frame.log and bool(0 < LOG_FROM * every_y.min() < every_y.max())
    x, x_ticks = axis(every_x, LEFT, RIGHT, frame.log_x, fit=True)
    y, y_ticks = axis(every_y, BOTTOM, TOP, log, fit=False)
    title, unit, below = (html.escape(text) for text in frame[:3])
    notes = ", logarithmic" * log + ", running means over 2 % of a run" * smoothed
    return (
        f"<figure><figcaption><h3>{title}</h3><p>{unit}{notes}</p></figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title} against {below}" '
        f'data-x="{x.attribute()}" data-y="{y.attribute()}" data-label="{below}">'
        f"{_grid(x, x_ticks, y, y_ticks)}{_curves(shown, x, y)}"
        f'<text class="axis" x="{(LEFT + RIGHT) / 2:g}" y="{HEIGHT - 6}">{below}{", logarithmic" * frame.log_x}</text>'
        f'<path class="cursor" d="M0 {TOP:g}V{BOTTOM:g}"/></svg><div class="readout" hidden></div></figure>\n'
    )
