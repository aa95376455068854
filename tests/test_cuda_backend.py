"""The backend `cuda` without a GPU: its real PTX interpreted and assembled, and its launches under Numba's simulator.

What none of this can show is a real GPU; backends/rbd_cuda/README.md says so. On a machine that has one,
`python -m rbd_ref.conformance --rbd-backend cuda` is the test.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from rbd_ref.backend import LEVELS, load
from rbd_ref.compartments import explicit, whole
from rbd_ref.conformance.cases import draw_at, pseudo_random
from rbd_ref.conformance.suite import all_checks, run_check
from rbd_ref.distributions import direction_entries, normal_pairs, parse_family
from rbd_ref.operations import directions_dense, project_dense, reconstruct_dense
from rbd_ref.prng import threefry2x32
from tools import ROOT, bits, run_python

BACKENDS = str(ROOT / "backends")
sys.path.insert(0, BACKENDS)


def has_compiler():
    """Whether NVIDIA's compiler of device code is there."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        load_nvidia_dynamic_lib("nvvm")
    except (ImportError, RuntimeError):
        return False
    return True


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="needs NVIDIA's compiler: pip install nvidia-nvvm")
pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(find_spec("numba_cuda") is None, reason="needs numba-cuda: pip install 'rbd-ref[cuda]'"),
]

FAMILIES = ("normal", "uniform", "rademacher", "bernoulli-graphcore", "sparse", "sparse:7", "srht")
SHORT = explicit(700, [(0, 1, 1), (1, 551, 3), (551, 700, 2)])
LONG = explicit(13_500, [(0, 12_001, 21), (12_001, 12_002, 1), (12_002, 13_500, 18)])
CAPABILITIES = ((8, 0), (9, 0))
MOST_REGISTERS = 64  # of a thread: 256 threads of 64 registers are a quarter of what a multiprocessor has

# Checks of the suite that the interpreter ends in a second or two a family; the others take a minute or more together.
INTERPRETED = (
    "words equal the golden vectors",
    "words of many counters",
    "directions equal the golden vectors",
    "long directions have the golden checksums",
    "directions equal the definition at all edges",
    "any choice of directions",
    "reconstruct and project equal the golden vectors",
    "reconstruct equals the definition at all edges",
    "coefficients below 2^-64",
    "arguments stay as they are",
)
# And those that the simulator, which makes some thousand entries a second, ends in a second or two.
SIMULATED = ("words equal the golden vectors", "any choice of directions", "coefficients below 2^-64")
IN_SIMULATOR = """
import warnings
warnings.simplefilter("ignore")  # words overflow, as they should
from rbd_cuda.backend import CudaBackend
from test_cuda_backend import SHORT, SIMULATED, chosen, operations
from rbd_ref.conformance.suite import run_check
backend = CudaBackend()
for family in ("normal", "bernoulli-graphcore", "sparse:7", "srht"):
    operations(backend, SHORT, family)
for check in chosen(SIMULATED):
    result = run_check(backend, check)
    assert result.outcome == "passed", f"{check}: {result.message}"
print("simulated")
"""


def chosen(titles):
    """Checks of the suite whose titles begin so."""
    return [check for check in all_checks() if check.title.startswith(titles)]


