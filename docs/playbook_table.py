"""The tables of docs/playbook.md: what other pages measured, side by side.

    python docs/playbook_table.py             writes them
    python docs/playbook_table.py --check     fails if they are not what the other pages say

Those tables are written from benchmarks/ by their own programs; nothing is measured or typed here.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from pages import put, table

HERE = Path(__file__).parent
FASHION = "Fashion-MNIST, FC"
PARAMETERS = 122_570  # of the CNN
DIMENSIONS = 250  # or as many signs as take the same bytes
CIFAR = "CIFAR-10, CNN"


def rows(page: Path, name: str) -> list[list[str]]:
    """The rows of a table that a program wrote into a page, its head first."""
    place = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", page.read_text(encoding="utf-8"), flags=re.S)
    if place is None:
        sys.exit(f"{page.name} has no table {name}, expected <!-- {name} --> and <!-- end -->: look where it has gone")
    lines = [line for line in place[1].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells[0], *cells[2:]]


def accuracy() -> str:
    """What a worker sends against what is reached."""
    head, *twenty = rows(HERE / "memory.md", "twenty")
    sent = {row[0]: row[head.index("bytes a step")] for row in twenty}
    found = [[FASHION, row[0], sent[row[0]], row[head.index("rate")], row[head.index("validation")]] for row in twenty]
    head, *hundred = rows(HERE / "memory.md", "long")
    for row in hundred:
        size = 4 * PARAMETERS if row[0] == "SGD" else 4 * DIMENSIONS
        found.append([CIFAR, row[0], f"{size:,}", row[head.index("rate")], row[head.index("epoch 100")]])
    return table(["task", "method", "bytes a step", "rate", "validation, %"], found)


def cost() -> str:
    """What a basis costs, by family."""
    _, *found = rows(HERE.parent / "README.md", "times")
    families = [row for row in found if re.fullmatch(r"`[\w-]+`", row[0])]
    return table(
        ["family", "D = 101,770, d = 250", "D = 122,570, d = 1,000"], [[row[0], row[1], row[3]] for row in families]
    )


def network() -> str:
    """What a step takes on slow and fast links."""
    head, *found = rows(HERE / "own-model.md", "ddp")
    return table(head, found)


def workers() -> str:
    """Data that are alike, and data that differ from worker to worker."""
    head, *found = rows(HERE / "memory.md", "workers")
    kept = [0, 1, head.index("batch 32, alike"), head.index("batch 32, classes")]
    return table(
        [head[0], head[1], "all see the same classes", "each sees one or two classes"],
        [[row[column] for column in kept] for row in found],
    )


def main() -> None:
    """Write, or only look."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only look")
    check = parser.parse_args().check
    tables = {"accuracy": accuracy(), "cost": cost(), "network": network(), "workers": workers()}
    if not put(HERE / "playbook.md", tables, check) and check:
        sys.exit("docs/playbook.md is not what the other pages say: python docs/playbook_table.py")


if __name__ == "__main__":
    main()
