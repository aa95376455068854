"""The backend `torch`: the engine `Tensors` behind the protocol of rbd_ref, NumPy arrays in and out.

    RBD_TORCH_DEVICE     cpu (default), cuda, cuda:1, mps, or whatever else torch calls a device
    RBD_TORCH_COMPILE    1 compiles the generator, once for a machine: the same bits, sooner

torch is imported when a backend is made, not before. Then this module keeps what it imported in the instance.
Tests: tests/test_torch_backend.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rbd_ref._types import Float32Array, Indices, Words
from rbd_ref.backend import Capabilities
from rbd_ref.models.architectures import Network
from rbd_ref.spec.operations import Draw

SWITCHES = {"": False, "0": False, "1": True}


def import_torch() -> Any:
    """torch, or one sentence that tells how to get it."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"torch is not there ({error}), expected it: pip install 'rbd-ref[torch]'") from error
    return torch


def device_of(torch: Any, name: str) -> Any:
    """The device of this name, if torch can use it."""
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise RuntimeError(
            f"RBD_TORCH_DEVICE is {name!r}, expected a device that torch can use here, as cpu is ({reason}): "
            "name another or install a build of torch for it"
        ) from error


def switch(name: str) -> bool:
    """Whether an environment variable is 1; 0 and nothing are no."""
    value = os.environ.get(name, "")
    if value not in SWITCHES:
        raise RuntimeError(f"{name} is {value!r}, expected 0 or 1: set one of them")
    return SWITCHES[value]


def compiled(makers: Any, device: Any) -> Any:
    """What `makers.compiled` gives, if torch can compile."""
    try:
        return makers.compiled(device)
    except Exception as error:  # whatever a compiler may meet
        reason = str(error).partition("\n")[0].rstrip(".")
        raise RuntimeError(
            f"RBD_TORCH_COMPILE is 1 and torch.compile fails here ({reason}), expected a C++ compiler that torch can "
            "use: install one, or set it to 0"
        ) from error


class TorchBackend:
    """Any device, any number of threads, plain or compiled: always the same directions and updates."""

    name: ClassVar[str] = "torch"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self) -> None:
        self.torch = import_torch()
        from rbd_torch import engines, makers, networks, random

        self.device = device_of(self.torch, os.environ.get("RBD_TORCH_DEVICE", "cpu"))
        self.networks = networks
        self.random = random
        self.makers = compiled(makers, self.device) if switch("RBD_TORCH_COMPILE") else makers.Makers()
        self.engine = engines.Tensors(self.device, self.makers)

    @property
    def faster_gradients(self) -> bool:
        """Not on a CPU, where the reference's are faster (benchmarks/networks.py)."""
        return bool(self.device.type != "cpu")

    def _tensor(self, x: NDArray[Any]) -> Any:
        """A copy on the device, words as int32."""
        contiguous = np.ascontiguousarray(x)
        return self.torch.tensor(contiguous.view(np.int32) if x.dtype == np.uint32 else contiguous, device=self.device)

    def _seen(self, x: NDArray[Any]) -> Any:
        """The array itself as a tensor, or a copy where torch could not see it there; never to be written to."""
        return self.torch.from_numpy(np.require(x, requirements=["C", "W"])).to(self.device)

    def words(self, key: Words, counter: Words) -> Words:
        """threefry2x32 of each column of `counter`."""
        x = self.makers.words(*self._tensor(key)[:, None], *self._tensor(counter))
        found: Words = self.torch.stack(x).cpu().numpy().view(np.uint32)
        return found

    def directions(self, draw: Draw, indices: Sequence[int]) -> Float32Array:
        """Chosen rows of phi, zero outside their compartment."""
        found: Float32Array = self.engine.directions(draw, indices).cpu().numpy()
        return found

    def numbers(self, law: str, seed: int, stream: int, offset: int, count: int) -> Float32Array:
        """Numbers offset, offset + 1, ... of a stream of portable random numbers, by torch's operations."""
        out = self.torch.empty(count, dtype=self.torch.float32, device=self.device)
        self.random.fill_on_device(law, seed, stream, offset, out)
        found: Float32Array = out.cpu().numpy()
        return found

    def project(self, draw: Draw, g: Float32Array) -> Float32Array:
        """a_i = <phi_i, g> / N_i: the sum by a tree of float32, the upper half added to the lower until one is left."""
        found: Float32Array = self.engine.project(draw, self._tensor(g)).cpu().numpy()
        return found

    def reconstruct(self, draw: Draw, a: Float32Array) -> Float32Array:
        """u = sum_i a_i phi_i, to the bit."""
        found: Float32Array = self.engine.reconstruct(draw, self._tensor(a)).cpu().numpy()
        return found

    def descend(self, draw: Draw, g: Float32Array) -> tuple[Float32Array, Float32Array]:
        """`project` and `reconstruct` with each direction made once."""
        a, u = self.engine.descend(draw, self._tensor(g))
        return a.cpu().numpy(), u.cpu().numpy()

    def loss_and_gradient(
        self, network: Network, theta: Float32Array, x: Float32Array, y: Indices
    ) -> tuple[float, Float32Array]:
        """The mean softmax cross entropy of a batch and its gradient (D), by torch's automatic differentiation."""
        images = np.asarray(x, dtype=np.float32)
        found: tuple[float, Float32Array] = self.networks.loss_and_gradient(
            network, self._seen(theta), self._seen(images), self._seen(y)
        )
        return found

    def set_threads(self, n: int) -> int:
        """torch's threads, at most as many as there are processors."""
        if n > 0:
            self.torch.set_num_threads(min(n, os.cpu_count() or 1))
        return int(self.torch.get_num_threads())
