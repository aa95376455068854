"""What workers send, and where a step's time goes, by mode and number of ranks: `python benchmarks/communication.py`.

Sixteen workers train the fully connected network of MNIST's size (D = 101,770) with the package's own trainer and
exchange, as real processes of mpiexec, on images of noise: what a step costs does not depend on what is seen. Beside
the modes of rbd stand SGD as the package has it (all gradients to all, so that sums have the same bits everywhere) and
SGD as it is usually done, with MPI's Allreduce. Then, where the machine allows it, the same over TCP between hosts with
slow links (network.py), with the bytes that went over them counted by the switch.
Times are the best of several, as the machine is never quiet; `core ms` is the processor time of all ranks together,
which others on the machine disturb least. docs/scaling.md is made from the file that --json writes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import network
import numpy as np

import rbd_ref as rbd
from rbd_ref._machine import cores as available_cores
from rbd_ref._types import F32, Float32Array
from rbd_ref.conformance.cases import pseudo_random
from rbd_ref.methods.base import sum_rows
from rbd_ref.methods.settings import EXCHANGES
from rbd_ref.models import networks
from rbd_ref.runs.config import Config
from rbd_ref.training.communicator import Options, World, find_world, share
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.trainer import NullLog, StepTimes, Trainer

WORKERS = 16
DIMS = 250
BATCH = 32
CLASSES = 10
SHAPE = (28, 28, 1)
RATE = 1e-3
MPIEXEC = Path(sys.executable).with_name("mpiexec")  # the one that pip installed beside this Python
PATIENCE = 400.0  # seconds that a job may take
DELAY = 0.0005
SIZES = ((101_770, 250), (2**20, 25), (2**24, 2), (2**26, 2))  # elements and directions at which rates are measured
Row = dict[str, Any]


class Case(NamedTuple):
    """A mode of exchange and the family of its directions; `sgd` and `all-reduce` have none."""

    mode: str
    family: str = ""

    def __str__(self) -> str:
        return f"{self.mode} {self.family}".strip()


RBD = tuple(Case(mode, family) for family in ("normal", "srht") for mode in EXCHANGES)
SGD = (Case("sgd"), Case("all-reduce"))
CASES = (*RBD, *SGD)
FEW = (Case("independent", "srht"), Case("split", "srht"))


@dataclass(frozen=True)
class Job:
    """What a process is told: cases, and for each in every round so many steps and then bare exchanges."""

    cases: Sequence[Sequence[str]]
    rounds: int
    steps: int
    bare: int = 0
    workers: int = WORKERS
    reconstruct: str = "node"
    counters: str = ""
    result: str = ""


class Noise:
    """The loss of the network on a batch of noise for each worker: a problem of one's own to the trainer."""

    def __init__(self, workers: int) -> None:
        self.network = networks.make("fc", SHAPE, CLASSES)
        self.D = self.network.D
        generator = np.random.default_rng(0)
        self.images = generator.standard_normal((workers, BATCH, *SHAPE), dtype=F32)
        self.labels = generator.integers(0, CLASSES, (workers, BATCH))

    def initial(self, seed: int) -> Float32Array:
        """theta0 of the network."""
        return networks.initialise(self.network, seed)

    def loss_and_gradient(self, theta: Float32Array, step: int, worker: int) -> tuple[float, Float32Array]:
        """Loss and gradient on the worker's batch."""
        return networks.loss_and_gradient(self.network, theta, self.images[worker], self.labels[worker])


