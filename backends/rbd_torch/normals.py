"""Box-Muller on tensors, to the bit of the specification.

No step is one that torch may fuse (`addcmul`, `add` of floats with `alpha`). `sqrt` is not used: on the CPU it is
MKL's, whose float32 root is not correctly rounded, and whose float64 root was seen to be far less exact in the first
calls of two threads at once. There is no `torch.where`, which on the CPU costs as much as thirty additions.
Specification: docs/specification.md, section 4.1.
Tests: tests/test_torch_backend.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rbd_ref.spec import families as spec
from rbd_ref.spec.families import LARGEST, THRESHOLD
from rbd_torch.words import SIGN, Pair, shift_right

Q5, Q4, Q3, Q2, Q1, Q0 = (float(q) for q in (spec.Q5, spec.Q4, spec.Q3, spec.Q2, spec.Q1, spec.Q0))
S2, S1, S0, C3, C2, C1 = (float(c) for c in (spec.S2, spec.S1, spec.S0, spec.C3, spec.C2, spec.C1))
TWO_LN_2 = float(spec.TWO_LN_2)


def root(x: Tensor) -> Tensor:
    """The square root of floats above 0, correctly rounded: x / sqrt(x) in float64, rounded once more.

    Three operations are off by 3 2^-53 at most, and the root of a float32 is never nearer than 2^-51 of it to where
    rounding turns. A device without float64 has it taken on the CPU."""
    if x.device.type == "mps":
        return root(x.cpu()).to(x.device)
    wide = x.double()
    return wide.mul_(wide.rsqrt()).float()


def radius(x0: Tensor) -> Tensor:
    """r = sqrt(-2 ln u): m, in [2/3, 4/3), and the exponent are read from the bits of the float."""
    bits = shift_right(x0, 1).bitwise_or_(1).clamp_(max=LARGEST).float().view(torch.int32)
    e = (bits - int(THRESHOLD)) >> 23
    z = (bits - (e << 23)).view(torch.float32) - 1.0
    q = z * Q5
    for constant in (Q4, Q3, Q2, Q1, Q0):
        q = q.add_(constant).mul_(z)
    return root(q.add_((31 - e).float().mul_(TWO_LN_2)))


def normal(x0: Tensor, x1: Tensor) -> Pair:
    """Box-Muller: elements 2p and 2p + 1 from block p; bit 30 exchanges them by exclusive or of their bits."""
    f = shift_right(x1, 7).bitwise_and_(0x7FFFFE).bitwise_or_(1).float().mul_(2.0**-22).sub_(1.0)
    w = f * f
    sine = (w * S2).add_(S1).mul_(w).add_(S0).mul_(f)
    cosine = (w * C3).add_(C2).mul_(w).add_(C1).mul_(w).add_(1.0)
    r = radius(x0)
    a = cosine.mul_(r).view(torch.int32).bitwise_xor_(x1 & SIGN)
    b = sine.mul_(r).view(torch.int32)
    exchange = ((x1 << 1) >> 31).bitwise_and_(a ^ b)
    return (a ^ exchange).view(torch.float32), (b ^ exchange).view(torch.float32)
