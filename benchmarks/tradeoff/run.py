"""Accuracy against bytes: the runs. `python benchmarks/tradeoff/run.py --data DIR [--jobs 2] [--minutes 60]`

Each cell (cells.py) is trained for ten epochs without augmentation, the rate decaying to 0. Its rate is the power of
two that gives the least loss on a quarter of the training images after training on the others; then three seeds are
trained on all training images. `--set twenty` trains some for 20 epochs and `--set long` the paper's network of
CIFAR-10 for 100 epochs with the paper's augmentation, both at the rates found; `--set workers` trains with sixteen
workers. Every run that has ended is one small JSON in results/: settings, seed, curve, final figures, sha256 of theta,
machine, seconds. Runs that have ended are not repeated, so this can be stopped and started at any time; of the long
runs not even the part that was done is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from by_class import fit_by_class  # noqa: E402
from cells import BY_CLASS, Cell, cells, long_cells, rates, twenty_cells, worker_cells  # noqa: E402

RESULTS = Path(__file__).with_name("results")
TWENTY = 20
LONG = 100
SEEDS = 3
HELD_OUT = 0.25
PLAIN_START = 0.25


@dataclass(frozen=True)
class Runner:
    """Where data and unfinished runs are, when to stop, and which seeds to train."""

    data: str
    work: str
    end: float
    numbers: tuple[int, ...]

    def result(self, name: str, settings: dict[str, Any]) -> dict[str, Any] | None:
        """What a run gave, from its file or by running it; None if there is no time left."""
        path = RESULTS / f"{name}.json"
        if path.exists():
            found: dict[str, Any] = json.loads(path.read_text())
            return found
        if time.time() > self.end:
            return None
        found = self.train(name, settings)
        part = path.with_suffix(f".part{os.getpid()}")
        part.write_text(json.dumps(found) + "\n")
        part.replace(path)
        return found

    def train(self, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Run it; a rate that is too high is a result too."""
        from rbd_ref import Config, fit
        from rbd_ref.runs.files import RunError

        out = Path(self.work, name) if settings["epochs"] == LONG else None
        chosen = {key: value for key, value in settings.items() if key != BY_CLASS}
        config = Config(data_dir=self.data, checkpoint_every=1 if out else settings["epochs"], **chosen)
        began = time.perf_counter()
        try:
            if BY_CLASS in settings:
                run = fit_by_class(config)
            else:
                run = fit(config, out=out, resume=bool(out and (out / "config.toml").exists()))
        except RunError as error:
            return {"settings": settings, "diverged": str(error).split(":")[0]}
        return summary(settings, run, time.perf_counter() - began)

    def search(self, cell: Cell, suffix: str = "", **other: Any) -> float | None:
        """The best rate of a cell."""
        from rbd_ref.training.search import Search

        search = Search({}, rates(cell.start), 10)
        while wanted := search.wanted:
            for rate in wanted:
                settings = base(cell, rate, 0) | other | {"holdout": HELD_OUT}
                found = self.result(f"{cell.name}{suffix}-search-{rate:g}", settings)
                if found is None:
                    return None
                search.losses[rate] = found.get("validation_loss", float("inf"))
        return search.best

    def seeds(self, cell: Cell, rate: float | None, suffix: str = "", **other: Any) -> str:
        """All seeds of a cell at its best rate, as far as time allows; `other` settings have another name."""
        if rate is None:
            return f"{cell.name}{suffix}: no rate yet"
        found = [self.result(f"{cell.name}{suffix}-{seed}", base(cell, rate, seed) | other) for seed in self.numbers]
        shown = [f"{100 * run['validation_accuracy']:.2f}" for run in found if run and "sha256" in run]
        return f"{cell.name}{suffix}: rate {rate:g}, validation {', '.join(shown)} %"

    def finish(self, cell: Cell) -> str:
        """The search and all seeds of a cell."""
        return self.seeds(cell, self.search(cell))

    def twenty(self, cell: Cell) -> str:
        """For twice as long."""
        return self.seeds(cell, self.search(cell), "-20", epochs=TWENTY)

    def long(self, cell: Cell) -> str:
        """A hundred epochs with augmentation. The noise of plain RBD adds up over so many steps: the rate that is best
        for ten epochs ends at 29 %, so its rate is searched at this length."""
        other = {"epochs": LONG, "augment": True}
        if cell.contender == "rbd":
            low = replace(cell, start=PLAIN_START)
            return self.seeds(low, self.search(low, "-long", **other), "-long", **other)
        return self.seeds(cell, self.search(cell), "-long", **other)


def base(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
    """The settings of a run of a cell."""
    return {**cell.settings, "lr": rate, "seed": seed, "epochs": cell.epochs, "schedule": "linear", "augment": False}


def summary(settings: dict[str, Any], run: Any, seconds: float) -> dict[str, Any]:
    """What is kept of a run."""
    from llvmlite import binding

    from rbd_ref import __version__

    curve = [round(float(value), 5) for value in run.history.metrics["validation_accuracy"]]
    final = ("validation_accuracy", "test_accuracy", "validation_loss", "bytes_per_step")
    figures = {name: run.values[name] for name in final if name in run.values}
    figures["validation_loss"] = float(run.history.metrics["validation_loss"][-1])
    about = {"version": __version__, "machine": binding.get_host_cpu_name(), "seconds": round(seconds, 1)}
    return {"settings": settings, "curve": curve, **figures, "sha256": run.sha256, **about}


def one_thread() -> None:
    """Each process computes with one thread: two runs side by side are faster than one after the other."""
    os.environ["NUMBA_NUM_THREADS"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])


def main() -> int:
    """The runs that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, metavar="DIR", help="folder of the data sets")
    parser.add_argument("--work", default="runs/tradeoff", metavar="DIR", help="folder of unfinished long runs")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs side by side")
    parser.add_argument("--minutes", type=float, default=60.0, metavar="N", help="begin no run after so long")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells whose name has this in it")
    parser.add_argument("--set", default="grid", choices=("grid", "twenty", "long", "workers"), help="which cells")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="seeds 0 to N - 1 (default: %(default)s)")
    options = parser.parse_args()
    end = time.time() + 60 * options.minutes
    runner = Runner(options.data, options.work, end, tuple(range(options.seeds)))
    sets = {
        "grid": (runner.finish, cells()),
        "twenty": (runner.twenty, twenty_cells()),
        "long": (runner.long, long_cells()),
        "workers": (runner.finish, worker_cells()),
    }
    work, found = sets[options.set]
    one_thread()
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for line in pool.map(work, [each for each in found if options.only in each.name]):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
