"""Configurations: what is filled in, what is written and read again, what is refused, and what the digest is of."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbd_ref.data.datasets import STANDARDS
from rbd_ref.methods import METHODS
from rbd_ref.methods.codes import COEFFICIENTS
from rbd_ref.methods.rates import SCHEDULES
from rbd_ref.methods.settings import COMBINES, EXCHANGES, OPTIMISERS, Settings
from rbd_ref.models import networks
from rbd_ref.runs import config, presets
from rbd_ref.runs.config import Config, make, read_toml, to_toml
from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.families import FAMILIES
from rbd_ref.spec.operations import NORMALIZATIONS

FIELDS = {item.name: item for item in fields(Config)}
NET = networks.make("mlp:4-3-2")  # layers of 12 + 3 and 6 + 2 parameters


def one_sentence(error: Exception) -> bool:
    return "\n" not in str(error) and "expected" in str(error)


def network_of(c: Config) -> networks.Network:
    return networks.make(c.net, STANDARDS[c.data].shape, 10)


# Defaults.


def test_nothing_given() -> None:
    c = make({})
    assert (c.data, c.net, c.method, c.dims, c.compartments) == ("digits", "fc", "rbd", "250", "whole")
    assert (c.lr, c.epochs, c.workers, c.seed) == (config.RATES["rbd"], 40, 1, 0)
    assert config.plan(c, network_of(c).sizes) == Plan((64 * 128 + 128 + 128 * 10 + 10,), (250,))


@pytest.mark.parametrize(
    ("data", "epochs"), [("digits", 40), ("mnist", 100), ("fashion-mnist", 100), ("cifar-10", 100)]
)
def test_epochs(data: str, epochs: int) -> None:
    assert make({"data": data}).epochs == epochs
    assert make({"data": data, "epochs": 7}).epochs == 7


@pytest.mark.parametrize("ranks", [1, 5])
def test_as_many_workers_as_ranks(ranks: int) -> None:
    assert make({}, ranks).workers == ranks
    assert make({"workers": 3}, ranks).workers == 3


RATES = {  # of sgd, rbd and fpd, as in the paper or its code
    ("fc", "mnist"): (0.125, 1.0, 0.5),
    ("fc", "fashion-mnist"): (0.25, 0.5, 0.5),
    ("fc", "cifar-10"): (0.0078125, 0.25, 0.03125),
    ("cnn", "mnist"): (0.03125, 0.0625, 0.125),
    ("cnn", "fashion-mnist"): (0.0625, 0.125, 0.5),
    ("cnn", "cifar-10"): (0.015625, 0.125, 0.5),
}


@pytest.mark.parametrize(("net", "data"), RATES)
def test_rates_of_the_paper(net: str, data: str) -> None:
    found = {method: make({"net": net, "data": data, "method": method}).lr for method in METHODS}
    assert (found["sgd"], found["rbd"], found["fpd"]) == RATES[net, data]
    assert found["nes"] == found["nes-shared-batch"] == presets.NES_RATE
    assert make({"net": net, "data": data, "lr": 3}).lr == 3.0


@pytest.mark.parametrize("method", METHODS)
def test_rates_where_the_paper_has_none(method: str) -> None:
    for net, data in (("fc", "digits"), ("mlp:784-10", "mnist"), ("resnet32", "cifar-10")):
        assert make({"net": net, "data": data, "method": method}).lr == config.RATES[method]


@pytest.mark.parametrize("method", METHODS)
def test_transforms_where_none_are_given(method: str) -> None:
    """Evolution strategies normalise their losses unless they are told not to."""
    wanted = {name: ("normalised",) if name.startswith("nes") else () for name in METHODS}
    for first in METHODS:
        phases = make({"method": first, "switch": [f"5:{method}:1"]}).phases
        assert [settings.transforms for _, _, settings in phases] == [wanted[first], wanted[method]]
    assert make({"switch": [f"5:{method}:1"], "transforms": ["raw"]}).phases[1][2].transforms == ("raw",)


def test_switches_have_their_rates_filled_in() -> None:
    c = make({"net": "fc", "data": "mnist", "switch": ["5:sgd", "8:fpd:0.1"], "momentum": 0.5, "seed": 3})
    assert c.switch == ("5:sgd:0.125", "8:fpd:0.1")
    phases = [(epoch, method, settings.rate, settings.momentum) for epoch, method, settings in c.phases]
    assert phases == [(0, "rbd", 1.0, 0.5), (5, "sgd", 0.125, 0.5), (8, "fpd", 0.1, 0.5)]


def test_each_setting_reaches_the_method() -> None:
    told = {
        "momentum": 0.25,
        "redraw": 3,
        "workers": 2,
        "exchange": "shared",
        "combine": "mean",
        "transforms": ("ranks", "top:3"),
        "optimiser": "adam",
        "sigma": 0.75,
        "antithetic": True,
    }
    values = {"lr": 0.5, **told, "switch": ["1:fpd:0.5", "2:nes:0.5"]}
    assert make(values).phases == [(k, m, Settings(rate=0.5, **told)) for k, m in enumerate(("rbd", "fpd", "nes"))]


def test_integers_are_numbers_and_lists_are_tuples() -> None:
    values = {"lr": 2, "sigma": 3, "momentum": 0, "dims": 12, "transforms": ["ranks"], "switch": ("5:sgd:1",)}
    c = make({"method": "nes", **values})
    assert (c.lr, c.sigma, c.momentum, c.dims) == (2.0, 3.0, 0.0, "12")
    assert (c.transforms, c.switch) == (("ranks",), ("5:sgd:1.0",))
    assert {type(c.lr), type(c.sigma), type(c.momentum)} == {float}


# Presets.


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_is_a_configuration_with_a_plan(name: str) -> None:
    c, settings = make({"preset": name}), presets.get(name).settings
    assert {key: getattr(c, key) for key in settings} == settings
    assert c.preset == name
    found = config.plan(c, network_of(c).sizes)
    assert (found.D, found.d) == (network_of(c).D, int(str(settings.get("dims", 250))))


@pytest.mark.parametrize(
    ("name", "d"), [("rbd-10x", 7982), ("rbd-25x", 3328), ("rbd-50x", 1782), ("rbd-75x", 1018), ("fpd-10x", 7982)]
)
def test_plans_of_table_3(name: str, d: int) -> None:
    """A compartment for each of the 21 layers of ResNet-8, and the paper's d in all."""
    c = make({"preset": f"table3-resnet8-{name}"})
    found = config.plan(c, network_of(c).sizes)
    assert (found.K, found.D, found.d) == (21, 78_330, d)


