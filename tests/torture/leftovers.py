"""What a job may leave behind in memory that processes share."""

from __future__ import annotations

import time
from pathlib import Path

from torture.campaign import demand

GRACE = 5.0  # seconds in which a segment may still go away


def left(names: set[Path]) -> set[Path]:
    """Those of the segments that are there though their job is gone; they are removed."""
    deadline = time.monotonic() + GRACE
    while (there := {path for path in names if path.exists()}) and time.monotonic() < deadline:
        time.sleep(0.1)
    for path in there:
        path.unlink(missing_ok=True)
    return there


def check_left(names: set[Path]) -> None:
    """Fail if a job that is gone has left one of its segments."""
    demand(not (found := left(names)), f"shared segments were left behind: {sorted(map(str, found))}")
