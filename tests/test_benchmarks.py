"""The programs of benchmarks/ and docs/ follow the package: each is imported and says its --help, and each name that it
takes from a module of the package is there. What they measure is not run here."""

from __future__ import annotations

import ast
import json
from importlib import import_module
from pathlib import Path

import pytest

from tools import ROOT, run_python

OF_SPHINX = {"conf.py", "source_pages.py", "docstrings.py"}  # which `make docs` runs, and has what they need
PAGES = [path for path in (ROOT / "docs").glob("*.py") if path.name not in OF_SPHINX]
SCRIPTS = sorted([*(ROOT / "benchmarks").rglob("*.py"), *PAGES])
ASK_ALL = """
import contextlib, io, json, os, runpy, sys, traceback

found, paths = {}, sys.argv[1:]
sys.path[:0] = sorted({os.path.dirname(path) for path in paths})
for path in paths:
    sys.argv, text = [path, "--help"], io.StringIO()
    try:
        with contextlib.redirect_stdout(text):
            runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        found[path] = [end.code, text.getvalue()]
    except BaseException:
        found[path] = [1, traceback.format_exc()]
    else:
        found[path] = [0, text.getvalue()]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[int, str]]:
    """Exit status and text of each script with --help; all in one process, as their imports take long."""
    result = run_python("-c", ASK_ALL, *map(str, SCRIPTS))
    assert result.returncode == 0, result.stderr
    found: dict[str, tuple[int, str]] = json.loads(result.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_script_is_imported_and_says_its_help(script: Path, answers: dict[str, tuple[int, str]]) -> None:
    status, text = answers[str(script)]
    assert status == 0, text
    if "__main__" in script.read_text():
        assert text.startswith("usage: ")


def modules_of_the_package(tree: ast.Module) -> dict[str, str]:
    """The names by which a script calls modules of the package, and what they are called there."""
    called: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            called |= {alias.asname: alias.name for alias in node.names if alias.asname and "rbd_ref" in alias.name}
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rbd_ref"):
            called |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {name: module for name, module in called.items() if is_module(module)}


def is_module(name: str) -> bool:
    return (ROOT / name.replace(".", "/")).is_dir() or (ROOT / f"{name.replace('.', '/')}.py").is_file()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_names_that_a_script_takes_from_modules_are_there(script: Path) -> None:
    tree = ast.parse(script.read_text())
    called = modules_of_the_package(tree)
    missing = [
        f"{script.name}:{node.lineno}: {called[node.value.id]} has no {node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in called
        if not hasattr(import_module(called[node.value.id]), node.attr)
    ]
    assert not missing
