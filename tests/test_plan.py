"""Plans against autograd, bit by bit; arrays that are used again, and those that must not be."""

from __future__ import annotations

import math
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
from autograd import value_and_grad

from rbd_ref.conformance.cases import pseudo_random
from rbd_ref.models import convolution, layers, networks, operations
from rbd_ref.models.architectures import Architecture, Builder, Network
from rbd_ref.models.plan import KEPT, PLANS, Plan
from test_networks import own
from tools import bits, run_python


def used_three_times(net: Builder[Any], x: Any) -> Any:
    """Three gradients come together, where the order of the sum shows, at a result and at its relu."""
    y = net.relu(net.dense(net.flatten(x), 7))
    z = net.add(net.dense(y, 7), net.add(net.relu(net.dense(y, 7)), y))
    return net.add(net.dense(z, net.classes), net.add(net.dense(net.relu(z), net.classes), net.dense(z, net.classes)))


def used_twice_at_once(net: Builder[Any], x: Any) -> Any:
    y = net.dense(net.flatten(x), 4)
    return net.dense(net.add(net.add(y, y), net.relu(y)), net.classes)


def left_over(net: Builder[Any], x: Any) -> Any:
    """A layer that leads nowhere, and operations on images alone."""
    net.dense(net.flatten(x), 3)
    y = net.max_pool(net.add(net.relu(x), x))
    return net.relu(net.dense(net.relu(net.flatten(y)), net.classes))


def padded_with_bias(net: Builder[Any], x: Any) -> Any:
    y = net.relu(net.conv2d(x, 5, k=3, padding="same"))
    return net.dense(net.flatten(net.max_pool(net.conv2d(y, 4, k=2, stride=2))), net.classes)


OWN = [own, used_three_times, used_twice_at_once, left_over, padded_with_bias]
NETWORKS = [
    *(Network(architecture.__name__, (9, 8, 2), 3, architecture) for architecture in OWN),
    networks.make("mlp:6-5-4-3", (2, 3)),
    networks.make("resnet8", (5, 4, 2), 3),
]
LARGE = [networks.make("fc", (28, 28, 1), 10), *(networks.make(name, (32, 32, 3), 10) for name in ("cnn", "resnet8"))]


def batch(network: Network, n: int, seed: int = 1) -> tuple[Any, Any]:
    x = pseudo_random(seed, n * math.prod(network.input_shape)).reshape(n, *network.input_shape)
    return x, np.arange(n) % network.classes


def by_autograd(network: Network, theta: Any, x: Any, y: Any) -> tuple[float, Any]:
    value, gradient = value_and_grad(lambda t: layers.cross_entropy(networks.apply(network, t, x), y))(theta)
    return float(value), gradient


def agree(network: Network, n: int) -> None:
    """A plan gives autograd's bits, at two points one after the other."""
    plan = Plan(network, n)
    for seed in (1, 2):
        theta = pseudo_random(seed, network.D) * np.float32(0.3)
        x, y = batch(network, n, seed)
        value, gradient = by_autograd(network, theta, x, y)
        assert plan.forward(theta, x, y) == value == networks.loss(network, theta, x, y)
        np.testing.assert_array_equal(bits(plan.backward()), bits(gradient))
        assert np.abs(gradient).max() > 0


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
@pytest.mark.parametrize("n", [1, 3])
def test_a_plan_has_the_bits_of_autograd(network: Network, n: int) -> None:
    agree(network, n)


@pytest.mark.compiled
@pytest.mark.parametrize("network", LARGE, ids=lambda network: network.name)
def test_a_plan_of_a_large_network_has_the_bits_of_autograd(network: Network) -> None:
    agree(network, 32)


def test_relus_become_part_of_what_they_follow() -> None:
    kinds = [type(node.operation) for node in Plan(networks.make("cnn", (20, 20, 1), 3), 2).nodes]
    assert operations.Relu not in kinds
    assert kinds.count(convolution.Conv2d) == 3
    kinds = [type(node.operation) for node in Plan(NETWORKS[1], 2).nodes]
    assert kinds.count(operations.Relu) == 1  # of z, which others use


