"""The progress bar: one line at the foot of a terminal, for downloads and training alike.

Who waits at a terminal wants to see how far it is and how long it will take; who reads a log wants neither. So a bar is
drawn where the stream is a terminal, and elsewhere nothing of it: only the lines given to `write` appear.
The line never reaches the terminal's last column, where some terminals wrap, and is padded with blanks, not cleared by
a control sequence, which not all of them know.
Tests: tests/test_progress.py.
"""

from __future__ import annotations

import os
import shutil
import sys
from time import monotonic
from typing import Self, TextIO

INTERVAL = 0.1  # seconds between two drawings
LEAST, MOST = 8, 30  # cells of the bar, a sixth of the line between these
EIGHTHS = " ▏▎▍▌▋▊▉█"
PLAIN = {ord("·"): "-", ord("…"): "."}  # where there are no blocks


def duration(seconds: float) -> str:
    """Like 0:42, 12:05 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def width(stream: TextIO) -> int:
    """Columns of the terminal that the stream is, or else of the usual one."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return columns or shutil.get_terminal_size().columns


def has_blocks(encoding: str) -> bool:
    """Whether an encoding has the characters of a smooth bar."""
    try:
        f"{EIGHTHS}▕…·".encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def cut(text: str, room: int) -> str:
    """The text on one line, shortened to the room that there is."""
    text = " ".join(text.split())
    return text if len(text) <= room else f"{text[: room - 1]}…"[: max(room, 0)]


class Bar:
    """A progress bar. `bar(done, note)` says how far it is, of `total`; `end` leaves the line, as does `with`.

    It is drawn if the stream (stderr) is a terminal, or as `shown` says. The time left is taken from the progress since
    the first call: a run that goes on in the middle calls it with what is done already."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None, shown: bool | None = None) -> None:
        self.label, self.total = label, total
        self.stream = sys.stderr if stream is None else stream
        self.shown = self.stream.isatty() if shown is None else shown
        self.encoding = self.stream.encoding or "utf-8"
        self.blocks = has_blocks(self.encoding)
        self.first: tuple[float, int] | None = None
        self.state = 0, ""
        self.drawn: tuple[float, tuple[int, str]] | None = None  # when, and which state; None while there is no line

    def __call__(self, done: int, note: str = "") -> None:
        """Draw again, unless that was a moment ago and there is more to do."""
        if not self.shown:
            return
        now, self.state = monotonic(), (done, note)
        self.first = self.first or (now, done)
        if self.drawn is None or done >= self.total or now - self.drawn[0] >= INTERVAL:
            self._draw(now)

    def write(self, text: str) -> None:
        """A line of text, above the bar if there is one."""
        if self.drawn is None:
            self._put(f"{text}\n")
        else:
            blank = " " * (width(self.stream) - 1)
            self._put(f"\r{blank}\r{text}\n")
            self._draw(monotonic())

    def end(self) -> None:
        """Leave the line, after the last state was drawn."""
        if self.drawn is not None:
            if self.drawn[1] != self.state:
                self._draw(monotonic())
            self._put("\n")
            self.drawn = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def line(self, now: float, room: int) -> str:
        """The line in at most `room` columns: label, bar, per cent, time, and as much of the note as fits."""
        done, note = self.state
        percent = 100 if done >= self.total else 100 * done // self.total
        label, cells = cut(self.label, room // 3), max(LEAST, min(MOST, room // 6))
        head = f"{label} {self._cells(cells)} {percent:3d} %  {self._time(now)}"
        rest = cut(note, room - len(head) - 2)
        return (f"{head}  {rest}" if rest else head)[:room]

    def _cells(self, cells: int) -> str:
        """The bar itself, in eighths of a cell where there are characters for it."""
        done = min(self.state[0], self.total)
        whole, part = divmod(8 * cells * done // self.total if self.total else 8 * cells, 8)
        if self.blocks:
            marks = "█" * whole + EIGHTHS[part] * (part > 0)
            return f"▕{marks:<{cells}}▏"
        return f"[{'#' * whole:<{cells}}]"

    def _time(self, now: float) -> str:
        """The time left, or at the end the time it took."""
        done, (start, before) = self.state[0], self.first or (now, 0)
        if done >= self.total:
            return f"in {duration(now - start)}"
        if done <= before or now <= start:
            return "-:-- left"
        return f"{duration((now - start) * (self.total - done) / (done - before))} left"

    def _draw(self, now: float) -> None:
        """The line as it is now, over the one before."""
        room = width(self.stream) - 1
        self._put(f"\r{self.line(now, room):<{room}}")
        self.drawn = now, self.state

    def _put(self, text: str) -> None:
        """Write at once; what the stream's encoding lacks is replaced, sign by sign."""
        text = text if self.blocks else text.translate(PLAIN)
        self.stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
        self.stream.flush()
