"""What a job may leave behind in memory that processes share: nothing."""

from __future__ import annotations

import time
from pathlib import Path

from torture.campaign import demand

GRACE = 15.0  # seconds in which a segment may still go away


def check_left(names: set[Path]) -> None:
    """Fail if a job that is gone has left one of its segments, which is removed then."""
    deadline = time.monotonic() + GRACE
    while (there := {path for path in names if path.exists()}) and time.monotonic() < deadline:
        time.sleep(0.1)
    for path in there:
        path.unlink(missing_ok=True)
    demand(not there, f"shared segments were left behind: {sorted(map(str, there))}")
