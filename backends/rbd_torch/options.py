"""What groups of parameters may be told: each mistake is one sentence of what is wrong, what was expected, what to do.

Tests: tests/test_torch_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from rbd_ref._check import integer, member, number
from rbd_ref._types import F32, TWO_32, TWO_64
from rbd_ref.methods.codes import COEFFICIENTS
from rbd_ref.methods.settings import COMBINES, EXCHANGES
from rbd_ref.spec.families import parse_family
from rbd_ref.spec.operations import NORMALIZATIONS
from rbd_ref.spec.plan_names import parse_cut, parse_dims
from rbd_torch.descent import Options

OF_BASES = (*Options._fields, "dims", "compartments")  # what a state may not change: coefficients would mean others


def check_group(group: dict[str, Any]) -> None:
    """Refuse values that no step could be taken with."""
    _check_rates(group)
    parse_family(group["family"])
    member("normalize", group["normalize"], NORMALIZATIONS)
    member("exchange", group["exchange"], EXCHANGES)
    member("combine", group["combine"], COMBINES)
    member("coefficients", group["coefficients"], COEFFICIENTS)
    integer("redraw", group["redraw"], 1, TWO_32)
    integer("seed", group["seed"], 0, TWO_64)
    parse_dims(group["dims"])
    parse_cut(group["compartments"])
    for parameter in group["params"]:
        if not parameter.is_floating_point():
            raise TypeError(
                f"a parameter has dtype {parameter.dtype}, expected a real floating type: take complex ones apart with "
                "torch.view_as_real, and leave out what is not trained"
            )


def _check_rates(group: dict[str, Any]) -> None:
    """Refuse what is no rate, no decay or no momentum once it is a float32."""
    for name in ("lr", "weight_decay", "momentum", "memory"):
        value = group[name]
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ValueError(f"Tensor {name} must be 1-element, and this one has {value.numel()}: pass a number")
        given = number(name, value.item() if isinstance(value, Tensor) else value)
        with np.errstate(over="ignore"):
            rounded = F32(given)
        most = 1 if name in ("momentum", "memory") else np.inf
        if not 0 <= rounded < most:
            expected = "0 or more and less than 1" if most == 1 else "0 or more, as a float32 can hold it"
            raise ValueError(f"{name} is {given}, expected {expected}: choose another")


def common(groups: Sequence[dict[str, Any]]) -> Options:
    """What all groups have in common."""
    first = groups[0]
    for k, group in enumerate(groups):
        for name in Options._fields:
            if group[name] != first[name]:
                raise ValueError(
                    f"group {k} has {name} {group[name]!r} and group 0 {first[name]!r}, expected one basis for all "
                    f"groups: leave {name} to the optimizer, or make an optimizer for each"
                )
    return Options(*(first[name] for name in Options._fields))


def check_loaded(saved: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]]) -> None:
    """Refuse a state of other bases, or of a model of other shapes."""
    if len(saved) != len(groups):
        raise ValueError(
            f"the state has {len(saved)} parameter groups and this optimizer {len(groups)}, expected the same: make it "
            "with the groups that it was saved with"
        )
    for k, (old, new) in enumerate(zip(saved, groups, strict=True)):
        for name in OF_BASES:
            if old.get(name, new[name]) != new[name]:
                raise ValueError(
                    f"the state has {name} {old[name]!r} in group {k} and this optimizer {new[name]!r}, expected the "
                    f"same, as its bases would be others: make the optimizer with {name}={old[name]!r}"
                )
        if old.get("shapes", shapes_of(new)) != shapes_of(new):
            raise ValueError(
                f"the state is of parameters of shapes {old['shapes']} in group {k} and this optimizer has "
                f"{shapes_of(new)}, expected the same: load it for the model that it was saved for"
            )


def shapes_of(group: dict[str, Any]) -> str:
    """The shapes of a group's parameters, as in `3x2 2`."""
    return " ".join("x".join(map(str, parameter.shape)) or "scalar" for parameter in group["params"])
