"""From bytes to what a network is given: scaled or standardised, and changed at random while training.

Specified to the bit, so that any implementation can feed a network the same floats. Pixels are bytes x, images
height x width x channels; n is the number of bytes of an image.

Words: the image at position p of epoch e (see batches.py) has the key k = fold_in(stream_key(seed, "augmentation"), e)
and the blocks threefry(k, (p, 0)) = (r, c) and threefry(k, (p, 1)) = (b, unused). They do not depend on the number of
workers, nor on what was drawn before.

Augmentation, in this order, of the bytes:
 1. `mnist`, `fashion-mnist`: 3 rows and columns of zeros on every side, `cifar-10`: 4; then the window of the original
    size whose upper left corner is row (r m) >> 32, column (c m) >> 32, where m = 7 or 9 is the number of windows.
 2. `cifar-10`: columns in reverse order if bit 31 of b is set.
Then numbers, for training and evaluation alike, each operation rounded once to nearest even:
 3. `mnist`, `fashion-mnist`: x / 255 in float32; `digits`: x / 16 in float32.
    `cifar-10`: (n x - s) / sqrt(max(n q - s^2, 255^2 n)) in float64, then rounded to float32, where s is the sum and q
    the sum of squares of the image's bytes: mean 0 and variance 1, but taken as if its deviation were 255 / sqrt(n) at
    least.
 4. Augmentation of `mnist`, `fashion-mnist`: + ((b >> 8) 2^-24 - 0.5) in float32, uniform in [-0.5, 0.5); not clipped.
`digits` are not augmented.
Tests: tests/test_data.py.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from rbd_ref._check import member
from rbd_ref._types import Bytes, Float32Array, Indices, Words
from rbd_ref.kernels._jit import kernel
from rbd_ref.kernels.prng import threefry2x32
from rbd_ref.spec.prng import fold_in, stream_key


class Recipe(NamedTuple):
    """What is done to the images of a data set: `scale` 0 is standardisation, `pad` the border on every side."""

    scale: int
    pad: int = 0
    flip: bool = False
    brightness: bool = False


RECIPES = {
    "digits": Recipe(scale=16),
    "mnist": Recipe(scale=255, pad=3, brightness=True),
    "fashion-mnist": Recipe(scale=255, pad=3, brightness=True),
    "cifar-10": Recipe(scale=0, pad=4, flip=True),
}


@kernel
def fill_standardised(x: Bytes, out: Float32Array) -> None:
    """Step 3 of the specification for `cifar-10`, of images (count, n): sums of integers, then two roundings.

    An image has 256 different bytes at most, so their quotients are looked up: a division for each byte takes longer.
    """
    n = x.shape[1]
    table = np.empty(256, np.float32)
    for i in range(x.shape[0]):
        total = 0
        square = 0
        for j in range(n):
            total += int(x[i, j])
            square += int(x[i, j]) * int(x[i, j])
        root = math.sqrt(max(n * square - total * total, 255**2 * n))
        for byte in range(256):
            table[byte] = np.float32((n * byte - total) / root)
        for j in range(n):
            out[i, j] = table[x[i, j]]


def flat(images: Bytes) -> Bytes:
    """A row for each image, only to be read: kernels are compiled once, whether the images may be written or not."""
    rows = np.ascontiguousarray(images).reshape(len(images), -1)
    rows.flags.writeable = False
    return rows


def standardise(images: Bytes) -> Float32Array:
    """Images with mean 0 and variance 1."""
    out = np.empty(images.shape, dtype=np.float32)
    fill_standardised(flat(images), out.reshape(len(images), -1))
    return out


@kernel
def fill_scaled(x: Bytes, scale: np.float32, added: Float32Array, out: Float32Array) -> None:
    """Steps 3 and 4 of the specification for all but `cifar-10`, of images (count, n): x / scale + added[image]."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = np.float32(x[i, j]) / scale + added[i]


def scaled(images: Bytes, scale: int, added: Float32Array) -> Float32Array:
    """Images divided by a number, with a brightness added to each."""
    out = np.empty(images.shape, dtype=np.float32)
    fill_scaled(flat(images), np.float32(scale), added, out.reshape(len(images), -1))
    return out


def network_input(name: str, images: Bytes) -> Float32Array:
    """Images (count, height, width, channels) of the data set `name` as a network takes them, not augmented."""
    recipe = RECIPES[member("name", name, RECIPES)]
    if not recipe.scale:
        return standardise(images)
    return scaled(images, recipe.scale, np.zeros(len(images), dtype=np.float32))


@lru_cache(maxsize=4)
def epoch_key(seed: int, epoch: int) -> Words:
    """The key of an epoch, not to be written to."""
    key = fold_in(stream_key(seed, "augmentation"), epoch)
    key.flags.writeable = False
    return key


@kernel
def blocks(k0: np.uint32, k1: np.uint32, positions: Indices) -> Words:
    """The words (2, 2, count) of both blocks at these positions: r and b, then c and what is unused."""
    words = np.empty((2, 2, positions.size), np.uint32)
    for j in range(2):
        for i in range(positions.size):
            words[0, j, i], words[1, j, i] = threefry2x32(k0, k1, np.uint32(positions[i]), np.uint32(j))
    return words


@kernel
def crop(images: Bytes, pad: int, corners: Words) -> Bytes:
    """Windows of images with zeros around them: step 1, with `corners` the words (r, c).

    All bytes of an image move by as many places, in one long loop between two slices, which the compiler makes a copy
    of whole vectors; then the columns that have come from the row before or after become zero.
    """
    count, height, width, channels = images.shape
    row = width * channels
    size = height * row
    windows = np.zeros_like(images)
    sources, targets = images.reshape((count, size)), windows.reshape((count, size))
    for i in range(count):
        top = (int(corners[0, i]) * (2 * pad + 1) >> 32) - pad
        left = (int(corners[1, i]) * (2 * pad + 1) >> 32) - pad
        move = (top * width + left) * channels
        first, length, aside = max(0, -move), size - abs(move), abs(left) * channels
        source, target = sources[i, first + move : first + move + length], targets[i, first : first + length]
        for j in range(length):
            target[j] = source[j]
        for y in range(height):
            begin = y * row + (row - aside if left > 0 else 0)
            for j in range(aside):
                targets[i, begin + j] = 0
    return windows


@kernel
def flip(images: Bytes, chosen: Bytes) -> None:
    """Step 2, in place, of the images that are chosen."""
    _, height, width, channels = images.shape
    for i in np.flatnonzero(chosen):
        for y in range(height):
            for x in range(width // 2):
                for c in range(channels):
                    first = images[i, y, x, c]
                    images[i, y, x, c] = images[i, y, width - 1 - x, c]
                    images[i, y, width - 1 - x, c] = first


def augmented(name: str, images: Bytes, seed: int, epoch: int, positions: Indices) -> Float32Array:
    """Images as a network takes them in training; `positions` are those of the images in the epoch."""
    recipe = RECIPES[member("name", name, RECIPES)]
    if not recipe.pad:
        return network_input(name, images)
    k0, k1 = epoch_key(seed, epoch)
    words = blocks(k0, k1, np.asarray(positions))
    corners = words[:, 0]
    b = words[0, 1]
    windows = crop(images, recipe.pad, corners)
    if recipe.flip:
        flip(windows, (b >> np.uint32(31)).astype(np.uint8))
    if not recipe.brightness:
        return network_input(name, windows)
    delta = (b >> np.uint32(8)).astype(np.float32) * np.float32(2**-24) - np.float32(0.5)
    return scaled(windows, recipe.scale, delta)
