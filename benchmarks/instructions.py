"""Instructions that `descend` needs for an entry of a direction, by family: a figure that no load changes.

    python benchmarks/instructions.py --json benchmarks/instructions.json

Counted by valgrind's callgrind on kernels compiled for AVX2 (valgrind knows no AVX-512), one thread: those of a call
with more directions, less those of a call with fewer, so that what a call costs by itself is apart. `growth` is what
one more direction costs where there are many, in units of what it costs where there are few: 1 if cost grows like d,
whatever clocks say. Two counts of the same sources differ by some hundredths of a percent. Needs valgrind with its
headers, and a C compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import llvmlite
import numba
import numpy as np

import rbd_ref as rbd
from rbd_ref.conformance.cases import pseudo_random
from rbd_ref.spec.families import FAMILIES

D = 101_770
FEW = 4
MANY = 24
MORE = 144
SETTINGS = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2", "NUMBA_NUM_THREADS": "1"}
MARKS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""


def calls(library: Path | None) -> None:
    """What is counted: a call of each family at all sizes, after one that is not."""
    marks, g = ctypes.CDLL(str(library)) if library else None, pseudo_random(1, D)
    for family in FAMILIES:
        for d in (FEW, MANY, MORE):
            basis = rbd.Basis(rbd.compartments.whole(D, d=d), family=family)
            basis.descend(g, step=0)
            if marks:
                marks.begin()
                basis.descend(g, step=0)
                marks.end(f"{family} {d}".encode())


def needed(program: str) -> str:
    """Where a program is, or one sentence."""
    return shutil.which(program) or sys.exit(f"there is no {program} here, which counts need: install it")


def counted(folder: Path) -> dict[str, int]:
    """Instructions of every call."""
    source, library = folder / "marks.c", folder / "marks.so"
    source.write_text(MARKS)
    subprocess.run([needed("cc"), "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    environment, this = {**os.environ, **SETTINGS}, [sys.executable, __file__]
    subprocess.run([*this, "--calls", "-"], env=environment, check=True)  # compiles, which would take long below
    valgrind = [
        needed("valgrind"),
        "-q",
        "--tool=callgrind",
        "--instr-atstart=no",
        f"--callgrind-out-file={folder}/out",
    ]
    subprocess.run([*valgrind, *this, "--calls", library], env=environment, check=True)
    texts = [path.read_text() for path in folder.glob("out.*")]
    pattern = re.compile(r"^desc: Trigger: Client Request: (.*?)$.*?^(?:summary|totals): (\d+)", flags=re.S | re.M)
    return {found[1]: int(found[2]) for found in map(pattern.search, texts) if found}


def main() -> None:
    """Count, print, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--calls", metavar="LIBRARY", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.calls:
        return calls(None if options.calls == "-" else Path(options.calls))
    with tempfile.TemporaryDirectory() as folder:
        found = counted(Path(folder))
    rows = {}
    for family in FAMILIES:
        few, many, more = (found[f"{family} {d}"] for d in (FEW, MANY, MORE))
        direction = (many - few) / (MANY - FEW)
        growth = (more - many) / (MORE - MANY) / direction
        rows[family] = {"an entry": direction / D, f"call, d = {MANY}": many, "growth": growth}
        print(f"{family:20} {direction / D:8.3f} an entry, {many:11,} in a call of d = {MANY}, growth {growth:.3f}")
    if options.json:
        versions = {"numba": numba.__version__, "llvmlite": llvmlite.__version__, "numpy": np.__version__}
        options.json.write_text(json.dumps({"versions": versions, "families": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
