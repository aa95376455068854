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
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

import rbd_ref
from rbd_ref._types import Float32Array
from rbd_ref.conformance.cases import ADDRESSES, PLANS, draw_at, pseudo_random
from rbd_ref.spec.compartments import Plan, explicit, whole
from rbd_ref.spec.families import FAMILIES
from rbd_ref.spec.hadamard import rows
from rbd_ref.spec.operations import NORMALIZATIONS, Draw, direction, directions, exact_project, project, reconstruct
from rbd_ref.spec.prng import fold_in, root_key, stream_key, threefry2x32
from rbd_ref.spec.random import LAWS, number_key, numbers, stream_seed

FAMILIES_OF_CASES = (*FAMILIES, "sparse:7", "sparse:256")


class Long(NamedTuple):
    """Direction i of d over 131,075 elements, and what it shows."""

    d: int
    i: int
    why: str


LONG = (
    Long(3, 2, "33 tiles of 4,096 elements, the last of 3"),
    Long(131_075, 70_000, "the number of the direction is above 2^16"),
)
# Found by search: directions in which rare events happen.
RARE = {
    "normal": Long(131_075, 65_611, "block 52,279 has x0 = 0xffffffba, where v is clamped to 2^31 - 2^7"),
    "sparse": Long(
        131_075, 65_630, "elements 34,051 and 34,052: x * L >> 32, or the product in float32, gives the other place"
    ),
    "srht": Long(
        19_101,
        2_926,
        "rows 4,792 and 40,843 have equal words, and only the lower is among the 19,101 chosen",
    ),
}
THRESHOLD = Long(131_075, 39, "elements 10,822 and 10,823: the mantissa is 0x3f2aaaaa, just below 2/3 = 0x3f2aaaab")
LEAST = 2.0**-64
SMALL = (LEAST, LEAST * (1 - 2.0**-24), -LEAST * (1 - 2.0**-24), 1e-38, -1e-45, -LEAST)  # given coefficients
BLOCK = 4096  # elements of a long direction that have a checksum of their own

VERSION = "v1"
FOLDER = Path(__file__).parent / "vectors" / VERSION
FILES = ("words", "directions", "operations", "random")
FIRST_STREAMS = ("bases", "initialisation", "order", "augmentation", "split", "offspring")  # those of words.json

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
        for stream in FIRST_STREAMS:
            key = fold_in(fold_in(stream_key(seed, stream), step), worker)
            row = {"seed": f"{seed:016x}", "stream": stream, "step": step, "worker": worker}
            keys.append(row | {"key": _words(key), "compartment_7": _words(fold_in(key, 7))})
    return {"cases": cases, "keys": keys}


def long_case(family: str, long: Long) -> dict[str, Any]:
    """One long direction by its checksum, and those of its blocks, which tell where it first differs."""
    draw = draw_at(whole(131_075, d=long.d), family, "unit", *ADDRESSES[5])
    phi = direction(draw, 0, long.i).astype("<f4")
    blocks = "".join(f"{crc32(phi[j : j + BLOCK].tobytes()):08x}" for j in range(0, phi.size, BLOCK))
    digest = hashlib.sha256(phi.tobytes()).hexdigest()
    return _address(draw) | {"direction": long.i, "why": long.why, "sha256": digest, "crc32_of_4096": blocks}


def direction_cases() -> dict[str, Any]:
    """Whole small bases, then single long directions by checksum, then the parts of an srht basis."""
    cases, long = [], []
    for number, family in enumerate(FAMILIES_OF_CASES):
        for p, plan in enumerate(PLANS):
            draw = draw_at(plan, family, "unit", *ADDRESSES[(p + number) % len(ADDRESSES)])
            cases.append(_address(draw) | {"phi": hexadecimal(directions(draw))})
        long += [long_case(family, each) for each in (*LONG, *filter(None, [RARE.get(family)]))]
    long.append(long_case("normal", THRESHOLD))
    chosen = [{"size": n, "d": d, "rows": rows(root_key(n), n, d).tolist()} for n, d in ((1, 1), (5, 5), (100, 7))]
    return {"cases": cases, "long": long, "srht_rows_of_key_0_size": chosen}


def operation_case(draw: Draw, g: Float32Array, given: Float32Array) -> dict[str, Any]:
    """A gradient to its coefficients, and given coefficients to their update."""
    case = {"g": hexadecimal(g), "a": hexadecimal(exact_project(draw, g))}
    case |= {"reference_a": hexadecimal(project(draw, g))}
    case |= {"given_a": hexadecimal(given), "u": hexadecimal(reconstruct(draw, given))}
    return _address(draw) | case


