"""The operations on a basis for torch tensors: `project`, `reconstruct`, `descend`, `directions`.

    a_i = <phi_i, g> / N_i                           u = sum_i a_i phi_i

A basis is named by a plan (`rbd_ref.compartments`), a seed, a step and a worker. Tensors stay on their device: on a CPU
the kernels of rbd_ref work on their memory, elsewhere torch does (engines.py).
Specification: docs/specification.md, sections 5 to 7. Tests: tests/test_torch_functional.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rbd_ref._check import NotFiniteError, integer, member, several
from rbd_ref._types import TWO_32, TWO_64
from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.families import parse_family
from rbd_ref.spec.operations import NORMALIZATIONS, Draw
from rbd_torch import engines


def make_draw(plan: Plan, family: str, normalize: str, seed: int, step: int, worker: int) -> Draw:
    """The basis of this name, or one sentence of what is wrong with the name."""
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is {type(plan).__name__}, expected a Plan: make one with rbd_ref.compartments")
    return Draw(
        plan,
        parse_family(family),
        member("normalize", normalize, NORMALIZATIONS),
        integer("seed", seed, 0, TWO_64),
        integer("step", step, 0, TWO_32),
        integer("worker", worker, 0, TWO_32),
    )


def as_vector(name: str, value: Tensor, length: int) -> Tensor:
    """`value` as a contiguous float32 vector of this length: itself, if it is one."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is {type(value).__name__}, expected a torch tensor: convert it with torch.as_tensor")
    if not value.is_floating_point():
        raise TypeError(f"{name} has dtype {value.dtype}, expected a floating type: convert it with float()")
    if value.shape != (length,):
        raise ValueError(f"{name} has shape {tuple(value.shape)}, expected ({length},): flatten it or change the plan")
    return value.detach().to(torch.float32).contiguous()


def check_finite(name: str, a: Tensor) -> Tensor:
    """Coefficients as they are, if all are finite."""
    bad = int(a.numel() - torch.isfinite(a).sum())
    if bad:
        raise NotFiniteError(
            f"{name} has values that are not finite, or too large: {bad} of {a.numel()} coefficients are not finite, "
            "expected finite ones: lower the learning rate or look for an overflow"
        )
    return a


def project(
    plan: Plan, g: Tensor, seed: int, step: int, worker: int = 0, family: str = "normal", normalize: str = "unit"
) -> Tensor:
    """a_i = <phi_i, g> / N_i: the coefficients of a gradient, which are all that is sent.

    Args:
        plan: sizes and numbers of directions of the compartments; make one with `rbd_ref.compartments`.
        g: the gradient, a tensor of plan.D finite floats; other float types are rounded to float32.
        seed: 0 <= seed < 2^64.
        step: the step whose basis is used.
        worker: the worker whose basis is used.
        family: the law of the entries, as `rbd_ref.Basis` takes it.
        normalize: the divisor N_i, as `rbd_ref.Basis` takes it.

    Returns:
        float32 of length plan.d, on the device of g.

    Examples:
        >>> import rbd_ref, rbd_torch, torch
        >>> plan = rbd_ref.compartments.whole(4, d=4)
        >>> rbd_torch.project(plan, torch.tensor([1.0, 2.0, 3.0, 4.0]), seed=0, step=0, family="srht")
        tensor([-1.0000,  2.0000, -0.5000, -1.5000])
    """
    draw = make_draw(plan, family, normalize, seed, step, worker)
    gradient = as_vector("g", g, plan.D)
    return check_finite("g", engines.engine_for(gradient.device).project(draw, gradient))


def reconstruct(
    plan: Plan, a: Tensor, seed: int, step: int, worker: int = 0, family: str = "normal", normalize: str = "unit"
) -> Tensor:
    """u = sum_i a_i phi_i: the update of the coefficients, the same bits on every device.

    Args:
        plan: sizes and numbers of directions of the compartments.
        a: plan.d finite coefficients; those below 2^-64 in magnitude count as 0.
        seed: 0 <= seed < 2^64.
        step: the step whose basis is used.
        worker: the worker whose basis is used.
        family: the law of the entries, as `rbd_ref.Basis` takes it.
        normalize: has no effect here, and is checked.

    Returns:
        float32 of length plan.D, on the device of a.

    Examples:
        >>> import rbd_ref, rbd_torch, torch
        >>> plan = rbd_ref.compartments.whole(6, d=2)
        >>> rbd_torch.reconstruct(plan, torch.tensor([1.0, 0.5]), seed=0, step=0, family="rademacher")
        tensor([-0.5000, -0.5000,  0.5000, -0.5000,  0.5000, -1.5000])
    """
    draw = make_draw(plan, family, normalize, seed, step, worker)
    coefficients = check_finite("a", as_vector("a", a, plan.d))
    return engines.engine_for(coefficients.device).reconstruct(draw, coefficients)


def descend(
    plan: Plan, g: Tensor, seed: int, step: int, worker: int = 0, family: str = "normal", normalize: str = "unit"
) -> tuple[Tensor, Tensor]:
    """a = project(g) and u = reconstruct(a), where each direction is generated only once.

    Args:
        plan: sizes and numbers of directions of the compartments.
        g: the gradient, a tensor of plan.D finite floats.
        seed: 0 <= seed < 2^64.
        step: the step whose basis is used.
        worker: the worker whose basis is used.
        family: the law of the entries, as `rbd_ref.Basis` takes it.
        normalize: the divisor N_i, as `rbd_ref.Basis` takes it.

    Returns:
        a, float32 of length plan.d, and u, float32 of length plan.D, on the device of g.

    Examples:
        >>> import rbd_ref, rbd_torch, torch
        >>> plan = rbd_ref.compartments.whole(100, d=9)
        >>> a, u = rbd_torch.descend(plan, torch.ones(100), seed=0, step=0)
        >>> bool(torch.equal(u, rbd_torch.reconstruct(plan, a, seed=0, step=0)))
        True
    """
    draw = make_draw(plan, family, normalize, seed, step, worker)
    gradient = as_vector("g", g, plan.D)
    a, u = engines.engine_for(gradient.device).descend(draw, gradient)
    return check_finite("g", a), u


def directions(
    plan: Plan,
    indices: Sequence[int],
    seed: int,
    step: int,
    worker: int = 0,
    family: str = "normal",
    device: torch.device | str = "cpu",
) -> Tensor:
    """phi_i of some directions, as `reconstruct` uses them; meant for a few, as each takes plan.D floats.

    Args:
        plan: sizes and numbers of directions of the compartments.
        indices: numbers of directions, 0 <= index < plan.d, in any order.
        seed: 0 <= seed < 2^64.
        step: the step whose basis is used.
        worker: the worker whose basis is used.
        family: the law of the entries, as `rbd_ref.Basis` takes it.
        device: where they are made.

    Returns:
        float32 of shape (len(indices), plan.D), zero outside each direction's compartment, not normalised.

    Examples:
        >>> import rbd_ref, rbd_torch
        >>> rbd_torch.directions(rbd_ref.compartments.even(6, k=2, d=1), [1, 0], seed=0, step=0, family="rademacher")
        tensor([[ 0.,  0.,  0., -1., -1.,  1.],
                [-1., -1.,  1.,  0.,  0.,  0.]])
    """
    draw = make_draw(plan, family, "unit", seed, step, worker)
    numbers = [integer("a direction's index", index, 0, plan.d) for index in several("indices", indices)]
    return engines.engine_for(torch.device(device)).directions(draw, numbers)
