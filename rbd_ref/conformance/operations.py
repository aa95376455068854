"""L2: operations. `reconstruct` to the bit, `project` within tolerance and always the same, memory of O(D + d).

Tests: tests/test_broken_backends.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rbd_ref._types import F32, Float32Array
from rbd_ref.backend import Backend
from rbd_ref.conformance.cases import ADDRESSES, FAR, LONG, MANY, draw_at, draws, pseudo_random, usual
from rbd_ref.conformance.directions import describe
from rbd_ref.conformance.golden import draw_of, floats, read
from rbd_ref.conformance.memory import peak_growth
from rbd_ref.conformance.suite import check, check_families, expect, same_bits
from rbd_ref.spec import operations as definition
from rbd_ref.spec.compartments import Plan, explicit, whole
from rbd_ref.spec.operations import Draw, directions, exact_divisors

OF_LENGTHS, OF_VALUE = 2.0**-21, 2.0**-18
MEMORY_D, MEMORY_FEW, MEMORY_MANY = 2**16, 16, 272
MEMORY_ALLOWED = 16  # MiB


def bound(draw: Draw, phi: NDArray[np.float64], g: Float32Array) -> NDArray[np.float64]:
    """The tolerance of each coefficient: (2^-21 |phi_i| |g| + 2^-18 |<phi_i, g>|) / N_i."""
    lengths = np.linalg.norm(phi, axis=1) * np.linalg.norm(g.astype(np.float64))
    return np.asarray((OF_LENGTHS * lengths + OF_VALUE * np.abs(phi @ g)) / exact_divisors(draw, phi))


def near(backend: Backend, draw: Draw, phi: NDArray[np.float64], g: Float32Array, expected: NDArray[Any]) -> None:
    """Demand a `project` that gives float32 coefficients within the tolerance of the expected ones."""
    got, what = backend.project(draw, g), f"project of {describe(draw)}, {draw.normalize}"
    expect(got.dtype == F32, f"{what} has dtype {got.dtype}, expected float32")
    expect(got.shape == expected.shape, f"{what} has shape {got.shape}, expected {expected.shape}")
    allowed = bound(draw, phi, g)
    may_be_zero = (got == 0) & (np.abs(expected) - allowed < definition.LEAST_COEFFICIENT)
    error = np.where(may_be_zero, 0, np.abs(got.astype(np.float64) - expected)) / allowed
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    expect(
        bool(error[worst] <= 1),
        f"{what}: coefficient {worst} is {got[worst]}, expected {expected[worst]} within {allowed[worst]:.3g}",
    )


def rebuilt(backend: Backend, draw: Draw, a: Float32Array) -> None:
    """Demand a `reconstruct` with the bits of the definition."""
    same_bits(f"reconstruct of {describe(draw)}", backend.reconstruct(draw, a), definition.reconstruct(draw, a))


def plans(backend: Backend, family: str, *further: Plan) -> Iterator[Draw]:
    """Small plans at all edges, then further ones, in the usual normalisation."""
    yield from draws(family, usual(backend))
    for plan in further:
        yield draw_at(plan, family, usual(backend), *ADDRESSES[5])


@check_families("L2", "reconstruct and project equal the golden vectors")
def golden(backend: Backend, family: str) -> None:
    """Each row of operations.json."""
    for row in read("operations")["cases"]:
        draw = draw_of(row)
        if draw.family.name == family and draw.normalize in backend.capabilities.normalizations:
            got, why = backend.reconstruct(draw, floats(row["given_a"])), row.get("why", "every normalisation")
            same_bits(f"reconstruct of {describe(draw)} ({why})", got, floats(row["u"]))
            near(backend, draw, directions(draw).astype(np.float64), floats(row["g"]), floats(row["a"]))


@check_families("L2", "reconstruct equals the definition at all edges")
def reconstruct(backend: Backend, family: str) -> None:
    """Coefficients of very unlike sizes, so that any other order or rounding shows; many tiles, many directions."""
    tiles = explicit(4500, [(0, 4133, 40), (4133, 4500, 30)])
    for number, draw in enumerate(plans(backend, family, tiles, LONG, FAR, *MANY)):
        rebuilt(backend, draw, pseudo_random(number, draw.plan.d) * F32(10) ** pseudo_random(99 + number, draw.plan.d))


@check_families("L2", "project equals the definition within tolerance in every normalisation")
def project(backend: Backend, family: str) -> None:
    """Gradients of every plan and normalisation; of a long plan also some that lie along a direction."""
    for number, draw in enumerate(plans(backend, family, *MANY, FAR, LONG)):
        dense = directions(draw)
        along = [dense[0].copy(), np.sign(dense[0])] if draw.plan == LONG else []
        gradients, phi = [pseudo_random(number, draw.plan.D), *along], dense.astype(np.float64)
        for normalize in backend.capabilities.normalizations:
            for g in gradients:
                named = replace(draw, normalize=normalize)
                near(backend, named, phi, g, phi @ g / exact_divisors(named, phi))


@check_families("L2", "descend has the bits of project and then reconstruct")
def descend(backend: Backend, family: str) -> None:
    """Small plans, and some with compartments of several tiles."""
    large = explicit(30_007, [(0, 3, 2), (3, 20_006, 3), (20_006, 30_007, 2)])
    for number, draw in enumerate(plans(backend, family, large, *MANY, LONG)):
        g = pseudo_random(number, draw.plan.D)
        a, u = backend.descend(draw, g)
        same_bits(f"coefficients by descend of {describe(draw)}", a, backend.project(draw, g))
        same_bits(f"update by descend of {describe(draw)}", u, backend.reconstruct(draw, a))


@check_families("L2", "the same bits every time and with any number of threads")
def deterministic(backend: Backend, family: str) -> None:
    """One to four threads, the first of them twice, over compartments of many tiles."""
    plan = explicit(60_000, [(0, 50_001, 5), (50_001, 60_000, 3)])
    draw, g = draw_at(plan, family, usual(backend), *ADDRESSES[4]), pseudo_random(1, plan.D)
    before = backend.set_threads(0)
    expect(isinstance(before, int) and before >= 1, f"set_threads(0) is {before!r}, expected the number in use")
    try:
        a, u = backend.descend(draw, g)
        for threads in (1, 2, 3, 4, 1):
            what = f"of {describe(draw)} with {backend.set_threads(threads)} threads"
            same_bits(f"project {what}", backend.project(draw, g), a)
            same_bits(f"reconstruct {what}", backend.reconstruct(draw, a), u)
            for result, first in zip(backend.descend(draw, g), (a, u), strict=True):
                same_bits(f"descend {what}", result, first)
    finally:
        backend.set_threads(before)


@check_families("L2", "project and reconstruct are adjoint")
def adjoint(backend: Backend, family: str) -> None:
    """<N project(g), a> = <g, reconstruct(a)>."""
    for number, draw in enumerate(plans(backend, family)):
        g, a = pseudo_random(number, draw.plan.D), pseudo_random(50 + number, draw.plan.d)
        phi = directions(draw).astype(np.float64)
        divisors = exact_divisors(draw, phi)
        left = float((backend.project(draw, g) * divisors) @ a)
        right = float(backend.reconstruct(draw, a).astype(np.float64) @ g)
        allowed = np.abs(a) @ (bound(draw, phi, g) * divisors) + OF_LENGTHS * (np.abs(a) @ np.abs(phi) @ np.abs(g))
        message = f"{describe(draw)}: <N project(g), a> = {left} but <g, reconstruct(a)> = {right}"
        expect(abs(left - right) <= float(allowed), message)


@check_families("L2", "coefficients below 2^-64 count as zero")
def flushed(backend: Backend, family: str) -> None:
    """In `project`, `reconstruct` and `descend` alike; 2^-64 itself is kept, and it is the quotient that counts."""
    draw = draw_at(whole(70, d=3), family, usual(backend), *ADDRESSES[1])
    rebuilt(backend, draw, np.array([2.0**-64, -(2.0**-64) * 0.99, 1e-38], dtype=F32))
    phi = directions(draw)
    least = F32(2.0**-65 * exact_divisors(draw, phi.astype(np.float64))[0] / np.sum(phi[0] * phi[0]))
    for g in (np.full(70, 1e-30, dtype=F32), phi[0] * least):
        a, u = backend.descend(draw, g)
        for found in (a, backend.project(draw, g)):
            same_bits("coefficients below 2^-64", found, np.zeros(3, dtype=F32))
        same_bits("the update of tiny coefficients", u, definition.reconstruct(draw, a))


@check_families("L2", "arguments stay as they are and results belong to the caller")
def untouched(backend: Backend, family: str) -> None:
    """A second call with other arguments changes neither the arguments nor the results of the first."""
    draw = draw_at(whole(300, d=4), family, usual(backend), *ADDRESSES[0])
    g, a = pseudo_random(1, 300), pseudo_random(2, 4)
    a[2] = 1e-30
    g_before, a_before = g.copy(), a.copy()
    first = [backend.project(draw, g), backend.reconstruct(draw, a), *backend.descend(draw, g)]
    kept = [np.array(result) for result in first]
    backend.project(draw, -g), backend.reconstruct(draw, -a), backend.descend(draw, -g)
    same_bits("the gradient after the call", g, g_before)
    same_bits("the coefficients after the call", a, a_before)
    for result, copy in zip(first, kept, strict=True):
        same_bits("a result after a further call", result, copy)
        expect(result.flags.writeable, "a result cannot be written to, expected an array that the caller may change")


@check("L2", "memory does not grow with D d")
def memory(backend: Backend) -> None:
    """At D = 65,536 the peak with 256 directions more grows by less than 16 MiB; a stored basis takes 64 MiB."""
    g = pseudo_random(1, MEMORY_D)
    calls: dict[str, Callable[[Draw], object]] = {
        "project": lambda draw: backend.project(draw, g),
        "reconstruct": lambda draw: backend.reconstruct(draw, pseudo_random(2, draw.plan.d)),
        "descend": lambda draw: backend.descend(draw, g),
    }
    declared = backend.capabilities.families
    for family in [name for name in ("rademacher", "normal", "srht") if name in declared] or declared:
        few, many = (draw_at(whole(MEMORY_D, d=d), family, usual(backend), 7, 3, 5) for d in (MEMORY_FEW, MEMORY_MANY))
        for name, call in calls.items():
            growth = peak_growth(partial(call, few), partial(call, many)) / 2**20
            message = f"{name} of {family} takes {growth:.0f} MiB more for {MEMORY_MANY - MEMORY_FEW} directions more"
            expect(growth < MEMORY_ALLOWED, f"{message}, expected less than {MEMORY_ALLOWED}: do not store the basis")
