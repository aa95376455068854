"""docs/speed_tables.py: targets that are missed say so, and nothing that rounds to 0 has a sign."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from tools import ROOT


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.delitem(sys.modules, "speed_tables", raising=False)
    return importlib.import_module("speed_tables")


@pytest.mark.parametrize(
    ("measured", "at_most", "expected"),
    [
        (1.9, False, "met"),
        (1.8958, False, "**missed**"),
        (1.9, True, "met"),
        (1.904, True, "**missed**"),
    ],
)
def test_a_target_is_met_or_missed_by_what_was_measured(
    tables: ModuleType, measured: float, at_most: bool, expected: str
) -> None:
    """1.8958 is 1.90 when rounded, and missed all the same."""
    assert tables.verdict({"measured": measured, "target": 1.9, "at_most": at_most}) == expected


def test_what_rounds_to_zero_has_no_sign(tables: ModuleType) -> None:
    assert tables.fixed(-0.00038, 3) == "0.000"
    assert tables.fixed(-0.0138, 2) == "-0.01"
    counts = {"families": {"srht": {"an entry": -0.00038}}}
    assert tables.instructions(counts).splitlines()[-1] == "| `srht` | 0.000 |  |"
