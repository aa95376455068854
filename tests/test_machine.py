"""What the machine has, where the system tells and where it does not."""

from __future__ import annotations

import os

import pytest

from rbd_ref._machine import cores


def test_the_cores_that_this_process_may_use() -> None:
    if hasattr(os, "sched_getaffinity"):
        assert cores() == len(os.sched_getaffinity(0))
    assert 1 <= cores() <= (os.cpu_count() or 1)


def test_systems_that_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has no sched_getaffinity."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1
