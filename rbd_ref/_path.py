"""Where modules come from: a command imports what is installed, not what lies in the folder it is started in.

`python -m rbd_ref.replay RUN` puts the current folder before all others on the path of modules. Whoever opens the run
of a stranger from within its folder would import the stranger's `numpy.py`. So a command of this package takes the
current folder off the path before anything else is imported; only what its user names by a flag, as in
`--backend my_module:Class` or `--method my_module:make`, is looked for there.
Tests: tests/test_path.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any


def module_of_command(arguments: list[str]) -> str:
    """The command of this package that Python was started with, as a module, or nothing.

    `python -m rbd_ref.train`, `python -m rbd_ref train` and the script `rbd train` are all `rbd_ref.train`.
    """
    if Path(arguments[1] if len(arguments) > 1 else "").name == "rbd":
        return ".".join(["rbd_ref", *arguments[2:3]])
    if "-m" not in arguments[:-1]:
        return ""
    place = arguments.index("-m") + 1
    if arguments[place] == "rbd_ref":
        return ".".join(arguments[place : place + 2])
    return arguments[place] if arguments[place].startswith("rbd_ref.") else ""


def forget_current_folder() -> None:
    """Take the folder that `python -m` has put first off the path, if this is a command of this package."""
    if module_of_command(sys.orig_argv) and not sys.flags.safe_path and sys.path[:1] in ([""], [str(Path.cwd())]):
        del sys.path[0]


@contextmanager
def with_current_folder() -> Iterator[None]:
    """Modules of the current folder can be imported, after all that is installed."""
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def import_named(path: str) -> Any:
    """What `package.module:Name` stands for, of the current folder too: to be called with what a user has named."""
    module, _, attribute = path.partition(":")
    with with_current_folder():
        return getattr(import_module(module), attribute)
