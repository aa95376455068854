"""The table of docs/backends.md, from the reports that `make conformance` leaves: backends, levels, families.

python docs/backend_table.py conformance-*.json            writes it into the page
python docs/backend_table.py --check conformance-*.json    fails where the page says something else
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from rbd_ref.backend import LEVELS
from rbd_ref.distributions import FAMILIES

PAGE = Path(__file__).with_name("backends.md")
MARKS = re.compile(r"(<!-- backends -->\n).*?(\n<!-- end -->)", flags=re.S)
Report = dict[str, Any]


def outcomes(report: Report, level: str, family: str | None = None) -> set[str]:
    """How the checks of a level ended, of one family or of all."""
    return {
        check["outcome"] for check in report["checks"] if check["level"] == level and family in (None, check["family"])
    }


def of_level(report: Report, level: str) -> str:
    """`yes` if something was checked and nothing failed."""
    found = outcomes(report, level)
    return "fails" if "failed" in found else "yes" if "passed" in found else "-"


def of_family(report: Report, family: str) -> str:
    """The highest level that the family's own checks passed."""
    return max((level for level in LEVELS if outcomes(report, level, family) == {"passed"}), default="-")


def table(reports: list[Report]) -> str:
    """Markdown, the reference first."""
    head = ["backend", *LEVELS, *(f"`{family}`" for family in FAMILIES)]
    rows = [
        [f"`{report['backend']}`", *(of_level(report, level) for level in LEVELS)]
        + [of_family(report, family) for family in FAMILIES]
        for report in sorted(reports, key=lambda report: (report["backend"] != "numba", report["backend"]))
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def main(arguments: list[str]) -> int:
    """Write, or compare."""
    paths = [Path(name) for name in arguments if name != "--check"]
    text = PAGE.read_text()
    wanted = MARKS.sub(lambda found: found[1] + table([json.loads(p.read_text()) for p in paths]) + found[2], text)
    if "--check" not in arguments:
        PAGE.write_text(wanted)
    elif wanted != text:
        print(
            f"{PAGE.name} says other than the reports: python docs/backend_table.py conformance-*.json", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
