"""The operations beside what one would write without the package, and beside each other: `make bench`.

Each row has a target and what was measured. The alternatives draw float32 normals, with NumPy's generator or torch's,
in blocks of 50 directions and multiply twice: coefficients, then update. Things that are compared take turns, and the
best time of each counts, as the machine is never quiet: only ratios within one run mean anything, and those of several
threads only where the load, which is printed and written too, leaves a core to each. The ratio of processor times, of
all threads together, stands beside the ratio of times. It says who works less, whatever else is running, but only with
OMP_WAIT_POLICY=passive in the environment: threads that wait for others spin otherwise, and that counts as work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import llvmlite.binding
import numba
import numpy as np

import rbd_ref as rbd
from rbd_ref import backend as backends
from rbd_ref import methods
from rbd_ref._types import Float32Array
from rbd_ref.backend import Backend
from rbd_ref.conformance.cases import pseudo_random
from rbd_ref.conformance.memory import peak
from rbd_ref.methods.settings import Settings
from rbd_ref.models import networks
from rbd_ref.spec.families import FAMILIES

try:
    import torch as installed_torch
except ImportError:
    installed_torch = None  # type: ignore[assignment]

torch: ModuleType | None = installed_torch
SHAPES = ((101_770, 250), (122_570, 1000))
BLOCK, BATCH = 50, 32
SPELL = 0.1  # seconds for the calls of one before another's turn
PAUSE = 0.05  # seconds until the waiting threads of other libraries sleep, which would slow down the next call
PATIENCE = 20  # seconds that memory is watched: all that `descend` holds is there before its first direction
PEAK = """
import numpy as np, rbd_ref as rbd
from rbd_ref.conformance.memory import peak, reset_peak
rbd.Basis(rbd.compartments.whole(20_000, d=2), family={family!r}).descend(np.ones(20_000, np.float32), step=0)
basis, g = rbd.Basis(rbd.compartments.whole({D}, d={d}), family={family!r}), np.ones({D}, np.float32)
reset_peak()
print(peak(), flush=True)
basis.descend(g, step=0)
print(peak())
"""
FIRST_STEP = """
import numpy as np, rbd_ref as rbd
rbd.Basis(rbd.compartments.whole(101_770, d=250)).descend(np.ones(101_770, np.float32), step=0)
"""


@dataclass(frozen=True)
class Row:
    """One comparison; `at_most` tells a bound from above."""

    work: str
    against: str
    measured: float
    target: float
    unit: str = "x"
    at_most: bool = False
    by_processor: float | None = None

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return self.measured <= self.target if self.at_most else self.measured >= self.target

    def __str__(self) -> str:
        bound = f"{'<=' if self.at_most else '>='} {self.target:g} {self.unit}"
        shown = f"{self.measured:.3g} {self.unit}"
        processor = "" if self.by_processor is None else f"{self.by_processor:.3g} x"
        return (
            f"{self.work:50} {self.against:30} {shown:>10} {bound:>10} {'yes' if self.met else 'NO':>4} {processor:>10}"
        )


class Times(NamedTuple):
    """The shortest time and the least processor time of a call, in seconds."""

    wall: float
    processor: float


def ratio_row(work: str, against: str, other: Times, ours: Times, target: float) -> Row:
    """How many times as long the other takes."""
    return Row(work, against, other.wall / ours.wall, target, by_processor=other.processor / ours.processor)


def timed(call: Callable[[], object]) -> Times:
    """Of one call."""
    wall, processor = time.perf_counter(), time.process_time()
    call()
    return Times(time.perf_counter() - wall, time.process_time() - processor)


def best(
    calls: Mapping[str, Callable[[], object]], seconds: float, least: int = 3, spell: float = SPELL
) -> dict[str, Times]:
    """The best of so many turns of each at least, and of as many as fit into `seconds`, after a warm-up."""
    found = {name: [timed(call)] for name, call in calls.items()}
    begin, turns = time.perf_counter(), 0
    while turns < least or time.perf_counter() - begin < seconds:
        turns += 1
        for name, call in calls.items():
            time.sleep(PAUSE)
            shortest = min(found[name]).wall
            found[name] += [timed(call) for _ in range(1 + min(100, int(spell / shortest)))]
    return {name: Times(*(min(column) for column in zip(*times[1:], strict=True))) for name, times in found.items()}


def numpy_descend(g: Float32Array, d: int, generator: np.random.Generator) -> Float32Array:
    """Unit normal directions, drawn anew, a block at a time."""
    u = np.zeros_like(g)
    for first in range(0, d, BLOCK):
        phi = generator.standard_normal((min(BLOCK, d - first), g.size), dtype=np.float32)
        u += (phi @ g / np.einsum("ij,ij->i", phi, phi)) @ phi
    return u


def torch_descend(library: ModuleType, g: Float32Array, d: int) -> Float32Array:
    """The same with torch, on its own threads."""
    gradient = library.from_numpy(g)
    u = library.zeros_like(gradient)
    for first in range(0, d, BLOCK):
        phi = library.randn(min(BLOCK, d - first), g.size)
        u += (phi @ gradient / library.linalg.vector_norm(phi, dim=1) ** 2) @ phi
    result: Float32Array = u.numpy()
    return result


def descend(D: int, d: int, family: str) -> Callable[[], object]:
    """A step's `descend` as a call without arguments."""
    basis = rbd.Basis(rbd.compartments.whole(D, d=d), family=family)
    g = np.random.default_rng(1).standard_normal(D, dtype=np.float32)
    return lambda: basis.descend(g, step=0)


