"""Loss and gradient of the networks beside PyTorch's, in one run: `python benchmarks/networks.py`.

Batches of 32, eager PyTorch with images channels last or channels first, whichever is faster. Each side has a process
of its own, since the idle threads of one would disturb the other, the same number of threads, and its turn in every
round, since the machine is never quiet. The best of all rounds counts; only ratios within one run mean anything.
`processor` is the ratio of the least processor times of one thread, which others on the machine disturb less. Both
sides use AVX2 only with NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx2,+fma ATEN_CPU_CAPABILITY=avx2
ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 in the environment.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numba
import numpy as np
from speed import BATCH, Row, Times, keep, machine, timed

from rbd_ref.models import networks
from rbd_ref.models.architectures import EPSILON, STAGES

CASES = (  # name, images, at most so many times PyTorch's time
    ("cnn", (32, 32, 3), 0.8),
    ("cnn", (28, 28, 1), 0.8),
    ("fc", (32, 32, 3), 0.7),
    ("fc", (28, 28, 1), 0.7),
    ("resnet8", (32, 32, 3), 1.0),
)
CLASSES = 10
Call = Callable[[], object]


def own_call(name: str, shape: tuple[int, ...]) -> Call:
    """Loss and gradient by this package."""
    network, generator = networks.make(name, shape, CLASSES), np.random.default_rng(0)
    theta = networks.initialise(network, seed=0)
    x = generator.standard_normal((BATCH, *shape), dtype=np.float32)
    y = generator.integers(0, CLASSES, BATCH)
    return lambda: networks.loss_and_gradient(network, theta, x, y)


def torch_block(before: int, channels: int, stride: int) -> Any:
    """A residual block with a convolution on its shortcut."""
    from torch import nn, relu

    def normed(source: int, k: int, step: int) -> Any:
        convolution = nn.Conv2d(source, channels, k, step, k // 2, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(channels, eps=EPSILON, track_running_stats=False))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = normed(before, 3, stride), normed(channels, 3, 1)
            self.shortcut = normed(before, 1, stride)

        def forward(self, x: Any) -> Any:
            return relu(self.shortcut(x) + self.second(relu(self.first(x))))

    return Block()


def torch_layers(name: str, shape: tuple[int, ...]) -> list[Any]:
    """The same architecture in PyTorch."""
    from torch import nn

    if name == "fc":
        return [nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.ReLU(), nn.Linear(128, CLASSES)]
    if name == "resnet8":
        first = nn.Conv2d(shape[2], STAGES[0], 3, 1, 1, bias=False)
        layers = [first, nn.BatchNorm2d(STAGES[0], eps=EPSILON, track_running_stats=False), nn.ReLU()]
        pairs = zip((STAGES[0], *STAGES), STAGES, strict=False)
        layers += [torch_block(before, channels, 1 + (before < channels)) for before, channels in pairs]
        return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(STAGES[-1], CLASSES)]
    left = ((shape[0] - 2) // 2 - 2) // 2 - 2
    layers = [nn.Conv2d(shape[2], 32, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2)]
    layers += [nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten()]
    return [*layers, nn.Linear(64 * left * left, 64), nn.ReLU(), nn.Linear(64, CLASSES)]


def torch_call(name: str, shape: tuple[int, ...], last: bool) -> Call:
    """Loss and gradient by PyTorch, with channels last or first."""
    import torch

    order = torch.channels_last if last else torch.contiguous_format
    model = torch.nn.Sequential(*torch_layers(name, shape)).to(memory_format=order)
    assert sum(p.numel() for p in model.parameters()) == networks.make(name, shape, CLASSES).D
    x = torch.randn(BATCH, shape[2], *shape[:2]).contiguous(memory_format=order)
    y = torch.randint(0, CLASSES, (BATCH,))

    def call() -> None:
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()

    return call


def shortest(call: Call, seconds: float) -> Times:
    """The best of the calls that fit into `seconds`, three at least, after two to warm up."""
    times = [timed(call) for _ in range(2)][:0]
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        times.append(timed(call))
    return Times(*(min(column) for column in zip(*times, strict=True)))


def use_threads(side: str, n: int) -> None:
    """Threads for the side that this process measures."""
    if side == "PyTorch":
        import torch

        torch.set_num_threads(n)
    else:
        numba.set_num_threads(n)


def measure(side: str, threads: int, seconds: float) -> list[tuple[float, float]]:
    """Of each case the seconds with so many threads and the processor time with one."""
    figures = []
    for name, shape, _ in CASES:
        if side == "PyTorch":
            calls = [torch_call(name, shape, last) for last in ((False,) if name == "fc" else (False, True))]
        else:
            calls = [own_call(name, shape)]
        use_threads(side, threads)
        wall = min(shortest(call, seconds).wall for call in calls)
        use_threads(side, 1)
        figures.append((wall, min(shortest(call, seconds).processor for call in calls)))
    return figures


def turn(side: str, threads: int, seconds: float) -> list[tuple[float, float]]:
    """`measure` in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, side, threads, seconds).result()


def main() -> None:
    """Measure, print the table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="time for a figure (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=numba.get_num_threads(), help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    before, sides = machine(), ("rbd_ref", "PyTorch")
    turns = [[turn(side, options.threads, options.seconds) for side in sides] for _ in range(options.rounds)]
    figures = np.min(np.array(turns), axis=0)  # side, case, (seconds, processor)
    rows, milliseconds = [], {}
    for (name, shape, target), (ours, theirs) in zip(CASES, np.swapaxes(figures, 0, 1), strict=True):
        work = f"{name}, {' x '.join(map(str, shape))}, loss and gradient"
        rows.append(Row(work, "PyTorch", ours[0] / theirs[0], target, "x", True, ours[1] / theirs[1]))
        milliseconds[work] = {side: 1e3 * times[0] for side, times in zip(sides, (ours, theirs), strict=True)}
    print(*rows, sep="\n")
    for work, found in milliseconds.items():
        print(f"{work}: {', '.join(f'{side} {value:.3f} ms' for side, value in found.items())}")
    keep(options.json, before, rows=[asdict(row) for row in rows], milliseconds=milliseconds)


if __name__ == "__main__":
    main()
