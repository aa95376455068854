"""Presets: numbers against a second transcription of the paper's tables, settings against what the package has."""

from __future__ import annotations

import re

import pytest

from rbd_ref import compartments
from rbd_ref.data import datasets as data
from rbd_ref.models import networks
from rbd_ref.runs import presets
from rbd_ref.spec import families as distributions
from rbd_ref.spec import operations

DIRECTIONS = ("dims", "compartments", "family", "normalize")
KEYS = "data net method dims compartments family normalize lr epochs batch_size augment"
MODELS = ("fc-mnist", "fc-fmnist", "fc-cifar10", "cnn-mnist", "cnn-fmnist", "cnn-cifar10")
DATA = {"mnist": "mnist", "fmnist": "fashion-mnist", "cifar10": "cifar-10"}

# Learning rates as decimals, in the order of MODELS.
RATES = {
    "table1-{}-sgd": [0.125, 0.25, 0.0078125, 0.03125, 0.0625, 0.015625],
    "table1-{}-rbd": [1, 0.5, 0.25, 0.0625, 0.125, 0.125],
    "table1-{}-fpd": [0.5, 0.5, 0.03125, 0.125, 0.5, 0.5],
    "table2-{}-bernoulli": [0.5] * 6,
    "table2-{}-uniform": [2] * 6,
    "table2-{}-normal": [0.125] * 6,
}

# Columns of the tables as printed, in the order of MODELS.
ACCURACIES = {
    "table1-{}-nes": "22.5 1.7 | 45 6 | 17.8 0.5 | 51 6 | 37 4 | 20.3 1",
    "table1-{}-fpd": "80 0.4 | 77.3 0.29 | 21.4 1.2 | 88.9 0.6 | 77.8 1.6 | 37.2 0.8",
    "table1-{}-rbd": "93.893 0.024 | 85.65 0.2 | 43.77 0.22 | 97.17 0.1 | 85.56 0.1 | 54.64 0.33",
    "table1-{}-sgd": "98.27 0.09 | 87.32 0.21 | 52.09 0.22 | 99.41 0.09 | 91.95 0.18 | 81.4 0.4",
    "table2-{}-bernoulli": "77.5 0.4 | 76 0.6 | 29.12 0.33 | 67 6 | 65.9 3.3 | 28.5 0.6",
    "table2-{}-uniform": "89.61 0.29 | 81.7 0.14 | 36.52 0.2 | 87 6 | 77.8 1.9 | 41 1.4",
    "table2-{}-normal": "94.95 0.11 | 85.26 0.2 | 42.6 0.5 | 96.75 0.18 | 83.8 0.7 | 52.3 0.9",
}

# name, lr, d, training accuracy, validation accuracy, correlation
RESNET = """
sgd      4  -     88.89 0.13  83.84 0.34  -     -
rbd-10x  8  7982  73.34 0.03  70.26 0.02  0.42  0.18
rbd-25x  8  3328  70.37 0.03  70.37 0.01  0.40  0.20
rbd-50x  8  1782  67.73 0.02  65.42 0.02  0.38  0.22
rbd-75x  8  1018  65.08 0.03  62.44 0.04  0.38  0.23
fpd-10x  8  7982  58.46 0.01  58.35 0.04  0.379 0.007
"""

# Table 1's accuracies as fractions of SGD's, which the paper prints beside them.
FRACTIONS = {
    "nes": [0.23, 0.52, 0.34, 0.51, 0.4, 0.25],
    "fpd": [0.81, 0.89, 0.41, 0.89, 0.85, 0.46],
    "rbd": [0.96, 0.98, 0.84, 0.98, 0.93, 0.67],
}


def column(pattern: str) -> list[presets.Preset]:
    return [presets.get(pattern.format(model)) for model in MODELS]


def test_names() -> None:
    names = presets.names()
    assert len(names) == 72
    assert [sum(name.startswith(f"table{n}-") for name in names) for n in (1, 2, 3)] == [48, 18, 6]
    others = {f"table3-resnet8-{line.split()[0]}" for line in RESNET.strip().splitlines()}
    cells = {pattern.format(model) for pattern in ACCURACIES for model in MODELS}
    assert set(names) == cells | {f"{name}-plain" for name in cells if name.startswith("table1-")} | others
    for name in names:
        assert (presets.get(name).name, presets.get(name).table) == (name, int(name[5]))


