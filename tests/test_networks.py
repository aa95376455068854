"""Layers against definitions and numerical gradients, networks against the paper's counts and backprop by hand."""

from __future__ import annotations

import copy
import doctest
import functools
import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from autograd import make_vjp
from autograd.test_util import check_grads

from rbd_ref import compartments, prng
from rbd_ref.conformance.cases import pseudo_random
from rbd_ref.models import architectures, layers, names, networks
from rbd_ref.models.architectures import Builder, Network
from tools import bits, run_python

F32 = np.float32
IMAGES = {"fc": (4, 4, 1), "mlp:16-5-3": (4, 4, 1), "cnn": (18, 18, 1), "resnet8": (3, 2, 1)}


def numbers(seed: int, *shape: int, dtype: Any = np.float64) -> Any:
    return pseudo_random(seed, math.prod(shape)).reshape(shape).astype(dtype)


def vjp(function: Callable[..., Any], x: Any) -> tuple[Callable[..., Any], Any]:
    """What takes a gradient with respect to function(x) to that with respect to x, and function(x)."""
    found: tuple[Callable[..., Any], Any] = make_vjp(function)(x)
    return found


def random_batch(network: networks.Network, n: int, scale: float = 1.0) -> tuple[Any, Any]:
    """Images of numbers between -scale and scale, and classes in turn."""
    return F32(scale) * numbers(5, n, *network.input_shape, dtype=F32), np.arange(n) % network.classes


# Architectures


@pytest.mark.parametrize(
    ("name", "shape", "D"),
    [
        ("fc", (28, 28, 1), 101_770),
        ("fc", (784,), 101_770),
        ("fc", (32, 32, 3), 394_634),
        ("cnn", (28, 28, 1), 93_322),
        ("cnn", (32, 32, 3), 122_570),
        ("resnet8", (32, 32, 3), 78_330),
        ("resnet32", (32, 32, 3), 467_194),
        ("mlp:784-128-10", (28, 28, 1), 101_770),
    ],
)
def test_parameter_counts_are_the_papers(name: str, shape: tuple[int, ...], D: int) -> None:
    network = networks.make(name, shape, 10)
    assert network.D == D
    assert networks.initialise(network, 0).shape == (D,)
    assert compartments.by_layer(network.sizes, d=1).D == D
    assert len(network.shapes) == compartments.by_tensor(network.sizes, d=1).K


def test_layers_are_the_papers() -> None:
    assert len(networks.make("cnn", (28, 28, 1), 10).layers) == 5
    assert len(networks.make("resnet8", (32, 32, 3), 10).layers) == 21  # the paper's d = 42 with 2 for each


def test_an_mlp_has_all_it_needs_in_its_name() -> None:
    network = networks.make("mlp:64-32-16-10")
    assert (network.input_shape, network.classes) == ((64,), 10)
    assert network.sizes == ((64 * 32, 32), (32 * 16, 16), (16 * 10, 10))
    assert network == networks.make("mlp:64-32-16-10", (64,), 10)
    assert "forward" not in repr(network)


def test_names_list_layers() -> None:
    shape = (32, 32, 3)
    assert networks.make("cnn:32-64-64/64", shape, 10).forward == networks.make("cnn", shape, 10).forward
    assert networks.make("cnn:4", shape, 10).sizes == ((3 * 3 * 3 * 4, 4), (30 * 30 * 4 * 10, 10))
    assert networks.make("cnn:4-5/6-7", shape, 10).sizes == (
        (3 * 3 * 3 * 4, 4), (3 * 3 * 4 * 5, 5), (13 * 13 * 5 * 6, 6), (6 * 7, 7), (7 * 10, 10)
    )  # fmt: skip
    assert networks.make("layers:", shape, 10).sizes == ((3072 * 10, 10),)
    listed = networks.make("layers:conv4k5s2same-norm-relu-pool-conv6k1-mean-dense7-relu", shape, 10)
    assert listed.shapes == ((5, 5, 3, 4), (4,), (4,), (4,), (1, 1, 4, 6), (6,), (6, 7), (7,), (7, 10), (10,))
    assert listed == networks.make(listed.name, shape, 10)
    small = networks.make("layers:conv2s2same-norm-relu-pool-mean", (4, 4, 1), 3)
    x, y = random_batch(small, 2)
    assert np.isfinite(networks.loss_and_gradient(small, networks.initialise(small, 0), x, y)[1]).all()


