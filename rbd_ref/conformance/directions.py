"""L1: directions. Every family's entries to the bit, for any seed, step, worker, compartment and direction.

Tests: tests/test_broken_backends.py.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np

from rbd_ref._types import Float32Array
from rbd_ref.backend import Backend
from rbd_ref.conformance.cases import ADDRESSES, FAR, MANY, draw_at, draws, usual
from rbd_ref.conformance.golden import draw_of, floats, read
from rbd_ref.conformance.suite import Mismatch, check_families, expect, same_bits
from rbd_ref.spec.compartments import whole
from rbd_ref.spec.operations import Draw, direction, directions


def describe(draw: Draw) -> str:
    """A draw in words, for messages."""
    return f"{draw.family} over {draw.plan}, seed {draw.seed}, step {draw.step}, worker {draw.worker}"


@check_families("L1", "directions equal the golden vectors")
def golden(backend: Backend, family: str) -> None:
    """All directions of each small basis in directions.json."""
    for row in read("directions")["cases"]:
        draw = replace(draw_of(row), normalize=usual(backend))
        if draw.family.name == family:
            expected = floats(row["phi"]).reshape(draw.plan.d, draw.plan.D)
            same_bits(f"directions of {describe(draw)}", backend.directions(draw, range(draw.plan.d)), expected)


@check_families("L1", "long directions have the golden checksums")
def long(backend: Backend, family: str) -> None:
    """One direction of each long basis in directions.json, by its SHA-256."""
    for row in read("directions")["long"]:
        draw = replace(draw_of(row), normalize=usual(backend))
        if draw.family.name == family:
            has_checksum(row, draw, backend.directions(draw, [row["direction"]]))


def has_checksum(row: dict[str, Any], draw: Draw, got: Float32Array) -> None:
    """Demand the direction of a long case; where the checksum is wrong, the definition tells what differs first."""
    what = f"direction {row['direction']} of {describe(draw)} ({row['why']})"
    if hashlib.sha256(np.ascontiguousarray(got, dtype="<f4").tobytes()).hexdigest() != row["sha256"]:
        same_bits(what, got, direction(draw, 0, row["direction"])[None])
        raise Mismatch(f"{what} is what the definition gives, but its checksum is not {row['sha256']}")


@check_families("L1", "directions equal the definition at all edges")
def edges(backend: Backend, family: str) -> None:
    """Sizes of one, odd and unlike sizes, many compartments, many directions, the ends of seed, step and worker."""
    usually = usual(backend)
    for draw in [*draws(family, usually), *(draw_at(plan, family, usually, *ADDRESSES[5]) for plan in (*MANY, FAR))]:
        got = backend.directions(draw, range(draw.plan.d))
        same_bits(f"directions of {describe(draw)}", got, directions(draw))


@check_families("L1", "any choice of directions in any order gives the same rows")
def choice(backend: Backend, family: str) -> None:
    """Few, repeated, reversed and no rows at all."""
    draw = draw_at(whole(129, d=9), family, usual(backend), *ADDRESSES[4])
    phi = directions(draw)
    kept = backend.directions(draw, [1, 2, 4])
    for indices in ([8], [3, 3], [8, 0, 5], []):
        same_bits(f"directions {indices} of {describe(draw)}", backend.directions(draw, indices), phi[indices])
    same_bits("directions after a further call", kept, phi[[1, 2, 4]])
    expect(kept.flags.writeable, "directions cannot be written to, expected an array that the caller may change")
