"""Gradients of networks by torch: its layers for the one description of each in rbd_ref/models/architectures.py.

A network is a module with one parameter: theta, flat, in the layout of its description. So the gradient is one vector
of D numbers as it comes from torch, and no loop goes over parameters. Batch norm takes mean and variance from the
batch. Images come as (n, height, width, channels) and are seen as torch's channels-last.
Tests: tests/test_torch_backend.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from rbd_ref.models.architectures import EPSILON, Network, margins

KEPT = 8  # modules that are kept for the next step


class TorchLayers:
    """`architectures.Layers` of torch; images are (n, channels, height, width), channels last in memory."""

    def features(self, x: Tensor) -> int:
        """Channels, or numbers in a row: either way the second axis."""
        return x.shape[1]

    def dense(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        """x w + b with w (in, out)."""
        return torch.addmm(b, x, w)

    def conv2d(self, x: Tensor, w: Tensor, b: Tensor | None, *, stride: int, padding: str) -> Tensor:
        """A convolution with kernels (k, k, in, out); of `same` padding the odd zero comes after."""
        top, below, _ = margins(x.shape[2], w.shape[0], stride, padding)
        left, beyond, _ = margins(x.shape[3], w.shape[0], stride, padding)
        if (top, left) == (below, beyond):
            return functional.conv2d(x, w.permute(3, 2, 0, 1), b, stride, (top, left))
        return functional.conv2d(functional.pad(x, (left, beyond, top, below)), w.permute(3, 2, 0, 1), b, stride)

    def batch_norm(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """With mean and variance of the batch."""
        return functional.batch_norm(x, None, None, scale, shift, training=True, eps=EPSILON)

    def max_pool(self, x: Tensor) -> Tensor:
        """The largest of each 2 x 2 pixels."""
        return functional.max_pool2d(x, 2)

    def average_pool(self, x: Tensor) -> Tensor:
        """The mean of each channel over all pixels."""
        return x.mean(dim=(2, 3))

    def relu(self, x: Tensor) -> Tensor:
        """max(x, 0)."""
        return x.relu()

    def flatten(self, x: Tensor) -> Tensor:
        """Pixel by pixel, channels fastest."""
        return (x.permute(0, 2, 3, 1) if x.ndim == 4 else x).flatten(1)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y."""
        return x + y


class Flat(nn.Module):
    """A network whose only parameter is theta."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(network.D))
        self.network = network
        self.sizes = [size for layer in network.sizes for size in layer]

    def tensors(self) -> Iterator[Tensor]:
        """theta cut into tensors of the network's shapes."""
        for piece, shape in zip(torch.split(self.theta, self.sizes), self.network.shapes, strict=True):
            yield piece.view(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images (n, *input_shape)."""
        return self.network.apply(TorchLayers(), self.tensors(), x.permute(0, 3, 1, 2) if x.ndim == 4 else x)


@lru_cache(KEPT)
def module_of(network: Network, device: torch.device) -> Flat:
    """The module of a network, the same one for equal networks."""
    return Flat(network).to(device)


def loss_and_gradient(module: Flat, theta: Tensor, x: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """The mean softmax cross entropy of a batch at theta, and its gradient (D)."""
    with torch.no_grad():
        module.theta.copy_(theta)
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        loss = functional.cross_entropy(module(x), y)
        (g,) = torch.autograd.grad(loss, module.theta)
    return float(loss.detach()), g
