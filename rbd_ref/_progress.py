"""The progress bar of downloads and training: tqdm's, shown at a terminal and nowhere else.

Who waits at a terminal wants to see how far it is; a log should stay free of it. Both data/ and training/ need the
same few settings, and neither may import the other, so they stand here.
May import: nothing of rbd_ref.
Tests: tests/test_progress.py.
"""

from __future__ import annotations

import shutil
import sys
from typing import Any

from tqdm import tqdm

SMOOTHING = 0.05  # of the time left: slow enough for a run that pauses to evaluate, fast enough to forget compilation


def bar(label: str, total: int, shown: bool | None = None, initial: int = 0, **style: Any) -> tqdm[Any]:
    """A bar of `total` steps on stderr, `initial` of them done before; `style` goes to tqdm.

    `shown`: always, never, or (None) if stderr is a terminal. Where it is shown through a pipe, as under mpirun, the
    width of the terminal at its other end is unknown: that of COLUMNS is taken, or 80.
    """
    terminal = sys.stderr.isatty()
    return tqdm(
        desc=label,
        total=total,
        initial=initial,
        disable=not (terminal if shown is None else shown),
        dynamic_ncols=terminal,
        ncols=None if terminal else shutil.get_terminal_size().columns - 1,
        smoothing=SMOOTHING,
        **style,
    )
