"""Who computes gradients: the reference or a backend's own, in place, chosen apart from who makes directions."""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
import torch

import rbd_ref as rbd
from rbd_jax.backend import JaxBackend
from rbd_ref import backend as backends
from rbd_ref import replay, train
from rbd_ref._types import Float32Array
from rbd_ref.kernels.backend import NumbaBackend, aligned
from rbd_ref.methods import METHODS
from rbd_ref.models import networks
from rbd_ref.models.architectures import Network
from rbd_ref.numpy_backend import NumpyBackend
from rbd_ref.runs import config as configs
from rbd_ref.runs import meaning
from rbd_ref.runs.config import REFERENCE, make
from rbd_ref.training.communicator import single_process
from rbd_ref.training.experiment import Experiment
from rbd_ref.training.fit import Job
from rbd_torch import networks as torch_networks
from rbd_torch.backend import TorchBackend
from run_tools import TINY, refused, resumed, sha, status, trained

pytestmark = pytest.mark.compiled
QUICK = (*TINY, "--family", "sparse", "--steps", "3")
SMALL: dict[str, Any] = {"net": "mlp:64-10", "batch_size": 100, "steps": 6}
OWN = "test_gradients:Halved"
EAGER = "test_gradients:FasterHalved"
LIBRARIES = ("torch", "jax")


class Halved(NumpyBackend):
    """A backend with gradients of its own, whose bits cannot be taken for the reference's."""

    def loss_and_gradient(self, network: Network, theta: Any, x: Any, y: Any) -> tuple[float, Any]:
        assert y.dtype == np.int64
        loss, g = networks.loss_and_gradient(network, theta, x, y)
        return loss, g / np.float32(2)


class FasterHalved(Halved):
    """The same, which says that it is faster."""

    faster_gradients = True


def fitted(**settings: Any) -> rbd.training.fit.Result:
    """A short run of a small network."""
    return rbd.fit(rbd.Config(**{**SMALL, **settings}))


def directed(**settings: Any) -> rbd.training.fit.Result:
    """One along directions."""
    return fitted(dims=5, family="srht", **settings)


# Which is used.


