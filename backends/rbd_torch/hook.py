"""`RBDState` and `rbd_hook`: random bases descent in place of the all-reduce of DistributedDataParallel.

    each rank w, each bucket:   v_w = g_w, or what the rank keeps (below);   a_w = project(v_w): sent
    everyone:                   the bucket's gradients <- scale * reconstruct((a_0 + a_1) + ...)

    memory beta         m <- beta m + (1 - beta) g, v = m; scale = (size / d) / W: an unbiased mean
    memory 0            v = g; the same scale: the mean gradient, unbiased and noisy
    feedback            e <- e + g, v = e, e <- e - s u_w; scale = s / W, s <= 1 of rbd_ref/methods/memory.py

Each parameter is a compartment of its own, whose basis follows from seed, step and the parameter's number. Buckets are
rebuilt after the first iteration, so nothing is keyed by them: parameters are numbered as they first appear, which is
alike on all ranks. That iteration is a plain all-reduce, as the number of all parameters is not known before its end.
No annotation here is a string: DDP compares those of a hook with types.
Tests: tests/test_torch_ddp.py.
"""

import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rbd_ref._check import integer, number
from rbd_ref._types import F32, TWO_32, TWO_64
from rbd_ref.basis import Basis
from rbd_ref.methods.memory import contraction
from rbd_ref.methods.rbd import BIASED
from rbd_ref.spec.compartments import Plan, whole
from rbd_ref.spec.families import parse_family
from rbd_ref.spec.operations import Draw
from rbd_ref.spec.plan_names import parse_cut, parse_dims, plan_of_tensors
from rbd_torch import engines
from rbd_torch.descent import LARGEST_DROPPED, average
from rbd_torch.exchange import CompressionStats

MEMORY = 0.9  # measured in docs/own-model.md


@cache
def shrink(plan: Plan, family: str) -> float:
    """s of feedback, by which P P^T becomes a contraction."""
    return float(contraction(Basis(plan, family=family, backend="numpy")))


def checked_memory(beta: float) -> float:
    """beta, if it is one as a float32."""
    if not 0 <= F32(number("memory", beta)) < 1:
        raise ValueError(f"memory is {beta}, expected 0 or more and less than 1: choose another")
    return beta


class RBDState:
    """What `rbd_hook` needs: the bases, and what this rank keeps of its gradients.

    Args:
        process_group: the ranks; None for all of them.
        dims: coefficients that a rank sends in an iteration, divided among the parameters by size, or "each:N".
        seed: 0 <= seed < 2^64; the same on all ranks.
        family: the law of the directions; `srht` costs O(D log D) for any dims.
        memory: beta of a running average of gradients that is projected in their place, 0.9 if nothing is said; 0
            projects the gradients themselves.
        feedback: in place of memory, what was not sent is kept and sent later, as PowerSGD does.
        redraw: directions are those of iteration t div redraw.

    It pickles without its process group, as PowerSGDState does, and then takes that of all ranks.

    Examples:
        >>> from rbd_torch import RBDState, rbd_hook
        >>> state = RBDState(None, dims=10_000, seed=0)
        >>> # model = DistributedDataParallel(model);  model.register_comm_hook(state, rbd_hook)
        >>> state.compression_stats()
        CompressionStats(compress_rate=0.0, numel_before_compression=0, numel_after_compression=0)
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        dims: int | str = 10_000,
        *,
        seed: int = 0,
        family: str = "srht",
        memory: float | None = None,
        feedback: bool = False,
        redraw: int = 1,
    ) -> None:
        parse_dims(dims)
        self.process_group = process_group
        self.dims = dims
        self.seed = integer("seed", seed, 0, TWO_64)
        self.family = parse_family(family)
        if feedback and memory:
            raise ValueError(f"memory is {memory} beside feedback, expected one of them: leave the other out")
        self.feedback = feedback
        default = 0.0 if feedback else MEMORY
        self.memory = checked_memory(default if memory is None else memory)
        self.redraw = integer("redraw", redraw, 1, TWO_32)
        self.step = 0
        self.sizes: list[int] = []  # of all parameters, by number; complete once the first iteration is over
        self.kept: dict[int, Tensor] = {}  # e or m of each parameter, by number
        self.numel_before = 0
        self.numel_after = 0
        if self.feedback and self.family.name == BIASED:
            raise ValueError(f"family is {BIASED} beside feedback, expected unbiased directions: choose another family")
        self._reset()

    def _reset(self) -> None:
        """What belongs to this process."""
        self._numbers: dict[int, int] = {}  # of parameters, by id
        self._parameters: list[Tensor] = []  # so that no id is used again
        self._lock = threading.Lock()  # the futures of buckets end in threads of their own
        self._plan: Plan | None = None

    def __getstate__(self) -> dict[str, Any]:
        private = ("process_group", "_numbers", "_parameters", "_lock", "_plan")
        return {name: value for name, value in vars(self).items() if name not in private}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.process_group = None
        self._reset()
        vars(self).update(state)

    @property
    def group(self) -> dist.ProcessGroup:
        """The ranks."""
        found = self.process_group or dist.group.WORLD
        assert found is not None, "DDP has a process group"
        return found

    @property
    def learning(self) -> bool:
        """Whether parameters are still being numbered: in the first iteration."""
        return self.step == 0

    def number(self, parameter: Tensor) -> int:
        """Of a parameter, by its first appearance."""
        if id(parameter) not in self._numbers:
            number = len(self._numbers)
            self._numbers[id(parameter)] = number
            self._parameters.append(parameter)
            self._check_size(number, parameter.numel())
        return self._numbers[id(parameter)]

    def _check_size(self, number: int, size: int) -> None:
        """Learn the size of a parameter, or refuse another than is known."""
        if self.learning:
            self.sizes.append(size)
        elif self.sizes[number : number + 1] != [size]:
            raise ValueError(
                f"parameter {number} has {size} elements where the state was saved with "
                f"{self.sizes[number] if number < len(self.sizes) else 'none'}, expected the same model: make a new "
                "RBDState for another one"
            )

    @property
    def plan(self) -> Plan:
        """A compartment for each parameter."""
        if self._plan is None:
            self._plan = plan_of_tensors(self.sizes, parse_dims(self.dims), parse_cut("tensor"))
        return self._plan

    def draw(self, number: int) -> Draw:
        """The basis of a parameter at this step: that of `worker` number, as all ranks share one."""
        plan = whole(self.plan.sizes[number], self.plan.dims[number])
        return Draw(plan, self.family, "unit", self.seed, self.step // self.redraw, number)

    def scale(self, draw: Draw, ranks: int) -> float:
        """What the sum of the ranks' updates is multiplied by."""
        each = shrink(draw.plan, str(self.family)) if self.feedback else draw.plan.D / draw.plan.d
        return float(F32(each / ranks))

    def compression_stats(self) -> CompressionStats:
        """What this rank has sent so far, beside the gradients that it stands for, in numbers of 4 bytes.

        Returns:
            compress_rate, numel_before_compression and numel_after_compression, as of PowerSGDState.
        """
        return CompressionStats(
            self.numel_before / self.numel_after if self.numel_after else 0.0, self.numel_before, self.numel_after
        )


