"""Gradients of networks by torch: its layers for the one description of each in rbd_ref/models/architectures.py.

The parameters are parts of theta where it lies, and their gradients parts of one array of D numbers that is used again
for a later step: nothing of D numbers is copied or made anew. Torch makes the gradient of a tensor and adds it to its
place, one tensor after the other. Batch norm takes mean and variance from the batch. Images come as
(n, height, width, channels) and are seen as torch's channels-last.
Tests: tests/test_torch_backend.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from rbd_ref._types import Float32Array
from rbd_ref.models.architectures import EPSILON, Network, margins
from rbd_ref.models.plan import gradient_array


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


def places(network: Network, flat: Tensor) -> Iterator[Tensor]:
    """The tensors of a network, as parts of D numbers."""
    sizes = [size for layer in network.sizes for size in layer]
    for part, shape in zip(torch.split(flat, sizes), network.shapes, strict=True):
        yield part.view(shape)


def trained(network: Network, theta: Tensor, g: Tensor) -> Iterator[Tensor]:
    """The tensors of theta, each with its place in g as the gradient that torch adds to."""
    for tensor, gradient in zip(places(network, theta), places(network, g), strict=True):
        tensor.requires_grad_().grad = gradient
        yield tensor


def loss_and_gradient(network: Network, theta: Tensor, x: Tensor, y: Tensor) -> tuple[float, Float32Array]:
    """The mean softmax cross entropy of a batch at theta, and its gradient (D), an array that the caller may keep.

    On a CPU torch adds to this very array; from another device it is copied into it."""
    gradient = gradient_array(network.D)
    here = torch.from_numpy(gradient)
    g = here.zero_() if theta.is_cpu else torch.zeros_like(theta)
    images = x.permute(0, 3, 1, 2) if x.ndim == 4 else x
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        loss = functional.cross_entropy(network.apply(TorchLayers(), trained(network, theta, g), images), y)
        torch.autograd.backward(loss)
    here.copy_(g)  # on a CPU the same tensor, which torch leaves alone
    return loss.item(), gradient
