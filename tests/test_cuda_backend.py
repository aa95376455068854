"""The backend `cuda` without a GPU: its real PTX interpreted and assembled, and its launches under Numba's simulator.

The whole suite runs on interpreted PTX and, for one family, in the simulator by the commands that
backends/rbd_cuda/README.md names; here is a quick part of it. What none of this can show is a real GPU.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from ptx_interpreter import Program, PtxBackend, interpret, ptx
from rbd_ref.backend import load
from rbd_ref.conformance.cases import draw_at, pseudo_random
from rbd_ref.conformance.suite import all_checks, run_check
from rbd_ref.spec.compartments import explicit, whole
from rbd_ref.spec.families import FAMILIES, direction_entries, normal_pairs, parse_family
from rbd_ref.spec.operations import NORMALIZATIONS, directions, exact_project, reconstruct
from rbd_ref.spec.prng import threefry2x32
from tools import ROOT, bits, run_python


def has_compiler():
    """Whether NVIDIA's compiler of device code is there."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        load_nvidia_dynamic_lib("nvvm")
    except (ImportError, RuntimeError):
        return False
    return True


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="needs NVIDIA's compiler: pip install nvidia-nvvm")
needs_numba_cuda = pytest.mark.skipif(
    find_spec("numba_cuda") is None, reason="needs numba-cuda: pip install numba-cuda"
)
pytestmark = pytest.mark.compiled

SHORT = explicit(700, [(0, 1, 1), (1, 551, 3), (551, 700, 2)])
LONG = explicit(13_500, [(0, 12_001, 21), (12_001, 12_002, 1), (12_002, 13_500, 18)])
CAPABILITIES = ("80", "90")
MOST_REGISTERS = 64  # of a thread: 256 threads of 64 registers are a quarter of what a multiprocessor has

# Checks of the suite that the interpreter ends in a second a family.
QUICK = (
    "words equal the golden vectors",
    "directions equal the golden vectors",
    "reconstruct and project equal the golden vectors",
    "coefficients below 2^-64",
    "arguments stay as they are",
)
SLOW_ARRAYS = """
import time
import numpy as np
from rbd_cuda.backend import CudaBackend
from test_cuda_backend import SHORT, operations
empty = np.empty
def slow_empty(*arguments, **options):
    time.sleep(1e-2)
    return empty(*arguments, **options)
np.empty = slow_empty
operations(CudaBackend(), SHORT, "bernoulli-graphcore")
print("simulated")
"""
IN_SIMULATOR = """
import warnings
warnings.simplefilter("error")
from rbd_cuda.backend import CudaBackend
from test_cuda_backend import SHORT, operations
for family in ("normal", "bernoulli-graphcore", "sparse:7", "srht"):
    operations(CudaBackend(), SHORT, family)
print("simulated")
"""
CONFORMANCE = ("-m", "rbd_ref.conformance", "--rbd-backend", "cuda")
PTX = """
.visible .entry kernel(.param .u64 x)
{{
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, %tid.x;
    {}
    ret;
}}
"""


def chosen(titles):
    """Checks of the suite whose titles begin so."""
    return [check for check in all_checks() if check.title.startswith(titles)]


