"""What this machine has.

Tests: tests/test_machine.py.
"""

from __future__ import annotations

import os


def cores() -> int:
    """Cores that this process may use; macOS does not tell which, and counts all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
