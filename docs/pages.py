"""Tables in the pages that programs write: each stands between <!-- its name --> and <!-- end -->."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in cells) + " |" for cells in lines)


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """The page with these tables in their places, which must be there."""
    for name, made in tables.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", flags=re.S)
        text, found = pattern.subn(lambda place, made=made: place[1] + made + "\n" + place[2], text)
        if found != 1:
            sys.exit(f"there are {found} places for the table {name}, expected one: <!-- {name} --> and <!-- end -->")
    return text


def put(page: Path, tables: Mapping[str, str], check: bool = False) -> bool:
    """Write the tables into a page, or only look whether they are there; whether they were."""
    before = page.read_text()
    after = with_tables(before, tables)
    if not check:
        page.write_text(after)
    return before == after