def operations(backend, plan, family):
    """Directions and updates have the bits of the definition, coefficients are near, descend is both."""
    draw, g, a = draw_at(plan, family, "unit", 7, 3, 5), pseudo_random(1, plan.D), pseudo_random(2, plan.d)
    indices = [plan.d - 1, 0, plan.d // 2]
    np.testing.assert_array_equal(bits(backend.directions(draw, indices)), bits(directions_dense(draw)[indices]))
    np.testing.assert_array_equal(bits(backend.reconstruct(draw, a)), bits(reconstruct_dense(draw, a)))
    coefficients, update = backend.descend(draw, g)
    exact = project_dense(draw, g)
    np.testing.assert_allclose(coefficients, exact, rtol=2.0**-18, atol=2.0**-20 * float(np.abs(exact).max()))
    np.testing.assert_array_equal(bits(coefficients), bits(backend.project(draw, g)))
    np.testing.assert_array_equal(bits(update), bits(reconstruct_dense(draw, coefficients)))


@cache
def backend():
    """The real PTX, interpreted."""
    from ptx_interpreter import PtxBackend

    return PtxBackend()


@cache
def kernel_names():
    """All kernels."""
    from rbd_cuda.kernels import KERNELS

    return tuple(KERNELS)


@cache
def ptxas():
    """NVIDIA's assembler: the one that came by pip, or one on the path."""
    import nvidia

    found = [path for folder in nvidia.__path__ for path in Path(folder).glob("cu*/bin/ptxas")]
    return str(found[0]) if found else shutil.which("ptxas")


def run_with_backends(code, **environment):
    """Python in a process of its own that finds backends and tests."""
    path = os.pathsep.join([str(ROOT), BACKENDS, str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    return run_python("-c", code, PYTHONPATH=path, **environment)


# The simulator.


def test_launches_in_the_simulator():
    result = run_with_backends(IN_SIMULATOR, NUMBA_ENABLE_CUDASIM="1")
    assert result.stdout == "simulated\n", result.stderr


# The PTX.


@needs_compiler
@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
def test_nothing_is_fused_and_all_is_rounded_to_nearest(capability):
    from ptx_interpreter import ptx

    for name in kernel_names():
        text = ptx(name, capability)
        assert f".target sm_{capability[0]}{capability[1]}" in text
        assert not re.search(r"\b(fma|mad)\.[a-z.]*f(32|64)|\.ftz|\.approx|\batom\b|\bred\.|\.local\b", text), name
        arithmetic = re.findall(r"\b(?:add|sub|mul|div|sqrt)\.[\w.]*f(?:32|64)\b", text)
        assert all(".rn." in instruction for instruction in arithmetic), name


@needs_compiler
@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
def test_ptxas_needs_few_registers_and_spills_none(capability, tmp_path):
    from ptx_interpreter import ptx

    if ptxas() is None:
        pytest.skip("needs NVIDIA's assembler: nvidia-cuda-nvcc")
    for name in kernel_names():
        source, cubin = tmp_path / f"{name}.ptx", tmp_path / f"{name}.cubin"
        source.write_text(ptx(name, capability))
        target = f"-arch=sm_{capability[0]}{capability[1]}"
        result = subprocess.run(
            [ptxas(), "-v", target, source, "-o", cubin], capture_output=True, text=True, check=True
        )
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.stderr, name
        registers = re.search(r"Used (\d+) registers", result.stderr)
        assert registers, result.stderr
        assert int(registers[1]) <= MOST_REGISTERS, name


@needs_compiler
def test_words_and_entries_of_thousands_of_elements():
    key, counter = np.array([3, 2**32 - 5], np.uint32), np.arange(20_000, dtype=np.uint32).reshape(2, -1)
    np.testing.assert_array_equal(backend().words(key, counter), threefry2x32(key, counter))
    for family in ("normal", "uniform", "rademacher", "bernoulli-graphcore", "sparse", "sparse:1", "sparse:256"):
        draw = draw_at(whole(30_001, d=2), family, "unit", 5, 6, 7)
        expected = direction_entries(parse_family(family), draw.keys[:, 0], 1, 30_001)
        np.testing.assert_array_equal(bits(backend().directions(draw, [1])[0]), bits(expected))


@needs_compiler
def test_normals_of_rare_words():
    from numba import cuda, float32, uint32, void

    from ptx_interpreter import Program, interpret
    from rbd_cuda.kernels import normal_pair

    def pairs(x, y):
        p = cuda.grid(1)
        if p < x.shape[1]:
            y[0, p], y[1, p] = normal_pair(x[0, p], x[1, p])

    edges = [0, 1, 2**30, 2**31, 2**32, *(2**32 // 3 * n for n in (1, 2)), *(2**n for n in range(7, 30, 2))]
    rare = [(edge + near) % 2**32 for edge in edges for near in (-130, -129, -128, -2, -1, 0, 1, 2, 255)]
    x = np.array(np.meshgrid(rare, rare), dtype=np.uint32).reshape(2, -1)
    y = np.empty(x.shape, dtype=np.float32)
    signature = void(uint32[:, ::1], float32[:, ::1])
    text, _ = cuda.compile(pairs, signature, device=False, abi="numba", cc=(8, 0))
    interpret(Program(text), -(-x.shape[1] // 256), 256, x, y)
    np.testing.assert_array_equal(bits(y), bits(normal_pairs(x)))


@needs_compiler
@pytest.mark.parametrize("family", FAMILIES)
def test_operations_with_many_jobs(family):
    operations(backend(), LONG, family)


@needs_compiler
def test_the_suite_on_interpreted_ptx():
    for check in chosen(INTERPRETED):
        result = run_check(backend(), check)
        assert result.outcome == "passed", f"{check}: {result.message}"


@needs_compiler
@pytest.mark.skipif("L3" not in LEVELS, reason="the suite has no steps")
def test_a_step_on_a_network():
    from rbd_ref.conformance import descents

    for family in ("normal", "sparse"):
        descents.step(backend(), family)


@needs_compiler
def test_what_is_held_on_the_device_does_not_grow_with_the_product():
    from ptx_interpreter import PtxBackend

    held = {}
    for d in (4, 64):
        fresh, draw = PtxBackend(), draw_at(whole(8_000, d=d), "rademacher", "unit", 1, 2, 3)
        fresh.descend(draw, pseudo_random(1, 8_000))
        held[d] = fresh.device.bytes
    assert held[64] - held[4] < 60 * 200 < 60 * 8_000


# Without a GPU.


def test_without_a_gpu_loading_says_so_in_one_sentence():
    code = "from rbd_ref.backend import load; load('rbd_cuda.backend:CudaBackend')"
    result = run_with_backends(code, NUMBA_ENABLE_CUDASIM="0", CUDA_VISIBLE_DEVICES="")
    assert result.stderr.splitlines()[-1].startswith(
        "ValueError: backend 'rbd_cuda.backend:CudaBackend' cannot be loaded"
    )
    assert "finds no CUDA device here" in result.stderr.splitlines()[-1]


def test_without_numba_cuda_loading_names_the_extra(monkeypatch):
    monkeypatch.setattr("rbd_cuda.backend.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"numba-cuda is not installed \(pip install 'rbd-ref\[cuda\]'\)"):
        load("rbd_cuda.backend:CudaBackend")


def test_importing_the_backend_imports_no_cuda():
    result = run_with_backends("import sys, rbd_cuda.backend; print([m for m in sys.modules if 'numba.cuda' in m])")
    assert result.stdout == "[]\n", result.stderr
