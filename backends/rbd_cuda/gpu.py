"""The device as the backend sees it: arrays there and back, and launches of kernels by name.

Tests: tests/test_cuda_backend.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from rbd_cuda.arithmetic import SIMULATED, cuda
from rbd_cuda.kernels import KERNELS, MOST_BLOCKS, PARTS, SPAN, THREADS


@cache
def compiled(name: str) -> Any:
    """A kernel for the device in use, with the types that tests compile it for."""
    kernel = KERNELS[name]
    return cuda.jit(kernel.signature)(kernel.function)


class Gpu:
    """A CUDA device, or the simulator; one that cannot be used is told in one sentence."""

    threads = THREADS
    span = SPAN
    parts = PARTS
    most_blocks = MOST_BLOCKS
    simulated = SIMULATED

    def __init__(self) -> None:
        if not cuda.is_available():
            raise RuntimeError(
                "numba-cuda finds no CUDA device and driver here, expected both: name another backend, or set "
                "NUMBA_ENABLE_CUDASIM=1 to simulate them"
            )
        if SIMULATED:
            from rbd_cuda import simulator

            simulator.mend()

    def array(self, x: np.ndarray) -> Any:
        """A copy of x on the device."""
        return cuda.to_device(np.ascontiguousarray(x))

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Room on the device."""
        return cuda.device_array(shape, dtype)

    def launch(self, name: str, blocks: int, *arguments: Any) -> None:
        """Run a kernel in so many CUDA blocks, if any."""
        if blocks > 0:
            compiled(name)[blocks, THREADS](*arguments)

    def host(self, x: Any) -> np.ndarray:
        """A copy of what is on the device."""
        return np.asarray(x.copy_to_host())
