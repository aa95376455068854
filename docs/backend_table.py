"""The table of docs/backends.md, from the reports that `make conformance` leaves: backends, levels, families.

python docs/backend_table.py conformance-*.json            writes it into the page
python docs/backend_table.py --check conformance-*.json    fails where the page says something else
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pages import put, table

from rbd_ref.backend import LEVELS, OWN
from rbd_ref.spec.families import FAMILIES

PAGE = Path(__file__).with_name("backends.md")
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


def backends(reports: list[Report]) -> str:
    """The table, the package's own first."""
    rows = [
        [f"`{report['backend']}`", *(of_level(report, level) for level in LEVELS)]
        + [of_family(report, family) for family in FAMILIES]
        for report in sorted(reports, key=lambda report: (report["backend"] not in OWN, report["backend"]))
    ]
    return table(["backend", *LEVELS, *(f"`{family}`" for family in FAMILIES)], rows)


def main(arguments: list[str]) -> int:
    """Write, or compare."""
    check = "--check" in arguments
    reports = [json.loads(Path(name).read_text()) for name in arguments if name != "--check"]
    if put(PAGE, {"backends": backends(reports)}, check) or not check:
        return 0
    print(f"{PAGE.name} says other than the reports: python docs/backend_table.py conformance-*.json", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
