"""A training step of the networks beside PyTorch's, in one run: `python benchmarks/networks.py`.

A step is loss, gradient and the update of plain SGD on a batch of 32. Each side has a process of its own, since the
idle threads of one would disturb the other, the same number of threads, and its turn in every round, since the machine
is never quiet. The best of all rounds counts; only ratios within one run mean anything. `cpu ms` is the least processor
time of a step on one thread, which others on the machine disturb less. Where PyTorch is missing it is left out.
On a machine that others use, set OMP_WAIT_POLICY=passive: threads that wait in a loop take the time of those awaited.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import platform
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numba
import numpy as np

from rbd_ref.models import networks

CASES = (("cnn", (32, 32, 3)), ("cnn", (28, 28, 1)), ("fc", (32, 32, 3)), ("fc", (28, 28, 1)), ("resnet8", (32, 32, 3)))
BATCH = 32
CLASSES = 10
RATE = np.float32(0.01)
Step = Callable[[], object]
Clock = Callable[[], float]


def own_step(name: str, shape: tuple[int, ...]) -> Step:
    """One step of this package."""
    network, generator = networks.make(name, shape, CLASSES), np.random.default_rng(0)
    theta = networks.initialise(network, seed=0)
    x = generator.standard_normal((BATCH, *shape), dtype=np.float32)
    y = generator.integers(0, CLASSES, BATCH)

    def step() -> None:
        _, gradient = networks.loss_and_gradient(network, theta, x, y)
        np.subtract(theta, RATE * gradient, out=theta)

    return step


def torch_model(name: str, shape: tuple[int, ...]) -> Any:
    """The same architecture in PyTorch; None for those that are not written here."""
    from torch import nn

    if name == "fc":
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.ReLU(), nn.Linear(128, CLASSES))
    if name != "cnn":
        return None
    left = ((shape[0] - 2) // 2 - 2) // 2 - 2
    convolutions = [nn.Conv2d(shape[2], 32, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2)]
    convolutions += [nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*convolutions, nn.Linear(64 * left * left, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def torch_step(name: str, shape: tuple[int, ...]) -> Step | None:
    """One step of PyTorch, if it is installed and the architecture is written here."""
    if importlib.util.find_spec("torch") is None or (model := torch_model(name, shape)) is None:
        return None
    import torch

    assert sum(p.numel() for p in model.parameters()) == networks.make(name, shape, CLASSES).D
    optimiser = torch.optim.SGD(model.parameters(), lr=float(RATE))
    x, y = torch.randn(BATCH, shape[2], *shape[:2]), torch.randint(0, CLASSES, (BATCH,))

    def step() -> None:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()

    return step


def use_threads(side: str, n: int) -> None:
    """Threads for the side that this process measures."""
    if side == "PyTorch":
        import torch

        torch.set_num_threads(n)
    else:
        numba.set_num_threads(n)


def best(step: Step, seconds: float, clock: Clock) -> float:
    """The shortest of the steps that fit into `seconds`, three at least, after two to warm up."""
    step(), step()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = clock()
        step()
        times.append(clock() - start)
    return min(times)


def measure(side: str, threads: int, seconds: float) -> list[tuple[float, float]]:
    """Of each case the seconds of a step with so many threads and its processor time with one; infinite if left out."""
    figures = []
    for case in CASES:
        step = torch_step(*case) if side == "PyTorch" else own_step(*case)
        pair = [math.inf, math.inf]
        if step is not None:
            for i, (n, clock) in enumerate(((threads, time.perf_counter), (1, time.process_time))):
                use_threads(side, n)
                pair[i] = best(step, seconds, clock)
        figures.append((pair[0], pair[1]))
    return figures


def turn(side: str, threads: int, seconds: float) -> list[tuple[float, float]]:
    """`measure` in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, side, threads, seconds).result()


def show(rows: list[dict[str, Any]]) -> None:
    """The table."""
    print(f"{'':9} {'input':12} {'':8} {'ms':>8} {'images/s':>9} {'ratio':>6}   {'cpu ms':>8} {'ratio':>6}")
    for row in rows:
        seconds, cpu = row["seconds"], row["cpu"]
        ratio, cpu_ratio = (f"{row[key]:6.2f}" if key in row else " " * 6 for key in ("ratio", "cpu_ratio"))
        print(f"{row['network']:9} {row['input']:12} {row['what']:8}", end=" ")
        print(f"{1e3 * seconds:8.2f} {BATCH / seconds:9.0f} {ratio}   {1e3 * cpu:8.2f} {cpu_ratio}")


def main() -> None:
    """Measure, print the table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="time for a figure (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=numba.get_num_threads(), help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    sides = ["rbd_ref"] + ["PyTorch"] * (importlib.util.find_spec("torch") is not None)
    turns = [[turn(side, options.threads, options.seconds) for side in sides] for _ in range(options.rounds)]
    figures = np.min(np.array(turns), axis=0)  # side, case, (seconds, cpu)
    rows: list[dict[str, Any]] = []
    for i, (name, shape) in enumerate(CASES):
        for side, (seconds, cpu) in zip(sides, figures[:, i].tolist(), strict=True):
            row = {"network": name, "input": " x ".join(map(str, shape)), "what": side, "seconds": seconds, "cpu": cpu}
            if math.isfinite(figures[-1, i, 0]):
                row |= dict(zip(("ratio", "cpu_ratio"), ([seconds, cpu] / figures[-1, i]).tolist(), strict=True))
            if math.isfinite(seconds):
                rows.append(row)
    show(rows)
    if options.json:
        machine = {"machine": platform.machine(), "threads": options.threads, "numba": numba.__version__}
        options.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
