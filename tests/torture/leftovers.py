"""What a job may leave behind in memory that processes share."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

SHARED = Path("/dev/shm")
GRACE = 5.0  # seconds in which a segment may still go away


def segments() -> set[str]:
    """The names of all shared segments of the machine."""
    return {path.name for path in SHARED.iterdir()} if SHARED.is_dir() else set()


def _mapped() -> str:
    """All that processes have mapped of shared memory, as text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            found += [line for line in path.read_text(errors="replace").splitlines() if str(SHARED) in line]
    return "\n".join(found)


def without_owner(names: set[str]) -> set[str]:
    """Those of these segments that stay though no process has them: other jobs of the machine have theirs."""
    deadline = time.monotonic() + GRACE
    while names:
        mapped = _mapped()
        names = {name for name in names & segments() if name not in mapped}
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return names
