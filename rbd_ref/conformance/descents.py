"""L3 to L5: steps on networks, trajectories of every method, and replicas on unlike backends.

A backend may have `loss_and_gradient(network, theta, x, y)`, its own automatic differentiation; one that has none is
given the reference's gradients. Those agree to a tolerance; what follows from the numbers that were sent, to the bit.
Tests: tests/test_broken_backends.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rbd_ref import methods
from rbd_ref._types import F32, Float32Array
from rbd_ref.backend import Backend
from rbd_ref.basis import Basis
from rbd_ref.conformance.cases import pseudo_random, usual
from rbd_ref.conformance.suite import check, check_families, expect, same_bits
from rbd_ref.kernels.backend import NumbaBackend
from rbd_ref.methods import METHODS
from rbd_ref.methods.base import Replica, State
from rbd_ref.methods.codes import CODES, COEFFICIENTS
from rbd_ref.methods.memory import add_scaled, averaged, increased
from rbd_ref.methods.phases import Phase
from rbd_ref.methods.rbd import BIASED
from rbd_ref.methods.settings import EXCHANGES, Settings
from rbd_ref.models import networks
from rbd_ref.models.networks import Network
from rbd_ref.runs.journal import Journal, Writer
from rbd_ref.spec.compartments import by_layer, whole

OF_GRADIENT = 1e-4  # of its length: what two ways of differentiating may differ by
STEPS, TOGETHER, BATCH = 6, 50, 5
NETWORKS = {"fc": (4, 4, 1), "cnn": (18, 18, 1), "mlp:12-7-3": (12,)}
MEMORY = 0.75


@dataclass(frozen=True)
class Oracle:
    """The loss of a network on batches that follow from step and worker; gradients are the backend's."""

    network: Network
    backend: Any

    def batch(self, t: int, worker: int, offspring: int | None = None) -> tuple[Float32Array, np.ndarray]:
        """Images and classes."""
        label = (t * 64 + worker) * 64 + (0 if offspring is None else offspring + 1)
        shape = (BATCH, *self.network.input_shape)
        x = pseudo_random(label, int(np.prod(shape))).reshape(shape)
        return x, (np.arange(BATCH) * 7 + label) % self.network.classes

    def loss_and_gradient(self, theta: Float32Array, t: int, worker: int) -> tuple[float, Float32Array]:
        """By the backend's own means, if it has some."""
        return networks.gradient_of(self.backend)(self.network, theta, *self.batch(t, worker))

    def loss(self, theta: Float32Array, t: int, worker: int, offspring: int | None) -> float:
        """The reference's."""
        return networks.loss(self.network, theta, *self.batch(t, worker, offspring))


def network_of(name: str) -> Network:
    """A small one."""
    return networks.make(name) if name.startswith("mlp") else networks.make(name, NETWORKS[name], 3)


def rate(eta: float, backend: Backend, D: int) -> float:
    """A learning rate for unit directions as one for the backend's usual normalisation."""
    return eta / D if usual(backend) == "none" else eta


def family_of(backend: Backend) -> str:
    """The family of checks that do not ask for one."""
    declared = backend.capabilities.families
    return "normal" if "normal" in declared else declared[0]


@check("L3", "gradients of networks equal autograd's within 1e-4 of their length")
def gradients(backend: Backend) -> None:
    """fc, cnn and mlp, at the start and somewhere else."""
    for name in NETWORKS:
        network = network_of(name)
        oracle, reference = Oracle(network, backend), Oracle(network, None)
        for t in range(3):
            theta = networks.initialise(network, 5) + F32(0.1 * t) * pseudo_random(t, network.D)
            loss, g = oracle.loss_and_gradient(theta, t, 1)
            expected, wanted = reference.loss_and_gradient(theta, t, 1)
            expect(g.dtype == F32 and g.shape == wanted.shape, f"the gradient of {name} is {g.dtype} {g.shape}")
            expect(abs(loss - expected) <= OF_GRADIENT * expected, f"the loss of {name} is {loss}, expected {expected}")
            error = np.linalg.norm(g - wanted) / np.linalg.norm(wanted)
            expect(bool(error <= OF_GRADIENT), f"the gradient of {name} is off by {error:.2g} of its length")


