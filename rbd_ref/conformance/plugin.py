"""The suite as pytest sees it: `pytest -p rbd_ref.conformance.plugin --pyargs rbd_ref.conformance --rbd-backend NAME`.

Tests: tests/test_conformance.py.
"""

from __future__ import annotations

import pytest

from rbd_ref.backend import Backend, load
from rbd_ref.conformance.suite import all_checks


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --rbd-backend."""
    group = parser.getgroup("rbd-ref")
    group.addoption("--rbd-backend", default="numba", help="backend to check: a name, or package.module:Class")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a check."""
    if "rbd_check" in metafunc.fixturenames:
        checks = all_checks()
        metafunc.parametrize("rbd_check", checks, ids=[str(item).replace(" ", "-") for item in checks])


@pytest.fixture(scope="session")
def rbd_backend(pytestconfig: pytest.Config) -> Backend:
    """The backend under test."""
    try:
        return load(pytestconfig.getoption("--rbd-backend"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
