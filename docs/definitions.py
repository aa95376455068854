"""What a Python file defines, and where: for links to functions, and for the test that they exist.

Tests: tests/test_site.py.
"""

from __future__ import annotations

import ast


def definitions(text: str) -> dict[str, int]:
    """The line of every class, function and method of a Python file by its name: `Basis.descend`."""
    found: dict[str, int] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + child.name] = child.lineno
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.Assign | ast.AnnAssign) and (not prefix or prefix.count(".") == 1):
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                found.update({prefix + one.id: child.lineno for one in targets if isinstance(one, ast.Name)})

    visit(ast.parse(text), "")
    return found
