"""docs/explorable.png: the explorable page after some steps, for the README. `python docs/explorable_picture.py`

It needs playwright (in the extra `test`) and Debian's Chromium.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from playwright.sync_api import sync_playwright
from serving import served

DOCS = Path(__file__).parent
CHROMIUM = "/usr/bin/chromium"
SIZE = {"width": 1180, "height": 900}
LESSON = 1  # a plane in space
STEPS = 21


def take(address: str) -> None:
    """Open the lesson, take its steps, and the picture."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page(viewport=SIZE, reduced_motion="reduce")
        page.goto(address)
        page.wait_for_selector("#badge[data-state=good]")
        page.click(f"button[data-lesson='{LESSON}']")
        page.click("#reset")
        if page.inner_text("#play") == "Pause":
            page.click("#play")
        for _ in range(STEPS):
            page.click("#step")
        page.evaluate("scrollTo(0, 0)")  # a click brings its button into view
        page.mouse.move(0, 0)
        page.wait_for_timeout(300)
        page.screenshot(path=DOCS / "explorable.png")
        browser.close()


def main() -> None:
    """The command."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    with served(DOCS / "explorable") as address:
        take(address)


if __name__ == "__main__":
    main()
