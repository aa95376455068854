"""The configuration of a run: every setting with its default and its help, once, for flags, files and run folders.

`Config` is what `config.toml` holds, complete: the same configuration gives the same weights to the bit. Settings whose
default depends on others (rate, epochs) are None until a configuration is made, which fills them in, so that no later
default changes a run that was written down. In Python a `Config` names the settings that one cares about; `complete`
fills in the rest. A setting that would have no effect beside the others is refused (runs/meaning.py).
Tests: tests/test_config.py, tests/test_meaning.py.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rbd_ref._check import integer, member
from rbd_ref._types import TWO_32, TWO_64
from rbd_ref.backend import is_path
from rbd_ref.data.datasets import STANDARDS
from rbd_ref.methods import METHODS
from rbd_ref.methods.codes import COEFFICIENTS
from rbd_ref.methods.rates import SCHEDULES
from rbd_ref.methods.settings import COMBINES, EXCHANGES, OPTIMISERS, Settings
from rbd_ref.models.names import FORMS
from rbd_ref.models.networks import NAMES
from rbd_ref.runs import meaning, presets
from rbd_ref.runs.meaning import (
    ALONG_DIRECTIONS,
    ENCODING,
    FROM_GRADIENTS,
    FROM_LOSSES,
    PROJECTING,
    REDRAWING,
    UNRECORDED,
)
from rbd_ref.spec import compartments
from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.families import FAMILIES, parse_family
from rbd_ref.spec.operations import NORMALIZATIONS
from rbd_ref.spec.plan_names import parse_cut, parse_dims

SWITCH = re.compile(r"([1-9][0-9]*):([a-z-]+)(?::([0-9.eE+-]+))?")
FORGOTTEN = re.compile(r"([0-9]{1,10}):([0-9a-f]{64})")
COMPARTMENTS = ("whole", "even", "layer", "tensor", "proportional")
RATES = {"sgd": 0.25, "rbd": 2.0, "fpd": 2.0, "nes": 20.0, "nes-shared-batch": 20.0}  # where the paper has none
EPOCHS = {"digits": 40}  # others 100, as in the paper
DEFAULT_DIMS = "250"  # as in the paper
LENGTHS = ("epochs", "steps")
LONGEST = 1000  # characters of a setting, so that a sentence about it can be read


def option(default: Any, group: str, text: str, bits: bool = True, **more: Any) -> Any:
    """A setting: its default, the group it is shown in, its help, and whether the weights' bits depend on it.

    `more` may hold `kind` (its type, where the default is None), `methods` (those it is for, if not all), `paces`
    (whether it decides when and how often ranks exchange anything), `later` (whether it came after runs had been
    written: its default is left out of the digest, so that theirs stays), `metavar` and `hidden`."""
    return field(default=default, metadata={"group": group, "help": text, "bits": bits, **more})


def kind_of(item: Field[Any]) -> type:
    """The type of a setting's values."""
    return item.metadata.get("kind") or type(item.default)


Layers = tuple[tuple[int, ...], ...]  # the sizes of each layer's tensors
BACKENDS = "numpy, numba, torch, jax, cuda, ipu or package.module:Class"
REFERENCE = "reference"  # the gradients of rbd_ref/models, which every digest stands for that names no others


