"""docs/explorable: the method in JavaScript has the bits of the specification, and the page works in a browser.

Node, the machine's or else Playwright's, runs the scripts of tests/explorable/ on the page's own modules; Chromium,
driven by Playwright, runs the page.
"""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rbd_ref
from rbd_ref.conformance import golden
from rbd_ref.conformance.cases import draw_at, pseudo_random
from rbd_ref.spec import operations
from rbd_ref.spec.compartments import Plan, split
from rbd_ref.spec.families import FAMILIES
from run_tools import one_line
from tools import ROOT, run_python

sys.path.append(str(ROOT / "docs"))

from serving import served

pytestmark = pytest.mark.compiled  # runs are trained, and nothing here is a kernel's line

PAGE = ROOT / "docs" / "explorable"
SCRIPTS = ROOT / "tests" / "explorable"


def node_of_playwright() -> str | None:
    """Playwright, which the extra `test` installs, brings a Node of its own."""
    package = importlib.util.find_spec("playwright")
    path = Path(package.origin).parent / "driver" / "node" if package and package.origin else None
    return str(path) if path and path.exists() else None


NODE = shutil.which("node") or node_of_playwright()
NEEDS_NODE = pytest.mark.skipif(
    NODE is None, reason="neither node nor playwright is installed: JavaScript cannot be run without a browser"
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


def node(script: str, *arguments: object, given: str = "") -> list[Any]:
    """What a script prints, a line of JSON each."""
    command = [str(NODE), str(SCRIPTS / script), *map(str, arguments)]
    result = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


# The golden vectors

ROWS = {
    "words": ("words", "cases"),
    "keys": ("words", "keys"),
    "directions": ("directions", "cases"),
    "long": ("directions", "long"),
    "rows": ("directions", "srht_rows_of_key_0_size"),
    "updates": ("operations", "cases"),
    "coefficients": ("operations", "cases"),
    "reference": ("operations", "cases"),
    "numbers": ("random", "cases"),
    "streams": ("random", "streams"),
}


def golden_files() -> dict[str, Any]:
    """A copy of all golden files, by name."""
    files: dict[str, Any] = json.loads(json.dumps({name: golden.read(name) for name in golden.FILES}))
    return files


@NEEDS_NODE
def test_all_golden_vectors_agree(tmp_path: Path) -> None:
    """The files as they are, to the bit, and coefficients also within the suite's tolerance."""
    path = tmp_path / "golden.json"
    path.write_text(json.dumps(golden_files()))
    [found] = node("vectors.mjs", path)
    expected = {kind: len(golden.read(name)[part]) for kind, (name, part) in ROWS.items()}
    assert {kind: counts["of"] for kind, counts in found.items()} == expected
    assert [(kind, counts["wrong"]) for kind, counts in found.items() if counts["agree"] != counts["of"]] == []


@NEEDS_NODE
def test_the_vectors_of_the_page_agree_too() -> None:
    [found] = node("vectors.mjs", PAGE / "vectors.json")
    assert {kind: (counts["agree"], counts["of"]) for kind, counts in found.items()} == {
        kind: (len(golden.read(name)[part]),) * 2 for kind, (name, part) in ROWS.items()
    }


CHANGED = {
    "words": "words",
    "keys": "compartment_7",
    "directions": "phi",
    "long": "sha256",
    "rows": "rows",
    "updates": "u",
    "coefficients": "a",
    "reference": "reference_a",
    "numbers": "numbers",
    "streams": "key",
}


def changed(value: Any) -> Any:
    """The same with its first digit or number changed; of a float that is its sign and some of its exponent."""
    if isinstance(value, list):
        return [changed(value[0]), *value[1:]]
    if isinstance(value, int):
        return value + 1
    return f"{int(value[0], 16) ^ 0xC:x}{value[1:]}"


@NEEDS_NODE
def test_a_changed_vector_of_each_kind_is_seen(tmp_path: Path) -> None:
    files = golden_files()
    for kind, (name, part) in ROWS.items():
        row = files[name][part][-1]
        row[CHANGED[kind]] = changed(row[CHANGED[kind]])
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(files))
    [found] = node("vectors.mjs", path)
    assert {kind: counts["of"] - counts["agree"] for kind, counts in found.items()} == dict.fromkeys(ROWS, 1)


