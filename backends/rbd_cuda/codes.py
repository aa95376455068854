"""What kernels are told of a family; `sparse` and `srht` have kernels of their own.

Apart from kernels.py, which needs numba-cuda, because the backend is asked for its name and capabilities without it.
Tests: tests/test_cuda_backend.py.
"""

from __future__ import annotations

CODES = {"normal": 0, "uniform": 1, "rademacher": 2, "bernoulli-graphcore": 3}
NORMAL = CODES["normal"]
BERNOULLI = CODES["bernoulli-graphcore"]
