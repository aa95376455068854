"""Files complete or not at all: run folders, the report and downloads write by one function, which syncs first."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rbd_ref._files import replace_when_complete
from rbd_ref.data import downloads
from rbd_ref.report.__main__ import write as write_report
from rbd_ref.runs.files import write_whole

CONTENT = b"12345"


def by_hand(path: Path) -> None:
    with replace_when_complete(path) as out:
        out.write(CONTENT)


def by_download(path: Path) -> None:
    """From a server that is a file."""
    source = path.parent.parent / "source"
    source.write_bytes(CONTENT)
    remote = downloads.Remote(path.name, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    downloads._once(source.as_uri(), remote, path.parent, progress=False)


WRITERS: dict[str, Callable[[Path], None]] = {
    "by hand": by_hand,
    "run": lambda path: write_whole(path, lambda out: out.write(CONTENT)),
    "report": lambda path: write_report(CONTENT.decode(), path),
    "download": by_download,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    return made


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_is_synced_before_it_is_named(writer: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that loses its power must not find the new name with half of the content, nor forget the name."""
    events: list[str] = []
    sync, replace = os.fsync, Path.replace

    def noted_sync(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        events.append(f"sync {path.name} {path.stat().st_size if path.is_file() else ''}")
        sync(handle)

    def noted_replace(self: Path, target: Path) -> Path:
        events.append(f"name {target.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    WRITERS[writer](folder / "file")
    first, *rest = events
    assert re.fullmatch(rf"sync \.file\.{os.getpid()}-[0-9a-f]{{8}}\.part 5", first)
    assert rest == ["name file", "sync folder "]
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("file", CONTENT)]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_disk_that_cannot_sync_leaves_the_old_file(
    writer: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(handle: int) -> None:
        raise OSError(5, "Input/output error")

    (folder / "file").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(Exception, match="Input/output error"):
        WRITERS[writer](folder / "file")
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("file", b"old")]


def test_two_writers_at_once(folder: Path) -> None:
    """Neither is in the way of the other, even in one process; the last to end counts."""
    path = folder / "file"
    with replace_when_complete(path) as first:
        first.write(b"first")
        by_hand(path)
        assert path.read_bytes() == CONTENT
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("file", b"first")]