def test_what_is_given_comes_after_the_preset() -> None:
    c = make({"preset": "table1-fc-mnist-rbd", "lr": 3.0, "epochs": 2})
    assert c == replace(make({"preset": "table1-fc-mnist-rbd"}), lr=3.0, epochs=2)


# Files.

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
rate = st.floats(2.0**-80, 2.0**120)  # that the mean over 2^32 workers leaves above 0
small = st.integers(1, 2**32 - 1)
SWITCH = st.lists(st.integers(1, 39), unique=True, max_size=3).flatmap(
    lambda epochs: st.tuples(
        *(st.tuples(st.just(epoch), st.sampled_from(METHODS), rate | st.none()) for epoch in sorted(epochs))
    )
)


def compatible(values: dict[str, Any]) -> dict[str, Any]:
    """Without what is refused beside feedback, or beside coefficients in fewer bits."""
    away = ("memory", "momentum") if values.get("feedback") else ()
    away += ("transforms",) if values.get("coefficients", "float32") != "float32" else ()
    return {name: value for name, value in values.items() if name not in away}


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "data": st.sampled_from(list(STANDARDS)),
    "data_dir": text,
    "mirror": text,
    "net": text,
    "augment": st.booleans(),
    "holdout": st.floats(0, 0.9),
    "method": st.sampled_from(METHODS),
    "dims": text | st.integers(1, 10**9),
    "compartments": text,
    "family": st.sampled_from([*FAMILIES, "sparse:7"]),
    "normalize": st.sampled_from(NORMALIZATIONS),
    "redraw": small,
    "lr": rate,
    "momentum": st.floats(0, 0.999),
    "schedule": st.sampled_from(SCHEDULES),
    "warmup": st.just(0) | small,
    "memory": st.floats(0, 0.999),
    "feedback": st.booleans(),
    "coefficients": st.sampled_from(COEFFICIENTS),
    "optimiser": st.sampled_from(OPTIMISERS),
    "transforms": st.lists(st.sampled_from(["raw", "ranks", "normalised", "top:3"]), max_size=3),
    "sigma": rate,
    "antithetic": st.booleans(),
    "switch": SWITCH.map(lambda many: [":".join(str(part) for part in one if part is not None) for one in many]),
    "epochs": st.integers(40, 2**32 - 1),
    "steps": small,
    "batch_size": small,
    "seed": st.integers(0, 2**64 - 1),
    "workers": small,
    "exchange": st.sampled_from(EXCHANGES),
    "combine": st.sampled_from(COMBINES),
    "backend": text,
    "gradients": text | st.just(config.REFERENCE),
    "reconstruct": st.sampled_from(["node", "replicate"]),
    "check_every": st.just(0) | small,
    "on_divergence": st.sampled_from(["stop", "resync"]),
    "timeout": rate,
    "eval_every": small,
    "log_every": small,
    "checkpoint_every": small,
    "keep": st.just(0) | small,
    "forgotten": st.lists(st.integers(0, 99).map(lambda step: f"{step}:{'0f' * 32}"), max_size=2),
    "correlation": st.booleans(),
    "preset": st.just("") | st.sampled_from(presets.names()),
}
anything = st.fixed_dictionaries({}, optional=VALUES).map(compatible)
some = anything.map(lambda values: {name: value for name, value in values.items() if name not in config.idle(values)})


