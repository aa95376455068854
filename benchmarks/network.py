"""Hosts on one machine: network namespaces whose cards lead to a switch with a rate and a delay, which counts bytes.

So MPI's ranks talk over real TCP and its time and traffic on slow links are seen, not computed, without a cluster.
The switch is a process of this file: the kernel's own limits on rate and delay (tc) are not in every kernel, a tap
device is. Frames come as the kernel hands them to a card that cuts them itself (up to 64 kB), and are counted and
timed as that card would send them: each piece with its own headers. Needs Linux, root, `ip` and /dev/net/tun.
"""

from __future__ import annotations

import argparse
import atexit
import fcntl
import heapq
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

TUN = Path("/dev/net/tun")
NAMESPACES = Path("/run/netns")
PREFIX = "rbd-net"
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
TAP, NO_INFO, OFFLOAD_HEADER = 0x0002, 0x1000, 0x4000
CHECKSUM, SEGMENTS = 0x1, 0x2  # the card completes TCP's checksums, and cuts large frames itself
HEADER = struct.Struct("=BBHHHH")  # flags, kind, length of headers, size of a piece, start and place of the checksum
GAP = 24  # bytes of preamble, checksum and gap that a frame of Ethernet takes on the wire beside its own
PATIENCE = 200_000_000  # nanoseconds of waiting frames that a port holds before it drops more
PRIORITY = 10
COLUMNS = ("bytes", "frames", "drops")


class Link(NamedTuple):
    """What joins each host to the switch: bits a second either way, and seconds from any host to any other."""

    rate: float
    delay: float

    def __str__(self) -> str:
        return f"{self.rate / 1e6:,.0f} Mbit/s, {1e3 * self.delay:g} ms"


class Frame(NamedTuple):
    """A frame as it leaves the switch: when, in the order in which it came, through which port."""

    when: int
    number: int
    port: int
    data: bytes


def why_not() -> str:
    """What is missing to make hosts here, or nothing."""
    if not sys.platform.startswith("linux") or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    if shutil.which("ip") is None:
        return "the command ip (iproute2) is not installed"
    if not TUN.exists():
        return f"{TUN} is not there"
    try:
        ip("netns", "add", f"{PREFIX}{os.getpid()}-probe")
        ip("netns", "del", f"{PREFIX}{os.getpid()}-probe")
        os.close(tap(f"rbdprobe{os.getpid() % 10**6}"))
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespace or tap device can be made ({error})"
    return ""


def ip(*words: object) -> str:
    """What the command `ip` answers."""
    command = ["ip", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def tap(name: str) -> int:
    """The file of a new card, whose frames are read from and written to it; the card goes when it is closed."""
    port = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(port, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP | NO_INFO | OFFLOAD_HEADER))
    fcntl.ioctl(port, TUNSETOFFLOAD, CHECKSUM | SEGMENTS)
    return port


