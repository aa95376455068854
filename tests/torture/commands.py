"""The commands train, replay and report: in this process, in a fork or in a new Python; and what they may say."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from numba.np.ufunc import parallel
from tqdm import tqdm

from rbd_ref import replay, train
from rbd_ref.report import __main__ as report
from torture.campaign import Failed, demand

COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train.main,
    "replay": replay.main,
    "report": report.main,
}
# Forks share what locks of processes they inherit, and one that is killed while it holds one would never give it back.
parallel._backend_init_process_lock = threading.RLock()
tqdm.set_lock(threading.RLock())

LONGEST = 2000  # characters of a sentence
LATE = 10.0  # seconds that a command in this process may take
LONG = 100.0  # seconds that another process may take
HERE_ONLY = ("NUMBA_THREADING_LAYER",)  # what a new Python does not inherit


class Said(NamedTuple):
    """How a command ended; the status is negative if a signal ended it."""

    name: str
    status: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All of it, for messages."""
        return f"{self.name} ended with status {self.status}, stdout {self.out!r}, stderr {self.err!r}"


class Late(BaseException):
    """A command takes too long."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """An alarm that ends the block if it takes too long."""

    def ring(*_: Any) -> None:
        raise Late(f"it takes more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def status_of(name: str, arguments: Sequence[object]) -> int:
    """The exit status of a command in this process; what escapes it is printed as Python would."""
    try:
        with limited(LATE):
            return COMMANDS[name]([str(part) for part in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    except (Exception, Late):
        traceback.print_exc()
        return 1


def here(name: str, *arguments: object) -> Said:
    """A command in this process."""
    out = io.StringIO()
    err = io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        status = status_of(name, arguments)
    said = [warnings.formatwarning(one.message, one.category, one.filename, one.lineno) for one in found]
    return Said(name, status, out.getvalue(), err.getvalue() + "".join(said))


class Child:
    """A command in a process of its own: forked from this one, which has all imported, or a new Python."""

    count = 0

    def __init__(
        self,
        folder: Path,
        name: str,
        *arguments: object,
        hook: Callable[[], object] = lambda: None,
        fresh: bool = False,
    ) -> None:
        Child.count += 1
        self.name = name
        self.files = [folder / f".{kind}-{Child.count}" for kind in ("out", "err")]
        for path in self.files:
            path.touch()
        self.pid = os.fork()
        if self.pid == 0:
            _become(name, [str(part) for part in arguments], self.files, hook, fresh)

    def kill(self, number: int) -> None:
        """A signal; to who is gone it does nothing, as nobody has waited for it yet."""
        os.kill(self.pid, number)

    def ended(self, seconds: float = LONG) -> Said:
        """How it ends, which has to be soon."""
        deadline = time.monotonic() + seconds
        while (found := os.waitpid(self.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise Failed(f"{self.name} did not end in {seconds:g} s")
            time.sleep(0.001)
        out, err = (path.read_text(errors="replace") for path in self.files)
        return Said(self.name, os.waitstatus_to_exitcode(found[1]), out, err)


def _become(name: str, arguments: list[str], files: list[Path], hook: Callable[[], object], fresh: bool) -> None:
    """In the new process: be the command."""
    status = 1
    try:
        for number, path in enumerate(files, 1):
            os.dup2(os.open(path, os.O_WRONLY), number)
        if fresh:
            environment = {key: value for key, value in os.environ.items() if key not in HERE_ONLY}
            os.execve(sys.executable, [sys.executable, "-m", f"rbd_ref.{name}", *arguments], environment)
        warnings.simplefilter("always")
        hook()
        status = status_of(name, arguments)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run(folder: Path, name: str, *arguments: object, fresh: bool = False) -> Said:
    """A command in a process of its own, to its end."""
    return Child(folder, name, *arguments, fresh=fresh).ended()


def check(said: Said, allowed: Sequence[int] = (0, 2)) -> Said:
    """Fail unless it ended well, or with one sentence and status 2."""
    demand(said.status in allowed, said.text)
    demand("Traceback" not in said.err and "Warning: " not in said.err, said.text)
    if said.status == 2:
        check_sentence(said)
    return said


def check_sentence(said: Said) -> None:
    """Fail unless the last line is a sentence, and the only one that says what is wrong."""
    own = f"rbd_ref.{said.name}: "
    *before, last = said.err.removesuffix("\n").split("\n")
    demand(last.startswith(own), f"no sentence: {said.text}")
    demand(not any(line.startswith(own) for line in before), f"more than one sentence: {said.text}")
    demand(len(last) <= LONGEST, f"a sentence of {len(last)} characters: {last[:LONGEST]}")
    demand(not any(unicodedata.category(sign) == "Cc" for sign in last), f"control characters: {said.text}")
    demand(said.out == "", f"more than a sentence: {said.text}")
