"""The data of the explorable: `python docs/explorable_data.py` makes it, `--check` makes it anew and compares.

    explorable/vectors.json   the golden vectors, made compact: long vectors by their sha256, each gradient once
    explorable/example/       a small run on the digits, whose journal the page rebuilds

Tests: tests/test_explorable.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import rbd_ref
from rbd_ref.conformance import golden

HERE = Path(__file__).parent / "explorable"
VECTORS = HERE / "vectors.json"
EXAMPLE = HERE / "example"
FILES = ("config.toml", "journal.rbd", "result.json")
KEPT = ("step", "sha256", "journal", "test_accuracy")  # of result.json: what does not depend on the machine's speed
RUN = rbd_ref.Config(
    data="digits",
    net="fc",
    dims=32,
    workers=2,
    memory=0.9,
    lr=48.0,
    schedule="linear",
    steps=150,
    seed=2020,
    combine="mean",
    log_every=1000,
)


def sha256_of(text: str) -> str:
    """The digest of floats that a golden file has as hexadecimal text, as little-endian bytes."""
    return hashlib.sha256(golden.floats(text).astype("<f4").tobytes()).hexdigest()


def hashed(row: dict[str, Any], field: str) -> dict[str, Any]:
    """A row with a digest in place of a long vector."""
    return {name: x for name, x in row.items() if name != field} | {f"{field}_sha256": sha256_of(row[field])}


def vectors() -> str:
    """The golden vectors as the page reads them."""
    files = {name: {part: rows for part, rows in golden.read(name).items() if part != "_info"} for name in golden.FILES}
    directions = files["directions"]
    directions["cases"] = [hashed(row, "phi") for row in directions["cases"]]
    directions["long"] = [{k: v for k, v in row.items() if k != "crc32_of_4096"} for row in directions["long"]]
    cases = [hashed(row, "u") for row in files["operations"]["cases"]]
    gradients = list(dict.fromkeys(row["g"] for row in cases))
    files["operations"]["cases"] = [row | {"g": gradients.index(row["g"])} for row in cases]
    return json.dumps(files | {"gradients": gradients}, separators=(",", ":")) + "\n"


def example() -> dict[str, bytes]:
    """The files of the example run, trained now."""
    with TemporaryDirectory() as folder:
        rbd_ref.fit(RUN, out=folder)
        files = {name: (Path(folder) / name).read_bytes() for name in FILES}
    values = json.loads(files["result.json"])
    kept = json.dumps({name: values[name] for name in KEPT}, indent=1) + "\n"
    return files | {"result.json": kept.encode()}


def made() -> dict[Path, bytes]:
    """All files, by path."""
    return {VECTORS: vectors().encode()} | {EXAMPLE / name: content for name, content in example().items()}


def main() -> int:
    """Write, or check and say what differs; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the stored files instead of writing them")
    check = parser.parse_args().check
    files = made()
    if not check:
        EXAMPLE.mkdir(exist_ok=True)
        for path, content in files.items():
            path.write_bytes(content)
        return 0
    stale = [path.name for path, content in files.items() if not path.exists() or path.read_bytes() != content]
    if stale:
        print(f"{', '.join(stale)} would change: run python docs/explorable_data.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