class Part:
    """A parameter's part of a bucket in one step: it is projected at once, and rebuilt when all have sent."""

    def __init__(self, state: RBDState, parameter: Tensor, gradient: Tensor) -> None:
        self.state = state
        self.number = state.number(parameter)
        self.gradient = gradient
        self.draw = state.draw(self.number)
        self.engine = engines.engine_for(gradient.device)
        self.kept: Tensor | None = None

    def project(self) -> Tensor:
        """The coefficients that this rank sends."""
        v = self._projected(self.gradient.reshape(-1).float())
        with self.state._lock:
            return self.engine.project(self.draw, v)

    def _projected(self, g: Tensor) -> Tensor:
        """What is projected, which is what is kept if anything is."""
        if not self.state.memory and not self.state.feedback:
            return g.contiguous()
        before = self.state.kept.get(self.number)
        self.kept = torch.zeros_like(g) if before is None else before.clone()
        if self.state.memory:
            average(self.kept, g, self.state.memory)
        else:
            self.kept.add_(g)
            torch.ops.aten.hardshrink.out(self.kept, LARGEST_DROPPED, out=self.kept)
        return self.kept

    def rebuild(self, own: Tensor, total: Tensor, ranks: int) -> None:
        """The bucket's gradient from the sum of all coefficients; what is kept stays as it was if that is not finite,
        as GradScaler will skip the step."""
        with self.state._lock:
            u = self.engine.reconstruct(self.draw, total)
            self.gradient.copy_(u.mul_(self.state.scale(self.draw, ranks)).view(self.gradient.shape))
            if self.kept is None or not bool(torch.isfinite(total).all()):
                return
            if self.state.feedback:
                self.kept.sub_(
                    self.engine.reconstruct(self.draw, own).mul_(shrink(self.draw.plan, str(self.draw.family)))
                )
            self.state.kept[self.number] = self.kept


def rbd_hook(
    state: RBDState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Exchange the coefficients of a bucket's gradients; for `DistributedDataParallel.register_comm_hook`.

    Args:
        state: the `RBDState` of the model.
        bucket: the gradients, from DDP.

    Returns:
        a future of the bucket's buffer, in which the gradients are the same bits on all ranks.
    """
    ranks = dist.get_world_size(state.group)
    state.numel_before += bucket.buffer().numel()
    future = _all_reduce(state, bucket, ranks) if state.learning else _exchange(state, bucket, ranks)
    if bucket.is_last():
        state.step += 1
    return future


def _all_reduce(state: RBDState, bucket: Any, ranks: int) -> torch.futures.Future[torch.Tensor]:
    """The mean of the gradients, sent whole, while parameters are numbered."""
    for parameter in bucket.parameters():
        state.number(parameter)
    buffer = bucket.buffer().div_(ranks)
    state.numel_after += buffer.numel()
    work = dist.all_reduce(buffer, group=state.group, async_op=True)
    return _then(work, lambda: buffer)


def _exchange(state: RBDState, bucket: Any, ranks: int) -> torch.futures.Future[torch.Tensor]:
    """The same from coefficients, which are added in rank order."""
    pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
    parts = [Part(state, parameter, gradient) for parameter, gradient in pairs]
    own = torch.cat([part.project() for part in parts])
    state.numel_after += own.numel()
    everyone = [torch.empty_like(own) for _ in range(ranks)]
    work = dist.all_gather(everyone, own, group=state.group, async_op=True)

    buffer: Tensor = bucket.buffer()

    def rebuild() -> Tensor:
        _rebuild(parts, own, everyone)
        return buffer

    return _then(work, rebuild)


def _rebuild(parts: Sequence[Part], own: Tensor, everyone: Sequence[Tensor]) -> None:
    """All gradients of a bucket."""
    total = everyone[0].clone()
    for other in everyone[1:]:
        total += other
    sizes = [part.draw.plan.d for part in parts]
    for part, mine, all_of_it in zip(parts, torch.split(own, sizes), torch.split(total, sizes), strict=True):
        part.rebuild(mine.contiguous(), all_of_it.contiguous(), len(everyone))


def _then(work: Any, finish: Any) -> torch.futures.Future[torch.Tensor]:
    """What `finish` returns, once the exchange is over."""
    found: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda _: finish())
    return found
