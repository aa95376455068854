"""Convolutions to the bit: the sums of section 14 of the specification, term by term, in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbd_ref.kernels._fma import fused
from rbd_ref.models.architectures import margins
from rbd_ref.models.convolution import Conv2d

F32 = np.float32


class Definition:
    """y and the gradients of a convolution, by loops over the terms in their order."""

    def __init__(self, x: Any, w: Any, stride: int, padding: str) -> None:
        sides = [margins(size, w.shape[0], stride, padding) for size in x.shape[1:3]]
        self.wide = np.pad(x, ((0, 0), sides[0][:2], sides[1][:2], (0, 0)))
        self.inside = tuple(
            slice(before, before + size) for (before, _, _), size in zip(sides, x.shape[1:3], strict=True)
        )
        self.out = (len(x), sides[0][2], sides[1][2], w.shape[3])
        self.w = w
        self.stride = stride

    def patch(self, array: Any, p: int, q: int) -> Any:
        """The pixels of `array` that tap (p, q) meets, as a view (n, u, v, channels)."""
        _, rows, columns, _ = self.out
        s = self.stride
        return array[:, p : p + s * (rows - 1) + 1 : s, q : q + s * (columns - 1) + 1 : s]

    def forward(self, b: Any) -> Any:
        y = np.broadcast_to(b, self.out).copy()
        for p, q, c in np.ndindex(self.w.shape[:3]):
            y = fused(self.patch(self.wide, p, q)[..., c : c + 1], self.w[p, q, c], y)
        return y

    def to_weights(self, g: Any) -> Any:
        dw = np.zeros_like(self.w)
        for p, q in np.ndindex(self.w.shape[:2]):
            patch = self.patch(self.wide, p, q)
            for n, u, v in np.ndindex(self.out[:3]):
                dw[p, q] = fused(patch[n, u, v][:, np.newaxis], g[n, u, v], dw[p, q])
        return dw

    def to_images(self, g: Any) -> Any:
        wide = np.zeros_like(self.wide)
        for p, q in np.ndindex(self.w.shape[:2]):
            target = self.patch(wide, p, q)
            for j in range(self.w.shape[3]):
                target[...] = fused(g[..., j : j + 1], self.w[p, q, :, j], target)
        return wide[:, self.inside[0], self.inside[1]]


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Any, ...]:
    k = draw(st.integers(1, 4))
    padding = draw(st.sampled_from(["valid", "same"]))
    least = k if padding == "valid" else 1
    x = (draw(st.integers(1, 3)), draw(st.integers(least, 9)), draw(st.integers(least, 9)), draw(st.integers(1, 5)))
    return x, k, draw(st.integers(1, 20)), draw(st.integers(1, 3)), padding, draw(st.integers(0, 2**32))


def check(shape: tuple[int, ...], k: int, j: int, stride: int, padding: str, seed: int) -> None:
    """Forwards and backwards, twice, as arrays are used again."""
    layer = Conv2d(F32, shape, (k, k, shape[3], j), stride=stride, padding=padding)
    generator = np.random.default_rng(seed)
    for _ in range(2):
        x, w, b, g = (
            generator.standard_normal(size, dtype=F32) for size in (shape, (k, k, shape[3], j), (j,), layer.shape)
        )
        definition = Definition(x, w, stride, padding)
        dx, dw, db = np.empty_like(x), np.empty_like(w), np.empty_like(b)
        assert np.array_equal(layer.forward(x, w, b), definition.forward(b))
        layer.backward(g.copy(), (dx, dw, db))
        assert np.array_equal(dx.view(np.int32), definition.to_images(g).view(np.int32))
        assert np.array_equal(dw.view(np.int32), definition.to_weights(g).view(np.int32))


@given(convolutions())
def test_a_convolution_and_its_gradients_are_their_definitions_to_the_bit(case: tuple[Any, ...]) -> None:
    check(*case)


@pytest.mark.parametrize(
    ("shape", "k", "j", "stride", "padding"),
    [
        ((2, 9, 9, 16), 3, 16, 1, "same"),
        ((2, 9, 8, 16), 3, 33, 2, "same"),
        ((3, 7, 7, 40), 3, 16, 1, "valid"),
        ((2, 6, 6, 32), 1, 32, 2, "same"),
    ],
)
def test_convolutions_of_several_tiles_and_vectors(
    shape: tuple[int, ...], k: int, j: int, stride: int, padding: str
) -> None:
    check(shape, k, j, stride, padding, 0)
