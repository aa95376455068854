"""The golden vectors: `python -m rbd_ref.conformance.golden` writes them, `--check` makes them anew and compares.

They come from the definitions of spec/ and from nothing else: no kernel and no backend has a part in them, and NumPy is
all that has to be installed. The words marked `Random123` are that library's published answers.
A version of the vectors is never changed: other bits are a new version (docs/specification.md, section 9).
Tests: tests/test_golden.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import rbd_ref
from rbd_ref._types import Float32Array
from rbd_ref.conformance.cases import ADDRESSES, PLANS, draw_at, pseudo_random
from rbd_ref.spec.compartments import Plan, whole
from rbd_ref.spec.families import FAMILIES
from rbd_ref.spec.hadamard import rows
from rbd_ref.spec.operations import NORMALIZATIONS, Draw, direction, directions, exact_project, project, reconstruct
from rbd_ref.spec.prng import STREAMS, fold_in, root_key, stream_key, threefry2x32

# (d, i) of long directions; a number above 2^16, and some found by search, in which rare events happen: the largest
# radius word of `normal` (one block in 2^25), a place of `sparse` that other arithmetic rounds elsewhere, and equal
# words of `srht` where the choice of rows ends.
LONG = ((3, 2), (131_075, 70_000))
RARE: dict[str, tuple[tuple[int, int], ...]] = {
    "normal": ((131_075, 65_611),),
    "sparse": ((131_075, 65_630),),
    "srht": ((19_101, 2_926),),
}
FAMILIES_OF_CASES = (*FAMILIES, "sparse:7", "sparse:256")

VERSION = "v1"
FOLDER = Path(__file__).parent / "vectors" / VERSION
FILES = ("words", "directions", "operations")

# Random123 1.14, tests/kat_vectors, rows "threefry2x32 20": counter, key, answer.
RANDOM123 = (
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
)


def hexadecimal(x: Float32Array) -> str:
    """Eight digits for each float32, its bits from the highest down."""
    return np.ascontiguousarray(x, dtype=">f4").tobytes().hex()


def floats(text: str) -> Float32Array:
    """The inverse of `hexadecimal`."""
    return np.frombuffer(bytes.fromhex(text), dtype=">f4").astype(np.float32)


def _words(values: Any) -> list[str]:
    return [f"{int(value):08x}" for value in values]


def _address(draw: Draw) -> dict[str, Any]:
    """What the bits of a case depend on; integers that a double cannot hold are text."""
    return {
        "family": str(draw.family),
        "normalize": draw.normalize,
        "seed": f"{draw.seed:016x}",
        "step": draw.step,
        "worker": draw.worker,
        "sizes": list(draw.plan.sizes),
        "dims": list(draw.plan.dims),
    }


def draw_of(row: dict[str, Any]) -> Draw:
    """The inverse of `_address`."""
    plan = Plan(tuple(row["sizes"]), tuple(row["dims"]))
    return draw_at(plan, row["family"], row["normalize"], int(row["seed"], 16), row["step"], row["worker"])


def word_cases() -> dict[str, Any]:
    """Random123's answers, then keys and counters of all kinds, then keys derived from seeds."""
    cases = [
        {"counter": _words(c), "key": _words(k), "words": _words(w), "source": "Random123"} for c, k, w in RANDOM123
    ]
    for n in range(16):
        key, counter = fold_in(root_key(n), 1), fold_in(root_key(n), 2)
        words = threefry2x32(key, counter)
        cases.append({"counter": _words(counter), "key": _words(key), "words": _words(words), "source": "definition"})
    keys = []
    for seed, step, worker in ADDRESSES:
        for stream in STREAMS:
            key = fold_in(fold_in(stream_key(seed, stream), step), worker)
            row = {"seed": f"{seed:016x}", "stream": stream, "step": step, "worker": worker}
            keys.append(row | {"key": _words(key), "compartment_7": _words(fold_in(key, 7))})
    return {"cases": cases, "keys": keys}


