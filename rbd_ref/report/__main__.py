"""The command `python -m rbd_ref.report`: reads runs, writes the page, and exports.

A folder stands for all runs in it; what cannot be read is named and left out. Where nothing can be read or written, a
page that was there before stays.
Tests: tests/test_report.py, tests/test_report_export.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rbd_ref.report import export, page, records
from rbd_ref.report.groups import sections
from rbd_ref.runs.files import RunError, disk, write_whole
from rbd_ref.runs.memory import enough_memory


def write(text: str, out: Path, flag: str = "-o") -> None:
    """The text under this name, whole, or what was there before."""
    with disk(out, "written", flag=flag):
        if out.exists() and not out.is_file():
            raise RunError(f"{out} is no ordinary file, expected a name for the report: name another with {flag}")
    content = text.encode(errors="replace")  # a name may have half of a surrogate pair, which no encoding has
    write_whole(out, lambda file: file.write(content), flag=flag)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m rbd_ref.report", description="Compare runs on one HTML page.")
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folder that a training has written, or a folder of such"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="the page (report.html)")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a line for each run and evaluation as well")
    parser.add_argument("--tensorboard", type=Path, metavar="DIR", help="write event files for TensorBoard as well")
    return parser.parse_args(argv)


def export_runs(options: argparse.Namespace, found: records.Found) -> None:
    """What is asked for beside the page."""
    if options.csv is not None:
        write(export.table(sections(found.runs)), options.csv, "--csv")
    if options.tensorboard is not None:
        export.tensorboard(sections(found.runs), options.tensorboard)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    options = parse(argv)
    try:
        with enough_memory("the runs were read and the page was made"):
            found = records.read(options.runs)
            for sentence in found.left_out:
                print(f"rbd_ref.report: left out: {sentence}", file=sys.stderr)
            export_runs(options, found)
            write(page.render(found), options.output)
    except RunError as error:
        print(f"rbd_ref.report: {error}", file=sys.stderr)
        return 2
    print(f"The report is {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
