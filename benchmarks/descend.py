"""`descend` of every family beside what one would write without the package, in one run: `make bench`.

The alternative draws float32 normals with NumPy's generator in blocks of 50 directions and multiplies twice:
coefficients, then update. Times are the best of several, as the machine is never quiet; only ratios within one run
mean anything.
May import: numpy, the package.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np

import rbd_ref as rbd
from rbd_ref.conformance.cases import pseudo_random
from rbd_ref.distributions import FAMILIES, Vector

SHAPES = ((101_770, 250), (122_570, 1000))
BLOCK = 50


def best(call: Callable[[], object], seconds: float) -> float:
    """The shortest of the calls that fit into `seconds`, three at least, after one to warm up."""
    call()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def numpy_descend(g: Vector, d: int, generator: np.random.Generator) -> Vector:
    """Unit normal directions, drawn anew, a block at a time."""
    u = np.zeros_like(g)
    for first in range(0, d, BLOCK):
        phi = generator.standard_normal((min(BLOCK, d - first), g.size), dtype=np.float32)
        u += (phi @ g / np.einsum("ij,ij->i", phi, phi)) @ phi
    return u


def measure(D: int, d: int, seconds: float) -> list[dict[str, object]]:
    """One row for NumPy and one for each family."""
    g, generator = pseudo_random(1, D), np.random.default_rng(0)
    base = best(lambda: numpy_descend(g, d, generator), seconds)
    rows: list[dict[str, object]] = [{"D": D, "d": d, "what": "NumPy standard_normal + two matmuls", "seconds": base}]
    for family in FAMILIES:
        basis = rbd.Basis(rbd.compartments.whole(D, d=d), family=family)
        rows.append(
            {"D": D, "d": d, "what": f"descend, {family}", "seconds": best(lambda b=basis: b.descend(g, 0), seconds)}
        )
    return [row | {"ratio": base / float(str(row["seconds"]))} for row in rows]


def main() -> None:
    """Measure, print the table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each figure (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    rows = [row for shape in SHAPES for row in measure(*shape, options.seconds)]
    print(f"{'D':>9} {'d':>6}  {'':36} {'ms':>9} {'entries/s':>10} {'ratio':>8}")
    for row in rows:
        seconds = float(str(row["seconds"]))
        rate = int(str(row["D"])) * int(str(row["d"])) / seconds
        print(f"{row['D']:>9} {row['d']:>6}  {row['what']:36} {1e3 * seconds:9.2f} {rate:10.2e} {row['ratio']:7.1f}x")
    if options.json:
        machine = {"machine": platform.machine(), "threads": numba.get_num_threads(), "numba": numba.__version__}
        options.json.write_text(
            json.dumps({"machine": machine, "numpy": np.__version__, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
