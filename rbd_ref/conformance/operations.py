"""L2: operations. `reconstruct` to the bit, `project` within tolerance and always the same, memory of O(D + d).

May import: numpy, operations, the suite. Tests: tests/test_broken_backends.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from rbd_ref.backend import Backend
from rbd_ref.compartments import explicit, whole
from rbd_ref.conformance.cases import ADDRESSES, draw_at, draws, pseudo_random
from rbd_ref.conformance.directions import describe
from rbd_ref.conformance.golden import draw_of, floats, read
from rbd_ref.conformance.memory import peak_growth
from rbd_ref.conformance.suite import Mismatch, check, check_families, expect, same_bits
from rbd_ref.distributions import F32, Vector
from rbd_ref.operations import Draw, directions_dense, divisors_dense, project_dense, reconstruct_dense

TOLERANCE = 2.0**-21
MEMORY_D, MEMORY_FEW, MEMORY_MANY = 2**16, 16, 528
MEMORY_ALLOWED = 32  # MiB


def bound(draw: Draw, g: Vector) -> np.ndarray:
    """The tolerance of each coefficient: 2^-21 |phi_i| |g| / N_i."""
    phi = directions_dense(draw).astype(np.float64)
    lengths = np.linalg.norm(phi, axis=1) * np.linalg.norm(g.astype(np.float64))
    return np.asarray(TOLERANCE * lengths / divisors_dense(draw, phi))


def near(what: str, got: Vector, expected: Vector, allowed: np.ndarray) -> None:
    """Demand float32 coefficients that differ from the expected ones by no more than allowed."""
    expect(
        got.dtype == F32 and got.shape == expected.shape,
        f"{what} is {got.dtype} {got.shape}, expected {expected.shape}",
    )
    error = np.abs(got.astype(np.float64) - expected) / allowed
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    if not error[worst] <= 1:
        raise Mismatch(
            f"{what}: coefficient {worst} is {got[worst]}, expected {expected[worst]} within {allowed[worst]:.3g}, "
            f"{error[worst]:.3g} times the tolerance"
        )


def normalizations(backend: Backend) -> tuple[str, ...]:
    """Those that the backend declares."""
    return backend.capabilities.normalizations


@check_families("L2", "reconstruct and project equal the golden vectors")
def golden(backend: Backend, family: str) -> None:
    """Each row of operations.json."""
    for row in read("operations")["cases"]:
        draw = draw_of(row)
        if draw.family.name == family and draw.normalize in normalizations(backend):
            what, g = f"{describe(draw)}, {draw.normalize}", floats(row["g"])
            same_bits(f"reconstruct of {what}", backend.reconstruct(draw, floats(row["given_a"])), floats(row["u"]))
            near(f"project of {what}", backend.project(draw, g), floats(row["a"]), bound(draw, g))


@check_families("L2", "reconstruct equals the definition at all edges")
def reconstruct(backend: Backend, family: str) -> None:
    """Coefficients of very unlike sizes, so that any other order or rounding shows."""
    for number, draw in enumerate(draws(family)):
        a = pseudo_random(number, draw.plan.d) * F32(10) ** pseudo_random(100 + number, draw.plan.d)
        same_bits(f"reconstruct of {describe(draw)}", backend.reconstruct(draw, a), reconstruct_dense(draw, a))
    draw = draw_at(explicit(4500, [(0, 4133, 40), (4133, 4500, 30)]), family, "unit", *ADDRESSES[5])
    a = pseudo_random(3, 70)
    same_bits(f"reconstruct of {describe(draw)}", backend.reconstruct(draw, a), reconstruct_dense(draw, a))


@check_families("L2", "project equals the definition within tolerance in every normalisation")
def project(backend: Backend, family: str) -> None:
    """Gradients of every plan and normalisation."""
    for normalize in normalizations(backend):
        for number, draw in enumerate(draws(family, normalize)):
            g = pseudo_random(number, draw.plan.D)
            what = f"project of {describe(draw)}, {normalize}"
            near(what, backend.project(draw, g), project_dense(draw, g), bound(draw, g))


@check_families("L2", "descend has the bits of project and then reconstruct")
def descend(backend: Backend, family: str) -> None:
    """Small plans, and one with compartments of several tiles."""
    large = draw_at(explicit(30_007, [(0, 3, 2), (3, 20_006, 3), (20_006, 30_007, 2)]), family, "unit", *ADDRESSES[4])
    for number, draw in enumerate([*draws(family), large]):
        g = pseudo_random(number, draw.plan.D)
        a, u = backend.descend(draw, g)
        same_bits(f"coefficients by descend of {describe(draw)}", a, backend.project(draw, g))
        same_bits(f"update by descend of {describe(draw)}", u, backend.reconstruct(draw, a))


@check_families("L2", "the same bits every time and with any number of threads")
def deterministic(backend: Backend, family: str) -> None:
    """One to four threads, twice each, over compartments of many tiles."""
    draw = draw_at(explicit(60_000, [(0, 50_001, 5), (50_001, 60_000, 3)]), family, "unit", *ADDRESSES[4])
    g = pseudo_random(1, draw.plan.D)
    before = backend.set_threads(2**16)
    try:
        a, u = backend.descend(draw, g)
        for threads in (1, 2, 3, 4, 1):
            used = backend.set_threads(threads)
            same_bits(f"project of {describe(draw)} with {used} threads", backend.project(draw, g), a)
            same_bits(f"reconstruct of {describe(draw)} with {used} threads", backend.reconstruct(draw, a), u)
            same_bits(f"descend of {describe(draw)} with {used} threads", backend.descend(draw, g)[0], a)
    finally:
        backend.set_threads(before)


@check_families("L2", "project and reconstruct are adjoint")
def adjoint(backend: Backend, family: str) -> None:
    """<project(g), a> = <g, reconstruct(a)> without normalisation."""
    if "none" not in normalizations(backend):
        return
    for number, draw in enumerate(draws(family, "none")):
        g, a = pseudo_random(number, draw.plan.D), pseudo_random(50 + number, draw.plan.d)
        left = float(backend.project(draw, g).astype(np.float64) @ a)
        right = float(backend.reconstruct(draw, a).astype(np.float64) @ g)
        scale = float(np.abs(a) @ np.abs(directions_dense(draw)) @ np.abs(g)) * TOLERANCE
        expect(
            abs(left - right) <= scale, f"{describe(draw)}: <project(g), a> = {left} but <g, reconstruct(a)> = {right}"
        )


@check_families("L2", "coefficients below 2^-64 count as zero")
def flushed(backend: Backend, family: str) -> None:
    """In `project`, `reconstruct` and `descend` alike; the least that counts is kept."""
    draw = draw_at(whole(70, d=3), family, "none", *ADDRESSES[1])
    if "none" not in normalizations(backend):
        return
    a = np.array([2.0**-64, -(2.0**-64) * 0.99, 1e-38], dtype=F32)
    same_bits(f"reconstruct of {a} by {describe(draw)}", backend.reconstruct(draw, a), reconstruct_dense(draw, a))
    g, zeros = np.full(70, 1e-30, dtype=F32), np.zeros(3, dtype=F32)
    same_bits("project of a gradient of 1e-30", backend.project(draw, g), zeros)
    same_bits("descend of a gradient of 1e-30", backend.descend(draw, g)[0], zeros)
    same_bits("the update of a gradient of 1e-30", backend.descend(draw, g)[1], np.zeros(70, dtype=F32))


@check_families("L2", "arguments stay as they are and results belong to the caller")
def untouched(backend: Backend, family: str) -> None:
    """A second call with other arguments changes neither the arguments nor the results of the first."""
    draw = draw_at(whole(300, d=4), family, "unit", *ADDRESSES[0])
    g, a = pseudo_random(1, 300), pseudo_random(2, 4)
    g_before, a_before = g.copy(), a.copy()
    first = [backend.project(draw, g), backend.reconstruct(draw, a), *backend.descend(draw, g)]
    kept = [np.array(result) for result in first]
    backend.project(draw, -g), backend.reconstruct(draw, -a), backend.descend(draw, -g)
    same_bits("the gradient after the call", g, g_before)
    same_bits("the coefficients after the call", a, a_before)
    for result, copy in zip(first, kept, strict=True):
        same_bits("a result after a further call", result, copy)


@check("L2", "memory does not grow with D d")
def memory(backend: Backend) -> None:
    """At D = 65,536 the peak with 512 directions more grows by less than 32 MiB; a stored basis takes 128 MiB."""
    declared = backend.capabilities.families
    family = "rademacher" if "rademacher" in declared else declared[0]
    few, many = (draw_at(whole(MEMORY_D, d=d), family, "unit", *ADDRESSES[4]) for d in (MEMORY_FEW, MEMORY_MANY))
    g = pseudo_random(1, MEMORY_D)
    calls: dict[str, Callable[[Draw], object]] = {
        "project": lambda draw: backend.project(draw, g),
        "reconstruct": lambda draw: backend.reconstruct(draw, pseudo_random(2, draw.plan.d)),
        "descend": lambda draw: backend.descend(draw, g),
    }
    for name, call in calls.items():
        growth = peak_growth(partial(call, few), partial(call, many)) / 2**20
        message = f"{name} of {family} takes {growth:.0f} MiB more for {MEMORY_MANY - MEMORY_FEW} directions more"
        expect(growth < MEMORY_ALLOWED, f"{message}, expected less than {MEMORY_ALLOWED}: do not store the basis")
