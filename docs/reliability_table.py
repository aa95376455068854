"""The table of docs/reliability.md, from the figures that `make torture` leaves in docs/reliability.json.

python docs/reliability_table.py            writes it into the page
python docs/reliability_table.py --check    fails where the page says something else
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pages import put, table

PAGE = Path(__file__).with_name("reliability.md")
Figures = dict[str, Any]


def details(row: Figures) -> str:
    """What the cases of a campaign were, or why there are none."""
    if "left out" in row:
        return f"left out: {row['left out']}"
    return ", ".join(f"{count:,} {name}" for name, count in row["of these"].items())


def campaigns(figures: Figures) -> str:
    """A row for each campaign, and under them what they ran with."""
    rows = [[row["campaign"], f"{row['cases']:,}", row["failed"], details(row)] for row in figures["rows"]]
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    told = f"{figures['minutes']:g} minutes, {figures['jobs']} cases at a time, seed {figures['seed']}; {versions}."
    return f"{table(['campaign', 'cases', 'failed', 'what happened in them'], rows)}\n\n{told}\n"


def main(arguments: list[str]) -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail where the page says something else")
    check = parser.parse_args(arguments).check
    figures = json.loads(PAGE.with_suffix(".json").read_text())
    if put(PAGE, {"campaigns": campaigns(figures)}, check) or not check:
        return 0
    print(f"{PAGE.name} says other than reliability.json: python docs/reliability_table.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
