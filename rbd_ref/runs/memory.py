"""What a run says when memory runs out: one sentence, a `RunError`, in place of Python's `MemoryError`.

Tests: tests/test_out_of_memory.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rbd_ref.runs.files import RunError

MEGABYTE = 10**6


def step_needs(D: int, workers: int, vectors: int) -> str:
    """What a step takes, for the sentence."""
    return (
        f"a step of D = {D} parameters and {workers} workers takes about {vectors} vectors of D floats, "
        f"{4 * D * vectors / MEGABYTE:.0f} MB, beside data and activations"
    )


@contextmanager
def _told_once() -> Iterator[None]:
    """Errors that nobody can catch are printed, but for memory that what is cleaned up does not find either."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, MemoryError):
            before(unraisable)

    sys.unraisablehook = hook
    out = False
    try:
        yield
    except (MemoryError, SystemError):
        out = True
        raise
    finally:
        if not out:  # else the hook stays: much is cleaned up later
            sys.unraisablehook = before


@contextmanager
def enough_memory(doing: str, needs: Callable[[], str] = str) -> Iterator[None]:
    """Where memory runs out, a sentence of what was being done and, as far as it is known by then, what that needs.

    A kernel that finds no memory inside a parallel loop comes back as a SystemError with the MemoryError as its cause.
    """
    try:
        with _told_once():
            yield
    except (MemoryError, SystemError) as error:
        if not isinstance(error, MemoryError) and not isinstance(error.__cause__, MemoryError):
            raise
        known = needs()
        raise RunError(
            f"memory ran out while {doing}{f' ({known})' if known else ''}, expected more that is free: end other "
            "programs, allow this one more, or choose a smaller network or fewer workers"
        ) from error
