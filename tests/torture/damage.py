"""What can be wrong with the files of a run: a function for each kind of damage, and what the oracle has to know of it.

Some damage is forged: every checksum fits, so that no reader can tell from the file alone. The victim remembers that.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from rbd_ref.runs.folder import sha256
from torture import journal_format
from torture.journal_format import Step
from torture.runs import Undisturbed

DEEP = 100_000  # levels of nesting
LONG = 3 << 20  # characters of a long line


@dataclass
class Victim:
    """The copy of a run that is damaged, and what the oracle has to know of the damage."""

    known: Undisturbed
    folder: Path
    outside: Path  # a file that is none of the run's, and must not change
    canary: Path  # a file that is made by code of the run's folder, if any is run
    mirror: str  # an address that nobody may ask
    forged_steps: set[int] = field(default_factory=set)  # whose records are others, with all checksums right
    forged_arrays: set[str] = field(default_factory=set)  # checkpoints and final.npz with other numbers and right sums
    touched: set[str] = field(default_factory=set)  # files that are not as they were

    @property
    def journal(self) -> Path:
        """The file of what was sent."""
        return self.folder / "journal.rbd"

    @property
    def checkpoints(self) -> list[Path]:
        """The files of checkpoints."""
        return sorted((self.folder / "checkpoints").glob("step-*.npz"))

    @property
    def local(self) -> list[Path]:
        """The files of what workers keep."""
        return sorted((self.folder / "checkpoints").glob("local-*.npz"))

    def touch(self, path: Path) -> Path:
        """Remember that a file was changed."""
        self.touched.add(path.name)
        return path


Damage = Callable[[Random, Victim], None]


# Any file.


def some_file(random: Random, victim: Victim) -> Path:
    """A file of the run, the small ones as often as the large ones."""
    files = [path for path in sorted(victim.folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    return victim.touch(random.choice(files))


def flip_bits(random: Random, victim: Victim) -> None:
    path = some_file(random, victim)
    content = bytearray(path.read_bytes())
    for _ in range(random.choice([1, 1, 1, 2, 8])):
        if content:
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def truncate(random: Random, victim: Victim) -> None:
    path = some_file(random, victim)
    os.truncate(path, random.randint(0, path.stat().st_size))


def empty(random: Random, victim: Victim) -> None:
    some_file(random, victim).write_bytes(b"")


def append_bytes(random: Random, victim: Victim) -> None:
    path = some_file(random, victim)
    more = random.choice([bytes(random.randint(1, 5000)), random.randbytes(random.randint(1, 200)), b"\n", b"{}\n"])
    path.write_bytes(path.read_bytes() + more)


def overwrite(random: Random, victim: Victim) -> None:
    path = some_file(random, victim)
    content = bytearray(path.read_bytes())
    start = random.randint(0, len(content))
    part = random.randint(1, 64)
    content[start : start + part] = random.choice([bytes(part), random.randbytes(part), b"", b"\xff" * part])
    path.write_bytes(content)


def swap_files(random: Random, victim: Victim) -> None:
    one = some_file(random, victim)
    other = some_file(random, victim)
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])
    if "config.toml" not in (one.name, other.name) and one.suffix == other.suffix == ".npz":
        victim.forged_arrays |= {one.name, other.name}


NAMES = ("config.toml", "journal.rbd", "metrics.jsonl", "result.json", "final.npz", "lock", "checkpoints", "faults.log")


def some_name(random: Random, victim: Victim) -> Path:
    """The place of a file or folder of the run, where nothing is any more."""
    path = victim.touch(random.choice([*(victim.folder / name for name in NAMES), *victim.checkpoints, *victim.local]))
    if path.name == "checkpoints":
        victim.touched |= {file.name for file in victim.checkpoints}
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    return path


def remove(random: Random, victim: Victim) -> None:
    some_name(random, victim)


def make_folder(random: Random, victim: Victim) -> None:
    path = some_name(random, victim)
    path.mkdir()
    if random.random() < 0.5:
        (path / "inside").write_text("something")


def make_loop(random: Random, victim: Victim) -> None:
    path = some_name(random, victim)
    path.symlink_to(random.choice([path.name, "nowhere", "/proc/self/fd/999", "."]))


def make_device(random: Random, victim: Victim) -> None:
    some_name(random, victim).symlink_to(random.choice(["/dev/zero", "/dev/null", "/dev/full", "/proc/self/maps"]))


def make_pipe(random: Random, victim: Victim) -> None:
    os.mkfifo(some_name(random, victim))


def link_outside(random: Random, victim: Victim) -> None:
    """Who follows the link and writes has changed a file of somebody else."""
    path = some_name(random, victim)
    victim.outside.write_bytes(random.choice([b"", b"precious", bytes(100), victim.known.journal]))
    path.symlink_to(victim.outside)


def unreadable_name(random: Random, victim: Victim) -> None:
    name = random.choice(["step-0000000a.npz", "step-.npz", "step-99999999.npz", "step-1.npz", "step-00000003.npz.npz"])
    if (victim.folder / "checkpoints").is_dir():
        victim.touch(victim.folder / "checkpoints" / name).write_bytes(random.randbytes(50))


FILES: tuple[Damage, ...] = (
    *(flip_bits,) * 3,
    *(truncate,) * 2,
    empty,
    append_bytes,
    *(overwrite,) * 2,
    swap_files,
    remove,
    make_folder,
    make_loop,
    make_device,
    make_pipe,
    link_outside,
    unreadable_name,
)


# The journal.


def strange(random: Random) -> float:
    """A number that no training sends."""
    return random.choice([0.0, -0.0, 1e-45, 1e30, -3e38, float("nan"), float("inf"), random.gauss(0, 1)])


def rewrite_journal(victim: Victim, change: Callable[[list[Step]], None]) -> None:
    """A journal of other records with right checksums."""
    if "journal.rbd" in victim.touched or not victim.journal.is_file():
        return
    content = victim.journal.read_bytes()
    steps = journal_format.parsed(content)
    if not steps:
        return
    before = list(steps)
    change(steps)
    victim.forged_steps = others(before, steps)
    victim.touch(victim.journal).write_bytes(journal_format.composed(content, steps))


def same(one: Step, other: Step) -> bool:
    """Whether a record is the same but for its losses, on which no weights depend."""
    if one.t != other.t or one.rows.shape != other.rows.shape:
        return False
    return one.rows[:, :-1].tobytes() == other.rows[:, :-1].tobytes()


def others(before: list[Step], after: list[Step]) -> set[int]:
    """The places of records that are others than before."""
    common = min(len(before), len(after))
    return {t for t in range(common) if not same(before[t], after[t])} | set(range(len(before), len(after)))


def other_values(random: Random, victim: Victim) -> None:
    def change(steps: list[Step]) -> None:
        t = random.randrange(len(steps))
        rows = steps[t].rows.copy()
        rows.flat[random.randrange(rows.size)] = strange(random)
        steps[t] = steps[t]._replace(rows=rows)

    rewrite_journal(victim, change)


def flipped_number(random: Random, victim: Victim) -> None:
    """A bit of a number, as a bad disk changes it: checksums stay what they were."""
    if "journal.rbd" in victim.touched or not victim.journal.is_file():
        return
    content = bytearray(victim.journal.read_bytes())
    steps = len(journal_format.ends(bytes(content))) - 1
    if steps:
        place = random.choice(journal_format.numbers(bytes(content), random.randrange(steps)))
        content[place] ^= 1 << random.randrange(8)
        victim.touch(victim.journal).write_bytes(content)


def other_shape(random: Random, victim: Victim) -> None:
    def change(steps: list[Step]) -> None:
        t = random.randrange(len(steps))
        r, c = steps[t].rows.shape
        shape = random.choice([(r + 1, c), (r, c + 1), (r, 0), (0, c), (c, r), (1, r * c), (r, 1), (1000, 1000)])
        steps[t] = steps[t]._replace(rows=np.resize(steps[t].rows, shape) if steps[t].rows.size else steps[t].rows)

    rewrite_journal(victim, change)


def other_step(random: Random, victim: Victim) -> None:
    def change(steps: list[Step]) -> None:
        t = random.randrange(len(steps))
        steps[t] = steps[t]._replace(t=random.choice([t + 1, max(0, t - 1), 0, 2**32, 2**64 - 1]))

    rewrite_journal(victim, change)


def other_order(random: Random, victim: Victim) -> None:
    """Swapped, dropped or doubled, the steps renumbered or not."""

    def change(steps: list[Step]) -> None:
        t = random.randrange(len(steps))
        moved = steps.pop(t)
        how = random.choice(["swap", "drop", "double"])
        if how == "swap":
            steps.insert(random.randint(0, len(steps)), moved)
        elif how == "double":
            steps[t:t] = [moved, moved]
        if random.random() < 0.5:
            steps[:] = [Step(t, one.rows) for t, one in enumerate(steps)]

    rewrite_journal(victim, change)


def more_records(random: Random, victim: Victim) -> None:
    def change(steps: list[Step]) -> None:
        count = len(steps)
        for t in range(count, count + random.randint(1, 3)):
            steps.append(Step(t, random.choice(steps).rows))

    rewrite_journal(victim, change)


def broken_end(random: Random, victim: Victim) -> None:
    """Cut at a place of some kind, and perhaps zeros from there on, or a head that promises too much."""
    if not victim.journal.is_file() or not victim.journal.stat().st_size:
        return
    content = victim.journal.read_bytes()
    ends = journal_format.ends(content)
    place = random.choice(ends) + random.choice([0, 0, 1, 4, 20, 23, 24, 25, 30, -1, -4])
    more = [b"", bytes(random.randint(1, 5000)), b"\0" * 3 + b"x", random.randbytes(30)]
    more += [journal_format.promising(len(ends) - 1, *shape) for shape in ((2**31, 2**31 - 1), (1, 2**30), (0, 0))]
    victim.touch(victim.journal).write_bytes(content[: max(0, place)] + random.choice(more))


def other_head(random: Random, victim: Victim) -> None:
    if not victim.journal.is_file() or victim.journal.stat().st_size < journal_format.START:
        return
    content = bytearray(victim.journal.read_bytes())
    if random.random() < 0.5:
        content[random.choice(journal_format.DIGEST)] ^= 1
    else:
        content[:8] = random.choice([b"RBDJRNL0", b"RBDJRNL1", b"RBDJRNL2", b"RBDJRNL3", bytes(8)])
    victim.touch(victim.journal).write_bytes(content)


JOURNAL: tuple[Damage, ...] = (
    *(other_values,) * 3,
    *(flipped_number,) * 3,
    other_shape,
    other_step,
    *(other_order,) * 2,
    more_records,
    *(broken_end,) * 3,
    other_head,
)


# Arrays: checkpoints and final.npz.


def some_arrays(random: Random, victim: Victim) -> Path | None:
    """A file of arrays that can be read."""
    files = [path for path in [*victim.checkpoints, *victim.local, victim.folder / "final.npz"] if path.is_file()]
    good = [path for path in files if path.name not in victim.touched]
    return victim.touch(random.choice(good)) if good else None


def parts_of(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What is said in a file, and its arrays."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(str(arrays.pop("info"))), arrays


def put(path: Path, info: Any, arrays: dict[str, np.ndarray], save: Any = np.savez) -> None:
    """Write them as they were written."""
    text = info if isinstance(info, str) else json.dumps(info)
    with path.open("wb") as out:
        save(out, info=np.array(text), **arrays)


def other_array(random: Random, victim: Victim) -> None:
    """Another number, type, shape or order, with the sha256 that fits."""
    if (path := some_arrays(random, victim)) is None:
        return
    info, arrays = parts_of(path)
    name = random.choice(list(arrays))
    arrays[name] = random.choice(ARRAYS)(random, arrays[name])
    victim.forged_arrays.add(path.name)
    if "theta" in arrays and arrays["theta"].dtype.kind == "f" and random.random() < 0.9:
        info["sha256"] = sha256(arrays["theta"].astype(np.float32))
    put(path, info, arrays)


def _one_number(random: Random, array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    if changed.size:
        changed.flat[random.randrange(changed.size)] += random.choice([1e-3, -1e-3, 1.0, -1.0, float("nan"), 3e38])
    else:
        changed = np.ones(3, np.float32)
    return changed


ARRAYS: tuple[Callable[[Random, np.ndarray], np.ndarray], ...] = (
    *(_one_number,) * 8,
    lambda random, array: array.astype(random.choice(["f8", "f2", ">f4", "i4", "u1", "c8", "U4", "?"])),
    lambda random, array: array.ravel()[: random.randint(0, array.size)],
    lambda random, array: np.resize(array, array.size + random.randint(1, 5)) if array.size else array,
    lambda random, array: array.reshape(-1, 1),
    lambda random, array: np.asfortranarray(np.resize(array, (3, 4)) if array.size else np.ones((3, 4), np.float32)),
    lambda random, array: np.zeros((), np.float32),
    lambda random, array: np.resize(array, (1, *array.shape)) if array.size else array,
)


def other_info(random: Random, victim: Victim) -> None:
    """A key of what is said of the arrays has another value, or there is another text."""
    if (path := some_arrays(random, victim)) is None:
        return
    info, arrays = parts_of(path)
    if random.random() < 0.2:
        put(path, random.choice(["", "{", "3", "null", "[]", "[" * DEEP, '"' + "x" * LONG, "{}", "\ud7ff"]), arrays)
        return
    key = random.choice([*info, "t", "more"])
    if random.random() < 0.2:
        info.pop(key, None)
    else:
        info[key] = wrong_value(random)
    put(path, info, arrays)


def other_zip(random: Random, victim: Victim) -> None:
    """The same arrays in an archive that np.savez does not write."""
    if (path := some_arrays(random, victim)) is not None:
        random.choice(ZIPS)(random, path, victim)


def compress(random: Random, path: Path, victim: Victim) -> None:
    info, arrays = parts_of(path)
    if random.random() < 0.5:
        arrays["theta"] = np.zeros(50_000_000, np.float32)  # 200 MB in some kilobytes
    put(path, info, arrays, np.savez_compressed)


def double(random: Random, path: Path, victim: Victim) -> None:
    victim.forged_arrays.add(path.name)
    _, arrays = parts_of(path)
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        out = io.BytesIO()
        name = random.choice(list(arrays))
        np.save(out, np.zeros_like(arrays[name]))
        archive.writestr(f"{name}.npy", out.getvalue())


def declare(random: Random, path: Path, victim: Victim) -> None:
    """Sizes and places in the directory of the archive."""
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")
    place, kind = random.choice([(20, "<I"), (24, "<I"), (28, "<H"), (30, "<H"), (42, "<I"), (16, "<I"), (8, "<H")])
    value = random.choice([0, 1, 2**16 - 1, 2**31 - 1, 2**32 - 1]) & (2 ** (8 * struct.calcsize(kind)) - 1)
    struct.pack_into(kind, content, entry + place, value)
    path.write_bytes(content)


def huge_shape(random: Random, path: Path, victim: Victim) -> None:
    """The head of an array that says to be far larger than its bytes."""
    content = path.read_bytes()
    old = b"'shape': (650,), "
    new = random.choice([b"'shape': (9**99,)", b"'shape': (10**9,)", b"'shape': (99999999"[:17], b"'shape': (-50,), "])
    path.write_bytes(content.replace(old, new))


def extra_bytes(random: Random, path: Path, victim: Victim) -> None:
    content = path.read_bytes()
    before = random.choice([b"", random.randbytes(100), content])
    path.write_bytes(before + content + random.choice([b"", random.randbytes(100), b"PK\x05\x06"]))


class Bomb:
    """What makes the canary when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.canary}'",)


