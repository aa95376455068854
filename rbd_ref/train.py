"""The command `python -m rbd_ref.train`: flags, files and presets to a configuration, and the run of it.

Tests: tests/test_train.py.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, TypeVar, cast

import rbd_ref
from rbd_ref.data.errors import DataError
from rbd_ref.runs import config as configs
from rbd_ref.runs import folder as runs
from rbd_ref.runs import presets
from rbd_ref.runs.config import Config
from rbd_ref.runs.files import RunError, SharedError
from rbd_ref.runs.folder import Run
from rbd_ref.training.communicator import Exchange, RanksLost, find
from rbd_ref.training.experiment import Replica
from rbd_ref.training.logbook import Logbook, stderr
from rbd_ref.training.trainer import Log, Silence, Stopped, resumed, train

T = TypeVar("T")
PATIENCE = 600.0  # seconds, at least, that ranks wait for each other before the first step: kernels are compiled there

DESCRIPTION = """\
Train a network along random directions that are re-drawn every step and never stored.
Without any flag: random bases descent on the embedded digits, half a minute, 95 % or better.
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
    flag, default, text = "--" + item.name.replace("_", "-"), item.default, item.metadata["help"]
    shown = f" (default: {default})" if default else ""
    more = {"metavar": item.metadata["metavar"]} if "metavar" in item.metadata else {}
    if isinstance(default, bool):
        group.add_argument(
            flag, action=argparse.BooleanOptionalAction, default=None, help=text + ("" if not default else " (default)")
        )
    elif isinstance(default, tuple):
        group.add_argument(flag, action="append", default=None, help=text + "; may be repeated", **more)
    else:
        metavar = more or {"metavar": {"int": "N"}.get(type(default).__name__, "NAME")}
        group.add_argument(flag, type=type(default), default=None, help=text + shown, **metavar)


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
        if item.name != "preset":
            add_setting(groups[name], item)
    output = groups["output"]
    output.add_argument("--out", metavar="DIR", help="folder of the run (default: a new one in runs/)")
    output.add_argument("--resume", action="store_true", help="go on with the run in --out, to the same bits")
    output.add_argument("--quiet", action="store_true", help="no bar and no figures, only what goes wrong")
    start = result.add_argument_group("instead of many flags")
    start.add_argument("--preset", metavar="NAME", help="a cell of the paper's tables; `list` shows them all")
    start.add_argument(
        "--config", metavar="FILE", help="a TOML file of settings, as in a run's folder; flags come after"
    )
    result.add_argument("--version", action="version", version=f"rbd-ref {rbd_ref.__version__}")
    return result


def given(flags: argparse.Namespace) -> dict[str, Any]:
    """The settings named by file, by preset and by flag; of two, the later counts."""
    names = {item.name for item in fields(Config)}
    said = {name: value for name, value in vars(flags).items() if name in names and value is not None}
    values = configs.read_toml(Path(flags.config)) if flags.config else {}
    preset = presets.get(flags.preset).settings if flags.preset else {}
    return {**values, **preset, **said}


def new_folder(config: Config) -> Path:
    """runs/DATA-NET-METHOD-N with the first N that is free."""
    stem = f"{config.data}-{config.net}-{config.method}".replace(":", "-")
    number = 1
    while (Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return Path("runs") / f"{stem}-{number}"


@contextmanager
def asked_to_stop() -> Iterator[list[int]]:
    """A list that the signals which ask a program to end are put into; the second of them ends it at once."""
    received: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM)

    def receive(number: int, _: object) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt

    before = [signal.signal(kind, receive) for kind in kinds]
    try:
        yield received
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)


def old_run(flags: argparse.Namespace, ranks: int) -> tuple[Run, Config]:
    """The run to go on with, and its configuration with what of it may be changed."""
    if not flags.out:
        raise RunError("--resume has no folder, expected --out DIR with that of the run")
    run = Run(Path(flags.out))
    before = run.config()
    values = {item.name: getattr(before, item.name) for item in fields(Config)}
    config = configs.make({**values, **given(flags)}, ranks)
    if config.digest != before.digest:
        changed = [
            item.name
            for item in fields(Config)
            if item.metadata["bits"] and getattr(config, item.name) != getattr(before, item.name)
        ]
        raise RunError(
            f"{run.folder} is a run of another configuration: {', '.join(changed)} would change, expected the same: "
            "leave the flag out, or start a new run in another folder"
        )
    return run, config


def begin(replica: Replica, run: Run | None, flags: argparse.Namespace, exchange: Exchange) -> tuple[Any, Logbook]:
    """The state to start from and the book to write in: of a new run, or (a `run` is given) of one to go on with."""
    if run is None:
        folder = Path(flags.out) if flags.out else new_folder(replica.config)
        return replica.start(), Logbook(replica, runs.create(folder, replica.config), exchange, quiet=flags.quiet)
    if not runs.begun(run):
        run.journal.unlink(missing_ok=True)
        return replica.start(), Logbook(replica, run, exchange, quiet=flags.quiet)
    found = resumed(replica, run)
    for text in [*found.said, f"{run.folder} goes on after step {found.state.t} of {replica.steps}"]:
        if not flags.quiet:
            stderr(text)
    runs.write_text(run.folder / "config.toml", configs.to_toml(replica.config))
    runs.cut_metrics(run, found.state.t)
    return found.state, Logbook(replica, run, exchange, found, flags.quiet)


