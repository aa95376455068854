"""The journal of a run: every place where it can be cut, every byte that can change, and a disk that is full."""

from __future__ import annotations

import hashlib
import itertools
import os
import resource
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rbd_ref.runs.files import RunError
from rbd_ref.runs.journal import MAGIC, START, Journal, Place, Record, Writer, chain_start, encode
from rbd_ref.runs.layouts import CHAIN, HEAD, Layout, Layouts, Stretch
from tools import bits

DIGEST = bytes(range(32)).hex()
SHAPES = [(2, 3), (1, 1), (3, 2), (2, 2)]
BOUNDS = [START, *(START + end for end in itertools.accumulate(24 + 4 * r * c + 32 for r, c in SHAPES))]

shapes = st.tuples(st.integers(0, 4), st.integers(0, 5))
numbers = hnp.arrays(np.uint32, shapes).map(lambda words: words.view(np.float32))  # any bits at all


def some(t: int) -> np.ndarray:
    return np.random.default_rng(t).standard_normal(SHAPES[t], dtype=np.float32)


def written(path: Path, records: list[np.ndarray], digest: str = DIGEST) -> Path:
    writer = Writer.create(path, digest)
    for t, record in enumerate(records):
        writer.append(t, record)
    writer.close()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small journal of four steps."""
    return written(tmp_path / "journal.rbd", [some(t) for t in range(4)])


def same(found: list[Record], expected: list[np.ndarray]) -> bool:
    return [record.t for record in found] == list(range(len(expected))) and all(
        record.rows.shape == numbers.shape and np.array_equal(bits(record.rows), bits(numbers))
        for record, numbers in zip(found, expected, strict=True)
    )


def end_of(path: Path) -> Place:
    """The place after all whole records."""
    journal = Journal(path, DIGEST)
    list(journal.records())
    return journal.last


def read(path: Path) -> tuple[list[Record], str]:
    """All records up to the end or to the first that is damaged, and what is said of that."""
    found: list[Record] = []
    try:
        for record in Journal(path, DIGEST).records():
            found.append(record)
    except RunError as error:
        return found, str(error)
    return found, ""


def torn(path: Path) -> int:
    journal = Journal(path, DIGEST)
    list(journal.records())
    return journal.torn


@given(st.lists(numbers, max_size=5), st.integers(0, 5))
def test_what_is_written_is_read(records: list[np.ndarray], pause: int) -> None:
    """To the bit, by one writer or by two, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder) / "j", records[:pause])
        writer = Writer.reopen(path, end_of(path))
        for t, record in enumerate(records[pause:], start=len(records[:pause])):
            writer.append(t, record)
        writer.sync()
        writer.close()
        journal = Journal(path, DIGEST)
        for _ in range(2):  # as often as one likes
            assert same(list(journal.records()), records)
            assert (journal.torn, journal.last.offset) == (0, path.stat().st_size)
            assert journal.last.chain == writer.chain


def test_the_format_is_that_of_the_docstring(tmp_path: Path) -> None:
    """Written out here once more, without the module's help."""
    rows = np.array([[1.5, -2.0, 0.25], [3.0, -0.0, 1e-45]], dtype=np.float32)
    head = b"STEP" + struct.pack("<QII", 0, 2, 3)
    body = struct.pack("<6f", *rows.ravel().tolist())
    start = b"RBDJRNL2" + bytes.fromhex(DIGEST)
    first = head + struct.pack("<I", zlib.crc32(head)) + body
    first += hashlib.sha256(hashlib.sha256(start).digest() + first).digest()
    head = b"STEP" + struct.pack("<QII", 1, 2, 3)
    second = head + struct.pack("<I", zlib.crc32(head)) + body
    second += hashlib.sha256(first[-32:] + second).digest()
    path = written(tmp_path / "j", [rows, rows])
    assert path.read_bytes() == start + first + second
    assert [record.chain for record in Journal(path).records()] == [first[-32:], second[-32:]]
    assert chain_start(DIGEST) == hashlib.sha256(start).digest()


