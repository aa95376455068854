"""A network's loss and gradient without a tape: every operation and every array made once, for one size of batch.

Autograd records the operations anew at every step, which for a small network takes longer than the arithmetic, and
every result is a new array. A plan follows an architecture once, as `Shapes` does, and keeps the operations; a relu
that alone follows another operation becomes part of it. Then a step runs the operations forwards and backwards, in the
order in which autograd would, so that the bits are those of layers.py.
Tests: tests/test_plan.py.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from rbd_ref._types import F32, Float32Array, Indices
from rbd_ref.models import convolution, operations
from rbd_ref.models.architectures import Builder, Layer, Network, Shape
from rbd_ref.models.normalisation import BatchNorm
from rbd_ref.models.operations import Operation
from rbd_ref.models.product import Array

KEPT = 4  # plans of a thread
NOTHING = Operation(F32, ())  # what makes the images


@dataclass(frozen=True)
class Tensor:
    """A part of theta."""

    first: int
    shape: Shape

    def of(self, theta: Array) -> Array:
        """That part."""
        return theta[self.first : self.first + math.prod(self.shape)].reshape(self.shape)


@dataclass(eq=False)
class Node:
    """The result of an operation on other results and tensors; the images are the result of none."""

    shape: Shape
    operation: Operation = NOTHING
    inputs: tuple[Node, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    value: Array = None
    trained: bool = field(init=False)  # whether it depends on theta

    def __post_init__(self) -> None:
        self.trained = bool(self.tensors) or any(node.trained for node in self.inputs)


@dataclass
class Trace:
    """`architectures.Layers` of nodes: nothing is computed, all is noted."""

    nodes: list[Node] = field(default_factory=list)

    def _note(self, operation: Operation, inputs: tuple[Node, ...], tensors: tuple[Tensor, ...] = ()) -> Node:
        self.nodes.append(Node(operation.shape, operation, inputs, tensors))
        return self.nodes[-1]

    def features(self, x: Node) -> int:
        """The length of the last axis."""
        return x.shape[-1]

    def dense(self, x: Node, w: Tensor, b: Tensor) -> Node:
        """`operations.Dense`."""
        return self._note(operations.Dense(F32, x.shape, w.shape, b.shape), (x,), (w, b))

    def conv2d(self, x: Node, w: Tensor, b: Tensor | None, *, stride: int, padding: str) -> Node:
        """`convolution.Conv2d`."""
        operation = convolution.Conv2d(F32, x.shape, w.shape, stride=stride, padding=padding)
        return self._note(operation, (x,), (w,) if b is None else (w, b))

    def batch_norm(self, x: Node, scale: Tensor, shift: Tensor) -> Node:
        """`normalisation.BatchNorm`."""
        return self._note(BatchNorm(F32, x.shape, scale.shape, shift.shape), (x,), (scale, shift))

    def max_pool(self, x: Node) -> Node:
        """`convolution.MaxPool`."""
        return self._note(convolution.MaxPool(F32, x.shape), (x,))

    def average_pool(self, x: Node) -> Node:
        """`convolution.AveragePool`."""
        return self._note(convolution.AveragePool(F32, x.shape), (x,))

    def relu(self, x: Node) -> Node:
        """`operations.Relu`."""
        return self._note(operations.Relu(F32, x.shape), (x,))

    def flatten(self, x: Node) -> Node:
        """`operations.Flatten`."""
        return self._note(operations.Flatten(F32, x.shape), (x,))

    def add(self, x: Node, y: Node) -> Node:
        """`operations.Add`."""
        return self._note(operations.Add(F32, x.shape, y.shape), (x, y))


FUSING = (operations.Dense, convolution.Conv2d, convolution.MaxPool, operations.Add, BatchNorm)


def fuse(nodes: list[Node], logits: Node) -> tuple[list[Node], Node]:
    """The nodes without those relus that alone follow an operation that can do it."""
    users = Counter(node for user in nodes for node in user.inputs)
    users[logits] += 1
    standing: dict[Node, Node] = {}
    left = []
    for node in nodes:
        node.inputs = tuple(standing.get(other, other) for other in node.inputs)
        source = node.inputs[0]
        if isinstance(node.operation, operations.Relu) and isinstance(source.operation, FUSING) and users[source] == 1:
            source.operation.floor = 0.0
            users[source] = users[node]
            standing[node] = source
        else:
            left.append(node)
    return left, standing.get(logits, logits)


def backwards(end: Node) -> list[Node]:
    """From the end to the images, every node after all that use it, in the order in which autograd takes them: where
    three or more use one, the order in which their gradients are added up."""
    users: Counter[Node] = Counter()
    stack = [end]
    while stack:
        node = stack.pop()
        users[node] += 1
        if users[node] == 1:
            stack.extend(_parents(node))
    order = []
    ready = [end]
    while ready:
        node = ready.pop()
        order.append(node)
        for parent in _parents(node):
            users[parent] -= 1
            if users[parent] == 0:
                ready.append(parent)
    return order


def _parents(node: Node) -> list[Node]:
    """What a node's gradient goes to."""
    return [other for other in node.inputs if other.trained]


