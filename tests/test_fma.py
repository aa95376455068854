"""What LLVM makes of a tile on CPUs that are not here: fused multiply-adds on sums that stay in registers."""

from __future__ import annotations

import re

import pytest
from llvmlite import binding, ir

from rbd_ref.kernels import _fma

CPUS = {  # triple, CPU, features, fused multiply-add, bytes of a register
    "AVX2": ("x86_64-unknown-linux-gnu", "haswell", "+avx2,+fma", r"vfmadd\w+ps", 32),
    "AVX-512": ("x86_64-unknown-linux-gnu", "skylake-avx512", "", r"vfmadd\w+ps", 64),
    "NEON": ("aarch64-unknown-linux-gnu", "neoverse-n1", "", r"fmla", 16),
}
FLOAT, I64 = ir.FloatType(), ir.IntType(64)


def tile_module(rows: int, vectors: int, at_once: int) -> str:
    """A function with the loop of a tile alone: factors, terms, b and the distance of its rows, depth, results."""
    module = ir.Module()
    pointer = FLOAT.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer] * rows + [I64.as_pointer(), pointer, I64, I64, pointer])
    function = ir.Function(module, kind, "tile")
    set.add(function.attributes, '"prefer-vector-width"="512"')
    builder = ir.IRBuilder(function.append_basic_block())
    *factors, terms, b, step, depth, out = function.args
    kit = _fma._Vectors(builder, FLOAT, 4, None)
    zeros = [ir.Constant(kit.type, [0.0] * kit.count)] * (rows * vectors)
    along = _fma._Depth(terms, b, step, depth)
    _, *sums = _fma._sums(kit, factors, along, I64(0), zeros, at_once)
    for n, total in enumerate(sums):
        kit.store(total, builder.gep(out, [I64(n * kit.count)]))
    builder.ret_void()
    return str(module)


def loop(assembly: str) -> list[str]:
    """The instructions of the block with the most fused multiply-adds."""
    blocks = re.split(r"^\.\w+:", assembly, flags=re.M)
    bodies = [[line.strip() for line in block.splitlines() if re.match(r"\s+[a-z]", line)] for block in blocks]
    return max(bodies, key=lambda lines: sum("fm" in line for line in lines))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", CPUS)
def test_the_loop_of_a_tile_has_its_fused_multiply_adds_and_no_spill(name: str, wide: bool) -> None:
    """Tiles of one vector on all, and of two where a register holds one."""
    triple, cpu, features, pattern, size = CPUS[name]
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=3)
    rows = 8 if size == _fma.BYTES else 6
    vectors = 2 if wide and size == _fma.BYTES else 1
    at_once = 1 if wide else _fma.TERMS
    lines = loop(machine.emit_assembly(binding.parse_assembly(tile_module(rows, vectors, at_once))))
    fused = [line for line in lines if re.match(pattern, line)]
    assert len(fused) == at_once * rows * vectors * _fma.BYTES // size
    assert not [line for line in lines if re.search(r"\br?sp\b", line)], "something is kept on the stack"