def pickled(random: Random, path: Path, victim: Victim) -> None:
    """An array of objects, which would be unpickled."""
    info, arrays = parts_of(path)
    arrays["theta"] = np.array([Bomb(victim.canary)], dtype=object)
    if random.random() < 0.3:
        path.write_bytes(pickle.dumps(Bomb(victim.canary)))
    else:
        put(path, info, arrays)


ZIPS: tuple[Callable[[Random, Path, Victim], None], ...] = (
    compress,
    double,
    declare,
    declare,
    huge_shape,
    extra_bytes,
    pickled,
)
CHECKPOINTS: tuple[Damage, ...] = (*(other_array,) * 3, *(other_info,) * 2, *(other_zip,) * 3)


# Texts.


def wrong_value(random: Random) -> Any:
    """A value of JSON that does not belong where it stands."""
    nested: Any = random.choice([3, {}])
    for _ in range(random.choice([1, 10, 500])):
        nested = [nested]
    numbers = [0, -1, 1, 3, 2**31, 2**64, 10**400, -(10**30), 0.5, 1e308, float("nan"), float("inf")]
    texts = [
        "",
        "x",
        "<script>alert(1)</script>",
        "\u202e\u2028",
        "\x00\x1b[31m\n",
        "\ud83d",
        "é" * 3000,
        "x" * 100_000,
    ]
    return random.choice([random.choice(numbers), random.choice(texts), nested, None, True, False, [], {}, {"a": [1]}])


