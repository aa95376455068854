"""The command `python -m rbd_ref.analysis`: each analysis as a table, on request as JSON and as a picture.

Tests: tests/test_analysis.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rbd_ref._picture import empty_figure
from rbd_ref.analysis import correlation, cosines, dimension, landscape, pictures, spectrum
from rbd_ref.data.errors import DataError
from rbd_ref.runs import config as configs
from rbd_ref.runs.config import Config
from rbd_ref.runs.files import RunError, write_whole
from rbd_ref.runs.folder import Run
from rbd_ref.runs.memory import enough_memory
from rbd_ref.spec.families import FAMILIES
from rbd_ref.training.logbook import stderr
from rbd_ref.training.recorded import RecordedRun
from rbd_ref.training.table import Table, to_json

DESCRIPTION = (
    "Analyses of random directions and of runs: a table, with --json FILE as data, with --picture FILE as PNG."
)
EXAMPLES = """\
examples:
  python -m rbd_ref.analysis cosines --D 10,100,1000 --picture cosines.png
  python -m rbd_ref.analysis correlation runs/digits-fc-rbd-1 --epoch-gradients --picture correlation.png
  python -m rbd_ref.analysis landscape runs/digits-fc-rbd-1 --steps 0,100,1000 --picture landscape.png
  python -m rbd_ref.analysis dimension --data digits --method fpd --lr 1,4 --jobs 2 --out dimension
  python -m rbd_ref.analysis spectrum runs/digits-fc-rbd-1 --json spectrum.json
"""
SETTINGS = ("data", "data_dir", "net", "augment", "family", "compartments", "schedule", "epochs", "steps", "batch_size")
ERRORS = (RunError, DataError, ValueError, TypeError, ImportError, OSError)  # each with a sentence for the user


class Answer(NamedTuple):
    """What an analysis has found: as data, as lines of text, and what draws it."""

    data: Any
    text: str
    draw: Callable[[], Any]


def numbers(kind: type) -> Callable[[str], list[Any]]:
    """Numbers between commas, for argparse."""

    def read(text: str) -> list[Any]:
        try:
            return [kind(part) for part in text.split(",")]
        except ValueError:
            name = "whole numbers" if kind is int else "numbers"
            raise argparse.ArgumentTypeError(f"{text!r} cannot be read, expected {name} between commas") from None

    return read


def names(text: str) -> list[str]:
    """Names between commas."""
    return text.split(",")


def lines(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table for the eye; floats with four digits."""
    cells = [[f"{cell:.4g}" if isinstance(cell, float) else cell for cell in row] for row in rows]
    return Table("", list(columns), cells).to_text()


def opened(flags: argparse.Namespace) -> RecordedRun:
    """The run that is named."""
    changes = {"data_dir": flags.data_dir} if flags.data_dir else {}
    return RecordedRun(Run(Path(flags.run)), warn=stderr, **changes)


# The analyses


def answer_cosines(flags: argparse.Namespace) -> Answer:
    """Pairs of directions."""
    found = cosines.measure_cosines(flags.families, flags.D, flags.pairs, flags.seed)
    rows = [[p.family, p.D, p.mean, p.standard_error, p.expected, p.quantiles[0], p.quantiles[-1]] for p in found]
    text = lines(["family", "D", "mean |cos|", "error", "expected", "5 %", "95 %"], rows)
    return Answer(found, text, lambda: pictures.draw_cosines(found))


def answer_correlation(flags: argparse.Namespace) -> Answer:
    """Update and gradient."""
    found = correlation.measure_correlation(opened(flags), flags.steps, epoch_gradients=flags.epoch_gradients)
    kinds = ["measured", "expected", *(["epoch"] if flags.epoch_gradients else [])]
    columns = ["step", "method", *(f"{part}, {kind}" for part in ("whole", "tensors") for kind in kinds)]
    rows = [
        [step.step, step.method, *(_part(getattr(step, kind), part) for part in ("whole", "tensors") for kind in kinds)]
        for step in found.steps
    ]
    text = f"{lines(columns, rows)}\nsqrt(d / D) = {found.root:.4g}"
    return Answer(found, text, lambda: pictures.draw_correlation(found))


def _part(found: correlation.Cosines | None, name: str) -> float | str:
    """One of two cosines, where there are any."""
    return "" if found is None else float(getattr(found, name))