def expect_near(what: str, a: Float32Array, b: Float32Array) -> None:
    """Demand coefficients that are near the reference's."""
    error = np.linalg.norm(a - b) / np.linalg.norm(b)
    expect(bool(error <= OF_GRADIENT), f"{what} are off by {error:.2g} of their length")


@check_families("L3", "a step of rbd on a network: coefficients near, theta to the bit from the same coefficients")
def step(backend: Backend, family: str) -> None:
    """With layers as compartments."""
    network = network_of("fc")
    plan, settings = by_layer(network.sizes, d=9), Settings(rate(0.5, backend, network.D), workers=2)
    mine = methods.make("rbd", Basis(plan, 3, family, usual(backend), backend), settings)
    theirs = methods.make("rbd", Basis(plan, 3, family, usual(backend), NumbaBackend()), settings)
    starts = [phase.start(networks.initialise(network, 3), 4) for phase in (mine, theirs)]
    local = mine.method.init_local()
    found = [starts[0].propose(Oracle(network, backend), w, local)[0].payload for w in (0, 1)]
    wanted = [starts[1].propose(Oracle(network, None), w, local)[0].payload for w in (0, 1)]
    for a, b in zip(found, wanted, strict=True):
        expect_near(f"coefficients of {family}", a, b)
    after = [replica.step(np.stack(found)).theta for replica in starts]
    same_bits(f"theta after a step of {family}", *after)


def phases(backend: Backend, like: Backend, network: Network, workers: int) -> Iterator[Phase[State]]:
    """Every method that sends coefficients, on `backend`, in a family and normalisation that `like` declares."""
    basis = Basis(whole(network.D, d=10), 11, family_of(like), usual(like), backend)
    eta = rate(0.2, like, network.D)
    for name in METHODS[1:]:
        for exchange in EXCHANGES:
            yield methods.make(name, basis, Settings(eta, 0.5, 2, workers, exchange, transforms=("top:6",)))
    yield methods.make("rbd", basis, Settings(eta, workers=workers))
    yield from remembering(basis, eta, workers)
    yield from coded(basis, eta, workers)
    yield methods.make("fpd", basis, Settings(0.02, workers=workers, optimiser="adam"))


def coded(basis: Basis, eta: float, workers: int) -> Iterator[Phase[State]]:
    """Methods whose coefficients are sent in fewer bits: with signs, all of a basis have the same magnitude."""
    for code in CODES:
        yield methods.make("rbd", basis, Settings(eta, workers=workers, coefficients=code))
        yield methods.make("rbd", basis, Settings(eta, workers=workers, exchange="split", coefficients=code))
        yield methods.make("fpd", basis, Settings(eta, workers=workers, exchange="shared", coefficients=code))


def remembering(basis: Basis, eta: float, workers: int) -> Iterator[Phase[State]]:
    """rbd whose workers keep something; feedback, where the basis has unit directions without bias."""
    yield methods.make("rbd", basis, Settings(eta, workers=workers, memory=MEMORY))
    if basis.normalize == "unit" and basis.family.name != BIASED:
        yield methods.make("rbd", basis, Settings(0.01, workers=workers, exchange="split", feedback=True))
        for code in COEFFICIENTS:
            yield methods.make("rbd", basis, Settings(0.01, workers=workers, feedback=True, coefficients=code))


def start(phase: Phase[State], network: Network) -> Replica[State]:
    """The replica before the first step."""
    return phase.start(networks.initialise(network, 1), 0)


def trajectory(phase: Phase[State], oracle: Oracle, workers: int) -> Iterator[tuple[Float32Array, Float32Array]]:
    """What was sent at each step, and theta after it."""
    replica = start(phase, oracle.network)
    local = [phase.method.init_local() for _ in range(workers)]
    for _ in range(STEPS):
        found = [replica.propose(oracle, w, local[w]) for w in range(workers)]
        proposals, local = [list(column) for column in zip(*found, strict=True)]
        payloads = np.stack([proposal.payload for proposal in proposals])
        local_updates = {w: proposal.update for w, proposal in enumerate(proposals) if proposal.update.size}
        replica = replica.step(payloads, local_updates)
        yield payloads, replica.theta