# A network of one's own


def own(net: Builder[Any], x: Any) -> Any:
    """Every layer, none in the place where the paper's networks have it."""
    y = net.relu(net.batch_norm(net.conv2d(x, 3, k=3, stride=2, padding="same")))
    y = net.add(y, net.conv2d(x, 3, k=1, stride=2, padding="same", bias=False))
    y = net.relu(net.conv2d(net.max_pool(y), 4, k=2))
    return net.dense(net.relu(net.dense(net.average_pool(y), 5)), net.classes)


def other(net: Builder[Any], x: Any) -> Any:
    """The tensors of `own`, without its relus."""
    y = net.batch_norm(net.conv2d(x, 3, k=3, stride=2, padding="same"))
    y = net.add(y, net.conv2d(x, 3, k=1, stride=2, padding="same", bias=False))
    y = net.conv2d(net.max_pool(y), 4, k=2)
    return net.dense(net.dense(net.average_pool(y), 5), net.classes)


OWN = Network("mine", (9, 8, 2), 3, own)
OTHER = Network("mine", (9, 8, 2), 3, other)


def test_a_network_of_ones_own_is_one_function() -> None:
    assert OWN.sizes == ((3 * 3 * 2 * 3, 3), (3, 3), (2 * 3,), (2 * 2 * 3 * 4, 4), (4 * 5, 5), (5 * 3, 3))
    assert OWN.has_batch_norm
    assert Network("mine", [9, 8, 2], 3, own) == OWN  # type: ignore[arg-type]
    x, y = random_batch(OWN, 6)
    theta = networks.initialise(OWN, 1)
    value, gradient = networks.loss_and_gradient(OWN, theta, x, y)
    assert gradient.shape == (OWN.D,)
    assert networks.loss(OWN, theta - F32(0.05) * gradient, x, y) < value
    assert networks.predictions(OWN, theta, x, calibration=x).shape == (6,)


def test_networks_with_the_same_tensors_that_compute_something_else_are_not_equal() -> None:
    """What is compiled for one would be used for the other."""
    assert OTHER.layers == OWN.layers
    assert OTHER != OWN
    assert networks.make("resnet8", (32, 32, 3), 10) == networks.make("resnet8", (32, 32, 3), 10)
    assert len({networks.make("mlp:4-3-2"), networks.make("mlp:4-3-2"), networks.make("mlp:4-5-2")}) == 2