class Stage:
    """A case being played: its trainer, and the replica it has come to."""

    def __init__(self, case: Case, problem: Noise, world: World, workers: int) -> None:
        self.case = case
        self.problem = problem
        self.communicator = world.communicator
        self.workers = workers
        along = {"family": case.family, "exchange": case.mode, "dims": DIMS} if case.family else {"method": "sgd"}
        config = Config(**along, lr=RATE, workers=workers, steps=1)
        experiment = Experiment(config, problem)
        self.trainer = Trainer(experiment, world, NullLog())
        self.replica = experiment.start()

    def step(self) -> StepTimes:
        """One step, and what it took."""
        if self.case.mode == "all-reduce":
            return self._all_reduced()
        record = self.trainer.advance(self.replica)
        self.replica = record.after
        return record.times

    def _all_reduced(self) -> StepTimes:
        """A step of SGD as data-parallel programs take it: the sum of all gradients in whatever order MPI adds them."""
        times = [time.perf_counter()]
        theta, t = self.replica.theta, self.replica.t
        workers = share(self.workers, self.communicator.rank, self.communicator.size)
        mine = sum_rows(self.problem.loss_and_gradient(theta, t, w)[1] for w in workers)
        times.append(time.perf_counter())
        total = self._reduce(mine)
        times.append(time.perf_counter())
        self.replica = self.replica.apply_update(total)
        return StepTimes(*np.diff([*times, time.perf_counter()]).tolist())

    def _reduce(self, mine: Float32Array) -> Float32Array:
        """MPI's sum."""
        comm = getattr(self.communicator, "comm", None)
        if comm is None:
            return mine
        total = np.empty_like(mine)
        comm.Allreduce(mine, total)
        self.communicator.bytes_sent += mine.nbytes
        return total

    def rest(self) -> None:
        """Before another case is played, which will write where ranks of a node share their weights."""
        self.replica = self.replica.with_theta(self.replica.theta.copy())
        self.communicator.barrier()

    def bare(self) -> None:
        """An exchange by itself, of what a step exchanges."""
        if self.case.mode == "all-reduce":
            self._reduce(self.replica.theta)
            return
        size = self.communicator.size
        counts = [len(share(self.workers, rank, size)) for rank in range(size)]
        columns = self.replica.method.payload_size + 2  # a loss and a request to stop travel too
        self.communicator.allgather_rows(np.zeros((counts[self.communicator.rank], columns), dtype=F32), counts)


class Meter:
    """What the switch between the hosts has counted, if there is one; else nothing is ever counted."""

    def __init__(self, path: str) -> None:
        self.counted = np.memmap(path, dtype=np.int64, mode="r") if path else np.zeros(0, dtype=np.int64)

    def read(self, rank: int) -> Row:
        """The sums over all hosts, on rank 0, while nobody sends."""
        if self.counted.size:
            time.sleep(0.02 if rank == 0 else 0.05)
        table = self.counted.reshape(-1, len(network.COLUMNS)).sum(axis=0)
        return dict(zip(network.COLUMNS, table.tolist(), strict=True))


def play(stage: Stage, job: Job, meter: Meter) -> Row:
    """A round of a case: seconds of all ranks by step, bytes that a worker handed over and that all ranks together
    received in messages, and what the switch counted."""
    communicator = stage.communicator
    communicator.barrier()
    before = meter.read(communicator.rank)
    sent, received = communicator.bytes_sent, communicator.bytes_received
    lines = []
    for _ in range(job.steps):
        processor = time.process_time()
        times = stage.step()
        lines.append([*times, time.process_time() - processor])
    counted = meter.read(communicator.rank)
    sent, received = communicator.bytes_sent - sent, communicator.bytes_received - received
    wire = {name: (counted[name] - before[name]) / job.steps for name in counted}
    stage.rest()
    began = time.perf_counter()
    for _ in range(job.bare):
        stage.bare()
    bare = (time.perf_counter() - began) / max(1, job.bare)
    ranks = communicator.allgather((lines, sent, bare, received))
    return {
        "seconds": np.array([rank[0] for rank in ranks]),
        "bytes": sum(rank[1] for rank in ranks) / job.steps / job.workers,
        "bare": max(rank[2] for rank in ranks),
        "received": sum(rank[3] for rank in ranks) / job.steps,
        "wire": wire,
    }


def summed_up(stage: Stage, rounds: Sequence[Row]) -> Row:
    """The best step of all rounds, the least processor time of a step, the fewest bytes on the wire, the bits."""
    seconds = np.concatenate([one["seconds"] for one in rounds], axis=1)  # rank, step, phase
    steps = seconds[:, :, :3].sum(axis=2).max(axis=0)
    best = int(steps.argmin())
    return {
        "mode": stage.case.mode,
        "family": stage.case.family,
        "bytes": rounds[0]["bytes"],
        "received": rounds[0]["received"],
        "step": float(steps[best]),
        "median": float(np.median(steps)),
        **dict(zip(StepTimes._fields, seconds[:, best, :3].mean(axis=0).tolist(), strict=True)),
        "core": float(seconds[:, :, 3].sum(axis=0).min()),
        "bare": min(one["bare"] for one in rounds),
        "wire": min((one["wire"] for one in rounds), key=lambda wire: wire["bytes"]),
        "sha256": hashlib.sha256(stage.replica.theta.data).hexdigest()[:16],
    }