@dataclass(frozen=True)
class Config:
    """All settings of a run. None or "" stands for what its help says.

    The fields are the flags of `python -m rbd_ref.train`, whose `--help` explains each of them.

    >>> config = Config(data="digits", dims=100, family="srht", workers=4)
    >>> config.exchange, complete(config).lr
    ('independent', 2.0)
    """

    data: str = option("digits", "data and network", f"data set: {', '.join(STANDARDS)}")
    data_dir: str = option(
        "",
        "data and network",
        "folder of the data set's files (default: RBD_REF_DATA or ~/.cache/rbd_ref/data)",
        False,
        metavar="DIR",
    )
    mirror: str = option(
        "", "data and network", "address to download from instead of the usual ones", False, metavar="URL"
    )
    net: str = option("fc", "data and network", f"network: {', '.join(NAMES)}, or a list: {', '.join(FORMS)}")
    augment: bool = option(
        None,
        "data and network",
        "pad, crop, flip or brighten images as in the paper (default, where the paper does)",
        kind=bool,
    )
    holdout: float = option(
        0.0,
        "data and network",
        "share of the training images that validates in place of the validation set",
        hidden=True,
    )

    method: str = option("rbd", "method", f"one of {', '.join(METHODS)}, or package.module:make (docs/methods.md)")
    dims: str | int | None = option(
        None,
        "method",
        f"directions: N in all, split over compartments by size, or each:N (default: {DEFAULT_DIMS})",
        kind=str,
        metavar="N",
        methods=ALONG_DIRECTIONS,
    )
    compartments: str = option(
        "whole",
        "method",
        "whole, even:K, layer, tensor, or proportional:R (d = size / R)",
        metavar="HOW",
        methods=ALONG_DIRECTIONS,
    )
    family: str = option(
        "normal",
        "method",
        f"directions: {', '.join(FAMILIES)} (sparse:S for one in S)",
        methods=ALONG_DIRECTIONS,
    )
    normalize: str = option("unit", "method", f"one of {', '.join(NORMALIZATIONS)}", methods=ALONG_DIRECTIONS)
    redraw: int = option(1, "method", "draw new directions every N steps", metavar="N", methods=REDRAWING)
    lr: float = option(
        None, "method", "learning rate (default: the paper's, or one for the method)", kind=float, metavar="ETA"
    )
    momentum: float = option(0.0, "method", "momentum from 0 up to below 1; of coordinates in fpd", metavar="MU")
    schedule: str = option(
        "constant",
        "method",
        f"of the learning rate over the run: {', '.join(SCHEDULES)} (the last two end with 0)",
        later=True,
    )
    warmup: int = option(
        0, "method", "steps in which the learning rate rises to its value", metavar="STEPS", later=True
    )
    memory: float = option(
        0.0,
        "method",
        "each worker projects a running average of its gradients in which the past counts BETA, from 0 up to below 1",
        metavar="BETA",
        methods=PROJECTING,
        later=True,
    )
    feedback: bool = option(
        False,
        "method",
        "error feedback: each worker keeps what of its gradients was not sent yet; takes SGD's learning rate",
        methods=PROJECTING,
        later=True,
    )
    coefficients: str = option(
        "float32",
        "method",
        f"how they are sent: {', '.join(COEFFICIENTS)}; in 8 bits or 1 each, with a scale for each compartment",
        methods=ENCODING,
        later=True,
    )
    optimiser: str = option("plain", "method", f"of fpd's coordinates: {', '.join(OPTIMISERS)}", methods=("fpd",))
    transforms: tuple[str, ...] = option(
        (),
        "method",
        "of coordinates, in order: raw, ranks, normalised, top:K; of losses in nes, where normalised is the default",
        metavar="NAME",
        methods=ALONG_DIRECTIONS,
    )
    sigma: float = option(
        1.0, "method", "length of nes' perturbations along unit directions", metavar="S", methods=FROM_LOSSES
    )
    antithetic: bool = option(False, "method", "nes looks in both senses of every direction", methods=FROM_LOSSES)
    switch: tuple[str, ...] = option(
        (), "method", "from epoch E on another method, with its own rate: E:METHOD or E:METHOD:ETA", metavar="E:METHOD"
    )

    epochs: int | None = option(
        None,
        "length",
        "passes over the training set (default: 40 for digits, else 100, unless steps are given)",
        False,
        kind=int,
        metavar="N",
        paces=True,
    )
    steps: int | None = option(
        None,
        "length",
        "stop after N steps; of both, what comes first",
        False,
        kind=int,
        metavar="N",
        paces=True,
    )
    batch_size: int = option(32, "length", "images a worker takes a step", metavar="N")
    seed: int = option(0, "length", "of weights, order, augmentation and directions", metavar="N")

    workers: int = option(None, "workers", "logical workers (default: the number of ranks)", kind=int, metavar="N")
    exchange: str = option(
        "independent", "workers", f"how their bases relate: {', '.join(EXCHANGES)}", methods=ALONG_DIRECTIONS
    )
    combine: str = option("sum", "workers", f"of their updates: {', '.join(COMBINES)}")
    reconstruct: str = option(
        "node",
        "workers",
        "ranks of a node share the work of rebuilding updates (node) or not (replicate)",
        False,
        paces=True,
    )
    check_every: int = option(0, "workers", "compare a hash of the weights every N steps (0: never)", False, paces=True)
    on_divergence: str = option(
        "stop", "workers", "if they differ: stop, or resync from the journal", False, paces=True
    )
    timeout: float = option(600.0, "workers", "seconds after which a silent rank is given up", False, metavar="S")
    backend: str = option("numba", "workers", f"makes directions: {BACKENDS}", False)
    gradients: str | None = option(
        None,
        "workers",
        f"computes the network's gradients: {REFERENCE} (this package), or the backend torch, jax or "
        f"package.module:Class (default: the backend's own where they are faster, else {REFERENCE})",
        kind=str,
        methods=FROM_GRADIENTS,
    )

    eval_every: int = option(1, "output", "evaluate every N epochs", False, metavar="N")
    log_every: int = option(20, "output", "write a line of metrics every N steps", False, metavar="N")
    checkpoint_every: int = option(1, "output", "write a checkpoint every N epochs", False, metavar="N", paces=True)
    keep: int = option(2, "output", "checkpoints to keep beside the last; older ones are removed", False, metavar="N")
    forgotten: tuple[str, ...] = option(
        (),
        "output",
        "STEP:CHAIN after which the workers forgot what they had kept; set by --forget-memory",
        False,
        hidden=True,
    )
    correlation: bool = option(False, "output", "measure the cosine of update and SGD gradient", False)
    preset: str = option("", "output", "the preset that the settings are from", False, hidden=True)
    problem: str = option("", "output", "what tells a problem of the caller's own; set by rbd_ref.fit", hidden=True)

    @classmethod
    def from_preset(cls, name: str, **changes: Any) -> Config:
        """The settings of a cell of the paper's tables, but for these changes.

        >>> Config.from_preset("table1-fc-mnist-rbd", family="srht").lr
        1.0
        """
        return make({"preset": name, **changes})

    def settings(self, method: str, rate: float) -> Settings:
        """What a method of the run is told."""
        return Settings(
            rate,
            momentum=self.momentum,
            redraw=self.redraw,
            workers=self.workers,
            exchange=self.exchange,
            combine=self.combine,
            transforms=self.transforms or (("normalised",) if method in FROM_LOSSES else ()),
            optimiser=self.optimiser,
            sigma=self.sigma,
            antithetic=self.antithetic,
            memory=self.memory,
            feedback=self.feedback,
            coefficients=self.coefficients if method in ENCODING else "float32",
        )

    @property
    def phases(self) -> list[tuple[int, str, Settings]]:
        """(epoch, method, settings) of each part of the run."""
        parts = [(0, self.method, self.lr), *(parse_switch(self, text) for text in self.switch)]
        return [(epoch, method, self.settings(method, rate)) for epoch, method, rate in parts]

    @property
    def decisive(self) -> dict[str, Any]:
        """The settings that the weights' bits depend on: the length of the run too, where the rate goes by it, and who
        computes gradients, if that is not the reference."""
        lengths = LENGTHS if self.schedule != "constant" else ()
        known = (item.name for item in fields(self) if item.metadata["bits"] or item.name in lengths)
        named = {name: getattr(self, name) for name in known}
        if named["gradients"] in (None, REFERENCE):
            del named["gradients"]
        return named

    @property
    def digest(self) -> str:
        """sha256 of all settings that the weights' bits depend on."""
        absent = {name for name, item in FIELDS.items() if item.metadata.get("later")}
        known = {name: x for name, x in self.decisive.items() if name not in absent or x != FIELDS[name].default}
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()

    @property
    def shared(self) -> dict[str, Any]:
        """The settings that all ranks must have in common: those of the bits, and of how often ranks exchange.

        Ranks may compute their workers' gradients by unlike means, unless one rank has to repeat those of all."""
        known = (item for item in fields(self) if item.metadata["bits"] or item.metadata.get("paces"))
        values = {item.name: getattr(self, item.name) for item in known}
        methods = meaning.methods_of(values)
        keeps = self.memory or self.feedback or any(map(is_path, methods))
        if not keeps and not set(UNRECORDED) & set(methods):
            del values["gradients"]
        return values