class Mutable(list):
    """Has no hash."""

    def __call__(self, net: Builder[Any], x: Any) -> Any:
        return net.dense(net.flatten(x), net.classes)


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (None, "forward of network 'mine' is None, expected a function of a Builder and images"),
        (Mutable(), "network 'mine' has no hash .* frozen=True"),
        (
            lambda net, x: net.dense(x, net.classes),
            r"dense meets an input of shape \(4, 4, 2\), .* call flatten before it",
        ),
        (lambda net, x: net.dense(net.flatten(x), 7), r"it ends in the shape \(7,\), with 1 layers .* to 3 logits"),
        (lambda net, x: (3,), "with 0 layers that have tensors"),
        (lambda net, x: net.dropout(x), "has no attribute 'dropout'"),
        (lambda net, x: net.conv2d(x, 0, k=3), "a side of a tensor is 0"),
        (
            lambda net, x: net.conv2d(x, 3, k=3, padding="full"),
            "padding 'full' is unknown, expected one of same, valid",
        ),
        (
            lambda net, x: net.conv2d(net.flatten(x), 3, k=1),
            r"conv2d meets an input of shape \(32,\), expected \(height",
        ),
        (lambda net, x: net.max_pool(net.max_pool(net.max_pool(x))), "max_pool meets an image of 1 x 1 pixels"),
        (lambda net, x: net.add(x, net.conv2d(x, 3, k=1)), r"add meets the shapes \(4, 4, 2\) and \(4, 4, 3\)"),
        (lambda net, x: net.batch_norm(net.flatten(x)), "batch_norm meets an input"),
        (lambda net, x: net.average_pool(net.flatten(x)), "average_pool meets an input"),
    ],
)
def test_a_network_that_no_library_can_run_is_one_sentence(forward: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words) as caught:
        Network("mine", (4, 4, 2), 3, forward)
    assert "'mine'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_descriptions_need_no_library() -> None:
    script = "import sys, rbd_ref.models.architectures; print({'autograd', 'torch', 'jax'} & set(sys.modules))"
    assert run_python("-c", script).stdout == "set()\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("vgg", (32, 32, 3), 10), "'vgg' is unknown, expected one of cnn, cnn:32-64-64/64, fc, layers:.*, mlp:64"),
        (("cnn:", (32, 32, 3), 10), "network 'cnn:' has no widths that can be read, expected cnn: and 1 to 1000 num"),
        (("cnn:32-x", (32, 32, 3), 10), "as in cnn:32-64-64/64"),
        (("cnn:32/", (32, 32, 3), 10), "has no widths"),
        (("cnn:/64", (32, 32, 3), 10), "has no widths"),
        (("cnn:32/64/10", (32, 32, 3), 10), "has no widths"),
        (("cnn:0-32", (32, 32, 3), 10), "from 1 up"),
        (("cnn:32-64-64-64-64", (32, 32, 3), 10), "conv2d meets an image of .* of which it leaves none"),
        (("cnn:32-64",), "give the shape of one image"),
        (("layers:conv32-drop", (32, 32, 3), 10), "has no layer 'drop' that can be read, expected conv32, conv32k5s2"),
        (("layers:conv", (32, 32, 3), 10), "has no layer 'conv'"),
        (("layers:conv32same5", (32, 32, 3), 10), "has no layer 'conv32same5'"),
        (("layers:dense4--relu", (32, 32, 3), 10), "has no layer ''"),
        (("layers:conv0", (32, 32, 3), 10), "a side of a tensor is 0"),
        (("layers:conv3s0", (32, 32, 3), 10), "stride is 0, expected 1 <="),
        (("layers:dense3-pool", (32, 32, 3), 10), r"max_pool meets an input of shape \(3,\)"),
        (("layers:" + "-".join(["relu"] * 1001), (32, 32, 3), 10), "has 1001 layers, more that"),
        (("mlp:64", None, None), "2 to 1000 numbers"),
        (("mlp:64-" + "1-" * 20_000 + "10",), "network 'mlp:64-1-1-1...-1-1-1-1-1-10' has no widths that can be read"),
        (("mlp:64-" + "9" * 5000 + "-10",), "of 10 digits at most"),
        (("mlp:64-x-10", None, None), "as in mlp:64-32-10"),
        (("mlp:64-0-10", None, None), "from 1 up"),
        (("mlp:64-32-1", None, None), "classes is 1, expected 2 <="),
        (("mlp:64-32-10", (8, 7), 10), r"from 64 numbers .* input_shape \(8, 7\)"),
        (("mlp:64-32-10", (8, 8), 9), "classes 9"),
        (("cnn", (17, 32, 3), 10), r"\(17, 32, 3\) \(conv2d meets an image of 2 x 6 pixels, of which it leaves none\)"),
        (("cnn", (32, 32), 10), r"expected \(height, width, channels\)"),
        (("resnet8", (1024,), 10), r"expected \(height, width, channels\)"),
        (("fc", None, 10), "give the shape of one image"),
        (("fc", (28, 0), 10), "a side of input_shape is 0"),
        (("fc", (28, 28), 1), "classes is 1, expected 2 <="),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_sentence(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        networks.make(*arguments)


def test_a_name_that_is_none_or_classes_that_are_missing_are_refused() -> None:
    with pytest.raises(TypeError, match="expected one of the names"):
        networks.make(7, (4,), 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="classes is None"):
        networks.make("fc", (4,))


@pytest.mark.parametrize("name", sorted(IMAGES))
def test_theta_comes_back_from_its_tensors(name: str) -> None:
    network = networks.make(name, IMAGES[name], 3)
    theta = np.arange(network.D, dtype=F32)
    tensors = networks.unflatten(network, theta)
    assert [tensor.shape for tensor in tensors] == list(network.shapes)
    np.testing.assert_array_equal(np.concatenate([tensor.ravel() for tensor in tensors]), theta)


# Where theta starts


GOLDEN = {
    ("fc", (28, 28, 1), 0): "df9ee391cbe175cc",
    ("cnn", (32, 32, 3), 0): "0f24ed7500d6d119",
    ("cnn", (32, 32, 3), 2**63 + 1): "f1d2f588815a4382",
    ("resnet8", (32, 32, 3), 0): "10d855a37040df5e",
}


@pytest.mark.parametrize(("case", "expected"), GOLDEN.items())
def test_theta0_is_a_function_of_the_seed(case: tuple[str, tuple[int, ...], int], expected: str) -> None:
    name, shape, seed = case
    theta = networks.initialise(networks.make(name, shape, 10), seed)
    assert hashlib.sha256(theta.astype("<f4").tobytes()).hexdigest()[:16] == expected


def test_theta0_is_what_the_specification_says() -> None:
    """By the words: fold the number of the tensor, take (2 (x >> 8) + 1) 2^-24 - 1, multiply."""
    network = networks.make("mlp:3-3-2")
    theta = networks.initialise(network, 9)
    key = prng.fold_in(prng.stream_key(9, "initialisation"), 2)
    words = prng.threefry2x32(key, np.array([[0, 0, 0], [0, 1, 2]], dtype=np.uint32)).T.ravel()
    uniform = [(2 * (int(word) >> 8) + 1) * 2.0**-24 - 1 for word in words]
    limit = float(F32(math.sqrt(6 / 5)))
    np.testing.assert_array_equal(theta[12:18], np.array([limit * u for u in uniform]).astype(F32))
    assert not theta[9:12].any()
    assert not theta[18:].any()


@pytest.mark.parametrize("name", ["fc", "cnn", "resnet8"])
def test_glorot_uniform_has_its_limits_and_its_variance(name: str) -> None:
    network = networks.make(name, (32, 32, 3), 10)
    tensors = networks.unflatten(network, networks.initialise(network, 1))
    for tensor in (tensor for tensor in tensors if tensor.ndim > 1):
        fans = tensor.size / tensor.shape[-1] + tensor.size / tensor.shape[-2]
        limit = math.sqrt(6 / fans)
        assert 0.9 * limit < np.abs(tensor).max() <= limit * (1 + 1e-6)
        # the variance of (2 / fans) has a relative standard deviation of sqrt(0.8 / size)
        assert abs(tensor.astype(float).var() * fans / 2 - 1) < 5 * math.sqrt(0.8 / tensor.size)
        assert abs(tensor.astype(float).mean()) < 5 * math.sqrt(2 / fans / tensor.size)


def test_batch_norm_starts_with_scale_one_and_shift_zero() -> None:
    network = networks.make("resnet8", (4, 4, 1), 2)
    tensors = networks.unflatten(network, networks.initialise(network, 1))
    assert [tensor[0] for tensor in tensors[:3]][1:] == [1, 0]
    assert all((a == 1).all() and not b.any() for a, b in zip(tensors[1:-2:3], tensors[2:-2:3], strict=True))
    assert not tensors[-1].any()


def test_equal_networks_start_alike() -> None:
    """Scale or shift follows from the position: equal shapes may be one and the same tuple."""
    network = networks.make("resnet8", (4, 4, 1), 2)
    twin = copy.copy(network)
    one_of_each = functools.cache(lambda shape: shape)
    object.__setattr__(twin, "layers", tuple(tuple(map(one_of_each, layer)) for layer in network.layers))
    assert twin == network
    np.testing.assert_array_equal(networks.initialise(twin, 1), networks.initialise(network, 1))


# Layers


def direct_convolution(x: Any, w: Any, b: Any, stride: int, padding: str) -> Any:
    """The definition of `conv2d`: a sum over the places of the kernel, on images with zeros around them."""
    k = w.shape[0]
    sides = [architectures.margins(size, k, stride, padding) for size in x.shape[1:3]]
    wide = np.pad(x, ((0, 0), sides[0][:2], sides[1][:2], (0, 0)))
    out = np.zeros((len(x), sides[0][2], sides[1][2], w.shape[3])) + b
    for dy in range(k):
        for dx in range(k):
            part = wide[:, dy:, dx:][:, ::stride, ::stride][:, : out.shape[1], : out.shape[2]]
            out = out + part @ w[dy, dx]
    return out


CONVOLUTIONS = [
    ((1, 3, 3, 1), 3, 1, 1, "valid"),
    ((2, 5, 4, 2), 3, 3, 1, "valid"),
    ((5, 4, 3, 1), 3, 2, 1, "same"),
    ((2, 5, 4, 2), 3, 2, 2, "same"),
    ((1, 6, 7, 1), 3, 2, 2, "valid"),
    ((2, 5, 4, 3), 1, 2, 2, "same"),
]


@pytest.mark.parametrize(("shape", "k", "out", "stride", "padding"), CONVOLUTIONS)
def test_convolution_and_its_gradients(shape: tuple[int, ...], k: int, out: int, stride: int, padding: str) -> None:
    x, w, b = numbers(1, *shape), numbers(2, k, k, shape[3], out), numbers(3, out)
    np.testing.assert_allclose(
        layers.conv2d(x, w, b, stride=stride, padding=padding), direct_convolution(x, w, b, stride, padding), rtol=1e-12
    )
    check_grads(lambda *args: layers.conv2d(*args, stride=stride, padding=padding), modes=["rev"], order=1)(x, w, b)
    check_grads(lambda x, w: layers.conv2d(x, w, stride=stride, padding=padding), modes=["rev"], order=1)(x, w)


def test_same_padding_puts_the_odd_zero_after() -> None:
    assert architectures.margins(32, 3, 1, "same") == (1, 1, 32)
    assert architectures.margins(32, 3, 2, "same") == (0, 1, 16)
    assert architectures.margins(5, 3, 2, "same") == (1, 1, 3)
    assert architectures.margins(32, 1, 2, "same") == (0, 0, 16)
    assert architectures.margins(7, 3, 2, "valid") == (0, 0, 3)


def test_pooling_takes_the_largest_and_leaves_odd_rows_out() -> None:
    x = numbers(1, 2, 5, 7, 3)
    expected = x[:, :4, :6].reshape(2, 2, 2, 3, 2, 3).max(axis=(2, 4))
    np.testing.assert_array_equal(layers.max_pool(x), expected)
    check_grads(layers.max_pool, modes=["rev"], order=1)(x)


@pytest.mark.parametrize(
    ("pixels", "place"), [([1, 1, 1, 1], 0), ([0, 2, 2, 1], 1), ([0, 1, 2, 2], 2), ([0, 1, 1, 2], 3), ([2, 0, 0, 2], 0)]
)
def test_the_gradient_of_pooling_goes_to_the_first_of_equals(pixels: list[int], place: int) -> None:
    x = np.array(pixels, dtype=F32).reshape(1, 2, 2, 1)
    back, _ = vjp(layers.max_pool, x)
    expected = np.zeros(4, dtype=F32)
    expected[place] = 7
    np.testing.assert_array_equal(back(np.full((1, 1, 1, 1), 7, dtype=F32)).ravel(), expected)


def test_relu_and_pooling_may_be_exchanged() -> None:
    """With ties too, and at zero: as cnn does it."""
    x = np.round(numbers(1, 2, 6, 6, 2)).astype(F32)
    one, y = vjp(lambda x: layers.relu(layers.max_pool(x)), x)
    other, z = vjp(lambda x: layers.max_pool(layers.relu(x)), x)
    np.testing.assert_array_equal(y, z)
    g = numbers(2, *y.shape, dtype=F32)
    np.testing.assert_array_equal(one(g), other(g))


def test_gradients_of_the_other_layers() -> None:
    x, scale, shift = numbers(1, 3, 2, 3, 2), 1 + numbers(2, 2) / 4, numbers(3, 2)
    check_grads(layers.batch_norm, modes=["rev"], order=1)(x, scale, shift)
    check_grads(layers.average_pool, modes=["rev"], order=1)(x)
    check_grads(layers.relu, modes=["rev"], order=1)(x)
    check_grads(layers.dense, modes=["rev"], order=1)(numbers(4, 3, 5), numbers(5, 5, 2), numbers(6, 2))
    check_grads(lambda logits: layers.cross_entropy(logits, np.array([0, 3, 1])), modes=["rev"], order=1)(
        numbers(7, 3, 4)
    )
    check_grads(lambda theta: layers.split(theta, ((2, 2), (3,)))[0] ** 2, modes=["rev"], order=1)(numbers(8, 7))


def test_batch_norm_and_average_pool_are_their_formulas() -> None:
    x, scale, shift = 3 + numbers(1, 3, 2, 3, 2), numbers(2, 2), numbers(3, 2)
    mean, variance = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
    for found, expected in zip(layers.moments(x), (mean, variance), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    expected = (x - mean) / np.sqrt(variance + architectures.EPSILON) * scale + shift
    np.testing.assert_allclose(layers.batch_norm(x, scale, shift), expected, rtol=1e-10)
    np.testing.assert_allclose(layers.average_pool(x), x.mean(axis=(1, 2)), rtol=1e-12)


def test_cross_entropy_bears_large_logits() -> None:
    logits = np.array([[1e4, 0, -1e4], [-3e38, 3e38, 0]], dtype=F32)
    back, value = vjp(lambda logits: layers.cross_entropy(logits, np.array([0, 1])), logits)
    assert value == 0
    np.testing.assert_array_equal(back(F32(1)), 0)
    assert layers.cross_entropy(logits, np.array([1, 1])) == 5000
    assert layers.cross_entropy(np.zeros((4, 10), dtype=F32), np.arange(4)) == F32(math.log(10))


PRIMITIVES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "dense": (layers.dense, [(2, 3), (3, 4), (4,)]),
    "conv2d": (layers.conv2d, [(2, 4, 4, 1), (3, 3, 1, 2), (2,)]),
    "conv2d, same": (lambda x, w: layers.conv2d(x, w, stride=2, padding="same"), [(1, 4, 4, 1), (3, 3, 1, 2)]),
    "max_pool": (layers.max_pool, [(1, 4, 4, 1)]),
    "average_pool": (layers.average_pool, [(1, 4, 4, 2)]),
    "batch_norm": (layers.batch_norm, [(2, 2, 2, 2), (2,), (2,)]),
    "relu": (layers.relu, [(3,)]),
    "cross_entropy": (lambda logits: layers.cross_entropy(logits, np.array([1, 0])), [(2, 3)]),
    "split": (lambda theta: layers.split(theta, ((2, 2), (1,)))[0], [(5,)]),
}


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_float32_stays_float32(name: str) -> None:
    function, shapes = PRIMITIVES[name]
    arguments = [numbers(seed, *shape, dtype=F32) for seed, shape in enumerate(shapes)]
    for place in range(len(arguments)):
        back, value = vjp(
            lambda x, place=place: function(*arguments[:place], x, *arguments[place + 1 :]), arguments[place]
        )
        gradient = back(np.ones_like(value))
        assert value.dtype == gradient.dtype == F32
        assert gradient.shape == arguments[place].shape


# Loss and gradient


def backprop(theta: Any, x: Any, y: Any, widths: tuple[int, int, int]) -> tuple[float, Any]:
    """Loss and gradient of one hidden layer, written by hand in NumPy's float64."""
    inputs, hidden, classes = widths
    theta, x = theta.astype(float), x.reshape(len(x), -1).astype(float)
    w1, b1, w2, b2 = np.split(theta, np.cumsum([inputs * hidden, hidden, hidden * classes]))
    w1, w2 = w1.reshape(inputs, hidden), w2.reshape(hidden, classes)
    h = np.maximum(x @ w1 + b1, 0)
    powers = np.exp(h @ w2 + b2)
    p = powers / powers.sum(axis=1, keepdims=True)
    d = (p - np.eye(classes)[y]) / len(x)
    e = (d @ w2.T) * (h > 0)
    gradient = np.concatenate([(x.T @ e).ravel(), e.sum(axis=0), (h.T @ d).ravel(), d.sum(axis=0)])
    return float(-np.log(p[np.arange(len(x)), y]).mean()), gradient


@pytest.mark.parametrize(
    ("name", "shape", "n"),
    [("mlp:16-5-3", (4, 4, 1), 6), pytest.param("fc", (28, 28, 1), 32, marks=pytest.mark.compiled)],
)
def test_the_gradient_is_that_of_backprop_by_hand(name: str, shape: tuple[int, ...], n: int) -> None:
    network = networks.make(name, shape, 3 if name != "fc" else 10)
    theta, (x, y) = networks.initialise(network, 3), random_batch(network, n)
    value, gradient = networks.loss_and_gradient(network, theta, x, y)
    expected = backprop(theta, x, y, (math.prod(shape), network.layers[0][0][1], network.classes))
    assert gradient.dtype == F32
    assert isinstance(value, float)
    assert value == pytest.approx(expected[0], abs=1e-5)
    assert networks.loss(network, theta, x, y) == value
    np.testing.assert_allclose(gradient, expected[1], atol=1e-5)


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["cnn", "resnet8"])
def test_the_gradient_is_the_slope_of_the_loss(name: str) -> None:
    """In float64, along random directions, with steps so short that no relu or maximum turns over on the way."""
    network = networks.make(name, (20, 19, 2) if name == "cnn" else (6, 5, 2), 4)
    x, y = (part.astype(dtype) for part, dtype in zip(random_batch(network, 5), (float, int), strict=True))
    theta = networks.initialise(network, 2).astype(float)
    back, _ = vjp(lambda theta: layers.cross_entropy(networks.apply(network, theta, x), y), theta)
    gradient, step = back(1.0), 1e-7
    for seed in range(3):
        direction = numbers(seed, network.D)
        ahead, behind = (
            layers.cross_entropy(networks.apply(network, theta + s * direction, x), y) for s in (step, -step)
        )
        assert (ahead - behind) / (2 * step) == pytest.approx(gradient @ direction, rel=1e-6, abs=1e-6)


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["fc", "cnn", "resnet8", "resnet32"])
def test_the_loss_starts_near_that_of_guessing_and_descends(name: str) -> None:
    network = networks.make(name, (32, 32, 3), 10)
    theta, (x, y) = networks.initialise(network, 0), random_batch(network, 20, scale=0.2)
    start = networks.loss(network, theta, x, y)
    assert abs(start - math.log(10)) < (0.3 if "resnet" not in name else 1.5)
    for _ in range(8):
        gradient = networks.loss_and_gradient(network, theta, x, y)[1]
        assert gradient.dtype == theta.dtype == F32
        assert np.isfinite(gradient).all()
        theta = theta - F32(0.05) * gradient
    assert networks.loss(network, theta, x, y) < start - 0.01


