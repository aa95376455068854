"""One rank of two for tests/test_torch_ddp.py: `python torch_ddp_driver.py FOLDER RANK` runs all cases over gloo, and
saves what it found in FOLDER/RANK.pt."""

from __future__ import annotations

import copy
import pickle
import resource
import sys
import warnings
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import rbd_ref as rbd
from rbd_ref.runs.files import RunError
from rbd_ref.training.experiment import Experiment
from rbd_torch import RBD, RBDState, rbd_hook, replay

if TYPE_CHECKING:
    from collections.abc import Iterator

RANKS = 2
PATIENCE = timedelta(minutes=2)  # for a rank that does not answer: a test that hangs ends
MODES = {
    "shared": {"exchange": "shared"},
    "independent": {"exchange": "independent", "memory": 0.5, "momentum": 0.5},
    "split": {"exchange": "split", "coefficients": "int8"},
    "sign": {"exchange": "shared", "coefficients": "sign", "combine": "sum"},
}


def config(mode: str) -> rbd.Config:
    """A run of rbd_ref's trainer on the digits, with torch's gradients."""
    given = {"combine": "mean", **MODES[mode]}
    return rbd.Config(
        data="digits", dims=60, family="srht", seed=3, lr=1.0, workers=RANKS, steps=6, gradients="torch",
        compartments="tensor", **given,
    )  # fmt: skip


class Fc(nn.Module):
    """The network `fc` of rbd_ref, written as a user of torch would, but with w (in, out)."""

    def __init__(self, shapes: Any, theta: Tensor) -> None:
        super().__init__()
        sizes = [torch.Size(shape).numel() for shape in shapes]
        parts = zip(torch.split(theta, sizes), shapes, strict=True)
        self.tensors = nn.ParameterList([part.clone().view(shape) for part, shape in parts])

    def forward(self, x: Tensor) -> Tensor:
        w0, b0, w1, b1 = self.tensors
        return torch.addmm(b1, torch.addmm(b0, x.flatten(1), w0).relu(), w1)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1).float() for parameter in model.parameters()])


def optimizer_case(mode: str, rank: int, group: Any, workers: int | None = None) -> tuple[Fc, RBD]:
    """The problem of `config`: this rank's batches or, without a group, those of both, one after the other."""
    torch.set_num_threads(1)
    setting = config(mode)
    problem = Experiment(setting).problem
    model = Fc(problem.shapes, torch.from_numpy(problem.initial(setting.seed)))
    if rank:
        nn.init.zeros_(model.tensors[0])  # what rank 0 has is broadcast
    options = {"lr": 1.0, "dims": 60, "seed": 3, "compartments": "tensor", **MODES[mode]}
    optimizer = RBD(model.parameters(), process_group=group, workers=workers, **options)
    for step in range(6):
        for worker in [rank] if group is not None else range(RANKS):
            turn(model, optimizer, problem, step, worker)
    return model, optimizer


def turn(model: Fc, optimizer: RBD, problem: Any, step: int, worker: int) -> None:
    images, labels = (torch.from_numpy(part) for part in problem.batch(step, worker))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels.long()).backward()
    optimizer.step()


def small_model(rank: int = 0, power_of_two: bool = True) -> nn.Module:
    torch.manual_seed(0)
    width = 16 if power_of_two else 15
    return nn.Sequential(nn.Linear(32, width), nn.Tanh(), nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 1))


def batch(step: int, rank: int) -> Tensor:
    return torch.randn(16, 32, generator=torch.Generator().manual_seed(10 * step + rank))


def hook_case(rank: int, state: Any, hook: Any, steps: range = range(5), model: Any = None, lr: float = 0.2) -> Any:
    """Weights after steps of SGD, and gradients of the last one; buckets of a few parameters each."""
    inner = small_model() if model is None else model
    ddp = DistributedDataParallel(inner, bucket_cap_mb=0.0005)
    ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr)
    for step in steps:
        optimizer.zero_grad()
        x = batch(step, rank)
        (ddp(x) - x.sum(1, keepdim=True).sin()).square().mean().backward()
        optimizer.step()
    return inner


