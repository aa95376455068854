"""Downloads of the standard files: whole and with the right checksum, or not there at all.

A file is written under a name of its own, checked, synced and only then renamed (`rbd_ref._files`), so that neither a
cut connection nor two processes at once leave half a file. What is a passing fault (the connection is cut) is tried
again; every other one goes on to the next mirror, and after the last one sentence says what was wrong and where files
can be put by hand.
Tests: tests/test_data.py.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from rbd_ref._files import replace_when_complete
from rbd_ref._progress import bar
from rbd_ref.data.errors import DataError

Report = Callable[[int], object]  # is told of every chunk how many bytes it has


class Remote(NamedTuple):
    """A file to be had: its name, its length in bytes and its checksum."""

    file: str
    size: int
    sha256: str


class Source(Protocol):
    """What is read from: an answer of a server."""

    def read(self, amount: int, /) -> bytes:
        """At most so many bytes, none at the end."""


FILES = {
    "mnist": (
        Remote(
            "train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
        ),
        Remote("train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        Remote(
            "t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
        ),
        Remote("t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    "fashion-mnist": (
        Remote(
            "train-images-idx3-ubyte.gz", 26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
        ),
        Remote("train-labels-idx1-ubyte.gz", 29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        Remote(
            "t10k-images-idx3-ubyte.gz", 4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
        ),
        Remote("t10k-labels-idx1-ubyte.gz", 5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
    "cifar-10": (
        Remote("cifar-10-binary.tar.gz", 170052171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
    ),
}

MIRRORS = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    ),
    "fashion-mnist": (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    ),
    "cifar-10": ("https://www.cs.toronto.edu/~kriz",),
}

ATTEMPTS = 3
PAUSE = 1.0  # seconds before the second attempt, twice as many before the third
TIMEOUT = 30.0
CHUNK = 1 << 16


class Cut(Exception):
    """The connection ended too early."""


def bases(name: str, mirror: str | None) -> tuple[str, ...]:
    """Addresses of the folders that have the files: `mirror` (or RBD_REF_MIRROR) with a folder for each data set, or
    else the usual ones."""
    chosen = mirror or os.environ.get("RBD_REF_MIRROR")
    return (f"{chosen.rstrip('/')}/{name}",) if chosen else MIRRORS[name]


def _copy(answer: Source, out: BinaryIO, size: int, report: Report) -> tuple[int, str]:
    """Write what comes, `size` bytes and one more at most; its length and its sha256."""
    digest = hashlib.sha256()
    done = 0
    while done <= size and (chunk := answer.read(min(CHUNK, size + 1 - done))):
        out.write(chunk)
        digest.update(chunk)
        done += len(chunk)
        report(len(chunk))
    return done, digest.hexdigest()


def _receive(url: str, remote: Remote, out: BinaryIO, report: Report) -> None:
    """One attempt: `url` into `out`, complete and with the right checksum."""
    request = urllib.request.Request(url, headers={"User-Agent": "rbd-ref"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        promised = int(answer.headers.get("Content-Length") or remote.size)
        try:
            done, sha256 = _copy(answer, out, remote.size, report)
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            raise Cut(f"the connection was cut ({error or type(error).__name__})") from error
    if done < min(promised, remote.size):
        raise Cut(f"the connection was cut after {done} of {promised} bytes")
    if sha256 != remote.sha256:
        raise DataError(f"the file has sha256 {sha256}, expected {remote.sha256}")


def _once(url: str, remote: Remote, folder: Path, progress: bool | None) -> None:
    """One attempt, after which the file is in the folder or nothing is."""
    with (
        replace_when_complete(folder / remote.file) as out,
        bar(remote.file, remote.size, progress, unit="B", unit_scale=True) as shown,
    ):
        _receive(url, remote, out, shown.update)


def _attempts(url: str, remote: Remote, folder: Path, progress: bool | None) -> str | None:
    """Fetch from one address, again if the connection is cut; None, or what was wrong."""
    wrong = ""
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE * attempt)
        try:
            _once(url, remote, folder, progress)
            return None
        except Cut as error:
            wrong = f"{error}, {attempt + 1} times"
        except urllib.error.HTTPError as error:
            error.close()
            return f"the server answers {error.code} {error.reason}"
        except urllib.error.URLError as error:
            return f"there is no way to it ({error.reason})"
        except (OSError, ValueError, http.client.HTTPException) as error:
            return str(error)
    return wrong


def _fetch_file(name: str, remote: Remote, folder: Path, mirror: str | None, progress: bool | None) -> None:
    """One file from the first address that has it."""
    wrong = []
    for base in bases(name, mirror):
        reason = _attempts(f"{base}/{remote.file}", remote, folder, progress)
        if reason is None:
            return
        wrong.append(f"{base}/{remote.file}: {reason}")
    raise DataError(
        f"{remote.file} of {name} cannot be downloaded ({'; '.join(wrong)}): put the standard files into {folder}, "
        "or name a folder that has them with --data-dir or RBD_REF_DATA, or an address with --mirror or RBD_REF_MIRROR"
    )


def fetch(name: str, folder: Path, mirror: str | None = None, progress: bool | None = None) -> None:
    """The files of a data set into a folder, those that are not there yet. `progress`: a bar, none, or (None) one if
    stderr is a terminal."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be made ({error.strerror}), expected a folder for {name}: name another with --data-dir"
        ) from error
    for remote in FILES[name]:
        if not (folder / remote.file).exists():
            _fetch_file(name, remote, folder, mirror, progress)
