"""`Basis`: random directions that are never stored, and the two operations on them.

    u = sum_i a_i phi_i,   a_i = <phi_i, g> / N_i

With the default `unit`, N_i = |phi_i|^2: a_i is the coordinate c_i = <phi_i / |phi_i|, g> of the paper divided by
|phi_i| once more, so that whoever receives a rebuilds the update from raw directions without their norms.
Tests: tests/test_basis.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from rbd_ref import backend as backends
from rbd_ref._check import integer, member, vector
from rbd_ref._types import TWO_32, TWO_64, Float32Array
from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.families import parse_family
from rbd_ref.spec.operations import NORMALIZATIONS, Draw, part


def _projected(g: Float32Array, a: Float32Array) -> Float32Array:
    """The coefficients of g, which are not finite where an inner product overflowed."""
    bad = np.flatnonzero(~np.isfinite(a))
    if bad.size:
        raise ValueError(
            f"g is too large: {bad.size} of {a.size} coefficients overflow float32, expected finite ones, and the "
            f"largest |g| is {np.abs(g).max():.3g}: lower the learning rate, or scale the loss down"
        )
    return a


class Basis:
    """The bases of a seed: one for each step and worker, each with plan.d directions in plan.D dimensions.

    >>> import numpy as np, rbd_ref as rbd
    >>> basis = rbd.Basis(rbd.compartments.whole(1000, d=10), seed=0)
    >>> a = basis.project(np.ones(1000, dtype=np.float32), step=3)
    >>> basis.reconstruct(a, step=3).shape
    (1000,)
    """

    def __init__(
        self,
        plan: Plan,
        seed: int = 0,
        family: str = "normal",
        normalize: str = "unit",
        backend: str | backends.Backend = "numba",
    ) -> None:
        if not isinstance(plan, Plan):
            raise TypeError(f"plan is {type(plan).__name__}, expected a Plan: make one with rbd_ref.compartments")
        self.plan = plan
        self.seed = integer("seed", seed, 0, TWO_64)
        self.family = parse_family(family)
        self.normalize = member("normalize", normalize, NORMALIZATIONS)
        self.backend = backends.load(backend) if isinstance(backend, str) else backend
        self._check_capabilities()

    def _check_capabilities(self) -> None:
        """Refuse what the backend says it cannot do, before it is asked to."""
        can = self.backend.capabilities
        for kind, wanted, offered in (
            ("family", self.family.name, can.families),
            ("normalize", self.normalize, can.normalizations),
        ):
            if wanted not in offered:
                raise ValueError(
                    f"backend {self.backend.name} has no {kind} {wanted!r}, expected one of {', '.join(offered)}: "
                    "choose another, or the backend numba"
                )

    def draw(self, step: int, worker: int = 0) -> Draw:
        """The basis of one step and worker, as backends take it."""
        step, worker = integer("step", step, 0, TWO_32), integer("worker", worker, 0, TWO_32)
        return Draw(self.plan, self.family, self.normalize, self.seed, step, worker)

    def project(self, g: ArrayLike, step: int, worker: int = 0) -> Float32Array:
        """a_i = <phi_i, g> / N_i: the coefficients of the gradient g, float32 of length plan.d."""
        gradient = vector("g", g, self.plan.D)
        return _projected(gradient, self.backend.project(self.draw(step, worker), gradient))

    def project_part(self, g: ArrayLike, step: int, worker: int, directions: slice) -> Float32Array:
        """The coefficients of some directions of `project`, to the bit.

        A backend may have a `project_part` that does only their work; otherwise they are cut from the whole.
        """
        draw, gradient = self.draw(step, worker), vector("g", g, self.plan.D)
        own: Callable[..., Float32Array] | None = getattr(self.backend, "project_part", None)
        a = own(draw, gradient, directions) if own else self.backend.project(draw, gradient)[directions]
        return _projected(gradient, a)

    def reconstruct(self, a: ArrayLike, step: int, worker: int = 0) -> Float32Array:
        """u = sum_i a_i phi_i: the update of the coefficients a, float32 of length plan.D, the same bits everywhere."""
        return self.backend.reconstruct(self.draw(step, worker), vector("a", a, self.plan.d))

    def reconstruct_part(self, a: ArrayLike, step: int, worker: int, k: int, n: int) -> tuple[int, Float32Array]:
        """Part k of n of `reconstruct`, to the bit: its first element and its values; the parts make up the whole.

        A backend may have a `reconstruct_part` that does only that part's work; otherwise it is cut from the whole.
        """
        draw, coefficients = self.draw(step, worker), vector("a", a, self.plan.d)
        here = part(draw, k, n)
        own: Callable[..., tuple[int, Float32Array]] | None = getattr(self.backend, "reconstruct_part", None)
        if own is None:
            return here.start, self.backend.reconstruct(draw, coefficients)[here]
        first, u = own(draw, coefficients, k, n)
        if (first, first + u.size) != (here.start, here.stop):
            raise ValueError(
                f"part {k} of {n} of backend {self.backend.name} is {first} .. {first + u.size}, expected "
                f"{here.start} .. {here.stop}: cut it where rbd_ref.spec.operations.part does, as all backends do"
            )
        return first, u

    def descend(self, g: ArrayLike, step: int, worker: int = 0) -> tuple[Float32Array, Float32Array]:
        """(a, u) with a = project(g) and u = reconstruct(a), where each direction is generated only once."""
        gradient = vector("g", g, self.plan.D)
        a, u = self.backend.descend(self.draw(step, worker), gradient)
        return _projected(gradient, a), u

    def directions(self, indices: Sequence[int], step: int, worker: int = 0) -> Float32Array:
        """Rows phi_i as `reconstruct` uses them, (len(indices), D), zero outside their compartment; meant for a few."""
        numbers = [integer("a direction's index", index, 0, self.plan.d) for index in indices]
        return self.backend.directions(self.draw(step, worker), numbers)

    def __repr__(self) -> str:
        return (
            f"Basis({self.plan}, seed={self.seed}, family={str(self.family)!r}, "
            f"normalize={self.normalize!r}, backend={self.backend.name!r})"
        )
