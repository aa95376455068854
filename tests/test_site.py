"""The site, as far as it can be checked without building it: chapters, links to source, what the API pages name.

`make docs` builds it and follows all links. Chapters run here as plain Python: neither Sphinx nor a notebook is needed.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from pathlib import Path

import pytest

import rbd_jax
import rbd_ref
import rbd_torch
from tools import ROOT, run_python

DOCS = ROOT / "docs"
sys.path.append(str(DOCS))

from check_site import problems  # noqa: E402
from definitions import definitions  # noqa: E402
from docstrings import as_rest  # noqa: E402

CHAPTERS = sorted((DOCS / "tutorial").glob("[0-9]*.md"))
APART = {"_build", "explorable"}  # not Sphinx's
PAGES = sorted(path for path in DOCS.rglob("*.md") if not APART & set(path.relative_to(DOCS).parts))
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", flags=re.M | re.S)
MOST_WORDS = 1500


def cells(chapter: Path) -> list[str]:
    """The code of a chapter, with the options of each cell as comments."""
    return [re.sub(r"^:", "# :", code, flags=re.M) for code in CELL.findall(chapter.read_text())]


def prose(chapter: Path) -> str:
    """A chapter without its head and its code."""
    text = chapter.read_text().split("---\n", 2)[2]
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def test_there_are_ten_chapters() -> None:
    assert [int(path.name[:2]) for path in CHAPTERS] == list(range(1, 11))


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_is_short(chapter: Path) -> None:
    assert 200 < len(prose(chapter).split()) <= MOST_WORDS


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_ends_with_two_exercises_and_their_solutions(chapter: Path) -> None:
    body, exercises = chapter.read_text().split("\n## Exercises\n")
    first, second = exercises.split("\n**2.** ")
    assert first.lstrip().startswith("**1.** ")
    assert "hide-cell" not in body
    for exercise in (first, second):
        assert [":tags: [hide-cell]" in code for code in CELL.findall(exercise)] == [True]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_calls_what_there_is(chapter: Path) -> None:
    """`rbd.name` is public, and every setting of `rbd.Config(...)` is one."""
    public = {*rbd_ref.__all__, *dir(rbd_ref.spec)}
    settings = {field.name for field in dataclasses.fields(rbd_ref.Config)}
    for node in ast.walk(ast.parse("\n".join(cells(chapter)))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "rbd":
            assert node.attr in public
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "rbd.Config":
            assert {word.arg for word in node.keywords if word.arg} <= settings


@pytest.mark.compiled  # they train networks
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_runs(chapter: Path) -> None:
    """All cells in order, solutions too; what a chapter compares to the bit is equal."""
    alone = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}  # other tests want the cores too
    result = run_python("-c", "\n".join(cells(chapter)), folder=chapter.parent, MPLBACKEND="agg", **alone)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") >= 5
    assert "False" not in result.stdout


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_is_linked_from_the_one_before(chapter: Path) -> None:
    index = (DOCS / "tutorial" / "index.md").read_text()
    assert f"({chapter.name})" in index
    assert f"\n{chapter.stem}\n" in index
    if chapter != CHAPTERS[0]:
        assert f"]({chapter.name})" in CHAPTERS[CHAPTERS.index(chapter) - 1].read_text()


def test_every_page_is_in_the_contents() -> None:
    """Of the site's tables of contents, each page is in one."""
    named = {DOCS / "index.md"}
    for page in PAGES:
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```$", page.read_text(), flags=re.M | re.S):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            named |= {page.parent / f"{entry}.md" for entry in entries}
    assert set(PAGES) ^ named == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_links_to_source_lead_to_what_is_named(page: Path) -> None:
    """[`project`](../rbd_ref/spec/operations.py#project): the file, and in it the name."""
    for target, name in re.findall(r"\]\((\.\.?/[^)#\s]+|[\w-]+\.md)(?:#([^)]+))?\)", page.read_text()):
        path = page.parent / target
        assert path.exists(), target
        if name and path.suffix == ".py":
            assert name in definitions(path.read_text()), f"{target} has no {name}"


def test_paper_to_code_names_functions() -> None:
    """Nearly every row has a link; of those with a name most are to functions of the package."""
    text = (DOCS / "paper-to-code.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) > 80
    assert len([row for row in rows if "](../" in row]) > 0.75 * len(rows)
    assert len(re.findall(r"\]\(\.\./rbd_ref/[\w/]+\.py#", text)) > 60


def test_what_a_file_defines() -> None:
    text = "X = 1\n\n\nclass A:\n    y: int\n\n    def f(self):\n        z = 2\n\n        def inner(): ...\n"
    assert definitions(text) == {"X": 1, "A": 4, "A.y": 5, "A.f": 7, "A.f.inner": 10}


@pytest.mark.parametrize("package", [rbd_ref, rbd_torch, rbd_jax], ids=lambda package: package.__name__)
def test_the_reference_names_every_public_name(package: object) -> None:
    text = "".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    names = [name for name in package.__all__ if name != "__version__"]  # type: ignore[attr-defined]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


def test_the_tables_of_the_playbook_are_those_of_the_other_pages() -> None:
    result = run_python(str(DOCS / "playbook_table.py"), "--check")
    assert result.returncode == 0, result.stderr


def test_docstrings_become_rest() -> None:
    """A norm is no substitution, a formula is literal, and the first colon of what is returned ends no type."""
    lines = [
        "|g| of `a|b`:",
        "",
        "    u = |g|",
        "",
        "Args:",
        "    g: its |g|.",
        "",
        "Returns:",
        "    A `Draw`: see |g|.",
    ]
    assert as_rest(lines) == [
        *("\\|g\\| of `a|b`:", "", "::", "", "    u = |g|", ""),
        *("Args:", "    g: its \\|g\\|.", ""),
        *("Returns:", "    : A `Draw`: see \\|g\\|."),
    ]


@pytest.mark.parametrize(
    ("markup", "found"),
    [
        ('<a href="other.html#here">', []),
        ('<a href="https://example.org/">', []),
        ('<a href="missing.html">', ["index.html: missing.html does not exist"]),
        ('<a href="other.html#gone">', ["index.html: other.html#gone has no anchor 'gone'"]),
        ('<img src="missing.png">', ["index.html: missing.png does not exist"]),
        ('<script src="https://cdn.example.org/x.js">', ["index.html: fetches https://cdn.example.org/x.js"]),
        ('<link rel="stylesheet" href="//example.org/x.css">', ["index.html: fetches //example.org/x.css"]),
    ],
)
def test_the_site_is_checked(tmp_path: Path, markup: str, found: list[str]) -> None:
    (tmp_path / "index.html").write_text(markup)
    (tmp_path / "other.html").write_text('<p id="here">')
    assert list(problems(tmp_path)) == found


def test_style_sheets_are_checked(tmp_path: Path) -> None:
    (tmp_path / "x.css").write_text(
        "@font-face { src: url('https://fonts.example.org/x.woff') } p { background: url(a.png) }"
    )
    assert list(problems(tmp_path)) == ["x.css: fetches https://fonts.example.org/x.woff"]
