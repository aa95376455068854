"""Settings that name code by its path, `package.module:Name`: a user may give them, and never a file.

What is named so is imported. A run's folder may come from a stranger, so a path in its configuration counts only once
the user has said the same; reading a configuration imports nothing.
Tests: tests/test_path.py, tests/test_peers.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rbd_ref.backend import is_path
from rbd_ref.runs.files import RunError

IMPORTED = {"backend": "a class", "gradients": "a class", "method": "a function"}


def paths_in(settings: Mapping[str, Any]) -> dict[str, str]:
    """Those settings that name code by its path."""
    found = ((name, settings.get(name)) for name in IMPORTED)
    return {name: value for name, value in found if isinstance(value, str) and is_path(value)}


def refuse_paths(path: Path, settings: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse what a file names by its path, unless the user has named one, or the same for something else: it is
    imported."""
    known = paths_in(given).values()
    for name, value in paths_in(settings).items():
        if name not in given and value not in known:
            other = "" if name == "method" else ", or give another"
            raise RunError(
                f"{path} names the {name} {value!r}, {IMPORTED[name]} that would be imported, expected that from you "
                f"and no file: if you trust it, repeat it with --{name} {value}{other}"
            )


def trusted(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What of a user's own settings may replace those of a run's folder: any backend, which the weights do not depend
    on, any gradients, which are compared later, and the same method."""
    changes = {name: given[name] for name in ("backend", "gradients") if name in given}
    same = "method" in given and given["method"] == settings.get("method")
    return changes | ({"method": given["method"]} if same else {})


def flags_of(settings: Mapping[str, Any]) -> list[str]:
    """What has to be typed again to go on with a run."""
    return [word for name, value in paths_in(settings).items() for word in (f"--{name}", value)]