def edge_case(why: str, family: str, plan: Plan, scale: float, given: Any) -> dict[str, Any]:
    """An operation with something to show; the gradient is pseudo-random numbers times `scale`."""
    g = pseudo_random(1, plan.D) * np.float32(scale)
    draw = draw_at(plan, family, "unit", *ADDRESSES[4])
    return operation_case(draw, g, np.array(given, dtype=np.float32)) | {"why": why}


def edge_cases() -> Iterator[dict[str, Any]]:
    """More than one tile, coefficients around 2^-64, and updates where -0 would show."""
    tiles = explicit(4130, [(0, 4100, 3), (4100, 4130, 2)])
    for family in FAMILIES:
        yield edge_case("two tiles of 4,096 and 4 elements", family, tiles, 1, pseudo_random(2, tiles.d))
    for family in ("normal", "rademacher", "srht"):
        why = "some coefficients of g are below 2^-64, and given ones at, just below and far below it"
        yield edge_case(why, family, whole(70, d=6), 2.0**-60, SMALL)
    zero = "-0 would show: {}, and every sum starts from +0"
    yield edge_case(zero.format("a negative coefficient times a zero entry"), "sparse:7", whole(20, d=1), 1, [-1.5])
    yield edge_case(zero.format("a coefficient of zero times -1"), "rademacher", whole(70, d=2), 1, [0.0, -0.0])
    yield edge_case(zero.format("equal coefficients cancel under a sign of -1"), "srht", whole(8, d=2), 1, [1.0, 1.0])


def operation_cases() -> dict[str, Any]:
    """One plan in every family and normalisation, then the edges."""
    plan, cases = PLANS[-1], []
    for family in FAMILIES_OF_CASES:
        for normalize in NORMALIZATIONS:
            draw = draw_at(plan, family, normalize, *ADDRESSES[4])
            cases.append(operation_case(draw, pseudo_random(1, plan.D), pseudo_random(2, plan.d)))
    return {"cases": [*cases, *edge_cases()]}


class Numbers(NamedTuple):
    """Some numbers of a stream in a row, and what they show."""

    seed: int
    stream: int
    offset: int
    length: int
    why: str


NUMBERS = (
    Numbers(0, 0, 0, 130, "the origin, to the third block of signs"),
    Numbers(7, 1, 0, 9, "another seed and another stream"),
    Numbers(1, 7, 0, 9, "seed and stream exchanged, whose sum is the same"),
    Numbers(2**64 - 1, 2**32 - 1, 0, 9, "the last seed and the last stream"),
    Numbers(7, 0, 61, 70, "an odd offset, which begins within a block"),
    Numbers(7, 0, 2**32, 70, "beyond 2^32: direction 1 from its beginning"),
    Numbers(7, 0, 2**33 + 3, 70, "beyond 2^33: direction 2 from within a block"),
    Numbers(7, 0, 2**32 - 67, 134, "across 2^32: the end of direction 0 and the beginning of direction 1"),
    Numbers(7, 0, 2**64 - 67, 67, "the end of a stream"),
)


def number_case(law: str, case: Numbers) -> dict[str, Any]:
    """Numbers of one law."""
    row = {"law": law, "seed": f"{case.seed:016x}", "stream": case.stream, "offset": f"{case.offset:016x}"}
    found = numbers(law, case.seed, case.stream, case.offset, case.length)
    return row | {"why": case.why, "numbers": hexadecimal(found)}


def stream_case(case: Numbers) -> dict[str, Any]:
    """The seed of the basis that a stream is, and the key of its numbers."""
    row = {"seed": f"{case.seed:016x}", "stream": case.stream}
    found = {"basis_seed": f"{stream_seed(case.seed, case.stream):016x}"}
    return row | found | {"key": _words(number_key(case.seed, case.stream))}


def random_cases() -> dict[str, Any]:
    """Portable random numbers of every law, then the keys of their streams."""
    cases = [number_case(law, case) for law in LAWS for case in NUMBERS]
    return {"cases": cases, "streams": [stream_case(case) for case in NUMBERS[:5]]}


def make() -> dict[str, dict[str, Any]]:
    """All files, without their `_info`."""
    return dict(zip(FILES, (word_cases(), direction_cases(), operation_cases(), random_cases()), strict=True))


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