@pytest.mark.parametrize("pattern", RATES)
def test_learning_rates(pattern: str) -> None:
    assert [preset.settings["lr"] for preset in column(pattern)] == RATES[pattern]


def test_where_learning_rates_are_from() -> None:
    assert [preset.rate for preset in column("table1-{}-rbd")] == [
        "released code",
        "paper",
        "released code",
        "released code",
        "paper",
        "paper",
    ]
    assert {preset.rate for preset in column("table1-{}-fpd") + column("table2-{}-normal")} == {"paper"}
    assert {preset.rate for preset in column("table1-{}-sgd")} == {"paper x 32"}
    ours = {name for name in presets.names() if presets.get(name).rate.startswith("ours, ")}
    nes = {f"table1-{model}-nes{suffix}" for model in MODELS for suffix in ("", "-plain")}
    assert ours == nes | {"table3-resnet8-fpd-10x"}


def test_plain_presets_differ_by_augmentation_alone() -> None:
    for name in presets.names():
        if name.endswith("-plain"):
            plain, published = presets.get(name), presets.get(name.removesuffix("-plain"))
            assert plain.settings == published.settings | {"augment": False}
            assert (plain.rate, plain.validation) == (published.rate, published.validation)


def test_nes_has_one_rate_to_tune() -> None:
    assert [preset.settings["lr"] for preset in column("table1-{}-nes")] == [presets.NES_RATE] * 6


@pytest.mark.parametrize("pattern", ACCURACIES)
def test_accuracies(pattern: str) -> None:
    printed = [tuple(float(x) for x in cell.split()) for cell in ACCURACIES[pattern].split("|")]
    assert [preset.validation for preset in column(pattern)] == printed
    assert {(preset.training, preset.correlation) for preset in column(pattern)} == {(None, None)}


@pytest.mark.parametrize("method", FRACTIONS)
def test_accuracies_are_the_printed_fractions_of_sgd(method: str) -> None:
    pairs = zip(column(f"table1-{{}}-{method}"), column("table1-{}-sgd"), strict=True)
    fractions = [a.validation.mean / b.validation.mean for a, b in pairs]
    assert fractions == pytest.approx(FRACTIONS[method], abs=0.0056)


@pytest.mark.parametrize("line", RESNET.strip().splitlines())
def test_table_3(line: str) -> None:
    name, lr, d, *numbers = line.split()
    preset = presets.get(f"table3-resnet8-{name}")
    assert preset.settings["lr"] == float(lr)
    assert preset.settings["epochs"] == 80
    assert preset.settings.get("compartments", "-") == ("-" if name == "sgd" else "layer")
    assert d == preset.settings.get("dims", "-")
    training, validation, correlation = zip(numbers[::2], numbers[1::2], strict=True)
    assert preset.training == tuple(map(float, training))
    assert preset.validation == tuple(map(float, validation))
    assert preset.correlation == (None if correlation == ("-", "-") else tuple(map(float, correlation)))


@pytest.mark.parametrize("name", presets.names())
def test_settings_are_complete_and_as_the_name_says(name: str) -> None:
    settings = presets.get(name).settings
    sgd = settings["method"] == "sgd"
    keys = [key for key in KEYS.split() if not (sgd and key in DIRECTIONS)]
    assert list(settings) == [*keys, *(["sigma"] if settings["method"] == "nes" else [])]
    table, net, *rest = name.removesuffix("-plain").split("-")
    assert settings["net"] == net
    assert settings["data"] == (DATA[rest[0]] if net != "resnet8" else "cifar-10")
    method = {"table1": rest[-1], "table2": "rbd", "table3": rest[0]}[table]
    family = {"bernoulli": "bernoulli-graphcore", "uniform": "uniform"}.get(rest[-1], "normal")
    assert settings["method"] == method
    assert (settings["batch_size"], settings["augment"]) == (32, not name.endswith("-plain"))
    assert type(settings["lr"]) is float
    if sgd:
        return
    assert settings["family"] == family
    assert settings["normalize"] == ("graphcore" if table == "table2" else "unit")
    if table != "table3":
        assert (settings["dims"], settings["compartments"], settings["epochs"]) == ("250", "whole", 100)


