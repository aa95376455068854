"""Where the parameters of an optimizer lie in one flat vector of D floats, and how that is cut into compartments.

Parameters come in the order of their groups. Each group has a plan of its own over its tensors, and the plan of the
whole is these one after the other, so that a step has one basis and one set of coefficients. Frozen parameters
(`requires_grad` false) and empty ones have no place; a parameter that is named twice has one.
Tests: tests/test_torch_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.plan_names import parse_cut, parse_dims, plan_of_tensors


class Spot(NamedTuple):
    """A parameter, the number of its group, and its elements start .. stop - 1 of the flat vector."""

    parameter: Tensor
    group: int
    start: int
    stop: int


def trained(parameters: Iterable[Tensor], frozen_too: bool) -> list[Tensor]:
    """Those that have a place, each once."""
    unique = {id(parameter): parameter for parameter in parameters}
    return [p for p in unique.values() if (p.requires_grad or frozen_too) and p.numel()]


def signature(groups: Sequence[dict[str, Any]]) -> list[Any]:
    """What a layout depends on: equal as long as a layout can be used again."""
    return [
        (group["dims"], group["compartments"], [(id(p), p.requires_grad, p.device) for p in group["params"]])
        for group in groups
    ]


class Layout:
    """The places of the parameters of some groups, as torch.optim has them; if asked for, of frozen ones too."""

    def __init__(self, groups: Sequence[dict[str, Any]], frozen_too: bool = False) -> None:
        self.groups = len(groups)
        self.spots: list[Spot] = []
        plans: list[Plan] = []
        end = 0
        for number, group in enumerate(groups):
            members = trained(group["params"], frozen_too)
            for parameter in members:
                self.spots.append(Spot(parameter, number, end, end + parameter.numel()))
                end += parameter.numel()
            if members:
                plans.append(group_plan(group, members))
        self.plan = joined(plans)
        self.device = self._device()

    def _device(self) -> torch.device:
        """Where all parameters are."""
        devices = {spot.parameter.device for spot in self.spots}
        if len(devices) > 1:
            raise ValueError(
                f"parameters are on {' and '.join(sorted(map(str, devices)))}, expected one device: make an optimizer "
                "for each"
            )
        return devices.pop()

    @property
    def parameters(self) -> list[Tensor]:
        """In the order of their places."""
        return [spot.parameter for spot in self.spots]

    def view(self, flat: Tensor, spot: Spot) -> Tensor:
        """The place of a parameter in a flat vector, in its shape."""
        return flat[spot.start : spot.stop].view(spot.parameter.shape)

    def views(self, flat: Tensor) -> list[Tensor]:
        """All places."""
        return [self.view(flat, spot) for spot in self.spots]

    @cached_property
    def _whole_groups(self) -> list[tuple[int, slice]]:
        return self._ranges([True] * len(self.spots))

    def ranges(self, present: Sequence[bool]) -> list[tuple[int, slice]]:
        """The number of a group and elements of it, so that all are elements of parameters that are present."""
        return self._whole_groups if all(present) else self._ranges(present)

    def _ranges(self, present: Sequence[bool]) -> list[tuple[int, slice]]:
        found: list[tuple[int, slice]] = []
        for spot, here in zip(self.spots, present, strict=True):
            if not here:
                continue
            if found and found[-1][0] == spot.group and found[-1][1].stop == spot.start:
                found[-1] = (spot.group, slice(found[-1][1].start, spot.stop))
            else:
                found.append((spot.group, slice(spot.start, spot.stop)))
        return found


def group_plan(group: dict[str, Any], members: Sequence[Tensor]) -> Plan:
    """The plan of a group's tensors by its own dims and compartments."""
    sizes = [parameter.numel() for parameter in members]
    return plan_of_tensors(sizes, parse_dims(group["dims"]), parse_cut(group["compartments"]))


def joined(plans: Sequence[Plan]) -> Plan:
    """Plans one after the other."""
    if not plans:
        raise ValueError("no parameter requires a gradient, expected one at least: set requires_grad before training")
    return Plan(tuple(size for plan in plans for size in plan.sizes), tuple(d for plan in plans for d in plan.dims))