def shape_rows(D: int, d: int, seconds: float) -> tuple[list[Row], dict[str, Times]]:
    """All families, NumPy and torch at one shape."""
    calls: dict[str, Callable[[], object]] = {family: descend(D, d, family) for family in FAMILIES}
    g, generator = pseudo_random(1, D), np.random.default_rng(0)
    calls["NumPy"] = lambda: numpy_descend(g, d, generator)
    if torch is not None:
        library = torch
        calls["torch"] = lambda: torch_descend(library, g, d)
    times, shape = best(calls, seconds, spell=3 * SPELL), f"D = {D:,}, d = {d:,}"
    ours, normals = times["normal"], f"descend, normal, {shape}"
    rows = [ratio_row(normals, "NumPy's normals, two matmuls", times["NumPy"], ours, 12)]
    if torch is not None:
        rows.append(ratio_row(normals, "torch.randn, two matmuls", times["torch"], ours, 5))
    for family, target in (("rademacher", 6), ("sparse", 20)):
        rows.append(ratio_row(f"descend, {family}, {shape}", "our own normal", ours, times[family], target))
    return rows, {f"{name}, {shape}": value for name, value in times.items()}


def srht_rows(seconds: float) -> list[Row]:
    """One transform against many normals, and against itself at other d by processor time, in one thread."""
    D, d = 122_570, 10_000
    times = best({family: descend(D, d, family) for family in ("normal", "srht")}, seconds)
    flat = best({str(e): limited(1, descend(10**6, 10**e, "srht")) for e in range(1, 6)}, seconds).values()
    growth = max(times.processor for times in flat) / min(times.processor for times in flat)
    return [
        ratio_row(f"descend, srht, D = {D:,}, d = {d:,}", "our own normal", times["normal"], times["srht"], 400),
        Row("srht, D = 1,000,000, d = 10 .. 100,000", "the fastest of them", growth, 1.5, at_most=True),
    ]


def limited(threads: int, call: Callable[[], object]) -> Callable[[], None]:
    """The call with so many threads."""

    def with_threads() -> None:
        before = numba.get_num_threads()
        numba.set_num_threads(threads)
        call()
        numba.set_num_threads(before)

    return with_threads


def thread_rows(seconds: float) -> list[Row]:
    """All threads against one."""
    rows, most = [], numba.get_num_threads()
    for family in ("normal", "rademacher", "sparse"):
        call = descend(101_770, 250, family)
        times = best({"one": limited(1, call), "all": call}, 2 * seconds)
        work = f"descend, {family}, D = 101,770, {most} threads"
        rows.append(ratio_row(work, "one thread", times["one"], times["all"], 0.95 * most))
    return rows


def small_rows(seconds: float) -> list[Row]:
    """What a call costs where there is nothing to do."""
    times = best({family: descend(100, 10, family) for family in ("normal", "rademacher", "sparse", "srht")}, seconds)
    worst = 1e6 * max(several.wall for several in times.values())
    return [Row("descend, D = 100, d = 10, any family", "", worst, 100, "us", at_most=True)]


class Noise:
    """The gradient of the paper's network of CIFAR-10 on a batch of 32 images of noise, which is made before."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.network = networks.make("cnn", (32, 32, 3), 10)
        self.images = pseudo_random(1, BATCH * 3072).reshape(BATCH, 32, 32, 3)
        self.labels = np.arange(BATCH) % 10

    def loss_and_gradient(self, theta: Float32Array, step: int, worker: int) -> tuple[float, Float32Array]:
        """By the backend's own means, if it has some."""
        return networks.gradient_of(self.backend)(self.network, theta, self.images, self.labels)

    def loss(self, theta: Float32Array, step: int, worker: int, offspring: int | None) -> float:
        """The loss on the same images."""
        return networks.loss(self.network, theta, self.images, self.labels)


def training_step(method: str, family: str, name: str) -> Callable[[], object]:
    """A whole step of training along 10,000 directions, without what brings the batch."""
    problem = Noise(backends.load(name))
    basis = rbd.Basis(rbd.compartments.whole(problem.network.D, d=10_000), 0, family, "unit", problem.backend)
    replica = methods.make(method, basis, Settings(1e-3)).start(networks.initialise(problem.network, 0), 0)

    def call() -> object:
        proposal, _ = replica.propose(problem, 0, replica.method.init_local())
        return replica.step(proposal.payload[None], {0: proposal.update} if proposal.update.size else {})

    return call


