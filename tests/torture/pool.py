"""Processes that play cases, one at a time each, so that a case may crash, hang or take all memory."""

from __future__ import annotations

import os
import shutil
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

from torture.campaign import Campaign, Failed, Tally, numbers
from torture.campaigns import CAMPAIGNS

FORK = get_context("fork")  # of a process that has all imported and all kernels


class Outcome(NamedTuple):
    """How a case ended; `text` is empty if it went well."""

    case: int
    tally: Tally
    text: str


def play(campaign: Campaign, seed: int, case: int, folder: Path) -> Outcome:
    """One case here; its folder stays if it fails."""
    folder.mkdir(parents=True)
    try:
        tally = campaign.case(numbers(seed, campaign.name, case), folder)
    except Failed as failure:
        return Outcome(case, Tally(), str(failure))
    except BaseException:  # pytest.fail of the shared tools is none of Exception
        return Outcome(case, Tally(), traceback.format_exc())
    finally:
        os.chdir("/")
    shutil.rmtree(folder)
    return Outcome(case, tally, "")


def serve(orders: Connection, base: Path) -> None:
    """Play cases until told to stop. A session of its own: who kills it kills what it started."""
    os.setsid()
    while (order := orders.recv()) is not None:
        name, seed, case = order
        orders.send(play(CAMPAIGNS[name], seed, case, base / f"{name}-{case}"))


class Player:
    """A process that plays cases, and the case that it plays."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.case = -1
        self.deadline = 0.0
        self.start()

    def start(self) -> None:
        """The process."""
        self.orders, theirs = FORK.Pipe()
        self.process = FORK.Process(target=serve, args=(theirs, self.base))
        self.process.start()
        theirs.close()

    def give(self, campaign: Campaign, seed: int, case: int) -> None:
        """The next case."""
        self.case = case
        self.deadline = time.monotonic() + campaign.limit
        self.orders.send((campaign.name, seed, case))

    def outcome(self) -> Outcome | None:
        """That of the case, if it has ended or has to be ended."""
        if self.orders.poll():
            with suppress(EOFError, ConnectionResetError):
                found: Outcome = self.orders.recv()
                return found
            return self.replaced("its process died with exit code {}")
        if time.monotonic() > self.deadline:
            return self.replaced("it did not end in time and was killed")
        return None

    def replaced(self, why: str) -> Outcome:
        """The outcome of a case whose process is of no use any more."""
        self.end()
        text = why.format(self.process.exitcode)
        self.start()
        return Outcome(self.case, Tally(), text)

    def end(self) -> None:
        """No more cases: the process and all that it started are gone."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.orders.close()


class Pool:
    """Some players."""

    def __init__(self, base: Path, size: int) -> None:
        self.players = [Player(base) for _ in range(size)]

    def outcomes(self, campaign: Campaign, seed: int, cases: Iterator[int]) -> Iterator[Outcome]:
        """Those of these cases, as they come; `cases` may end at any time."""
        idle = list(self.players)
        busy: list[Player] = []
        while True:
            while idle and (case := next(cases, None)) is not None:
                busy.append(idle.pop())
                busy[-1].give(campaign, seed, case)
            if not busy:
                return
            wait([player.orders for player in busy], timeout=1.0)
            for player in list(busy):
                if (found := player.outcome()) is not None:
                    busy.remove(player)
                    idle.append(player)
                    yield found

    def end(self) -> None:
        """All players leave."""
        for player in self.players:
            player.end()
