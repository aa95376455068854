"""The progress bar, on fake terminals with a fake clock and on a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rbd_ref.training import progress
from rbd_ref.training.progress import Bar

NOTE = "loss 0.512 · validation 95.3 % · 12,345 images/s"


class Clock:
    """Time that passes when it is told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "monotonic", made)
    monkeypatch.setenv("COLUMNS", "100")
    return made


class Terminal(io.TextIOWrapper):
    """A terminal in name, without a size of its own."""

    def __init__(self, encoding: str = "utf-8", errors: str = "strict") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, errors=errors, newline="")

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        return self.buffer.getvalue().decode(self.encoding)  # type: ignore[attr-defined]


def screen(text: str, columns: int) -> list[str]:
    """The lines on a terminal of so many columns after this text, which may write over itself but must not wrap."""
    lines, at = [""], 0
    for sign in text:
        if sign == "\r":
            at = 0
        elif sign == "\n":
            lines.append("")
            at = 0
        else:
            assert sign.isprintable()
            assert at < columns - 1, f"{lines[-1]!r} wraps"
            lines[-1] = lines[-1].ljust(at)[:at] + sign + lines[-1][at + 1 :]
            at += 1
    return [line.rstrip() for line in lines]


def drawings(terminal: Terminal) -> list[str]:
    """Every state of the bar's line."""
    return [part.rstrip() for part in terminal.text.split("\r")[1:]]


def test_the_line(clock: Clock) -> None:
    terminal = Terminal()
    bar = Bar("fc mnist", 200, terminal)
    bar(0)
    clock.now += 10
    bar(50, NOTE)
    clock.now += 30.4
    bar(200, "done")
    bar.end()
    assert terminal.text.endswith("\n")
    assert drawings(terminal) == [
        "fc mnist ▕                ▏   0 %  -:-- left",
        f"fc mnist ▕████            ▏  25 %  0:30 left  {NOTE}",
        "fc mnist ▕████████████████▏ 100 %  in 0:40  done",
    ]
    assert screen(terminal.text, 100) == ["fc mnist ▕████████████████▏ 100 %  in 0:40  done", ""]