def test_a_gradient_that_somebody_keeps_stays_as_it_is() -> None:
    network = NETWORKS[0]
    x, y = batch(network, 3)
    theta = networks.initialise(network, 0)
    _, first = networks.loss_and_gradient(network, theta, x, y)
    kept = first.copy()
    part = networks.loss_and_gradient(network, 2 * theta, x, y)[1][:2]
    kept_part = part.copy()
    third = networks.loss_and_gradient(network, 3 * theta, x, y)[1]
    assert not np.shares_memory(first, third)
    assert not np.shares_memory(part, third)
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(part, kept_part)


def test_a_gradient_that_nobody_keeps_is_written_over() -> None:
    network = NETWORKS[5]
    x, y = batch(network, 3)
    theta = networks.initialise(network, 0)
    places = {networks.loss_and_gradient(network, theta, x, y)[1].ctypes.data for _ in range(5)}
    assert len(places) <= 2


def test_threads_have_plans_of_their_own() -> None:
    network = NETWORKS[0]
    theta = networks.initialise(network, 0)
    batches = [batch(network, 4, seed) for seed in range(4)]
    expected = [networks.loss_and_gradient(network, theta, *each)[1].copy() for each in batches]
    found: list[list[Any]] = [[] for _ in batches]

    def work(i: int) -> None:
        for _ in range(20):
            found[i].append(networks.loss_and_gradient(network, theta, *batches[i])[1])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for gradients, wanted in zip(found, expected, strict=True):
        assert len(gradients) == 20
        for gradient in gradients:
            np.testing.assert_array_equal(bits(gradient), bits(wanted))


def test_few_plans_are_kept_and_the_last_used_longest() -> None:
    network = NETWORKS[5]
    plans = [PLANS.find(network, n) for n in range(1, KEPT + 1)]
    assert PLANS.find(network, 1) is plans[0]
    PLANS.find(network, 99)
    assert len(PLANS.known) == KEPT
    assert PLANS.find(network, 1) is plans[0]
    assert PLANS.find(network, 2) is not plans[1]


def test_an_architecture_is_followed_by_what_it_computes() -> None:
    """Networks with the same name and tensors have plans of their own."""

    def plain(net: Builder[Any], x: Any) -> Any:
        return net.dense(net.dense(net.flatten(x), 4), net.classes)

    def bent(net: Builder[Any], x: Any) -> Any:
        return net.dense(net.relu(net.dense(net.flatten(x), 4)), net.classes)

    architectures: list[Architecture] = [plain, bent]
    one, other = (Network("mine", (3, 2), 3, forward) for forward in architectures)
    x, y = batch(one, 2)
    theta = pseudo_random(3, one.D)
    assert networks.loss(one, theta, x, y) != networks.loss(other, theta, x, y)


@pytest.mark.compiled
@pytest.mark.parametrize("network", LARGE, ids=lambda network: network.name)
def test_no_step_allocates_after_the_first(network: Network) -> None:
    x, y = batch(network, 32)
    theta = networks.initialise(network, 0)
    for _ in range(3):
        gradient = networks.loss_and_gradient(network, theta, x, y)[1]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(3):
            gradient = networks.loss_and_gradient(network, theta, x, y)[1]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert gradient.size == network.D
    checks = 65_536  # one bool for each number of a part of theta
    assert peak - before < 20_000 + checks


RESIDENT = """
import numpy as np
from rbd_ref.conformance.memory import peak, reset_peak
from rbd_ref.models import networks
network = networks.make("cnn", (32, 32, 3), 10)
theta = networks.initialise(network, 0)
x, y = np.ones((32, 32, 32, 3), np.float32), np.arange(32) % 10
for _ in range(3):
    networks.loss_and_gradient(network, theta, x, y)
reset_peak()
before = peak()
for _ in range(30):
    networks.loss_and_gradient(network, theta, x, y)
print(peak() - before)
"""


@pytest.mark.compiled
def test_the_process_does_not_grow_after_the_first_steps() -> None:
    result = run_python("-c", RESIDENT)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 500_000
