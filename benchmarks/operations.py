"""Where the time of a network's gradient goes, operation by operation: `python benchmarks/operations.py`.

Operations of one kind and number of channels are added up, forwards and backwards apart, with one thread and with all;
of convolutions also GFLOP/s of one thread, two for each multiply-add. The limits above the table are what one thread
does at best: the package's own product of matrices that fit a cache, and NumPy's copy of an array of 2 MB.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from speed import keep, machine

from rbd_ref.models import networks
from rbd_ref.models.plan import PLANS, Node, Plan
from rbd_ref.models.product import Product

SHAPE = (32, 32, 3)
BATCH = 32
CLASSES = 10
REPEATS = 30
Times = dict[str, list[float]]  # seconds, with one thread and with all


def least(call: Callable[[], object]) -> float:
    """Seconds of the shortest of many calls."""
    found = []
    for _ in range(10 * REPEATS):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found)


def limits() -> dict[str, float]:
    """GFLOP/s of products with one and two vectors of columns, and GB/s of a copy, all in one thread."""
    numba.set_num_threads(1)
    generator = np.random.default_rng(0)
    found = {}
    for columns in (16, 32):
        m, k = 256, 144
        a, b = (generator.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (1, k, columns)))
        c = np.empty(m * columns, dtype=np.float32)
        product = Product(np.arange(m) * k, np.arange(k), np.arange(m) * columns)
        start = np.zeros(columns, dtype=np.float32)
        seconds = least(lambda: product(a, b, c, start))  # noqa: B023
        found[f"GFLOP/s, {columns} columns"] = 2e-9 * m * k * columns / seconds
    x = generator.standard_normal(2**19, dtype=np.float32)
    y = np.empty_like(x)
    found["GB/s, copy of 2 MB"] = 2e-9 * x.nbytes / least(lambda: np.copyto(y, x))
    return found


def kind(node: Node) -> str:
    """What an operation is called in the table."""
    name = type(node.operation).__name__
    if name == "Conv2d":
        k, _, before, after = node.tensors[0].shape
        return f"{k} x {k} convolution, {before} to {after} channels"
    return f"{name}, {node.shape[-1]} channels"


def flops(node: Node) -> float:
    """Of a convolution forwards; backwards has two products of the same size."""
    return 2.0 * math.prod(node.shape[:3]) * math.prod(node.tensors[0].shape) if len(node.shape) == 4 else 0.0


def measure(plan: Plan, theta: Any, x: Any, y: Any) -> Times:
    """Seconds of each operation, the least of many steps: forwards, backwards, and the sums of gradients."""
    found: Times = {}

    def clocked(name: str, call: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = call()
        found.setdefault(name, []).append(time.perf_counter() - began)
        return result

    for _ in range(REPEATS):
        plan.images.value = x
        for number, node in enumerate(plan.nodes):
            inputs = [other.value for other in node.inputs]
            tensors = [tensor.of(theta) for tensor in node.tensors]
            node.value = clocked(f"{number} forwards", lambda: node.operation.forward(*inputs, *tensors))  # noqa: B023
        plan.loss.forward(plan.logits.value, y)
        plan.loss.backward(np.float32(1), (plan.steps[0].slope,))
        gradient = plan.gradient.take()
        for node, slope, targets, sums in plan.steps:
            number = plan.nodes.index(node)
            into = (*targets, *(tensor.of(gradient) for tensor in node.tensors))
            clocked(f"{number} backwards", lambda: node.operation.backward(slope, into))  # noqa: B023
            for total, part in sums:
                clocked(f"{number} sum", lambda: np.add(total, part, out=total))  # noqa: B023
    return found


def rows(plan: Plan, one: Times, all_threads: Times) -> list[dict[str, Any]]:
    """Operations of one kind together."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name, times in one.items():
        number, way = name.split()
        node = plan.nodes[int(number)]
        what = "sums of gradients" if way == "sum" else kind(node)
        row = found.setdefault((what, way), {"what": what, "way": way, "one": 0.0, "all": 0.0, "flop": 0.0})
        row["one"] += 1e3 * min(times)
        row["all"] += 1e3 * min(all_threads[name])
        row["flop"] += (2 if way == "backwards" else 1) * flops(node) if "convolution" in what else 0
    for row in found.values():
        row["GFLOP/s"] = 1e-6 * row.pop("flop") / row["one"]
    return sorted(found.values(), key=lambda row: -row["all"])


def main() -> None:
    """Measure, print, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", default="resnet8", help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    before = machine()
    network = networks.make(options.net, SHAPE, CLASSES)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((BATCH, *SHAPE), dtype=np.float32)
    y = generator.integers(0, CLASSES, BATCH)
    theta = networks.initialise(network, 0)
    networks.loss_and_gradient(network, theta, x, y)
    plan = PLANS.find(network, BATCH)
    threads = numba.get_num_threads()
    best = limits()
    one = measure(plan, theta, x, y)
    numba.set_num_threads(threads)
    found = rows(plan, one, measure(plan, theta, x, y))
    for name, value in best.items():
        print(f"{name:40} {value:8.1f}")
    for row in found:
        print(f"{row['what']:40} {row['way']:10} {row['one']:8.3f} {row['all']:8.3f} ms {row['GFLOP/s']:8.0f} GFLOP/s")
    keep(options.json, before, net=options.net, limits=best, rows=found)


if __name__ == "__main__":
    main()