@pytest.mark.parametrize("change", [np.asfortranarray, lambda x: x.astype(">f4"), lambda x: x.astype(np.float64)])
def test_memory_in_another_order(path: Path, change: object) -> None:
    assert encode(0, change(some(0)), b"") == encode(0, some(0), b"")  # type: ignore[operator]


def test_every_place_to_cut_it(path: Path) -> None:
    """The records before the cut survive, the rest is torn; to go on there leaves a whole journal again."""
    whole = path.read_bytes()
    assert len(whole) == BOUNDS[-1]
    for cut in range(START, len(whole) + 1):
        path.write_bytes(whole[:cut])
        count = sum(bound <= cut for bound in BOUNDS) - 1
        found, said = read(path)
        assert said == ""
        assert same(found, [some(t) for t in range(count)])
        assert torn(path) == cut - BOUNDS[count]
        writer = Writer.reopen(path, end_of(path))
        for t in range(count, len(SHAPES)):
            writer.append(t, some(t))
        writer.close()
        assert path.read_bytes() == whole


@pytest.mark.parametrize("more", [0, 1, 24, 4096])
def test_every_place_from_which_a_page_was_never_written(path: Path, more: int) -> None:
    """The file has its length, or more, and zeros from there on: the records before survive, the rest is torn."""
    whole = path.read_bytes()
    for cut in range(START, len(whole) + 1):
        path.write_bytes(whole[:cut] + bytes(len(whole) - cut + more))
        found, said = read(path)
        assert said == ""
        count = len(found)
        assert count >= sum(bound <= cut for bound in BOUNDS) - 1
        assert BOUNDS[count] <= cut + (whole[cut : BOUNDS[count]].count(0))  # zeros that had been zeros all along
        assert same(found, [some(t) for t in range(count)])
        assert torn(path) == len(whole) + more - BOUNDS[count]


def test_zeros_with_something_after_them_are_damage(path: Path) -> None:
    """Only what is at the end can never have been written."""
    whole = path.read_bytes()
    for first, last in ((BOUNDS[1], BOUNDS[2]), (BOUNDS[2] + 5, BOUNDS[3]), (BOUNDS[1] + HEAD.size, BOUNDS[4] - 1)):
        path.write_bytes(whole[:first] + bytes(last - first) + whole[last:])
        t = sum(bound <= first for bound in BOUNDS) - 1
        assert f"is damaged at step {t}, offset {BOUNDS[t]}: " in read(path)[1]
    path.write_bytes(whole + bytes(4096) + b"x")
    assert f"is damaged at step 4, offset {BOUNDS[4]}: " in read(path)[1]


def test_every_place_to_cut_its_beginning(path: Path) -> None:
    whole = path.read_bytes()
    for cut in range(START):
        path.write_bytes(whole[:cut])
        assert "is no journal" in read(path)[1]


def expected_of(place: int) -> tuple[int, str]:
    """How many records are still read when the byte at this place has changed, and what has to be said."""
    if place < len(MAGIC):
        return 0, "is no journal: it does not begin with RBDJRNL2"
    if place < START:
        return 0, "is the journal of another configuration"
    t = sum(bound <= place for bound in BOUNDS) - 1
    if t == len(SHAPES) - 1 and place >= BOUNDS[t] + HEAD.size:
        return t, ""
    return t, f"is damaged at step {t}, offset {BOUNDS[t]}: "


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_byte_that_changes(path: Path, mask: int) -> None:
    """It is named by step and place, or is in the numbers of the last record, which are then torn."""
    whole = path.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= mask
        path.write_bytes(changed)
        found, said = read(path)
        count, words = expected_of(place)
        assert same(found, [some(t) for t in range(count)])
        assert words in said
        assert "\n" not in said
        assert bool(said) == bool(words)
        if not words:
            assert torn(path) == BOUNDS[-1] - BOUNDS[-2]
        assert path.read_bytes() == changed  # a reader changes nothing


