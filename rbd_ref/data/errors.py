"""What is needed to have data before anything is done with them: the embedded digits, the readers, the error.

The images of `digits` lie here as two idx files; digits.txt says where they are from and under which licence.
Tests: tests/test_data.py.
"""

from __future__ import annotations


class DataError(ValueError):
    """A data set that cannot be had: one sentence with the file, what was found, what was expected."""
