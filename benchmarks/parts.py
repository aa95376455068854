"""Where `descend` spends its time: the parts of its work on one stretch of directions (tiles.py), in one thread.

    python benchmarks/parts.py --json benchmarks/parts.json

`words` is Threefry alone, as many as the family needs; `hold` is all that makes it, words included; `dot` its inner
products, with its own square where that is needed; `add` its multiple added to the update. The last column is what is
left of a whole `descend` in one thread. With NUMBA_CPU_NAME=haswell and NUMBA_CPU_FEATURES=+avx2 the kernels are those
of a machine with AVX2.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from speed import best, descend, keep, limited, machine

from rbd_ref._types import Float32Array, Words
from rbd_ref.conformance.cases import pseudo_random
from rbd_ref.kernels._jit import borrowed, kernel
from rbd_ref.kernels.backend import aligned
from rbd_ref.kernels.families import FamilyCode, KeyPair, fill_words
from rbd_ref.kernels.tiles import (
    MOST_BLOCKS,
    MOST_TILE_WORDS,
    SCRATCH,
    STRETCH,
    STRIDE,
    Sums,
    add,
    dot,
    family_code,
    hold,
    stretch,
)
from rbd_ref.spec.families import FAMILIES, Family, parse_family
from rbd_ref.spec.operations import TILE

TIMES = 500
D = 24 * TILE
DIMS = 250
KEY = (np.uint32(1), np.uint32(2))


@kernel
def words_only(key: KeyPair, blocks: int, scratch: Words) -> None:
    """The words of a stretch, many times."""
    scratch = borrowed(scratch)
    for i in range(TIMES):
        fill_words(key, i, 0, scratch[:blocks], scratch[MOST_BLOCKS : MOST_BLOCKS + blocks])


@kernel
def hold_only(code: FamilyCode, key: KeyPair, length: int, scratch: Words, held: Words) -> None:
    """A stretch, many times."""
    scratch, held = borrowed(scratch), borrowed(held)
    for i in range(TIMES):
        hold(code, key, i, length, length, D, scratch, held)


@kernel
def dot_only(code: FamilyCode, square: bool, held: Words, g: Float32Array, sums: Sums) -> None:
    """The inner products of a stretch, many times."""
    held, g, sums = borrowed(held), borrowed(g), borrowed(sums)
    for _ in range(TIMES):
        dot(code, held, g, square, sums[:, 0])


@kernel
def add_only(code: FamilyCode, held: Words, u: Float32Array) -> None:
    """A stretch added to an update, many times."""
    held, u = borrowed(held), borrowed(u)
    for _ in range(TIMES):
        add(code, np.float32(1e-3), held, u)


def blocks_of(family: Family) -> int:
    """Blocks of words that a stretch of a family takes."""
    if family.name == "sparse":
        return -(-(stretch(family_code(family)) * TILE // family.window + 2) // 2 // STRIDE) * STRIDE
    return TILE // 2 if family.name in ("normal", "uniform") else TILE // 64


def parts(family: str, seconds: float) -> dict[str, float]:
    """Nanoseconds of each part for an entry."""
    kind, sums = parse_family(family), np.empty((STRETCH, 1, 2))
    code = family_code(kind)
    scratch, held = np.empty(SCRATCH, np.uint32), aligned(np.empty, (MOST_TILE_WORDS,), np.uint32)
    square, length = not kind.square_is_constant, stretch(code) * TILE
    g = aligned(np.empty, (length,), np.float32)
    g[:] = pseudo_random(1, length)
    u = aligned(np.zeros, (length,), np.float32)
    hold_only(code, KEY, length, scratch, held)
    calls: dict[str, Callable[[], Any]] = {
        "words": lambda: words_only(KEY, blocks_of(kind), scratch),
        "hold": lambda: hold_only(code, KEY, length, scratch, held),
        "dot": lambda: dot_only(code, square, held, g, sums),
        "add": lambda: add_only(code, held, u),
    }
    found = {name: 1e9 * times.wall / TIMES / length for name, times in best(calls, seconds).items()}
    whole = best({"it": limited(1, descend(D, DIMS, family))}, seconds)["it"].wall
    found["descend"] = 1e9 * whole / D / DIMS
    return found | {"rest": found["descend"] - found["hold"] - found["dot"] - found["add"]}


def main() -> None:
    """Measure, print, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each family (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    before = machine()
    found = {}
    print(f"kernels for {numba.config.CPU_NAME or 'this machine'}; nanoseconds an entry, one thread")  # type: ignore[attr-defined]
    for family in FAMILIES:
        if family != "srht":
            found[family] = parts(family, options.seconds)
            print(f"{family:20}", ", ".join(f"{name} {value:.4f}" for name, value in found[family].items()), flush=True)
    keep(options.json, before, nanoseconds=found)


if __name__ == "__main__":
    main()
