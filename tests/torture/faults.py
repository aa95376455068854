"""A fault of one rank in any phase of a run: all ranks are gone soon, the rank is named, nothing is left behind, and
the run continues to the same weights. tests/mpi_driver.py makes the faults, by RBD_TEST_FAULT, and tests/fault_site
those before a rank trains."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

from mpi_tools import DRIVER, FAULT_SITE, TRAIN, Job, job, why_unusable
from torture.campaign import Campaign, Tally, demand
from torture.kills import kept
from torture.leftovers import check_left
from torture.mpi_kills import finish
from torture.runs import FLAGS, undisturbed

EARLY = ("python", "init", "import")  # before MPI is started, while it is, and after
# "0" is the first step, "turns" and "allocate" are what ranks of a node share before it and in it.
PHASES = (*EARLY, "turns", "allocate", "0", "exchange", "checkpoint", "evaluation", "close", "finalize")
# exception, exit 0, exit 3, an end that Python does not notice, kill -9, SIGSTOP, endless sleep
KINDS = ("raise", "exit0", "exit", "vanish", "kill", "stop", "sleep")
TIMEOUT = 5  # seconds after which a silent rank is given up
SOON = TIMEOUT + 15.0  # seconds in which all ranks are gone


def faulty(kind: str, rank: int, phase: str, folder: Path, ranks: int, timeout: float) -> Job:
    """A job on so many ranks, one of which has a fault of a kind in a phase; `folder` has its flags in a file."""
    flags = (folder / "flags").read_text().split("\n")
    more = {"RBD_TEST_FAULT": f"{kind} {rank} {phase}", "RBD_TEST_REACHED": str(folder / "reached")}
    command = TRAIN if phase in EARLY else (DRIVER, "one")
    if phase in EARLY:
        more["PYTHONPATH"] = FAULT_SITE
    return job(ranks, (*command, *flags, "--timeout", timeout, "--out", folder / "run"), folder, **more)


def case(random: Random, folder: Path) -> Tally:
    """One fault, and the end of the run."""
    known = undisturbed(random.choice(list(FLAGS)))
    (folder / "flags").write_text("\n".join(map(str, (*known.flags, "--quiet"))))
    phase = random.choice(PHASES)
    kind = random.choice([kind for kind in KINDS if (kind, phase) != ("raise", "python")])  # Python goes on after that
    ranks = random.randint(2, 4)
    rank = random.randrange(ranks)
    check_fault(faulty(kind, rank, phase, folder, ranks, TIMEOUT), folder, kind, rank)
    demand(known.journal.startswith(kept(folder / "run")), "the journal is not that of the undisturbed run")
    finish(random.randint(0, 4), known, folder)
    return Tally([kind, phase])


def check_fault(started: Job, folder: Path, kind: str, rank: int) -> None:
    """All are gone soon after the fault, and the rank is named; where it was killed, by MPI's own words."""
    reached = folder / "reached"
    shared: set[Path] = set()
    while not reached.exists() and started.process.poll() is None:
        shared |= started.segments
        time.sleep(0.01)
    found = started.ended()
    check_left(shared)
    if not reached.exists():  # this rank does not pass there, as those without a log do at checkpoints
        demand(found.status == 0, found.text)
        return
    took = time.time() - reached.stat().st_mtime
    demand(took < SOON, f"it took {took:.0f} s until all were gone: {found.text}")
    demand(kind == "kill" or f"rank {rank}" in found.err, f"the rank is not named: {found.text}")


CAMPAIGN = Campaign("faults", 5, case, why_unusable, limit=300.0)
