"""The golden vectors: what is stored is what the definitions give, and any change is seen."""

from __future__ import annotations

import importlib
import json
import pkgutil
from functools import reduce
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from rbd_ref import kernels, prng
from rbd_ref._types import Float32Array
from rbd_ref.conformance import golden
from rbd_ref.kernels.backend import NumbaBackend
from rbd_ref.spec import families, operations
from rbd_ref.spec.operations import Draw, direction, directions, reconstruct
from tools import COMPILED, bits, run_python


def test_stored_vectors_are_what_the_generator_makes(capsys: pytest.CaptureFixture[str]) -> None:
    assert golden.main(["--check"]) == 0
    assert "vectors v1 are what the definitions give" in capsys.readouterr().out


ALONE = """
import sys
for name in ("numba", "llvmlite", "autograd"):
    sys.modules[name] = None
from rbd_ref.conformance import golden
sys.exit(golden.main(["--check"]))
"""


def test_the_generator_needs_neither_numba_nor_autograd() -> None:
    result = run_python("-c", ALONE)
    assert result.returncode == 0, result.stdout + result.stderr


def kernel_modules() -> list[object]:
    """Every module of rbd_ref.kernels."""
    return [
        importlib.import_module(f"{kernels.__name__}.{found.name}") for found in pkgutil.iter_modules(kernels.__path__)
    ]


