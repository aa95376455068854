"""How the code is written, counted: functions stay short, and take few parameters.

    python tests/test_style.py    prints the figures, and which files pack most unrelated values into one line

Kernels are apart: they take arrays and what to do with them one by one, as the compilers want it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tools import ROOT

FOLDERS = ("rbd_ref", "mpi", "backends")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
KERNELS = {"kernel", "parallel_kernel", "device", "cuda.jit"}
APART = ("rbd_ref/kernels/", "backends/rbd_cuda/kernels.py")
MOST_PARAMETERS = 7
# What users call with keywords only, as the library it belongs to has it: torch's optimizers, optax's transformations.
BY_KEYWORD = (
    "backends/rbd_torch/optimizer.py __init__",
    "backends/rbd_jax/transform.py scale_by_random_bases",
    "backends/rbd_jax/transform.py rbd",
)
MEDIAN_LINES = 12
Node = ast.FunctionDef | ast.AsyncFunctionDef


class Function(NamedTuple):
    """A function or method and where it stands."""

    path: Path
    node: Node

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.node.lineno} {self.node.name}"

    @property
    def lines(self) -> int:
        """From `def` to the end, without decorators and docstring."""
        end = self.node.end_lineno or self.node.lineno
        first = self.node.body[0]
        text = ast.get_docstring(self.node) is not None
        docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if text else 0
        return end - self.node.lineno + 1 - docstring

    @property
    def parameters(self) -> int:
        """How many, without self, cls, *args and **kwargs."""
        given = self.node.args
        names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        return len(names) - (names[:1] in (["self"], ["cls"]))

    @property
    def is_kernel(self) -> bool:
        """Whether a compiler for kernels gets it."""
        if self.path.relative_to(ROOT).as_posix().startswith(APART):
            return True
        found = (one.func if isinstance(one, ast.Call) else one for one in self.node.decorator_list)
        return any(ast.unparse(one) in KERNELS for one in found)

    @property
    def by_keyword(self) -> bool:
        """Whether it is one of BY_KEYWORD, with at most three parameters that go by their place."""
        name = f"{self.path.relative_to(ROOT).as_posix()} {self.node.name}"
        return name in BY_KEYWORD and len(self.node.args.args) <= 4


def functions() -> Iterator[Function]:
    """All of them, nested ones too."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Node):
                yield Function(path, node)


def packed(path: Path) -> list[int]:
    """The lines that assign three or more values at once, each written out: `a, b, c = x, y, z`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple) and len(node.value.elts) >= 3:
            found += [node.lineno for target in node.targets if isinstance(target, ast.Tuple)]
    return found


def test_functions_are_short() -> None:
    lengths = [function.lines for function in functions()]
    assert len(lengths) > 500
    assert median(lengths) < MEDIAN_LINES


def crowded() -> list[str]:
    """The functions that take too many parameters, kernels apart."""
    return [
        f"{function} has {function.parameters} parameters"
        for function in functions()
        if not function.is_kernel and not function.by_keyword and function.parameters > MOST_PARAMETERS
    ]


def test_functions_have_few_parameters() -> None:
    assert crowded() == []


def main() -> None:
    """The figures."""
    every = list(functions())
    print(f"{len(every)} functions, {median(function.lines for function in every)} lines in the median")
    print(*crowded(), sep="\n", end="")
    for folder in FOLDERS:
        inside = [path for path in SOURCES if path.is_relative_to(ROOT / folder)]
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in inside)
        count = sum(len(packed(path)) for path in inside)
        print(f"{folder}: {count} lines pack three or more values, {1000 * count / lines:.1f} of 1,000")
    for path in sorted(SOURCES, key=lambda path: -len(packed(path)))[:12]:
        print(f"{len(packed(path)):4} {path.relative_to(ROOT)}: {', '.join(map(str, packed(path)))}")


if __name__ == "__main__":
    main()