def test_the_way_out_that_is_named(path: Path) -> None:
    """What the sentence says to do about a damaged record leaves the records before it."""
    changed = bytearray(path.read_bytes())
    changed[BOUNDS[2] + 30] ^= 4
    path.write_bytes(changed)
    sentence = read(path)[1]
    assert f"`truncate -s {BOUNDS[2]} {path}`" in sentence
    os.truncate(path, BOUNDS[2])
    assert same(read(path)[0], [some(0), some(1)])
    assert torn(path) == 0


@pytest.mark.parametrize("order", [(1,), (0, 0), (0, 2), (0, 2, 1), (0, 1, 2**32 + 2)])
def test_whole_records_in_the_wrong_place(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Checksums are right, but a step is missing, doubled or out of order."""
    path, first = written(tmp_path / "j", []), next(t for t, step in enumerate(order) if t != step)
    writer = Writer.reopen(path, end_of(path))
    for step in order:
        writer.append(step, some(0))
    writer.close()
    found, said = read(path)
    assert len(found) == first
    assert f"is damaged at step {first}, offset {START + first * (BOUNDS[1] - START)}: its head is not " in said


def test_a_head_that_promises_more_than_there_is(path: Path) -> None:
    """It is torn, as if the disk had taken the head only; no memory is asked for that the numbers would need."""
    fields = struct.pack("<4sQII", b"STEP", 4, 2**31, 2**31 - 1)
    with path.open("ab") as file:
        file.write(fields + struct.pack("<I", zlib.crc32(fields)) + b"1234")
    assert len(read(path)[0]) == 4
    assert torn(path) == HEAD.size + 4


@pytest.mark.parametrize("content", [b"", b"RBDJRNL2", b"RBDJRNL3" + bytes(40), b"<html>" * 20, bytes(100)])
def test_what_is_no_journal(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "j").write_bytes(content)
    assert f"{tmp_path / 'j'} is no journal: it does not begin with RBDJRNL2" in read(tmp_path / "j")[1]


def test_an_earlier_version(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b"RBDJRNL1" + bytes.fromhex(DIGEST) + bytes(100))
    said = read(tmp_path / "j")[1]
    words = "is the journal of an earlier version, RBDJRNL1, expected RBDJRNL2: start a new run in another folder"
    assert said == f"{tmp_path / 'j'} {words}"


def test_another_configuration(tmp_path: Path) -> None:
    """Only who says which configuration is expected is refused."""
    path = written(tmp_path / "j", [some(0)], digest="00" * 32)
    assert "is the journal of another configuration, expected that of config.toml" in read(path)[1]
    assert len(list(Journal(path).records())) == 1


def test_files_that_are_not_there(tmp_path: Path, path: Path) -> None:
    for call in (
        lambda: Journal(tmp_path / "no"),
        lambda: Writer.reopen(tmp_path / "no", Place(0, START, b"")),
        lambda: Journal(tmp_path),
    ):
        with pytest.raises(RunError, match=r"(No such file|Is a directory)"):
            call()
    whole = path.read_bytes()
    with pytest.raises(RunError, match="cannot be made \\(File exists\\)"):
        Writer.create(path, DIGEST)
    assert path.read_bytes() == whole


def test_a_link_is_not_written_through(tmp_path: Path, path: Path) -> None:
    """Its file may be somebody's, even if it is a journal of this configuration."""
    whole, link = path.read_bytes(), tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(RunError, match="link cannot be written"):
        Writer.reopen(link, Place(0, START, b""))
    assert path.read_bytes() == whole


# The chain: records that are whole by themselves.


def parts(path: Path) -> list[bytes]:
    """The head of a journal, and its records."""
    whole = path.read_bytes()
    return [whole[:START], *(whole[first:last] for first, last in itertools.pairwise(BOUNDS))]


def moved(own: list[bytes], place: int, t: int) -> bytes:
    """A record of a journal as if it were that of step t, with a checksum that fits that and where it stood."""
    before = own[place - 1][-CHAIN:] if place > 1 else hashlib.sha256(own[0]).digest()
    return encode(t, np.frombuffer(own[place][HEAD.size : -CHAIN], np.float32).reshape(SHAPES[place - 1]), before)


def swapped(own: list[bytes], _: list[bytes]) -> list[bytes]:
    return [own[0], own[1], moved(own, 3, 1), moved(own, 2, 2), own[4]]


def dropped(own: list[bytes], _: list[bytes]) -> list[bytes]:
    return [own[0], own[1], moved(own, 3, 1), moved(own, 4, 2)]


def doubled(own: list[bytes], _: list[bytes]) -> list[bytes]:
    return [own[0], own[1], moved(own, 1, 1), moved(own, 2, 2)]


def replaced(own: list[bytes], other: list[bytes]) -> list[bytes]:
    """By one that follows the record before: the next one does not follow it."""
    return [own[0], moved([own[0], other[1]], 1, 0), *own[2:]]


def grafted(own: list[bytes], other: list[bytes]) -> list[bytes]:
    """The end of a run of the same configuration."""
    return [*own[:2], *other[2:]]


def renamed(own: list[bytes], other: list[bytes]) -> list[bytes]:
    """The head of another configuration, which is the one expected."""
    return [other[0], *own[1:]]


@pytest.mark.parametrize(
    ("change", "t"), [(swapped, 1), (dropped, 1), (doubled, 1), (replaced, 1), (grafted, 1), (renamed, 0)]
)
def test_whole_records_that_do_not_follow_each_other(tmp_path: Path, path: Path, change: Any, t: int) -> None:
    """Each has the right step and numbers that were sent once, so only the chain tells."""
    numbers = [some(k) + np.float32(1) for k in range(4)]
    digest = "00" * 32 if change is renamed else DIGEST
    other = written(tmp_path / "other", numbers, digest)
    content = change(parts(path), parts(other))
    path.write_bytes(b"".join(content))
    found: list[Record] = []
    with pytest.raises(RunError) as caught:
        found.extend(iter(Journal(path, digest).records()))
    offset = sum(map(len, content[: t + 1]))
    assert f"is damaged at step {t}, offset {offset}: it has another checksum, or does not follow " in str(caught.value)
    assert path.read_bytes() == b"".join(content)


def test_the_last_record_of_another_run_is_torn(tmp_path: Path, path: Path) -> None:
    """Nothing follows it that could tell it from one that was half written."""
    other = written(tmp_path / "other", [some(k) + np.float32(1) for k in range(4)])
    path.write_bytes(b"".join([*parts(path)[:4], parts(other)[4]]))
    assert same(read(path)[0], [some(t) for t in range(3)])
    assert torn(path) == BOUNDS[-1] - BOUNDS[-2]


# Places.


def places(*stretches: tuple[int, tuple[int, int]]) -> Layouts:
    return Layouts(*(Stretch(first, Layout(*shape)) for first, shape in stretches))


PHASES = places((0, (3, 5)), (4, (3, 1)), (4, (3, 9)), (5, (3, 2)), (90, (3, 7)))  # the second has no steps


# Of methods that send at each third and at each second step: counted from 0, wherever they begin.
RARELY = Layouts(Stretch(0, Layout(3, 5), 3), Stretch(4, Layout(3, 9)), Stretch(6, Layout(3, 4), 2))


def of_phases(path: Path, steps: int, layouts: Layouts = PHASES) -> Journal:
    """A journal of some steps, with losses of every size."""
    chance = np.random.default_rng(3)
    shapes = [layouts.at(t) for t in range(steps)]
    rows = [chance.standard_normal((each.rows, each.columns or 0)).astype(np.float32) ** 9 for each in shapes]
    return Journal(written(path, rows), DIGEST, layouts)


@pytest.mark.parametrize("layouts", [PHASES, RARELY])
@pytest.mark.parametrize("steps", [0, 1, 4, 5, 9])
def test_the_place_of_a_record_is_arithmetic(tmp_path: Path, steps: int, layouts: Layouts) -> None:
    """Whatever the layouts of the steps before, and at the very end."""
    journal = of_phases(tmp_path / "j", steps, layouts)
    expected = [journal.first, *(record.next for record in journal.records())]
    assert [journal.place(t) for t in range(steps + 3)] == [*expected, None, None]
    for place in expected:
        assert [record.t for record in journal.records(place)] == list(range(place.t, steps))
        assert journal.last == expected[-1]


@pytest.mark.parametrize("workers", [1, 2, 7, 8, 9, 40, 129, 300])
@pytest.mark.parametrize("steps", [1, 6, 30])
def test_losses_are_those_of_the_records(tmp_path: Path, workers: int, steps: int) -> None:
    """To the bit, however many workers there are to be added up."""
    journal = of_phases(tmp_path / "j", steps, places((0, (workers, 4)), (4, (workers, 1)), (9, (workers, 6))))
    expected = [record.loss for record in journal.records()]
    for first in range(steps + 1):
        assert journal.losses(first) == expected[:first]


def test_at_some_steps_nothing_is_sent_but_losses(tmp_path: Path) -> None:
    assert [RARELY.at(t).columns for t in range(11)] == [1, 1, 5, 1, 9, 9, 1, 4, 1, 4, 1]
    journal = of_phases(tmp_path / "j", 11, RARELY)
    expected = [record.loss for record in journal.records()]
    assert [journal.losses(t) for t in range(12)] == [expected[:t] for t in range(12)]


def test_losses_are_not_checked(tmp_path: Path) -> None:
    """A damaged record costs its loss at most."""
    journal = of_phases(tmp_path / "j", 9)
    expected = journal.losses(9)
    place = journal.place(2)
    assert place is not None
    content = bytearray(journal.path.read_bytes())
    content[place.offset] ^= 1
    content[place.offset + HEAD.size + 4 * 5 - 4 : place.offset + HEAD.size + 4 * 5] = b"\xff" * 4
    journal.path.write_bytes(content)
    found = journal.losses(9)
    assert np.isnan(found[2])
    assert found[:2] + found[3:] == expected[:2] + expected[3:]


# A full disk.


@contextmanager
def room_until(size: int) -> Iterator[None]:
    """No file of this process can grow beyond `size` bytes: a write is cut short there, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_takes_the_record_back(path: Path) -> None:
    """Whatever part of it found room; when there is more, the journal goes on as if nothing had been."""
    whole, end = path.read_bytes(), end_of(path)
    record = encode(4, some(0), end.chain)
    for room in range(len(record)):
        path.write_bytes(whole)
        writer = Writer.reopen(path, end)
        with pytest.raises(RunError) as caught, room_until(len(whole) + room):
            writer.append(4, some(0))
        assert f"{path} cannot be written (File too large), expected a folder with room" in str(caught.value)
        assert path.read_bytes() == whole
        writer.append(4, some(0))
        writer.close()
        assert path.read_bytes() == whole + record


def test_a_disk_that_takes_little_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a record follows its beginning, once."""
    whole, write = written(tmp_path / "whole", [some(0), some(1)]), os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:7]))
    assert written(tmp_path / "j", [some(0), some(1)]).read_bytes() == whole.read_bytes()


def test_a_disk_that_is_full_from_the_start(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be written"), room_until(10):
        Writer.create(tmp_path / "j", DIGEST)
    assert (tmp_path / "j").read_bytes() == b""
