"""Time and bytes of a step of DistributedDataParallel: plain, PowerSGD, and with `rbd_hook`, over slow links.

    python benchmarks/ddp.py --json benchmarks/ddp.json

Two ranks of gloo, each on a host of its own with a link of limited rate to a switch that counts bytes (network.py), and
once over loopback. The model is a perceptron of 4.2 million parameters on a small batch, so that a step is mostly
communication; the time is the best of some steps after a warm-up, as the machine is never quiet, and the bytes are
those of both directions.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import network
import numpy as np
import torch
import torch.distributed as dist
from speed import keep, machine
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from rbd_torch import RBD, RBDState, rbd_hook

RANKS = 2
WIDTH = 1024
LAYERS = 4
BATCH = 8
WARM_UP = 4  # PowerSGD begins at its second iteration, RBD too
DELAY = 0.0005
MEGABITS = (100.0, 1000.0)
METHODS = ("plain DDP", "PowerSGD, rank 1", "rbd_hook, d = 1,000", "rbd_hook, d = 10,000", "RBD, d = 10,000, no DDP")
PATIENCE = 600.0


def make_model() -> nn.Module:
    """A perceptron."""
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def wrapped(method: str, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model as a method trains it, and its optimizer."""
    if "no DDP" in method:
        return model, RBD(model.parameters(), lr=1.0, dims=10_000, process_group=dist.group.WORLD)
    ddp = DistributedDataParallel(model, bucket_cap_mb=100)  # one bucket, or PowerSGD's two rounds mix over gloo
    if method.startswith("PowerSGD"):
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    if method.startswith("rbd_hook"):
        ddp.register_comm_hook(RBDState(None, dims=int(method.split("= ")[1].replace(",", ""))), rbd_hook)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=1e-3)


def counted(counters: str) -> int:
    """Bytes that the switch has seen so far, 0 without one."""
    if not counters:
        return 0
    return int(np.fromfile(counters, dtype=np.int64).reshape(-1, len(network.COLUMNS))[:, 0].sum())


def one_rank(rank: int, folder: Path, method: str, steps: int, counters: str) -> None:
    """Train, and let rank 0 write down how long steps took and what they sent."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    model, optimizer = wrapped(method, make_model())
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(rank))
    times: list[float] = []
    start = 0
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            dist.barrier()
            start = counted(counters)
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    dist.barrier()
    if rank == 0:
        sent = (counted(counters) - start) / steps
        (folder / "found").write_text(f"{min(times[WARM_UP:])} {sent}")
    dist.destroy_process_group()


def run(method: str, steps: int, hosts: network.Hosts | None) -> tuple[float, float]:
    """Seconds and bytes of a step."""
    counters = "" if hosts is None else str(hosts.counters)
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(RANKS):
            words = [sys.executable, __file__, "--rank", str(rank), "--folder", folder, "--method", method]
            words += ["--steps", str(steps), "--counters", counters]
            command = words if hosts is None else hosts.command(rank, *words)
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo" if hosts is None else "eth0"}
            processes.append(subprocess.Popen(command, env=environment))
        for process in processes:
            if process.wait(PATIENCE):
                raise RuntimeError(f"{method}: a rank has failed")
        seconds, sent = (Path(folder) / "found").read_text().split()
    return float(seconds), float(sent)


def over(link: network.Link | None, steps: int) -> list[dict[str, Any]]:
    """All methods over one kind of link; None is loopback."""
    found = []
    with nullcontext() if link is None else network.hosts(RANKS, link) as hosts:
        for method in METHODS:
            seconds, sent = run(method, steps, hosts)
            name = "loopback" if link is None else str(link)
            found.append({"link": name, "method": method, "milliseconds": 1e3 * seconds, "bytes": sent})
            shown = "not counted" if link is None else f"{sent:12,.0f} bytes"
            print(f"{name:24} {method:26} {1e3 * seconds:9.1f} ms  {shown}", flush=True)
    return found


def links() -> Sequence[network.Link | None]:
    """Loopback, and where hosts can be made here, slow ones."""
    if missing := network.why_not():
        print(f"not measured over a network: {missing}")
        return [None]
    return [*(network.Link(1e6 * rate, DELAY) for rate in MEGABITS), None]


def main() -> None:
    """Measure, print, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10, help="steps that are measured (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    for hidden in ("--rank", "--folder", "--method", "--counters"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        one_rank(int(options.rank), Path(options.folder), options.method, options.steps, options.counters)
        return
    before = machine()
    parameters = sum(parameter.numel() for parameter in make_model().parameters())
    print(f"{parameters:,} parameters, load {before['load']}")
    found = [row for link in links() for row in over(link, options.steps)]
    keep(options.json, before, parameters=parameters, rows=found)


if __name__ == "__main__":
    main()
