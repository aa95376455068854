"""The page that compares runs: what it says is what the files say, whatever is in them, and it is never left half."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import rbd_ref
from rbd_ref.report import __main__ as command
from rbd_ref.report import figures, records, texts
from rbd_ref.report import page as report
from rbd_ref.runs import config as configs
from rbd_ref.runs import presets
from tools import run_python

CONFIG = {
    "data": "digits",
    "net": "fc",
    "method": "rbd",
    "dims": "250",
    "family": "srht",
    "lr": 0.5,
    "epochs": 40,
    "seed": 0,
    "augment": False,
    "switch": [],
    "preset": "",
}
RESULT = {
    "sha256": "ab" * 32,
    "step": 1480,
    "epoch": 40.0,
    "train_accuracy": 0.991,
    "validation_accuracy": 0.9625,
    "test_accuracy": 0.9528,
    "seconds": 12.34,
    "images_per_second": 4321.0,
    "D": 9610,
    "d": 250,
    "workers": 1,
    "bytes_per_step": 1000,
}
VOID = ("meta", "br", "input")


class Page(HTMLParser):
    """A page taken apart: its elements with attributes and texts; tags that do not match are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[dict[str, Any]] = []
        self.elements: list[dict[str, Any]] = []
        self.feed(text)
        self.close()
        assert [element["tag"] for element in self.open] == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"{tag} has an attribute twice"
        element = {"tag": tag, "parents": list(self.open), "text": "", **dict(attrs)}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element["text"] += data

    def all(self, tag: str, inside: dict[str, Any] | None = None, **attributes: str) -> list[dict[str, Any]]:
        """The elements of a tag with these attributes, inside another one."""
        return [
            element
            for element in self.elements
            if element["tag"] == tag
            and (inside is None or any(parent is inside for parent in element["parents"]))
            and all(element.get(key) == value for key, value in attributes.items())
        ]

    def figure(self, title: str) -> dict[str, Any]:
        """The picture of this title."""
        (heading,) = (one for one in self.all("h3") if one["text"] == title)
        return next(svg for svg in self.all("svg") if heading["parents"][-2] in svg["parents"])

    def cells(self) -> list[dict[str, str]]:
        """The table of final figures, a row for each run."""
        table = self.all("table")[0]
        heads = [cell["text"] for cell in self.all("th", table, scope="col")]
        rows = [row for row in self.all("tr", table) if self.all("td", row)]
        texts = [[cell["text"] for cell in self.all("th", row) + self.all("td", row)] for row in rows]
        return [dict(zip(heads, row, strict=True)) for row in texts]


def evaluation(epoch: float, accuracy: float, **more: object) -> dict[str, object]:
    record = {"kind": "evaluation", "step": round(37 * epoch), "epoch": epoch, "seconds": 2 * epoch}
    return {**record, "validation_accuracy": accuracy, **more}


def step(number: int, loss: float, **more: object) -> dict[str, object]:
    return {"kind": "step", "step": number, "epoch": number / 37, "seconds": number / 18, "loss": loss, **more}


def curve(epochs: int = 5) -> list[dict[str, object]]:
    steps = [step(20 * k, 2.0 / k) for k in range(1, 2 * epochs)]
    return steps + [evaluation(float(k), 0.95 - 0.6 / k) for k in range(1, epochs + 1)]


Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes the folder of a run."""

    def make(
        name: str = "run", records: Iterable[object] | None = None, result: object | None = RESULT, **config: object
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        settings = {**CONFIG, **config}
        lines = (f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in settings.items())
        (folder / "config.toml").write_text("".join(lines))
        records = curve() if records is None else records
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
        if result is not None:
            (folder / "result.json").write_text(json.dumps(result))
        return folder

    return make


def pixels(page: Page, svg: dict[str, Any], number: int | str) -> np.ndarray:
    """The points of a run's line as they are drawn."""
    (group,) = page.all("g", svg, **{"data-number": str(number)})
    (line,) = page.all("polyline", group)
    return np.array([[float(part) for part in pair.split(",")] for pair in line["points"].split()])


def values(svg: dict[str, Any], name: str, places: np.ndarray) -> np.ndarray:
    """Pixels of an axis back to values, by the scale that the figure states."""
    low, high, start, end, log = (float(part) for part in svg[f"data-{name}"].split())
    part = (places - start) / (end - start)
    return low ** (1 - part) * high**part if log else low + part * (high - low)


def drawn(page: Page, title: str, number: int | str) -> tuple[np.ndarray, np.ndarray]:
    """x and y of a run's line."""
    svg = page.figure(title)
    points = pixels(page, svg, number)
    return values(svg, "x", points[:, 0]), values(svg, "y", points[:, 1])


def test_the_page_is_whole_and_fetches_nothing(make: Make) -> None:
    text = report.build([make("a"), make("b", method="sgd"), make("c", result=None)])
    Page(text)
    assert not re.search(r"https?://|src=|url\(|@import|fetch\(|XMLHttp", text)
    assert re.findall(r'href="([^,]*)', text) == ["data:text/csv;charset=utf-8"]
    assert "default-src 'none'" in text


