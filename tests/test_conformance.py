"""The suite as its users meet it: the command, its last line and exit status, the report, and pytest."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rbd_ref.backend import Capabilities
from rbd_ref.conformance import __main__ as command
from rbd_ref.conformance import suite
from rbd_ref.numpy_backend import NumpyBackend
from rbd_ref.spec.families import FAMILIES
from tools import ROOT, run_python


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


@pytest.mark.compiled
def test_words_of_the_reference(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert command.main(["--rbd-backend", "numba", "--level", "L0", "--report", str(report)]) == 0
    assert last_line(capsys.readouterr().out) == json.loads(report.read_text())["verdict"] == "numba: conforms to L0"


@pytest.mark.compiled
def test_the_report_of_the_reference(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert command.main(["--rbd-backend", "numba", "--level", "L1", "--report", str(report)]) == 0
    assert last_line(capsys.readouterr().out) == "numba: conforms to L1"
    body = json.loads(report.read_text())
    assert (body["level"], body["failed_at"], body["vectors"], body["backend"]) == ("L1", None, "v1", "numba")
    assert {item["outcome"] for item in body["checks"]} == {"passed"}
    assert {item["family"] for item in body["checks"]} == {None, *FAMILIES}
    assert {item["level"] for item in body["checks"]} == {"L0", "L1"}


@pytest.mark.parametrize("name", ["nothing", "no_such_package:Class", "fractions:Fraction"])
def test_what_cannot_be_run_is_one_sentence_and_status_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--rbd-backend", name]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"rbd_ref.conformance: backend {name!r}")
    assert said.err.count("\n") == 1


def test_a_report_that_cannot_be_written_is_said_before_the_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = tmp_path / "no folder" / "report.json"
    assert command.main(["--rbd-backend", "numba", "--report", str(missing)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"rbd_ref.conformance: {missing} cannot be written (No such file or directory), expected ")
    assert said.endswith(": make the folder, or choose another with --report\n")
    assert not missing.parent.exists()


def test_an_unknown_level_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(["--rbd-backend", "numba", "--level", "L9"])
    assert caught.value.code == 2
    assert "invalid choice: 'L9'" in capsys.readouterr().err


@pytest.mark.compiled
def test_a_third_party_backend_from_another_folder(tmp_path: Path) -> None:
    """As its author runs it: a module in the current folder, a failing level, exit status 1."""
    source = "from rbd_ref.kernels.backend import NumbaBackend\n\n\nclass Mine(NumbaBackend):\n    name = 'mine'\n"
    (tmp_path / "mine.py").write_text(source + "\n    def words(self, key, counter):\n        return counter\n")
    result = run_python("-m", "rbd_ref.conformance", "--rbd-backend", "mine:Mine", folder=tmp_path)
    assert result.returncode == 1, result.stderr
    assert last_line(result.stdout) == "mine: fails at L0"
    assert "words differ" in result.stdout
    assert "L1" not in result.stdout


def test_a_check_is_announced_before_it_runs(tmp_path: Path) -> None:
    """Native code may end the process: the last line names the check that was running."""
    source = "import os\nfrom rbd_ref.numpy_backend import NumpyBackend\n\n\nclass Dies(NumpyBackend):\n"
    (tmp_path / "dies.py").write_text(source + "    def directions(self, draw, indices):\n        os.abort()\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    result = run_python("-m", "rbd_ref.conformance", "--rbd-backend", "dies:Dies", folder=tmp_path, PYTHONPATH=path)
    assert result.returncode < 0
    assert last_line(result.stdout) == "L1 directions equal the golden vectors [normal] ..."


@pytest.mark.compiled
def test_the_suite_in_pytest(tmp_path: Path) -> None:
    """Collected from the installed package, from an unrelated folder."""
    options = ["-p", "rbd_ref.conformance.plugin", "--pyargs", "rbd_ref.conformance", "-q", "-p", "no:cacheprovider"]
    some, number = ["-k", "L0 or L3"], sum(item.level in ("L0", "L3") for item in suite.all_checks())
    result = run_python(
        "-m", "pytest", *options, *some, "--rbd-backend", "numba", "--rootdir", str(tmp_path), folder=tmp_path
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{number} passed, {len(suite.all_checks()) - number} deselected" in last_line(result.stdout)
    result = run_python(
        "-m", "pytest", *options, "--rbd-backend", "nothing", "--rootdir", str(tmp_path), folder=tmp_path
    )
    assert result.returncode != 0
    assert "backend 'nothing' is unknown" in result.stdout


class OnlyWords(NumpyBackend):
    """Claims words and no more."""

    name = "only-words"
    capabilities = Capabilities(families=("uniform",), level="L0", reason="its device has no floats")


def test_what_is_not_declared_is_skipped_with_its_reason(pytester: pytest.Pytester) -> None:
    options = ["-p", "rbd_ref.conformance.plugin", "--pyargs", "rbd_ref.conformance", "-rs"]
    result = pytester.runpytest_inprocess(*options, "--rbd-backend", "test_conformance:OnlyWords")
    levels = [item.level for item in suite.all_checks()]
    result.assert_outcomes(passed=levels.count("L0"), skipped=len(levels) - levels.count("L0"))
    result.stdout.fnmatch_lines(["*only-words declares L0 as its highest level: its device has no floats*"])


def test_a_failing_check_fails_its_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        wrong="from test_conformance import OnlyWords\n\n"
        "class Wrong(OnlyWords):\n    def words(self, key, counter):\n        return counter\n"
    )
    pytester.syspathinsert()
    options = ["-p", "rbd_ref.conformance.plugin", "--pyargs", "rbd_ref.conformance"]
    result = pytester.runpytest_inprocess(*options, "--rbd-backend", "wrong:Wrong")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*words differ, the first at*"])


def test_the_command_names_what_is_not_declared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert command.main(["--rbd-backend", "test_conformance:OnlyWords", "--report", str(report)]) == 0
    printed = capsys.readouterr().out
    assert last_line(printed) == "only-words: conforms to L0"
    assert "only-words does not declare normal, rademacher, bernoulli-graphcore, sparse, srht" in printed
    assert json.loads(report.read_text())["missing"] == [
        "normal",
        "rademacher",
        "bernoulli-graphcore",
        "sparse",
        "srht",
    ]


@pytest.mark.parametrize("wrong", [{"families": ()}, {"families": ("gauss",)}, {"normalizations": ()}, {"level": "L9"}])
def test_a_declaration_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected at least one and only of"):
        Capabilities(**wrong)  # type: ignore[arg-type]


def test_levels_are_in_order_and_every_check_has_a_title() -> None:
    checks = suite.all_checks()
    assert [item.level for item in checks] == sorted(item.level for item in checks)
    assert len({str(item) for item in checks}) == len(checks)


def test_the_suite_ships_with_the_package() -> None:
    """pyproject.toml names every folder that is a package, or the wheel lacks it."""
    text = (ROOT / "pyproject.toml").read_text()
    folders = [path.parent for path in ROOT.glob("*/__init__.py")] + [
        path.parent for path in ROOT.glob("*/*/__init__.py")
    ]
    names = [path.relative_to(ROOT) for path in folders if not (path.parent / "__init__.py").exists()]
    top = [name.as_posix() for name in names if name.parts[0] != "tests"]  # which no wheel has
    packages = text.split("packages = [")[1].split("]")[0]
    assert sorted(packages.replace('"', "").split(", ")) == sorted(top)
