"""Damaged files of runs: every command answers with the right weights or with one sentence, and does nothing else.

Most commands run in this process, which takes milliseconds; some in processes of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from rbd_ref.runs.config import Config
from rbd_ref.runs.files import RunError
from rbd_ref.runs.folder import Run
from torture import journal_format, memory
from torture.campaign import Campaign, Failed, Tally, demand
from torture.commands import Said, check, here, run
from torture.damage import GROUPS, Damage, Victim, parts_of
from torture.runs import FLAGS, sha256, undisturbed

FRESH = 0.004  # of the cases run their commands in new processes
SECONDS = 10.0  # that a command may take
MOST_STEPS = 200  # of a run whose length was changed
THETA = re.compile(r"has sha256 ([0-9a-f]{64})$")
REPEATED = re.compile(r": (\d+) steps repeated, ")
CANARY = "import pathlib\npathlib.Path({!r}).touch()\nclass Backend: pass\n"
SHADOWED = ("numpy", "tomllib", "json", "zipfile")  # what a folder might want to be imported instead of


def copied(random: Random, folder: Path) -> Victim:
    """A run to do harm to: ended, or as one that was killed after some step has left it."""
    known = undisturbed(random.choice(list(FLAGS)))
    target = Path(shutil.copytree(known.folder, folder / "run"))
    victim = Victim(known, target, folder / "outside", folder / "canary", "")
    if random.random() < 0.6:
        cut(random, victim)
    for name in ("canary", *SHADOWED):
        (target / f"{name}.py").write_text(CANARY.format(str(victim.canary)))
    return victim


def cut(random: Random, victim: Victim) -> None:
    """Leave what a run has that was killed after some step."""
    for name in ("final.npz", "result.json"):
        (victim.folder / name).unlink()
    ends = journal_format.ends(victim.known.journal)
    steps = random.randrange(len(ends))
    os.truncate(victim.journal, ends[steps])
    for path in [*victim.checkpoints, *victim.local]:
        if int(path.stem.split("-")[1]) > steps:
            path.unlink()
    lines = (victim.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if int(re.findall(r'"step": (\d+)', line)[0]) <= steps]
    (victim.folder / "metrics.jsonl").write_text("".join(kept))


@contextmanager
def listening(victim: Victim) -> Iterator[None]:
    """An address that is in the run's files: whoever asks there fails the case."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        victim.mirror = f"http://127.0.0.1:{server.getsockname()[1]}"
        server.setblocking(False)
        yield
        try:
            server.accept()
        except BlockingIOError:
            return
        demand(False, "something was fetched from where a file says")


@contextmanager
def within(folder: Path) -> Iterator[None]:
    """In a folder, from which modules can be imported."""
    os.chdir(folder)
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("canary", None)
        os.chdir("/")


