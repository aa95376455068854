"""What `optimizer.step()` of `rbd_torch.RBD` costs beside torch's SGD and AdamW: time, and memory above the parameters.

    OMP_WAIT_POLICY=passive python benchmarks/optimizer.py --json benchmarks/optimizer.json

Parameters are 16 tensors with gradients, on the CPU; directions are srht's, 250 of them. All optimizers of a size take
turns, and the best time of each counts: only ratios within one run mean anything. Threads of torch and of Numba that
wait for each other spin unless OMP_WAIT_POLICY is passive, which costs both where cores are shared. Memory is the peak
of two steps in a process of its own, above parameters and gradients, in vectors of D floats.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from speed import best, keep, machine
from torch import nn

from rbd_ref.conformance.memory import peak, reset_peak
from rbd_torch import RBD

SIZES = (10**6, 10**7, 10**8)
TENSORS = 16
TINY = 1e-12  # a rate by which weights stay what they are, however many steps are measured
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "torch.optim.SGD": lambda params: torch.optim.SGD(params, lr=TINY),
    "torch.optim.SGD, momentum": lambda params: torch.optim.SGD(params, lr=TINY, momentum=0.9),
    "torch.optim.AdamW": lambda params: torch.optim.AdamW(params, lr=TINY),
    "RBD": lambda params: RBD(params, lr=TINY),
    "RBD, a compartment a tensor": lambda params: RBD(params, lr=TINY, compartments="tensor"),
    "RBD, memory": lambda params: RBD(params, lr=TINY, memory=0.99),
    "RBD, signs of 8,000": lambda params: RBD(params, lr=TINY, dims=8000, coefficients="sign"),
}
GOAL = 5.0  # times AdamW's step, at most, at 10^7 parameters


def parameters(D: int) -> list[nn.Parameter]:
    """D parameters in all, with gradients."""
    found = [nn.Parameter(torch.randn(D // TENSORS)) for _ in range(TENSORS)]
    for parameter in found:
        parameter.grad = torch.randn_like(parameter)
    return found


def measure_memory(name: str, D: int) -> float:
    """Vectors of D floats that two steps take at their peak; in this process, after a step of a small optimizer."""
    OPTIMIZERS[name](parameters(1000 * TENSORS)).step()
    params = parameters(D)
    reset_peak()
    before = peak()
    optimizer = OPTIMIZERS[name](params)
    optimizer.step()
    optimizer.step()
    return (peak() - before) / 4 / D


def memory(name: str, D: int) -> float:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--memory-of", name, "--sizes", str(D)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def rows(D: int, seconds: float) -> list[dict[str, Any]]:
    """Each optimizer at one size."""
    params = parameters(D)
    made = {name: make(params) for name, make in OPTIMIZERS.items()}
    times = best({name: optimizer.step for name, optimizer in made.items()}, seconds, spell=0.3)
    adamw = times["torch.optim.AdamW"]
    return [
        {
            "D": D,
            "optimizer": name,
            "milliseconds": 1e3 * found.wall,
            "of AdamW": found.wall / adamw.wall,
            "of AdamW, processor": found.processor / adamw.processor,
        }
        for name, found in times.items()
    ]


def main() -> None:
    """Measure, print, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each size (default: %(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="D", help="numbers of parameters")
    parser.add_argument("--memory-of", choices=OPTIMIZERS, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    if options.memory_of:
        print(measure_memory(options.memory_of, options.sizes[0]))
        return
    before = machine()
    found = []
    print(f"load {before['load']}, OMP_WAIT_POLICY {os.environ.get('OMP_WAIT_POLICY', 'not set')}")
    for D in options.sizes:
        for row in rows(D, options.seconds):
            row["vectors"] = round(memory(row["optimizer"], D), 2)
            found.append(row)
            print(
                f"D = {D:>11,}  {row['optimizer']:30} {row['milliseconds']:9.2f} ms {row['of AdamW']:7.2f} of AdamW's, "
                f"{row['of AdamW, processor']:6.2f} of its processor time, {row['vectors']:5.2f} D",
                flush=True,
            )
    keep(options.json, before, goal=GOAL, wait_policy=os.environ.get("OMP_WAIT_POLICY", ""), rows=found)


if __name__ == "__main__":
    main()
