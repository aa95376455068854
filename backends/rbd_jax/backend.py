"""`JaxBackend`: the programs of this package behind the backend protocol.

A compartment's vectors are padded to a bucket and given to XLA; d directions go in calls of a fixed number. JAX is
imported when a backend is made, so that without it there is one sentence and not a traceback. JAX's configuration is
left alone: float64 is not needed.
Tests: tests/test_jax_backend.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rbd_jax.compartment import Compartment
from rbd_ref._machine import cores
from rbd_ref._types import F32, Float32Array, Words
from rbd_ref.backend import Capabilities
from rbd_ref.models.architectures import Network
from rbd_ref.spec.hadamard import padded
from rbd_ref.spec.operations import Draw

WORD = np.uint32


def fitted(x: Float32Array, length: int) -> Float32Array:
    """x with zeros behind it."""
    longer = np.zeros(length, dtype=F32)
    longer[: x.size] = x
    return longer


def compartments(draw: Draw) -> Iterator[Compartment]:
    """First to last."""
    return (Compartment(draw, k) for k in range(draw.plan.K))


class JaxBackend:
    """Bases by XLA on whatever device JAX has by default; checked on CPUs."""

    name: ClassVar[str] = "jax"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self) -> None:
        try:
            from rbd_jax import families, hadamard, networks, random, sweep
        except ImportError as error:
            raise ImportError(f"JAX is missing ({error}), pip install 'rbd-ref[jax]' brings it") from error
        self._families = families
        self._hadamard = hadamard
        self._networks = networks
        self._random = random
        self._sweep = sweep

    @property
    def faster_gradients(self) -> bool:
        """Not on a CPU, where the reference's were measured to be faster."""
        return bool(self._networks.platform() != "cpu")

    def words(self, key: Words, counter: Words) -> Words:
        """Threefry of each column, padded to a bucket."""
        n = counter.shape[1]
        longer = np.zeros((2, self._sweep.bucket(n)), dtype=np.uint32)
        longer[:, :n] = counter
        return np.array(self._sweep.words(key, longer))[:, :n].copy()

    def directions(self, draw: Draw, indices: Sequence[int]) -> Float32Array:
        """Each row is the update of one coefficient of 1, alone."""
        phi = np.zeros((len(indices), draw.plan.D), dtype=F32)
        for row, index in zip(phi, indices, strict=True):
            k, i = draw.plan.locate(index)
            row[draw.plan.elements(k)] = self._direction(Compartment(draw, k), i)
        return phi

    def numbers(self, law: str, seed: int, stream: int, offset: int, count: int) -> Float32Array:
        """Portable random numbers offset .. offset + count - 1 of a stream; as many are made as a bucket has."""
        made = self._random.draw(law, self._sweep.bucket(count), seed, stream, offset)
        return np.array(made[:count])

    def project(self, draw: Draw, g: Float32Array) -> Float32Array:
        """a_i = <phi_i, g> / N_i."""
        return self._run(draw, g, None, rebuild=False)[0]

    def reconstruct(self, draw: Draw, a: Float32Array) -> Float32Array:
        """u = sum_i a_i phi_i, from i = 0 up."""
        return self._run(draw, None, a, rebuild=True)[1]

    def descend(self, draw: Draw, g: Float32Array) -> tuple[Float32Array, Float32Array]:
        """(a, u) of `project` and `reconstruct`, each direction made once."""
        return self._run(draw, g, None, rebuild=True)

    def set_threads(self, n: int) -> int:
        """XLA starts its threads with the process, as many as NPROC says or as there are processors, and no call
        changes that: nothing happens, and the result is that number. It changes no bit."""
        given = os.environ.get("NPROC", "")
        return int(given) if given.isdecimal() and int(given) > 0 else cores()

    def loss_and_gradient(
        self, network: Network, theta: Float32Array, x: Float32Array, y: NDArray[Any]
    ) -> tuple[float, Float32Array]:
        """The mean softmax cross entropy of a batch and its gradient (D), by `jax.grad`, an array that the caller may
        keep."""
        return self._networks.loss_and_gradient(network, theta, x, y.astype(np.int32))

    def _run(
        self, draw: Draw, g: Float32Array | None, a: Float32Array | None, rebuild: bool
    ) -> tuple[Float32Array, Float32Array]:
        """Compartment after compartment: coefficients of g, or else those given, and their update if asked for."""
        plan = draw.plan
        found, u = np.zeros(plan.d, dtype=F32), np.zeros(plan.D, dtype=F32)
        for part in compartments(draw):
            here, there = plan.elements(part.k), plan.directions(part.k)
            work = self._structured if part.kind == "srht" else self._swept
            coefficients, update = work(part, None if g is None else g[here], None if a is None else a[there], rebuild)
            found[there], u[here] = coefficients, update
        return found, u

    def _parameters(self, part: Compartment) -> Any:
        """The compartment's arguments as XLA's programs take them."""
        return self._families.FamilyParameters(**part.parameters)

    def _swept(
        self, part: Compartment, g: Float32Array | None, a: Float32Array | None, rebuild: bool
    ) -> tuple[Float32Array, Float32Array]:
        """All directions of a compartment, a chunk after the other."""
        chunk, pieces = self._sweep.CHUNK, []
        update = self._vector(part, np.empty(0, dtype=F32))
        vector = update if g is None else self._vector(part, g)
        for first in range(0, part.d, chunk):
            count = min(chunk, part.d - first)
            given = fitted(np.empty(0, dtype=F32) if a is None else a[first : first + count], chunk)
            coefficients, update = self._call(part, first, count, vector, given, update, (g is not None, rebuild))
            pieces.append(coefficients)
        return np.concatenate(pieces)[: part.d], np.asarray(update).view(F32)[: part.size]

    def _vector(self, part: Compartment, x: Float32Array) -> Any:
        """x on the device, padded to the bucket of the compartment, as pairs where the family comes in pairs."""
        longer = fitted(x, self._sweep.bucket(part.size))
        return self._sweep.on_device(longer.view(np.complex64) if part.kind in self._sweep.PAIRS else longer)

    def _call(
        self, part: Compartment, first: int, count: int, g: Any, a: Float32Array, u: Any, flags: tuple[bool, bool]
    ) -> tuple[Any, Any]:
        """One call of the compiled sweep; `flags` are measure and rebuild."""
        blocks = self._sweep.bucket(part.windows) // 2 if part.kind == "sparse" else 0
        wanted = self._sweep.Wanted(WORD(first), np.int32(count), WORD(part.size), part.divisor, *flags)
        a, u = self._sweep.sweep(part.kind, blocks, self._parameters(part), wanted, g, a, u)
        return a, u

    def _direction(self, part: Compartment, i: int) -> Float32Array:
        """phi_i over its compartment."""
        if part.kind == "srht":
            unit = np.zeros(part.d, dtype=F32)
            unit[i] = 1
            return self._structured(part, None, unit, True)[1]
        zeros, one = self._vector(part, np.empty(0, dtype=F32)), fitted(np.ones(1, dtype=F32), self._sweep.CHUNK)
        update = self._call(part, i, 1, zeros, one, zeros, (False, True))[1]
        return np.asarray(update).view(F32)[: part.size]

    def _structured(
        self, part: Compartment, g: Float32Array | None, a: Float32Array | None, rebuild: bool
    ) -> tuple[Float32Array, Float32Array]:
        """All directions of `srht` by one transform, or two."""
        n, family = padded(part.size), self._parameters(part)
        length = self._sweep.bucket(n)
        rows = self._hadamard.chosen(length, family.key, WORD(n), np.int32(part.d))
        mask = np.asarray(rows)
        if g is None:
            placed: Any = np.zeros(length, dtype=F32)
            placed[mask] = a
        else:
            placed = self._hadamard.analyse(family, rows, part.divisor, fitted(g, length))
        update = self._hadamard.synthesise(family, placed) if rebuild else np.zeros(length, dtype=F32)
        return np.asarray(placed)[mask], np.asarray(update)[: part.size]