class Kept:
    """Two arrays of D floats, each of which is handed out again once nobody else holds it or a part of it.

    Two, as the last result is usually held until the next is there."""

    def __init__(self, D: int) -> None:
        self.D = D
        self.arrays = [np.empty(D, dtype=F32) for _ in range(2)]
        self.alone = self._holders(0)

    def _holders(self, i: int) -> int:
        return sys.getrefcount(self.arrays[i])

    def take(self) -> Float32Array:
        """An array that nobody holds, a new one if need be, which takes the place of the one held longest."""
        free = [i for i in range(len(self.arrays)) if self._holders(i) == self.alone]
        chosen = self.arrays.pop(free[0]) if free else np.empty(self.D, dtype=F32)
        self.arrays = [*self.arrays, chosen][-2:]
        return chosen


@lru_cache(KEPT)
def _kept(D: int, thread: int) -> Kept:
    """The arrays of a thread for gradients of D floats that others than a plan compute."""
    return Kept(D)


def gradient_array(D: int) -> Float32Array:
    """D floats to be written to: an array of an earlier step that nobody holds any longer, or a new one."""
    return _kept(D, threading.get_ident()).take()


class Step(NamedTuple):
    """One operation on the way back: the gradient of its result, where those of its inputs go, and what is added."""

    node: Node
    slope: Array
    targets: list[Array | None]
    sums: list[tuple[Array, Array]]


def steps_back(logits: Node) -> list[Step]:
    """All operations on the way back. The first gradient of a node goes to its place, further ones are added to it."""
    places = {logits: np.empty(logits.shape, dtype=F32)}
    steps = []
    for node in backwards(logits) if logits.trained else ():
        step = Step(node, places[node], [], [])
        for other in node.inputs:
            if not other.trained:
                step.targets.append(None)
                continue
            target = np.empty(other.shape, dtype=F32)
            step.targets.append(target)
            if places.setdefault(other, target) is not target:
                step.sums.append((places[other], target))
        steps.append(step)
    return steps


class Plan:
    """Loss and gradient of a network for batches of n images; not for two threads at once."""

    def __init__(self, network: Network, n: int) -> None:
        trace = Trace()
        self.images = Node((n, *network.input_shape))
        self.tensors: list[Tensor] = []
        logits = network.forward(Builder(trace, self._declare, network.classes), self.images)
        self.nodes, self.logits = fuse(trace.nodes, logits)
        self.loss = operations.CrossEntropy(F32, self.logits.shape, (n,))
        self.gradient = Kept(network.D)

    @cached_property
    def steps(self) -> list[Step]:
        """The way back, which a loss alone does not need."""
        return steps_back(self.logits)

    @cached_property
    def unreached(self) -> list[Tensor]:
        """The tensors that the loss does not depend on."""
        reached = {tensor for step in self.steps for tensor in step.node.tensors}
        return [tensor for tensor in self.tensors if tensor not in reached]

    def _declare(self, layer: Layer) -> tuple[Tensor, ...]:
        """The next parts of theta."""
        for shape in layer:
            last = self.tensors[-1] if self.tensors else Tensor(0, (0,))
            self.tensors.append(Tensor(last.first + math.prod(last.shape), shape))
        return tuple(self.tensors[-len(layer) :])

    def forward(self, theta: Float32Array, x: Float32Array, y: Indices) -> float:
        """The loss."""
        self.images.value = x
        for node in self.nodes:
            inputs = [other.value for other in node.inputs]
            node.value = node.operation.forward(*inputs, *(tensor.of(theta) for tensor in node.tensors))
        return float(self.loss.forward(self.logits.value, y))

    def backward(self) -> Float32Array:
        """The gradient at the point of the last `forward`; an array that the caller may keep."""
        gradient = self.gradient.take()
        for tensor in self.unreached:
            tensor.of(gradient)[...] = 0
        if self.steps:
            self.loss.backward(F32(1), (self.steps[0].slope,))
        for node, slope, targets, sums in self.steps:
            node.operation.backward(slope, (*targets, *(tensor.of(gradient) for tensor in node.tensors)))
            for total, part in sums:
                np.add(total, part, out=total)
        return gradient


class Plans(threading.local):
    """The plans that a thread used last."""

    def __init__(self) -> None:
        self.known: OrderedDict[tuple[Network, int], Plan] = OrderedDict()

    def find(self, network: Network, n: int) -> Plan:
        """The plan for this network and size of batch, made if need be."""
        key = (network, n)
        plan = self.known.pop(key, None) or Plan(network, n)
        self.known[key] = plan
        if len(self.known) > KEPT:
            self.known.popitem(last=False)
        return plan


PLANS = Plans()
