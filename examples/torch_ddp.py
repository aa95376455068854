"""Two ranks over gloo: what plain DDP, PowerSGD, `rbd_hook` and the optimizer `RBD` send, and what they reach.

    torchrun --nproc-per-node 2 examples/torch_ddp.py
    python -m torch.distributed.run --nproc-per-node 2 examples/torch_ddp.py --steps 20

Each rank has images of its own of the embedded digits. At the end all ranks have the same weights: with RBD to the bit.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from rbd_ref.data.datasets import load
from rbd_torch import RBD, RBDState, rbd_hook

BATCH = 32
DIMS = 1000


def make_model() -> nn.Module:
    """A perceptron of 85,002 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels for training and test."""
    found = load("digits")
    images = [torch.tensor(part).float() / 16 for part in (found.train_images, found.test_images)]
    labels = [torch.tensor(part).long() for part in (found.train_labels, found.test_labels)]
    return images[0], labels[0], images[1], labels[1]


def plain(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer, object]:
    """DistributedDataParallel as it is."""
    ddp = DistributedDataParallel(model)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), None


def power_sgd(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer, object]:
    """PowerSGD of rank 1 in place of the all-reduce."""
    ddp = DistributedDataParallel(model)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), state


def hook(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer, object]:
    """Coefficients in place of the all-reduce, of a running average of gradients; any optimizer."""
    ddp = DistributedDataParallel(model)
    state = RBDState(None, dims=DIMS, seed=0)
    ddp.register_comm_hook(state, rbd_hook)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), state


def optimizer(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer, object]:
    """No DDP at all: the optimizer exchanges coefficients."""
    D = sum(parameter.numel() for parameter in model.parameters())
    rbd = RBD(model.parameters(), lr=0.1 * D / DIMS, dims=DIMS, memory=0.9, process_group=dist.group.WORLD)
    return model, rbd, rbd


def digest(model: nn.Module) -> str:
    """Of all weights."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()


def train(name: str, steps: int) -> None:
    """Train, and let rank 0 say what was sent and reached."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    images, labels, test_images, test_labels = digits()
    model = make_model()
    wrapped, opt, counter = METHODS[name](model)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        chosen = torch.randint(len(images), (BATCH,), generator=generator)
        opt.zero_grad()
        nn.functional.cross_entropy(wrapped(images[chosen]), labels[chosen]).backward()
        opt.step()
    digests: list[str] = [""] * ranks
    dist.all_gather_object(digests, digest(model))
    D = sum(parameter.numel() for parameter in model.parameters())
    sent = D if counter is None else counter.compression_stats()[2] / steps  # type: ignore[attr-defined]
    right = (model(test_images).argmax(1) == test_labels).float().mean().item()
    if rank == 0:
        alike = "the same weights on all ranks" if len(set(digests)) == 1 else "OTHER WEIGHTS ON SOME RANKS"
        print(f"{name:10} {4 * sent:9,.0f} bytes a rank and step, {right:6.1%} of test images, {alike}", flush=True)
    if len(set(digests)) > 1:
        raise SystemExit(1)


METHODS = {"plain DDP": plain, "PowerSGD": power_sgd, "rbd_hook": hook, "RBD": optimizer}


def main() -> None:
    """All methods, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="(default: %(default)s)")
    options = parser.parse_args()
    if not dist.is_torchelastic_launched():
        sys.exit("examples/torch_ddp.py was started alone, expected two ranks: torchrun --nproc-per-node 2 THIS")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in METHODS:
        train(name, options.steps)
        gc.collect()  # models in cycles would keep threads of gloo alive until the interpreter ends, which then aborts
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