def test_a_small_network_learns() -> None:
    network = networks.make("mlp:4-6-2")
    theta, (x, y) = networks.initialise(network, 0), random_batch(network, 4)
    for _ in range(100):
        theta = theta - F32(1) * networks.loss_and_gradient(network, theta, x, y)[1]
    assert networks.loss(network, theta, x, y) < 0.1
    assert networks.accuracy(network, theta, x, y) == 1
    np.testing.assert_array_equal(networks.predictions(network, theta, x, batch=3), y)


@pytest.mark.parametrize("name", ["cnn", "resnet8"])
def test_convolutional_networks_give_float32_logits(name: str) -> None:
    network = networks.make(name, IMAGES[name], 3)
    x, _ = random_batch(network, 1)
    logits = networks.apply(network, networks.initialise(network, 0), x)
    assert logits.shape == (1, 3)
    assert logits.dtype == F32


def test_evaluation_takes_the_statistics_of_the_calibration_batch() -> None:
    """Not of what is evaluated: neither the batch nor its order matters."""
    network = networks.make("resnet8", (2, 1, 1), 3)
    theta, (x, y) = networks.initialise(network, 0), random_batch(network, 3)
    calibration = numbers(8, 2, 2, 1, 1, dtype=F32)
    together = networks.logits(network, theta, x, calibration)
    np.testing.assert_array_equal(
        bits(networks.logits(network, theta, x[::-1], calibration, batch=2)[::-1]), bits(together)
    )
    assert together.dtype == F32
    found = networks.statistics(network, theta, calibration)
    assert len(found) == 10
    np.testing.assert_allclose(networks.logits(network, theta, x, x), networks.apply(network, theta, x), atol=1e-6)
    assert networks.accuracy(network, theta, x, y, calibration) == np.mean(together.argmax(axis=1) == y)
    with pytest.raises(ValueError, match="calibration is missing"):
        networks.predictions(network, theta, x)