def test_what_is_in_files_cannot_become_markup(make: Make) -> None:
    evil = '"><script>alert(1)<\\script><img src=x onerror=alert(1)>&amp;'
    correlated = [step(20 * k, 1.0, correlation={evil: 0.1 * k}) for k in (1, 2)]
    runs = [
        make(evil, correlated, {**RESULT, "sha256": evil}, method=evil, family=evil, **{evil: evil}),
        make("b", epochs=evil, result=None, net=evil, data=evil),
    ]
    page = Page(report.build(runs))
    assert len(page.all("script")) == 1
    assert page.all("img") == []
    assert not [element for element in page.elements if any(name.startswith("on") for name in element)]
    assert {"b", "h2", "h3", "th", "td", "option", "small"} <= {
        element["tag"] for element in page.elements if evil in element["text"]
    }
    assert any(evil in group.get("data-name", "") for group in page.all("g"))


@pytest.mark.parametrize("text", ["{{ 7 * 7 }}", "{% include 'report.css' %}", "{# gone #}"])
def test_what_is_in_files_cannot_become_a_template(make: Make, text: str) -> None:
    page = Page(report.build([make("a", method=text), make("b")]))
    assert text in [cell["text"] for cell in page.all("td")]


def test_the_same_runs_give_the_same_page(make: Make) -> None:
    runs = [make("a"), make("b", seed=1)]
    code = "import sys, pathlib, rbd_ref.report.page as page; print(page.build([*map(pathlib.Path, sys.argv[1:])]))"
    pages = {run_python("-c", code, *map(str, runs), PYTHONHASHSEED=seed).stdout for seed in ("1", "2")}
    assert pages == {report.build(runs) + "\n"}


def test_lines_are_where_the_numbers_are(make: Make) -> None:
    accuracies = {1: [0.5, 0.875, 0.9], 2: [0.25, 0.3, 1.0]}
    losses = {1: [2.25, 1.5, 0.5], 2: [2.0, 1.75, 1.0]}
    runs = []
    for number in (1, 2):
        records = [evaluation(k, a) for k, a in enumerate(accuracies[number], 1)]
        lines = [step(20 * k, loss) for k, loss in enumerate(losses[number], 1)]
        runs.append(make(f"r{number}", records + lines, lr=float(number)))
    page = Page(report.build(runs))
    for number in (1, 2):
        for title, factor in (("Validation accuracy", 1), ("Validation accuracy by time", 2)):
            x, y = drawn(page, title, number)
            np.testing.assert_allclose(x, np.array([1, 2, 3]) * factor, atol=1e-3)
            np.testing.assert_allclose(y, 100 * np.array(accuracies[number]), atol=0.01)
            across, up = pixels(page, page.figure(title), number).T
            assert (np.diff(across) > 0).all()
            assert (np.diff(up) < 0).all()
        x, y = drawn(page, "Training loss", number)
        np.testing.assert_allclose(x, np.array([20, 40, 60]) / 37, atol=1e-3)
        np.testing.assert_allclose(y, losses[number], atol=1e-3)
    assert "logarithmic" not in page.figure("Training loss")["parents"][-2]["text"]


def test_a_wide_range_of_losses_is_logarithmic(make: Make) -> None:
    losses = [2.0, 0.3, 0.01, 0.001]
    page = Page(report.build([make(records=[step(k, loss) for k, loss in enumerate(losses, 1)])]))
    np.testing.assert_allclose(drawn(page, "Training loss", 1)[1], losses, rtol=1e-3)
    up = pixels(page, page.figure("Training loss"), 1)[:, 1]
    np.testing.assert_allclose(np.diff(up), -np.diff(np.log(losses)) * (up[3] - up[0]) / np.log(2000), atol=0.05)
    assert "logarithmic" in page.figure("Training loss")["parents"][-2]["text"]


def test_times_far_apart_are_logarithmic(make: Make) -> None:
    slow = [evaluation(float(k), 0.1 * k, seconds=1000.0 * k) for k in range(4)]
    page = Page(report.build([make("a"), make("b", slow, {**RESULT, "seconds": 3000.0}, lr=1.0)]))
    np.testing.assert_allclose(drawn(page, "Validation accuracy by time", 2)[0], [1000, 2000, 3000], rtol=1e-3)
    np.testing.assert_allclose(drawn(page, "Validation accuracy by time", 1)[0], [2, 4, 6, 8, 10], rtol=1e-3)


@pytest.mark.parametrize("title", ["Validation accuracy", "Training loss"])
def test_ticks_stand_at_their_numbers(make: Make, title: str) -> None:
    records = [*curve(), *(step(200 + k, 10.0**-k) for k in range(4))]
    page = Page(report.build([make(records=records)]))
    svg = page.figure(title)
    for name, place in (("x", "x"), ("y", "y")):
        marks = page.all("text", svg, **{"class": f"tick {name}"})
        assert len(marks) >= 3
        numbers = [float(mark["text"].replace(",", "")) for mark in marks]
        expected = values(svg, name, np.array([float(mark[place]) for mark in marks]))
        np.testing.assert_allclose(numbers, expected, rtol=2e-3, atol=1e-3 * max(numbers))
    assert page.all("text", svg, **{"class": "axis"})[0]["text"] == "epoch"


