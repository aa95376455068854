"""docs/architecture.md: the walk of one step is one that the code takes, and imports go down as the page says.

The files that CONTRIBUTING.md and the workflow name are there, too.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from tools import ROOT, run_python

PAGE = ROOT / "docs" / "architecture.md"
STEP = re.compile(r"^( *)- `([\w/]+\.py):([\w.]+)`: (.*)$")


class Step(NamedTuple):
    """A line of the walk: how deep it stands, and the function it names."""

    depth: int
    file: str
    function: str
    text: str

    @property
    def room(self) -> str:
        """The package, or the module of its own, that the function is in."""
        folder = Path(self.file).parent
        return self.file if folder == Path("rbd_ref") else str(folder)

    @property
    def name(self) -> str:
        """As a caller writes it."""
        return self.function.split(".")[-1]

    def source(self) -> str:
        """The text of the function."""
        text = (ROOT / self.file).read_text()
        node: ast.AST = ast.parse(text)
        for part in self.function.split("."):
            found = [child for child in getattr(node, "body", ()) if getattr(child, "name", None) == part]
            assert found, f"{self.file} has no {self.function}"
            node = found[-1]
        return ast.get_source_segment(text, node) or ""


def walk() -> list[Step]:
    """The lines between the marks."""
    part = PAGE.read_text().split("<!-- walk -->\n")[1].split("<!-- end walk -->")[0]
    lines = [STEP.match(line) for line in part.splitlines()]
    assert None not in lines
    return [Step(len(line[1]) // 2, *line.groups()[1:]) for line in lines if line]


def paths() -> list[list[Step]]:
    """For each line, the lines that lead to it, from the top, itself the last."""
    found: list[list[Step]] = []
    stack: list[Step] = []
    for step in walk():
        assert step.depth <= len(stack), f"{step.function} stands too far in"
        stack = [*stack[: step.depth], step]
        found.append(stack)
    return found


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/package_graph.py as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.delitem(sys.modules, "package_graph", raising=False)
    return importlib.import_module("package_graph")


@pytest.mark.parametrize("step", walk(), ids=lambda step: step.function)
def test_every_function_of_the_walk_exists(step: Step) -> None:
    assert step.source()


def test_every_line_of_the_walk_is_called_by_the_one_above_it() -> None:
    """By name: what is found by an entry point or called at an address has another in its caller."""
    wrong = [
        f"{caller.function} does not mention {step.name}"
        for *_, caller, step in (path for path in paths() if len(path) > 1)
        if not re.search(rf"\b{step.name}\b", caller.source())
        and not re.search(r"\((found by entry point|called at an address)\)", step.text)
    ]
    assert wrong == []


def test_nobody_goes_back_to_a_room_they_came_from() -> None:
    """Only the objective, which is handed in, is of a room that was left."""
    for path in paths():
        rooms = [path[0].room]
        for step in path[1:]:
            if "(handed in)" in step.text:
                rooms = []
            if not rooms or step.room != rooms[-1]:
                assert step.room not in rooms, f"{step.function} is back in {step.room}"
                rooms.append(step.room)


def test_the_walk_is_that_of_a_whole_step() -> None:
    names = [step.function for step in walk()]
    parts = ["main", "Trainer.advance", "Trainer.propose", "Trainer.allgather", "Trainer.apply", "Writer.append"]
    assert [name for name in names if name in parts] == parts


def test_imports_go_down_and_the_table_lists_them() -> None:
    result = run_python(str(ROOT / "docs" / "package_graph.py"), "--check")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("unit", "name", "sentence"),
    [
        ("spec", "kernels", "spec imports kernels, which is not below it"),
        ("methods", "models", "methods imports models, which is not below it"),
        ("runs", "rbd_mpi", "runs imports rbd_mpi, which is not below it"),
        ("rbd_jax", "rbd_torch", "rbd_jax imports rbd_torch, which is not below it"),
        ("models", "backend", "models imports backend, which its line `May import:` does not name"),
        ("models", "cellar", "cellar is in no layer"),
    ],
)
def test_an_import_that_should_not_be_is_named(graph: ModuleType, unit: str, name: str, sentence: str) -> None:
    edges = graph.edges()
    assert graph.faults(edges) == []
    edges[unit].add(name)
    assert any(found.startswith(sentence) for found in graph.faults(edges))


def test_imports_are_read_from_the_sources(graph: ModuleType, tmp_path: Path) -> None:
    """Within functions and type checks too; the version alone is no import of the package."""
    file = tmp_path / "module.py"
    file.write_text(
        "import rbd_ref\nfrom rbd_ref import runs\nfrom rbd_ref.spec.prng import fold_in\n"
        "from rbd_ref._types import F32\nimport numpy\nprint(rbd_ref.__version__)\n"
        "def late():\n    import rbd_ref.kernels.tiles\n    from rbd_mpi import launch\n"
    )
    assert set(graph.targets(file)) == {"runs", "spec", "kernels", "rbd_mpi"}
    file.write_text("import rbd_ref\nrbd_ref.fit\n")
    assert set(graph.targets(file)) == {"rbd_ref"}


def test_the_files_to_copy_exist() -> None:
    """Those that CONTRIBUTING.md names with their folder, and those that the workflow runs."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    names = [*links, *re.findall(r"`((?:rbd_ref|backends|tests|docs|benchmarks)/[\w./]*)`", text)]
    names += re.findall(r"tests/\w+\.py", (ROOT / ".github" / "workflows" / "test.yml").read_text())
    assert len(names) > 40
    assert [name for name in names if not (ROOT / name).exists()] == []