@check("L4", "the reference repeats a trajectory of every method from what was sent, to the bit")
def repeated(backend: Backend) -> None:
    """The backend proposes and steps; the reference only hears what was sent."""
    network = network_of("mlp:12-7-3")
    for mine, theirs in zip(
        phases(backend, backend, network, 3), phases(NumbaBackend(), backend, network, 3), strict=True
    ):
        replica = start(theirs, network)
        for t, (payloads, theta) in enumerate(trajectory(mine, Oracle(network, backend), 3)):
            replica = replica.step(payloads)
            same_bits(f"theta after step {t} of {mine.method.name}", theta, replica.theta)


def kept_by(settings: Settings, before: Float32Array, g: Float32Array, t: int) -> Float32Array:
    """What is projected at step t, by the reference."""
    return averaged(before, g, MEMORY) if settings.memory else increased(before, g, settings.eta(t))


@check("L4", "what workers keep of their gradients follows from these and from what was sent, to the bit")
def kept(backend: Backend) -> None:
    """By memory and by feedback; D is a multiple of 64, so that a backend which pads vectors has nothing to pad."""
    network = network_of("mlp:14-8-8")
    basis, reference = (
        Basis(whole(network.D, d=10), 11, family_of(backend), usual(backend), each)
        for each in (backend, NumbaBackend())
    )
    for phase in remembering(basis, rate(0.2, backend, network.D), workers=1):
        method: Any = phase.method
        replica, local = start(phase, network), method.init_local()
        for t in range(STEPS):
            what = f"what a worker keeps after step {t} of {'memory' if method.settings.memory else 'feedback'}"
            _, g = Oracle(network, backend).loss_and_gradient(replica.theta, t, 0)
            v = kept_by(method.settings, local.kept, g, t)
            proposal, local = method.propose(Oracle(network, backend), replica.state, 0, local)
            sent = method.decode(proposal.payload[np.newaxis])[0]
            if method.settings.coefficients == "float32":
                expect_near("coefficients of what a worker keeps", sent, reference.project(v, t))
            if method.settings.feedback:
                add_scaled(v, -method.contraction, reference.reconstruct(sent, t))
            same_bits(what, local.kept, v)
            replica = replica.step(proposal.payload[np.newaxis])


def journal_of(folder: str, sent: Iterable[Float32Array]) -> Journal:
    """A journal in which these payloads were written down, without losses."""
    writer = Writer.create(Path(folder) / "journal.rbd", "00" * 32)
    for t, payloads in enumerate(sent):
        writer.append(t, payloads)
    writer.close()
    return Journal(writer.path)


@check("L4", "a journal of the reference is replayed to the bit")
def replayed(backend: Backend) -> None:
    """Through a file, as a late joiner would."""
    network = network_of("mlp:12-7-3")
    for mine, theirs in zip(
        phases(backend, backend, network, 2), phases(NumbaBackend(), backend, network, 2), strict=True
    ):
        sent, thetas = zip(*trajectory(theirs, Oracle(network, None), 2), strict=True)
        replica = start(mine, network)
        with TemporaryDirectory() as folder:
            for record in journal_of(folder, sent).records():
                replica = replica.step(record.rows)
        same_bits(f"theta of {mine.method.name} after its journal", replica.theta, thetas[-1])


@check_families("L5", "the reference and the backend, a worker each, hold theta to the same bits for 50 steps")
def replicas(backend: Backend, family: str) -> None:
    """Each proposes with its own means, sends, and steps with what both sent."""
    network = network_of("fc")
    settings = Settings(rate(0.5, backend, network.D), 0.5, workers=2)
    plan, backends = by_layer(network.sizes, d=8), (NumbaBackend(), backend)
    bases = [Basis(plan, 7, family, usual(backend), each) for each in backends]
    theta0 = networks.initialise(network, 7)
    both = [methods.make("rbd", basis, settings).start(theta0, 0) for basis in bases]
    oracles = [Oracle(network, None), Oracle(network, backend)]
    local = both[0].method.init_local()
    for t in range(TOGETHER):
        payloads = np.stack([both[w].propose(oracles[w], w, local)[0].payload for w in (0, 1)])
        both = [replica.step(payloads) for replica in both]
        same_bits(f"theta of the backend after step {t} of {family}", both[1].theta, both[0].theta)
