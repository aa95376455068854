"""`python -m rbd_ref.conformance`: run the suite against a backend and say how far its bits are right.

Exit status 0 if it conforms to all that it declares, 1 if it fails at a level, 2 if it cannot be run at all.
Tests: tests/test_conformance.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rbd_ref.backend import LEVELS, load, names
from rbd_ref.conformance.suite import Check, Outcome, Report, run


def parser() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(
        prog="python -m rbd_ref.conformance",
        description="Run the conformance suite against a backend; the last line tells the level it conforms to.",
    )
    command.add_argument(
        "--rbd-backend",
        required=True,
        metavar="NAME",
        help=f"an installed backend ({', '.join(names())}) or the class of any other as package.module:Class",
    )
    command.add_argument(
        "--level", choices=LEVELS, default=LEVELS[-1], help="the last level to run (default: %(default)s)"
    )
    command.add_argument("--report", type=Path, metavar="FILE.json", help="write all outcomes there")
    return command


def show(item: Check | Outcome) -> None:
    """One line a check: its name before it runs, as native code may end the process, and then how it ended."""
    if isinstance(item, Check):
        print(f"{item} ... ", end="", flush=True)
        return
    print(f"{item.outcome} ({item.seconds:.2f} s)")
    if item.message:
        print(f"    {item.message}")


def try_report(path: Path) -> None:
    """Refuse a report that cannot be written, before the work."""
    try:
        path.touch()
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written ({error.strerror}), expected a file in a folder that exists and can be written "
            "to: make the folder, or choose another with --report"
        ) from error


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    options = parser().parse_args(arguments)
    try:
        backend = load(options.rbd_backend)
        if options.report:
            try_report(options.report)
    except ValueError as error:
        print(f"rbd_ref.conformance: {error}", file=sys.stderr)
        return 2
    for item in run(backend, options.level):
        if isinstance(item, Report):
            report = item
        else:
            show(item)
    if options.report:
        report.write(options.report)
    conclude(report)
    return 1 if report.failed_at else 0


def conclude(report: Report) -> None:
    """The last lines: what was not checked, whose gradients were used, and the verdict."""
    if report.missing:
        print(f"{report.backend} does not declare {', '.join(report.missing)}")
    if report.gradients:
        print(f"gradients: {report.gradients}")
    print(report.verdict)


if __name__ == "__main__":
    sys.exit(main())
