"""The one error of this package, in a file of its own so that readers, downloads and commands can all import it.

Tests: tests/test_data.py.
"""

from __future__ import annotations


class DataError(ValueError):
    """A data set that cannot be had: one sentence with the file, what was found, what was expected."""