def other_json(random: Random, path: Path, text: str) -> str:
    """A JSON object with a value changed, or another text."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):  # as it was damaged before
        values = {}
    if random.random() < 0.2 or not isinstance(values, dict):
        return random.choice(
            ["", "{}", "[]", "null", "[" * DEEP, '{"a":' * DEEP, "NaN", "x" * LONG, "\x00", "1" * 5000]
        )
    key = random.choice([*values, "more"])
    if random.random() < 0.2:
        values.pop(key, None)
    else:
        values[key] = wrong_value(random)
    return json.dumps(values, ensure_ascii=random.random() < 0.5)


def damage_json(random: Random, victim: Victim) -> None:
    """result.json, a line of metrics.jsonl or the lock."""
    path = victim.touch(victim.folder / random.choice(["result.json", "metrics.jsonl", "metrics.jsonl", "lock"]))
    if path.is_symlink() or (path.exists() and not path.is_file()):
        return
    lines = path.read_bytes().decode(errors="replace").split("\n") if path.exists() else [""]
    number = random.randrange(len(lines))
    if path.name == "result.json":
        lines = [other_json(random, path, "\n".join(lines))]
    elif random.random() < 0.2:
        lines[number:number] = [lines[number]] * random.choice([0, 1, 3])
    else:
        lines[number] = other_json(random, path, lines[number])
    path.write_bytes("\n".join(lines).encode(errors="surrogatepass"))


def damage_config(random: Random, victim: Victim) -> None:
    """A setting of config.toml has another value, is missing, or stands there twice."""
    path = victim.touch(victim.folder / "config.toml")
    if not path.is_file():
        return
    lines = path.read_bytes().decode(errors="replace").split("\n")
    places = [number for number, line in enumerate(lines) if " = " in line] or [0]
    number = random.choice(places)
    name = lines[number].split(" = ")[0]
    how = random.random()
    if how < 0.1:
        lines.insert(number, random.choice([lines[number], "", "[table]", "more = 3", '"' * 3, "x" * LONG, "\x00"]))
    elif how < 0.2:
        del lines[number]
    else:
        lines[number] = f"{name} = {other_setting(random, victim, name)}"
    path.write_bytes("\n".join(lines).encode(errors="surrogatepass"))


LENGTHS = ("epochs", "steps")  # a run of another length takes as long as it says, so these stay small


def other_setting(random: Random, victim: Victim, name: str) -> str:
    """A value of TOML."""
    own = {
        "backend": ['"canary:Backend"', '"numpy"', '"nobody"', '"os.path:join"', '"../canary:Backend"', '"canary"'],
        "mirror": [json.dumps(victim.mirror)],
        "data": ['"mnist"', '"digits"', '"/etc"'],
        "data_dir": [json.dumps(str(victim.folder)), '"/dev/null"', '"\\u0000"'],
        "net": ['"fc"', '"mlp:64-10-10"', '"mlp:64"', '"mlp:0-10"', '"resnet8"', '"mlp:64-99999999999-10"'],
        "dims": ['"each:1"', '"5"', '"99999999999"', '"651"', "3"],
        "workers": ["2", "1000", "4294967296", "18446744073709551616"],
        "seed": ["1", "18446744073709551615"],
        "preset": ['"table1-fc-mnist-rbd"', '"nobody"'],
        "problem": ['"Bowl, D 40"', '"x"'],
        "switch": ['["1:sgd"]', '["1:sgd:1e999"]', '["9999999999:sgd"]', '["1:sgd:nan"]'],
        "compartments": ['"even:3"', '"even:99999999"', '"proportional:1"', '"proportional:nan"', '"layer"'],
    }
    usual = ['""', "0", "-1", "true", "1e308", "nan", "-inf", "[]", "{}", '["x"]', "1979-05-27", '"\\u202e"', "0.5"]
    usual += ["1", "2", "3", "{ a = { b = [ 1 ] } }", '"' + "x" * 5000 + '"', "[" * 500 + "]" * 500]
    if name not in LENGTHS:
        usual += ["1" * 400, "1" * 5000, "4294967295", "9223372036854775808"]
    return random.choice(own.get(name, usual) if random.random() < 0.6 else usual)


TEXTS: tuple[Damage, ...] = (*(damage_json,) * 3, *(damage_config,) * 3)
GROUPS: dict[str, tuple[Damage, ...]] = {"files": FILES, "journal": JOURNAL, "arrays": CHECKPOINTS, "texts": TEXTS}
