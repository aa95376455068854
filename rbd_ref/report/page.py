"""A page that compares runs: `python -m rbd_ref.report RUN [RUN ...] -o report.html`.

Runs are compared by looking at them together: which learns faster, which ends higher, what differs between them, and
whether two ended in the same bits. The page is one file that fetches nothing, so it can be kept beside the runs, sent
to someone, or printed; the same runs give the same page. It is written beside its name and then renamed: where
something is wrong with a run, a page that was there before stays.
Tests: tests/test_report.py.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rbd_ref.report.figures import SCRIPT, Frame, Series, figure

Record = dict[str, Any]

DASH, TIMES = "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"
COLOURS = 7  # from the eighth run on they come again, dashed
FIRST_KEYS = ("method", "family", "dims")
BARE_KEYS = ("method", "family", "data", "net")  # values that say by themselves what they are
CORRELATIONS = {"whole": "of all weights together", "tensors": "mean over tensors"}
UNLABELLED = ("preset", "correlation", "log_every", "eval_every", "checkpoint_every", "data_dir", "mirror", "timeout")
UNUSED_BY_SGD = ("family", "dims", "compartments", "normalize", "redraw", "exchange")

CSS = """
:root{color-scheme:light dark;--paper:#fdfdfb;--card:#fff;--ink:#22262b;--soft:#656c75;--line:#e3e4e1;--hair:#eeeeeb;
--c1:#0072b2;--c2:#d55e00;--c3:#009e73;--c4:#b8578d;--c5:#d99000;--c6:#43a3dc;--c7:#5b6168}
@media(prefers-color-scheme:dark){:root{--paper:#15181c;--card:#1b1f24;--ink:#e4e6e8;--soft:#9aa2ab;--line:#31373e;
--hair:#282d33;--c1:#4a9fdc;--c2:#f07f3c;--c3:#2fc398;--c4:#e08fbb;--c5:#efb83f;--c6:#97d3f6;--c7:#b6bdc5}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif;
-webkit-text-size-adjust:100%}
main{max-width:1280px;margin:0 auto;padding:56px 24px 72px}
h1{font-size:30px;line-height:1.2;letter-spacing:-.015em;font-weight:650;margin:0 0 10px}
h2{font-size:20px;font-weight:620;letter-spacing:-.005em;margin:64px 0 18px}
h3{font-size:15px;font-weight:620;margin:0}.settings h3{margin:26px 0 10px}
p{margin:0}.lead{font-size:18px;max-width:50em;text-wrap:pretty;color:var(--soft)}.note{color:var(--soft);font-size:14px;margin-top:12px;
text-wrap:pretty}
.legend{list-style:none;margin:36px 0 0;padding:0;display:grid;gap:14px;
grid-template-columns:repeat(auto-fill,minmax(214px,1fr))}
.legend li{border:1px solid var(--line);border-radius:8px;background:var(--card);padding:14px 16px}
.legend b,th b{font-weight:620;overflow-wrap:anywhere}
.legend .what{color:var(--soft);font-size:13.5px;line-height:1.4;margin:2px 0 10px}
.legend .score{font-size:24px;line-height:1.2;font-variant-numeric:tabular-nums;letter-spacing:-.01em}
.legend small{font-size:13.5px;letter-spacing:0}.legend .rest,small{color:var(--soft);font-size:13.5px}
.figures{display:grid;gap:28px 28px;grid-template-columns:repeat(auto-fill,minmax(min(100%,460px),1fr))}
figure{margin:0;position:relative;border:1px solid var(--line);border-radius:8px;background:var(--card);
padding:16px 16px 8px;min-width:0}
figcaption p{color:var(--soft);font-size:13.5px}
svg{display:block;width:100%;height:auto;overflow:visible}
figure svg{margin-top:8px;touch-action:pan-y}
svg.key{display:inline-block;width:24px;height:12px;margin-right:7px}.key line{stroke-width:2.6}
.grid{stroke:var(--hair)}.mark{stroke:var(--line);fill:none}
svg text{font-size:11.5px;fill:var(--soft);font-variant-numeric:tabular-nums}
svg .y{text-anchor:end}svg .x,svg .axis{text-anchor:middle}
svg .end{fill:var(--ink);font-weight:620;paint-order:stroke;stroke:var(--card);stroke-width:3px}
.run polyline,.run line{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.run circle{fill:var(--c);stroke:var(--card);stroke-width:1.2}.run{transition:opacity .15s}
.cursor{stroke:var(--soft);stroke-dasharray:2 3;visibility:hidden}.read .cursor{visibility:visible}
.readout{display:grid;grid-template-columns:9px minmax(0,1fr) auto;gap:1px 8px;align-items:center;position:absolute;
top:14px;right:16px;max-width:78%;pointer-events:none;background:var(--card);border:1px solid var(--line);
border-radius:6px;padding:8px 11px;font-size:12.5px;font-variant-numeric:tabular-nums;box-shadow:0 2px 12px #0002}
.readout[hidden]{display:none}.readout.left{right:auto;left:16px}.readout .dot{height:9px;border-radius:50%;
background:var(--c)}.readout span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.readout span:nth-child(3n){text-align:right}
.box{overflow-x:auto;border:1px solid var(--line);border-radius:8px;background:var(--card)}
table{border-collapse:collapse;font-size:13px;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:10px 6px;text-align:right;white-space:nowrap;font-weight:400;border-top:1px solid var(--hair)}
thead th{color:var(--soft);font-size:12px;line-height:1.3;vertical-align:bottom;border:0;white-space:normal}
th:first-child{padding-left:14px}th:first-child,.text{text-align:left}
tbody th{position:sticky;left:0;background:var(--card);max-width:190px;overflow:hidden;text-overflow:ellipsis;
box-shadow:inset -1px 0 var(--hair)}
td b{font-weight:650}
code{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.hash{display:inline-block;width:9ch;overflow:hidden;text-overflow:ellipsis;vertical-align:bottom;user-select:all}
dl{display:flex;flex-wrap:wrap;gap:10px 28px;margin:12px 0 28px;font-size:14px}
dl div{min-width:0}dt{color:var(--soft);font-size:12.5px}dd{margin:0;overflow-wrap:anywhere}
details{border-top:1px solid var(--line);padding:10px 0}details:last-of-type{border-bottom:1px solid var(--line)}
summary{cursor:pointer;overflow-wrap:anywhere}details dl{margin:12px 0 8px}
@media(max-width:600px){main{padding:32px 16px 48px}h1{font-size:25px}h2{margin-top:48px}.lead{font-size:16.5px}
figure{padding:14px 10px 6px}svg text{font-size:15px}.legend{gap:10px}tbody th{max-width:150px}
.readout{max-width:58%}}
@media print{main{padding:0;max-width:none}body{font-size:12px}h2{margin-top:32px}.box{overflow:visible;border:0}
table{font-size:9px}thead th{font-size:8px}th,td{padding:4px}tr,figure,li{break-inside:avoid}code{font-size:8px}
.figures{grid-template-columns:1fr 1fr;gap:14px}.readout,.read .cursor{display:none}}
"""

PRINTING = """
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(one => { one.open = true; }));
"""


class ReportError(ValueError):
    """What keeps a page from being made: one sentence with what is wrong, what was expected, what to do."""


class Run(NamedTuple):
    """What a folder says about a run; `result` is empty while it has not finished."""

    number: int
    name: str
    config: Record
    steps: list[Record]
    evaluations: list[Record]
    result: Record

    def last(self, key: str) -> Any:
        """A figure at the end of the run; of one that has not finished at its last evaluation, or else step."""
        latest = [self.result] if self.result else [*self.evaluations[-1:], *self.steps[-1:]]
        return next((record[key] for record in latest if key in record), None)

    def method(self) -> str:
        """The name of the method."""
        return show(self.config.get("method", ""))


def _parsed(path: Path, parse: Callable[[str], Any], form: str) -> Record:
    """The table in a file of this form."""
    try:
        table = parse(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path} is broken ({error}), expected {form}: restore it or leave this run out") from error
    if not isinstance(table, dict):
        raise ReportError(f"{path} holds no table, expected {form}: restore it or leave this run out")
    return table


def _records(path: Path) -> list[Record]:
    """The lines of metrics.jsonl in the order of steps. A last line that was cut short is left out, and a step that was
    done again after an interruption counts once, as it was last."""
    lines = path.read_text(encoding="utf-8", errors="replace").rstrip().split("\n") if path.exists() else []
    records: dict[tuple[str, float], Record] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            records[str(record.get("kind")), _number(record.get("step"))] = record
        except (ValueError, RecursionError, AttributeError):
            if number < len(lines):
                raise ReportError(
                    f"line {number} of {path} is {line[:40]!r}, expected a JSON object in each line: "
                    "restore the file or leave this run out"
                ) from None
    return [records[key] for key in sorted(records, key=lambda key: key[1]) if not math.isnan(key[1])]


def _read(folder: Path, number: int, name: str) -> Run:
    """A run from its files."""
    if not (folder / "config.toml").is_file():
        wrong = "has no config.toml" if folder.is_dir() else "is no folder" if folder.exists() else "does not exist"
        raise ReportError(f"{folder} {wrong}, expected the folder of a run: name one that a training has written")
    config = _parsed(folder / "config.toml", tomllib.loads, "a TOML table")
    records = _records(folder / "metrics.jsonl")
    steps, evaluations = ([r for r in records if r.get("kind") == kind] for kind in ("step", "evaluation"))
    end = folder / "result.json"
    result = _parsed(end, json.loads, "a JSON object") if end.exists() else {}
    return Run(number, name, config, steps, evaluations, result)


def read(folders: Sequence[Path]) -> list[Run]:
    """The runs, called by the names of their folders, or where these are the same by their whole paths."""
    names = [folder.name or folder.resolve().name for folder in folders]
    runs = []
    for number, (folder, name) in enumerate(zip(folders, names, strict=True), 1):
        try:
            runs.append(_read(folder, number, name if names.count(name) == 1 else str(folder)))
        except OSError as error:
            raise ReportError(
                f"{error.filename} cannot be read ({error.strerror}), expected the folder of a run: "
                "correct the path or the permissions"
            ) from error
    return runs


def show(value: Any) -> str:
    """A value of a configuration as text."""
    if isinstance(value, list):
        value = ", ".join(map(show, value))
    if isinstance(value, str):
        return value or DASH
    return json.dumps(value, ensure_ascii=False, default=str)


def _number(value: Any) -> float:
    """A number from a file, not a number for anything else."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else math.nan


def count(value: Any, digits: int = 0) -> str:
    """Like 9,610."""
    number = _number(value)
    return DASH if math.isnan(number) else f"{number:,.{digits}f}"


def percent(value: Any) -> str:
    """A fraction in per cent, like 95.28."""
    return count(100 * _number(value), 2)


def ratio(above: Any, below: Any) -> str:
    """How many times the second goes into the first, like 38.4 x."""
    quotient = _number(above) / (_number(below) or math.nan)
    return DASH if math.isnan(quotient) else f"{quotient:,.{1 if quotient < 100 else 0}f} {TIMES}"


def paper(run: Run) -> str:
    """What the paper reports for the preset of a run; nothing for runs without."""
    from rbd_ref.runs import presets

    return presets.paper(str(run.config.get("preset", "")))


def label(run: Run, runs: Sequence[Run]) -> str:
    """Like rbd · srht · d 250: the method and its directions, then what tells the run from most of the others."""
    unused = UNUSED_BY_SGD if run.method() == "sgd" else ()
    parts = []
    for key in dict.fromkeys((*FIRST_KEYS, *run.config)):
        value = show(run.config.get(key, ""))
        alike = sum(show(other.config.get(key, "")) == value for other in runs)
        if key not in (*unused, *UNLABELLED) and value != DASH and (key in FIRST_KEYS or 2 * alike <= len(runs)):
            parts.append(value if key in BARE_KEYS else f"{'d' if key == 'dims' else key} {value}")
    return " · ".join(parts)


def series(runs: Sequence[Run], kind: str, x: str, *path: str, factor: float = 1.0) -> list[Series]:
    """For each run the figure at `path` of its records against another one."""
    curves = []
    for run in runs:
        found: list[tuple[float, float]] = []
        for record in run.steps if kind == "step" else run.evaluations:
            value: Any = record
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            found.append((_number(record.get(x)), factor * _number(value)))
        pairs = np.array(found, dtype=np.float64).reshape(-1, 2)
        curves.append(Series(run.number, run.name, pairs[:, 0], pairs[:, 1]))
    return curves


def figures(runs: Sequence[Run]) -> str:
    """All curves of which there is something to show; by time on a logarithmic axis if some runs took far longer."""
    ends = [end for run in runs if (end := _number(run.last("seconds"))) > 0]
    far = bool(ends) and max(ends) > 20 * min(ends)
    accuracies = (series(runs, "evaluation", x, "validation_accuracy", factor=100) for x in ("epoch", "seconds"))
    spread = Frame("Spread of the coordinates", "standard deviation", "epoch", noisy=True, log=True)
    pictures = [
        figure(Frame("Validation accuracy", "per cent", "epoch"), next(accuracies)),
        figure(Frame("Training loss", "on batches", "epoch", True, True), series(runs, "step", "epoch", "loss")),
        figure(Frame("Validation accuracy by time", "per cent", "seconds", log_x=far), next(accuracies)),
        figure(spread, series(runs, "step", "epoch", "coordinates", "std")),
    ]
    correlations = [r["correlation"] for run in runs for r in run.steps if isinstance(r.get("correlation"), dict)]
    for part in dict.fromkeys(key for correlation in correlations for key in correlation):
        unit = f"cosine, {CORRELATIONS.get(part, part)}"
        frame = Frame(f"Correlation with the SGD gradient: {part}", unit, "epoch", noisy=True)
        pictures.append(figure(frame, series(runs, "step", "epoch", "correlation", part)))
    return "".join(pictures)


def sign(run: Run) -> str:
    """The line and the number of a run."""
    return (
        f'<svg class="key run r{run.number}" viewBox="0 0 30 12" aria-hidden="true">'
        f'<line x1="2" x2="28" y1="6" y2="6"/></svg>{run.number} '
    )


def epochs(run: Run) -> str:
    """How far a run has come, and if it has not finished how far it is to go."""
    reached, total = count(run.last("epoch"), 1).removesuffix(".0"), run.config.get("epochs")
    return reached if run.result or not total or run.config.get("steps") else f"{reached} of {show(total)}"


def legend(runs: Sequence[Run]) -> str:
    """A card for each run: its colour, its name, what it is, and how it ended."""
    cards = []
    for run in runs:
        state = f"test {percent(run.last('test_accuracy'))} %" if run.result else f"not finished: epoch {epochs(run)}"
        rest = [state, f"paper {paper(run)}"] if paper(run) else [state]
        cards.append(
            f'<li class="r{run.number}">{sign(run)}<b>{escape(run.name)}</b>'
            f'<p class="what">{escape(label(run, runs))}</p>'
            f'<p class="score">{percent(run.last("validation_accuracy"))} % <small>validation</small></p>'
            f'<p class="rest">{"<br>".join(map(escape, rest))}</p></li>'
        )
    return f'<ul class="legend">{"".join(cards)}</ul>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    """A table in a box of its own, from cells of HTML; the first columns, so many, are texts, all others numbers."""
    kinds = ["text" if column < texts else "number" for column in range(len(head))]
    top = "".join(f'<th class="{kind}" scope="col">{cell}</th>' for kind, cell in zip(kinds, head, strict=True))
    body = ""
    for first, *rest in rows:
        cells = "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in zip(kinds[1:], rest, strict=True))
        body += f'<tr><th scope="row">{first}</th>{cells}</tr>\n'
    return f'<div class="box" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table></div>'


def best(runs: Sequence[Run], key: str) -> tuple[float, str] | None:
    """The highest of the runs' figures, and the name of the first run that has it; None if there are none."""
    known = [(score, run.name) for run in runs if not math.isnan(score := _number(run.last(key)))]
    return max(known, key=lambda pair: pair[0], default=None)


def final(run: Run, leads: bool) -> dict[str, str]:
    """The figures at the end of a run, each with its heading; `leads`: none has a better test accuracy."""
    D, test = run.last("D"), percent(run.last("test_accuracy"))
    d, family = (None, DASH) if run.method() == "sgd" else (run.last("d"), show(run.config.get("family", "")))
    return {
        "run": f"{sign(run)}<b>{escape(run.name)}</b>",
        "method": escape(run.method()),
        "family": escape(family),
        "d": count(d),
        "D": count(D),
        "D / d": ratio(D, d),
        "epochs": escape(epochs(run)),
        "train": percent(run.last("train_accuracy")),
        "validation": percent(run.last("validation_accuracy")),
        "paper": escape(paper(run).removesuffix(" %")) or DASH,
        "test": f"<b>{test}</b>" if leads else test,
        "seconds": count(run.last("seconds"), 1),
        "images/s": count(run.last("images_per_second")),
        "bytes a step": count(run.last("bytes_per_step")),
        "of SGD, 4\N{NO-BREAK SPACE}D": count(4 * _number(D)),
        "sha256 of theta": f'<code class="hash">{escape(str(run.result.get("sha256", DASH)))}</code>',
    }


def results(runs: Sequence[Run]) -> str:
    """The table of final figures, and which runs ended in the same bits."""
    top = best(runs, "test_accuracy")
    rows = [final(run, leads=top is not None and _number(run.last("test_accuracy")) == top[0]) for run in runs]
    groups: dict[str, list[str]] = {}
    for run in runs:
        groups.setdefault(str(run.result.get("sha256", run.number)), []).append(str(run.number))
    same = [f"Runs {' and '.join(group)} ended in the same bits." for group in groups.values() if len(group) > 1]
    note = (
        "Accuracies are in per cent, the paper's on validation data. Data-parallel SGD sends 4 D bytes a step. "
        "A click on a checksum selects all of it."
    )
    return (
        table([escape(head) for head in rows[0]], [list(row.values()) for row in rows], texts=3)
        + f'<p class="note">{" ".join([*same, note])}</p>'
    )


def _pairs(table: Record) -> str:
    """Keys and values."""
    pairs = (f"<div><dt>{escape(key)}</dt><dd>{escape(show(value))}</dd></div>" for key, value in table.items())
    return f"<dl>{''.join(pairs)}</dl>"


def configurations(runs: Sequence[Run]) -> str:
    """What differs between the runs, what all share, and all about each by itself, with its checksum."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    values = {key: [show(run.config.get(key, "")) for run in runs] for key in keys}
    titles = [f"{sign(run)}{escape(run.name)}" for run in runs]
    rows = [[escape(key), *map(escape, row)] for key, row in values.items() if len(set(row)) > 1]
    parts = [f"<h3>What differs</h3>{table(['key', *titles], rows, texts=len(runs) + 1)}"] if rows else []
    if len(runs) > 1:
        shared = {key: row[0] for key, row in values.items() if len(set(row)) == 1}
        parts.append(f"<h3>What all share</h3>{_pairs(shared)}")
    for run, title in zip(runs, titles, strict=True):
        inside = _pairs({**run.config, "sha256 of theta": run.result.get("sha256", "")})
        opened = " open" * (len(runs) == 1)
        parts.append(f"<details{opened}><summary>{title}, all settings</summary>{inside}</details>")
    return "\n".join(parts)


def summary(runs: Sequence[Run]) -> str:
    """One sentence: how many runs, of what, and which is the best."""
    several = len(runs) > 1
    models = dict.fromkeys(f"{show(run.config.get('net', ''))} on {show(run.config.get('data', ''))}" for run in runs)
    text = f"{len(runs)} run{'s' * several} of {', '.join(models)}"
    for kind in ("test", "validation"):
        if top := best(runs, f"{kind}_accuracy"):
            text += f": the {'best ' * several}{kind} accuracy is {percent(top[0])} %{f', of {top[1]}' * several}"
            break
    waiting = sum(not run.result for run in runs)
    return text + (f"; {waiting} {'has' if waiting == 1 else 'have'} not finished." if waiting else ".")


def colours(runs: Sequence[Run]) -> str:
    """The colour and the dashes of each run, and what steps back while its card is pointed at."""
    rules = []
    for run in runs:
        again, colour = divmod(run.number - 1, COLOURS)
        rules.append(f".r{run.number}{{--c:var(--c{colour + 1})}}")
        rules.append(f"main:has(.legend .r{run.number}:hover) figure .run:not(.r{run.number}){{opacity:.15}}")
        if again:
            rules.append(f".r{run.number} :is(polyline,line){{stroke-dasharray:{6 / again:g} 4}}")
    return "\n".join(rules)


def build(runs: Sequence[Path]) -> str:
    """The page that compares the runs in these folders."""
    every = read(runs)
    title = "Runs compared" if len(every) > 1 else f"Run {every[0].name}"
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<style>{CSS}{colours(every)}</style></head><body><main>
<h1>{escape(title)}</h1><p class="lead">{escape(summary(every))}</p>
{legend(every)}
<h2>Curves</h2><div class="figures">
{figures(every)}</div>
<h2>Final figures</h2>{results(every)}
<h2>Configuration</h2><div class="settings">{configurations(every)}</div>
</main><script>{SCRIPT}{PRINTING}</script></body></html>
"""


def write(page: str, out: Path) -> None:
    """The page under this name, whole, or what was there before."""
    part = out.parent / f".report-{os.getpid()}.part"
    try:
        if out.exists() and not out.is_file():
            raise ReportError(f"{out} is no ordinary file, expected a name for the report: name another with -o")
        part.write_text(page, encoding="utf-8", errors="replace")
        part.replace(out)
    except OSError as error:
        raise ReportError(
            f"{out} cannot be written ({error.strerror}), expected a name in a folder that can be written to: "
            "make the folder or name another with -o"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="rbd_ref.report", description="Compare runs on one HTML page.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder that a training has written")
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="the page (report.html)")
    options = parser.parse_args(argv)
    try:
        write(build(options.runs), options.output)
    except ReportError as error:
        print(f"rbd_ref.report: {error}", file=sys.stderr)
        return 2
    print(f"The report is {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
