"""Docstrings are plain text that reads well in an editor; here they become reST, before napoleon sees them.

A bar is a norm, not the start of a substitution, and a formula or a list that stands indented after a blank line is
shown as it is written. Tests: tests/test_site.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SECTION = re.compile(r"(Args|Returns|Raises|Examples|References|Yields|Attributes):$")


def escape(line: str) -> str:
    """A line of text without meaning in its bars; what is between backticks stays as it is."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(part if part.startswith("`") else re.sub(r"(?<!\\)\|", r"\\|", part) for part in parts)


def as_rest(lines: list[str]) -> list[str]:
    """The lines of a docstring as reST."""
    result: list[str] = []
    literal = False
    section = False
    blank = True
    for line in lines:
        indented = line.startswith("    ")
        example = line.lstrip().startswith((">>>", "..."))
        if line and not indented:
            section = bool(SECTION.match(line))
            literal = False
        elif result and result[-1] == "Returns:":
            line = "    : " + line.lstrip()  # its first colon is no end of a type
        if indented and blank and not section and not literal and not example:
            result += ["::", ""]
            literal = True
        result.append(line if literal or example else escape(line))
        blank = not line.strip()
    return result


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Before napoleon, whose priority is 500."""
    lines[:] = as_rest(lines)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", process, priority=400)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