@given(low=st.floats(-1e6, 1e6), size=st.floats(1e-6, 1e6))
def test_ticks_are_round_few_and_around_all(low: float, size: float) -> None:
    assume(size > 1e-7 * abs(low))
    marks = figures.ticks(low, low + size)
    steps = np.diff(marks)
    assert 4 <= len(marks) <= 8
    assert marks[0] <= low + 1e-5 * steps[0]
    assert marks[-1] >= low + size - 1e-5 * steps[0]
    assert f"{steps.mean():.2e}"[:4] in ("1.00", "2.00", "5.00")
    numerals = [figures.numeral(mark) for mark in marks]
    assert len(set(numerals)) == len(marks)
    np.testing.assert_allclose([float(text.replace(",", "")) for text in numerals], marks, rtol=1e-8)


def test_numerals() -> None:
    known = {0.0: "0", 20_000.0: "20,000", 0.05: "0.05", 0.00014: "1.4e-4", -8e-5: "-8e-5", 2e6: "2e6", 37.5: "37.5"}
    assert {value: figures.numeral(value) for value in known} == known


@given(low=st.floats(1e-30, 1e6), ratio=st.floats(20, 1e30))
def test_logarithmic_ticks_are_few_and_within(low: float, ratio: float) -> None:
    marks = figures.log_ticks(low, low * ratio)
    assert 2 <= len(marks) <= 9
    assert low <= marks[0] < marks[-1] <= low * ratio


