"""What the README and docs/ say: their examples run, and the constants in the specification are those of the code."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from broken_backends import MUTANTS
from rbd_ref import backend, basis, random
from rbd_ref.conformance import __main__ as command
from rbd_ref.conformance.cases import draw_at
from rbd_ref.models import elementary
from rbd_ref.spec import compartments, families, prng
from rbd_ref.spec.compartments import explicit
from tools import ROOT, imported, run_python

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PUBLIC = (basis, backend, compartments, prng, random)
PACKAGE = ROOT / "rbd_ref"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PACKAGES = sorted({path.parent for path in PACKAGE.glob("*/*.py")})
SPECIFICATION = ROOT / "docs" / "specification.md"


@pytest.mark.compiled
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_of_the_pages(page: object) -> None:
    result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_the_readme_counts_the_broken_backends() -> None:
    assert f"with {len(MUTANTS)} deliberately" in (ROOT / "README.md").read_text()


def test_the_tables_of_speed_are_those_of_the_figures() -> None:
    result = run_python(str(ROOT / "docs" / "speed_tables.py"), "--check")
    assert result.returncode == 0, result.stderr


def test_the_table_of_reliability_is_that_of_the_figures() -> None:
    result = run_python(str(ROOT / "docs" / "reliability_table.py"), "--check")
    assert result.returncode == 0, result.stderr


def test_the_page_of_settings_is_what_the_package_says() -> None:
    result = run_python(str(ROOT / "docs" / "settings_table.py"), "--check")
    assert result.returncode == 0, result.stderr


def test_the_pages_have_examples() -> None:
    assert sum(page.read_text().count(">>> ") for page in PAGES) >= 10


@pytest.mark.compiled
@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_examples_of_the_code(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def public_names() -> Iterator[tuple[str, Any]]:
    """What users call in these modules: functions and classes, and the methods of `Basis`."""
    for module in PUBLIC:
        for name, value in vars(module).items():
            own = getattr(value, "__module__", None) == module.__name__ and callable(value)
            if own and not name.startswith("_") and name not in ("Backend", "Layout"):
                yield name, value
    yield from ((name, value) for name, value in vars(basis.Basis).items() if callable(value) and name[0] != "_")


@pytest.mark.parametrize(("name", "value"), list(public_names()), ids=lambda value: value if type(value) is str else "")
def test_public_names_have_an_example_and_their_arguments(name: str, value: Any) -> None:
    """And what they return."""
    text = inspect.getdoc(value) or ""
    assert ">>> " in text
    arguments = [p for p in inspect.signature(value).parameters if p != "self"]
    described = [p for p in arguments if f"    {p}: " in text]
    assert described == arguments
    assert "Returns:" in text or isinstance(value, type)


def test_the_job_for_backend_authors_calls_the_suite_as_it_is() -> None:
    """The command in the recipe of docs/backends.md has options that exist."""
    line = re.search(r"run: python -m rbd_ref.conformance (.*)", (ROOT / "docs" / "backends.md").read_text())
    assert line is not None
    options = command.parser().parse_args(line[1].split())
    assert (options.rbd_backend, options.report.name) == ("my_package.backend:MyBackend", "conformance.json")


def test_constants_of_the_specification_are_those_of_the_code() -> None:
    """Each constant of section 4.1 as hexadecimal bits."""
    rows = dict(re.findall(r"^\| `(\w+)` \| `0x([0-9a-f]{8})` \|", SPECIFICATION.read_text(), flags=re.M))
    names = {"A": "TWO_LN_2"} | {
        name: name for name in ("Q5", "Q4", "Q3", "Q2", "Q1", "Q0", "S2", "S1", "S0", "C3", "C2", "C1")
    }
    assert set(rows) == set(names)
    for name, attribute in names.items():
        assert int(rows[name], 16) == int(np.float32(getattr(families, attribute)).view(np.uint32)), name


def test_constants_of_exp_and_log_are_those_of_the_code() -> None:
    """Section 14."""
    text = SPECIFICATION.read_text()
    rows = dict(re.findall(r"\| ([PL]\d) \| `(\S+)` ", text))
    assert sorted(rows) == ["L1", "L2", "L3", "L4", "L5", "L6", "L7", "P1", "P2", "P3", "P4", "P5"]
    assert all(float(value) == getattr(elementary, name) for name, value in rows.items())
    for name in ("INVERSE", "LN2_HIGH", "LN2_LOW"):
        assert repr(getattr(elementary, name)) in text


def test_what_a_backend_is_given_is_what_the_specification_says() -> None:
    """Section 13: every field and method of a `Draw` and its `Plan` that it names, with its type and shape."""
    plan = explicit(300, [(0, 100, 2), (100, 101, 1), (101, 300, 4)])
    draw = draw_at(plan, "sparse", "unit", 1, 2, 3)
    values = {"draw": draw, "plan": plan, "k": 1, "index": 4, "length": 64, "most": 100, "K": 3, "d": 7, "D": 300}
    rows = re.findall(r"^\| (`(?:draw|plan)\..*?) \| (.*?) \|", SPECIFICATION.read_text(), flags=re.M)
    named = [(name, kind) for names, kind in rows for name in re.findall(r"`(.*?)`", names)]
    for name, kind in named:
        value = eval(name, {}, values)
        if array := re.match(r"(u?int32|u?int64|float64) \((2, )?(K \+ 1|K|d),?\)$", kind):
            shape = (2,) * bool(array[2]) + (eval(array[3], {}, values),)
            assert (value.dtype.name, value.shape) == (array[1], shape), name
        elif kind in ("int", "str", "slice", "`Plan`", "`Family`"):
            assert type(value).__name__ == kind.strip("`"), name
    fields = {field.name for owner in (draw, plan) for field in dataclasses.fields(owner)}
    assert fields <= {name.split(".")[1] for name, _ in named}
    assert len(named) >= 20


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_every_file_says_where_its_tests_are(source: Path) -> None:
    text = source.read_text()
    assert text.startswith('"""')
    if source.name not in ("__init__.py", "test_conformance.py"):
        assert "Tests: " in text.split('"""')[1]
    assert [
        name for name in re.findall(r"\b(?:tests|docs|benchmarks)/\w+\.\w+", text) if not (ROOT / name).exists()
    ] == []