FIELDS = {item.name: item for item in fields(Config)}


def default_rate(config: Config, method: str) -> float:
    """That of the first preset of this network, data set and method, if there is one; feedback takes that of sgd, and
    so does a method of a third party."""
    if is_path(method) or (config.feedback and method in PROJECTING):
        method = "sgd"
    wanted = {"data": config.data, "net": config.net, "method": method.removesuffix("-shared-batch")}
    for preset in presets.PRESETS.values():
        if wanted.items() <= preset.settings.items():
            return float(str(preset.settings["lr"]))
    return RATES[method]


def parse_switch(config: Config, text: str) -> tuple[int, str, float]:
    """Epoch, method and rate of `E:METHOD` or `E:METHOD:ETA`."""
    found = SWITCH.fullmatch(text)
    if found is None:
        raise ValueError(
            f"switch {text!r} cannot be read, expected EPOCH:METHOD or EPOCH:METHOD:RATE with an epoch from 1 up, "
            "as in 5:sgd or 5:sgd:0.1"
        )
    epoch, method, rate = found.groups()
    member("method to switch to", method, METHODS)
    return int(epoch), method, _number(text, rate) if rate else default_rate(config, method)


def _length(value: Any) -> int:
    """Characters that a value has when it is shown."""
    try:
        return len(value if isinstance(value, str) else repr(value))
    except ValueError:  # Python does not show whole numbers of thousands of digits
        return sys.maxsize


