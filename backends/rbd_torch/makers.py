"""What makes words and normals: the plain functions, or the same functions compiled by torch.compile.

Two small graphs: the compiler takes minutes for one large one. Options keep it from expanding each word into all
rounds before it (`realize_opcount_threshold`) and from fusing products with sums; the compiled code is kept on disk
by torch. Short lines go to the plain functions, which take many at once: the bits are the same.
Tests: tests/test_torch_backend.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rbd_torch.normals import normal
from rbd_torch.words import Pair, threefry

SHORT = 2**11  # blocks of a line that are not worth a call of compiled code
OPTIONS: dict[str, Any] = {
    "realize_opcount_threshold": 3,
    "cpp.enable_floating_point_contract_flag": "off",
    "cpp.dynamic_threads": True,
    "cpp_cache_precompile_headers": False,  # takes longer than both graphs
}


class Makers(NamedTuple):
    """`words` is `threefry` and `normal` is Box-Muller, or something that gives the same bits."""

    words: Callable[[Tensor, Tensor, Tensor, Tensor], Pair] = threefry
    normal: Callable[[Tensor, Tensor], Pair] = normal


@cache
def graphs() -> Makers:
    """Both functions compiled, for vectors of any length."""
    return Makers(*(torch.compile(f, dynamic=True, fullgraph=True, options=OPTIONS) for f in Makers()))


def compiled_words(k0: Tensor, k1: Tensor, c0: Tensor, c1: Tensor) -> Pair:
    """`threefry` of keys (n, 1), numbers (n, 1) and blocks (1, p), line by line."""
    if c1.shape[-1] < SHORT or c0.shape != k0.shape:
        return threefry(k0, k1, c0, c1)
    lines = [graphs().words(*line, c1[0]) for line in zip(k0, k1, c0, strict=True)]
    return torch.stack([x0 for x0, _ in lines]), torch.stack([x1 for _, x1 in lines])


def compiled_normal(x0: Tensor, x1: Tensor) -> Pair:
    """`normal` of words (n, p)."""
    if x0.numel() < SHORT:
        return normal(x0, x1)
    a, b = graphs().normal(x0.reshape(-1), x1.reshape(-1))
    return a.view(x0.shape), b.view(x0.shape)


def compiled(device: torch.device) -> Makers:
    """The compiled functions, which are compiled here by being called. Words are integers and may be compiled for any
    device; normals are compiled for the CPU only, since elsewhere nothing keeps the compiler from fusing."""
    makers = Makers(compiled_words, compiled_normal if device.type == "cpu" else normal)
    one = torch.ones(1, 1, dtype=torch.int32, device=device)
    with torch.no_grad():
        makers.normal(*makers.words(one, one, one, torch.arange(SHORT, dtype=torch.int32, device=device)[None]))
    return makers
