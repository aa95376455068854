"""The pictures of docs/analysis.md, by the commands that the page gives: `make pictures` draws them again."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from rbd_ref import train
from rbd_ref.analysis.__main__ import main as analyse

HERE = Path(__file__).parent
TRAINING = ("--family", "srht", "--epochs", "10", "--quiet")
SEARCH = ("--epochs", "5", "--high", "1000", "--lr", "1,4", "--jobs", "2")


def draw(name: str, *flags: str) -> None:
    """The picture of an analysis."""
    if analyse([name, *flags, "--picture", str(HERE / f"analysis-{name}.png")]):
        raise SystemExit(f"the analysis {name} did not end well")


def main() -> None:
    """Train a run and draw everything."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with TemporaryDirectory() as folder:
        run = f"{folder}/digits"
        if train.main([*TRAINING, "--out", run]):
            raise SystemExit("the run did not end well")
        draw("cosines")
        draw("correlation", run, "--epoch-gradients")
        draw("landscape", run)
        draw("spectrum", run)
        draw("dimension", *SEARCH, "--out", f"{folder}/dimension")


if __name__ == "__main__":
    main()
