"""`RBD`: random bases descent as a torch optimizer.

    step t, each worker w:   v_w = g_w, or with memory m <- beta m + (1 - beta) g_w, v_w = m
                             a_w = project(v_w) along its basis of step t div redraw: sent
    everyone:                u = what all coefficients stand for, theta <- theta - eta u

One basis covers the parameters of all groups (layout.py); steps, codes and exchange are those of rbd_ref's trainer
(descent.py, exchange.py). A worker is a turn of `step()`: with more workers than processes each plays several, and
weights move when the last one has had its turn.
Tests: tests/test_torch_optimizer.py, tests/test_torch_peers.py, tests/test_torch_ddp.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from rbd_ref._check import NotFiniteError, integer
from rbd_ref._types import F32, TWO_32, Float32Array
from rbd_ref.runs.files import RunError
from rbd_torch import options
from rbd_torch.descent import Descent, Rate, average
from rbd_torch.exchange import NOT_FINITE, SKIPPED, WELL, CompressionStats, Form, Messages, Peers
from rbd_torch.journal import Recorder, Rows, describe
from rbd_torch.layout import Layout, Spot, signature

VELOCITY = "momentum_buffer"
OWN = ("workers", "ranks", "numel_before", "numel_after")  # what a copy takes over beside what torch copies
NOTHING_TO_TRAIN = (
    "no parameter requires a gradient, expected one at least: set requires_grad before training; no step is taken"
)
ADDED = ("shapes", "journal_chain", "pending")  # what a state dict has beside what torch puts there


class RBD(Optimizer):
    """Random bases descent: each step moves the parameters along `dims` random directions that are drawn anew.

        a_i = <phi_i, v> / |phi_i|^2,    theta <- theta - lr sum_i a_i phi_i

    v is the gradient, with `memory` a running average of gradients. The directions follow from seed and step and are
    never stored. With a process group only the coefficients a travel: all ranks rebuild the same update, to the bit.

    Args:
        params: parameters, named parameters, or groups of them, as every torch optimizer takes them. Groups may have
            their own lr, dims, compartments, memory, momentum, weight_decay and maximize.
        lr: the learning rate; about D / dims times that of SGD.
        dims: directions of a group in all, divided among its compartments by size, or "each:N"; never more than a
            compartment has elements.
        family: the law of the directions; `srht` costs O(D log D) for any dims.
        compartments: "whole", "tensor", "even:K", or "proportional:R" (a direction for each R elements of a tensor).
        normalize: "unit", "expected", "none" or "graphcore".
        memory: beta of m <- beta m + (1 - beta) g, which is projected in place of g; private to each worker.
        momentum: mu of v <- mu v + u, which theta moves along in place of u; the same for everyone.
        weight_decay: added to gradients as weight_decay * theta, as torch.optim.SGD does.
        redraw: directions are those of step t div redraw.
        seed: 0 <= seed < 2^64; the same on all ranks.
        workers: how many turns of `step()`, by all ranks together, make a step; default: one by each rank.
        process_group: the ranks to exchange coefficients with, such as torch.distributed.group.WORLD; parameters are
            broadcast from its first rank. Do not wrap the model in DistributedDataParallel as well.
        exchange: "shared" (one basis, coefficients are added), "independent" (a basis for each worker) or "split" (one
            basis, whose directions are divided among the workers).
        combine: the "mean" or the "sum" of the workers' updates.
        coefficients: sent as "float32", "int8" or "sign".
        journal: a file to which rank 0 appends what all workers sent, for `rbd_torch.replay`.
        maximize: ascend.

    Examples:
        >>> import torch
        >>> from rbd_torch import RBD
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <torch._C.Generator object at ...>
        >>> model = torch.nn.Linear(20, 1)
        >>> x = torch.randn(64, 20)
        >>> optimizer = RBD(model.parameters(), lr=0.5, dims=5)
        >>> losses = []
        >>> for _ in range(100):
        ...     optimizer.zero_grad()
        ...     loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        ...     loss.backward()
        ...     optimizer.step()
        ...     losses.append(loss.item())
        >>> losses[-1] < losses[0] / 100
        True
    """

    _step_supports_amp_scaling = True  # GradScaler calls step() even if it found infinities, which all ranks must hear

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        dims: int | str = 250,
        *,
        family: str = "srht",
        compartments: str = "whole",
        normalize: str = "unit",
        memory: float = 0.0,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        redraw: int = 1,
        seed: int = 0,
        workers: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        exchange: str = "shared",
        combine: str = "mean",
        coefficients: str = "float32",
        journal: str | Path | None = None,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "dims": dims,
            "compartments": compartments,
            "memory": memory,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "family": family,
            "normalize": normalize,
            "redraw": redraw,
            "seed": seed,
            "exchange": exchange,
            "combine": combine,
            "coefficients": coefficients,
            "step": 0,
        }
        self._forget()
        self._peers = None if process_group is None else Peers(process_group)
        self._journal = None if journal is None else Path(journal)
        self.ranks = 1 if self._peers is None else self._peers.size
        self.workers = self.ranks if workers is None else integer("workers", workers, 1, TWO_32)
        self.numel_before = 0
        self.numel_after = 0
        if self.workers % self.ranks:
            raise ValueError(
                f"workers is {self.workers} for {self.ranks} ranks, expected a multiple, so that each plays as many: "
                "choose another number"
            )
        options.check_group({**defaults, "params": ()})  # first what is wrong for all groups, as torch's optimizers do
        super().__init__(params, defaults)

    def _forget(self) -> None:
        """Nothing is known that follows from parameters and state."""
        self._signature: list[Any] = []
        self._flat: dict[str, Tensor] = {}
        self._pending: list[Float32Array] = []
        self._losses: list[float] = []
        self._recorder: Recorder | None = None
        self._recording = False  # on all ranks, of which one has the recorder
        self._chain = ""

    # What the parameters are.

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """The ranks that exchange coefficients; copies and pickles are without it until it is set again."""
        return None if self._peers is None else self._peers.group

    @process_group.setter
    def process_group(self, group: dist.ProcessGroup) -> None:
        peers = Peers(group)
        if peers.size != self.ranks:
            raise ValueError(
                f"the group has {peers.size} ranks, expected {self.ranks}, as before: choose another group, or make an "
                "optimizer for this one"
            )
        self._peers = peers

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """One more group, which goes on with the steps of the others."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            group["step"] = self.param_groups[0]["step"]
            options.check_group(group)
            options.common(self.param_groups)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        if self._peers is not None:
            with torch.no_grad():
                self._peers.broadcast([parameter.detach() for parameter in group["params"]])

    def _prepare(self) -> None:
        """Layout and bases, made anew where parameters were frozen, moved or added."""
        found = signature(self.param_groups)
        if found == self._signature:
            return
        if self._signature and (self._recording or self._pending):
            raise RuntimeError(
                "parameters were frozen, moved or added while a journal was written or before all workers had their "
                "turn, expected the same ones in all steps: start another optimizer with another journal"
            )
        self._layout = Layout(self.param_groups)
        self._descent = Descent(self._layout, options.common(self.param_groups), self.workers)
        self._form = Form(len(self._layout.spots), self._descent.sharing.payload_size)
        self._flat.clear()
        self._divide_memory()
        self._check_ranks()
        self._signature = found

    def _check_ranks(self) -> None:
        """Refuse ranks that would rebuild something else from the same coefficients."""
        if self._peers is not None:
            text = f"{self._text()} {self.steps} {self._journal is None}"
            self._peers.check_alike("settings, steps or parameters", text, self._layout.device)

    def _text(self) -> str:
        """The settings as a journal has them."""
        return describe(self.param_groups, options.common(self.param_groups), self.workers)

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return int(self.param_groups[0]["step"])

    # A step.

    @overload
    def step(self, closure: None = ...) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take a step or, where this process plays several workers, the turn of the next one.

        Args:
            closure: computes the gradients anew and returns the loss.

        Returns:
            What the closure returned.

        Raises:
            NotFiniteError: gradients of some rank are not finite, on all ranks; no weight has moved.
            RunError: rank 0 cannot write its journal, on all ranks; no weight has moved.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.ranks > 1 and self._peers is None:
            raise RuntimeError(
                f"this is a copy of an optimizer of {self.ranks} ranks, expected its process group: set "
                "optimizer.process_group"
            )
        if not any(p.requires_grad and p.numel() for group in self.param_groups for p in group["params"]):
            warnings.warn(NOTHING_TO_TRAIN, stacklevel=4)
            return loss
        self._prepare()
        known = loss is not None and self._journal is not None
        self._take_turn(float(torch.as_tensor(loss).detach()) if known else 0.0)
        return loss

    def _take_turn(self, loss: float) -> None:
        """What the next worker of this process does, and once all had their turn, what everyone does."""
        spots = self._layout.spots
        present = [spot.parameter.grad is not None for spot in spots]
        if self.workers == 1 and not any(present):
            return
        share = self.workers // self.ranks
        worker = self._first_worker + len(self._pending)
        message, update = self._propose(present, worker, keep_update=share == 1)
        self._pending.append(message)
        self._losses.append(loss)
        if len(self._pending) == share:
            messages = np.stack(self._pending)
            losses = self._losses
            self._pending = []
            self._losses = []
            self._finish(messages, losses, {} if update is None else {worker: update})

    @property
    def _first_worker(self) -> int:
        """The first of those that this process plays."""
        return 0 if self._peers is None else self._peers.rank * (self.workers // self.ranks)

    def _propose(self, present: list[bool], worker: int, keep_update: bool) -> tuple[Float32Array, Tensor | None]:
        """The message of a worker, and its update where that costs nothing more."""
        nothing = np.zeros(self._descent.sharing.payload_size, dtype=F32)
        if bool(getattr(self, "found_inf", False)):
            return self._form.write(SKIPPED, present, nothing), None
        if not self._memorable(present):
            return self._form.write(NOT_FINITE, present, nothing), None
        proposed = self._descent.propose(self._projected(present, worker), self.steps, worker, keep_update)
        if proposed.payload is None:
            return self._form.write(NOT_FINITE, present, nothing), None
        return self._form.write(WELL, present, proposed.payload), proposed.update

    def _finish(self, messages: Float32Array, losses: list[float], own: dict[int, Tensor]) -> None:
        """Exchange messages, and move all replicas alike."""
        everything = messages if self._peers is None else self._peers.all_gather(messages, self._layout.device)
        self.numel_before += self._layout.plan.D * len(messages)
        self.numel_after += self._form.size * len(messages)
        found = self._form.read(everything)
        if SKIPPED in found.statuses or not any(found.present):
            return
        _check_statuses(found)
        rates = [self._rate(group) for group in self.param_groups]
        u = self._descent.update(found.payloads, self.steps, own)
        self._record(everything, rates, losses)
        velocity = self._flat_state(VELOCITY) if any(rate.momentum for rate in rates) else None
        self._descent.move(u, rates, velocity, found.present)
        for group in self.param_groups:
            group["step"] += 1

    def _rate(self, group: dict[str, Any]) -> Rate:
        """What the sum of the workers' updates is multiplied by, and the momentum, as float32."""
        lr = float(group["lr"])
        return Rate(float(F32(lr / self.workers if group["combine"] == "mean" else lr)), float(F32(group["momentum"])))

    # What is projected.

    def _projected(self, present: list[bool], worker: int) -> Tensor:
        """v (D): gradients, or of groups with memory what the worker remembers; 0 where there is no gradient."""
        groups = self.param_groups
        remembered = [bool(groups[spot.group]["memory"]) for spot in self._layout.spots]
        if not any(remembered):
            return self._gathered(present)
        memory = self._flat_state(f"memory_{worker}")
        self._remember(memory, present)
        if all(remembered) and all(present):
            return memory
        v = self._gathered([here and not kept for here, kept in zip(present, remembered, strict=True)])
        for spot, here, kept in zip(self._layout.spots, present, remembered, strict=True):
            if here and kept:
                v[spot.start : spot.stop] = memory[spot.start : spot.stop]
        return v

    def _gathered(self, present: list[bool]) -> Tensor:
        """The gradients of these parameters one after the other, 0 for the others, in a buffer that is used again."""
        flat = self._buffer("gradient")
        views = self._layout.views(flat)
        chosen = [(spot, view) for spot, view, here in zip(self._layout.spots, views, present, strict=True) if here]
        if chosen:  # torch refuses an empty list
            torch._foreach_copy_([view for _, view in chosen], [self._gradient(spot) for spot, _ in chosen])
        for view, here in zip(views, present, strict=True):
            if not here:
                view.zero_()
        return flat

    def _memorable(self, present: list[bool]) -> bool:
        """Whether what a memory is about to take in is finite: anything else would stay in it for ever."""
        spots = zip(self._layout.spots, present, strict=True)
        taken = [spot.parameter.grad for spot, here in spots if here and self.param_groups[spot.group]["memory"]]
        dense = [g for g in taken if g is not None and g.layout == torch.strided]  # others are refused with a sentence
        if not dense:
            return True
        sums = torch.stack([g.sum(dtype=torch.float32) for g in dense])  # seven times as fast as to look at each number
        return bool(torch.isfinite(sums).all()) or all(bool(torch.isfinite(g.float()).all()) for g in dense)

    def _remember(self, memory: Tensor, present: list[bool]) -> None:
        """m <- beta m + (1 - beta) g of parameters with a gradient, in groups with memory."""
        for spot, here in zip(self._layout.spots, present, strict=True):
            beta = self.param_groups[spot.group]["memory"]
            if here and beta:
                average(self._layout.view(memory, spot), self._gradient(spot).float(), beta)

    def _gradient(self, spot: Spot) -> Tensor:
        """The gradient of a parameter as it is or, where more is asked for, in float32: unscaled, negated, decayed."""
        g = spot.parameter.grad
        assert g is not None, "asked of parameters that have one"
        if g.layout != torch.strided:
            raise RuntimeError(
                f"a gradient of shape {tuple(g.shape)} is sparse, expected a dense one: make the embedding with "
                "sparse=False"
            )
        group = self.param_groups[spot.group]
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            g = g.float() * scale.double().reciprocal().float().to(g.device)
        if group["maximize"]:
            g = -g
        if group["weight_decay"]:
            g = g.float() + spot.parameter.float() * float(F32(group["weight_decay"]))
        return g

    # What is kept.

    def _buffer(self, name: str) -> Tensor:
        """D floats that are used again at every step."""
        if name not in self._flat:
            self._flat[name] = torch.zeros(self._layout.plan.D, dtype=torch.float32, device=self._layout.device)
        return self._flat[name]

    def _flat_state(self, name: str) -> Tensor:
        """D floats of which each parameter's state has its part under this name, as state dicts take it."""
        if name in self._flat:
            return self._flat[name]
        flat = self._buffer(name)
        for spot, view in zip(self._layout.spots, self._layout.views(flat), strict=True):
            state = self.state[spot.parameter]
            if name in state:
                view.copy_(state[name])
            state[name] = view
        return flat

    def _divide_memory(self) -> None:
        """Of a state that was saved by other ranks: keep the memory of the workers that this process plays. A worker
        whose memory is not in it goes on from that of the first which is."""
        played = {f"memory_{worker}" for worker in self._played}
        missing = set()
        for state in (state for state in self.state.values() if isinstance(state, dict)):  # hooks may keep other things
            known = sorted((name for name in state if name.startswith("memory_")), key=lambda name: int(name[7:]))
            if known and self.steps:
                missing |= played - set(known)
                state.update({name: state[known[0]].clone() for name in played - set(known)})
            for name in set(known) - played:
                del state[name]
        if missing:
            warnings.warn(
                f"the state has no {', '.join(sorted(missing))}, as it was saved by another rank: these workers go on "
                "from the memory of the first worker that it has",
                stacklevel=4,
            )

    @property
    def _played(self) -> range:
        """The workers that this process plays."""
        return range(self._first_worker, self._first_worker + self.workers // self.ranks)

    def compression_stats(self) -> CompressionStats:
        """What this process has sent so far, beside the gradients that it stands for, in numbers of 4 bytes.

        Returns:
            compress_rate, numel_before_compression and numel_after_compression, as of PowerSGDState.
        """
        return CompressionStats(
            self.numel_before / self.numel_after if self.numel_after else 0.0, self.numel_before, self.numel_after
        )

    # What is written down.

    def _record(self, messages: Float32Array, rates: Sequence[Rate], losses: list[float]) -> None:
        """A record of the journal, by rank 0 and before anything has moved; all ranks hear whether it is there."""
        if self._journal is None:
            return
        self._recording = True
        fault: Exception | None = None
        if self._peers is None or self._peers.rank == 0:
            try:
                self._write(self._journal, messages, rates, losses)
            except Exception as error:  # whatever it is: the others wait for a word
                fault = error
        if self._peers is not None:
            said = self._peers.from_first("" if fault is None else str(fault) or repr(fault), self._layout.device)
            fault = fault or (RunError(said) if said else None)
        if fault is not None:
            raise fault

    def _write(self, path: Path, messages: Float32Array, rates: Sequence[Rate], losses: list[float]) -> None:
        """The record of this step, in a journal that is opened when it is first needed."""
        if self._recorder is None:
            self._recorder = Recorder(path, Rows(self._descent, self._text()), self.steps, self._chain)
        known = losses + [0.0] * (self.workers - len(losses))
        self._recorder.append(self.steps, messages, rates, known)

    def close(self) -> None:
        """Close the journal, once all of it is on the disk; the next step opens it again."""
        if self._recorder is not None:
            self._chain = self._recorder.checkpoint()
            self._recorder.close()
            self._recorder = None

    def state_dict(self) -> dict[str, Any]:
        """The state as torch has it; of groups also the shapes of their parameters. A journal is synced to the disk."""
        found: dict[str, Any] = super().state_dict()
        for packed, group in zip(found["param_groups"], self.param_groups, strict=True):
            packed["shapes"] = options.shapes_of(group)
        first = found["param_groups"][0]
        if self._journal is not None:
            first["journal_chain"] = self._chain if self._recorder is None else self._recorder.checkpoint()
        if self._pending:
            first["pending"] = [torch.from_numpy(message.view(np.int32).copy()) for message in self._pending]
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state, to the same bits: memory and momentum stay float32, whatever the parameters are.

        Raises:
            ValueError: the state is of other bases (seed, dims, ...) or of parameters of other shapes.
        """
        final: list[dict[str, Any]] = []

        def check(_: Optimizer, given: dict[str, Any]) -> None:
            options.check_loaded(given["param_groups"], self.param_groups)
            final.append(given)

        handle = self.register_load_state_dict_pre_hook(check)  # the last: it sees what other hooks made of the state
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        self._restore_floats(final[-1])

    def _restore_floats(self, state_dict: dict[str, Any]) -> None:
        """Tensors of the state as they were saved: torch has cast them to the types of the parameters."""
        numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for number, parameter in zip(numbers, parameters, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, Tensor):
                    self.state[parameter][name] = value.to(parameter.device, torch.float32, copy=True)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: getattr(self, name) for name in OWN}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.setdefault("_peers", None)
        self.__dict__.setdefault("_journal", None)
        if self.__dict__.get("_recorder") is not None:
            self.close()
        super().__setstate__(state)
        self._forget()
        for group in self.param_groups:
            for name in self.defaults.keys() - {"differentiable"}:  # torch adds this one, of which we know nothing
                group.setdefault(name, self.defaults[name])
        first = self.param_groups[0]
        self._chain = first.get("journal_chain", "")
        self._pending = [message.numpy().view(F32) for message in first.get("pending", [])]
        self._losses = [0.0] * len(self._pending)
        for group in self.param_groups:
            for name in ADDED:
                group.pop(name, None)


def _check_statuses(found: Messages) -> None:
    """Refuse a step in which the gradients of some worker were not finite."""
    bad = [worker for worker, status in enumerate(found.statuses) if status == NOT_FINITE]
    if bad:
        raise NotFiniteError(
            f"the gradient of worker {bad[0]} has values that are not finite, or is too large, expected finite "
            "coefficients: lower the learning rate, look for an overflow, or use a GradScaler; no weight has moved"
        )
