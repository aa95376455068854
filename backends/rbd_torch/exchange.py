"""What workers send each other beside coefficients, and how it travels: by all_gather, as words that nobody changes.

    message   status, then a bit for each parameter that has a gradient, then what BasisSharing makes of coefficients

All of it is 32-bit words in an array of float32, as in a journal. Every rank gets the messages of all workers in
worker order and computes the same from them: no sum is left to the network, which might order it differently on
different ranks. Who has nothing to say, because a gradient was not finite, still sends, so that nobody waits for ever.
Tests: tests/test_torch_ddp.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from rbd_ref._types import F32, Float32Array

WELL = 0  # a status: coefficients follow
SKIPPED = 1  # GradScaler found infinities: nobody takes this step
NOT_FINITE = 2  # coefficients that are not finite, and no GradScaler: an error
HOST_BACKENDS = ("gloo", "mpi")  # those of torch.distributed that send from the host's memory


class CompressionStats(NamedTuple):
    """What a worker would have sent as gradients and what it has sent, in numbers of 4 bytes: PowerSGDState's terms."""

    compress_rate: float
    numel_before_compression: int
    numel_after_compression: int


class Messages(NamedTuple):
    """What all workers sent: their statuses, which parameters anyone has a gradient of, and their payloads."""

    statuses: list[int]
    present: list[bool]
    payloads: Float32Array


class Form:
    """How a message for so many parameters and a payload of so many words is written."""

    def __init__(self, parameters: int, payload_size: int) -> None:
        self.parameters = parameters
        self.head = 1 + -(-parameters // 32)
        self.size = self.head + payload_size

    def write(self, status: int, present: Sequence[bool], payload: Float32Array) -> Float32Array:
        """The words of a message."""
        words = np.zeros(self.size, dtype=np.uint32)
        words[0] = status
        flags = np.packbits(np.asarray(present, dtype=bool), bitorder="little")
        words[1 : self.head].view(np.uint8)[: flags.size] = flags
        words[self.head :] = payload.view(np.uint32)
        return words.view(F32)

    def read(self, rows: Float32Array) -> Messages:
        """The messages of all workers, a row each."""
        words = np.ascontiguousarray(rows).view(np.uint32)
        flags = np.ascontiguousarray(words[:, 1 : self.head]).view(np.uint8)
        each = np.unpackbits(flags, axis=1, count=self.parameters, bitorder="little")
        present = [bool(column.any()) for column in each.T]
        return Messages(words[:, 0].tolist(), present, rows[:, self.head :])


class Peers:
    """The ranks of a process group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        if not isinstance(group, dist.ProcessGroup):
            raise TypeError(
                f"process_group is {type(group).__name__}, expected a process group of which this process is a "
                "member: pass torch.distributed.group.WORLD, or one from new_group"
            )
        self.group = group
        self.size = dist.get_world_size(group)
        self.rank = dist.get_rank(group)

    def _device(self, device: torch.device) -> torch.device:
        """Where the group sends from."""
        on_host = dist.get_backend(self.group) in HOST_BACKENDS
        return torch.device("cpu") if on_host else device

    def all_gather(self, rows: Float32Array, device: torch.device) -> Float32Array:
        """The rows of all ranks, one rank after the other, to the bit."""
        sent = torch.from_numpy(rows.view(np.int32)).to(self._device(device))
        found = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(found, sent, group=self.group)
        gathered: Float32Array = torch.cat(found).cpu().numpy().view(F32)
        return gathered

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """What rank 0 has, to all."""
        source = dist.get_global_rank(self.group, 0)
        for tensor in tensors:
            here = tensor.to(self._device(tensor.device)).contiguous()
            # As bytes, which every backend sends, whatever the type.
            dist.broadcast(here.view(-1).view(torch.uint8), src=source, group=self.group)
            tensor.copy_(here)

    def from_first(self, text: str, device: torch.device) -> str:
        """What rank 0 says, on all ranks; where it says nothing, one word is all that is sent."""
        said = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
        length = torch.tensor([said.numel()], device=device)
        self.broadcast([length])
        if self.rank:
            said = torch.zeros(int(length), dtype=torch.uint8, device=device)
        if said.numel():
            self.broadcast([said])
        return bytes(said.tolist()).decode()

    def check_alike(self, what: str, text: str, device: torch.device) -> None:
        """Refuse ranks of which one has another text than rank 0."""
        digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype=np.float32)[None]
        found = self.all_gather(digest.copy(), device).view(np.uint32)
        unlike = [rank for rank, row in enumerate(found) if not np.array_equal(row, found[0])]
        if unlike:
            raise ValueError(
                f"rank {unlike[0]} has other {what} than rank 0, expected the same on all ranks: make the optimizer "
                "with the same arguments and the same model everywhere"
            )