def test_every_setting_is_drawn_below() -> None:
    assert set(VALUES) == set(FIELDS) - {"problem"}  # which only rbd_ref.fit sets


def exact(c: Config) -> dict[str, Any]:
    """All settings with their types, floats by all their bits."""
    return {
        name: (type(value), value.hex() if isinstance(value, float) else value) for name, value in asdict(c).items()
    }


@given(some, st.integers(1, 9))
def test_what_is_written_is_read_again(values: dict[str, Any], ranks: int) -> None:
    """Whatever was given: the configuration is complete, so no preset, no default and no number of ranks changes it."""
    c = make(values, ranks)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(to_toml(c), encoding="utf-8")
        again = make(read_toml(path), ranks + 1)
    assert exact(again) == exact(c)
    assert again.digest == c.digest


@given(some)
def test_a_configuration_is_made_of_itself(values: dict[str, Any]) -> None:
    assert make(asdict(make(values))) == make(values)


ODD = ["", " ", '"', "'", "\\", "\\n", "\n", "\r\n", "\t", "\0", "\x1b", "#", "a=b", "[x]", '"""', "ü", "\u2028", "💾"]


@pytest.mark.parametrize("odd", ODD)
def test_odd_texts_are_written_and_read(odd: str, tmp_path: Path) -> None:
    (tmp_path / "c").write_text(
        to_toml(make({"data": "mnist", "data_dir": odd, "backend": f"x{odd}y"})), encoding="utf-8"
    )
    found = read_toml(tmp_path / "c")
    assert (found["data_dir"], found["backend"]) == (odd, f"x{odd}y")


def test_a_file_has_a_line_for_each_setting_in_order() -> None:
    written = to_toml(make({"data": "mnist", "lr": 1e-05, "seed": 2**64 - 1, "transforms": ["ranks", "top:3"]}))
    unsaid = {"steps", "gradients"}  # which are as epochs say, and as the backend has them
    assert list(tomllib.loads(written)) == [name for name in FIELDS if name not in unsaid]
    head, *lines = written.splitlines()
    assert head.startswith("# ")
    assert len(lines) == len(FIELDS) - len(unsaid)
    for line in ("lr = 1e-05", "seed = 18446744073709551615", 'transforms = ["ranks", "top:3"]', "augment = true"):
        assert line in lines


FILES = {
    b"lr 2": "is no TOML .*expected lines as in method = ",
    b'method = "rbd\n': "is no TOML",
    b"lr = 1\nlr = 2": "is no TOML",
    b"seed = 01": "is no TOML",
    b'data = "\xff"': "is no TOML .*utf-8.*expected lines as in",
    b"\xff\xfel\0r\0": "is no TOML",
}


