"""How smooth the explorable is: frames a second of each lesson in headless Chromium, and what a frame's work takes.

    python benchmarks/explorable.py

A screen of 60 frames a second leaves 16.7 ms for a frame: steps, landscape, charts. Needs playwright and Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
sys.path.insert(0, str(DOCS))

from serving import served  # noqa: E402

WIDTHS = (1280, 390)


def measure(address: str, seconds: float) -> None:
    """Print a line for each lesson and width."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for width in WIDTHS:
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.goto(address)
            page.wait_for_selector("#badge[data-state=good]", timeout=60_000)
            for button in page.query_selector_all("#lessons button"):
                button.click()
                page.wait_for_timeout(1000 * seconds)
                frames, work = page.evaluate("[explorable.framesPerSecond(), explorable.frameWork()]")
                name = " ".join(button.inner_text().split())
                print(f"{width:5} px  {name:24} {frames:5.1f} frames/s  {work:5.2f} ms a frame")
        browser.close()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each lesson plays (default: 2)")
    seconds = parser.parse_args().seconds
    with served(DOCS / "explorable") as address:
        measure(address, seconds)


if __name__ == "__main__":
    main()
