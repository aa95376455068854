"""The command `python -m rbd_ref.train`: flags, files and presets to a configuration, and the run of it.

Tests: tests/test_train.py.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import Field, asdict, fields
from pathlib import Path
from typing import Any

import rbd_ref
from rbd_ref._launch import first_on_node
from rbd_ref.runs import config as configs
from rbd_ref.runs import presets
from rbd_ref.runs.config import Config
from rbd_ref.runs.files import RunError, SharedError
from rbd_ref.runs.folder import refuse_paths
from rbd_ref.runs.memory import enough_memory
from rbd_ref.training.communicator import RanksLost, World, collectively, find_world
from rbd_ref.training.fit import EXPECTED, Job, run_job, run_to_resume
from rbd_ref.training.logbook import stderr
from rbd_ref.training.resume import Interrupted
from rbd_ref.training.trainer import StopRequest

DESCRIPTION = """\
Train a network along random directions that are re-drawn every step and never stored.
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
    output.add_argument("--resume", action="store_true", help="continue the run in --out, to the same bits")
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
    stem = f"{config.data}-{config.net}-{config.method}".replace(":", "-")
    number = 1
    while (Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return Path("runs") / f"{stem}-{number}"


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """A request that the signals which ask a program to end are written into; the second of them ends it at once."""
    request = StopRequest()
    kinds = (signal.SIGINT, signal.SIGTERM)

    def receive(number: int, _: object) -> None:
        if request.reason:
            raise KeyboardInterrupt
        request.reason = number

    before = [signal.signal(kind, receive) for kind in kinds]
    try:
        yield request
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)


def configured(flags: argparse.Namespace, ranks: int) -> Config:
    """The configuration that the flags name; of a run to resume, its own with what the flags change."""
    said = given(flags)
    values = resumed_settings(flags, said) if flags.resume else said
    config = configs.make(values, ranks)
    configs.refuse_idle(values, spoken(flags))
    return config


def resumed_settings(flags: argparse.Namespace, said: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the run that is to be continued, with the flags over them; what a flag leaves no use for is left out."""
    run = run_to_resume(flags.out or "")
    before = asdict(run.config(**({"backend": said["backend"]} if "backend" in said else {})))
    values = configs.overlaid(before, said)
    idle = configs.idle(values)
    return {name: value for name, value in values.items() if name in said or name not in idle}


def make_job(flags: argparse.Namespace, stop: StopRequest, ranks: int) -> Job:
    """What the flags ask for."""
    config = configured(flags, ranks)
    out = flags.out or str(new_folder(config))
    return Job(config, None, out, flags.resume, quiet=flags.quiet, verbose=True, stop=stop)


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
                flags.resume = (Path(flags.out) / "journal.rbd").exists()
                if world.communicator.rank == 0:
                    stderr(f"{lost}; {world.communicator.size} are left and continue")


def report_end(job: Job, world: World) -> int:
    """The run, and its exit status."""
    try:
        result = run_job(job, world)
    except Interrupted as interrupted:
        return stopped(interrupted.reason, str(interrupted), world)
    if not result.stopped:
        return 0
    name = signal.Signals(result.stopped).name
    sentence = f"stopped by {name} after step {result.step} of {result.steps}: continue with --resume"
    return stopped(result.stopped, sentence, world)


def stopped(number: int, sentence: str, world: World) -> int:
    """The exit status after a signal, which rank 0 says."""
    if world.communicator.rank == 0:
        stderr(sentence)
    return 128 + number


def parsed(arguments: Sequence[str] | None, world: World) -> argparse.Namespace | int:
    """The flags, or the exit status where they are wrong or have been answered; rank 0 does the talking."""
    out = [sys.stdout, sys.stderr] if world.communicator.rank == 0 else [io.StringIO(), io.StringIO()]
    with redirect_stdout(out[0]), redirect_stderr(out[1]):
        try:
            flags = parser().parse_args(arguments)
            if flags.preset == "list":
                print(presets.listing())
                return 0
        except SystemExit as end:
            return int(end.code or 0)
    return flags


def command(arguments: Sequence[str] | None, world: World) -> int:
    """What one rank does."""
    flags = parsed(arguments, world)
    if isinstance(flags, int):
        return flags
    try:
        with enough_memory("the settings were read"):
            return run_all(flags, world)
    except SharedError as error:
        if world.communicator.rank == 0:
            stderr(f"rbd_ref.train: {error}")
        return 2


def on_all_ranks(arguments: Sequence[str] | None) -> int:
    """The command on the processes that were started together, which leave together."""
    world = find_world()

    def body() -> int:
        status = command(arguments, world)
        world.lifecycle.close(status)
        return status

    return world.lifecycle.abort_on_error(body)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0, 2 after a sentence of what is wrong, or 128 + the number of the signal that ended it."""
    try:
        return on_all_ranks(arguments)
    except RunError as error:
        if first_on_node():
            stderr(f"rbd_ref.train: {error}")
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads: nothing more is to be said
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        stderr("rbd_ref.train: interrupted; what was completed is kept, continue with --resume")
        return 130


if __name__ == "__main__":
    sys.exit(main())