def on_the_wire(data: bytes) -> tuple[int, int]:
    """Bytes and number of the frames that a card cuts this one into."""
    _, kind, _, piece, start, _ = HEADER.unpack_from(data)
    length = len(data) - HEADER.size
    if kind == 0 or piece == 0:
        return length, 1
    headers = start + 4 * (data[HEADER.size + start + 12] >> 4)
    frames = -(-(length - headers) // piece)
    return length + (frames - 1) * headers, frames


class Switch:
    """Frames from port to port: each waits for its sender's link, then for its receiver's, then for the delay."""

    def __init__(self, ports: Sequence[int], link: Link, counted: np.ndarray) -> None:
        self.ports = list(ports)
        self.link = link
        self.counted = counted
        self.up, self.down = [0] * len(ports), [0] * len(ports)
        self.known: dict[bytes, int] = {}
        self.queue: list[Frame] = []
        self.number = 0

    def take(self, port: int) -> None:
        """All frames that a host has sent by now."""
        with suppress(BlockingIOError):
            while True:
                self.send(port, os.read(self.ports[port], 70_000))

    def send(self, port: int, data: bytes) -> None:
        """Put a frame in the queues of whom it is for: one host, or all others."""
        now, (length, frames) = time.monotonic_ns(), on_the_wire(data)
        there, here = data[HEADER.size : HEADER.size + 6], data[HEADER.size + 6 : HEADER.size + 12]
        self.known[here] = port
        self.counted[port, :2] += (length, frames)
        takes = int((length + GAP * frames) * 8e9 / self.link.rate)
        first = max(now, self.up[port])
        self.up[port] = first + takes
        others = [self.known[there]] if there in self.known else [p for p in range(len(self.ports)) if p != port]
        for other in others:
            begins = max(first, self.down[other])
            if begins - now > PATIENCE:
                self.counted[port, 2] += 1
                continue
            self.down[other] = begins + takes
            self.number += 1
            heapq.heappush(self.queue, Frame(self.down[other] + int(1e9 * self.link.delay), self.number, other, data))

    def deliver(self) -> None:
        """All frames whose time has come."""
        while self.queue and self.queue[0].when <= time.monotonic_ns():
            frame = heapq.heappop(self.queue)
            with suppress(OSError):  # a card that is down takes nothing
                os.write(self.ports[frame.port], frame.data)

    def run(self, end: int) -> None:
        """Until the file `end` is closed at its other end."""
        while True:
            rest = max(0, self.queue[0].when - time.monotonic_ns()) / 1e9 if self.queue else None
            ready = select.select([end, *self.ports], [], [], rest)[0]
            if end in ready:
                return
            for port in ready:
                self.take(self.ports.index(port))
            self.deliver()


def switch(hosts: Sequence[str], link: Link, counters: Path) -> None:
    """The process of the switch: makes the hosts' cards, says when they are there, and works until its input ends."""
    ports = []
    for number, host in enumerate(hosts):
        name = f"rbd{os.getpid() % 10**6}p{number}"
        ports.append(tap(name))
        ip("link", "set", name, "netns", host, "name", "eth0")
        ip("-n", host, "link", "set", "eth0", "addrgenmode", "none")
        ip("-n", host, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
        for card in ("lo", "eth0"):
            ip("-n", host, "link", "set", card, "up")
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    counted = np.memmap(counters, dtype=np.int64, mode="r+", shape=(len(hosts), len(COLUMNS)))
    print("ready", flush=True)
    Switch(ports, link, counted).run(sys.stdin.fileno())


class Hosts(NamedTuple):
    """Hosts that are up: their names, the link of each, and the file of what the switch counted, a row for each."""

    names: tuple[str, ...]
    link: Link
    counters: Path

    def command(self, host: int, *words: str) -> list[str]:
        """A command as that host runs it, on a core of its own as far as there are cores."""
        cores = sorted(os.sched_getaffinity(0))
        several = max(1, len(cores) // len(self.names))
        own = [cores[(host * several + k) % len(cores)] for k in range(several)]
        return ["ip", "netns", "exec", self.names[host], "taskset", "-c", ",".join(map(str, own)), *words]


def remove(names: Sequence[str]) -> None:
    """Take hosts away, and whatever still runs on them."""
    for name in names:
        with suppress(subprocess.CalledProcessError):
            for process in ip("netns", "pids", name).split():
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            ip("netns", "del", name)


def remove_forgotten() -> None:
    """Take away hosts whose maker was killed before it could."""
    for path in NAMESPACES.glob(f"{PREFIX}*-*"):
        maker = path.name.removeprefix(PREFIX).split("-")[0]
        if maker.isdecimal() and not Path(f"/proc/{maker}").exists():
            remove([path.name])


@contextmanager
def hosts(count: int, link: Link) -> Iterator[Hosts]:
    """So many hosts, joined by a switch; nothing is left of them afterwards, however it ends."""
    remove_forgotten()
    names = tuple(f"{PREFIX}{os.getpid()}-{number}" for number in range(count))
    atexit.register(remove, names)
    for name in names:
        ip("netns", "add", name)
    with tempfile.TemporaryDirectory(prefix="rbd-net") as folder:
        counters = Path(folder) / "counters"
        counters.write_bytes(bytes(8 * len(COLUMNS) * count))
        command = [sys.executable, __file__, str(link.rate), str(link.delay), str(counters), *names]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("the switch did not come up")
            yield Hosts(names, link, counters)
        finally:
            process.stdin.close()  # type: ignore[union-attr]
            process.wait(10)
            remove(names)
            atexit.unregister(remove)


def main() -> None:
    """The switch, as `hosts` starts it."""
    parser = argparse.ArgumentParser(description="the switch between hosts; started by benchmarks/communication.py")
    parser.add_argument("rate", type=float)
    parser.add_argument("delay", type=float)
    parser.add_argument("counters", type=Path)
    parser.add_argument("hosts", nargs="+")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the maker of the hosts ends it
    switch(options.hosts, Link(options.rate, options.delay), options.counters)


if __name__ == "__main__":
    main()