def hook_cases(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {"plain": flat(hook_case(rank, None, allreduce_hook))}
    for name, given in {
        "all of srht": {"dims": 10**6, "memory": 0.0},
        "all of srht, feedback": {"dims": 10**6, "feedback": True},
        "some, feedback": {"dims": 150, "feedback": True},
        "some, memory": {"dims": 150, "memory": 0.9},
        "some, by default": {"dims": 150},
        "some": {"dims": 150, "memory": 0.0, "family": "normal"},
    }.items():
        state = RBDState(None, seed=1, **given)
        found[name] = flat(hook_case(rank, state, rbd_hook))
        found[f"{name}, stats"] = tuple(state.compression_stats())
    return found | resumed_hook(rank)


def resumed_hook(rank: int) -> dict[str, Any]:
    """Five steps, and three after which state and model are saved, pickled and loaded in a new DDP."""
    whole = hook_case(rank, RBDState(dist.group.WORLD, dims=150, feedback=True), rbd_hook)
    state = RBDState(dist.group.WORLD, dims=150, feedback=True)
    model = hook_case(rank, state, rbd_hook, range(3))
    again = pickle.loads(pickle.dumps(state))
    model = hook_case(rank, again, rbd_hook, range(3, 5), copy.deepcopy(model))
    other = pickle.loads(pickle.dumps(state))
    try:
        hook_case(rank, other, rbd_hook, range(3, 4), small_model(power_of_two=False))
        refused = ""
    except Exception as error:
        refused = str(error)
    return {"hook whole": flat(whole), "hook resumed": flat(model), "hook refused": refused}


def feedback_sums(rank: int) -> dict[str, Any]:
    """Gradients of a constant: what was applied and what is still kept add up to what there was."""
    state = RBDState(None, dims="each:3", seed=2, feedback=True)
    model = nn.Linear(50, 1, bias=False)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(state, rbd_hook)
    applied = torch.zeros(50)
    g = torch.arange(50.0) + rank
    for _ in range(10):
        ddp.zero_grad()
        ddp(g[None]).sum().backward()
        applied += model.weight.grad.view(-1)
    return {"applied": applied, "kept": state.kept[0].clone(), "g": g}


def overflow(rank: int) -> dict[str, Any]:
    """What a rank keeps, before and after an iteration in which one rank's gradient is not finite."""
    found = {}
    for name, given in {"memory": {"memory": 0.9}, "feedback": {"feedback": True}}.items():
        state = RBDState(None, dims="each:3", seed=2, **given)
        ddp = DistributedDataParallel(nn.Linear(50, 1, bias=False))
        ddp.register_comm_hook(state, rbd_hook)
        for step in range(4):
            before = {number: kept.clone() for number, kept in state.kept.items()}
            ddp(torch.full((1, 50), float("inf") if step == 3 and rank else 1.0)).sum().backward()
        found[name] = (before[0], state.kept[0].clone())
    return found


def mistakes(rank: int, group: Any) -> dict[str, str]:
    """One sentence on all ranks: other settings, gradients that are not finite on one; and GradScaler skips on all."""
    found = {}
    model = small_model()
    optimizer = RBD(model.parameters(), lr=0.1, seed=rank, process_group=group)
    model(batch(0, rank)).sum().backward()
    found["settings"] = sentence(optimizer.step)
    optimizer = RBD(model.parameters(), lr=0.1, process_group=group)
    before = flat(model)
    if rank == 1:
        next(model.parameters()).grad.fill_(torch.nan)
    found["not finite"] = sentence(optimizer.step)
    assert torch.equal(flat(model), before)
    optimizer.zero_grad()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(model(batch(0, rank)).sum()).backward()
    if rank == 1:
        next(model.parameters()).grad.fill_(torch.inf)
    scaler.step(optimizer)
    assert torch.equal(flat(model), before)
    assert optimizer.steps == 0
    found["workers"] = sentence(lambda: RBD(model.parameters(), lr=0.1, workers=3, process_group=group))
    copied = copy.deepcopy(optimizer)
    found["copied"] = sentence(copied.step)
    return found


def sentence(call: Any) -> str:
    try:
        call()
    except (ValueError, RuntimeError, RunError) as error:
        return str(error)
    return ""


def one_rank_without_gradient(rank: int, group: Any) -> Tensor:
    """A parameter moves on both ranks if one has a gradient of it, one of which nobody has stays."""
    model = small_model()
    optimizer = RBD(model.parameters(), lr=0.1, process_group=group)
    model(batch(0, rank)).sum().backward()
    if rank == 0:
        model[0].bias.grad = None
    model[2].bias.grad = None
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.step()
    return torch.tensor([not torch.equal(one, two) for one, two in zip(before, model.parameters(), strict=True)])


def worlds(rank: int, group: Any, folder: Path) -> dict[str, Any]:
    """A state of one process that played two workers goes on with two, and that of two with one."""
    options: dict[str, Any] = {"lr": 0.5, "dims": 40, "memory": 0.5, "momentum": 0.5, "exchange": "independent"}

    def steps(model: nn.Module, optimizer: RBD, some: range, workers: Any) -> nn.Module:
        for step in some:
            for worker in workers:
                optimizer.zero_grad()
                model(batch(step, worker)).square().mean().backward()
                optimizer.step()
        return model

    alone = small_model()
    one = RBD(alone.parameters(), workers=2, **options)
    steps(alone, one, range(3), range(2))
    saved, state = copy.deepcopy(alone), copy.deepcopy(one.state_dict())
    expected = flat(steps(alone, one, range(3, 6), range(2)))
    two = RBD(saved.parameters(), process_group=group, **options)
    two.load_state_dict(state)
    after = flat(steps(saved, two, range(3, 6), [rank]))
    torch.save({"model": saved.state_dict(), "state": two.state_dict()}, folder / f"two-{rank}.pt")
    back = copy.deepcopy(saved)
    lone = RBD(back.parameters(), workers=2, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lone.load_state_dict(two.state_dict())
        steps(back, lone, range(6, 7), range(2))
    said = [str(one.message) for one in caught]
    return {"one, then two": after, "one": expected, "two, then one": flat(back), "said": said, "steps": lone.steps}


def journal_case(rank: int, group: Any, folder: Path) -> dict[str, Any]:
    """Rank 0 writes; what it wrote rebuilds the model of both."""
    model = small_model()
    base = copy.deepcopy(model)
    path = folder / f"run-{rank}.rbd"
    optimizer = RBD(model.parameters(), lr=0.1, dims=40, exchange="independent", process_group=group, journal=path)
    for step in range(3):
        optimizer.zero_grad()
        model(batch(step, rank)).square().mean().backward()
        optimizer.step()
    dist.barrier()
    replay(base, folder / "run-0.rbd")
    return {"trained": flat(model), "replayed": flat(base), "written": path.exists()}


@contextmanager
def disk_full(path: Path) -> Iterator[None]:
    """No file of this process may become longer than this one is, by more than a few bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((path.stat().st_size if path.exists() else 0) + 10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def refused_step(model: nn.Module, optimizer: RBD, rank: int) -> tuple[str, bool]:
    """What a step says, and whether weights and step are as they were."""
    optimizer.zero_grad()
    model(batch(optimizer.steps, rank)).square().mean().backward()
    before, steps = flat(model), optimizer.steps
    said = sentence(optimizer.step)
    return said, torch.equal(before, flat(model)) and optimizer.steps == steps


def full_disks(rank: int, group: Any, folder: Path) -> dict[str, Any]:
    """Rank 0 finds no room for its journal's first record and, later, for that of a step; with room again, all go on
    as if nothing had been."""
    options: dict[str, Any] = {"lr": 0.1, "dims": 40, "process_group": group}
    model, undisturbed, path = small_model(), small_model(), folder / "full.rbd"
    base = copy.deepcopy(model)
    optimizer, other = RBD(model.parameters(), journal=path, **options), RBD(undisturbed.parameters(), **options)
    found: dict[str, Any] = {}
    for name in ("no room to begin", "no room for a step"):
        with disk_full(path if rank == 0 else folder / "nothing"):
            found[name] = refused_step(model, optimizer, rank)
        assert refused_step(model, optimizer, rank) == ("", False)
        assert refused_step(undisturbed, other, rank) == ("", False)
    found["same"] = torch.equal(flat(model), flat(undisturbed))
    optimizer.close()
    dist.barrier()
    assert replay(base, path) == 2
    found["replayed"] = torch.equal(flat(base), flat(model))
    return found


def refused_journals(rank: int, group: Any, folder: Path) -> dict[str, Any]:
    """Rank 0 cannot open its journal, or it does not fit; and parameters change while one is written."""
    options: dict[str, Any] = {"lr": 0.2, "dims": 40, "process_group": group}
    found: dict[str, Any] = {}
    (folder / "there.rbd").touch()
    for name, path in (("no folder", folder / "nothing" / "run.rbd"), ("there already", folder / "there.rbd")):
        model = small_model()
        found[name] = refused_step(model, RBD(model.parameters(), journal=path, **options), rank)
    model = small_model()
    optimizer = RBD(model.parameters(), journal=folder / "frozen.rbd", **options)
    assert refused_step(model, optimizer, rank) == ("", False)
    state = copy.deepcopy(optimizer.state_dict())
    model[0].bias.requires_grad_(False)
    found["frozen"] = refused_step(model, optimizer, rank)
    optimizer.close()
    for name, path in (("another run", folder / "full.rbd"), ("other settings", folder / "frozen.rbd")):
        model = small_model()
        model[0].bias.requires_grad_(name == "another run")
        again = RBD(model.parameters(), journal=path, **options)
        again.load_state_dict(state)
        found[name] = refused_step(model, again, rank)
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    rank = int(sys.argv[2])
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS, timeout=PATIENCE)
    group = dist.group.WORLD
    found: dict[str, Any] = {}
    for mode in MODES:
        model, optimizer = optimizer_case(mode, rank, group)
        found[mode] = flat(model)
        found[f"{mode}, stats"] = tuple(optimizer.compression_stats())
    found["hook"] = hook_cases(rank)
    found["feedback"] = feedback_sums(rank)
    found["overflow"] = overflow(rank)
    found["mistakes"] = mistakes(rank, group)
    found["moved"] = one_rank_without_gradient(rank, group)
    found["worlds"] = worlds(rank, group, folder)
    found["journal"] = journal_case(rank, group, folder)
    found["full disks"] = full_disks(rank, group, folder)
    found["refused journals"] = refused_journals(rank, group, folder)
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
