"""The progress bar of downloads and training: tqdm's, shown at a terminal and nowhere else.

Who waits at a terminal wants to see how far it is; a log should stay free of it. Both data/ and training/ need the
same few settings, and neither may import the other, so they stand here.
May import: nothing of rbd_ref.
Tests: tests/test_progress.py.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from tqdm import tqdm

SMOOTHING = 0.05  # of the time left: slow enough for a run that pauses to evaluate, fast enough to forget compilation


class Bar(tqdm):  # type: ignore[type-arg]  # of the items that are iterated over: there are none
    """tqdm's bar without its thread, which it starts even for a bar that is not shown: ranks are to start none.

    The thread redraws bars that have become slow; instead, the clock is looked at on every update.
    """

    monitor_interval = 0


def _size() -> dict[str, Any]:
    """How large the terminal is, as tqdm takes it: asked again and again, or where nobody knows that of COLUMNS, or 80.

    Nobody knows it at the other end of a pipe, as under mpirun, nor where a terminal says 0, as in some containers;
    there tqdm would draw nothing.
    """
    try:
        known = min(os.get_terminal_size(sys.stderr.fileno())) > 0
    except (OSError, ValueError):
        known = False
    return {"dynamic_ncols": True} if known else {"ncols": shutil.get_terminal_size().columns - 1, "nrows": 24}


def bar(label: str, total: int, shown: bool | None = None, initial: int = 0, **style: Any) -> Bar:
    """A bar of `total` steps on stderr, `initial` of them done before; `style` goes to tqdm.

    `shown`: always, never, or (None) if stderr is a terminal.
    """
    return Bar(
        desc=label,
        total=total,
        initial=initial,
        disable=not (sys.stderr.isatty() if shown is None else shown),
        smoothing=SMOOTHING,
        miniters=1,
        **_size(),
        **style,
    )