def together(exchange: Exchange, body: Callable[[], T]) -> T:
    """What `body` gives on this rank; where it finds a fault on any, all ranks end, and the fault is said once."""
    fault, value = None, None
    try:
        value = body()
    except (RunError, DataError, ValueError, TypeError, OSError) as error:
        fault = str(error)
    if faults := exchange.agree(fault):
        raise SharedError("\n".join(faults))
    return cast(T, value)


def prepared(flags: argparse.Namespace, exchange: Exchange) -> tuple[Run | None, Replica]:
    """The run to go on with, if one is, and the replica of the configuration."""
    run, config = old_run(flags, exchange.ranks) if flags.resume else (None, configs.make(given(flags), exchange.ranks))
    replica = Replica(config)
    replica.use_threads(exchange.threads)
    return run, replica


def same_everywhere(exchange: Exchange, config: Config) -> None:
    """Refuse ranks that would train something else."""
    digests = [config.digest, exchange.spread(config.digest)]
    if digests[0] != digests[1]:
        raise RunError(f"rank {exchange.rank} has another configuration than rank 0: give all ranks the same flags")


def set_up(flags: argparse.Namespace, exchange: Exchange) -> tuple[Replica, Any, Log]:
    """Replica, first state and log; what is wrong is said before anything is written."""
    run, replica = together(exchange, lambda: prepared(flags, exchange))
    c = replica.config
    exchange.options(max(c.timeout, PATIENCE), c.reconstruct, "")
    together(exchange, lambda: same_everywhere(exchange, c))
    together(exchange, lambda: exchange.in_turn(lambda: replica.problem))
    if exchange.ranks > 1:
        together(exchange, lambda: exchange.in_turn(replica.rehearse))
    first = exchange.rank == 0
    state, log = together(exchange, lambda: begin(replica, run, flags, exchange) if first else (None, Silence()))
    folder = exchange.spread(str(log.run.folder.absolute()) if isinstance(log, Logbook) else "")
    exchange.options(c.timeout, c.reconstruct, folder)
    flags.out = folder
    return replica, exchange.spread(state), log


def run_once(flags: argparse.Namespace, exchange: Exchange, received: list[int]) -> int:
    """From flags to the end of the run; the exit status."""
    replica, state, log = set_up(flags, exchange)
    with log:
        try:
            state = train(replica, exchange, log, state, lambda: max(received, default=0))
        except Stopped as stop:
            number, t = stop.args
            name = signal.Signals(number).name
            log.say(f"stopped by {name} after step {t} of {replica.steps}: go on with --resume")
            return 128 + int(number)
        log.finish(state)
    return 0


def run_all(flags: argparse.Namespace, exchange: Exchange) -> int:
    """The run; where ranks are lost and others are left, these go on from the journal as after --resume."""
    with asked_to_stop() as received:
        while True:
            try:
                return run_once(flags, exchange, received)
            except RanksLost as lost:
                exchange.recover()
                flags.resume = bool(flags.out) and (Path(flags.out) / "journal.rbd").exists()
                if exchange.rank == 0:
                    stderr(f"{lost}; {exchange.ranks} are left and go on")


def parsed(arguments: Sequence[str] | None, exchange: Exchange) -> argparse.Namespace | int:
    """The flags, or the exit status where they are wrong or have been answered; rank 0 does the talking."""
    out = [sys.stdout, sys.stderr] if exchange.rank == 0 else [io.StringIO(), io.StringIO()]
    with redirect_stdout(out[0]), redirect_stderr(out[1]):
        try:
            flags = parser().parse_args(arguments)
            if flags.preset == "list":
                print(presets.listing())
                return 0
        except SystemExit as end:
            return int(end.code or 0)
    return flags


def command(arguments: Sequence[str] | None, exchange: Exchange) -> int:
    """What one rank does."""
    flags = parsed(arguments, exchange)
    if isinstance(flags, int):
        return flags
    try:
        return run_all(flags, exchange)
    except SharedError as error:
        if exchange.rank == 0:
            stderr(f"rbd_ref.train: {error}")
        return 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0, 2 after a sentence of what is wrong, or 128 + the number of the signal that ended it."""
    try:
        exchange = find()
        return exchange.guard(lambda: command(arguments, exchange))
    except RunError as error:
        stderr(f"rbd_ref.train: {error}")
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads: nothing more is to be said
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        stderr("rbd_ref.train: interrupted; what was completed is kept, go on with --resume")
        return 130


if __name__ == "__main__":
    sys.exit(main())
