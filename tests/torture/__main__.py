"""`python tests/torture`: modules are looked for above this folder, and libraries told before they are imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent.parent)
# One thread for each player, and kernels that survive a fork; nobody is at the mirror, so nothing is downloaded.
os.environ.update(
    NUMBA_NUM_THREADS="1",
    OPENBLAS_NUM_THREADS="1",
    NUMBA_THREADING_LAYER="workqueue",
    RBD_REF_MIRROR="http://127.0.0.1:9",
)

if __name__ == "__main__":
    from torture.command import main

    sys.exit(main())