@pytest.mark.parametrize("content", FILES)
def test_files_that_are_no_toml(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(content)
    with pytest.raises(ValueError, match=FILES[content]) as caught:
        read_toml(tmp_path / "c.toml")
    assert one_sentence(caught.value)
    assert str(tmp_path / "c.toml") in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.toml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ValueError, match=rf"cannot be read \({reason}\), expected a configuration file") as caught:
            read_toml(path)
        assert one_sentence(caught.value)
        assert str(path) in str(caught.value)


# The digest.


def other(value: Any) -> Any:
    """Another value of the same type; of none, a number."""
    if value is None:
        return 1
    if isinstance(value, bool):
        return not value
    return (*value, "x") if isinstance(value, tuple) else value + ("x" if isinstance(value, str) else 1)


@pytest.mark.parametrize("name", FIELDS)
def test_the_digest_is_of_what_the_bits_depend_on(name: str) -> None:
    c = make({"transforms": ["ranks"], "switch": ["5:sgd"]})
    changed = replace(c, **{name: other(getattr(c, name))})
    assert (changed.digest != c.digest) == FIELDS[name].metadata["bits"]
    assert len(c.digest) == 64


def test_what_the_bits_depend_on() -> None:
    known = "data net augment method dims compartments family normalize redraw lr momentum optimiser transforms sigma "
    known += "coefficients antithetic switch batch_size seed workers exchange combine"
    assert {name for name, item in FIELDS.items() if item.metadata["bits"]} >= set(known.split())
    places = "data_dir mirror epochs steps eval_every log_every checkpoint_every keep correlation preset"
    assert not any(FIELDS[name].metadata["bits"] for name in places.split())


def test_settings_that_came_later_leave_the_digests_of_earlier_runs() -> None:
    """As they were before there was a schedule, a memory or a code, so that such runs can be resumed and verified."""
    before = {"data": "mnist", "dims": 100, "family": "srht", "workers": 3, "switch": ["5:sgd"], "momentum": 0.5}
    assert make({}).digest == "a3aeb852ae709877280e07defba32533f960e22e257fe2af6d15fff1da2acbfa"
    assert make(before).digest == "5f4904a23cf3e9a7a6ed4a58f07370b398779081a3eadd22403343e4d376f0e1"


def test_the_least_change_of_a_rate_is_another_digest() -> None:
    assert make({"lr": 0.1}).digest != make({"lr": 0.1 + 2**-56}).digest
    assert make({"lr": 0.1}).digest == make({"lr": 0.1}).digest


def test_every_setting_has_help() -> None:
    for item in FIELDS.values():
        assert set(item.metadata) >= {"group", "help", "bits"}
        assert item.metadata["help"]


# Compartments.

GOOD = {
    ("whole", "5"): ((23,), (5,)),
    ("whole", "each:5"): ((23,), (5,)),
    ("whole", "23"): ((23,), (23,)),
    ("even:1", "5"): ((23,), (5,)),
    ("even:4", "8"): ((6, 6, 6, 5), (2, 2, 2, 2)),
    ("even:4", "each:3"): ((6, 6, 6, 5), (3, 3, 3, 3)),
    ("even:23", "each:1"): ((1,) * 23, (1,) * 23),
    ("layer", "6"): ((15, 8), (4, 2)),
    ("layer", "each:6"): ((15, 8), (6, 6)),
    ("tensor", "each:1"): ((12, 3, 6, 2), (1, 1, 1, 1)),
    ("tensor", "12"): ((12, 3, 6, 2), (6, 2, 3, 1)),
    ("proportional:3", None): ((15, 8), (5, 2)),
    ("proportional:2.5", None): ((15, 8), (6, 3)),
    ("proportional:1e2", None): ((15, 8), (1, 1)),
    ("proportional:1", None): ((15, 8), (15, 8)),
}


@pytest.mark.parametrize(("how", "dims"), GOOD)
def test_plans(how: str, dims: str | None) -> None:
    assert config.plan(make({"compartments": how, "dims": dims}), NET.sizes) == Plan(*GOOD[how, dims])