def as_rank(job: Job, world: World) -> int:
    """What each process of a job does; rank 0 writes down what all found."""
    world.lifecycle.configure(Options(PATIENCE, job.reconstruct == "node"))
    rbd.backend.load("numba").set_threads(world.node.threads)
    problem = Noise(job.workers)
    stages = [Stage(Case(*case), problem, world, job.workers) for case in job.cases]
    found: list[list[Row]] = [[] for _ in stages]
    for stage in stages:
        stage.step()  # warms up
        stage.rest()
    meter = Meter(job.counters)
    for _ in range(job.rounds):
        for stage, rows in zip(stages, found, strict=True):
            rows.append(play(stage, job, meter))
    if world.communicator.rank == 0:
        rows = [summed_up(stage, rounds) for stage, rounds in zip(stages, found, strict=True)]
        Path(job.result).write_text(json.dumps({"threads": world.node.threads, "rows": rows}))
    world.lifecycle.close()
    return 0


def command(ranks: int, words: list[str], hosts: network.Hosts | None) -> list[str]:
    """The command of a job: this Python alone (0 ranks), mpiexec, or mpiexec with as many ranks on every host."""
    if ranks == 0:
        return words
    if hosts is None:
        return [str(MPIEXEC), "-n", str(ranks), *words]
    each = str(ranks // len(hosts.names))
    parts = [[":", "-n", each, *hosts.command(host, *words)] for host in range(len(hosts.names))]
    return [str(MPIEXEC), *[word for part in parts for word in part][1:]]


def environment(hosts: network.Hosts | None) -> dict[str, str]:
    """That of a job: on hosts, MPI takes those of one namespace for a node, and TCP between nodes."""
    if hosts is None:
        return {}
    nodes = {"MPIR_CVAR_NUM_CLIQUES": str(len(hosts.names)), "MPIR_CVAR_CLIQUES_BY_BLOCK": "1"}
    return {**nodes, "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}


def ended(process: subprocess.Popen[str]) -> str:
    """What a job printed; it is ended if it takes too long, or this program is ended."""
    try:
        return process.communicate(timeout=PATIENCE)[0]
    finally:
        if process.poll() is None:
            process.terminate()  # mpiexec passes it on to the ranks
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def run(ranks: int, job: Job, hosts: network.Hosts | None = None, **more: str) -> list[Row]:
    """The rows of a job on so many ranks (0: without MPI), on this machine or on hosts."""
    with tempfile.TemporaryDirectory(prefix="rbd-communication") as folder:
        result = Path(folder) / "result.json"
        told = {**asdict(job), "result": str(result), "counters": str(hosts.counters) if hosts else ""}
        words = [sys.executable, str(Path(__file__).resolve()), "--job", json.dumps(told)]
        before = os.getloadavg()[0]
        process = subprocess.Popen(
            command(ranks, words, hosts),
            env={**os.environ, **environment(hosts), **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        text = ended(process)
        if process.returncode != 0:
            raise RuntimeError(f"the job of {ranks} ranks ended with status {process.returncode}:\n{text[-3000:]}")
        found = json.loads(result.read_text())
    place = {"ranks": ranks, "threads": found["threads"], "workers": job.workers, "load": before}
    if hosts:
        place |= {"hosts": len(hosts.names), "rate": hosts.link.rate, "delay": hosts.link.delay}
    return [place | row for row in found["rows"]]


def best(call: Callable[[], object], seconds: float) -> float:
    """The least processor time of the calls that fit into `seconds`, three at least."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def rates(sizes: Iterable[tuple[int, int]], seconds: float) -> list[Row]:
    """Core seconds of the three operations on one thread, by family and number of elements."""
    backend, rows = rbd.backend.load("numba"), []
    threads = backend.set_threads(0)
    backend.set_threads(1)
    for D, d in sizes:
        g = pseudo_random(1, D)
        for family in ("normal", "srht"):
            basis = rbd.Basis(rbd.compartments.whole(D, d=d), family=family)
            a = basis.project(g, 0)
            calls = {
                "project": lambda b=basis, g=g: b.project(g, 0),
                "reconstruct": lambda b=basis, a=a: b.reconstruct(a, 0),
                "descend": lambda b=basis, g=g: b.descend(g, 0),
            }
            taken = {name: best(call, seconds) for name, call in calls.items()}
            rows.append({"family": family, "D": D, "d": d, **taken})
    backend.set_threads(threads)
    return rows


def compared(rounds: int, job: Job) -> list[Row]:
    """All workers in one process with all threads, and on as many ranks as cores, by turns; the best of each."""
    cores = available_cores()
    found: list[list[list[Row]]] = [[], []]
    for _ in range(rounds):
        for ranks, several in zip((0, cores), found, strict=True):
            several.append(run(ranks, job))
    return [
        side_by_side(cores, *([rows[place] for rows in several] for several in found))
        for place in range(len(job.cases))
    ]


def side_by_side(ranks: int, alone: Sequence[Row], together: Sequence[Row]) -> Row:
    """A case's best figures in one process and on ranks."""
    sides = (alone, together)
    best = {name: [min(row[name] for row in side) for side in sides] for name in ("step", "core", *StepTimes._fields)}
    same = len({row["sha256"] for side in sides for row in side}) == 1
    names = {"mode": alone[0]["mode"], "family": alone[0]["family"], "ranks": ranks}
    return {**names, **best, "load": [row["load"] for row in together], "same bits": same}


NAMES = "".join(f"{name:>12}" for name in StepTimes._fields)
HEAD = f"{'':20}{'ranks':>6}{'bytes':>9}{'SGD is':>9}{NAMES}{'step':>9}{'/s':>7}"


def line(row: Row, D: int) -> str:
    """A row for the eye, times in milliseconds."""
    times = "".join(f"{1e3 * row[name]:12.1f}" for name in StepTimes._fields) + f"{1e3 * row['step']:9.1f}"
    received = row["received"] / row.get("hosts", 1)
    more = f"{1e3 * row['core']:9.1f}{1e3 * row['bare']:8.2f}{received:12,.0f}"
    if "hosts" in row:
        more += f"{row['wire']['bytes'] / row['hosts']:12,.0f}{row['wire']['drops']:6.0f}"
    ratio = 4 * D / row["bytes"] if row["bytes"] else math.inf
    name = str(Case(row["mode"], row["family"]))
    return f"{name:20}{row['ranks']:6}{row['bytes']:9,.0f}{ratio:8.1f}x{times}{1 / row['step']:7.2f}{more}"


def show(title: str, rows: Sequence[Row], D: int) -> None:
    """A table."""
    print(f"\n{title}; load {rows[0]['load']:.1f}")
    wire = f"{'wire a host':>12}{'drops':>6}" if "hosts" in rows[0] else ""
    print(f"{HEAD}{'core ms':>9}{'alone':>8}{'received':>12}{wire}")
    for row in rows:
        print(line(row, D), flush=True)


def by_ranks(quick: bool, D: int) -> list[Row]:
    """All modes on more and more ranks."""
    rows, cases = [], (RBD[0], *RBD[3:], *SGD) if quick else CASES
    for ranks in (1, 2, 4) if quick else (1, 2, 4, 8, 16):
        found = run(ranks, Job(cases, 1 if quick else 2, 2 if quick else 3, bare=20))
        show(f"{WORKERS} workers on {ranks} ranks, shared memory", found, D)
        rows += found
    return rows


def by_nodes(quick: bool, D: int) -> list[Row]:
    """What it is worth that ranks of a node rebuild together: 16 ranks as one node, as four, and each for itself."""
    rows = []
    for group in () if quick else (16, 4, 1):
        cases = [Case("independent", family) for family in ("srht", "normal")[: 1 + (group > 1)]]
        found = run(16, Job(cases, 2, 2), RBD_REF_RANKS_PER_NODE=str(group))
        show(f"16 ranks, nodes of {group}", found, D)
        rows += [row | {"ranks per node": group} for row in found]
    return rows


def by_exchange(quick: bool, D: int) -> list[Row]:
    """Exchanges by themselves through the memory of the node, and from rank to rank: as if each were a node."""
    rows = []
    for ranks in (2,) if quick else (2, 4, 16):
        for group in (ranks, 1):
            job = Job((Case("independent", "srht"), Case("sgd")), 3, 1, bare=20 if quick else 100)
            found = run(ranks, job, RBD_REF_RANKS_PER_NODE=str(group))
            show(f"exchanges of {ranks} ranks, nodes of {group}", found, D)
            rows += [row | {"ranks per node": group} for row in found]
    return rows


def one_process_or_ranks(quick: bool, D: int) -> list[Row]:
    """The ratio of the same workers on ranks and in one process."""
    cases = (RBD[0], RBD[3]) if quick else (RBD[0], RBD[1], RBD[3], RBD[4])
    rows = compared(1 if quick else 5, Job(cases, 1, 3 if quick else 4))
    print(
        "\none process with all threads, as many ranks as cores: ms a step; the ratio of these, and of processor times"
    )
    for row in rows:
        alone, together = row["step"]
        told = f"{1e3 * alone:9.1f}{1e3 * together:9.1f}{together / alone:7.2f}{row['core'][1] / row['core'][0]:7.2f}"
        print(f"{Case(row['mode'], row['family'])!s:20}{told}   same bits: {row['same bits']}", flush=True)
    return rows


def between_hosts(count: int, each: int, rate: float, job: Job, D: int) -> list[Row]:
    """A job on hosts with slow links."""
    with network.hosts(count, network.Link(rate, DELAY)) as hosts:
        rows = run(count * each, job, hosts)
    show(f"{job.workers} workers on {count} hosts of {each} ranks, {hosts.link}", rows, D)
    return rows


def over_networks(quick: bool, D: int) -> list[Row]:
    """The modes over TCP with slow links."""
    if missing := network.why_not():
        print(f"\nnot measured over a network: {missing}")
        return []
    job = Job((*FEW, *SGD) if quick else CASES, 1 if quick else 2, 3, bare=4)
    places = ((2, 1, 1e8),) if quick else ((2, 1, 1e8), (2, 1, 1e9), (2, 8, 1e8), (4, 4, 1e8))
    return [row for count, each, rate in places for row in between_hosts(count, each, rate, job, D)]


def over_hosts(quick: bool, D: int) -> list[Row]:
    """A worker on each of more and more hosts, for exchanges by themselves: these wait for links, not for cores."""
    counts = () if quick or network.why_not() else (2, 4, 8, 16)
    jobs = {count: Job((*FEW, *SGD), 3, 3, bare=10, workers=count) for count in counts}
    return [row for count, job in jobs.items() for row in between_hosts(count, 1, 1e8, job, D)]


def check_bits(rows: Sequence[Row]) -> str:
    """Whether weights were the same with any number of ranks."""
    digests: dict[Case, set[str]] = {}
    for row in rows:
        digests.setdefault(Case(row["mode"], row["family"]), set()).add(row["sha256"])
    unlike = [str(case) for case, several in digests.items() if len(several) > 1 and case.mode != "all-reduce"]
    return f"weights differ: {', '.join(unlike)}" if unlike else "weights have the same bits with any number of ranks"


def generator(quick: bool, D: int) -> list[Row]:
    """How fast directions are made."""
    rows = rates(SIZES[: 1 if quick else None], 0.2 if quick else 1.0)
    for row in rows:
        per = row["D"] * row["d"] if row["family"] == "normal" else 2 ** math.ceil(math.log2(row["D"]))
        times = ", ".join(f"{name} {per / row[name] / 1e6:,.0f}" for name in ("project", "reconstruct", "descend"))
        print(f"{row['family']:7} D = {row['D']:>10,}, d = {row['d']:>3}: {times} million elements a second and core")
    return rows


SECTIONS: dict[str, Callable[[bool, int], Any]] = {
    "rates": generator,
    "ranks": by_ranks,
    "nodes": by_nodes,
    "exchange": by_exchange,
    "ratio": one_process_or_ranks,
    "network": over_networks,
    "hosts": over_hosts,
}


def measure(options: argparse.Namespace) -> None:
    """All sections or those asked for, each written down when it ends, so that one can be repeated by itself."""
    began, D = time.time(), networks.make("fc", SHAPE, CLASSES).D
    print(f"D = {D:,}, d = {DIMS}; bytes: handed over by a worker in a step; SGD is: 4 D over that; times in ms;")
    print("core ms: processor time of all ranks; alone: an exchange by itself; received: bytes of rows that came to a")
    print("host's ranks in messages in a step, not counted for all-reduce; wire: bytes sent by a host in a step")
    file: Path | None = options.json
    found: Row = json.loads(file.read_text()) if file and file.exists() else {}
    cores = available_cores()
    found |= {"D": D, "d": DIMS, "workers": WORKERS, "batch": BATCH, "machine": platform.machine(), "cores": cores}
    for name in options.only or SECTIONS:
        load = os.getloadavg()[0]
        rows = SECTIONS[name](options.quick, D)
        found |= {name: rows, "load": found.get("load", {}) | {name: [load, os.getloadavg()[0]]}}
        if file:
            file.write_text(json.dumps(found, indent=1) + "\n")
    told = [check_bits(found["ranks"])] if "ranks" in found else []
    print("\n" + "; ".join([*told, f"{time.time() - began:.0f} s"]))


def main() -> int:
    """Measure, print tables, write JSON if asked; or be a process of a job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="about a minute: fewer ranks, cases and repetitions")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="this section; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too; other sections stay")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        world = find_world()
        return world.lifecycle.abort_on_error(lambda: as_rank(Job(**json.loads(options.job)), world))
    for kind in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(kind, lambda number, _: sys.exit(128 + number))  # so that hosts and jobs are cleared away
    measure(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
