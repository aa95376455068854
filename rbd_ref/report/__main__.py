"""The command `python -m rbd_ref.report`: reads runs, writes the page.

Where something is wrong with a run, a page that was there before stays.
Tests: tests/test_report.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rbd_ref.report.page import build
from rbd_ref.runs.files import RunError, disk, write_whole
from rbd_ref.runs.memory import enough_memory


def write(page: str, out: Path) -> None:
    """The page under this name, whole, or what was there before."""
    with disk(out, "written", flag="-o"):
        if out.exists() and not out.is_file():
            raise RunError(f"{out} is no ordinary file, expected a name for the report: name another with -o")
    content = page.encode(errors="replace")  # a name may have half of a surrogate pair, which no encoding has
    write_whole(out, lambda file: file.write(content), flag="-o")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="rbd_ref.report", description="Compare runs on one HTML page.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder that a training has written")
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="the page (report.html)")
    options = parser.parse_args(argv)
    try:
        with enough_memory("the runs were read and the page was made"):
            write(build(options.runs), options.output)
    except RunError as error:
        print(f"rbd_ref.report: {error}", file=sys.stderr)
        return 2
    print(f"The report is {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
