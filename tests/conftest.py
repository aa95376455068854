"""What all tests share: Hypothesis settings, and the sizes that compiled and plain kernels can bear."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
