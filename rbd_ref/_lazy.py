"""Packages whose names are loaded when they are first asked for, so that no large library is imported before that.

Tests: tests/test_lazy.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def attribute(package: str, homes: Mapping[str, str], name: str, library: str) -> Any:
    """What a package calls `name`, from the module that is its home; it needs a library, which is also an extra."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        import_module(library)
    except ImportError as error:
        raise ImportError(f"{library} is not there ({error}), expected it: pip install 'rbd-ref[{library}]'") from error
    return getattr(import_module(f"{package}.{homes[name]}"), name)
