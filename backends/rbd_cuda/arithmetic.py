"""Float operations that are rounded once and never fused, and the bits of floats, for code that runs on the device.

A plain `x * y + z` becomes one fused instruction, in PTX or later in ptxas; libdevice's functions with a rounding in
their names do not. Numba's CUDA simulator lets those return NaN without a word, so there they are functions of the
host, where Numba fuses nothing.
Tests: tests/test_cuda_backend.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numba.cuda
import numpy as np
from numba.cuda import libdevice

cuda: Any = numba.cuda
config: Any = numba.config
SIMULATED = bool(config.ENABLE_CUDASIM)

F = TypeVar("F", bound=Callable[..., Any])


def device(function: F) -> F:
    """A piece of a kernel that one thread runs on its own; for the simulator it is compiled for the host."""
    return cast(F, numba.njit(function)) if SIMULATED else cooperative(function)


def cooperative(function: F) -> F:
    """A piece of a kernel; always inlined, since a call cannot be compiled where there is no GPU to ask."""
    return cast(F, cuda.jit(device=True, inline="always")(function))


if SIMULATED:

    @device
    def add(x: np.float32, y: np.float32) -> np.float32:
        """x + y."""
        return np.float32(x + y)

    @device
    def subtract(x: np.float32, y: np.float32) -> np.float32:
        """x - y."""
        return np.float32(x - y)

    @device
    def multiply(x: np.float32, y: np.float32) -> np.float32:
        """x y."""
        return np.float32(x * y)

    @device
    def square_root(x: np.float32) -> np.float32:
        """The root of x."""
        return np.float32(np.sqrt(x))

    @device
    def bits_of(x: np.float32) -> np.int32:
        """The bits of a float."""
        return np.float32(x).view(np.int32)

    @device
    def float_of(x: np.int32) -> np.float32:
        """The float of given bits."""
        return np.int32(x).view(np.float32)

    @device
    def add64(x: float, y: float) -> float:
        """x + y in binary64."""
        return x + y

    @device
    def divide64(x: float, y: float) -> float:
        """x / y in binary64."""
        return float(np.float64(x) / np.float64(y))

    @device
    def rounded(x: float) -> np.float32:
        """The float nearest to a binary64 number."""
        return np.float32(x)

else:
    add, subtract, multiply, square_root = libdevice.fadd_rn, libdevice.fsub_rn, libdevice.fmul_rn, libdevice.fsqrt_rn
    bits_of, float_of = libdevice.float_as_int, libdevice.int_as_float
    add64, divide64, rounded = libdevice.dadd_rn, libdevice.ddiv_rn, libdevice.double2float_rn