@pytest.mark.parametrize(
    ("flags", "halved"),
    [
        (("--backend", OWN), False),
        (("--backend", OWN, "--gradients", OWN), True),
        (("--backend", EAGER), True),
        (("--backend", EAGER, "--gradients", REFERENCE), False),
        (("--gradients", OWN), True),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_gradients_are_those_that_were_asked_for(tmp_path: Path, flags: tuple[str, ...], halved: bool) -> None:
    """Half the gradient at twice the rate: a power of two rounds nothing."""
    found = trained(tmp_path / "own", *QUICK, *flags, "--lr", "1.0" if halved else "0.5")
    assert sha(found) == sha(trained(tmp_path / "usual", *QUICK, "--lr", "0.5"))
    said = found.settings()["gradients"]
    assert said == (flags[-1] if halved else REFERENCE)


@pytest.mark.parametrize("name", backends.names())
def test_on_a_cpu_the_reference_is_the_default_of_every_backend(name: str) -> None:
    if name != "cuda":  # which needs a device
        assert Experiment(rbd.Config(backend=name)).config.gradients == REFERENCE


def test_on_other_devices_the_libraries_own_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of which is here, so that only its name is seen."""
    ours = TorchBackend()
    assert not ours.faster_gradients
    monkeypatch.setattr(ours, "device", torch.device("cuda"))
    assert ours.faster_gradients
    assert not JaxBackend().faster_gradients
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert JaxBackend().faster_gradients


def test_what_needs_no_gradients_names_none() -> None:
    assert Experiment(rbd.Config(method="nes")).config.gradients is None
    assert Experiment(rbd.Config(method="nes", switch=("3:sgd",))).config.gradients == REFERENCE


@pytest.mark.parametrize("method", METHODS)
def test_gradients_change_the_weights_of_exactly_the_methods_they_are_for(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "refuse_idle", lambda values, names: None)
    before, after = (fitted(method=method, dims=5, gradients=name).sha256 for name in (REFERENCE, OWN))
    assert (before != after) == (method in meaning.FROM_GRADIENTS)


# Unlike means, one run.


@pytest.mark.parametrize("name", LIBRARIES)
def test_directions_of_numba_with_gradients_of_a_library(name: str, tmp_path: Path) -> None:
    """Near the reference, not with its bits; and the reference repeats the run from the journal without the library."""
    expected = directed(net="fc", steps=20)
    found = rbd.fit(rbd.Config(net="fc", dims=5, family="srht", batch_size=100, steps=20, gradients=name), out=tmp_path)
    moved = np.linalg.norm(expected.theta - networks.initialise(networks.make("fc", (8, 8, 1), 10), 0))
    assert 0 < np.linalg.norm(found.theta - expected.theta) <= 1e-4 * moved
    assert found.history.loss[0] == pytest.approx(expected.history.loss[0], rel=1e-5)
    run = rbd.open_run(tmp_path)
    assert np.array_equal(run.theta(20), found.theta)
    assert "source" not in vars(run.experiment.problem)


def test_with_the_reference_s_gradients_no_backend_changes_a_bit() -> None:
    """Of sgd, all backends; along directions those two that project with the same bits."""
    assert len({fitted(method="sgd", backend=name).sha256 for name in ("numba", "numpy", *LIBRARIES)}) == 1
    assert directed(backend="numba").sha256 == directed(backend="numpy").sha256


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_weights_of_sgd_are_those_of_its_gradients(name: str) -> None:
    """Whatever the backend is, and other than the reference's."""
    found = {fitted(method="sgd", backend=other, gradients=name).sha256 for other in ("numba", name)}
    assert len(found) == 1
    assert found != {fitted(method="sgd").sha256}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_s_threads_are_those_of_the_run(name: str) -> None:
    experiment = Experiment(rbd.Config(**SMALL, gradients=name))
    numba = NumbaBackend()
    before = (torch.get_num_threads(), numba.set_threads(0))
    try:
        experiment.use_threads(1)
        assert torch.get_num_threads() == (1 if name == "torch" else before[0])
        assert numba.set_threads(0) == 1
    finally:
        torch.set_num_threads(before[0])
        numba.set_threads(before[1])


# What a run says of them, and how it goes on.


def test_the_digest_names_gradients_that_are_not_the_reference_s() -> None:
    usual = make({}).digest
    assert make({"gradients": REFERENCE}).digest == make({"backend": "torch"}).digest == usual
    by_torch = make({"gradients": "torch"}).digest
    assert by_torch not in (usual, make({"gradients": "jax"}).digest)
    assert make({"gradients": "torch", "backend": "torch"}).digest == by_torch


def test_ranks_may_differ_in_gradients_unless_one_has_to_repeat_those_of_all() -> None:
    """A step of sgd is repeated from the data, by one rank."""
    assert "gradients" not in make({"method": "rbd"}).shared
    assert make({"method": "sgd", "gradients": "torch"}).shared["gradients"] == "torch"
    assert "gradients" in make({"method": "rbd", "switch": ["3:sgd"]}).shared
    assert "gradients" in make({"method": "rbd", "memory": 0.9}).shared  # whoever resumes it computes them again


@pytest.mark.parametrize("method", ["rbd", "sgd"])
def test_a_run_goes_on_with_its_gradients_and_no_others(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--net", "mlp:64-10", "--batch-size", "400", "--method", method, "--gradients", "torch"]
    flags += ["--dims", "3", "--family", "sparse"] if method == "rbd" else []
    whole = trained(tmp_path / "whole", *flags, "--steps", "5")
    run = trained(tmp_path / "run", *flags, "--steps", "2")
    refused(
        capsys,
        ["--resume", "--steps", "5", "--gradients", REFERENCE, "--out", run.folder],
        "is a run of another configuration: gradients would change",
    )
    assert sha(resumed(run, "--steps", "5", "--backend", "numpy")) == sha(whole)
    assert status([run.folder, "--verify"], replay.main) == 0
    if method == "sgd":  # where it has to be computed again, the library is asked
        problem = rbd.open_run(run.folder).experiment.problem
        assert isinstance(problem.source, TorchBackend)  # type: ignore[attr-defined]


def test_a_class_at_a_path_computes_gradients_only_if_the_user_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path / "run", *QUICK, "--gradients", OWN)
    words = (f"names the gradients {OWN!r}", f"repeat it with --gradients {OWN}")
    refused(capsys, [run.folder, "--verify"], *words, command=replay.main)
    refused(capsys, ["--resume", "--out", run.folder], *words)
    file = run.folder / "config.toml"
    refused(capsys, ["--config", file, "--out", tmp_path / "other"], *words)
    assert not (tmp_path / "other").exists()
    assert status([run.folder, "--verify", "--gradients", OWN], replay.main) == 0
    assert sha(resumed(run, "--steps", "4", "--gradients", OWN)) != ""
    assert status([run.folder, "--verify", "--backend", OWN], replay.main) == 0  # the same class, so it is known


def test_the_command_that_continues_a_run_repeats_the_paths_of_classes() -> None:
    job = Job(make({"backend": "numpy", "gradients": OWN}), out="run")
    assert train.command_to_resume(job, single_process()).endswith(f"--resume --out run --gradients {OWN}")
    job = Job(make({"gradients": "torch"}), out="run")
    assert train.command_to_resume(job, single_process()).endswith("--resume --out run")


# What is refused.


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--gradients", "abacus"], ["gradients 'abacus' is unknown, expected one of cuda,", "reference", "torch"]),
        (["--gradients", "numba"], ["gradients 'numba' is a backend without gradients of its own", "or reference"]),
        (["--gradients", "numpy", "--backend", "numba"], ["gradients 'numpy' is a backend without"]),
        (
            ["--gradients", "torch", "--method", "nes"],
            ["gradients is 'torch' and would have no effect", "sgd, rbd or fpd"],
        ),
        (["--gradients", "no_module:Class"], ["backend 'no_module:Class' cannot be loaded"]),
    ],
    ids=lambda value: " ".join(value[:2]) if value[0].startswith("--") else "",
)
def test_gradients_that_nobody_computes_are_one_sentence(
    flags: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, [*TINY, *flags, "--out", tmp_path / "run"], *words)
    assert not (tmp_path / "run").exists()