def answer_landscape(flags: argparse.Namespace) -> Answer:
    """The loss along directions."""
    grid = landscape.LandscapeGrid(flags.directions, flags.distance, flags.points, flags.batches)
    found = landscape.measure_landscape(opened(flags), flags.steps, flags.families, grid)
    rows = [[c.step, c.unit, c.family, c.mean[0], c.mean[len(c.mean) // 2], c.mean[-1]] for c in found]
    text = lines(["step", "unit", "family", "one end", "middle", "other end"], rows)
    return Answer(found, text, lambda: pictures.draw_landscape(found))


def answer_dimension(flags: argparse.Namespace) -> Answer:
    """The least d."""
    given = {name: getattr(flags, name) for name in SETTINGS}
    config = Config(**{name: value for name, value in given.items() if value is not None})
    search = dimension.DimensionSearch(
        flags.method,
        flags.share,
        flags.seeds,
        flags.low,
        flags.high,
        flags.resolution,
        tuple(flags.lr),
        tuple(flags.sgd_lr),
    )
    found = dimension.find_dimension(config, search, out=flags.out, jobs=flags.jobs)
    trials = [found.sgd, *found.trials]
    rows = [[t.d or "SGD", "" if t.lr is None else t.lr, t.mean, min(t.accuracies), max(t.accuracies)] for t in trials]
    text = f"{lines(['d', 'lr', 'accuracy', 'least', 'most'], rows)}\n{found}"
    return Answer(found, text, lambda: pictures.draw_dimension(found))


def answer_spectrum(flags: argparse.Namespace) -> Answer:
    """The gradient's energy."""
    found = spectrum.measure_spectrum(opened(flags), flags.steps, epoch_gradients=flags.epoch_gradients)
    shares = (found.tensors, found.parameters, found.energy[0], found.energy[-1], found.mean)
    rows = [list(row) for row in zip(*shares, strict=True)]
    first, last = (f"at step {found.steps[k]}" for k in (0, -1))
    text = lines(["layer: tensor", "share of D", f"of |g|^2 {first}", last, "mean"], rows)
    return Answer(found, text, lambda: pictures.draw_spectrum(found))


# The flags


def add_analysis(group: Any, name: str, text: str, answer: Callable[[argparse.Namespace], Answer]) -> Any:
    """A subcommand, with the flags that all have."""
    result = group.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    result.set_defaults(answer=answer)
    result.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    result.add_argument("--picture", type=Path, metavar="FILE", help="draw them, as PNG (needs matplotlib)")
    return result


def add_run(parser: Any) -> None:
    """The run, and its steps."""
    parser.add_argument("run", metavar="RUN", help="the run's folder, as given to rbd_ref.train --out")
    parser.add_argument(
        "--steps", type=numbers(int), metavar="N,N,...", help="which steps (default: some over the run)"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="folder of the data")


def add_families(parser: Any) -> None:
    """The families to look at."""
    known = ",".join(FAMILIES)
    parser.add_argument("--families", type=names, default=FAMILIES, metavar="NAME,...", help=f"default: {known}")


def add_epoch_gradients(parser: Any, text: str) -> None:
    """Whether gradients of whole epochs are taken."""
    parser.add_argument("--epoch-gradients", action="store_true", help=text)


def add_cosines(group: Any) -> None:
    """Its flags."""
    parser = add_analysis(group, "cosines", "|cosine| of pairs of directions against D, and its theory", answer_cosines)
    add_families(parser)
    sizes = ",".join(map(str, cosines.SIZES))
    parser.add_argument("--D", type=numbers(int), default=cosines.SIZES, metavar="N,N,...", help=f"default: {sizes}")
    parser.add_argument("--pairs", type=int, default=cosines.PAIRS, metavar="N", help="pairs for each (default: 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the directions (default: 0)")


def add_correlation(group: Any) -> None:
    """Its flags."""
    text = "cosine of update and gradient along a run, and what is to be expected"
    parser = add_analysis(group, "correlation", text, answer_correlation)
    add_run(parser)
    add_epoch_gradients(parser, "compare with the gradient of all batches of the epoch, too")


def add_landscape(group: Any) -> None:
    """Its flags."""
    default = landscape.LandscapeGrid()
    text = "loss along directions of each family, at steps of a run"
    parser = add_analysis(group, "landscape", text, answer_landscape)
    add_run(parser)
    add_families(parser)
    parser.add_argument("--directions", type=int, default=default.directions, metavar="N", help="default: 25")
    parser.add_argument("--distance", type=float, metavar="S", help="how far to go (default: half of |theta|)")
    parser.add_argument("--points", type=int, default=default.points, metavar="N", help="displacements (default: 21)")
    parser.add_argument(
        "--batches", type=int, default=default.batches, metavar="N", help="whose loss it is (default: 8)"
    )


def add_dimension(group: Any) -> None:
    """Its flags."""
    default = dimension.DimensionSearch()
    text = "intrinsic dimension: the least d that reaches a share of SGD's accuracy"
    parser = add_analysis(group, "dimension", text, answer_dimension)
    parser.add_argument("--out", default="dimension", metavar="DIR", help="folder of the runs (default: dimension)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs side by side (default: 1)")
    parser.add_argument("--method", default=default.method, metavar="NAME", help="fpd or rbd (default: fpd)")
    parser.add_argument("--share", type=float, default=default.share, metavar="X", help="of SGD's (default: 0.9)")
    parser.add_argument("--seeds", type=int, default=default.seeds, metavar="N", help="how many (default: 3)")
    parser.add_argument("--low", type=int, default=default.low, metavar="N", help="the least d (default: 1)")
    parser.add_argument("--high", type=int, metavar="N", help="the largest d (default: D)")
    parser.add_argument(
        "--resolution", type=float, default=default.resolution, metavar="X", help="end at this factor (default: 1.1)"
    )
    rates = "of which the best counts at each d (default: the method's own)"
    parser.add_argument("--lr", type=numbers(float), default=(), metavar="ETA,...", help=f"rates {rates}")
    parser.add_argument("--sgd-lr", type=numbers(float), default=(), metavar="ETA,...", help="the same of SGD")
    add_settings(parser.add_argument_group("training"))


def add_settings(group: Any) -> None:
    """Settings of runs, with the help that they have elsewhere."""
    for name in SETTINGS:
        item = configs.FIELDS[name]
        kind = configs.kind_of(item)
        flag = "--" + name.replace("_", "-")
        how = {"action": argparse.BooleanOptionalAction} if kind is bool else {"type": kind, "metavar": "VALUE"}
        default = "srht" if name == "family" else None  # its cost does not grow with d
        note = "; default: srht" if default else ""
        group.add_argument(flag, default=default, help=item.metadata["help"].replace("%", "%%") + note, **how)


def add_spectrum(group: Any) -> None:
    """Its flags."""
    text = "how much of the gradient's energy each tensor has along a run"
    parser = add_analysis(group, "spectrum", text, answer_spectrum)
    add_run(parser)
    add_epoch_gradients(parser, "take the gradient of all batches of the epoch, not of the step's")


def parser() -> argparse.ArgumentParser:
    """All analyses and their flags."""
    result = argparse.ArgumentParser(
        "python -m rbd_ref.analysis",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = result.add_subparsers(required=True, metavar="ANALYSIS")
    for add in (add_cosines, add_correlation, add_landscape, add_dimension, add_spectrum):
        add(group)
    return result


def as_data(found: Any) -> Any:
    """Dataclasses, alone or in a list, as JSON has them."""
    return [asdict(part) for part in found] if isinstance(found, list) else asdict(found)


def run(flags: argparse.Namespace) -> str:
    """The analysis, written where it was asked for; what the command says."""
    if flags.picture:
        empty_figure(1, 1)  # before the work, if matplotlib is missing
    answer: Answer = flags.answer(flags)
    if flags.json:
        content = to_json(as_data(answer.data)).encode()
        write_whole(flags.json, lambda file: file.write(content), flag="--json")
    if flags.picture:
        pictures.save(answer.draw(), flags.picture)
    return answer.text


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0, or 2 after a sentence of what is wrong."""
    flags = parser().parse_args(arguments)
    try:
        with enough_memory("the analysis was made"):
            print(run(flags))
    except ERRORS as error:
        stderr(f"rbd_ref.analysis: {error}")
        return 2
    except KeyboardInterrupt:
        stderr("rbd_ref.analysis: interrupted; runs that were completed are kept, repeat the command to continue")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