def test_long_curves_keep_their_ends_and_extremes() -> None:
    rng = np.random.default_rng(0)
    for size in (301, 1000, 99_999):
        y = rng.normal(size=size)
        y[size // 3], y[size // 2] = 50, -50
        thin = figures.thin(figures.Series("1", "run", np.arange(size) / 7, y, 2 * y))
        assert 100 < len(thin.x) <= figures.POINTS
        assert (np.diff(thin.x) > 0).all()
        index = np.rint(thin.x * 7).astype(int)
        assert {0, size // 3, size // 2, size - 1} <= set(index.tolist())
        np.testing.assert_array_equal(thin.y, y[index])
        np.testing.assert_array_equal(thin.error, 2 * y[index])


def test_short_curves_stay_as_they_are() -> None:
    series = figures.Series("1", "run", np.arange(100.0), np.arange(100.0) ** 2, np.zeros(100))
    assert figures.thin(series) is series
    assert figures.smooth(series) is series


def test_smoothing_is_a_mean_of_neighbours() -> None:
    y = np.random.default_rng(1).normal(size=1000)
    smooth = figures.smooth(figures.Series("1", "run", np.arange(1000.0), y, np.zeros(1000))).y
    np.testing.assert_allclose(smooth[500], y[490:511].mean())
    np.testing.assert_allclose([smooth[0], smooth[-1]], [y[:11].mean(), y[-11:].mean()])


def test_many_long_runs_make_a_small_page() -> None:
    rng = np.random.default_rng(2)
    x = np.arange(100_000) / 1000
    runs = [figures.Series(str(k), "run", x, 2 + rng.normal(size=x.size), 0 * x) for k in range(1, 101)]
    figure = figures.figure(figures.Frame("Loss", "loss", "epoch", noisy=True), runs)
    looks = {str(k): report.look(k - 1, 100) for k in range(1, 101)}
    text = report.environment().get_template("figure.svg.j2").render(figure=figure, looks=looks)
    assert len(text) < 180_000
    assert "running means" in text


@given(st.lists(st.floats(figures.AREA.top, figures.AREA.bottom), max_size=14))
def test_labels_at_the_ends_do_not_overlap(ends: list[float]) -> None:
    heights = figures.spread(ends)
    assert all(figures.AREA.top - 1e-9 <= height <= figures.AREA.bottom + 1e-9 for height in heights)
    assert (np.diff(sorted(heights)) > figures.LABEL_DISTANCE - 1e-9).all()
    assert len(ends) != 1 or heights == ends


def test_labels_stay_around_the_ends_that_they_belong_to() -> None:
    distance = figures.LABEL_DISTANCE
    heights = figures.spread([102.0, 100.0, 101.0, 30.0])
    np.testing.assert_allclose(heights, [101 + distance, 101 - distance, 101, 30])


def test_the_script_places_labels_where_the_figure_does(make: Make) -> None:
    script = Page(report.build([make()])).all("script")[0]["text"]
    area = figures.AREA
    assert f"[TOP, BOTTOM, MARGIN] = [{area.top:g}, {area.bottom:g}, {area.right:g}];" in script
    assert f"COLOURS = {figures.COLOURS}, DISTANCE = {figures.LABEL_DISTANCE:g};" in script
    assert figures.LABELS == 2 * figures.COLOURS


def test_labels_stand_in_the_margin_beside_all_lines(make: Make) -> None:
    short = [evaluation(float(k), 0.3) for k in (1, 2)]
    page = Page(report.build([make("a"), make("b", short, lr=1.0)]))
    svg = page.figure("Validation accuracy")
    labels = page.all("text", svg, **{"class": "end"})
    assert sorted(label["text"] for label in labels) == ["1", "2"]
    assert min(float(label["x"]) for label in labels) > figures.AREA.right
    lines = [float(pair.split(",")[0]) for line in page.all("polyline", svg) for pair in line["points"].split()]
    assert max(lines) <= figures.AREA.right


def test_numbers_that_are_none_are_left_out(make: Make) -> None:
    bad = [float("nan"), float("inf"), "many", None, 10**400, True]
    records = [step(k, loss) for k, loss in enumerate([2.0, *bad[:5], 1.5, 1.0], 1)]
    records += [evaluation(float(k), a) for k, a in enumerate([0.5, float("nan"), 0.75], 1)]
    text = report.build([make(records=records, result={**RESULT, "test_accuracy": float("nan"), "D": "x", "d": 0})])
    page = Page(text)
    np.testing.assert_allclose(drawn(page, "Training loss", 1)[1], [2.0, 1.5, 1.0], atol=1e-3)
    np.testing.assert_allclose(drawn(page, "Validation accuracy", 1)[1], [50, 75], atol=0.01)
    assert not re.search(r"nan|inf\b", " ".join(line["points"] for line in page.all("polyline")))
    row = page.cells()[0]
    assert (row["test"], row["D"], row["D / d"]) == (texts.DASH, texts.DASH, texts.DASH)


def test_the_table_of_final_figures(make: Make) -> None:
    rows = Page(report.build([make("other", seed=2), make("done", seed=10)])).cells()
    assert rows[1] == {
        "run": "1 done",
        "method": "rbd",
        "family": "srht",
        "d": "250",
        "seed": "10",
        "D": "9,610",
        "D / d": "38.4 \N{MULTIPLICATION SIGN}",
        "epochs": "40",
        "train": "99.10",
        "validation": "96.25",
        "paper": texts.DASH,
        "test": "95.28",
        "seconds": "12.3",
        "images/s": "4,321",
        "bytes a step": "1,000",
        "of SGD, 4\N{NO-BREAK SPACE}D": "38,440",
        "sha256 of theta": "ab" * 32,
    }


def test_sgd_has_no_directions(make: Make) -> None:
    row = Page(report.build([make(method="sgd")])).cells()[0]
    assert [row[name] for name in ("method", "family", "d", "D / d", "D")] == ["sgd", *3 * [texts.DASH], "9,610"]


def score(validation: float, test: float = 0.5) -> dict[str, object]:
    return {**RESULT, "validation_accuracy": validation, "test_accuracy": test, "sha256": str(validation)}


def test_the_best_is_by_validation_within_a_data_set(make: Make) -> None:
    runs = [
        make("a", result=score(0.5, test=0.99), lr=1.0),
        make("b", result=score(0.9, test=0.6), lr=2.0),
        make("c", result=score(0.7), lr=3.0),
        make("d", result=score(0.95), data="mnist"),
    ]
    page = Page(report.build(runs))
    assert [one["text"] for one in page.all("p", **{"class": "verdict"})] == [
        "The best validation accuracy is 90.00 % (test 60.00 %), of rbd · srht · d 250 · lr 2.0.",
        "The validation accuracy is 95.00 % (test 50.00 %).",
    ]
    assert [mark["text"] for mark in page.all("b") if mark["parents"][-1]["tag"] == "td"] == ["90.00", "95.00"]
    assert [one["parents"][-1]["text"].split("\n")[0] for one in page.all("em")] == [
        "1 rbd · srht · d 250 · lr 2.0 best"
    ]


def test_each_data_set_has_its_own_charts(make: Make) -> None:
    page = Page(report.build([make("a"), make("b", data="mnist"), make("c", lr=1.0)]))
    found = page.all("section")
    assert [page.all("h2", section)[0]["text"] for section in found] == ["digits", "mnist"]
    for section, numbers in zip(found, (["1", "2"], ["3"]), strict=True):
        svg = page.all("figure", section)[0]
        assert sorted(g["data-number"] for g in page.all("g", svg) if "data-number" in g) == numbers


def test_runs_that_differ_by_seed_only_are_one_curve_with_a_band(make: Make) -> None:
    accuracies = [[0.5, 0.7], [0.6, 0.8], [0.7, 0.6]]
    runs = [
        make(f"s{k}", [evaluation(e, a) for e, a in enumerate(row, 1)], score(row[-1]), seed=k, keep=k, timeout=1.0 + k)
        for k, row in enumerate(accuracies)
    ]
    page = Page(report.build([*runs, make("other", lr=3.0)]))
    _, y = drawn(page, "Validation accuracy", 2)
    np.testing.assert_allclose(y, [60, 70], atol=0.01)
    svg = page.figure("Validation accuracy")
    (band,) = page.all("polygon", svg)
    outline = np.array([pair.split(",") for pair in band["points"].split()], dtype=float)
    error = 100 * np.std(np.array(accuracies), axis=0, ddof=1) / np.sqrt(3)
    expected = [60 + error[0], 70 + error[1], 70 - error[1], 60 - error[0]]
    np.testing.assert_allclose(values(svg, "y", outline[:, 1]), expected, atol=0.01)
    items = page.all("li", page.all("ul", **{"class": "legend"})[0])
    assert "70.00 ± 5.77 %" in items[1]["text"]
    assert "3 runs: seeds 0, 1, 2" in items[1]["text"]
    assert [row["run"].split()[0] for row in page.cells()] == ["1", "2", "2", "2"]


def test_many_seeds_in_a_row_are_named_by_their_ends(make: Make) -> None:
    page = Page(report.build([make(f"s{k}", [evaluation(1.0, 0.5)], seed=k) for k in range(2, 7)]))
    assert "5 runs: seeds 2 to 6" in page.all("li", page.all("ul", **{"class": "legend"})[0])[0]["text"]


def test_a_seed_that_has_not_come_as_far_counts_as_far_as_it_has(make: Make) -> None:
    short = [evaluation(1.0, 0.4)]
    long = [evaluation(1.0, 0.6), evaluation(2.0, 0.8)]
    page = Page(report.build([make("a", short, None, seed=0), make("b", long, None, seed=1)]))
    np.testing.assert_allclose(drawn(page, "Validation accuracy", 1)[1], [50, 80], atol=0.01)
    assert "2 of 2 not finished" in page.all("li")[0]["text"]


def test_sgd_runs_are_alike_whatever_their_directions(make: Make) -> None:
    runs = [make("a", method="sgd", family="normal"), make("b", method="sgd", seed=1), make("c")]
    page = Page(report.build(runs))
    assert [one["text"] for one in page.all("b", page.all("ul", **{"class": "legend"})[0])] == [
        "sgd",
        "rbd · srht · d 250",
    ]


def test_accuracy_against_rate_and_d_where_a_sweep_varies_them(make: Make) -> None:
    grid = [(lr, d) for lr in (0.1, 1.0, 10.0) for d in ("10", "100")]
    runs = [
        make(f"{lr}-{d}-{seed}", result={**score(0.1 * place + 0.02 * seed), "d": int(d)}, lr=lr, dims=d, seed=seed)
        for place, (lr, d) in enumerate(grid, 1)
        for seed in (0, 1)
    ]
    page = Page(report.build(runs))
    x, y = drawn(page, "Validation accuracy against learning rate", "a")
    np.testing.assert_allclose(x, [0.1, 1, 10], rtol=1e-3)
    np.testing.assert_allclose(y, [21, 41, 61], atol=0.02)
    svg = page.figure("Validation accuracy against learning rate")
    assert np.ptp(np.diff(pixels(page, svg, "a")[:, 0])) < 0.05
    assert [tick["text"] for tick in page.all("text", svg, **{"class": "tick x"})] == ["0.1", "1", "10"]
    x, y = drawn(page, "Validation accuracy against d", "c")
    np.testing.assert_allclose((x, y), ([10, 100], [11, 21]), rtol=1e-3)
    letters = page.all("ul", **{"class": "letters"})
    assert [one["text"].split() for one in page.all("li", letters[0])] == [
        f"{letter} rbd · srht · d {d}".split() for letter, d in (("a", 100), ("b", 10))
    ]


def test_no_sweep_no_chart_of_one(make: Make) -> None:
    page = Page(report.build([make("a", lr=1.0), make("b", lr=2.0, family="normal")]))
    assert not [one["text"] for one in page.all("h3") if "against" in one["text"]]


def test_d_is_the_plan_s(make: Make) -> None:
    each = make("each", dims="each:8", compartments="tensor", result=None)
    shares = make("shares", compartments="proportional:100", result=None)
    text = (shares / "config.toml").read_text()
    (shares / "config.toml").write_text(
        "\n".join(line for line in text.splitlines() if not line.startswith(chr(34) + "dims"))
    )
    known = make("known", result={**RESULT, "d": 333})
    rows = {row["run"].split()[1]: row for row in Page(report.build([each, shares, known])).cells()}
    assert {name: (row["d"], row["D"]) for name, row in rows.items()} == {
        "each": ("32", "9,610"),
        "shares": ("95", "9,610"),
        "known": ("333", "9,610"),
    }


def test_filters_name_the_settings_that_differ(make: Make) -> None:
    runs = [make("a", lr=10.0), make("b", lr=2.0, seed=3), make("c", lr=2.0, family="normal", keep=5)]
    page = Page(report.build(runs))
    (form,) = page.all("form")
    found = {}
    for label in page.all("label", form):
        name, *options = label["text"].split()
        found[name] = options
    assert found == {"family": ["all", "normal", "srht"], "lr": ["all", "2.0", "10.0"]}
    choices = {item["data-number"]: item["data-choices"] for item in page.all("li") if "data-choices" in item}
    assert sorted(choices.values()) == ["0 0", "1 0", "1 1"]


def test_a_run_that_has_not_finished_shows_its_last_evaluation(make: Make) -> None:
    records = [evaluation(1.0, 0.5), evaluation(2.0, 0.8125), step(90, 1.0)]
    page = Page(report.build([make(records=records, result=None)]))
    row = page.cells()[0]
    assert (row["epochs"], row["validation"], row["test"]) == ("2 of 40", "81.25", texts.DASH)
    assert "not finished: epoch 2 of 40" in page.all("li")[0]["text"]
    counted = Page(report.build([make("counted", records, None, epochs=40, steps=100)])).cells()[0]
    assert counted["epochs"] == "2"


def test_a_run_that_has_just_begun(make: Make) -> None:
    begun = make("begun", records=[], result=None)
    (begun / "metrics.jsonl").unlink()
    page = Page(report.build([begun, make("empty", records=[], result=None, lr=1.0)]))
    assert page.all("figure") == []
    assert page.all("p")[0]["text"] == "2 runs of fc on digits; 2 have not finished."


def test_a_last_line_that_was_cut_short_does_not_count(make: Make) -> None:
    folder = make(result=None)
    whole = report.build([folder])
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write('{"kind":"evaluation","step":999,"epoch":27.0,"name":"é'.encode()[:-1])
    assert report.build([folder]) == whole


def test_kinds_and_keys_that_are_new_are_ignored(make: Make) -> None:
    more = [{"kind": "checkpoint", "step": 37, "sha256": "ab"}, {"kind": "weather", "step": 1, "loss": 9}, {"loss": 9}]
    assert report.build([make("a/run", [*curve(), *more])]) == report.build([make("b/run")])


def test_steps_done_again_after_an_interruption_count_once(make: Make) -> None:
    records = [step(1, 5.0), step(3, 4.0), step(4, 8.0), step(2, 3.5), step(3, 3.0), step(4, 2.0), step(5, 1.0)]
    x, y = drawn(Page(report.build([make(records=records)])), "Training loss", 1)
    np.testing.assert_allclose(x * 37, [1, 2, 3, 4, 5], atol=0.01)
    np.testing.assert_allclose(y, [5, 3.5, 3, 2, 1], atol=1e-2)


def test_correlation_and_spread_only_where_there_are_some(make: Make) -> None:
    titles = [one["text"] for one in Page(report.build([make("plain")])).all("h3")]
    assert not [title for title in titles if "orrelation" in title or "Spread" in title]
    records = [
        step(k, 1.0, coordinates={"std": 0.1 * k}, correlation={"whole": 0.01 * k, "tensors": -0.02 * k})
        for k in (1, 2, 3)
    ]
    page = Page(report.build([make("plain2"), make("rich", records, lr=1.0)]))
    name = "Correlation with the SGD gradient"
    expected = {"Spread of the coordinates": 0.1, f"{name}: whole": 0.01, f"{name}: tensors": -0.02}
    for title, factor in expected.items():
        np.testing.assert_allclose(drawn(page, title, 2)[1], factor * np.array([1, 2, 3]), atol=1e-3 * abs(factor))
        assert len(page.all("polyline", page.figure(title))) == 1


def test_chance_stands_beside_the_correlation(make: Make) -> None:
    records = [step(k, 1.0, correlation={"whole": 0.1, "tensors": 0.2}) for k in (1, 2)]
    page = Page(report.build([make("a", records), make("b", records, lr=1.0), make("c", method="sgd")]))
    svg = page.figure("Correlation with the SGD gradient: whole")
    (line,) = page.all("g", svg, **{"class": "reference"})
    height = re.match(r"M[\d.]+ ([\d.]+)H", page.all("path", line)[0]["d"])
    assert height is not None
    np.testing.assert_allclose(values(svg, "y", np.array(float(height[1]))), np.sqrt(250 / 9610), rtol=1e-2)
    assert (page.all("text", line)[0]["text"], line["data-groups"]) == ("√(d/D)", "1 2")
    assert page.all("g", page.figure("Correlation with the SGD gradient: tensors"), **{"class": "reference"}) == []


def preset_run(make: Make, name: str, **changes: object) -> Path:
    config = configs.make({"preset": "table1-fc-mnist-rbd", **changes})
    path = make(name)
    (path / "config.toml").write_text(configs.to_toml(config))
    return path


def test_the_figure_of_the_paper_stands_where_the_run_is_that_cell(make: Make) -> None:
    changes = [{"data": "cifar-10"}, {"epochs": 50}, {"workers": 2}, {"lr": 0.5}, {"switch": ["5:sgd"]}, {"steps": 9}]
    others = [preset_run(make, f"other{k}", **change) for k, change in enumerate(changes)]
    runs = [preset_run(make, "cell", seed=7), make("own"), *others]
    page = Page(report.build(runs))
    paper = presets.get("table1-fc-mnist-rbd").validation
    found = {row["run"].split()[1]: row["paper"] for row in page.cells()}
    assert {name for name, text in found.items() if text != texts.DASH} == {"cell"}
    assert found["cell"] == str(paper) == "93.893 ± 0.024"
    (line,) = page.all("g", **{"class": "reference"})
    assert page.all("text", line)[0]["text"] == "paper"
    cell = next(item for item in page.all("li") if "cell" in item["text"])
    assert cell["data-number"] == line["data-groups"]
    assert "paper 93.893 ± 0.024 %" in cell["text"]


def test_a_cell_needs_no_preset_s_name(make: Make) -> None:
    run = preset_run(make, "run", preset="", data="mnist", epochs=100)
    assert records.read([run]).runs[0].cell == presets.get("table1-fc-mnist-rbd")


def test_settings_that_differ_are_columns_and_the_others_are_listed(make: Make) -> None:
    switch = ["3:sgd", "5:rbd"]
    runs = [
        make("a", switch=switch, seed=1),
        make("b", switch=switch, seed=2, colour="red", correlation=True),
        make("c", switch=switch, seed=2, method="sgd"),
    ]
    page = Page(report.build(runs))
    assert [(row["method"], row["seed"], row["colour"]) for row in page.cells()] == [
        ("rbd", "1", texts.DASH),
        ("rbd", "2", "red"),
        ("sgd", "2", texts.DASH),
    ]
    (shared,) = page.all("dl")
    assert [key["text"] for key in page.all("dt", shared)] == [k for k in CONFIG if k not in ("method", "seed")]
    assert {"false", "3:sgd, 5:rbd", "0.5"} <= {value["text"] for value in page.all("dd", shared)}
    assert [one["text"] for one in page.all("b", page.all("ul")[0])] == [
        "rbd · srht · d 250",
        "rbd · srht · d 250 · colour red",
        "sgd · srht · d 250",
    ]


def test_one_run_alone(make: Make) -> None:
    page = Page(report.build([make("alone")]))
    assert page.all("h1")[0]["text"] == "Run alone"
    assert page.all("p")[0]["text"] == "1 run of fc on digits."
    assert page.all("p", **{"class": "verdict"})[0]["text"] == "The validation accuracy is 96.25 % (test 95.28 %)."
    assert page.all("form") == []
    assert [key["text"] for key in page.all("dt")] == list(CONFIG)


def test_the_first_curve_comes_before_the_legend(make: Make) -> None:
    tags = [(one["tag"], one.get("class")) for one in Page(report.build([make("a"), make("b", lr=1.0)])).elements]
    assert (
        tags.index(("figure", None)) < tags.index(("ul", "legend")) < len(tags) - 1 - tags[::-1].index(("figure", None))
    )


def test_runs_of_one_name_are_told_apart(make: Make) -> None:
    runs = [make("a/run"), make("b/run"), make("c")]
    assert [run.name for run in records.read(runs).runs] == [str(runs[0]), str(runs[1]), "c"]


def test_runs_that_ended_in_the_same_bits_are_named(make: Make) -> None:
    other = {**RESULT, "sha256": "cd" * 32}
    runs = [make("a"), make("b", result=other), make("c"), make("d", result=None), make("e", result=None)]
    assert "a and c ended in the same bits." in report.build(runs)
    assert "same bits" not in report.build(runs[1:])


def test_no_two_groups_look_alike_and_of_many_the_best_have_a_colour() -> None:
    assert len({report.look(place, 14) for place in range(14)}) == 14
    many = [report.look(place, 100) for place in range(100)]
    assert len(set(many[:7])) == 7
    assert set(many[7:]) == {"k0"}


def test_colours_are_known_in_both_schemes(make: Make) -> None:
    css = Page(report.build([make()])).all("style")[0]["text"]
    for name in ("--grey", *(f"--c{k}" for k in range(1, 8))):
        assert css.count(f"{name}: #") == 2
    assert {f"k{k}" for k in range(8)} == set(re.findall(r"^\.(k\d) { --c: ", css, flags=re.M))


def empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def spoil(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder


MISTAKES: dict[str, tuple[Callable[[Make, Path], Path], str]] = {
    "missing": (lambda make, root: root / "nowhere", "does not exist"),
    "no folder": (lambda make, root: make() / "config.toml", "is no folder"),
    "no run": (lambda make, root: empty(root / "empty"), "has no config.toml"),
    "foreign": (lambda make, root: spoil(make(), "config.toml", b"port = 80"), "names no method"),
    "long name": (lambda make, root: root / ("x" * 300), "cannot be read"),
    "toml": (lambda make, root: spoil(make(), "config.toml", b"lr = = 1"), "config.toml is not as it was written"),
    "utf-8": (lambda make, root: spoil(make(), "config.toml", b'lr = "\xff"'), "config.toml is not as it was written"),
    "middle": (
        lambda make, root: spoil(make(), "metrics.jsonl", b'{"kind":"a"}\n{"st\n{"kind":"b"}\n'),
        "metrics.jsonl, line 2,",
    ),
    "list": (
        lambda make, root: spoil(make(), "metrics.jsonl", b'{"kind":"a"}\n[]\n{"kind":"b"}\n'),
        "metrics.jsonl, line 2,",
    ),
    "result": (lambda make, root: spoil(make(), "result.json", b'{"sha'), "result.json is no JSON"),
    "number": (lambda make, root: spoil(make(), "result.json", b"3"), "result.json is no JSON object"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_cannot_be_read_is_named_and_left_out(
    mistake: str, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare, wrong = MISTAKES[mistake]
    out = tmp_path / "report.html"
    good = make("good")
    assert command.main([str(good), str(prepare(make, tmp_path)), "-o", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("rbd_ref.report: left out: ")
    assert printed.err.count("\n") == 1
    assert wrong in printed.err
    assert "expected" in printed.err
    page = Page(out.read_text())
    (left_out,) = page.all("li", page.all("details", **{"class": "left-out"})[0])
    assert left_out["text"] == printed.err.removeprefix("rbd_ref.report: left out: ").rstrip()
    assert [row["run"] for row in page.cells()] == ["1 good"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_if_nothing_can_be_read_one_sentence_and_the_old_report(
    mistake: str, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare, wrong = MISTAKES[mistake]
    out = tmp_path / "out" / "report.html"
    out.parent.mkdir()
    out.write_text("old")
    assert command.main([str(prepare(make, tmp_path)), "-o", str(out)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert wrong in printed.err
    assert "expected" in printed.err
    assert out.read_text() == "old"
    assert list(out.parent.iterdir()) == [out]


def test_a_folder_stands_for_all_runs_in_it(make: Make, tmp_path: Path) -> None:
    make("runs/b"), make("runs/a"), make("runs/deep/er/c"), make("d")
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("a file is no run, broken or not")
    (tmp_path / "runs" / ".hidden").mkdir()
    found = records.read([tmp_path / "runs", tmp_path / "d", tmp_path / "runs" / "a"])
    assert [run.name for run in found.runs] == ["a", "b", "c", "d"]
    assert len(found.left_out) == 1
    assert found.left_out[0].startswith(f"{tmp_path / 'runs' / 'notes'} is no run: it has no config.toml, expected")


@pytest.mark.parametrize("name", ["missing/report.html", "good", "good/config.toml/report.html"])
def test_a_place_that_cannot_be_written_to(
    name: str, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make("good")
    before = sorted(tmp_path.rglob("*"))
    assert command.main([str(run), "-o", str(tmp_path / name)]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert "expected" in printed.err
    assert "another" in printed.err.split(": ", 2)[-1]
    assert printed.err.endswith(" with -o\n")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_disk_that_fails_leaves_the_old_report(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    run, out = make(), tmp_path / "report.html"
    out.write_text("old")
    monkeypatch.setattr(Path, "replace", full)
    assert command.main([str(run), "-o", str(out)]) == 2
    assert "No space left" in capsys.readouterr().err
    assert out.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [out, run]


def test_what_is_no_ordinary_file_is_not_replaced(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a page for /dev/null would take its place, where the user may do that."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert command.main([str(make()), "-o", str(pipe)]) == 2
    assert "no ordinary file" in capsys.readouterr().err
    assert pipe.is_fifo()


def test_names_that_are_no_text_can_be_written(make: Make, tmp_path: Path) -> None:
    records = [step(1, 1.0, correlation={"\ud800": 0.1})]
    assert command.main([str(make("run", records)), "-o", str(tmp_path / "report.html")]) == 0
    Page((tmp_path / "report.html").read_text(encoding="utf-8"))


def test_the_command(make: Make, tmp_path: Path) -> None:
    make("a"), make("b")
    (tmp_path / "report.html").write_text("old")
    done = run_python("-m", "rbd_ref.report", "a", "b", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "The report is report.html\n", "")
    assert (tmp_path / "report.html").read_text() == report.build([tmp_path / "a", tmp_path / "b"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "report.html"]


def test_a_problem_of_one_s_own_is_shown_by_its_name_and_figures(tmp_path: Path) -> None:
    class Bowl:
        D = 30
        steps_per_epoch = 20

        def initial(self, seed: int) -> np.ndarray:
            return np.zeros(30, dtype=np.float32)

        def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
            return float((theta - 1) @ (theta - 1)) / 2, theta - 1

        def evaluate(self, theta: np.ndarray) -> dict[str, float]:
            return {"distance": float(np.linalg.norm(theta - 1))}

    result = rbd_ref.fit(rbd_ref.Config(dims=5, epochs=3, lr=1.0), Bowl(), out=tmp_path / "own")
    page = Page(report.build([tmp_path / "own"]))
    assert page.all("p")[0]["text"] == "1 run of Bowl."
    (found,) = page.all("span", **{"class": "score"})
    assert found["text"] == f"{result.values['distance']:.4g} distance"
    (rest,) = page.all("small", **{"class": "rest"})
    assert rest["text"].startswith("loss ")
    _, y = drawn(page, "distance", 1)
    assert y == pytest.approx(result.history.metrics["distance"], rel=0.02)