def long_case(family: str, d: int, i: int) -> dict[str, Any]:
    """Direction i of d in 131,075 dimensions, by its checksum."""
    draw = draw_at(whole(131_075, d=d), family, "unit", *ADDRESSES[5])
    digest = hashlib.sha256(direction(draw, 0, i).astype("<f4").tobytes()).hexdigest()
    return _address(draw) | {"direction": i, "sha256": digest}


def direction_cases() -> dict[str, Any]:
    """Whole small bases, then single long directions by checksum, then the parts of an srht basis."""
    cases, long = [], []
    for number, family in enumerate(FAMILIES_OF_CASES):
        for p, plan in enumerate(PLANS):
            draw = draw_at(plan, family, "unit", *ADDRESSES[(p + number) % len(ADDRESSES)])
            cases.append(_address(draw) | {"phi": hexadecimal(directions(draw))})
        long += [long_case(family, d, i) for d, i in (*LONG, *RARE.get(family, ()))]
    chosen = [{"size": n, "d": d, "rows": rows(root_key(n), n, d).tolist()} for n, d in ((1, 1), (5, 5), (100, 7))]
    return {"cases": cases, "long": long, "srht_rows_of_key_0_size": chosen}


def operation_cases() -> dict[str, Any]:
    """Gradients to coefficients in every normalisation, and given coefficients to updates."""
    plan = PLANS[-1]
    cases = []
    for family in FAMILIES_OF_CASES:
        for normalize in NORMALIZATIONS:
            draw = draw_at(plan, family, normalize, *ADDRESSES[4])
            g, given = pseudo_random(1, plan.D), pseudo_random(2, plan.d)
            case = {"g": hexadecimal(g), "a": hexadecimal(exact_project(draw, g))}
            case |= {"reference_a": hexadecimal(project(draw, g))}
            case |= {"given_a": hexadecimal(given), "u": hexadecimal(reconstruct(draw, given))}
            cases.append(_address(draw) | case)
    return {"cases": cases}


def make() -> dict[str, dict[str, Any]]:
    """All files, without their `_info`."""
    return dict(zip(FILES, (word_cases(), direction_cases(), operation_cases()), strict=True))


def checksum(body: dict[str, Any]) -> str:
    """SHA-256 of a file's contents without `_info`, as compact JSON with sorted keys."""
    text = json.dumps({k: v for k, v in body.items() if k != "_info"}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _commit() -> str:
    """The commit that the generator stands on, where there is one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else "unknown"


@cache
def read(name: str) -> dict[str, Any]:
    """One file of the vectors."""
    body: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return body


def write() -> None:
    """Write all files with their provenance."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    commit = _commit()
    for name, body in make().items():
        info = {"generator": "rbd_ref.conformance.golden", "vectors": VERSION, "rbd_ref": rbd_ref.__version__}
        info |= {"commit": commit, "numpy": np.__version__, "sha256": checksum(body)}
        (FOLDER / f"{name}.json").write_text(json.dumps({"_info": info} | body, indent=1) + "\n")


def differences() -> list[str]:
    """What is not as the generator makes it, one sentence each."""
    found = []
    for name, body in make().items():
        stored = read(name)
        if stored["_info"]["sha256"] != checksum(stored):
            found.append(f"{name}.json does not have the sha256 that its _info states: it was edited by hand")
        for part, rows_ in body.items():
            for number, row in enumerate(rows_):
                if number >= len(stored[part]) or stored[part][number] != row:
                    found.append(f"{name}.json: {part} number {number} is not what the definition gives")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Write, or check and say what differs; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m rbd_ref.conformance.golden", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the stored vectors instead of writing them")
    if not parser.parse_args(arguments).check:
        write()
        print(f"wrote {', '.join(FILES)} of vectors {VERSION}")
        return 0
    found = differences()
    print("\n".join(found) or f"vectors {VERSION} are what the definitions give")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
