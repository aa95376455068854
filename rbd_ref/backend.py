"""What a backend is: the protocol it satisfies, what it declares, and how it is found by name.

A backend computes what docs/specification.md says, on whatever device it likes; arguments and results at this boundary
are NumPy arrays. `numpy` (the definition) and `numba` are in this package; any other is a class in the entry-point
group `rbd_ref.backends`.
Tests: tests/test_backend.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Protocol, cast

from rbd_ref._check import member
from rbd_ref._path import import_named
from rbd_ref._types import Float32Array, Words
from rbd_ref.spec.families import FAMILIES
from rbd_ref.spec.operations import NORMALIZATIONS, Draw

GROUP = "rbd_ref.backends"
# The package's own need no entry point, so they are found in a clone that nobody installed, too.
OWN = {"numpy": "rbd_ref.numpy_backend:NumpyBackend", "numba": "rbd_ref.kernels.backend:NumbaBackend"}
LEVELS = ("L0", "L1", "L2", "L3", "L4", "L5")
PARTS = ("name", "capabilities", "words", "directions", "project", "reconstruct", "descend", "set_threads")


@dataclass(frozen=True)
class Capabilities:
    """What a backend claims, and what the conformance suite therefore holds it to.

    Args:
        families: the families it can generate.
        normalizations: the normalisations it can divide by.
        level: the highest level of the suite that it means to pass.
        reason: why not all of these, in a few words; the suite repeats them.

    Examples:
        >>> from rbd_ref.backend import Capabilities
        >>> signs = Capabilities(families=("rademacher",), level="L2", reason="the device has no square root")
        >>> signs.missing()
        ['normal', 'uniform', 'bernoulli-graphcore', 'sparse', 'srht']
    """

    families: tuple[str, ...] = FAMILIES
    normalizations: tuple[str, ...] = NORMALIZATIONS
    level: str = LEVELS[-1]
    reason: str = ""

    def __post_init__(self) -> None:
        for kind, declared, known in (
            ("families", self.families, FAMILIES),
            ("normalizations", self.normalizations, NORMALIZATIONS),
            ("level", (self.level,), LEVELS),
        ):
            if not declared or not set(declared) <= set(known):
                raise ValueError(f"{kind} declares {declared}, expected at least one and only of {', '.join(known)}")

    def missing(self) -> list[str]:
        """The families and normalisations that are not declared."""
        return [name for name in (*FAMILIES, *NORMALIZATIONS) if name not in (*self.families, *self.normalizations)]


class Backend(Protocol):
    """The operations of docs/specification.md. Callers check arguments before; a backend may trust them.

    It may have more, which others stand in for where they are missing (docs/backends.md): `project_part` and
    `reconstruct_part`, that do a part of the work; `numbers`, portable random numbers from any offset on;
    `loss_and_gradient(network, theta, x, y)`, its own autodiff, for runs that name it; and `faster_gradients`, true
    where that is faster than the reference, so that runs on this backend use it without being asked.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    def words(self, key: Words, counter: Words) -> Words:
        """threefry2x32(key (2,), counter (2, n)) as uint32 (2, n)."""

    def directions(self, draw: Draw, indices: Sequence[int]) -> Float32Array:
        """Rows of phi as float32 (len(indices), D), zero outside their compartment."""

    def project(self, draw: Draw, g: Float32Array) -> Float32Array:
        """a_i = <phi_i, g> / N_i as float32 (d,)."""

    def reconstruct(self, draw: Draw, a: Float32Array) -> Float32Array:
        """u = sum_i a_i phi_i as float32 (D,), bit for bit."""

    def descend(self, draw: Draw, g: Float32Array) -> tuple[Float32Array, Float32Array]:
        """(a, u) with the bits of a = project(g) and u = reconstruct(a)."""

    def set_threads(self, n: int) -> int:
        """Use n threads from now on if that is possible, or change nothing if n is 0; return how many are in use."""


def _entries() -> dict[str, EntryPoint]:
    own = [EntryPoint(name, value, GROUP) for name, value in OWN.items()]
    return {point.name: point for point in (*entry_points(group=GROUP), *own)}


def names() -> list[str]:
    """The backends that `load` knows by name: the package's own, and those installed as entry points.

    Returns:
        Names in alphabetical order.

    Examples:
        >>> from rbd_ref import backend
        >>> {"numba", "numpy"} <= set(backend.names())
        True
    """
    return sorted(_entries())


def is_path(name: str) -> bool:
    """Whether a backend is named by the path of a class, or a method by that of the function which makes it.

    What is named so is imported, whatever it is: only a user may do that, never a file.

    Args:
        name: the name of a backend or a method.

    Returns:
        True for `package.module:Class`.

    Examples:
        >>> is_path("numba"), is_path("my_package.backend:MyBackend")
        (False, True)
    """
    return ":" in name


def _find(name: str) -> Any:
    """The class of an installed backend, or the one at `package.module:Class`."""
    return import_named(name) if is_path(name) else _entries()[name].load()


def _made(name: str) -> Any:
    """An instance of the class of this name; what a backend itself says that it lacks is a whole sentence."""
    made = False
    try:
        found = _find(name)
        made = True
        return found()
    except MemoryError:
        raise
    except Exception as error:
        said = made and isinstance(error, (ImportError, RuntimeError))
        remedy = "" if said else ": give it what it needs, or name another"
        raise ValueError(f"backend {name!r} cannot be loaded: {error}{remedy}") from error


def load(name: str) -> Backend:
    """An instance of a backend.

    Args:
        name: one of `names()`, or `package.module:Class` for a class that is not registered.

    Returns:
        What the class makes when it is called without arguments.

    Raises:
        ValueError: the name is unknown, its library or device is missing, or it lacks a method of `Backend`.

    Examples:
        >>> from rbd_ref import backend
        >>> backend.load("numpy").name
        'numpy'
        >>> backend.load("rbd_ref.numpy_backend:NumpyBackend").capabilities.level
        'L5'
    """
    if not is_path(name):
        member("backend", name, names())
    instance = _made(name)
    missing = sorted(part for part in PARTS if not hasattr(instance, part))
    if missing:
        raise ValueError(
            f"backend {name!r} lacks {', '.join(missing)}, expected all of rbd_ref.backend.Backend: add them"
        )
    return cast(Backend, instance)
