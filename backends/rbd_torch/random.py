"""Portable random numbers as tensors: `randn`, `rand` and `signs` with the bits of `rbd_ref.random`, on any device.

On the CPU, Numba's kernels write to the tensor's own memory. On any other device numbers are made there, tile by tile,
by torch's operations: nothing is copied from the host but a key. `torch.compile` leaves them as they are.
Specification: docs/specification.md, section 15. Tests: tests/test_random.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rbd_ref._check import Shape, checked_place, checked_shape
from rbd_ref._types import TWO_32
from rbd_ref.kernels.random import fill
from rbd_ref.spec.random import LAWS, number_key
from rbd_torch import families
from rbd_torch.families import TILE, interleave
from rbd_torch.normals import normal
from rbd_torch.words import Pair, threefry

Device = str | torch.device | None


class Run(NamedTuple):
    """Some blocks in a row of one direction, counted from the beginning of that direction."""

    direction: int
    first: int
    blocks: int


def runs(first: int, blocks: int, per_block: int) -> Iterator[Run]:
    """The blocks first, first + 1, ... of a stream: a tile at most, and of one direction each."""
    of_direction = TWO_32 // per_block
    while blocks:
        direction, here = divmod(first, of_direction)
        count = min(blocks, TILE // per_block, of_direction - here)
        yield Run(direction, here, count)
        first += count
        blocks -= count


def signed(words: list[int], device: torch.device) -> Tensor:
    """Words as int32 of the same bits."""
    return torch.from_numpy(np.array(words, dtype=np.uint32).view(np.int32)).to(device)


def words_of(key: Tensor, run: Run) -> Pair:
    """Both words of each block."""
    block = torch.arange(run.first, run.first + run.blocks, dtype=torch.int32, device=key.device)
    return threefry(key[0], key[1], signed([run.direction], key.device), block)


def entries(law: str, x0: Tensor, x1: Tensor) -> Tensor:
    """All numbers of the blocks whose words are given."""
    if law == "normal":
        return interleave(normal(x0, x1))
    if law == "uniform":
        return interleave(families.uniform(x0, x1)).sub_(2.0**-24).mul_(0.5).add_(0.5)
    return families.signs(x0, x1)


def fill_on_device(law: str, seed: int, stream: int, offset: int, out: Tensor) -> None:
    """Numbers offset, offset + 1, ... of a stream into a vector, by torch's operations."""
    each = LAWS[law].per_block
    first, before = divmod(offset, each)
    key = signed([int(word) for word in number_key(seed, stream)], out.device)
    done = 0
    for run in runs(first, -(-(before + out.numel()) // each), each):
        made = entries(law, *words_of(key, run))[before:]
        part = out[done : done + made.numel()]
        part.copy_(made[: part.numel()])
        done += part.numel()
        before = 0


@torch.compiler.disable  # type: ignore[untyped-decorator]  # inductor would fuse products with sums, and bits change
def fill_anywhere(law: str, seed: int, stream: int, offset: int, out: Tensor) -> None:
    """Numbers offset, offset + 1, ... of a stream into a vector, by what is fastest where it lies."""
    if out.device.type == "cpu":
        fill(law, seed, stream, offset, out.numpy())
    elif out.numel() and out.device.type != "meta":
        fill_on_device(law, seed, stream, offset, out)


def _filled(law: str, shape: Shape, place: tuple[int, int, int], device: Device) -> Tensor:
    """The numbers of a tensor; `place` is seed, stream and offset."""
    sizes = checked_shape(shape)
    count = math.prod(sizes)
    seed, stream, offset = checked_place(*place, count)
    out = torch.empty(count, dtype=torch.float32, device=device)
    fill_anywhere(law, seed, stream, offset, out)
    return out.view(sizes)


def randn(shape: Shape, seed: int, *, stream: int = 0, offset: int = 0, device: Device = None) -> Tensor:
    """N(0, 1) numbers: element j of the tensor is number offset + j of the stream (seed, stream), on every device.

    Args:
        shape: of the tensor; a number n stands for (n,).
        seed: 0 <= seed < 2^64.
        stream: 0 <= stream < 2^32; streams of one seed are unrelated, so name one for each use.
        offset: the number of the stream that the tensor begins with, 0 <= offset < 2^64.
        device: where the tensor is made; torch's default device if it is not given.

    Returns:
        A float32 tensor with the bits of `rbd_ref.random.normal`.

    Raises:
        ValueError, TypeError: one sentence of what is wrong, what was expected and what to do.

    Examples:
        >>> import rbd_torch
        >>> w = rbd_torch.randn((1000, 64), seed=7)
        >>> shard = rbd_torch.randn((500, 64), seed=7, offset=500 * 64)
        >>> bool((shard == w[500:]).all())
        True
    """
    return _filled("normal", shape, (seed, stream, offset), device)


def rand(shape: Shape, seed: int, *, stream: int = 0, offset: int = 0, device: Device = None) -> Tensor:
    """Numbers uniform on [0, 1), multiples of 2^-24, with the bits of `rbd_ref.random.uniform`.

    Args:
        shape: of the tensor; a number n stands for (n,).
        seed: 0 <= seed < 2^64.
        stream: 0 <= stream < 2^32.
        offset: the number of the stream that the tensor begins with, 0 <= offset < 2^64.
        device: where the tensor is made; torch's default device if it is not given.

    Returns:
        A float32 tensor.

    Examples:
        >>> import rbd_torch
        >>> u = rbd_torch.rand(1000, seed=7)
        >>> bool(u.min() >= 0 and u.max() < 1)
        True
    """
    return _filled("uniform", shape, (seed, stream, offset), device)


def signs(shape: Shape, seed: int, *, stream: int = 0, offset: int = 0, device: Device = None) -> Tensor:
    """+1 or -1, each as likely as the other, with the bits of `rbd_ref.random.signs`.

    Args:
        shape: of the tensor; a number n stands for (n,).
        seed: 0 <= seed < 2^64.
        stream: 0 <= stream < 2^32.
        offset: the number of the stream that the tensor begins with, 0 <= offset < 2^64.
        device: where the tensor is made; torch's default device if it is not given.

    Returns:
        A float32 tensor.

    Examples:
        >>> import rbd_torch
        >>> rbd_torch.signs((2, 3), seed=7)
        tensor([[ 1., -1.,  1.],
                [ 1.,  1.,  1.]])
    """
    return _filled("signs", shape, (seed, stream, offset), device)
