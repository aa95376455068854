"""docs/settings.md, from what `rbd_ref.runs.config` says of each setting: default, meaning, and what it needs.

python docs/settings_table.py            writes it
python docs/settings_table.py --check    fails where the page says something else
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import Field
from pathlib import Path
from typing import Any

from pages import put, table

from rbd_ref.runs.config import FIELDS
from rbd_ref.runs.meaning import needs

PAGE = Path(__file__).with_name("settings.md")


def row(item: Field[Any]) -> list[str]:
    """A line of the table."""
    default = "" if item.default in (None, "", ()) else f"`{str(item.default).lower()}`"
    return [f"`--{item.name.replace('_', '-')}`", default, item.metadata["help"], "; ".join(needs(item))]


def tables() -> dict[str, str]:
    """A table for each group of settings, by its name in the page."""
    shown = [item for item in FIELDS.values() if not item.metadata.get("hidden")]
    groups = dict.fromkeys(item.metadata["group"] for item in shown)
    head = ["flag", "default", "what it is", "has an effect only with"]
    return {
        group.replace(" ", "-"): table(head, [row(item) for item in shown if item.metadata["group"] == group])
        for group in groups
    }


def main(arguments: list[str]) -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail where the page says something else")
    options = parser.parse_args(arguments)
    if put(PAGE, tables(), options.check) or not options.check:
        return 0
    print(f"{PAGE} is not what the settings say, expected the same: run python docs/settings_table.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