def test_the_bar_grows_by_eighths_of_a_cell(clock: Clock) -> None:
    terminal = Terminal()
    bar = Bar("x", 16 * 8, terminal)
    for done in range(129):
        clock.now += 1
        bar(done)
    bars = [line.split("▕")[1][:16] for line in drawings(terminal)]
    assert bars == ["█" * (n // 8) + "▏▎▍▌▋▊▉"[n % 8 - 1 : n % 8] + " " * (16 - -(-n // 8)) for n in range(129)]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_streams_without_blocks(clock: Clock, encoding: str) -> None:
    """Nothing is written that the encoding lacks, though the stream would raise an error for it."""
    terminal = Terminal(encoding)
    bar = Bar("fc", 4, terminal)
    bar(1, f"{NOTE} {'→' * 100}")
    bar.write("85.65 ± 0.2 %")
    bar.end()
    lines = screen(terminal.text, 100)
    assert lines[0] == ("85.65 ± 0.2 %" if encoding == "latin-1" else "85.65 ? 0.2 %")
    assert lines[1].startswith("fc [####            ]  25 %  -:-- left  loss 0.512 - validation 95.3 % - 12,345 im")
    assert lines[1].endswith(" ?????????.")


def test_a_stream_without_an_encoding(clock: Clock) -> None:
    stream = io.StringIO()
    Bar("fc", 4, stream, shown=True)(2)
    assert "▕████████        ▏  50 %" in stream.getvalue()


def test_drawn_ten_times_a_second(clock: Clock) -> None:
    terminal = Terminal()
    bar = Bar("x", 10**6, terminal)
    for done in range(2000):
        clock.now = 1000 + done / 1000
        bar(done)
    assert 18 <= len(drawings(terminal)) <= 21


def test_the_end_is_drawn_at_once(clock: Clock) -> None:
    terminal = Terminal()
    bar = Bar("x", 10, terminal)
    for done in range(11):
        bar(done)
    assert len(drawings(terminal)) == 2
    assert " 100 % " in drawings(terminal)[-1]


def test_the_last_state_is_drawn_when_it_ends_early(clock: Clock) -> None:
    terminal = Terminal()

    def interrupted() -> None:
        with Bar("x", 10, terminal) as bar:
            for done in range(8):
                bar(done, f"step {done}")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(drawings(terminal)) == 2
    assert screen(terminal.text, 100) == ["x ▕███████████▏    ▏  70 %  -:-- left  step 7", ""]


@pytest.mark.parametrize(
    ("start", "done", "seconds", "left"),
    [
        (0, 100, 10, "1:30 left"),
        (0, 999, 999, "0:01 left"),
        (900, 950, 50, "0:50 left"),  # goes on at 900: one a second, not 19
        (500, 501, 60, "8:19:00 left"),
        (0, 1, 3600, "999:00:00 left"),
        (500, 500, 60, "-:-- left"),
        (0, 1000, 3723, "in 1:02:03"),
        (900, 1000, 59.6, "in 1:00"),
    ],
)
def test_time_left(clock: Clock, start: int, done: int, seconds: float, left: str) -> None:
    """From the progress since the first call."""
    terminal = Terminal()
    bar = Bar("x", 1000, terminal)
    bar(start)
    clock.now += seconds
    bar(done)
    assert drawings(terminal)[-1].endswith(f" %  {left}")


@pytest.mark.parametrize(
    ("done", "total", "percent"), [(0, 1000, 0), (999, 1000, 99), (1000, 1000, 100), (2000, 1000, 100), (0, 0, 100)]
)
def test_per_cent(clock: Clock, done: int, total: int, percent: int) -> None:
    """100 only when all is done."""
    terminal = Terminal()
    Bar("x", total, terminal)(done)
    (line,) = drawings(terminal)
    assert f"▏ {percent:3d} %  " in line
    assert line.count("█") == (16 if percent == 100 else 15 if percent == 99 else 0)


def test_a_shorter_line_leaves_nothing_of_a_longer_one(clock: Clock) -> None:
    terminal = Terminal()
    bar = Bar("x", 10, terminal)
    bar(1, NOTE)
    clock.now += 1
    bar(2)
    assert screen(terminal.text, 100) == ["x ▕███▏            ▏  20 %  0:08 left"]


def test_write_prints_above_the_bar(clock: Clock) -> None:
    terminal = Terminal()
    bar = Bar("x", 10, terminal)
    bar.write("before")
    bar(5, NOTE)
    bar.write("epoch 1")
    bar(6, "never drawn before the line")
    bar.write("epoch 2\nand more")
    assert screen(terminal.text, 100) == [
        "before",
        "epoch 1",
        "epoch 2",
        "and more",
        "x ▕█████████▌      ▏  60 %  -:-- left  never drawn before the line",
    ]
    bar.end()
    bar.write("after")
    assert screen(terminal.text, 100)[-2:] == ["after", ""]


def test_end_leaves_the_line_once(clock: Clock) -> None:
    terminal = Terminal()
    with Bar("x", 10, terminal) as bar:
        bar(10)
        bar.end()
    assert terminal.text.count("\n") == 1
    with Bar("x", 10, terminal):
        pass
    assert terminal.text.count("\n") == 1


def test_a_note_stays_on_one_line(clock: Clock) -> None:
    terminal = Terminal()
    Bar("two\nlines", 10, terminal)(1, "a\r\nb\tc")
    assert screen(terminal.text, 100) == ["two lines ▕█▌              ▏  10 %  -:-- left  a b c"]


@pytest.mark.parametrize("columns", [1, 2, 5, 10, 20, 30, 40, 60, 80, 99, 120, 300])
@pytest.mark.parametrize("label", ["x", "train-images-idx3-ubyte.gz"])
def test_any_width(clock: Clock, monkeypatch: pytest.MonkeyPatch, columns: int, label: str) -> None:
    """Never wider than the terminal; from 60 columns on nothing but the note, and a long label, is cut."""
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal()
    with Bar(label, 10, terminal) as bar:
        for done in range(11):
            clock.now += 1
            bar(done, NOTE * 10)
    line, rest = screen(terminal.text, columns)
    assert rest == ""
    if columns >= 60:
        assert [len(line) for line in drawings(terminal)] == [columns - 1] * 11
        assert line.startswith(label[: (columns - 1) // 3 - 1])
        assert " 100 %  in 0:10  loss" in line
        assert line.endswith("…")


def test_the_note_is_cut_only_where_it_does_not_fit(clock: Clock) -> None:
    for length, end in ((62, "n" * 62), (63, "n" * 61 + "…")):
        terminal = Terminal()
        Bar("x", 10, terminal)(10, "n" * length)
        assert drawings(terminal) == [f"x ▕{'█' * 16}▏ 100 %  in 0:00  {end}"]
        assert len(drawings(terminal)[0]) == 99


@pytest.mark.parametrize(("room", "expected"), [(6, "a long"), (5, "a lo…"), (1, "…"), (0, ""), (-1, ""), (-9, "")])
def test_cut(room: int, expected: str) -> None:
    assert progress.cut("a long", room) == expected


def test_nothing_where_there_is_no_terminal(clock: Clock) -> None:
    """But the lines of `write`, which are no part of the bar."""
    stream = io.StringIO()
    with Bar("x", 10, stream) as bar:
        for done in range(11):
            clock.now += 1
            bar(done, NOTE)
    assert stream.getvalue() == ""
    bar.write("epoch 1")
    assert stream.getvalue() == "epoch 1\n"


def test_shown_overrules(clock: Clock) -> None:
    terminal, stream = Terminal(), io.StringIO()
    with Bar("x", 10, terminal, shown=False) as bar:
        bar(10)
    with Bar("x", 10, stream, shown=True) as bar:
        bar(10)
    assert terminal.text == ""
    assert " 100 % " in stream.getvalue()


def test_stderr_is_the_stream(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with Bar("x", 10, shown=True) as bar:
        bar(10)
    out, err = capsys.readouterr()
    assert out == ""
    assert " 100 % " in err


# A pseudo-terminal.


@contextmanager
def terminal(columns: int) -> Iterator[tuple[io.TextIOWrapper, Callable[[], str]]]:
    """A pseudo-terminal of so many columns: the stream that a program would have, and what was shown when it closes."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    shown: list[bytes] = []

    def watch() -> None:
        try:
            while chunk := os.read(outer, 4096):
                shown.append(chunk)
        except OSError:  # the end, as Linux says it
            pass

    watcher = threading.Thread(target=watch)
    watcher.start()
    stream = os.fdopen(inner, "w", encoding="utf-8")

    def close() -> str:
        stream.close()
        watcher.join()
        return b"".join(shown).decode()

    try:
        yield stream, close
    finally:
        close()
        os.close(outer)


@pytest.mark.parametrize("columns", [60, 120])
def test_a_pseudo_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own width counts, not that of stdout or of the environment, which are of something else."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    with terminal(columns) as (stream, close):
        monkeypatch.setattr(sys, "stderr", stream)
        with Bar("cnn cifar-10 rbd", 300) as bar:
            for done in range(301):
                bar(done, NOTE)
                if done == 150:
                    bar.write("half of it")
        text = close()
    assert text.count("\r") > 300
    above, line, rest = screen(text, columns)
    assert (above, rest) == ("half of it", "")
    assert line.startswith("cnn cifar-10 rbd ▕█████████")
    assert " 100 %  in 0:0" in line
    assert line.endswith(NOTE) == (columns == 120)


def test_a_pseudo_terminal_is_drawn_on_seldom() -> None:
    with terminal(80) as (stream, close):
        with Bar("x", 10**4, stream) as bar:
            for done in range(10**4 + 1):
                bar(done)
        text = close()
    assert 2 <= text.count("▕") <= 20
    assert " 100 % " in screen(text, 80)[0]


def test_a_pseudo_terminal_that_does_not_know_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    with terminal(0) as (stream, close):
        Bar("x", 10, stream)(1, NOTE * 3)
        text = close()
    assert len(screen(text, 70)[0]) == 69


def test_a_pipe() -> None:
    outer, inner = os.pipe()
    with os.fdopen(inner, "w") as stream, Bar("x", 10, stream) as bar:
        bar(10, NOTE)
    with os.fdopen(outer) as pipe:
        assert pipe.read() == ""
