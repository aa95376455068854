"""The paper's networks as torch modules, each with one parameter: theta, flat, in the layout of rbd_ref.networks.

So the gradient is one vector of D numbers as it comes from torch, and no loop goes over parameters. Batch norm takes
mean and variance from the batch. Images come as (n, height, width, channels) and are seen as torch's channels-last.
Tests: tests/test_torch_backend.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from rbd_ref.models.layers import EPSILON, margins
from rbd_ref.models.networks import STAGES, Network

KEPT = 8  # modules that are kept for the next step


def dense(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """x w + b with w (in, out)."""
    return torch.addmm(b, x, w)


def conv2d(x: Tensor, w: Tensor, b: Tensor | None = None, stride: int = 1, padding: str = "valid") -> Tensor:
    """A convolution with kernels (k, k, in, out); of `same` padding the odd zero comes after, as in the reference."""
    (top, below, _), (left, beyond, _) = (margins(size, w.shape[0], stride, padding) for size in x.shape[2:])
    if (top, left) == (below, beyond):
        return functional.conv2d(x, w.permute(3, 2, 0, 1), b, stride, (top, left))
    return functional.conv2d(functional.pad(x, (left, beyond, top, below)), w.permute(3, 2, 0, 1), b, stride)


class Flat(nn.Module):
    """What the networks share: theta, and its tensors in order."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(network.D))
        self.shapes = network.shapes
        self.sizes = [size for layer in network.sizes for size in layer]
        self.layers = len(network.layers)

    def tensors(self) -> Iterator[Tensor]:
        """theta cut into tensors of the network's shapes."""
        for piece, shape in zip(torch.split(self.theta, self.sizes), self.shapes, strict=True):
            yield piece.view(shape)


class Mlp(Flat):
    """Fully connected layers with relu between them: `fc` and `mlp:...`."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        tensors = self.tensors()
        x = dense(x.flatten(1), next(tensors), next(tensors))
        for _ in range(1, self.layers):
            x = dense(x.relu(), next(tensors), next(tensors))
        return x


class Cnn(Flat):
    """Three convolutions, the first two with pooling, and two fully connected layers: `cnn`."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits; what the last convolution gives is flattened pixel by pixel."""
        tensors, x = self.tensors(), x.permute(0, 3, 1, 2)
        for _ in range(2):
            x = functional.max_pool2d(conv2d(x, next(tensors), next(tensors)), 2).relu()
        x = conv2d(x, next(tensors), next(tensors)).relu()
        x = dense(x.permute(0, 2, 3, 1).flatten(1), next(tensors), next(tensors)).relu()
        return dense(x, next(tensors), next(tensors))


class Resnet(Flat):
    """Residual blocks in three stages, the first of each with a convolution on its shortcut: `resnet8`, `resnet32`."""

    @property
    def blocks(self) -> int:
        """Blocks of a stage, from the number of layers: two and one at the ends, two on each shortcut, four a block."""
        return (self.layers - 3 - 2 * len(STAGES)) // (4 * len(STAGES))

    def forward(self, x: Tensor) -> Tensor:
        """Logits; the first blocks of stages two and three halve height and width."""
        tensors, x = self.tensors(), x.permute(0, 3, 1, 2)

        def convolution(x: Tensor, stride: int = 1) -> Tensor:
            x = conv2d(x, next(tensors), stride=stride, padding="same")
            return functional.batch_norm(x, None, None, next(tensors), next(tensors), training=True, eps=EPSILON)

        x = convolution(x).relu()
        for stage in range(len(STAGES)):
            for block in range(self.blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                shortcut = convolution(x, stride) if block == 0 else x
                x = (shortcut + convolution(convolution(x, stride).relu())).relu()
        return dense(x.mean(dim=(2, 3)), next(tensors), next(tensors))


@lru_cache(KEPT)
def module_of(network: Network, device: torch.device) -> Flat:
    """The module of a network of rbd_ref.networks."""
    kind = {"cnn": Cnn, "resnet8": Resnet, "resnet32": Resnet}.get(network.name, Mlp)
    return kind(network).to(device)


def loss_and_gradient(module: Flat, theta: Tensor, x: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """The mean softmax cross entropy of a batch at theta, and its gradient (D)."""
    with torch.no_grad():
        module.theta.copy_(theta)
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        loss = functional.cross_entropy(module(x), y)
        (g,) = torch.autograd.grad(loss, module.theta)
    return float(loss.detach()), g
