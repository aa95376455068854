"""Small things that several tests need."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")
ROOT = Path(__file__).parent.parent


def bits(x: np.ndarray) -> np.ndarray:
    """The bits of float32 numbers, for comparisons that tell -0 from 0."""
    return np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)


def imported(source: Path) -> set[str]:
    """The modules of rbd_ref, or names in them, that a file imports anywhere, in functions too: `spec.prng.fold_in`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("rbd_ref.") for name in names if name.startswith("rbd_ref.")}


def run_python(
    *arguments: str, folder: Path | None = None, timeout: float = 600, **environment: str
) -> subprocess.CompletedProcess[str]:
    """This Python in a process of its own."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
