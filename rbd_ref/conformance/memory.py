"""How much memory a call takes at its peak, as the operating system sees it, whatever library allocates it.

Tests: tests/test_memory.py.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path


def release() -> None:
    """Hand back what was freed: the next call would take it from there, and the system would see no growth."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of GNU's C library
    if trim is not None:
        trim(0)


def reset_peak() -> bool:
    """Let the peak start again from what is in use now; False where the system cannot do that."""
    release()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak(process: int | str = "self") -> int:
    """The highest resident size in bytes since the start or the last reset; where there is no /proc, only one's own."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return size if sys.platform == "darwin" else size * 1024
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def peak_growth(small: Callable[[], object], large: Callable[[], object]) -> int:
    """By how many bytes the peak of the second call exceeds that of the first; a warm-up call comes before."""
    small()
    reset_peak()
    small()
    before = peak()
    reset_peak()
    large()
    return peak() - before