def step_rows(seconds: float) -> list[Row]:
    """Steps on a network: what random bases add to SGD, and images a second beside the paper's devices."""
    calls = {name: training_step("rbd", "srht", name) for name in ("numba", "torch", "jax") if usable(name)}
    times = best({"sgd": training_step("sgd", "srht", "numba"), "numba": calls["numba"]}, seconds)
    others = best(calls, seconds)
    fastest = min(others, key=lambda name: others[name].wall)
    normal = best({"normal": training_step("rbd", "normal", "numba")}, seconds)["normal"]
    work = "a step, cnn of CIFAR-10, d = 10,000"
    return [
        Row(f"{work}, srht", "SGD's", times["numba"].wall / times["sgd"].wall, 1.1, at_most=True),
        Row(f"{work}, srht, {fastest}", "the paper's IPU, 31 images/s", BATCH / others[fastest].wall / 31, 120),
        Row(f"{work}, normal", "its 80 cores, 2.6 images/s", BATCH / normal.wall / 2.6, 10),
    ]


def usable(name: str) -> bool:
    """Whether a backend's library is there."""
    return find_spec(name) is not None


def run(code: str) -> str:
    """The output of a Python process of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def peak_vectors(family: str, D: int, d: int) -> float:
    """Peak above g, in vectors of D to a hundredth; of what takes longer than PATIENCE only so far."""
    code = [sys.executable, "-c", PEAK.format(family=family, D=D, d=d)]
    with subprocess.Popen(code, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = process.communicate(timeout=PATIENCE if Path("/proc/self").exists() else None)[0].split()
        except subprocess.TimeoutExpired:
            highest = peak(process.pid)
            process.kill()
            lines = [*process.communicate()[0].split(), str(highest)]
    return round((int(lines[1]) - int(lines[0])) / 4 / D, 2)


def memory_rows() -> list[Row]:
    """What `descend` takes above g with 1,000 directions."""
    rows = []
    for family, D in (
        *(("normal", 10**e) for e in range(5, 9)),
        ("rademacher", 10**8),
        ("sparse", 10**8),
        ("srht", 10**8),
    ):
        vectors = peak_vectors(family, D, 1000)
        rows.append(Row(f"peak memory, {family}, D = {D:.0e}, d = 1,000", "", vectors, 3, "D", at_most=True))
    return rows


def start_row() -> Row:
    """Import and first step, kernels compiled before."""

    def once() -> float:
        start = time.perf_counter()
        run(FIRST_STEP)
        return time.perf_counter() - start

    once()
    return Row("import rbd_ref and first step, second run", "", min(once() for _ in range(3)), 2, "s", at_most=True)


def ticks() -> tuple[int, int]:
    """Processor time that the host has given to others so far, and all; where the system does not say, none of one."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    except OSError:
        return 0, 1
    return fields[7], sum(fields)


START = ticks()


def machine() -> dict[str, object]:
    """What the figures hang on."""
    return {
        "processor": llvmlite.binding.get_host_cpu_name(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": numba.get_num_threads(),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "rbd_ref": rbd.__version__,
        "numpy": np.__version__,
        "numba": numba.__version__,
        "torch": None if torch is None else str(torch.__version__),
    }


def stolen() -> float:
    """Which part of the processor time since this was imported was others'."""
    (before, start), (after, end) = START, ticks()
    return (after - before) / max(end - start, 1)


def keep(path: Path | None, before: Mapping[str, object], **figures: object) -> None:
    """Write figures with what they were measured on, if a file was asked for."""
    if path:
        written = {"machine": before, "load after": os.getloadavg(), "stolen": round(stolen(), 4), **figures}
        path.write_text(json.dumps(written, indent=1) + "\n")


def show(rows: list[Row], times: Mapping[str, Times], before: Mapping[str, object]) -> None:
    """The table, what it was measured on, and the times of both shapes."""
    print(f"{'':50} {'against':30} {'measured':>10} {'target':>10} {'':4} {'processor':>10}")
    print(*rows, sep="\n")
    print(f"\n{before['processor']}, {before['threads']} threads, load {before['load']} to {os.getloadavg()}")
    print(f"{stolen():.1%} of the processor time was given to others by the host")
    for name, several in times.items():
        print(f"{name:44} {1e3 * several.wall:10.3f} ms {1e3 * several.processor:10.3f} ms of processor time")


def main() -> None:
    """Measure, print the table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each comparison (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--only-descend", action="store_true", help="only the comparisons of `descend` with others")
    options = parser.parse_args()
    if torch is not None:
        torch.set_num_threads(numba.get_num_threads())
    before = machine()
    rows: list[Row] = []
    times: dict[str, Times] = {}
    for D, d in SHAPES:
        some, figures = shape_rows(D, d, options.seconds)
        rows, times = rows + some, times | figures
    if not options.only_descend:
        seconds = options.seconds
        rows += [*srht_rows(seconds), *step_rows(seconds), *thread_rows(seconds), *small_rows(1.0)]
        rows += [start_row(), *memory_rows()]
    show(rows, times, before)
    kept = {name: several._asdict() for name, several in times.items()}
    keep(options.json, before, rows=[asdict(row) for row in rows], seconds=kept)


if __name__ == "__main__":
    main()