def operations(backend, plan, family):
    """Directions and updates have the bits of the definition, coefficients are near, descend is both."""
    draw, g, a = draw_at(plan, family, "unit", 7, 3, 5), pseudo_random(1, plan.D), pseudo_random(2, plan.d)
    indices = [plan.d - 1, 0, plan.d // 2]
    np.testing.assert_array_equal(bits(backend.directions(draw, indices)), bits(directions(draw)[indices]))
    np.testing.assert_array_equal(bits(backend.reconstruct(draw, a)), bits(reconstruct(draw, a)))
    coefficients, update = backend.descend(draw, g)
    exact = exact_project(draw, g)
    np.testing.assert_allclose(coefficients, exact, rtol=2.0**-18, atol=2.0**-20 * float(np.abs(exact).max()))
    np.testing.assert_array_equal(bits(coefficients), bits(backend.project(draw, g)))
    np.testing.assert_array_equal(bits(update), bits(reconstruct(draw, coefficients)))


@cache
def backend():
    """The real PTX, interpreted."""
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


# The simulator.


@needs_numba_cuda
@pytest.mark.parametrize("script", [IN_SIMULATOR, SLOW_ARRAYS], ids=["", "threads that ask for shared memory at once"])
def test_launches_in_the_simulator(script):
    result = run_python("-c", script, NUMBA_ENABLE_CUDASIM="1", PYTHONPATH=str(ROOT / "tests"))
    assert result.stdout == "simulated\n", result.stderr


@needs_numba_cuda
def test_the_simulated_backend_reports_what_it_leaves_out(tmp_path):
    report = tmp_path / "report.json"
    result = run_python(*CONFORMANCE, "--level", "L0", "--report", str(report), NUMBA_ENABLE_CUDASIM="1")
    assert result.stdout.splitlines()[-1] == "cuda-simulated: conforms to L0", result.stderr
    assert result.stderr == ""
    content = json.loads(report.read_text())
    assert content["missing"] == [name for name in (*FAMILIES, *NORMALIZATIONS) if name not in ("sparse", "unit")]
    assert "simulator" in content["declared"]["reason"]


# The PTX.


@needs_compiler
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_nothing_is_fused_and_all_is_rounded_to_nearest(capability):
    for name in kernel_names():
        text = ptx(name, capability)
        assert f".target sm_{capability}" in text
        assert not re.search(r"\b(fma|mad)\.[a-z.]*f(32|64)|\.ftz|\.approx|\batom\b|\bred\.|\.local\b", text), name
        arithmetic = re.findall(r"\b(?:add|sub|mul|div|sqrt)\.[\w.]*f(?:32|64)\b", text)
        assert all(".rn." in instruction for instruction in arithmetic), name


@needs_compiler
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_ptxas_needs_few_registers_and_spills_none(capability, tmp_path, record_testsuite_property):
    """The registers of each kernel are properties of the suite in the report of `pytest --junitxml FILE`."""
    if ptxas() is None:
        pytest.skip("needs NVIDIA's assembler: pip install nvidia-cuda-nvcc")
    for name in kernel_names():
        source, cubin = tmp_path / f"{name}.ptx", tmp_path / f"{name}.cubin"
        source.write_text(ptx(name, capability))
        command = [ptxas(), "-v", f"-arch=sm_{capability}", source, "-o", cubin]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.stderr, name
        registers = re.search(r"Used (\d+) registers", result.stderr)
        assert registers, result.stderr
        record_testsuite_property(f"registers sm_{capability} {name}", int(registers[1]))
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
@pytest.mark.parametrize("family", [*FAMILIES, "sparse:7"])
def test_operations_with_many_jobs(family):
    operations(backend(), LONG, family)


@needs_compiler
def test_the_suite_on_interpreted_ptx():
    for check in chosen(QUICK):
        result = run_check(backend(), check)
        assert result.outcome == "passed", f"{check}: {result.message}"


@needs_compiler
def test_what_is_held_on_the_device_does_not_grow_with_the_product():
    held = {}
    for d in (4, 64):
        fresh, draw = PtxBackend(), draw_at(whole(8_000, d=d), "rademacher", "unit", 1, 2, 3)
        fresh.descend(draw, pseudo_random(1, 8_000))
        held[d] = fresh.device.bytes
    assert held[64] - held[4] < 60 * 200 < 60 * 8_000


# The interpreter.


def run_ptx(lines, x):
    """Two CUDA blocks of four threads."""
    program = Program(PTX.format("\n".join(lines)))
    program.parameters = [("u64", name) for name in ("a", "b", "c", "d", "x", "e", "f")]  # as Numba hands an array
    interpret(program, 2, 4, x)


def test_the_interpreter_swaps_registers_and_branches():
    x = np.full(4, 7, np.uint32)
    lines = [
        "mul.wide.u32 %rd2, %r1, 4;",
        "add.s64 %rd3, %rd1, %rd2;",
        "mov.u32 %r2, 10;",
        "setp.lt.u32 %p1, %r1, 2;",
        "$loop:",
        "mov.u32 %r3, %r1;",
        "mov.u32 %r1, %r2;",
        "mov.u32 %r2, %r3;",
        "not.pred %p1, %p1;",
        "@%p1 bra $loop;",
        "st.global.u32 [%rd3], %r1;",
    ]
    run_ptx(lines, x)
    assert x.tolist() == [10, 10, 2, 3]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("fma.rn.f32 %f1, %f2, %f3, %f4;", NotImplementedError),
        ("@%p1 add.u32 %r2, %r1, %r1;", NotImplementedError),
        ("ld.local.u32 %r2, [%rd1];", NotImplementedError),
        ("ld.global.u32 %r2, [%rd1+-4];", RuntimeError),
        ("st.global.u32 [%rd1+16], %r1;", RuntimeError),
        ("st.global.u32 [%rd1+2], %r1;", RuntimeError),
        ("setp.lt.u32 %p1, %r1, 2;\n@%p1 bra $on;\nbar.sync 0;\n$on:\nbar.sync 0;", RuntimeError),
    ],
)
def test_the_interpreter_refuses(line, error):
    with pytest.raises(error):
        run_ptx([line], np.zeros(4, np.uint32))


# Without a GPU.


@needs_numba_cuda
def test_without_a_gpu_the_suite_says_so_in_one_sentence():
    result = run_python(*CONFORMANCE, NUMBA_ENABLE_CUDASIM="0", CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "'cuda' cannot be loaded: numba-cuda finds no CUDA device and driver here" in result.stderr


def test_without_numba_cuda_loading_names_the_extra(monkeypatch):
    monkeypatch.setattr("rbd_cuda.backend.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"numba-cuda is not installed, expected it: pip install 'rbd-ref\[cuda\]'"):
        load("cuda")


def test_importing_the_backend_imports_no_cuda():
    result = run_python("-c", "import sys, rbd_cuda.backend; print([m for m in sys.modules if 'numba.cuda' in m])")
    assert result.stdout == "[]\n", result.stderr
