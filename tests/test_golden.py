"""The golden vectors: what is stored is what the definitions give, and any change is seen."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path

import numpy as np
import pytest

from rbd_ref import kernels, prng
from rbd_ref.conformance import golden
from rbd_ref.kernels.backend import NumbaBackend
from rbd_ref.spec.operations import reconstruct
from tools import bits, run_python


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
    "directions": "18cf8202ad657f214a7eba5a09b54403e4bf9066e5563155c9705f7c3861d244",
    "operations": "ee3fe91031332fdbc9f4b5ab5eb053a3ee27d4f1de444786e966cb880953cbd7",
}


@pytest.mark.parametrize("name", golden.FILES)
def test_the_bits_of_version_1_are_frozen(name: str) -> None:
    body = golden.read(name)
    assert golden.checksum(body) == body["_info"]["sha256"] == FROZEN[name]


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
    for row in golden.read("operations")["cases"][::5]:
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