@pytest.mark.parametrize("name", presets.names())
def test_settings_are_what_the_package_has(name: str) -> None:
    """Data set, network, family and normalisation exist, and the network can be cut into such compartments."""
    settings = presets.get(name).settings
    network = networks.make(settings["net"], data.STANDARDS[settings["data"]].shape, 10)
    if settings["method"] == "sgd":
        return
    assert settings["family"] in distributions.FAMILIES
    assert settings["normalize"] in operations.NORMALIZATIONS
    total = int(settings["dims"])
    whole = settings["compartments"] == "whole"
    plan = compartments.whole(network.D, total) if whole else compartments.by_layer(network.sizes, total=total)
    assert plan.d == total


def test_settings_belong_to_the_caller() -> None:
    presets.get("table1-fc-mnist-rbd").settings["lr"] = 99.0
    assert presets.get("table1-fc-mnist-rbd").settings["lr"] == 1.0


@pytest.mark.parametrize("name", ["table1-fc-minst-rbd", "", "list", None, ["a"]])
def test_unknown_names(name: object) -> None:
    with pytest.raises(ValueError, match=r"is unknown, expected a name like .*--preset list shows them all") as caught:
        presets.get(name)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert repr(name) in str(caught.value)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="like 'table2-cnn-cifar10-uniform'"):
        presets.get("table2-cnn-cifar-10-unifrom")


def test_paper() -> None:
    for name, text in {
        "table1-fc-fmnist-rbd": "85.65 ± 0.2",
        "table1-cnn-fmnist-nes": "37 ± 4",
        "table1-fc-mnist-rbd": "93.893 ± 0.024",
        "table3-resnet8-rbd-25x": "70.37 ± 0.01",
    }.items():
        assert str(presets.get(name).validation) == text


def blocks() -> list[list[str]]:
    return [block.splitlines() for block in presets.listing().split("\n\n")]


def test_the_listing_has_every_preset_under_its_table() -> None:
    tables = blocks()[:3]
    assert [lines[0].split(":")[0] for lines in tables] == ["Table 1", "Table 2", "Table 3"]
    listed = [line.split()[0] for lines in tables for line in lines[2:]]
    assert listed == presets.names()
    assert max(len(line) for line in presets.listing().splitlines()) <= 120
    assert all(line == line.rstrip() for line in presets.listing().splitlines())


def test_the_columns_of_the_listing_are_aligned() -> None:
    """Cells begin below their heads, those of d and epochs end below them; the signs ± stand below each other."""
    for _, header, *lines in blocks()[:3]:
        for line in lines:
            for word in ("preset", "data", "net", "method", "family", "lr (from)"):
                at = header.index(word)
                assert line[at] != " "
                assert at == 0 or line[at - 2 : at] == "  "
            for word in ("  d  ", "  epochs  "):
                end = header.index(word) + len(word) - 2
                assert line[end - 1] != " "
                assert line[end : end + 2] == "  "
        assert len({line.index("±") for line in lines}) == 1


def test_lines_of_the_listing() -> None:
    lines = [re.sub(" +", " ", line) for block in blocks()[:3] for line in block]
    for expected in (
        "table1-cnn-mnist-rbd mnist cnn rbd normal 250 0.0625 (released code) 100 97.17 ± 0.1",
        "table1-fc-cifar10-sgd cifar-10 fc sgd - - 0.0078125 (paper x 32) 100 52.09 ± 0.22",
        f"table1-fc-mnist-nes mnist fc nes normal 250 {presets.NES_RATE:g} (ours, none published) 100 22.5 ± 1.7",
        "table2-fc-fmnist-bernoulli fashion-mnist fc rbd bernoulli-graphcore 250 0.5 (paper) 100 76 ± 0.6",
        "table3-resnet8-fpd-10x cifar-10 resnet8 fpd normal 7982 8 (ours, that of rbd) 80 58.35 ± 0.04",
    ):
        assert expected in lines
