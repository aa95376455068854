"""L1: portable random numbers, which are directions of a basis of their own (docs/specification.md, section 15).

A backend needs nothing for them but `directions`. Where it has a method `numbers`, that is what is checked, at any
offset; where it has none, numbers are cut from a direction, as far as that is not too long.

Tests: tests/test_broken_backends.py.
"""

from __future__ import annotations

from rbd_ref._types import TWO_32, Float32Array
from rbd_ref.backend import Backend
from rbd_ref.conformance.cases import draw_at, usual
from rbd_ref.conformance.golden import floats, read
from rbd_ref.conformance.suite import check_laws, same_bits
from rbd_ref.spec import random as definition
from rbd_ref.spec.compartments import whole
from rbd_ref.spec.random import LAWS, from_zero_to_one, stream_seed

LONGEST = 2**17  # elements of a direction that is made to cut some numbers from it
LENGTHS = (0, 1, 2, 63, 64, 65, 4097)
OFFSETS = (0, 1, 63, 64, 4095, 131_071, 2**32 - 4097, 2**32 - 1, 2**32, 2**40 + 31, 2**63, 2**64 - 4097)


def from_directions(backend: Backend, law: str, seed: int, stream: int, offset: int, count: int) -> Float32Array:
    """Numbers cut from the direction that they are in."""
    i, element = divmod(offset, TWO_32)
    plan = whole(max(element + count, i + 1), d=i + 1)
    draw = draw_at(plan, LAWS[law].family, usual(backend), stream_seed(seed, stream), 0, 0)
    phi = backend.directions(draw, [i])[0, element : element + count]
    return from_zero_to_one(phi) if law == "uniform" else phi


def reached(offset: int, count: int) -> bool:
    """Whether numbers are near enough to the beginning of one of the first directions."""
    return offset % TWO_32 + count <= LONGEST and offset < 4 * TWO_32


@check_laws("L1", "portable random numbers equal the golden vectors, as directions of a basis")
def golden(backend: Backend, law: str) -> None:
    """Each row of random.json that is not far into its direction."""
    for row in read("random")["cases"]:
        expected = floats(row["numbers"])
        offset = int(row["offset"], 16)
        if row["law"] == law and reached(offset, expected.size):
            got = from_directions(backend, law, int(row["seed"], 16), row["stream"], offset, expected.size)
            same_bits(f"{law} numbers of stream {row['stream']} ({row['why']})", got, expected)


@check_laws("L1", "portable random numbers equal the golden vectors, by the method `numbers`")
def golden_by_method(backend: Backend, law: str) -> None:
    """Each row of random.json, if the backend has the method."""
    if not hasattr(backend, "numbers"):
        return
    for row in read("random")["cases"]:
        if row["law"] == law:
            expected = floats(row["numbers"])
            got = backend.numbers(law, int(row["seed"], 16), row["stream"], int(row["offset"], 16), expected.size)
            same_bits(f"{law} numbers of stream {row['stream']} ({row['why']})", got, expected)


@check_laws("L1", "portable random numbers begin at any offset")
def offsets(backend: Backend, law: str) -> None:
    """Few and many numbers from offsets around the ends of blocks and directions, if the backend has `numbers`."""
    if not hasattr(backend, "numbers"):
        return
    for stream, offset in enumerate(OFFSETS):
        for count in LENGTHS:
            expected = definition.numbers(law, 7, stream, offset, count)
            same_bits(f"{count} {law} numbers from {offset}", backend.numbers(law, 7, stream, offset, count), expected)
