"""What all tests share: how many examples Hypothesis draws, fewer where kernels run as plain Python."""

from __future__ import annotations

import os

from hypothesis import settings

from tools import COMPILED

pytest_plugins = ["pytester"]

# Waiting threads sleep: where other processes want the cores too, threads that spin make kernels many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

settings.register_profile("here", deadline=None, print_blob=True, max_examples=100 if COMPILED else 8)
settings.register_profile("ci", settings.get_profile("here"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