def _number(name: str, value: Any) -> float:
    """`value` as a float."""
    try:
        return float(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{name} has {value!r} for a number, expected one as in 0.5: correct it") from error


def _fits(item: Field[Any], value: Any) -> Any:
    """`value` as the type of the setting, or a sentence."""
    if (length := _length(value)) > LONGEST:
        raise ValueError(f"setting {item.name} has {length} characters, expected {LONGEST} at most: shorten it")
    wanted = kind_of(item)
    if value is None and item.default is None:
        return None
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return _number(f"setting {item.name}", value)
    if wanted is tuple and isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return tuple(value)
    if item.name == "dims" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and any("\ud800" <= sign <= "\udfff" for sign in value):
        raise ValueError(f"setting {item.name} is {value!r}, expected a text that UTF-8 can hold: rename it")
    if type(value) is not wanted:
        name = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false"}
        raise ValueError(
            f"setting {item.name} is {value!r}, expected {name.get(wanted.__name__, 'a list of texts')}: correct it"
        )
    return value


def _checked(config: Config) -> Config:
    """The configuration, if its names and numbers are known ones; sizes are checked when the network is there."""
    parse_family(config.family)
    member("normalize", config.normalize, NORMALIZATIONS)
    for name, low, high in (
        ("seed", 0, TWO_64),
        ("epochs", 1, TWO_32),
        ("steps", 1, TWO_32),
        ("workers", 1, TWO_32),
        ("batch_size", 1, TWO_32),
        ("eval_every", 1, TWO_32),
        ("log_every", 1, TWO_32),
        ("checkpoint_every", 1, TWO_32),
        ("keep", 0, TWO_32),
        ("check_every", 0, TWO_32),
        ("warmup", 0, TWO_32),
    ):
        if getattr(config, name) is not None:
            integer(name, getattr(config, name), low, high)
    if not 0 <= config.holdout < 1:
        raise ValueError(f"holdout is {config.holdout}, expected a share from 0 up to below 1: choose another")
    member("schedule", config.schedule, SCHEDULES)
    member("reconstruct", config.reconstruct, ("node", "replicate"))
    member("on_divergence", config.on_divergence, ("stop", "resync"))
    if not 0 < config.timeout < float("inf"):
        raise ValueError(f"timeout is {config.timeout}, expected a number of seconds above 0: choose another")
    if wrong := [text for text in config.forgotten if not FORGOTTEN.fullmatch(text)]:
        raise ValueError(
            f"forgotten {wrong[0]!r} cannot be read, expected a step and the journal's chain value after it: leave it "
            "to --forget-memory"
        )
    _check_switches(config)
    return config


def _check_switches(config: Config) -> None:
    """Refuse switches that do not ascend, and those that would never come."""
    epochs = [epoch for epoch, _, _ in config.phases]
    if epochs != sorted(set(epochs)):
        raise ValueError(f"switches are at epochs {epochs[1:]}, expected them to ascend: put them in order")
    if config.epochs is not None and epochs[-1] >= config.epochs:
        raise ValueError(
            f"the run has {config.epochs} epochs and would never come to switch {config.switch[-1]}, expected an "
            "earlier one: lower its epoch, or raise epochs"
        )


def overlaid(before: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with later ones over them; of epochs and steps the later counts, both only if given together.

    >>> overlaid({"epochs": 100, "lr": 1.0}, {"steps": 10})
    {'lr': 1.0, 'steps': 10}
    """
    ends = any(more.get(name) is not None for name in LENGTHS)
    return {**{name: value for name, value in before.items() if not (ends and name in LENGTHS)}, **more}


def _given(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings in `values`, and all settings with those of the preset and the defaults under them.

    What a preset says and another method has no use for is left out: nobody asked for it."""
    unknown = sorted(set(values) - set(FIELDS))
    if unknown:
        raise ValueError(f"setting {unknown[0]!r} is unknown, expected some of {', '.join(FIELDS)}: correct the name")
    given = {name: _fits(FIELDS[name], value) for name, value in values.items()}
    before = presets.get(given["preset"]).settings if given.get("preset") else {}
    defaults = {name: item.default for name, item in FIELDS.items()}
    found = {**defaults, **overlaid(before, given)}
    stale = [name for name in before if name not in given and meaning.idle(FIELDS[name], found)]
    return given, {**found, **{name: defaults[name] for name in stale}}


def filled(values: Mapping[str, Any]) -> dict[str, Any]:
    """All settings: some that are given, over those of the preset and the defaults."""
    return _given(values)[1]


def idle(values: Mapping[str, Any]) -> dict[str, str]:
    """Those of some settings that would have no effect beside the others, each with what it would need.

    >>> idle({"method": "rbd", "sigma": 2.0, "redraw": 5})
    {'sigma': 'method nes or nes-shared-batch and not rbd'}
    """
    given, found = _given(values)
    return {name: why for name in _changed(given, found) if (why := meaning.idle(FIELDS[name], found))}


def without_effect(values: Mapping[str, Any]) -> dict[str, str]:
    """`idle`, and those settings with it that are as they would be by default."""
    given, found = _given(values)
    return {name: why for name in given if (why := meaning.idle(FIELDS[name], found))}


def _changed(given: Iterable[str], found: Mapping[str, Any]) -> list[str]:
    """Those settings that are not as they would be by default."""
    return [name for name in given if found[name] != FIELDS[name].default]


def refuse_idle(found: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse those settings among `names` that have no effect beside all others, which are `found`."""
    for name in names:
        if why := meaning.idle(FIELDS[name], found):
            raise ValueError(f"{name} is {found[name]!r} and would have no effect, expected {why}: leave {name} out")


def make(values: Mapping[str, Any], ranks: int = 1) -> Config:
    """The complete configuration of some settings: others have their defaults, those of the preset come before."""
    given, found = _given(values)
    config = Config(**found)
    if not config.problem:
        member("data", config.data, STANDARDS)
    if not is_path(config.method):
        member("method", config.method, METHODS)
    switches = [parse_switch(config, text) for text in config.switch]
    complete = _checked(
        replace(
            config,
            lr=_or(config.lr, default_rate(config, config.method)),
            epochs=_or(config.epochs, _default_epochs(config)),
            workers=_or(config.workers, ranks),
            dims=_or(config.dims, None if _no_directions(found) else DEFAULT_DIMS),
            augment=_or(config.augment, meaning.is_augmented(config.data)),
            switch=tuple(f"{epoch}:{method}:{rate!r}" for epoch, method, rate in switches),
        )
    )
    refuse_idle(found, _changed(given, found))
    return complete


def _no_directions(found: Mapping[str, Any]) -> bool:
    """Whether no method is known to ask for a number of directions."""
    along = set(ALONG_DIRECTIONS) & set(meaning.methods_of(found))
    return not along or bool(meaning.idle(FIELDS["dims"], found))


def _or(value: Any, default: Any) -> Any:
    """The value, or the default where none was given."""
    return default if value is None else value


def complete(config: Config, ranks: int = 1) -> Config:
    """The configuration with every default filled in, checked; `ranks` is the default number of workers."""
    return make({item.name: getattr(config, item.name) for item in fields(Config)}, ranks)


def _default_epochs(config: Config) -> int | None:
    """40 for digits, 100 for the paper's data sets, none where steps are given; of one's own problem nobody knows."""
    if config.steps is not None:
        return None
    if config.problem and config.epochs is None:
        raise ValueError("neither steps nor epochs is given, expected one for a problem of your own: add steps=1000")
    return EPOCHS.get(config.data, 100)


def toml_line(name: str, value: Any) -> str:
    """A setting as a line of TOML."""
    if isinstance(value, float):
        return f"{name} = {value!r}"
    return f"{name} = " + json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def to_toml(config: Config) -> str:
    """All settings as TOML, a line each; what is None is left out."""
    lines = ["# A run of rbd_ref.train: `python -m rbd_ref.train --config THIS` gives the same weights to the bit."]
    lines += [toml_line(name, value) for name, value in asdict(config).items() if value is not None]
    return "\n".join(lines) + "\n"


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}), expected a configuration file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f'{path} is no TOML ({error}), expected lines as in method = "rbd": correct it') from error


def plan(config: Config, layers: Layers) -> Plan:
    """The compartments and their numbers of directions, of parameters whose layers have tensors of these sizes."""
    D = integer("D, the number of parameters,", sum(sum(layer) for layer in layers), 1, TWO_32)
    wanted = parse_dims(min(int(DEFAULT_DIMS), D) if config.dims is None else config.dims)  # None: nobody has said
    cut = parse_cut(config.compartments, COMPARTMENTS)
    if cut.kind == "whole":
        return compartments.whole(D, wanted.number)
    if cut.kind == "proportional":
        return compartments.proportional([sum(layer) for layer in layers], cut.number)
    dims = {"d" if wanted.each else "total": wanted.number}
    if cut.kind == "even":
        return compartments.even(D, int(cut.number), **dims)
    return (compartments.by_layer if cut.kind == "layer" else compartments.by_tensor)(layers, **dims)
