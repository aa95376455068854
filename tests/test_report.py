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
from rbd_ref.report import figures
from rbd_ref.report import page as report
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
VOID = ("meta", "br")


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


def pixels(page: Page, svg: dict[str, Any], number: int) -> np.ndarray:
    """The points of a run's line as they are drawn."""
    (group,) = (one for one in page.all("g", svg) if one["class"] == f"run r{number}")
    (line,) = page.all("polyline", group)
    return np.array([[float(part) for part in pair.split(",")] for pair in line["points"].split()])


def values(svg: dict[str, Any], name: str, places: np.ndarray) -> np.ndarray:
    """Pixels of an axis back to values, by the scale that the figure states."""
    low, high, start, end, log = (float(part) for part in svg[f"data-{name}"].split())
    part = (places - start) / (end - start)
    return low ** (1 - part) * high**part if log else low + part * (high - low)


def drawn(page: Page, title: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    """x and y of a run's line."""
    svg = page.figure(title)
    points = pixels(page, svg, number)
    return values(svg, "x", points[:, 0]), values(svg, "y", points[:, 1])


def test_the_page_is_whole_and_fetches_nothing(make: Make) -> None:
    text = report.build([make("a"), make("b", method="sgd"), make("c", result=None)])
    Page(text)
    assert not re.search(r"https?://|src=|href=|url\(|@import|fetch\(|XMLHttp", text)
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
    assert page.all("b", page.all("ul")[0])[0]["text"] == evil
    assert {"dt", "dd", "h3"} <= {element["tag"] for element in page.elements if evil in element["text"]}
    assert [group["data-name"] for group in page.all("g", page.figure("Training loss"))] == [evil, "b"]


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
        runs.append(make(f"r{number}", records + [step(20 * k, loss) for k, loss in enumerate(losses[number], 1)]))
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
    assert "logarithmic" not in page.figure("Training loss")["parents"][-1]["text"]


def test_a_wide_range_of_losses_is_logarithmic(make: Make) -> None:
    losses = [2.0, 0.3, 0.01, 0.001]
    page = Page(report.build([make(records=[step(k, loss) for k, loss in enumerate(losses, 1)])]))
    np.testing.assert_allclose(drawn(page, "Training loss", 1)[1], losses, rtol=1e-3)
    up = pixels(page, page.figure("Training loss"), 1)[:, 1]
    np.testing.assert_allclose(np.diff(up), -np.diff(np.log(losses)) * (up[3] - up[0]) / np.log(2000), atol=0.05)
    assert "logarithmic" in page.figure("Training loss")["parents"][-1]["text"]


def test_times_far_apart_are_logarithmic(make: Make) -> None:
    slow = [evaluation(float(k), 0.1 * k, seconds=1000.0 * k) for k in range(4)]
    page = Page(report.build([make("a"), make("b", slow, {**RESULT, "seconds": 3000.0})]))
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
        thin = figures.thin(figures.Series(1, "run", np.arange(size) / 7, y))
        assert 100 < len(thin.x) <= figures.POINTS
        assert (np.diff(thin.x) > 0).all()
        index = np.rint(thin.x * 7).astype(int)
        assert {0, size // 3, size // 2, size - 1} <= set(index.tolist())
        np.testing.assert_array_equal(thin.y, y[index])


def test_short_curves_stay_as_they_are() -> None:
    series = figures.Series(1, "run", np.arange(100.0), np.arange(100.0) ** 2)
    assert figures.thin(series) is series
    assert figures.smooth(series) is series


def test_smoothing_is_a_mean_of_neighbours() -> None:
    y = np.random.default_rng(1).normal(size=1000)
    smooth = figures.smooth(figures.Series(1, "run", np.arange(1000.0), y)).y
    np.testing.assert_allclose(smooth[500], y[490:511].mean())
    np.testing.assert_allclose([smooth[0], smooth[-1]], [y[:11].mean(), y[-11:].mean()])


def test_many_long_runs_make_a_small_page() -> None:
    rng = np.random.default_rng(2)
    x = np.arange(100_000) / 1000
    runs = [figures.Series(number, "run", x, 2 + rng.normal(size=x.size)) for number in range(1, 11)]
    figure = figures.figure(figures.Frame("Loss", "loss", "epoch", noisy=True), runs)
    text = report.environment().get_template("figure.svg.j2").render(figure=figure)
    assert len(text) < 60_000
    assert "running means" in text


@given(
    st.lists(
        st.tuples(st.sampled_from([100.0, 300.0, 452.0]), st.floats(figures.AREA.top, figures.AREA.bottom)), max_size=14
    )
)
def test_labels_at_the_ends_do_not_overlap(ends: list[tuple[float, float]]) -> None:
    heights = figures.spread(ends)
    for (x, y), height in zip(ends, heights, strict=True):
        assert figures.AREA.top - 1e-9 <= height <= figures.AREA.bottom + 1e-9
        others = [h for (a, _), h in zip(ends, heights, strict=True) if a == x]
        assert len(others) > 1 or height == y
        assert all(h is height or abs(h - height) > figures.LABEL_DISTANCE - 1e-9 for h in others)


def test_labels_stay_around_the_ends_that_they_belong_to() -> None:
    distance = figures.LABEL_DISTANCE
    heights = figures.spread([(400.0, 102.0), (400.0, 100.0), (400.0, 101.0)])
    np.testing.assert_allclose(heights, [101 + distance, 101 - distance, 101])


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
    assert (row["test"], row["D"], row["D / d"]) == (report.DASH, report.DASH, report.DASH)


def test_the_table_of_final_figures(make: Make) -> None:
    rows = Page(report.build([make("unfinished", result=None), make("done")])).cells()
    assert rows[1] == {
        "run": "2 done",
        "method": "rbd",
        "family": "srht",
        "d": "250",
        "D": "9,610",
        "D / d": "38.4 \N{MULTIPLICATION SIGN}",
        "epochs": "40",
        "train": "99.10",
        "validation": "96.25",
        "paper": report.DASH,
        "test": "95.28",
        "seconds": "12.3",
        "images/s": "4,321",
        "bytes a step": "1,000",
        "of SGD, 4\N{NO-BREAK SPACE}D": "38,440",
        "sha256 of theta": "ab" * 32,
    }


def test_sgd_has_no_directions(make: Make) -> None:
    row = Page(report.build([make(method="sgd")])).cells()[0]
    assert [row[name] for name in ("method", "family", "d", "D / d", "D")] == ["sgd", *3 * [report.DASH], "9,610"]


def test_the_best_run_is_named_and_marked(make: Make) -> None:
    scores = [None, 0.5, 0.9, 0.7]
    runs = [
        make(f"r{k}", result=score and {**RESULT, "test_accuracy": score, "sha256": str(k)})
        for k, score in enumerate(scores)
    ]
    page = Page(report.build(runs))
    assert page.all("p")[0]["text"] == (
        "4 runs of fc on digits: the best test accuracy is 90.00 %, of r2; 1 has not finished."
    )
    assert [mark["text"] for mark in page.all("b") if mark["parents"][-1]["tag"] == "td"] == ["90.00"]


def test_a_run_that_has_not_finished_shows_its_last_evaluation(make: Make) -> None:
    records = [evaluation(1.0, 0.5), evaluation(2.0, 0.8125), step(90, 1.0)]
    page = Page(report.build([make(records=records, result=None)]))
    row = page.cells()[0]
    assert (row["epochs"], row["validation"], row["test"]) == ("2 of 40", "81.25", report.DASH)
    assert "not finished: epoch 2 of 40" in page.all("li")[0]["text"]
    counted = Page(report.build([make("counted", records, None, epochs=40, steps=100)])).cells()[0]
    assert counted["epochs"] == "2"


def test_a_run_that_has_just_begun(make: Make) -> None:
    begun = make("begun", records=[], result=None)
    (begun / "metrics.jsonl").unlink()
    page = Page(report.build([begun, make("empty", records=[], result=None)]))
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
    page = Page(report.build([make("plain2"), make("rich", records)]))
    name = "Correlation with the SGD gradient"
    expected = {"Spread of the coordinates": 0.1, f"{name}: whole": 0.01, f"{name}: tensors": -0.02}
    for title, factor in expected.items():
        np.testing.assert_allclose(drawn(page, title, 2)[1], factor * np.array([1, 2, 3]), atol=1e-3 * abs(factor))
        assert len(page.all("polyline", page.figure(title))) == 1


def test_the_figure_of_the_paper_stands_beside(make: Make) -> None:
    name = "table1-fc-fmnist-rbd"
    page = Page(report.build([make("preset", preset=name), make("own", preset="mine")]))
    assert presets.paper(name) == "85.65 ± 0.2 %"
    assert [row["paper"] for row in page.cells()] == ["85.65 ± 0.2", report.DASH]
    assert ["paper" in card["text"] for card in page.all("li")] == [True, False]


def test_configurations_shared_different_and_complete(make: Make) -> None:
    switch = ["3:sgd", "5:rbd"]
    runs = [
        make("a", switch=switch, seed=1),
        make("b", switch=switch, seed=2, colour="red", correlation=True),
        make("c", switch=switch, seed=2, method="sgd"),
    ]
    page = Page(report.build(runs))
    table = page.all("table")[1]
    rows = [[cell["text"] for cell in page.all("th", row) + page.all("td", row)] for row in page.all("tr", table)]
    assert rows[1:] == [
        ["method", "rbd", "rbd", "sgd"],
        ["seed", "1", "2", "2"],
        ["colour", report.DASH, "red", report.DASH],
        ["correlation", report.DASH, "true", report.DASH],
    ]
    shared, *complete = page.all("dl")
    assert [key["text"] for key in page.all("dt", shared)] == [k for k in CONFIG if k not in ("method", "seed")]
    assert [len(page.all("dt", one)) for one in complete] == [len(CONFIG) + 1, len(CONFIG) + 3, len(CONFIG) + 1]
    assert {"false", "3:sgd, 5:rbd", "0.5"} <= {value["text"] for value in page.all("dd", complete[0])}
    whats = [one["text"] for one in page.all("p", **{"class": "what"})]
    assert whats == ["rbd · srht · d 250 · seed 1", "rbd · srht · d 250 · colour red", "sgd"]


def test_each_of_two_runs_says_what_differs(make: Make) -> None:
    runs = report.read([make("a", lr=0.5), make("b", lr=2.0)])
    assert [report.label(run, runs) for run in runs] == ["rbd · srht · d 250 · lr 0.5", "rbd · srht · d 250 · lr 2.0"]


def test_one_run_alone(make: Make) -> None:
    page = Page(report.build([make("alone")]))
    assert page.all("h1")[0]["text"] == "Run alone"
    assert page.all("p")[0]["text"] == "1 run of fc on digits: the test accuracy is 95.28 %."
    assert [one["text"] for one in page.all("p", **{"class": "what"})] == ["rbd · srht · d 250"]
    assert "What differs" not in [one["text"] for one in page.all("h3")]
    assert "open" in page.all("details")[0]


def test_runs_of_one_name_are_told_apart(make: Make) -> None:
    runs = [make("a/run"), make("b/run"), make("c")]
    assert [run.name for run in report.read(runs)] == [str(runs[0]), str(runs[1]), "c"]


def test_runs_that_ended_in_the_same_bits_are_named(make: Make) -> None:
    other = {**RESULT, "sha256": "cd" * 32}
    runs = [make("a"), make("b", result=other), make("c"), make("d", result=None), make("e", result=None)]
    assert "Runs 1 and 3 ended in the same bits." in report.build(runs)
    assert "same bits" not in report.build(runs[1:])


def test_no_two_runs_look_alike(make: Make) -> None:
    page = Page(report.build([make(f"r{k}") for k in range(1, 18)]))
    css = page.all("style")[0]["text"]
    colours = dict(re.findall(r"^\.r(\d+) { --c: var\((--c\d)\) }", css, flags=re.M))
    dashes = dict(re.findall(r"^\.r(\d+) :is.*dasharray: ([^}]*) }", css, flags=re.M))
    assert len({(colours[str(k)], dashes.get(str(k))) for k in range(1, 18)}) == 17
    for colour in set(colours.values()):
        assert css.count(f"{colour}: #") == 2  # one for each scheme


def spoil(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder


MISTAKES: dict[str, tuple[Callable[[Make, Path], Path], str]] = {
    "missing": (lambda make, root: root / "nowhere", "does not exist"),
    "no folder": (lambda make, root: make() / "config.toml", "is no folder"),
    "no run": (lambda make, root: root, "has no config.toml"),
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
def test_mistakes_give_a_sentence_and_leave_the_old_report(
    mistake: str, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare, wrong = MISTAKES[mistake]
    out = tmp_path / "out" / "report.html"
    out.parent.mkdir()
    out.write_text("old")
    assert command.main([str(make("good")), str(prepare(make, tmp_path)), "-o", str(out)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert wrong in printed.err
    assert "expected" in printed.err
    assert out.read_text() == "old"
    assert list(out.parent.iterdir()) == [out]


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
    (score,) = page.all("p", **{"class": "score"})
    assert score["text"] == f"{result.values['distance']:.4g} distance"
    (rest,) = page.all("p", **{"class": "rest"})
    assert rest["text"].startswith("loss ")
    _, y = drawn(page, "distance", 1)
    assert y == pytest.approx(result.history.metrics["distance"], rel=0.02)