def test_what_does_not_fit_a_network_is_refused_in_a_sentence() -> None:
    network = networks.make("mlp:4-3-2", (2, 2))
    theta, x, y = networks.initialise(network, 0), np.zeros((3, 2, 2), dtype=F32), np.array([0, 1, 0])
    for images in (x[0], x[:0], x[:, :1], np.float32(0)):
        with pytest.raises(ValueError, match=r"expected \(n, 2, 2\) with n >= 1"):
            networks.loss(network, theta, images, y)
    with pytest.raises(TypeError, match="dtype uint8, expected a floating type"):
        networks.loss(network, theta, x.astype(np.uint8), y)
    with pytest.raises(ValueError, match=r"theta has shape \(22,\), expected \(23,\)"):
        networks.loss(network, theta[1:], x, y)
    for labels in (y[1:], y.astype(float)):
        with pytest.raises(ValueError, match="expected 3 integers"):
            networks.loss_and_gradient(network, theta, x, labels)
    for labels in (y + 1, y - 1):
        with pytest.raises(ValueError, match="expected 0 to 1"):
            networks.accuracy(network, theta, x, labels)


# The same bits everywhere

SCRIPT = """
import hashlib
import numpy as np
from rbd_ref.models import networks
from rbd_ref.conformance.cases import pseudo_random
digest = hashlib.sha256()
for name, shape, n in {cases}:
    network = networks.make(name, shape, 10)
    theta = networks.initialise(network, 7)
    x = pseudo_random(1, n * int(np.prod(shape))).reshape(n, *shape)
    value, gradient = networks.loss_and_gradient(network, theta, x, np.arange(n) % 10)
    digest.update(np.float32(value).tobytes() + gradient.tobytes())
    digest.update(networks.logits(network, theta, x, calibration=x).tobytes())
print(digest.hexdigest())
"""
LARGE = [("fc", (28, 28, 1), 32), ("fc", (32, 32, 3), 32), ("cnn", (28, 28, 1), 32), ("cnn", (32, 32, 3), 33)]
LARGE += [("resnet8", (32, 32, 3), 9)]
SMALL = [("mlp:6-5-10", (2, 3), 2), ("resnet8", (2, 2, 1), 2)]


def digest(cases: Any, **environment: str) -> str:
    result = run_python("-c", SCRIPT.format(cases=cases), **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.compiled
def test_threads_and_processes_do_not_change_a_bit() -> None:
    found = {digest(LARGE, NUMBA_NUM_THREADS=n, OPENBLAS_NUM_THREADS=n) for n in ("1", "2", "3")}
    assert len(found) == 1


@pytest.mark.compiled
def test_plain_python_gives_the_bits_of_the_compiled_kernels() -> None:
    assert digest(SMALL, NUMBA_DISABLE_JIT="1") == digest(SMALL)


@pytest.mark.parametrize("module", [architectures, names, networks], ids=lambda module: module.__name__)
def test_examples_of_the_code(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted >= 3
    assert result.failed == 0


def test_the_package_does_not_import_autograd_by_itself() -> None:
    result = run_python("-c", "import sys, rbd_ref; sys.exit('autograd' in sys.modules)")
    assert result.returncode == 0, result.stderr
