"""How kernels are compiled: options that keep every float operation rounded once, and where the machine code is kept.

Numba's own cache notices a change of the file a kernel stands in, not of the files whose functions it
inlined. A stale kernel would have stale bits, so the cache folder is named after the sources of all kernels.

Tests: tests/test_jit.py.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

F = TypeVar("F", bound=Callable[..., Any])

PACKAGE = Path(__file__).parent.parent
# What kernels are made of: the folders and files that hold them, and all that those import.
SOURCES = ("_check.py", "_types.py", "spec", "kernels", "models", "data")

# GNU's OpenMP reads this when the first kernel starts its threads: those that wait spin for some microseconds and then
# sleep. By default they spin on, and where cores are shared, with ranks or anybody, a step takes several times as long.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")

prange = numba.prange
njit: Any = numba.njit  # whose types do not know all of its options
alloca_once: Any = cgutils.alloca_once
populate_array: Any = arrayobj.populate_array
config: Any = numba.config


def _sources() -> list[Path]:
    """The files of SOURCES."""
    names = [PACKAGE / name for name in SOURCES]
    return sorted(path for name in names for path in (name.rglob("*.py") if name.is_dir() else [name]))


def source_digest() -> str:
    """Sixteen hex digits that change with any source that a kernel is made of."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(path.relative_to(PACKAGE).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _private(folder: Path) -> bool:
    """Whether this is a folder, and no link to one, which nobody but this user can enter."""
    found = folder.lstat()
    mine = found.st_uid == os.geteuid()
    return mine and stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == stat.S_IRWXU


def _temporary() -> Path:
    """The user's folder under the temporary directory; a new one if what has its name is not private.

    A cache that others can write to would run their code.
    """
    folder = Path(tempfile.gettempdir()) / f"rbd_ref-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=stat.S_IRWXU)
    if _private(folder):
        return folder
    fresh = Path(tempfile.mkdtemp(prefix="rbd_ref-"))
    warnings.warn(
        f"{folder} is not a folder of this user with mode 700, so kernels are compiled anew into {fresh}: remove it, "
        "or set NUMBA_CACHE_DIR to a folder that can be written",
        stacklevel=2,
    )
    return fresh


def _candidates() -> Iterator[Path]:
    """Folders to try for compiled kernels: the user's choice, beside the sources, the user's cache, a temporary one."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(chosen)
    yield PACKAGE / "__pycache__"
    with suppress(RuntimeError):  # a user without a home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    with suppress(OSError):  # no temporary directory
        yield _temporary()


def cache_folder() -> Path:
    """The first candidate folder that can be written to, with a part of its own for these sources."""
    name = f"rbd_ref-{source_digest()}"
    for candidate in _candidates():
        try:
            (candidate / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(candidate / name, os.W_OK):
            return candidate / name
    raise OSError("no folder can be written for compiled kernels: set NUMBA_CACHE_DIR to one that can")


@contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    """Numba reads its cache folder when a function is decorated; other users of Numba keep theirs."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


_FOLDER = cache_folder()


def _compile(function: F, **options: Any) -> F:
    """Machine code, made at the first call and kept; or plain Python, without NumPy's warnings of what overflows."""
    if config.DISABLE_JIT:
        return np.errstate(over="ignore", invalid="ignore")(function)
    with _cache_in(_FOLDER):
        made: Any = njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options)(function)
    return cast(F, made)


def device(function: F) -> F:
    """A scalar piece that LLVM inlines into the kernels which call it."""
    inlined: Any = njit(forceinline=True, error_model="numpy", no_cfunc_wrapper=True)(function)
    return cast(F, inlined)


def kernel(function: F) -> F:
    """A kernel that runs in the calling thread."""
    return _compile(function)


def parallel_kernel(function: F) -> F:
    """A kernel whose `prange` loops are divided among threads."""
    return _compile(function, parallel=True)


def _widest(_: Any) -> Any:
    """Typing and code of `widest`: nothing but a mark on the function that is being compiled."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')  # not among the names llvmlite knows
        return context.get_dummy_value()

    return numba.types.none(), generate


def _borrowed(_: Any, array: Any) -> Any:
    """Typing and code of `borrowed`: the same array without the counter of its references."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(array)(context, builder, arguments[0])
        made.meminfo = made.meminfo.type(None)
        return made._getvalue()

    return array(array), generate


def _reading(_: Any, array: Any) -> Any:
    """Typing and code of `reading`: the same array, of a type that cannot be written to."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        context.nrt.incref(builder, array, arguments[0])
        return context.cast(builder, arguments[0], array, signature.return_type)

    return array.copy(readonly=True)(array), generate


def _on_stack(_: Any, n: Any) -> Any:
    """Typing and code of `on_stack`: an array of which nobody else knows."""
    size = n.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = alloca_once(builder, context.get_data_type(numba.types.float32), size=size)
        data.align = 64
        made = context.make_array(signature.return_type)(context, builder)
        length, item = (context.get_constant(numba.types.intp, value) for value in (size, 4))
        populate_array(made, data, [length], [item], item, None)
        return made._getvalue()

    return numba.types.Array(numba.types.float32, 1, "C")(n), generate


def _empty(n: int) -> Any:
    """`on_stack` where kernels run as plain Python."""
    return np.empty(n, np.float32)


def _nothing() -> None:
    """`widest` where kernels run as plain Python."""


def _itself(array: Any) -> Any:
    """`borrowed` and `reading` where kernels run as plain Python."""
    return array


# Said at the start of a kernel: take the widest vectors there are. LLVM by itself uses half of AVX-512's.
widest: Any = _nothing if config.DISABLE_JIT else intrinsic(_widest)

# Some floats, as many as a constant says, for as long as a kernel runs. As no other array can be in the same place,
# LLVM keeps them in registers throughout a loop.
on_stack: Any = _empty if config.DISABLE_JIT else intrinsic(prefer_literal=True)(_on_stack)

# An argument whose parts are taken over and over: counting references is atomic, which takes as long as a small part's
# work. The caller has the array, so it stays; what a kernel allocates itself must not be borrowed in the same kernel.
borrowed: Any = _itself if config.DISABLE_JIT else intrinsic(_borrowed)

# An array that is only read, where the same kernel is also given arrays that are read-only: Numba compiles it once.
reading: Any = _itself if config.DISABLE_JIT else intrinsic(_reading)