@pytest.mark.parametrize("room", ["spec", "methods"])
def test_the_definition_and_the_methods_do_not_know_how_they_are_compiled(room: str) -> None:
    """Not even in their prose: they are read without it."""
    assert [path.name for path in (PACKAGE / room).glob("*.py") if "numba" in path.read_text().lower()] == []


def siblings(source: Path) -> set[str]:
    """The packages and modules directly in rbd_ref that a file imports; those at the bottom, every file may."""
    return {name for name in (full.split(".")[0] for full in imported(source)) if not name.startswith("_")}


def allowed(package: Path) -> set[str]:
    """What the docstring of a package says that it may import."""
    init = package / "__init__.py"
    line = re.search(r"^May import: ([\w, ]+)\.$", init.read_text(), flags=re.M) if init.exists() else None
    assert line, f"rbd_ref/{package.name}/__init__.py has no line `May import: a, b.` (or `May import: nothing.`)"
    return set(line[1].split(", ")) - {"nothing"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_packages_import_what_they_say(package: Path) -> None:
    """No file imports more, and nothing is named that none imports."""
    used = {path.name: siblings(path) - {package.name} for path in package.rglob("*.py")}
    more = {name: sorted(names - allowed(package)) for name, names in used.items() if names - allowed(package)}
    assert more == {}, "imports that the docstring of the package does not name"
    assert allowed(package) - set().union(*used.values()) == set(), "named, but no file imports it"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_the_pages_name_exist(page: Path) -> None:
    named = set(re.findall(r"\b(?:rbd_ref|tests|benchmarks|docs)/[\w/]+\.(?:py|md|json)\b", page.read_text()))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_the_pages_lead_somewhere(page: object) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):  # type: ignore[attr-defined]
        assert (page.parent / target).exists(), target  # type: ignore[attr-defined]
