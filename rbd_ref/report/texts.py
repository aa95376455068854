"""Values from files as text: numbers with their digits, a dash for what is missing or no number.

Tests: tests/test_report.py.
"""

from __future__ import annotations

import json
import math
from typing import Any

DASH = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"


def show(value: Any) -> str:
    """A value of a configuration as text."""
    if isinstance(value, list | tuple):
        value = ", ".join(map(show, value))
    if isinstance(value, str):
        return value or DASH
    return json.dumps(value, ensure_ascii=False, default=str)


def number(value: Any) -> float:
    """A number from a file, not a number for anything else."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else math.nan


def count(value: Any, digits: int = 0) -> str:
    """Like 9,610."""
    found = number(value)
    return DASH if math.isnan(found) else f"{found:,.{digits}f}"


def significant(value: Any) -> str:
    """Four digits of a number of any size, like 0.01234 or 1.5e-07."""
    found = number(value)
    return DASH if math.isnan(found) else f"{found:.4g}"


def percent(value: Any) -> str:
    """A fraction in per cent, like 95.28."""
    return count(100 * number(value), 2)


def ratio(above: Any, below: Any) -> str:
    """How many times the second goes into the first, like 38.4 x."""
    quotient = number(above) / (number(below) or math.nan)
    return DASH if math.isnan(quotient) else f"{quotient:,.{1 if quotient < 100 else 0}f} {TIMES}"


def plural(n: int, word: str) -> str:
    """Like 1 run or 3 runs."""
    return f"{n} {word}{'s' * (n != 1)}"
