"""`descend` of every backend and family beside the reference's, and beside torch and JAX as their users would write it.

    python benchmarks/backends.py

The alternatives draw normals with the library's own generator in blocks of 50 directions and multiply twice. Times are
the best of several; only ratios within one run mean anything.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from speed import BLOCK, best

import rbd_ref as rbd
from rbd_ref import backend
from rbd_ref.conformance.cases import pseudo_random
from rbd_ref.spec.families import FAMILIES

D, DIMS = 101_770, 50
BACKENDS = ("numba", "torch", "torch, compiled", "jax", "ipu")


class Row(NamedTuple):
    """A figure: which backend or alternative, which family, entries of directions a second."""

    what: str
    family: str
    rate: float


def made(name: str) -> backend.Backend:
    """A backend; `torch, compiled` is torch with the switch that compiles."""
    os.environ["RBD_TORCH_COMPILE"] = "1" if name.endswith("compiled") else "0"
    return backend.load(name.partition(",")[0])


def rate(call: Callable[[], object], seconds: float) -> float:
    """Entries a second."""
    return D * DIMS / best({"it": call}, seconds)["it"].wall


def with_torch() -> Callable[[], object]:
    """Unit normal directions as torch's users draw them."""
    g, u = torch.from_numpy(pseudo_random(1, D)), torch.zeros(D)

    def call() -> object:
        for _ in range(0, DIMS, BLOCK):
            phi = torch.randn(BLOCK, D)
            u.add_((phi @ g / (phi * phi).sum(1)) @ phi)
        return u

    return call


def with_jax() -> Callable[[], object]:
    """Unit normal directions as JAX's users draw them."""

    @jax.jit
    def block(key: Any, g: Any) -> Any:
        phi = jax.random.normal(key, (BLOCK, D))
        return (phi @ g / (phi * phi).sum(1)) @ phi

    keys, g = jax.random.split(jax.random.key(0), -(-DIMS // BLOCK)), jax.numpy.asarray(pseudo_random(1, D))
    return lambda: jax.block_until_ready(sum(block(key, g) for key in keys))


def measure(seconds: float) -> Iterator[Row]:
    """All rows, as they are found."""
    g, plan = pseudo_random(1, D), rbd.compartments.whole(D, d=DIMS)
    for name in BACKENDS:
        instance = made(name)
        for family in FAMILIES:
            basis = rbd.Basis(plan, 0, family, "unit", instance)
            yield Row(name, family, rate(lambda basis=basis: basis.descend(g, 0), seconds))
    for name, call in (
        ("torch.randn and two matmuls", with_torch()),
        ("jax.random.normal and two matmuls", with_jax()),
    ):
        yield Row(name, "normal", rate(call, seconds))


def main() -> None:
    """Measure, print rates and their ratio to the reference's, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each figure (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options, rows = parser.parse_args(), []
    print(f"D = {D:,}, d = {DIMS}, {torch.get_num_threads()} threads; million entries a second, and of the reference's")
    for row in measure(options.seconds):
        rows.append(row)
        reference = next(each.rate for each in rows if each.family == row.family)
        print(f"{row.what:34} {row.family:20} {row.rate / 1e6:10,.1f} {row.rate / reference:8.3f}", flush=True)
    if options.json:
        versions = {"numpy": np.__version__, "torch": torch.__version__, "jax": jax.__version__}
        machine = {"machine": platform.machine(), "load": os.getloadavg()[0], **versions}
        options.json.write_text(
            json.dumps({"machine": machine, "rows": [row._asdict() for row in rows]}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