FORM = r"compartments '{}' cannot be read, expected whole, even:K, layer, tensor or proportional:R"
BAD_COMPARTMENTS = {
    "": FORM,
    "Layer": FORM,
    "layers": FORM,
    " whole": FORM,
    "whole:3": FORM,
    "layer:2": FORM,
    "tensor:2": FORM,
    "even": FORM,
    "even:": FORM,
    "even:x": FORM,
    "even:2.5": FORM,
    "even:-1": FORM,
    "even:4:5": FORM,
    "even:0": FORM,
    "even:24": "k is 24, expected 1 <= k < 24",
    "proportional": FORM,
    "proportional:": FORM,
    "proportional:x": FORM,
    "proportional:0": FORM,
    "proportional:0.5": FORM,
    "proportional:-3": FORM,
    "proportional:nan": FORM,
    "proportional:inf": FORM,
}


@pytest.mark.parametrize("how", BAD_COMPARTMENTS)
def test_bad_compartments(how: str) -> None:
    with pytest.raises(ValueError, match=BAD_COMPARTMENTS[how].format(how)) as caught:
        config.plan(make({"compartments": how, **({} if "proportional" in how else {"dims": "5"})}), NET.sizes)
    assert one_sentence(caught.value)


DIMS = r"dims '{}' cannot be read, expected N directions in all, as in 250, or each:N"
BAD_DIMS = {
    **dict.fromkeys(["", "0", "-5", "5.0", "x", "1e3", " 5", "5 ", "each", "each:", "each:0", "each:x"], DIMS),
    **dict.fromkeys(["each:-1", "each:2:3", "total:5", "each:each:5", "Each:5"], DIMS),
    "24": "total is 24, expected",
    "1": "a total of 1 directions does not reach 2 compartments, expected at least one each",
    "each:9": "compartment 1 has d = 9, expected 1 <= d <= 8, its size",
}


@pytest.mark.parametrize("dims", BAD_DIMS)
def test_bad_dims(dims: str) -> None:
    with pytest.raises(ValueError, match=BAD_DIMS[dims].format(dims)) as caught:
        config.plan(make({"compartments": "layer", "dims": dims}), NET.sizes)
    assert one_sentence(caught.value)


def test_more_directions_than_parameters() -> None:
    with pytest.raises(ValueError, match="compartment 0 has d = 24, expected 1 <= d <= 23, its size"):
        config.plan(make({"dims": "24"}), NET.sizes)


# What is refused.

