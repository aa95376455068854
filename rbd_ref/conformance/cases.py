"""The bases that the suite and the golden vectors are made of: small, but with every edge in them.

Tests: through the suite.
"""

from __future__ import annotations

from collections.abc import Iterator

from rbd_ref._types import Float32Array
from rbd_ref.backend import Backend
from rbd_ref.spec.compartments import Plan, even, explicit, whole
from rbd_ref.spec.families import Family, direction_entries, parse_family
from rbd_ref.spec.operations import Draw
from rbd_ref.spec.prng import fold_in, root_key

LAST = 2**32 - 1

# (seed, step, worker): the origin, one neighbour in each, sums that collide if seeds are added up, and the ends.
ADDRESSES = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (7, 3, 5), (7, 5, 3), (2**64 - 1, LAST, LAST), (2**32, 1, 0))

PLANS = (
    whole(1, d=1),
    whole(2, d=2),
    whole(65, d=3),
    whole(300, d=5),
    even(101, k=4, d=3),
    even(7, k=7, d=1),
    explicit(263, [(0, 1, 1), (1, 129, 4), (129, 130, 1), (130, 263, 2)]),
)
MANY = (even(600, k=300, d=1), whole(600, d=300))  # more compartments, and more directions, than a byte can number
LONG = whole(131_075, d=3)
FAR = explicit(65_700, [(0, 65_600, 1), (65_600, 65_700, 2)])  # a compartment that starts beyond 2^16


def pseudo_random(label: int, n: int) -> Float32Array:
    """n numbers in (-1, 1) that are the same everywhere, for gradients and coefficients."""
    return direction_entries(Family("uniform"), fold_in(root_key(label), n), 0, n)


def draws(family: str, normalize: str = "unit") -> Iterator[Draw]:
    """Every plan at a few addresses each, every address at some plan."""
    for p, plan in enumerate(PLANS):
        for seed, step, worker in (*ADDRESSES[p::3], ADDRESSES[4]):
            yield draw_at(plan, family, normalize, seed, step, worker)


def usual(backend: Backend) -> str:
    """The normalisation of checks that do not ask for one: `unit`, or the first that the backend declares."""
    declared = backend.capabilities.normalizations
    return "unit" if "unit" in declared else declared[0]


def draw_at(plan: Plan, family: str, normalize: str, seed: int, step: int, worker: int) -> Draw:
    """A `Draw` from the names that users write."""
    return Draw(plan, parse_family(family), normalize, seed, step, worker)
