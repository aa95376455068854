"""The command `python -m rbd_ref.train`: flags, files and presets to a configuration, and the run of it.

Tests: tests/test_train.py.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, fields
from pathlib import Path
from typing import Any

import rbd_ref
from rbd_ref.runs import config as configs
from rbd_ref.runs import latest, presets
from rbd_ref.runs.config import Config
from rbd_ref.runs.folder import Run
from rbd_ref.runs.memory import enough_memory
from rbd_ref.runs.paths import flags_of, refuse_paths, trusted
from rbd_ref.training.beginning import Interrupted
from rbd_ref.training.command import Command, stop_on_signals
from rbd_ref.training.communicator import RanksLost, World, collectively
from rbd_ref.training.fit import EXPECTED, Job, run_job
from rbd_ref.training.logbook import stderr
from rbd_ref.training.trainer import StopRequest

DESCRIPTION = """\
Train a network along random directions that are redrawn every step and never stored.
Without any flag: random bases descent on the embedded digits, half a minute, validation 95 % or better.
"""
EXAMPLES = """\
examples:
  python -m rbd_ref.train                                   the digits, with what defaults there are
  python -m rbd_ref.train --data fashion-mnist --family srht --lr 0.5 --epochs 2 --no-augment
  python -m rbd_ref.train --preset list                     every cell of the paper's tables 1, 2 and 3
  python -m rbd_ref.train --preset table1-fc-mnist-rbd --family srht --seed 1
  python -m rbd_ref.train --switch 10:sgd                   random bases first, then SGD
  python -m rbd_ref.train --resume --out runs/digits-fc-rbd-1
  mpirun -n 16 python -m rbd_ref.train                      one worker on each of 16 ranks

A run leaves config.toml, metrics.jsonl, journal.rbd, checkpoints/, final.npz and result.json in its folder;
`python -m rbd_ref.report FOLDER -o report.html` shows it, `python -m rbd_ref.replay FOLDER --step N -o theta.npz`
rebuilds the weights of any step. Bad input ends with one sentence and status 2.
"""


def add_setting(group: Any, item: Field[Any]) -> None:
    """A flag for a setting."""
    flag, kind, text = "--" + item.name.replace("_", "-"), configs.kind_of(item), help_of(item)
    if kind is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        return
    metavar = item.metadata.get("metavar") or ("N" if kind is int else "NAME")
    if kind is tuple:
        group.add_argument(flag, action="append", default=None, help=text + "; may be repeated", metavar=metavar)
    else:
        group.add_argument(flag, type=kind, default=None, help=text, metavar=metavar)


def help_of(item: Field[Any]) -> str:
    """What a setting is, its default, and the methods it is for."""
    methods = item.metadata.get("methods")
    default = f" (default: {item.default})" if item.default else ""
    return str(item.metadata["help"]) + default + (f"; only with {', '.join(methods)}" if methods else "")


def parser() -> argparse.ArgumentParser:
    """All flags."""
    result = argparse.ArgumentParser(
        "python -m rbd_ref.train",
        usage="python -m rbd_ref.train [flags]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    groups: dict[str, Any] = {}
    for item in fields(Config):
        name = item.metadata["group"]
        groups.setdefault(name, result.add_argument_group(name) if name not in groups else groups[name])
        if not item.metadata.get("hidden"):
            add_setting(groups[name], item)
    output = groups["output"]
    output.add_argument("--out", metavar="DIR", help="folder of the run (default: a new one in runs/)")
    output.add_argument("--resume", action="store_true", help="continue the run in --out, or the newest that fits")
    output.add_argument(
        "--forget-memory",
        action="store_true",
        help="with --resume: workers start from an empty memory; not the weights of an undisturbed run",
    )
    output.add_argument("--quiet", action="store_true", help="no bar and no figures, only what goes wrong")
    start = result.add_argument_group("instead of many flags")
    start.add_argument("--preset", metavar="NAME", help="a cell of the paper's tables; `list` shows them all")
    start.add_argument(
        "--config", metavar="FILE", help="a TOML file of settings, as in a run's folder; flags come after"
    )
    result.add_argument("--version", action="version", version=f"rbd-ref {rbd_ref.__version__}")
    return result


def spoken(flags: argparse.Namespace) -> dict[str, Any]:
    """The settings named by flag."""
    return {name: value for name, value in vars(flags).items() if name in configs.FIELDS and value is not None}


def given(flags: argparse.Namespace) -> dict[str, Any]:
    """The settings named by file, by preset and by flag; of two, the later counts."""
    said = spoken(flags)
    values = configs.read_toml(Path(flags.config)) if flags.config else {}
    refuse_paths(Path(flags.config or ""), values, said)
    preset = presets.get(flags.preset).settings if flags.preset else {}
    kept = {name: value for name, value in configs.overlaid(values, preset).items() if name not in preset}
    return configs.overlaid(kept, said)  # what the preset says is known by its name


def new_folder(config: Config) -> Path:
    """runs/DATA-NET-METHOD-N with the first N that is free."""
    stem = f"{config.data}-{config.net}-{config.method}".replace(":", "-").replace("/", "-")
    number = 1
    while (latest.RUNS / f"{stem}-{number}").exists():
        number += 1
    return latest.RUNS / f"{stem}-{number}"


def configured(flags: argparse.Namespace, ranks: int) -> Config:
    """The configuration that the flags name; of a run to resume, its own with what the flags change."""
    said = given(flags)
    values = resumed_settings(flags, said) if flags.resume else said
    config = configs.make(values, ranks)
    configs.refuse_idle(asdict(config), spoken(flags))
    return config


def resumed_settings(flags: argparse.Namespace, said: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the run that is to be continued, with the flags over them; what a flag leaves no use for is left out."""
    flags.out = flags.out or str(latest.newest(spoken(flags)))
    run = Run(Path(flags.out))
    before = asdict(run.config(**trusted(run.settings(), said)))
    values = configs.overlaid(before, said)
    idle = configs.idle(values)
    return {name: value for name, value in values.items() if name in said or name not in idle}