SWITCHES = {
    **dict.fromkeys(
        [
            "",
            "5",
            "5:",
            ":sgd",
            "x:sgd",
            "0:sgd",
            "-1:sgd",
            "5.5:sgd",
            "sgd:5",
            "5:sgd:x",
            "5:sgd:1:2",
            "5:sgd:nan",
            "5:sgd:",
            " 5:sgd",
        ],
        "switch '{}' cannot be read, expected EPOCH:METHOD or EPOCH:METHOD:RATE",
    ),
    "5:adam": "method to switch to 'adam' is unknown, expected one of fpd",
    "5:sgd:-1": "learning rate is -1.0, expected",
    "5:sgd:0": "learning rate is 0.0, expected a number above 0",
    "5:sgd:1e99": "learning rate is 1e.99, expected",
    "5:sgd:1-1": "5:sgd:1-1 has '1-1' for a number",
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_bad_switches(switch: str) -> None:
    with pytest.raises(ValueError, match=SWITCHES[switch].format(switch)) as caught:
        make({"switch": [switch]})
    assert one_sentence(caught.value)


@pytest.mark.parametrize("epochs", [(5, 5), (6, 5), (1, 3, 2)])
def test_switches_ascend(epochs: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"switches are at epochs \[.*\], expected them to ascend: put them in order"):
        make({"switch": [f"{epoch}:sgd" for epoch in epochs]})


WRONG = [
    (
        {"learning_rate": 1.0},
        "setting 'learning_rate' is unknown, expected some of data, .*: correct the name",
    ),
    ({"table": {"lr": 1.0}}, "setting 'table' is unknown"),
    ({"data": "minst"}, "data 'minst' is unknown, expected one of cifar-10"),
    ({"method": "adam"}, "method 'adam' is unknown, expected one of fpd"),
    ({"family": "gauss"}, "family 'gauss' is unknown"),
    ({"family": "sparse:0"}, "the window of family sparse is 0, expected"),
    ({"normalize": "l2"}, "normalize 'l2' is unknown"),
    ({"exchange": "ring"}, "exchange 'ring' is unknown"),
    ({"combine": "median"}, "combine 'median' is unknown"),
    ({"optimiser": "lion"}, "optimiser 'lion' is unknown"),
    ({"transforms": ["sign"]}, "transform 'sign' is unknown"),
    ({"transforms": ["top:0"]}, "k of top:k is 0, expected"),
    ({"lr": -1.0}, "learning rate is -1.0, expected"),
    ({"lr": float("nan")}, "learning rate is nan, expected"),
    ({"lr": float("inf")}, "learning rate is inf, expected"),
    ({"momentum": 1.0}, "momentum is 1.0, expected"),
    ({"momentum": -0.5}, "momentum is -0.5, expected"),
    ({"sigma": 0.0}, "sigma is 0.0, expected"),
    ({"redraw": 0}, "redraw is 0, expected"),
    ({"workers": -1}, "workers is -1, expected"),
    ({"epochs": -1}, "epochs is -1, expected"),
    ({"steps": -1}, "steps is -1, expected"),
    ({"batch_size": 0}, "batch_size is 0, expected"),
    ({"seed": -1}, "seed is -1, expected"),
    ({"seed": 2**64}, "seed is 18446744073709551616, expected"),
    ({"eval_every": 0}, "eval_every is 0, expected"),
    ({"log_every": 0}, "log_every is 0, expected"),
    ({"checkpoint_every": 0}, "checkpoint_every is 0, expected"),
    ({"keep": -1}, "keep is -1, expected 0 <= keep <"),
    ({"preset": "x" * 5000}, "setting preset has 5000 characters, expected 1000 at most"),
    ({"preset": "table1-fc-minst-rbd"}, "preset 'table1-fc-minst-rbd' is unknown, expected a name like"),
]


@pytest.mark.parametrize(("values", "sentence"), WRONG, ids=[sentence[:30] for _, sentence in WRONG])
def test_each_mistake_is_one_clear_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        make(values)
    assert one_sentence(caught.value)


UNFIT = {
    str: ("a text", [1.5, ["a"], None]),
    int: ("a whole number", ["1", "", True, False, 1.0, 1.5, [1], None]),
    float: ("a number", ["1", "", True, False, [1.0], None]),
    bool: ("true or false", ["true", 1, 0, 0.0, [True], None]),
    tuple: ("a list of texts", ["ranks", "", 3, ["ranks", 3], [["ranks"]], None]),
}


def unfit() -> list[tuple[str, Any, str]]:
    """(setting, value, what was expected): every setting with every value that is none for it."""
    found = []
    for name, item in FIELDS.items():
        kind, values = UNFIT[config.kind_of(item)]
        wrong = [value for value in values if value is not None or item.default is not None]
        found += [(name, value, kind) for value in wrong if name != "preset" or not value]
    return found


@pytest.mark.parametrize(("name", "value", "kind"), unfit())
def test_values_of_another_type(name: str, value: Any, kind: str) -> None:
    with pytest.raises(ValueError, match=rf"^setting {name} is .*, expected {kind}: correct it$") as caught:
        make({name: value})
    assert repr(value) in str(caught.value)


TEXTS = [
    name for name, item in FIELDS.items() if config.kind_of(item) is str and name != "dims"
]  # which may be a number


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", [3, True])
def test_texts_are_not_numbers(name: str, value: Any) -> None:
    """An unknown preset is named as such."""
    with pytest.raises(ValueError, match=rf"^(setting )?{name} (is )?{value}( is unknown)?, expected"):
        make({name: value})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lr": 10**400}, "setting lr has .* for a number"),
        ({"dims": True}, "setting dims is True, expected a text"),
        ({"data_dir": "a\udc80b"}, "expected a text that UTF-8 can hold"),
        ({"lr": 1e-50}, "learning rate is 1e-50, expected a number above 0 that a float32 can hold"),
        ({"lr": 1e39}, "learning rate is 1e.39, expected"),
        ({"momentum": 0.99999999}, "momentum is 0.99999999, expected 0 or more and, as a float32, less than 1"),
        ({"sigma": 1e-50}, "sigma is 1e-50, expected"),
    ],
)
def test_numbers_that_no_float32_can_be_and_texts_that_no_file_can_hold(settings: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        make(settings)
    assert one_sentence(caught.value)


def test_a_network_of_table_3_has_its_rate() -> None:
    assert make({"net": "resnet8", "data": "cifar-10"}).lr == 8.0
