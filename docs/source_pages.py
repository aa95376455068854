"""Links that leave docs/ become pages of the site: highlighted source, with an anchor at every class and function.

On GitHub `[project](../rbd_ref/spec/operations.py#project)` opens the file. Here it opens a page of the site, at the
function. A literal such as `rbd_ref/basis.py:Basis.descend` becomes a link of the same kind. A folder becomes a list
of its files. docs/explorable is copied beside the pages. Tests: tests/test_site.py, and check_site.py after a build.
"""

from __future__ import annotations

import html
import posixpath
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from definitions import definitions
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.highlighting import PygmentsBridge
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parent.parent
NAMED = re.compile(r"((?:rbd_ref|mpi|backends|examples|tests|benchmarks|docs)/[\w/.-]+\.py)(?::([\w.]+))?")
LANGUAGES = {".py": "python", ".md": "markdown", ".toml": "toml", ".json": "json"}
LONGEST = 200_000  # characters of a file that is shown
WITH_NAME = re.compile(r"\]\((\.\./[^)#\s]+\.py)#([\w.]+)\)")
INSTEAD = {"README.md": "index", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog"}  # pages of the site


def page_name(path: Path) -> str:
    """The page of a file or folder of the repository."""
    return "source/" + path.relative_to(ROOT).as_posix()


def uri(docname: str, path: Path, anchor: str = "") -> str:
    """From a page to the page of a file."""
    relative = posixpath.relpath(page_name(path) + ".html", posixpath.dirname(docname) or ".")
    return f"{relative}#{anchor}" if anchor else relative


class SourceLinks(SphinxTransform):
    """Rewrites links out of docs/, and literals that name a file, before Sphinx looks at them."""

    default_priority = 5

    def apply(self, **kwargs: Any) -> None:
        """All links of a page."""
        docname = self.env.docname
        here = Path(self.env.doc2path(docname)).parent
        for node in list(self.document.findall(addnodes.download_reference)):
            self._link(node, docname, here / node["reftarget"])
        for node in list(self.document.findall(addnodes.pending_xref)):
            if node.get("reftype") == "myst" and node.get("refdomain") == "doc":
                self._page(node, docname, Path(node["reftarget"] + ".md"))
            elif node.get("reftype") == "myst" and not node["reftarget"].startswith("#"):
                self._link(node, docname, here / node["reftarget"])
        for literal in list(self.document.findall(nodes.literal)):
            self._name(literal, docname)

    def _link(self, node: nodes.Element, docname: str, path: Path) -> None:
        """A link to a file or folder of the repository that is no page of the site."""
        path = path.resolve()
        if path.exists() and path.is_relative_to(ROOT):
            self._replace(node, docname, path, node.get("title", ""))

    def _page(self, node: nodes.Element, docname: str, path: Path) -> None:
        """A link to a page in Markdown: one outside docs/ has an absolute name."""
        if not path.is_absolute():
            return
        if path.parent == ROOT and path.name in INSTEAD:
            node["reftarget"] = INSTEAD[path.name]
            node["reftargetid"] = None
        else:
            self._link(node, docname, path)

    def _name(self, literal: nodes.literal, docname: str) -> None:
        """A literal that is the name of a file, or of something in it."""
        named = NAMED.fullmatch(literal.astext())
        if not named or isinstance(
            literal.parent, nodes.reference | addnodes.download_reference | addnodes.pending_xref
        ):
            return
        path = ROOT / named[1]
        if path.exists():
            around = nodes.inline("", "", literal.deepcopy())
            literal.replace_self(around)
            self._replace(around, docname, path, named[2] or "")

    def _replace(self, node: nodes.Element, docname: str, path: Path, anchor: str) -> None:
        """The same content as a link to the source."""
        known = getattr(self.env, "source_paths", set())
        self.env.source_paths = known | {path}  # type: ignore[attr-defined]
        node.replace_self(
            nodes.reference(
                "", "", *node.children, internal=True, refuri=uri(docname, path, anchor), classes=["source"]
            )
        )


def anchored(text: str, markup: str) -> str:
    """Highlighted Python with an anchor before each definition."""
    at: dict[int, list[str]] = {}
    for name, line in definitions(text).items():
        at.setdefault(line, []).append(name)
    head, start, body = markup.partition("<pre>")
    lines = body.split("\n")
    for number, names in at.items():
        if number <= len(lines):
            lines[number - 1] = "".join(f'<a id="{name}"></a>' for name in names) + lines[number - 1]
    return head + start + "\n".join(lines)


def file_page(path: Path) -> dict[str, Any]:
    """What the page of a file shows."""
    text = path.read_text(encoding="utf-8")[:LONGEST]
    markup = PygmentsBridge("html").highlight_block(text, LANGUAGES.get(path.suffix, "text"), force=True)
    return {"body": anchored(text, markup) if path.suffix == ".py" else markup}


def folder_page(path: Path, files: list[Path]) -> dict[str, Any]:
    """A list of links."""
    docname = page_name(path)
    rows = (f'<li><a href="{uri(docname, file)}">{html.escape(file.name)}</a></li>' for file in files)
    return {"body": f"<ul>{''.join(rows)}</ul>"}


def is_shown(path: Path) -> bool:
    """Whether a file of a folder has a page: text that people write."""
    return path.is_file() and path.suffix in LANGUAGES and not path.name.startswith("__pycache__")


def collect_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for every file and folder that some page links to."""
    linked: set[Path] = getattr(app.env, "source_paths", set())
    folders = {path: sorted(filter(is_shown, path.iterdir())) for path in linked if path.is_dir()}
    files = {path for path in linked if path.is_file()} | {file for found in folders.values() for file in found}
    for path in sorted(files | set(folders)):
        shown = folder_page(path, folders[path]) if path in folders else file_page(path)
        name = path.relative_to(ROOT).as_posix()
        body = f'<div class="source-page"><h1>{html.escape(name)}</h1>{shown["body"]}</div>'
        yield page_name(path), {"title": name, "body": body}, "page.html"


def copy_explorable(app: Sphinx, exception: Exception | None) -> None:
    """docs/explorable, as it is, in place of what an earlier build has left."""
    folder, target = Path(app.srcdir) / "explorable", Path(app.outdir) / "explorable"
    if exception is None and folder.exists():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target)


def keep_names(app: Sphinx, docname: str, source: list[str]) -> None:
    """MyST drops what follows # in a link to a file; in the link's title it is kept."""
    source[0] = WITH_NAME.sub(r'](\1 "\2")', source[0])


def merge(app: Sphinx, env: Any, docnames: list[str], other: Any) -> None:
    """What another process found."""
    env.source_paths = getattr(env, "source_paths", set()) | getattr(other, "source_paths", set())


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", keep_names)
    app.add_transform(SourceLinks)
    app.connect("html-collect-pages", collect_pages)
    app.connect("build-finished", copy_explorable)
    app.connect("env-merge-info", merge)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
