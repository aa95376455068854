"""A small process beside each rank, which ends it where MPI would let it wait for ever, and tidies up after it.

Neither MPI_Init nor MPI_Finalize lets another thread of Python run, so whoever watches them has to be a process. The
rank writes lines to its watcher's standard input (watchdog.py):

    arm SECONDS PLACE    in so many seconds the rank has to be past this call of MPI
    live SECONDS PLACE   the rank works by itself: it may take as long as it likes, but not idle for so many seconds
    off                  it is past it
    started              MPI is started: from now on the launcher notices when a rank is gone
    faults FOLDER        where faults are written down
    bye                  all ranks have left together

When the input ends without `bye`, the rank is gone. The ranks of a node call their roll in a file (`Roll`): it says
how far each of them has come, so that the one that is missing can be named.
It is run as a script, so it may import: nothing but the standard library.
Tests: tests/test_hangs.py.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

SHARED = Path("/dev/shm")  # where MPICH keeps its segments
SEGMENTS = "mpich_shm_*"
LOOK = 0.25  # seconds between two looks at a rank
GRACE = 10.0  # seconds in which the ranks of a node are gone once one of them is
SAMPLE = 0.5  # seconds in which a rank that waits takes computing time
PAUSE = 0.2  # seconds for what was printed to reach the launcher; and between two looks at who maps a segment
NUMBER = struct.Struct("<i")
SLOT = struct.Struct("<iid")
SAID = NUMBER.size  # where the roll says whether anybody has said what is wrong
SLOTS = 16  # where its slots begin


class Member(NamedTuple):
    """A rank of this node: its process, how many calls of MPI it has come to, and when it was gone (0: it is not)."""

    pid: int
    stage: int
    gone: float = 0.0


class Roll:
    """A file that the ranks of a node share: a verdict on the node, whether one has spoken, and a slot for each."""

    def __init__(self, path: str, handle: int) -> None:
        self.path = path
        self.handle = handle

    @classmethod
    def open(cls, path: str) -> Roll:
        """The file of this name, if it is this user's."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if os.fstat(handle).st_uid != os.geteuid():
            os.close(handle)
            raise PermissionError(path)
        return cls(path, handle)

    @property
    def verdict(self) -> int:
        """What the first rank found of the node: 0 nothing yet, 1 it will do, 2 it will not."""
        return self._number(0)

    @verdict.setter
    def verdict(self, value: int) -> None:
        with suppress(OSError):
            os.pwrite(self.handle, NUMBER.pack(value), 0)

    def _number(self, offset: int) -> int:
        found = os.pread(self.handle, NUMBER.size, offset)
        return int(NUMBER.unpack(found)[0]) if len(found) == NUMBER.size else 0

    def enter(self, rank: int, member: Member) -> None:
        """A rank comes to a call of MPI, or is gone."""
        with suppress(OSError):  # a disk that is full is no reason to end
            os.pwrite(self.handle, SLOT.pack(*member), SLOTS + rank * SLOT.size)

    def members(self) -> dict[int, Member]:
        """The ranks that have come to any."""
        content = os.pread(self.handle, os.fstat(self.handle).st_size, SLOTS)
        whole = content[: len(content) // SLOT.size * SLOT.size]
        return {rank: Member(*slot) for rank, slot in enumerate(SLOT.iter_unpack(whole)) if slot[0]}

    def claim(self) -> bool:
        """Whether nobody of this node has said yet what is wrong; from now on somebody has."""
        with suppress(OSError):  # rather twice than never
            fcntl.lockf(self.handle, fcntl.LOCK_EX)
            try:
                if self._number(SAID):
                    return False
                os.pwrite(self.handle, NUMBER.pack(1), SAID)
            finally:
                fcntl.lockf(self.handle, fcntl.LOCK_UN)
        return True

    def remove(self) -> None:
        """Its name; who has it open can still use it."""
        with suppress(OSError):
            Path(self.path).unlink()


class Life(NamedTuple):
    """What the system says of a process: the letter of its state, and its ticks of computing time."""

    state: str
    ticks: int


def life(pid: int) -> Life | None:
    """Of a process, None if there is none or it has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else Life(words[0], int(words[11]) + int(words[12]))


def segments_of(process: str) -> set[Path]:
    """The segments that a process has mapped, those that still have a name."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    paths = {Path(line.split()[-1]) for line in lines if str(SHARED) in line}
    return {path for path in paths if path.match(SEGMENTS)}


def mapped() -> set[Path]:
    """The segments that some process of this user has mapped."""
    found: set[Path] = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            found |= segments_of(entry.name) if entry.name.isdecimal() else set()
    return found


def segments(oldest: float, newest: float) -> set[Path]:
    """The segments of this user that were made in this time."""
    found = set()
    for path in SHARED.glob(SEGMENTS):
        with suppress(OSError):
            if path.stat().st_uid == os.geteuid() and oldest <= path.stat().st_ctime <= newest:
                found.add(path)
    return found


def remove_segments(oldest: float, newest: float) -> None:
    """Remove those that nobody maps, not even after a pause: MPI makes a segment and maps it a moment later."""
    left = segments(oldest, newest)
    if left:
        left -= mapped()
        time.sleep(PAUSE)
        left -= mapped()
    for path in left:
        with suppress(OSError):
            path.unlink()


class Watcher:
    """Watches the rank that started it."""

    def __init__(self, rank: int, size: int, local: int, roll: Roll | None) -> None:
        self.rank = rank
        self.size = size
        self.local = local  # how many ranks there are on this node, 0 if that is unknown
        self.roll = roll
        self.parent = os.getppid()
        self.began = time.time()
        self.started = False
        self.faults = ""
        self.place = ""
        self.seconds = 0.0
        self.end: float | None = None
        self.idle_since: float | None = None
        self.ticks = -1

    def watch(self) -> None:
        """Until the rank says goodbye, is gone, or has to be ended."""
        buffer = b""
        while True:
            if select.select([0], [], [], LOOK)[0]:
                found = os.read(0, 4096)
                if not found:
                    return self.mourn()
                *lines, buffer = (buffer + found).split(b"\n")
                if b"bye" in lines:
                    return None
                for line in lines:
                    self.obey(line.decode())
            self.look()

    def obey(self, line: str) -> None:
        """What the rank says."""
        word, _, rest = line.partition(" ")
        self.end = None
        self.idle_since = None
        if word in ("arm", "live"):
            seconds, _, self.place = rest.partition(" ")
            self.seconds = float(seconds)
            now = time.monotonic()
            self.end = now + self.seconds if word == "arm" else None
            self.idle_since = now if word == "live" else None
        elif word == "started":
            self.started = True
        elif word == "faults":
            self.faults = rest

    def look(self) -> None:
        """End the rank where its time is over."""
        now = time.monotonic()
        if self.end is not None and now > self.end:
            self.give_up(f"{self.who_is_missing()} after {self.seconds:g} s, expected every rank in {self.place}")
        if self.idle_since is not None:
            found = life(self.parent)
            if found is None or found.ticks != self.ticks:
                self.ticks = found.ticks if found else -1
                self.idle_since = now
            elif now - self.idle_since > self.seconds:
                self.give_up(
                    f"rank {self.rank} does nothing for {self.seconds:g} s while {self.place}, expected it to train"
                )

    def who_is_missing(self) -> str:
        """The ranks that have not come as far as this one, or that are there and do nothing."""
        members = self.roll.members() if self.roll else {}
        mine = members.get(self.rank, Member(0, 0)).stage
        late = [self.describe(rank, member) for rank, member in members.items() if member.stage < mine]
        if self.local == self.size:
            late += [f"rank {rank} did not start MPI" for rank in range(self.size) if rank not in members]
        elif 0 < len(members) < self.local:
            late.append(f"{self.local - len(members)} more of this node's ranks did not start MPI")
        return ", ".join(late or self.idle(members)) or f"rank {self.rank} waits in vain"

    def describe(self, rank: int, member: Member) -> str:
        """What has become of a rank that is not there."""
        found = life(member.pid)
        return f"rank {rank} {'has ended' if found is None else 'is stopped' if found.state == 'T' else 'is not there'}"

    def idle(self, members: dict[int, Member]) -> list[str]:
        """The ranks that do nothing, if others do: those that wait for them keep asking MPI."""
        before = {rank: life(member.pid) for rank, member in members.items()}
        time.sleep(SAMPLE)
        same = [rank for rank, member in members.items() if life(member.pid) == before[rank]]
        return [f"rank {rank} does nothing" for rank in same] if len(same) < len(members) else []

    def give_up(self, what: str) -> None:
        """Say it, end the rank, and with it all others."""
        self.say(
            f"{what}: the run ends here and loses no step that was completed; continue with --resume, with other ranks "
            "if need be, or raise --timeout"
        )
        self.end = None
        self.idle_since = None
        with suppress(ProcessLookupError):
            os.kill(self.parent, signal.SIGKILL)

    def say(self, text: str) -> None:
        """Once for the node, on paper too."""
        if self.roll and not self.roll.claim():
            return
        with suppress(OSError):
            if self.faults:
                with (Path(self.faults) / "faults.log").open("a", encoding="utf-8") as out:
                    out.write(f"{text}\n")
        with suppress(OSError):
            print(f"rbd_ref.train: {text}", file=sys.stderr, flush=True)
        time.sleep(PAUSE)

    def mourn(self) -> None:
        """The rank is gone without a goodbye. Before MPI is started nobody else notices: its siblings are ended too."""
        if self.was_first():
            moment = "in its training" if self.started else "before MPI was started"
            self.say(
                f"rank {self.rank} has ended {moment}, expected all ranks to leave together; continue with --resume"
            )
        pids = [member.pid for member in self.roll.members().values()] if self.roll else []
        if not self.started:
            for pid in pids:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        self.tidy(pids)

    def was_first(self) -> bool:
        """Whether no rank of this node was gone before: the launcher ends the others when one is."""
        if self.roll is None:
            return True
        now = time.monotonic()
        mine = self.roll.members().get(self.rank, Member(self.parent, 0))
        self.roll.enter(self.rank, mine._replace(gone=now))
        time.sleep(PAUSE)
        return not any(0 < member.gone < now for member in self.roll.members().values())

    def tidy(self, pids: list[int]) -> None:
        """Remove what MPI leaves behind of ranks that were killed, once they are all gone."""
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)  # the launcher waits for all who could still print
        os.dup2(2, 1)
        end = time.monotonic() + GRACE
        while time.monotonic() < end and any(life(pid) for pid in pids):
            time.sleep(LOOK)
        remove_segments(self.began - GRACE, time.time())
        if self.roll:
            self.roll.remove()


def main(arguments: list[str]) -> None:
    """`watcher.py RANK SIZE LOCAL [PATH HANDLE]`, the last two of the roll, which is open already."""
    rank, size, local = arguments[:3]
    roll = Roll(arguments[3], int(arguments[4])) if arguments[3:] else None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its rank, and after it
    Watcher(int(rank), int(size), int(local), roll).watch()


if __name__ == "__main__":
    main(sys.argv[1:])
