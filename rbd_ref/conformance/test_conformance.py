"""What pytest collects: each check of the suite against the backend named by --rbd-backend."""

from __future__ import annotations

import pytest

from rbd_ref.backend import Backend
from rbd_ref.conformance.suite import Check, run_check


def test_conformance(rbd_check: Check, rbd_backend: Backend) -> None:
    """One check; what the backend does not declare is skipped with its reason."""
    result = run_check(rbd_backend, rbd_check)
    if result.outcome == "undeclared":
        pytest.skip(result.message)
    if result.outcome == "failed":
        pytest.fail(result.message, pytrace=False)