def test_no_kernel_has_a_part_in_the_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function and class of the kernels is broken, and the vectors stay what they are."""

    def broken(*arguments: object, **options: object) -> object:
        raise AssertionError("a kernel was called")

    for module in kernel_modules():
        for name, value in list(vars(module).items()):
            if callable(value) and not name.startswith("__"):
                monkeypatch.setattr(module, name, broken)
    with pytest.raises(AssertionError, match="a kernel was called"):
        NumbaBackend().project(golden.draw_of(golden.read("operations")["cases"][0]), np.zeros(263, np.float32))
    assert golden.differences() == []


# The checksums of version v1, frozen: other bits are a new version of the vectors, never an edit of this one.
FROZEN = {
    "words": "3b5227e065caed7bcd900d1ea1bf3fa80241f28739c1c14b687f19b300bbe582",
    "directions": "8f88ade25f1838bf7e7fd82b33f1e1a241cb0fe6c985f52a2730759880ea8acb",
    "operations": "694fa2e2717741180ce9f147c5ec5c03561bf3405dad813ce7018752df06cbd0",
    "random": "d6b0bfe81716b0e75c49865a556f05ba7114ee84635e8598909f40ce759b1b1b",
}


@pytest.mark.parametrize("name", golden.FILES)
def test_the_bits_of_version_1_are_frozen(name: str) -> None:
    body = golden.read(name)
    assert golden.checksum(body) == body["_info"]["sha256"] == FROZEN[name]


# What v1 was before it grew: rows were added behind these, and fields that say where a row differs and what it shows.
FIRST = {
    "words": {"cases": 19, "keys": 48},
    "directions": {"cases": 56, "long": 19, "srht_rows_of_key_0_size": 3},
    "operations": {"cases": 32},
    "random": {"cases": 27, "streams": 5},  # a file that was added later, as it was at first
}
FIRST_FROZEN = {
    "words": "3b5227e065caed7bcd900d1ea1bf3fa80241f28739c1c14b687f19b300bbe582",
    "directions": "18cf8202ad657f214a7eba5a09b54403e4bf9066e5563155c9705f7c3861d244",
    "operations": "ee3fe91031332fdbc9f4b5ab5eb053a3ee27d4f1de444786e966cb880953cbd7",
    "random": "431bccd95f1370c920d74782f14b7e3a30777016242e631e7cb452e28ca72c80",
}


@pytest.mark.parametrize("name", golden.FILES)
def test_growing_changed_no_row_of_version_1(name: str) -> None:
    first = {
        part: [{key: row[key] for key in row if key not in ("why", "crc32_of_4096")} for row in rows]
        for part, count in FIRST[name].items()
        for rows in [golden.read(name)[part][:count]]
    }
    assert golden.checksum(first) == FIRST_FROZEN[name]


def test_long_cases_say_what_they_show_and_have_checksums_of_blocks() -> None:
    for row in golden.read("directions")["long"]:
        assert len(row["why"].split()) >= 5
        phi = direction(golden.draw_of(row), 0, row["direction"])
        sums = [f"{crc32(phi[j : j + 4096].tobytes()):08x}" for j in range(0, phi.size, 4096)]
        assert "".join(sums) == row["crc32_of_4096"]


def test_the_threshold_of_the_radius_is_in_the_vectors() -> None:
    """Taking 0x3f2aaaaa for 2/3 changes two elements of one case, and of no other long case."""
    changed = {}
    for row in golden.read("directions")["long"]:
        if row["family"] == "normal":
            right = direction(golden.draw_of(row), 0, row["direction"])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(families, "TWO_THIRDS", np.uint32(0x3F2AAAAA).view(np.float32))
                wrong = direction(golden.draw_of(row), 0, row["direction"])
            changed[row["direction"]] = np.flatnonzero(right != wrong).tolist()
    assert changed == {2: [], 70_000: [], 65_611: [], 39: [10_822, 10_823]}


def from_the_first_product(draw: Draw, a: Float32Array) -> Float32Array:
    """An update whose sums do not start from +0."""
    if draw.family.name == "srht":
        return operations._srht_update(draw, 0, operations.flush(a))
    return reduce(np.add, [a_i * phi_i for a_i, phi_i in zip(operations.flush(a), directions(draw), strict=True)])


def test_the_edges_of_the_operations_are_what_they_say() -> None:
    cases = golden.read("operations")["cases"][FIRST["operations"]["cases"] :]
    assert [row["sizes"] for row in cases[:6]] == [[4100, 30]] * 6
    for row in cases[6:9]:
        a, given = golden.floats(row["a"]), golden.floats(row["given_a"])
        assert 0 < np.count_nonzero(a) < a.size
        assert (np.abs(given) < 2.0**-64).sum() == 4
    for row in cases[9:]:
        u, wrong = golden.floats(row["u"]), from_the_first_product(golden.draw_of(row), golden.floats(row["given_a"]))
        assert np.array_equal(wrong, u)
        assert not np.array_equal(bits(wrong), bits(u))


@pytest.mark.parametrize("name", golden.FILES)
def test_provenance(name: str) -> None:
    info = golden.read(name)["_info"]
    assert set(info) == {"generator", "vectors", "rbd_ref", "commit", "numpy", "sha256"}
    assert info["vectors"] == golden.VERSION == "v1"
    assert len(info["commit"].removesuffix("-dirty")) == 40


def test_stored_keys_follow_from_the_prng() -> None:
    for row in golden.read("words")["keys"]:
        key = prng.stream_key(int(row["seed"], 16), row["stream"])
        key = prng.fold_in(prng.fold_in(key, row["step"]), row["worker"])
        assert [f"{word:08x}" for word in key] == row["key"]
        assert [f"{word:08x}" for word in prng.fold_in(key, 7)] == row["compartment_7"]


def test_reference_coefficients_are_frozen() -> None:
    """project has a tolerance for other backends, but none for the reference itself."""
    for row in golden.read("operations")["cases"][:: 1 if COMPILED else 5]:
        draw = golden.draw_of(row)
        assert np.array_equal(
            bits(NumbaBackend().project(draw, golden.floats(row["g"]))), bits(golden.floats(row["reference_a"]))
        )
        assert np.array_equal(bits(reconstruct(draw, golden.floats(row["given_a"]))), bits(golden.floats(row["u"])))


def test_hexadecimal_is_bits_from_the_highest_down() -> None:
    x = np.array([1.0, -2.0, 0.0], dtype=np.float32)
    assert golden.hexadecimal(x) == "3f800000" + "c0000000" + "00000000"
    assert np.array_equal(golden.floats(golden.hexadecimal(x)), x)


def test_a_changed_digit_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    golden.write()
    path = tmp_path / "directions.json"
    body = json.loads(path.read_text())
    phi = body["cases"][3]["phi"]
    body["cases"][3]["phi"] = phi[:-1] + ("0" if phi[-1] != "0" else "1")
    path.write_text(json.dumps(body))
    golden.read.cache_clear()
    try:
        assert golden.main(["--check"]) == 1
    finally:
        golden.read.cache_clear()
    assert "directions.json: cases number 3 is not what the definition gives" in capsys.readouterr().out
