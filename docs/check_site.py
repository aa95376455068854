"""Look at the built site: every link inside it leads somewhere, and nothing comes from another host.

    python docs/check_site.py [docs/_build/html]

Fails with one line for each link to a file or an anchor that does not exist, and for each script, style sheet, font,
picture or frame that a browser would fetch from elsewhere. Links that a reader follows may lead anywhere.
Tests: tests/test_site.py.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).parent
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
FETCHED_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "manifest"}
ELSEWHERE = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")
EXPLORABLE = "explorable/"


class Page(HTMLParser):
    """The anchors of a page, the links on it, and what a browser fetches for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what an element names."""
        found = {name: value for name, value in attrs if value}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in FETCHED and FETCHED[tag] in found:
            self.fetched.append(found[FETCHED[tag]])
        if tag == "link" and FETCHED_LINKS & set(found.get("rel", "").split()):
            self.fetched.append(found.get("href", ""))


@cache
def page_of(path: Path) -> Page:
    """A page, read once."""
    return Page(path.read_text(encoding="utf-8"))


def is_elsewhere(address: str) -> bool:
    """Whether an address is on another host."""
    return bool(urlsplit(address).netloc)


def is_inside(address: str) -> bool:
    """Whether an address is a file or anchor of the site."""
    parts = urlsplit(address)
    return not parts.scheme and not parts.netloc


def broken(site: Path, page: Path, address: str) -> str:
    """What is wrong with a link inside the site; nothing if it leads somewhere."""
    parts = urlsplit(address)
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    target = target / "index.html" if target.is_dir() else target
    if not target.exists():
        return f"{address} does not exist"
    anchor = unquote(parts.fragment)
    if anchor and target.suffix == ".html" and anchor not in page_of(target).anchors:
        return f"{address} has no anchor {anchor!r}"
    return ""


def problems(site: Path) -> Iterator[str]:
    """All that is wrong, a line each."""
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        if name.startswith("_static/"):
            continue
        page = page_of(path)
        for address in page.fetched:
            if is_elsewhere(address):
                yield f"{name}: fetches {address}"
        for address in [*page.links, *page.fetched]:
            absent = EXPLORABLE in address and not (HERE / "explorable").exists()  # comes with the explorable
            if is_inside(address) and not absent and (what := broken(site, path, address)):
                yield f"{name}: {what}"
    for path in sorted(site.rglob("*.css")):
        for address in ELSEWHERE.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site).as_posix()}: fetches {address}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path, nargs="?", default=HERE / "_build" / "html", help="folder of the site")
    site = parser.parse_args().site.resolve()
    if not (site / "index.html").exists():
        sys.exit(f"{site} has no index.html, expected the built site: run make docs")
    found = list(problems(site))
    if found:
        sys.exit("\n".join(found))
    pages = sum(1 for _ in site.rglob("*.html"))
    print(f"{pages} pages: every link inside leads somewhere, and nothing is fetched from another host")


if __name__ == "__main__":
    main()