def test_the_data_of_the_page_is_what_its_script_makes() -> None:
    result = run_python(str(ROOT / "docs" / "explorable_data.py"), "--check")
    assert result.returncode == 0, result.stderr


# Any basis, not only those of the vectors


def random_case(chance: random.Random, number: int) -> dict[str, Any]:
    """A basis at a random address over random compartments, a gradient and coefficients."""
    sizes = [chance.choice([1, 2, 63, 64, 65, 100, 513, 5000]) for _ in range(chance.randint(1, 4))]
    dims = [chance.randint(1, min(size, 6)) for size in sizes]
    return {
        "family": chance.choice([*FAMILIES, f"sparse:{chance.randint(1, 256)}"]),
        "normalize": chance.choice(operations.NORMALIZATIONS),
        "seed": f"{chance.randrange(2**64):016x}",
        "step": chance.choice([number, chance.randrange(2**32)]),
        "worker": chance.choice([0, chance.randrange(2**32)]),
        "sizes": sizes,
        "dims": dims,
        "g": golden.hexadecimal(pseudo_random(number, sum(sizes))),
        "a": golden.hexadecimal(pseudo_random(100 + number, sum(dims)) * np.float32(10.0 ** chance.randint(-20, 20))),
    }


def expected_of(case: dict[str, Any]) -> dict[str, str]:
    """What the definition gives for it."""
    plan = Plan(tuple(case["sizes"]), tuple(case["dims"]))
    draw = draw_at(plan, case["family"], case["normalize"], int(case["seed"], 16), case["step"], case["worker"])
    a = operations.project(draw, golden.floats(case["g"]))
    return {
        "a": golden.hexadecimal(a),
        "descended": golden.hexadecimal(operations.reconstruct(draw, a)),
        "u": golden.hexadecimal(operations.reconstruct(draw, golden.floats(case["a"]))),
    }


@NEEDS_NODE
def test_random_bases_have_the_bits_of_the_definition() -> None:
    chance = random.Random(7)
    cases = [random_case(chance, number) for number in range(60)]
    [found] = node("draws.mjs", given=json.dumps(cases))
    assert found == [expected_of(case) for case in cases]


@NEEDS_NODE
def test_a_total_is_split_over_compartments_as_in_python() -> None:
    chance = random.Random(3)
    sizes = [[chance.randint(1, 10 ** chance.randint(1, 9)) for _ in range(chance.randint(1, 9))] for _ in range(200)]
    sizes += [[chance.choice([3, 50, 1000])] * k for k in range(2, 40)]  # equal ones: of these the first comes first
    sizes += [[1] * k + [1000] * k for k in range(2, 20)]  # and where one direction each is too many
    cases = [{"sizes": one, "total": chance.randint(len(one), min(sum(one), 5000))} for one in sizes]
    cases = [case for case in cases if case["total"] <= sum(case["sizes"])]
    [found] = node("draws.mjs", given=json.dumps(cases))
    assert [row["dims"] for row in found] == [list(split(case["total"], case["sizes"])) for case in cases]


# Runs, rebuilt from their journals