def test_a_problem_of_one_s_own_has_its_own_gradients() -> None:
    class Bowl:
        D = 3

        def initial(self, seed: int) -> Float32Array:
            return np.ones(3, dtype=np.float32)

        def loss_and_gradient(self, theta: Float32Array, step: int, worker: int) -> tuple[float, Float32Array]:
            return float(theta @ theta), theta

    with pytest.raises(rbd.RunError, match="gradients is 'torch' and would have no effect, expected a network of this"):
        rbd.fit(rbd.Config(dims=2, steps=1, gradients="torch"), Bowl())


# In place.


class Watching(torch_networks.TorchLayers):
    """Layers that note where the weights lie that they are given."""

    seen: ClassVar[list[int]] = []

    def dense(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        self.seen.extend([w.data_ptr(), b.data_ptr()])
        return super().dense(x, w, b)


def batch_of(network: Network) -> tuple[Float32Array, Float32Array, np.ndarray]:
    """theta and a batch."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((4, *network.input_shape), dtype=np.float32)
    return networks.initialise(network, 0), x, np.arange(4) % network.classes


def test_torch_reads_theta_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_networks, "TorchLayers", Watching)
    network = networks.make("mlp:12-7-3")
    theta, x, y = batch_of(network)
    Watching.seen.clear()
    TorchBackend().loss_and_gradient(network, theta, x, y)
    places = np.cumsum([0, *(size for layer in network.sizes for size in layer)])[:-1]
    assert Watching.seen == [theta.ctypes.data + 4 * int(place) for place in places]


def test_torch_reads_what_cannot_be_written_to_as_well() -> None:
    network = networks.make("mlp:12-7-3")
    theta, x, y = batch_of(network)
    expected = TorchBackend().loss_and_gradient(network, theta, x, y)[1]
    theta.flags.writeable = False
    np.testing.assert_array_equal(TorchBackend().loss_and_gradient(network, theta, x, y)[1], expected)


@pytest.mark.parametrize("make_backend", [TorchBackend, JaxBackend], ids=LIBRARIES)
def test_after_the_first_steps_no_vector_of_d_floats_is_made(make_backend: Any) -> None:
    """By NumPy: neither a copy of theta nor a new gradient, while the last one is held."""
    backend, network = make_backend(), networks.make("mlp:100-100-3")
    theta, x, y = batch_of(network)
    g = [backend.loss_and_gradient(network, theta, x, y)[1] for _ in range(2)][-1]
    tracemalloc.start()
    try:
        for _ in range(4):
            g = backend.loss_and_gradient(network, theta, x, y)[1]
        assert tracemalloc.get_traced_memory()[1] < g.nbytes / 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("make_backend", [TorchBackend, JaxBackend], ids=LIBRARIES)
def test_a_gradient_that_somebody_keeps_stays_as_it_is(make_backend: Any) -> None:
    backend, network = make_backend(), networks.make("mlp:12-7-3")
    theta, x, y = batch_of(network)
    kept = [backend.loss_and_gradient(network, (i + 1) * theta, x, y)[1] for i in range(4)]
    again = [backend.loss_and_gradient(network, (i + 1) * theta, x, y)[1].copy() for i in range(4)]
    assert len({g.ctypes.data for g in kept}) == 4
    for first, second in zip(kept, again, strict=True):
        assert first.flags.writeable
        np.testing.assert_array_equal(first, second)


def test_threads_have_gradients_of_their_own() -> None:
    network = networks.make("mlp:12-7-3")
    theta, x, y = batch_of(network)
    found: list[set[int]] = []

    def compute() -> None:
        found.append({TorchBackend().loss_and_gradient(network, theta, x, y)[1].ctypes.data for _ in range(3)})

    compute()
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    assert not found[0] & found[1]


def test_jax_reads_theta_where_it_lies_if_it_begins_with_a_cache_line() -> None:
    """What docs/backends.md says of XLA."""
    theta = aligned(np.zeros, (1000,), np.float32)
    assert jax.device_put(theta).unsafe_buffer_pointer() == theta.ctypes.data
    assert jax.device_put(theta[1:]).unsafe_buffer_pointer() != theta.ctypes.data + 4


def test_one_instance_makes_directions_and_gradients() -> None:
    experiment = Experiment(rbd.Config(**SMALL, backend="torch", gradients="torch"))
    assert experiment.problem.source is experiment.basis.backend  # type: ignore[attr-defined]
