"""The progress bar: shown on a real pseudo-terminal, and nothing of it where stderr is a pipe."""

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

from rbd_ref._progress import bar
from tools import run_python


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
            assert at < columns, f"{lines[-1]!r} wraps"
            lines[-1] = lines[-1].ljust(at)[:at] + sign + lines[-1][at + 1 :]
            at += 1
    return [line.rstrip() for line in lines]


def resize(handle: int, columns: int, rows: int = 24) -> None:
    """Make a pseudo-terminal so many columns wide."""
    fcntl.ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextmanager
def terminal(columns: int) -> Iterator[tuple[io.TextIOWrapper, Callable[[], str]]]:
    """A pseudo-terminal of so many columns: the stream that a program would have, and what was shown when it closes."""
    outer, inner = pty.openpty()
    resize(inner, columns)
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


def on_terminal(columns: int, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> str:
    """What `work` shows where stderr is a terminal."""
    with terminal(columns) as (stream, close):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stream)
            work()
        return close()


def on_pipe(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> str:
    """What `work` writes where stderr is a pipe; it has to fit into the pipe."""
    outer, inner = os.pipe()
    with os.fdopen(inner, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        work()
    with os.fdopen(outer, encoding="utf-8", newline="") as pipe:
        return pipe.read()


def worked(shown: bool | None = None, initial: int = 0) -> None:
    with bar("cnn cifar-10 rbd", 300, shown, initial, mininterval=0) as steps:
        for done in range(initial, 300):
            steps.set_postfix_str(f"loss {300 - done}", refresh=False)
            steps.update()


@pytest.mark.parametrize("columns", [60, 120])
def test_a_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own width counts, not that of the environment, which is of something else."""
    monkeypatch.setenv("COLUMNS", "200")
    text = on_terminal(columns, monkeypatch, worked)
    assert text.count("\r") >= 100
    line, rest = screen(text, columns)
    assert rest == ""
    assert line.startswith("cnn cifar-10 rbd: 100%|█")
    assert "300/300" in line


def test_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_pipe(monkeypatch, worked) == ""


def test_shown_overrules(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_terminal(80, monkeypatch, lambda: worked(shown=False)) == ""
    assert "100%" in on_pipe(monkeypatch, lambda: worked(shown=True))


@pytest.mark.parametrize("columns", [None, 60])
def test_a_pipe_to_a_terminal_elsewhere(columns: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under mpirun, where nobody knows the width: that of the environment, or 80."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", str(columns))
    text = on_pipe(monkeypatch, lambda: worked(shown=True))
    line, _ = screen(text, (columns or 80) - 1)
    assert len(line) >= (columns or 80) - 3


@pytest.mark.parametrize("shown", [False, True])
def test_no_thread(shown: bool) -> None:
    """In a process of its own, as a thread that was started by another bar stays."""
    code = f"""if True:
        import threading
        from rbd_ref._progress import bar
        with bar("x", 10, {shown}) as steps:
            steps.update(10)
            print(threading.active_count())
    """
    assert run_python("-c", code).stdout == "1\n"


def test_a_run_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins where it was left, and the time that is left counts only what was done since."""
    text = on_terminal(100, monkeypatch, lambda: worked(initial=240))
    assert "  80%|" in text.split("\r")[1]
    assert " 79%|" not in text


@pytest.mark.parametrize(("columns", "rows"), [(0, 0), (80, 0), (0, 24)])
def test_a_terminal_that_does_not_know_its_size(columns: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        resize(sys.stderr.fileno(), columns, rows)
        worked()

    monkeypatch.setenv("COLUMNS", "70")
    line, _ = screen(on_terminal(100, monkeypatch, work), 70)
    assert line.startswith("cnn cifar-10 rbd: 100%|█")


def test_a_terminal_that_is_made_narrower(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        with bar("x", 10) as steps:
            resize(sys.stderr.fileno(), 60)
            steps.update(10)

    first, *_, last = on_terminal(120, monkeypatch, work).split("\r")[1:-1]
    assert len(first) > 100
    assert len(last.rstrip()) <= 60


def test_an_interruption_leaves_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        with bar("x", 10) as steps:
            steps.update(7)
            raise KeyboardInterrupt

    def work() -> None:
        with pytest.raises(KeyboardInterrupt):
            interrupted()

    line, rest = screen(on_terminal(80, monkeypatch, work), 80)
    assert "70%" in line
    assert rest == ""
