"""Who does the operations on a torch tensor: Numba's kernels on a CPU, torch's own operations on any other device.

    Kernels    the tensor's own memory is handed to rbd_ref's kernels, and theirs comes back as a tensor: no copy
    Tensors    operations.py on the tensor's device: nothing of D numbers crosses to the host

Directions and updates have the same bits either way; coefficients agree within the tolerance of the specification,
section 6. Arguments were checked before: float32, contiguous, on the device of the engine.
Tests: tests/test_torch_functional.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from rbd_ref import backend as backends
from rbd_ref._types import Float32Array
from rbd_ref.spec.operations import LEAST_COEFFICIENT, Draw
from rbd_torch import operations
from rbd_torch.makers import Makers

EVERYTHING = slice(None)


class Engine(Protocol):
    """The operations of docs/specification.md on tensors of one device."""

    def project(self, draw: Draw, g: Tensor, directions: slice = EVERYTHING) -> Tensor:
        """a_i = <phi_i, g> / N_i of some directions."""

    def reconstruct(self, draw: Draw, a: Tensor) -> Tensor:
        """u = sum_i a_i phi_i, to the bit."""

    def descend(self, draw: Draw, g: Tensor) -> tuple[Tensor, Tensor]:
        """Both, each direction made once."""

    def directions(self, draw: Draw, indices: Sequence[int]) -> Tensor:
        """Some rows of phi."""


def array(x: Tensor) -> Float32Array:
    """The memory of a CPU tensor as NumPy sees it."""
    found: Float32Array = x.detach().numpy()
    return found


class Kernels:
    """rbd_ref's compiled kernels, in place."""

    def __init__(self) -> None:
        self.backend = backends.load("numba")

    def project(self, draw: Draw, g: Tensor, directions: slice = EVERYTHING) -> Tensor:
        """Only the work of these directions."""
        if directions == EVERYTHING:
            return torch.from_numpy(self.backend.project(draw, array(g)))
        return torch.from_numpy(self.backend.project_part(draw, array(g), directions))  # type: ignore[attr-defined]

    def reconstruct(self, draw: Draw, a: Tensor) -> Tensor:
        """To the bit."""
        return torch.from_numpy(self.backend.reconstruct(draw, array(a)))

    def descend(self, draw: Draw, g: Tensor) -> tuple[Tensor, Tensor]:
        """Each direction made once."""
        a, u = self.backend.descend(draw, array(g))
        return torch.from_numpy(a), torch.from_numpy(u)

    def directions(self, draw: Draw, indices: Sequence[int]) -> Tensor:
        """Some rows of phi."""
        return torch.from_numpy(self.backend.directions(draw, indices))


class Tensors:
    """torch's own operations, on a device; the backend `torch` is built on these."""

    def __init__(self, device: torch.device, makers: Makers | None = None) -> None:
        self.device = device
        self.makers = makers or Makers()

    def _keys(self, draw: Draw) -> Tensor:
        """The keys of the compartments, as int32."""
        return torch.from_numpy(draw.keys.view("int32")).to(self.device)

    def _run(self, draw: Draw, a: Tensor, g: Tensor | None, u: Tensor | None) -> None:
        with torch.no_grad():
            operations.run(draw, self._keys(draw), self.makers, a, g, u)

    def project(self, draw: Draw, g: Tensor, directions: slice = EVERYTHING) -> Tensor:
        """All of them, from which these are taken."""
        a = torch.empty(draw.plan.d, dtype=torch.float32, device=self.device)
        self._run(draw, a, g, None)
        return a[directions]

    def reconstruct(self, draw: Draw, a: Tensor) -> Tensor:
        """To the bit."""
        u = torch.zeros(draw.plan.D, dtype=torch.float32, device=self.device)
        flushed = a.masked_fill(a.abs() < float(LEAST_COEFFICIENT), 0.0)
        self._run(draw, flushed, None, u)
        return u

    def descend(self, draw: Draw, g: Tensor) -> tuple[Tensor, Tensor]:
        """Each direction made once."""
        a = torch.empty(draw.plan.d, dtype=torch.float32, device=self.device)
        u = torch.zeros(draw.plan.D, dtype=torch.float32, device=self.device)
        self._run(draw, a, g, u)
        return a, u

    def directions(self, draw: Draw, indices: Sequence[int]) -> Tensor:
        """Some rows of phi."""
        with torch.no_grad():
            return operations.directions(draw, self._keys(draw), self.makers, indices)


@cache
def engine_for(device: torch.device) -> Engine:
    """The engine for tensors of a device."""
    return Kernels() if device.type == "cpu" else Tensors(device)
