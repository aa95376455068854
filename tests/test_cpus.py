"""The same bits on every CPU: short trainings in processes of their own, compiled for other CPUs than this one.

    python tests/test_cpus.py           runs them under all settings, one after the other, and prints a sha256 for each
    python tests/test_cpus.py FOLDER    the same with 200 steps of cnn and of resnet8 on the Fashion-MNIST of a folder

Compiling takes nearly all the time, so the tests try one foreign CPU; the command tries more, one without fused
multiply-add among them, which takes minutes, and with real data an hour.
"""

from __future__ import annotations

import platform
import sys

import numpy as np
import pytest

from tools import run_python

SCRIPT = """
import hashlib, itertools
import numpy as np
import rbd_ref
from rbd_ref.conformance.cases import pseudo_random
from rbd_ref.models import networks

class Task:
    def __init__(self, name, shape):
        self.network = networks.make(name, shape, 10)
        self.D, self.layers = self.network.D, self.network.sizes

    def initial(self, seed):
        return networks.initialise(self.network, seed)

    def batch(self, number):
        shape = (9, *self.network.input_shape)
        return pseudo_random(number, int(np.prod(shape))).reshape(shape), np.arange(9) % 10

    def loss_and_gradient(self, theta, step, worker):
        return networks.loss_and_gradient(self.network, theta, *self.batch(step))

    def loss(self, theta, step, worker, offspring):
        return networks.loss(self.network, theta, *self.batch(step if offspring is None else offspring))

TASKS = [Task("fc", (20, 20, 1)), Task("cnn", (20, 19, 3)), Task("resnet8", (9, 8, 3))]
RUNS = [{"method": "sgd"}]
RUNS += [
    {"method": method, "family": family, "dims": 4}
    for method, family in itertools.product(("rbd", "nes", "fpd"), ("normal", "srht"))
]
for task in TASKS:
    digest = hashlib.sha256()
    for settings in RUNS:
        theta = rbd_ref.fit(rbd_ref.Config(lr=0.05, steps=3, seed=2, **settings), problem=task).theta
        assert np.isfinite(theta).all()
        digest.update(theta.tobytes())
    print(task.network.name, digest.hexdigest())
digits = rbd_ref.fit(rbd_ref.Config(data="digits", net="mlp:64-32-10", method="rbd", dims=8, lr=0.1, steps=5, seed=2))
print("digits", hashlib.sha256(digits.theta.tobytes()).hexdigest())
"""

REAL = """
import hashlib, sys
import rbd_ref
for net, method in (("cnn", "sgd"), ("cnn", "rbd"), ("resnet8", "rbd")):
    config = rbd_ref.Config(data="fashion-mnist", data_dir=sys.argv[1], net=net, method=method, steps=200, lr=0.05)
    print(net, method, rbd_ref.fit(config).sha256)
print("digits", rbd_ref.fit(rbd_ref.Config(data="digits", epochs=3)).sha256)
"""
LONGEST = 7200  # seconds of a training without fused multiply-add


def disabled() -> str:
    """All that NumPy may choose by the CPU."""
    core = np._core._multiarray_umath  # type: ignore[attr-defined]
    return " ".join(name for name in core.__cpu_dispatch__ if core.__cpu_features__[name])


def threads(n: int) -> dict[str, str]:
    return {"NUMBA_NUM_THREADS": str(n), "OPENBLAS_NUM_THREADS": str(n)}


HERE = {
    "one thread": threads(1),
    "two threads": threads(2),
    "three threads, NumPy without vectors": threads(3) | {"NPY_DISABLE_CPU_FEATURES": disabled()},
}
FOREIGN = {"haswell": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"} | threads(2)}
BY_HAND = {
    "generic with fma": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+fma"} | threads(2),
    "skylake with AVX-512": {"NUMBA_CPU_NAME": "skylake-avx512", "NUMBA_CPU_FEATURES": "+avx512f,+avx512vl"}
    | threads(2),
    "generic without fma": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""} | threads(2),
}


def digests(environment: dict[str, str], *command: str) -> str:
    """What the script prints, or another command."""
    result = run_python("-c", *(command or (SCRIPT,)), timeout=LONGEST, **environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 4
    return result.stdout


@pytest.fixture(scope="module")
def expected() -> str:
    return digests({})


@pytest.mark.compiled
@pytest.mark.parametrize("name", HERE)
def test_neither_threads_nor_numpys_choice_of_instructions_change_a_bit(name: str, expected: str) -> None:
    assert digests(HERE[name]) == expected


@pytest.mark.compiled
@pytest.mark.skipif(platform.machine() != "x86_64", reason="there is one kind of vectors on other machines")
@pytest.mark.parametrize("name", FOREIGN)
def test_kernels_for_another_cpu_give_the_same_bits(name: str, expected: str) -> None:
    assert digests(FOREIGN[name]) == expected


def main(folder: str | None = None) -> int:
    """All settings."""
    command = (REAL, folder) if folder else ()
    wanted = digests({}, *command)
    print(wanted, end="", flush=True)
    same = True
    for name, environment in (HERE | FOREIGN | BY_HAND).items():
        answer = digests(environment, *command) == wanted
        print(f"{name}: {'the same' if answer else 'DIFFERENT'}", flush=True)
        same = same and answer
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
