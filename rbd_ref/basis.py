"""`Basis`: random directions that are never stored, and the two operations on them.

    u = sum_i a_i phi_i,   a_i = <phi_i, g> / N_i

With the default `unit`, N_i = |phi_i|^2: a_i is the coordinate c_i = <phi_i / |phi_i|, g> of the paper divided by
|phi_i| once more, so that whoever receives a rebuilds the update from raw directions without their norms.
Tests: tests/test_basis.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from rbd_ref import backend as backends
from rbd_ref._check import NotFiniteError, integer, member, several, vector, within
from rbd_ref._picture import draw
from rbd_ref._types import TWO_32, TWO_64, Float32Array
from rbd_ref.spec.compartments import Plan, whole
from rbd_ref.spec.families import parse_family
from rbd_ref.spec.operations import NORMALIZATIONS, Draw, part

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 64  # directions of a picture, at most,
SHOWN_ENTRIES = 2**24  # and their entries


def _projected(g: Float32Array, a: Float32Array) -> Float32Array:
    """The coefficients of g, which are not finite where an inner product overflowed."""
    bad = np.flatnonzero(~np.isfinite(a))
    if bad.size:
        raise NotFiniteError(
            f"g is too large: {bad.size} of {a.size} coefficients overflow float32, expected finite ones, and the "
            f"largest |g| is {np.abs(g).max():.3g}: lower the learning rate, or scale the loss down"
        )
    return a


def _planned(plan: Plan | None, D: int | None, d: int | None) -> Plan:
    """The plan, or one compartment of D elements and d directions."""
    if plan is None and D is not None and d is not None:
        return whole(D, d)
    if D is not None or d is not None or plan is None:
        given = ", ".join(name for name, value in (("plan", plan), ("D", D), ("d", d)) if value is not None)
        raise TypeError(
            f"a basis has {given or 'nothing'} to go by, expected either a plan or both D and d: write Basis(plan) or "
            "Basis(D=10_000, d=250)"
        )
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is {type(plan).__name__}, expected a Plan: make one with rbd_ref.compartments")
    return plan


class Basis:
    """The bases of a seed: one for each step and worker, each with plan.d directions in plan.D dimensions.

    Nothing is stored: `project` and `reconstruct` generate the directions they need, the same bits on every machine.

    Args:
        plan: the sizes and numbers of directions of the compartments; make one with `rbd_ref.compartments`.
        seed: 0 <= seed < 2^64; bases of different seeds are unrelated.
        family: the law of the entries: `normal`, `uniform`, `rademacher`, `bernoulli-graphcore`, `sparse` or
            `sparse:S`, `srht`.
        normalize: the divisor N_i of a coefficient: `unit` (|phi_i|^2, the paper's), `expected`, `none`, `graphcore`.
        backend: a name (`rbd_ref.backend.names()`), `package.module:Class`, or an instance.
        D: in place of a plan, with d: the elements of its only compartment,
        d: and the directions of it.

    Raises:
        ValueError, TypeError: one sentence of what is wrong, what was expected and what to do.

    Examples:
        >>> import numpy as np, rbd_ref as rbd
        >>> basis = rbd.Basis(D=1000, d=10, seed=0)
        >>> a = basis.project(np.ones(1000, dtype=np.float32), step=3)
        >>> basis.reconstruct(a, step=3).shape
        (1000,)

        Another machine needs the seed and the ten coefficients, and has the same update:

        >>> elsewhere = rbd.Basis(rbd.compartments.whole(1000, d=10), seed=0, backend="numpy")
        >>> bool(np.array_equal(elsewhere.reconstruct(a, step=3), basis.reconstruct(a, step=3)))
        True
    """

    def __init__(
        self,
        plan: Plan | None = None,
        seed: int = 0,
        family: str = "normal",
        normalize: str = "unit",
        backend: str | backends.Backend = "numba",
        *,
        D: int | None = None,
        d: int | None = None,
    ) -> None:
        self.plan = _planned(plan, D, d)
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
        """The basis of one step and worker, as backends take it.

        Args:
            step: 0 <= step < 2^32.
            worker: 0 <= worker < 2^32.

        Returns:
            A `Draw`: docs/specification.md, section 13, lists its fields.

        Examples:
            >>> import rbd_ref as rbd
            >>> draw = rbd.Basis(rbd.compartments.even(10, k=2, d=1)).draw(step=3, worker=1)
            >>> (draw.step, draw.worker, draw.keys.shape)
            (3, 1, (2, 2))
        """
        step, worker = integer("step", step, 0, TWO_32), integer("worker", worker, 0, TWO_32)
        return Draw(self.plan, self.family, self.normalize, self.seed, step, worker)

    def project(self, g: ArrayLike, step: int, worker: int = 0) -> Float32Array:
        """a_i = <phi_i, g> / N_i: the coefficients of a gradient, which are all that is sent.

        Args:
            g: the gradient, plan.D finite floats; other float types are rounded to float32.
            step: the step whose basis is used.
            worker: the worker whose basis is used.

        Returns:
            float32 of length plan.d.

        Examples:
            >>> import numpy as np, rbd_ref as rbd
            >>> basis = rbd.Basis(rbd.compartments.whole(4, d=4), family="srht")
            >>> basis.project(np.array([1.0, 2.0, 3.0, 4.0]), step=0)  # orthogonal: a quarter of sums and differences
            array([-1. ,  2. , -0.5, -1.5], dtype=float32)
        """
        gradient = vector("g", g, self.plan.D)
        return _projected(gradient, self.backend.project(self.draw(step, worker), gradient))

    def project_part(self, g: ArrayLike, step: int, worker: int, directions: slice) -> Float32Array:
        """The coefficients of some directions of `project`, to the bit.

        A backend may have a `project_part` that does only their work; otherwise they are cut from the whole.

        Args:
            g: the gradient, plan.D finite floats.
            step: the step whose basis is used.
            worker: the worker whose basis is used.
            directions: which of the plan.d directions, at least one.

        Returns:
            float32, as many as there are directions in the slice.

        Examples:
            >>> import numpy as np, rbd_ref as rbd
            >>> basis, g = rbd.Basis(rbd.compartments.whole(100, d=9)), np.ones(100)
            >>> part = basis.project_part(g, 0, 0, slice(3, 6))
            >>> bool(np.array_equal(part, basis.project(g, step=0)[3:6]))
            True
        """
        draw, gradient = self.draw(step, worker), vector("g", g, self.plan.D)
        here = within("directions", directions, self.plan.d)
        own: Callable[..., Float32Array] | None = getattr(self.backend, "project_part", None)
        a = own(draw, gradient, here) if own else self.backend.project(draw, gradient)[here]
        return _projected(gradient, a)

    def reconstruct(self, a: ArrayLike, step: int, worker: int = 0) -> Float32Array:
        """u = sum_i a_i phi_i: the update of the coefficients, the same bits on every backend.

        Args:
            a: plan.d finite coefficients; those below 2^-64 in magnitude count as 0.
            step: the step whose basis is used.
            worker: the worker whose basis is used.

        Returns:
            float32 of length plan.D.

        Examples:
            >>> import numpy as np, rbd_ref as rbd
            >>> basis = rbd.Basis(rbd.compartments.whole(6, d=2), family="rademacher")
            >>> basis.reconstruct([1.0, 0.5], step=0)  # sums of +-1 and +-1/2
            array([-0.5, -0.5,  0.5, -0.5,  0.5, -1.5], dtype=float32)
        """
        return self.backend.reconstruct(self.draw(step, worker), vector("a", a, self.plan.d))

    def reconstruct_part(self, a: ArrayLike, step: int, worker: int, k: int, n: int) -> tuple[int, Float32Array]:
        """Part k of n of `reconstruct`, to the bit; the n parts make up the whole.

        All backends cut at the same places (docs/specification.md, section 7). A backend may have a `reconstruct_part`
        that does only that part's work; otherwise it is cut from the whole.

        Args:
            a: plan.d finite coefficients.
            step: the step whose basis is used.
            worker: the worker whose basis is used.
            k: which part, 0 <= k < n.
            n: how many parts.

        Returns:
            The first element of the part, and its values, float32.

        Examples:
            >>> import numpy as np, rbd_ref as rbd
            >>> basis = rbd.Basis(rbd.compartments.whole(10_000, d=1))
            >>> [(first, u.size) for first, u in (basis.reconstruct_part([1.0], 0, 0, k, 2) for k in range(2))]
            [(0, 4096), (4096, 5904)]
        """
        draw, coefficients = self.draw(step, worker), vector("a", a, self.plan.d)
        n = integer("n", n, 1, TWO_32)
        k = integer("k", k, 0, n)
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
        """a = project(g) and u = reconstruct(a), where each direction is generated only once.

        Args:
            g: the gradient, plan.D finite floats.
            step: the step whose basis is used.
            worker: the worker whose basis is used.

        Returns:
            a, float32 of length plan.d, and u, float32 of length plan.D.

        Examples:
            >>> import numpy as np, rbd_ref as rbd
            >>> basis, g = rbd.Basis(rbd.compartments.whole(100, d=9)), np.ones(100)
            >>> a, u = basis.descend(g, step=0)
            >>> bool(np.array_equal(u, basis.reconstruct(a, step=0)))
            True
        """
        gradient = vector("g", g, self.plan.D)
        a, u = self.backend.descend(self.draw(step, worker), gradient)
        return _projected(gradient, a), u

    def directions(self, indices: Sequence[int], step: int, worker: int = 0) -> Float32Array:
        """phi_i of some directions, as `reconstruct` uses them; meant for a few, as each takes plan.D floats.

        Args:
            indices: numbers of directions, 0 <= index < plan.d, in any order.
            step: the step whose basis is used.
            worker: the worker whose basis is used.

        Returns:
            float32 of shape (len(indices), plan.D), zero outside each direction's compartment, not normalised.

        Examples:
            >>> import rbd_ref as rbd
            >>> basis = rbd.Basis(rbd.compartments.even(6, k=2, d=1), family="rademacher")
            >>> basis.directions([1, 0], step=0)
            array([[ 0.,  0.,  0., -1., -1.,  1.],
                   [-1., -1.,  1.,  0.,  0.,  0.]], dtype=float32)
        """
        numbers = [integer("a direction's index", index, 0, self.plan.d) for index in several("indices", indices)]
        return self.backend.directions(self.draw(step, worker), numbers)

    def show(self, step: int = 0, worker: int = 0) -> Figure:
        """The directions of a step as a picture, and beside it their Gram matrix <phi_i, phi_j> / (|phi_i| |phi_j|).

        Of many directions or elements some are shown, evenly over all. matplotlib has to be installed: the extra
        `plot`.

        Args:
            step: the step whose basis is shown.
            worker: the worker whose basis is shown.

        Returns:
            A matplotlib figure, for `savefig` or a notebook.

        Examples:
            >>> import rbd_ref as rbd
            >>> figure = rbd.Basis(D=256, d=16).show(step=3)
            >>> [axes.get_title() for axes in figure.axes][:2]
            ['normal, step 3, worker 0', 'cosines of directions']
        """
        count = min(self.plan.d, SHOWN, max(2, SHOWN_ENTRIES // self.plan.D))
        indices = np.linspace(0, self.plan.d - 1, count).astype(np.int64)
        title = f"{self.family}, step {step}, worker {worker}"
        return draw(self.directions(indices.tolist(), step, worker), title)

    def __repr__(self) -> str:
        return (
            f"Basis({self.plan}, seed={self.seed}, family={str(self.family)!r}, "
            f"normalize={self.normalize!r}, backend={self.backend.name!r})"
        )