def make_job(flags: argparse.Namespace, stop: StopRequest, ranks: int) -> Job:
    """What the flags ask for."""
    config = configured(flags, ranks)
    out = flags.out or str(new_folder(config))
    return Job(
        config,
        out=out,
        resume=flags.resume,
        forget_memory=flags.forget_memory,
        quiet=flags.quiet,
        verbose=True,
        stop=stop,
    )


def set_up(flags: argparse.Namespace, stop: StopRequest, world: World) -> Job:
    """The job, if no rank finds a fault in the flags."""
    return collectively(world.communicator, lambda: make_job(flags, stop, world.communicator.size), *EXPECTED)


def run_all(flags: argparse.Namespace, world: World) -> int:
    """The run; where ranks are lost and others are left, these continue from the journal as after --resume."""
    with stop_on_signals() as stop:
        while True:
            job = set_up(flags, stop, world)
            try:
                return report_end(job, world)
            except RanksLost as lost:
                world = world.lifecycle.recover()
                flags.out = job.out
                flags.forget_memory = False  # once is enough
                flags.resume = (Path(flags.out) / "journal.rbd").exists()
                if world.communicator.rank == 0:
                    stderr(f"{lost}; {world.communicator.size} are left and continue")


def report_end(job: Job, world: World) -> int:
    """The run, and its exit status."""
    try:
        result = run_job(job, world)
    except Interrupted as interrupted:
        sentence = f"{interrupted}: continue with {command_to_resume(job, world)}"
        return stopped(interrupted.reason, sentence, world)
    if not result.stopped:
        return 0
    name = signal.Signals(result.stopped).name
    sentence = f"stopped by {name} after step {result.step} of {result.steps}"
    return stopped(result.stopped, f"{sentence}: continue with {command_to_resume(job, world)}", world)


def command_to_resume(job: Job, world: World) -> str:
    """What goes on with a run, as it is typed."""
    ranks = world.communicator.size
    folder = Path(job.out).absolute()
    near = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    flags = ["--resume", "--out", str(near), *flags_of(asdict(job.config))]
    return (f"mpirun -n {ranks} " if ranks > 1 else "") + shlex.join(["python", "-m", "rbd_ref.train", *flags])


def stopped(number: int, sentence: str, world: World) -> int:
    """The exit status after a signal, which rank 0 says."""
    if world.communicator.rank == 0:
        stderr(sentence)
    return 128 + number


def parse(arguments: Sequence[str] | None) -> argparse.Namespace | int:
    """The flags, or 0 once the presets were listed."""
    flags = parser().parse_args(arguments)
    if flags.preset == "list":
        print(presets.listing())
        return 0
    return flags


def work(flags: argparse.Namespace, world: World) -> int:
    """The run, and its exit status."""
    with enough_memory("the settings were read"):
        return run_all(flags, world)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0, 2 after a sentence of what is wrong, or 128 + the number of the signal that ended it."""
    return Command("rbd_ref.train", parse, work, "what was completed is kept, continue with --resume").main(arguments)


if __name__ == "__main__":
    sys.exit(main())