class Oracle:
    """Runs the commands on a damaged run, and knows what they may answer."""

    def __init__(self, victim: Victim, fresh: bool) -> None:
        self.victim = victim
        self.known = victim.known
        self.fresh = fresh
        self.intact = [path for path in victim.checkpoints if path.name not in victim.touched]
        self.config = changed_config(victim)
        self.records = len(journal_format.parsed(victim.journal.read_bytes())) if victim.journal.is_file() else 0
        self.outside = victim.outside.read_bytes() if victim.outside.exists() else b""

    def say(self, name: str, *arguments: object) -> Said:
        """A command, which ends as all have to, in time and with little memory, and does nothing else."""
        began = time.monotonic()
        memory.forget()
        if self.fresh:
            said = check(run(self.victim.folder.parent, name, *arguments, fresh=True))
        else:
            said = check(here(name, *arguments))
        demand(memory.peak() < memory.MOST, f"it took {memory.peak()} kB: {said.text}")
        demand(self.fresh or time.monotonic() - began < SECONDS, f"it took too long: {said.text}")
        demand(not self.victim.canary.exists(), f"code of the folder was run: {said.text}")
        outside = self.victim.outside.read_bytes() if self.victim.outside.exists() else b""
        demand(outside == self.outside, f"a file that is none of the run's has changed: {said.text}")
        return said

    def uncertain(self, step: int) -> bool:
        """Whether forged records or arrays may change what theta is after so many steps."""
        last = min(step, self.records)
        first = max((int(path.stem[5:]) for path in self.intact if int(path.stem[5:]) <= last), default=0)
        return bool(self.victim.forged_arrays) or any(first <= t < step for t in self.victim.forged_steps)

    def same_run(self) -> bool:
        """Whether the configuration, as far as weights depend on it, is what it was."""
        return self.config is not None and self.config.digest == Run(self.known.folder).config().digest

    def report(self, folder: Path) -> Said:
        """A page, in which nothing is but text."""
        page = folder / "report.html"
        said = self.say("report", self.victim.folder, "-o", page)
        demand(page.exists() == (said.status == 0), f"a page and a sentence, or none of them: {said.text}")
        if page.exists():
            demand("<script>alert" not in page.read_text(), "text of the run is code in the page")
        return said

    def step(self, step: int) -> Said:
        """The weights of a step."""
        said = self.say("replay", self.victim.folder, "--step", step)
        if said.status == 0:
            demand(self.same_run(), f"another configuration is replayed: {said.text}")
            found = THETA.search(said.out.strip())
            demand(found is not None, said.text)
            right = found is not None and found[1] == self.known.thetas[step]
            demand(right or self.uncertain(step), f"theta is wrong after step {step}: {said.text}")
        return said

    def verify(self) -> Said:
        """Everything agrees, or not."""
        said = self.say("replay", self.victim.folder, "--verify")
        if said.status == 0:
            found = REPEATED.search(said.out)
            demand(found is not None, said.text)
            self.check_verified(int(found[1]) if found else 0, said)
        return said

    def check_verified(self, steps: int, said: Said) -> None:
        """What was not found out must be as it was, or be forged where nothing tells."""
        demand(self.same_run(), f"another configuration is verified: {said.text}")
        ended = (self.victim.folder / "result.json").is_file() and "result.json" not in self.victim.touched
        demand(not ended or steps == self.known.steps, f"steps are missing: {said.text}")
        if not self.victim.forged_steps:
            content = self.victim.journal.read_bytes()
            last = journal_format.ends(content)[steps]
            same = [one.rows[:, :-1].tobytes() for one in journal_format.parsed(content[:last])]
            true = [one.rows[:, :-1].tobytes() for one in journal_format.parsed(self.known.journal)]
            demand(same == true[:steps], f"another journal is verified: {said.text}")
        for name in sorted(self.victim.forged_arrays):
            demand(self.same_arrays(name), f"{name} holds other numbers and is verified: {said.text}")
        for step in range(steps + 1 if ended or self.intact else 0):
            told = step == self.known.steps and ended
            if told or any(int(path.stem[5:]) == step for path in self.intact):
                self.check_replayed(step)

    def same_arrays(self, name: str) -> bool:
        """Whether a file of arrays holds what it held, or is not there; what workers kept is read with a checkpoint."""
        if name.startswith("local-") and f"step-{name.split('-')[1]}.npz" not in {
            path.name for path in self.victim.checkpoints
        }:
            return True
        found = [next(folder.rglob(name), None) for folder in (self.victim.folder, self.known.folder)]
        if None in found:
            return True
        arrays = [parts_of(path)[1] for path in found if path is not None]
        return all(one.tobytes() == arrays[1][key].tobytes() for key, one in arrays[0].items())

    def check_replayed(self, step: int) -> None:
        """Of a run that agrees with its files, the weights at a step that an intact file tells."""
        bare = self.victim.folder.parent / "bare"
        bare.mkdir()
        for name in ("config.toml", "journal.rbd"):
            shutil.copy(self.victim.folder / name, bare / name)
        said = here("replay", bare, "--step", step)
        shutil.rmtree(bare)
        demand(self.known.thetas[step] in said.out, f"it was verified, but theta is wrong after step {step}")

    def resume(self) -> Said:
        """The run continues to the right weights, or not at all."""
        quiet = ("--quiet", "--out", self.victim.folder)
        began = self.victim.journal.is_file() and self.victim.journal.stat().st_size >= journal_format.START
        said = self.say("train", "--resume", *quiet)
        if said.status == 0:
            found = sha256(self.victim.folder)
            right = found in self.right_ends(began)
            demand(right or self.uncertain(sys.maxsize), f"theta is wrong at the end: {found}")
            self.say("replay", self.victim.folder, "--verify")
        return said

    def right_ends(self, began: bool) -> set[str]:
        """The sha256 that theta may have at the end; of another configuration, if nothing had begun, its own."""
        if "config.toml" not in self.victim.touched:
            return {self.known.sha256}
        if began and not self.same_run():
            return set()
        other = self.victim.folder.parent / "other"
        said = here("train", "--config", self.victim.folder / "config.toml", "--quiet", "--out", other)
        demand(said.status == 0, f"--resume takes a configuration that --config does not: {said.text}")
        return {sha256(other), *(self.known.thetas if self.same_run() else ())}


def changed_config(victim: Victim) -> Config | None:
    """The configuration that the run has now, if it is one."""
    try:
        return Run(victim.folder).config()
    except RunError:
        return None


def endless(config: Config | None) -> bool:
    """Whether a run would take longer than a case may."""
    if config is None:
        return False
    return min(length for length in (config.epochs, config.steps) if length is not None) > MOST_STEPS


def case(random: Random, folder: Path) -> Tally:
    """One damaged run, and all that can be done with it."""
    victim = copied(random, folder)
    kinds = random.choices(list(GROUPS), k=random.choice([1, 1, 1, 2, 3]))
    damages = [random.choice(GROUPS[kind]) for kind in kinds]
    try:
        said = answers(random, victim, damages)
    except Failed as failure:
        names = " and ".join(damage.__name__ for damage in damages)
        raise Failed(f"{victim.known.name}, {names} ({', '.join(sorted(victim.touched))}): {failure}") from None
    return Tally([*(f"damage to {kind}" for kind in kinds), *("refused" if one.status else "answered" for one in said)])


def answers(random: Random, victim: Victim, damages: list[Damage]) -> list[Said]:
    """What the commands say of a run when it was damaged in these ways."""
    with listening(victim):
        for damage in damages:
            damage(random, victim)
        oracle = Oracle(victim, random.random() < FRESH)
        with within(victim.folder):
            step = random.randint(0, victim.known.steps)
            said = [oracle.report(victim.folder.parent), oracle.step(step), oracle.verify()]
            return said if endless(oracle.config) else [*said, oracle.resume()]


CAMPAIGN = Campaign("fuzz", 10, case)
