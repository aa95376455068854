"""An adapter whose random bases are not stored: they are made anew, with the same bits, wherever it is loaded.

    python examples/portable_adapter.py

A pretrained layer W is adapted as VeRA does it (Kopiczko et al. 2024): W + diag(b) B diag(d) A, where A and B are
random and frozen and only the vectors b and d are trained. Libraries that cannot promise the same random numbers on
every device store A and B too. Here a checkpoint holds a seed and the two vectors. The task is small: a network has
learnt the embedded digits, and is adapted to negatives of them, black and white exchanged.
"""

from __future__ import annotations

import io

import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn

import rbd_jax
import rbd_torch
from rbd_ref.data.datasets import load

RANK = 256
HIDDEN = 128


class PortableAdapter(nn.Module):
    """b * (B (d * (A x))); its state_dict has b, d and the seed, and no matrix."""

    def __init__(self, inputs: int, outputs: int, seed: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.b = nn.Parameter(torch.zeros(outputs))
        self.d = nn.Parameter(torch.full((RANK,), 0.1))
        self.register_buffer("seed", torch.tensor(seed))
        self._make_bases()

    def _make_bases(self) -> None:
        """A (rank, in) and B (out, rank), on the device of b: streams 0 and 1 of the seed."""
        seed, device = int(self.seed), self.b.device
        a = rbd_torch.randn((RANK, self.inputs), seed, stream=0, device=device) * self.inputs**-0.5
        b = rbd_torch.randn((len(self.b), RANK), seed, stream=1, device=device) * RANK**-0.5
        self.register_buffer("A", a, persistent=False)
        self.register_buffer("B", b, persistent=False)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: object) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._make_bases()

    def forward(self, x: Tensor) -> Tensor:
        """What is added to the output of the layer."""
        return self.b * ((self.d * (x @ self.A.T)) @ self.B.T)


class Adapted(nn.Module):
    """base(x) + adapter(x), of which only the adapter is trained."""

    def __init__(self, base: nn.Linear, seed: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.adapter = PortableAdapter(base.in_features, base.out_features, seed)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output and the adapter's."""
        return self.base(x) + self.adapter(x)


def network(first: nn.Module, last: nn.Linear) -> nn.Sequential:
    """Two layers."""
    return nn.Sequential(first, nn.ReLU(), last)


def fit(model: nn.Module, x: Tensor, y: Tensor, steps: int, rate: float) -> None:
    """Adam on all that can be trained."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)
    for step in range(steps):
        chosen = (rbd_torch.rand(64, seed=step) * len(y)).long()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of right answers."""
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def saved(state: dict[str, Tensor]) -> bytes:
    """A checkpoint."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def base_layers() -> tuple[nn.Linear, nn.Linear]:
    """Layers whose initial weights are portable too."""
    first, last = nn.Linear(64, HIDDEN), nn.Linear(HIDDEN, 10)
    with torch.no_grad():
        for stream, layer in enumerate((first, last)):
            layer.weight.copy_(rbd_torch.randn(layer.weight.shape, seed=0, stream=stream) * layer.in_features**-0.5)
            layer.bias.zero_()
    return first, last


def tasks() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Digits as they are, and their negatives, which the network has never seen."""
    digits = load("digits")
    x = torch.from_numpy(digits.train_images.reshape(-1, 64) / np.float32(16))
    y = torch.from_numpy(np.asarray(digits.train_labels, dtype=np.int64))
    return (x, y), (1 - x, y)


def same_in_jax(layer: Adapted, x: Tensor) -> tuple[bool, float]:
    """Whether JAX has the bits of A and B, and how far its outputs are from torch's: sums have orders of their own."""
    base, adapter = layer.base, layer.adapter
    seed, inputs = int(adapter.seed), jnp.asarray(x.numpy())
    a = rbd_jax.randn(tuple(adapter.A.shape), seed) * np.float32(adapter.A.shape[1] ** -0.5)
    b = rbd_jax.randn(tuple(adapter.B.shape), seed, stream=1) * np.float32(RANK**-0.5)
    equal = np.array_equal(a, adapter.A) and np.array_equal(b, adapter.B)
    vectors = [jnp.asarray(tensor.detach().numpy()) for tensor in (adapter.b, adapter.d, base.weight, base.bias)]
    y = inputs @ vectors[2].T + vectors[3] + vectors[0] * ((vectors[1] * (inputs @ a.T)) @ b.T)
    return bool(equal), float(np.abs(np.asarray(y) - layer(x).detach().numpy()).max())


def main(steps: int = 600) -> None:
    """Train the base, adapt it, save the adapter, load it elsewhere."""
    old, new = tasks()
    first, last = base_layers()
    fit(network(first, last), *old, steps, 3e-3)
    layer = Adapted(first, seed=7)
    model = network(layer, last.requires_grad_(False))
    before = accuracy(model, *new)
    fit(model, *new, steps, 3e-2)
    after = accuracy(model, *new)
    print(f"new task: {before:.1%} before, {after:.1%} with the adapter")

    adapter = layer.adapter
    checkpoint = saved(adapter.state_dict())
    stored = saved({**adapter.state_dict(), "A": adapter.A, "B": adapter.B})
    print(f"checkpoint: {len(checkpoint):,} bytes; with A and B in it {len(stored):,}")

    elsewhere = Adapted(first, seed=0)
    elsewhere.adapter.load_state_dict(torch.load(io.BytesIO(checkpoint), weights_only=True))
    print(f"loaded elsewhere, the outputs are equal to the bit: {torch.equal(elsewhere(new[0]), layer(new[0]))}")
    equal, distance = same_in_jax(layer, new[0][:100])
    print(f"in JAX, A and B are equal to the bit: {equal}; outputs differ by {distance:.0e} at most")


if __name__ == "__main__":
    main()