RUNS: dict[str, dict[str, Any]] = {
    "plain": {"dims": 7, "steps": 4},
    "two workers": {"dims": 9, "steps": 3, "workers": 2, "family": "rademacher", "seed": 2**64 - 5},
    "shared": {"dims": 9, "steps": 3, "workers": 3, "exchange": "shared", "combine": "mean", "momentum": 0.9},
    "split": {
        "dims": 10,
        "steps": 3,
        "workers": 4,
        "exchange": "split",
        "family": "sparse:30",
        "compartments": "tensor",
    },
    "memory, cosine": {
        "dims": "each:25",
        "epochs": 1,
        "workers": 4,
        "family": "srht",
        "memory": 0.9,
        "schedule": "cosine",
        "warmup": 2,
        "compartments": "layer",
        "holdout": 0.25,
    },
    "int8": {"dims": 70, "steps": 3, "workers": 2, "family": "srht", "coefficients": "int8", "compartments": "even:3"},
    "signs, split": {
        "steps": 3,
        "workers": 3,
        "exchange": "split",
        "family": "srht",
        "coefficients": "sign",
        "compartments": "proportional:200",
    },
    "feedback": {"dims": 40, "steps": 3, "family": "srht", "feedback": True, "compartments": "tensor"},
    "fpd, linear": {"dims": 20, "steps": 4, "method": "fpd", "workers": 2, "momentum": 0.5, "schedule": "linear"},
    "nes": {"dims": 5, "steps": 3, "method": "nes", "net": "mlp:64-9-10", "redraw": 2, "normalize": "expected"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of small runs of every kind that the page can rebuild."""
    top = tmp_path_factory.mktemp("runs")
    folders = {name: top / str(number) for number, name in enumerate(RUNS)}
    for name, folder in folders.items():
        rbd_ref.fit(rbd_ref.Config(**{"data": "digits", "net": "fc", **RUNS[name]}), out=str(folder))
    return folders


def result_of(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return values


@NEEDS_NODE
def test_runs_are_rebuilt_to_their_sha256(runs: dict[str, Path]) -> None:
    for (name, folder), found in zip(runs.items(), node("replay.mjs", *runs.values()), strict=True):
        expected = result_of(folder)
        assert found.get("error") is None, name
        assert (found["t"], found["sha256"], found["chain"]) == tuple(
            expected[k] for k in ("step", "sha256", "journal")
        )
        assert found["losses"] == rbd_ref.open_run(folder).history.loss.tolist()


def flip(folder: Path, offset: int) -> None:
    """Change a bit of the journal."""
    path = folder / "journal.rbd"
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(bytes(content))


def shorten(folder: Path) -> None:
    path = folder / "journal.rbd"
    path.write_bytes(path.read_bytes()[:-5])


def exchange_records(folder: Path) -> None:
    """The second record in the place of the first, with its step: only the chain tells."""
    path = folder / "journal.rbd"
    content = path.read_bytes()
    size = (len(content) - 40) // 4
    records = [content[40 + k * size :][:size] for k in range(4)]
    head = records[0][:24]
    path.write_bytes(content[:40] + head + records[1][24:] + b"".join(records[1:]))


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


def forget_result(folder: Path) -> None:
    (folder / "result.json").write_text("null")


def forge_hash(folder: Path) -> None:
    edit("result.json", result_of(folder)["sha256"], "0" * 64)(folder)


HARM: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "a coefficient": (lambda folder: flip(folder, 70), ("damaged at step 0, offset 40", "another checksum")),
    "a head": (lambda folder: flip(folder, 40 + 24 + 32 + 32 + 6), ("damaged at step 1", "head is not that")),
    "the beginning": (lambda folder: flip(folder, 2), ("does not begin with RBDJRNL2",)),
    "the digest": (lambda folder: flip(folder, 20), ("another configuration",)),
    "the end": (shorten, ("has 3 whole steps", "expected 4")),
    "the order": (exchange_records, ("damaged at step 0", "does not follow")),
    "the rate": (edit("config.toml", "lr = 2.0", "lr = 2.5"), ("another configuration",)),
    "a line": (edit("config.toml", "lr = 2.0", "lr = twice"), ('config.toml has the line "lr = twice"',)),
    "the result": (forge_hash, ("theta has sha256", "expected 0000")),
    "all of the result": (forget_result, ("has no step and sha256",)),
}


@NEEDS_NODE
@pytest.mark.parametrize("harm", HARM)
def test_a_run_that_was_changed_is_refused_in_one_sentence(harm: str, runs: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs["plain"], tmp_path / "run"))
    change, words = HARM[harm]
    change(folder)
    [found] = node("replay.mjs", folder)
    one_line(found["error"] + "\n", *words, "expected")


@NEEDS_NODE
def test_line_ends_of_windows_change_nothing(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs["plain"], tmp_path / "run"))
    text = (folder / "config.toml").read_bytes()
    (folder / "config.toml").write_bytes(text.replace(b"\n", b"\r\n"))
    [found] = node("replay.mjs", folder)
    assert found["sha256"] == result_of(folder)["sha256"]


FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "sgd": ({"method": "sgd"}, "method sgd"),
    "switch": ({"switch": ("1:sgd:0.1",), "steps": 40}, "a switch of methods"),
    "cnn": ({"net": "cnn:2/8", "dims": 5}, "network cnn:2/8, expected fc or mlp"),
    "adam": ({"method": "fpd", "dims": 5, "optimiser": "adam"}, "optimiser adam"),
}


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of runs that the page cannot rebuild."""
    folders = {name: tmp_path_factory.mktemp(name) / "run" for name in FOREIGN}
    for name, (more, _) in FOREIGN.items():
        rbd_ref.fit(rbd_ref.Config(**{"net": "mlp:64-10", "steps": 2, **more}), out=str(folders[name]))
    return folders


@NEEDS_NODE
def test_runs_that_only_python_can_repeat_are_refused(foreign: dict[str, Path]) -> None:
    for (name, (_, words)), row in zip(FOREIGN.items(), node("replay.mjs", *foreign.values()), strict=True):
        assert (foreign[name] / "journal.rbd").exists()
        one_line(row["error"] + "\n", words, "expected", "python -m rbd_ref.replay")


# What the page teaches


@NEEDS_NODE
def test_landscapes_and_descents_are_what_the_lessons_say() -> None:
    [found] = node("descents.mjs")
    assert [row for row in found["slopes"] if row[2] > 1e-5] == []
    assert found["rbd"]["last"] < found["rbd"]["first"] / 100
    assert found["rbd"]["cosine"] == pytest.approx((4 / 200) ** 0.5, rel=0.1)
    assert found["fpd"]["last"] > 0.9 * found["fpd"]["first"]
    assert abs(found["fpd"]["cosine"]) < 1e-3
    assert found["sgd"]["cosine"] == pytest.approx(1)
    assert found["whole"]["last"] == pytest.approx(found["wholeSgd"]["last"], rel=1e-5)  # d = D, orthogonal: SGD
    assert found["biased"]["diverged"]
    assert found["remembering"]["last"] < found["noisy"]["last"] / 3
    assert found["network"]["last"] < 0.05


# The page in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[test]'")
    if BROWSER is None:
        pytest.skip(f"no browser is installed, expected one of {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=BROWSER)
        yield chromium
        chromium.close()


class Opened:
    """A page, all that went wrong in it, and every address that it asked for."""

    def __init__(self, browser: Any, address: str, width: int, scheme: str = "light") -> None:
        self.troubles: list[str] = []
        self.asked: list[str] = []
        self.page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.page.on("console", lambda message: self.troubles.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector("#badge:not([data-state=busy])", timeout=60_000)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def steps(self) -> int:
        return int(self.text("#step-count").removeprefix("step "))

    def set(self, control: str, value: object) -> None:
        """Move a slider or choose an entry, as a user does."""
        move = "(control, x) => { control.value = x; control.dispatchEvent(new Event('input', {bubbles: true})); }"
        self.page.eval_on_selector(control, move, str(value))
        self.page.wait_for_timeout(50)

    def picture(self, selector: str) -> bytes:
        self.page.wait_for_timeout(50)
        return bytes(self.page.locator(selector).screenshot())


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Opens the page; at the end nothing may have gone wrong in any, and nothing come from elsewhere."""
    pages: list[Opened] = []
    with served(PAGE) as address:

        def open_page(width: int = 1280, scheme: str = "light") -> Opened:
            pages.append(Opened(browser, address, width, scheme))
            return pages[-1]

        yield open_page
        for one in pages:
            one.page.close()
    assert [one.troubles for one in pages] == [[]] * len(pages)
    assert [url for one in pages for url in one.asked if not url.startswith((address, "data:"))] == []


def test_the_badge_says_that_all_vectors_agree(opened: Callable[..., Opened]) -> None:
    count = sum(len(golden.read(name)[part]) for name, part in ROWS.values())
    page = opened()
    assert page.text("#badge") == f"{count} of {count} golden vectors agree"
    assert page.page.locator("#vectors tr").count() == len(ROWS)


def bad_badge(browser: Any, **served_vectors: Any) -> str:
    """What the badge says once it is red, of a page that is served other vectors than its own."""
    with served(PAGE) as address:
        context = browser.new_context()
        context.route("**/vectors.json", lambda route: route.fulfill(**served_vectors))
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("#badge[data-state=bad]", timeout=60_000)
        said: str = page.inner_text("#badge")
        context.close()
    return said


def test_the_badge_would_say_if_a_vector_did_not(browser: Any) -> None:
    """The page is served a vector with another digit."""
    vectors = json.loads((PAGE / "vectors.json").read_text())
    row = vectors["random"]["cases"][0]
    row["numbers"] = changed(row["numbers"])
    assert bad_badge(browser, json=vectors) == "309 of 310 golden vectors agree"


def test_play_step_and_reset(opened: Callable[..., Opened]) -> None:
    page = opened()
    assert page.steps() == 0  # nothing moves by itself where motion is not wanted
    first = page.picture("#view")
    page.page.click("#step")
    page.page.wait_for_timeout(50)
    assert page.steps() == 1
    assert page.picture("#view") != first
    page.set("#speed", 7)
    page.page.click("#play")
    page.page.wait_for_function("Number(document.getElementById('step-count').textContent.slice(5)) > 5")
    page.page.click("#reset")
    page.page.wait_for_timeout(50)
    assert page.steps() == 0
    assert page.picture("#view") == first


def test_each_lesson_and_each_control_changes_what_is_shown(opened: Callable[..., Opened]) -> None:
    page = opened()
    for lesson in range(7):
        page.page.click(f"button[data-lesson='{lesson}']")
        page.page.click("#play")
        page.page.click("#step")
        page.page.wait_for_timeout(50)
        assert page.steps() >= 1
        assert page.page.get_attribute(f"button[data-lesson='{lesson}']", "aria-current") == "true"
    page.page.click("button[data-lesson='2']")
    page.page.click("#reset")

    def after(control: str, value: object) -> bytes:
        """The picture two steps after a control was set."""
        page.page.click("#reset")
        page.set(control, value)
        for _ in range(2):
            page.page.click("#step")
        return page.picture("#view")

    pictures = [after("#speed", 3)]
    for control, value in (("#d", 40), ("#family", "srht"), ("#eta", -3), ("#memory", 3), ("#noise", 2), ("#seed", 5)):
        pictures.append(after(control, value))
        assert pictures[-1] != pictures[-2], control
    page.page.click("label[for=keep]")
    assert page.picture("#view") != pictures[-1]
    assert page.text("#sent-name") == "FPD"
    assert page.text("#sent") == "80"  # 2 steps of 40 numbers
    assert page.text("#sent-sgd") == "400"
    for shape in ("valley", "rosenbrock", "network", "bowl"):
        pictures.append(after("#landscape", shape))
        assert pictures[-1] != pictures[-2], shape


def test_the_page_is_used_by_keyboard_alone(opened: Callable[..., Opened]) -> None:
    page = opened().page
    page.focus("#step")
    page.keyboard.press("Enter")
    page.wait_for_function("document.getElementById('step-count').textContent === 'step 1'")
    page.focus("#d")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.getElementById('d-value').textContent === '2'")
    page.focus("#redraw")
    page.keyboard.press("ArrowRight")
    assert page.is_checked("#keep")
    nameless = page.eval_on_selector_all(
        "button, input, select, canvas",
        "list => list.filter(x => !x.labels?.length && !x.textContent && !x.ariaLabel).length",
    )
    assert nameless == 0


def test_a_run_chosen_by_its_files_gives_its_sha256(opened: Callable[..., Opened], runs: dict[str, Path]) -> None:
    page = opened()
    for name in ("plain", "two workers"):
        folder = runs[name]
        page.page.set_input_files("#files", [folder / file for file in ("config.toml", "journal.rbd", "result.json")])
        expected = result_of(folder)["sha256"]
        page.page.wait_for_function(f"document.getElementById('sha256').textContent === '{expected}'")
        assert page.text("#verdict").startswith("the run's own sha256")
        assert page.page.get_attribute("#verdict", "data-state") == "good"


def test_everything_is_drawn_again_when_window_and_theme_change(opened: Callable[..., Opened]) -> None:
    page = opened(1280)
    first = page.picture("#view")
    page.page.emulate_media(color_scheme="dark")
    assert page.picture("#view") != first
    page.page.emulate_media(color_scheme="light")
    page.page.set_viewport_size({"width": 390, "height": 800})
    page.page.set_viewport_size({"width": 1280, "height": 900})
    assert page.picture("#view") == first


def test_the_example_run_is_rebuilt(opened: Callable[..., Opened]) -> None:
    page = opened()
    page.page.click("#example")
    page.page.wait_for_selector("#verdict[data-state=good]", timeout=60_000)
    assert page.text("#sha256") == json.loads((PAGE / "example" / "result.json").read_text())["sha256"]
    assert page.text("#replica-state") == "150 steps rebuilt"


def test_a_damaged_or_incomplete_run_is_one_sentence_on_the_page(
    opened: Callable[..., Opened], runs: dict[str, Path], tmp_path: Path
) -> None:
    page = opened()
    folder = Path(shutil.copytree(runs["plain"], tmp_path / "run"))
    flip(folder, 70)
    page.page.set_input_files("#files", [folder / "config.toml", folder / "journal.rbd"])
    page.page.wait_for_selector("#verdict[data-state=bad]")
    one_line(page.text("#verdict") + "\n", "journal.rbd is damaged at step 0, offset 40")
    page.page.set_input_files("#files", [folder / "journal.rbd"])
    page.page.wait_for_function("document.getElementById('verdict').textContent.startsWith('config.toml is missing')")


RUN_FILES = ("config.toml", "journal.rbd", "result.json")


def test_a_run_of_another_kind_is_one_sentence_in_place_of_the_run_before(
    opened: Callable[..., Opened], runs: dict[str, Path], foreign: dict[str, Path]
) -> None:
    page = opened()
    page.page.set_input_files("#files", [runs["plain"] / name for name in RUN_FILES])
    page.page.wait_for_selector("#verdict[data-state=good]")
    for name, (_, words) in FOREIGN.items():
        page.page.set_input_files("#files", [foreign[name] / file for file in RUN_FILES])
        page.page.wait_for_function(f"document.getElementById('verdict').textContent.includes({words!r})")
        one_line(page.text("#verdict") + "\n", "expected", "python -m rbd_ref.replay")
        assert page.page.locator("#replica-picture").is_hidden()
        assert page.text("#sha256") == page.text("#replica-about") == ""


def test_a_torn_record_is_left_out_and_told(
    opened: Callable[..., Opened], runs: dict[str, Path], tmp_path: Path
) -> None:
    page = opened()
    folder = Path(shutil.copytree(runs["plain"], tmp_path / "run"))
    shorten(folder)
    page.page.set_input_files("#files", [folder / name for name in RUN_FILES[:2]])
    page.page.wait_for_function("document.getElementById('verdict').textContent.startsWith('choose result.json')")
    assert page.text("#replica-state") == "3 steps rebuilt, an incomplete record left out"
    assert page.page.get_attribute("#verdict", "data-state") == "busy"
    page.page.set_input_files("#files", [folder / name for name in RUN_FILES])
    page.page.wait_for_selector("#verdict[data-state=bad]")
    one_line(page.text("#verdict") + "\n", "journal.rbd has 3 whole steps, expected 4")


def test_vectors_that_cannot_be_read_are_told(browser: Any) -> None:
    assert bad_badge(browser, body="{") == "golden vectors could not be checked"


def test_any_number_may_be_typed_as_a_seed(opened: Callable[..., Opened]) -> None:
    page = opened()
    for typed, meant in (("1.5", 1), ("-1", 0), ("1e3", 1000), ("", 0), ("1e30", 2**32 - 1)):
        page.set("#keys-seed", typed)
        assert page.text("#derivation li:first-child").startswith(f"seed {meant}\n")
        page.set("#seed", typed)
        page.page.click("#step")


def test_another_landscape_has_room_for_more_directions(opened: Callable[..., Opened]) -> None:
    page = opened()
    assert page.page.get_attribute("#d", "max") == "2"
    page.set("#landscape", "network")
    assert page.page.get_attribute("#d", "max") == "33"


def test_a_frame_that_has_no_place_yet_is_drawn_when_it_has(browser: Any) -> None:
    troubles: list[str] = []
    with served(PAGE) as address:
        page = browser.new_page(reduced_motion="reduce")
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(address + "lessons.js")  # of the same server, and no page
        page.set_content(f'<iframe src="{address}" style="width: 0; height: 0; border: 0"></iframe>')
        frame = page.frame_locator("iframe")
        frame.locator("#badge[data-state=good]").wait_for(state="attached", timeout=60_000)
        page.eval_on_selector("iframe", "frame => { frame.style.width = '800px'; frame.style.height = '900px'; }")
        page.wait_for_timeout(500)
        frame.locator("#step").click()
        page.wait_for_timeout(500)
        assert frame.locator("#step-count").inner_text() == "step 1"
        page.close()
    assert troubles == []


def test_a_frame_of_the_bowl_takes_less_than_a_sixtieth_of_a_second(opened: Callable[..., Opened]) -> None:
    """What the page computes and draws, not what else the machine does meanwhile: the least of some seconds."""
    page = opened()
    page.page.click("#play")
    work = []
    for _ in range(5):
        page.page.wait_for_timeout(1000)
        work.append(page.page.evaluate("explorable.frameWork()"))
        if min(work) < 1000 / 60:
            return
    pytest.fail(f"a frame takes {min(work):.1f} ms, expected less than 16.7")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 830, 1280])  # a phone, the frame on the page play.md, a desktop
def test_the_page_fits_its_window(opened: Callable[..., Opened], width: int, scheme: str) -> None:
    """No sideways scrolling, nothing cut off, and text that can be told from its ground."""
    page = opened(width, scheme).page
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert (
        page.eval_on_selector_all("canvas", "list => list.filter(x => !x.closest('[hidden]') && x.clientWidth < 200)")
        == []
    )
    ink, paper = page.evaluate(
        "['color', 'backgroundColor'].map(name => getComputedStyle(document.body)[name].match(/\\d+/g).map(Number))"
    )
    assert abs(sum(ink) - sum(paper)) > 450
    assert (sum(paper) > 384) == (scheme == "light")
