"""Portable random numbers beside each library's own: million numbers per second, in one run, as a table.

python benchmarks/random_numbers.py           prints the table
python benchmarks/random_numbers.py --write   puts it into docs/random.md
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import torch

import rbd_jax
import rbd_ref
import rbd_torch

DOCS = Path(__file__).parent.parent / "docs"
sys.path.insert(0, str(DOCS))
from pages import put, table  # noqa: E402

COUNT = 10**7
ROUNDS = 7
RNG = np.random.default_rng(0)
KEY = jax.random.key(0)


def on_jax(function: Callable[[], jax.Array]) -> Callable[[], object]:
    """A compiled program that is waited for."""
    compiled = jax.jit(function)
    return lambda: compiled().block_until_ready()


RIVALS: dict[str, tuple[Callable[[], object], ...]] = {
    "`rbd_ref.random`": (
        lambda: rbd_ref.random.normal(COUNT, seed=7),
        lambda: rbd_ref.random.uniform(COUNT, seed=7),
    ),
    "`rbd_torch`": (lambda: rbd_torch.randn(COUNT, seed=7), lambda: rbd_torch.rand(COUNT, seed=7)),
    "`rbd_jax`": (on_jax(lambda: rbd_jax.randn(COUNT, seed=7)), on_jax(lambda: rbd_jax.rand(COUNT, seed=7))),
    "NumPy's `Generator`": (
        lambda: RNG.standard_normal(COUNT, dtype=np.float32),
        lambda: RNG.random(COUNT, dtype=np.float32),
    ),
    "`torch.randn`, `torch.rand`": (lambda: torch.randn(COUNT), lambda: torch.rand(COUNT)),
    "`jax.random`": (
        on_jax(lambda: jax.random.normal(KEY, (COUNT,))),
        on_jax(lambda: jax.random.uniform(KEY, (COUNT,))),
    ),
}


def rates() -> dict[str, list[float]]:
    """Million numbers per second of each, the best of some rounds in turn."""
    best = {name: [float("inf")] * len(makers) for name, makers in RIVALS.items()}
    for _ in range(ROUNDS):
        for name, makers in RIVALS.items():
            for number, make in enumerate(makers):
                start = time.perf_counter()
                make()
                best[name][number] = min(best[name][number], time.perf_counter() - start)
    return {name: [COUNT / 1e6 / seconds for seconds in found] for name, found in best.items()}


def main() -> None:
    """Measure, and print or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/random.md")
    options = parser.parse_args()
    found = rates()
    rows = [[name, *(f"{rate:,.0f}" for rate in row)] for name, row in found.items()]
    text = table(["million per second", "normal", "uniform"], rows)
    print(text)
    if options.write:
        put(DOCS / "random.md", {"random": text}, False)


if __name__ == "__main__":
    main()
