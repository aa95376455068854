"""Names that are loaded late: the right one from the right module, and one sentence for what is missing."""

from __future__ import annotations

import pytest

from rbd_ref._lazy import attribute
from tools import run_python

HOMES = {"Basis": "basis", "whole": "compartments"}


def test_a_name_comes_from_its_home() -> None:
    import rbd_ref.basis

    assert attribute("rbd_ref", HOMES, "Basis", "numpy") is rbd_ref.basis.Basis


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'rbd_ref' has no attribute 'Bases'"):
        attribute("rbd_ref", HOMES, "Bases", "numpy")


def test_a_missing_library_is_one_sentence() -> None:
    with pytest.raises(ImportError, match=r"nothing_here is not there .*: pip install 'rbd-ref\[nothing_here\]'"):
        attribute("rbd_ref", HOMES, "Basis", "nothing_here")


@pytest.mark.parametrize(("package", "library"), [("rbd_torch", "torch"), ("rbd_jax", "jax")])
def test_a_package_alone_imports_no_library(package: str, library: str) -> None:
    result = run_python("-c", f"import sys, {package}; assert {library!r} not in sys.modules; {package}.randn")
    assert result.returncode == 0, result.stderr
