"""The tables of measured speed in the README and in docs/, from what `make bench` leaves in benchmarks/*.json.

python docs/speed_tables.py            writes them into the pages
python docs/speed_tables.py --check    fails where a page says something else

"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pages import put, table

from rbd_ref.spec.families import FAMILIES

DOCS = Path(__file__).parent
ROOT = DOCS.parent
Figures = dict[str, Any]


def figures_of(name: str) -> Figures:
    """What a benchmark left."""
    found: Figures = json.loads((ROOT / "benchmarks" / f"{name}.json").read_text())
    return found


def short(x: float) -> str:
    """Three digits, or all before the point."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def fixed(x: float, digits: int) -> str:
    """So many digits after the point, and no sign before what rounds to 0."""
    return f"{x:z.{digits}f}"


def times(figures: Figures) -> str:
    """Milliseconds of `descend` at both shapes, and how many times as fast as NumPy."""
    seconds = figures["seconds"]
    shapes = list(dict.fromkeys(name.partition(", ")[2] for name in seconds))
    rows = []
    for name in ("NumPy", "torch", *FAMILIES):
        wall = [seconds[f"{name}, {shape}"]["wall"] for shape in shapes]
        numpy = [seconds[f"NumPy, {shape}"]["wall"] for shape in shapes]
        cells = [(f"{short(1e3 * w)} ms", f"{short(n / w)} x") for w, n in zip(wall, numpy, strict=True)]
        rows.append([OTHERS.get(name, f"`{name}`"), *sum(cells, ())])
    return table(["", *(cell for shape in shapes for cell in (shape, ""))], rows)


OTHERS = {"NumPy": "NumPy's `standard_normal`, two products", "torch": "`torch.randn`, two products"}


def bound(row: Figures) -> str:
    """A target in words."""
    return f"{'at most' if row['at_most'] else 'at least'} {row['target']:g} {row['unit']}"


def verdict(row: Figures) -> str:
    """Whether a target was reached, by what was measured and not by its rounded figure."""
    met = row["measured"] <= row["target"] if row["at_most"] else row["measured"] >= row["target"]
    return "met" if met else "**missed**"


def comparisons(rows: list[Figures]) -> list[list[str]]:
    """Rows with their targets."""
    return [
        [row["work"], row["against"], f"{short(row['measured'])} {row['unit']}", bound(row), verdict(row)]
        for row in rows
    ]


def descends(figures: Figures) -> str:
    """The comparisons of `descend` alone."""
    return table(["", "against", "measured", "target", ""], comparisons(figures["rows"])) + quiet(figures)


def targets(figures: Figures, trainer: Figures) -> str:
    """Every comparison with its target; all of memory in one line, and the trainer's own share of a step."""
    memory = [row for row in figures["rows"] if row["work"].startswith("peak memory")]
    rows = comparisons([row for row in figures["rows"] if row not in memory])
    least, most = (choose(memory, key=lambda row: row["measured"]) for choose in (min, max))
    work = "peak memory above theta and g, D = 10^5 to 10^8, vectors of D"
    spread = f"{least['measured']:g} to {most['measured']:g}"
    rows.append([work, "", spread, f"at most {most['target']:g}", verdict(most)])
    for family, most in (("normal", 0.05), ("srht", 0.1)):
        share = {"measured": own(trainer, family), "target": most, "at_most": True}
        work = f"the trainer's own part of a step, fc, {family}, d = 250"
        rows.append([work, "the step", f"{share['measured']:.1%}", f"at most {most:.0%}", verdict(share)])
    return table(["", "against", "measured", "target", ""], rows) + quiet(figures)


def quiet(figures: Figures) -> str:
    """A sentence of what else the machine did."""
    before, after = figures["machine"]["load"][0], figures["load after"][0]
    taken = "" if not figures["stolen"] else f", and its host gave {figures['stolen']:.1%} of the time to others"
    return f"\nThe machine's load was {before:.1f} before and {after:.1f} after{taken}.\n"


def own(trainer: Figures, family: str) -> float:
    """The part of a step that is neither gradient nor `descend`."""
    parts = trainer["milliseconds"][family]
    return float(1 - (parts["gradient"] + parts["descend"]) / parts["all"])


def trainer_table(trainer: Figures) -> str:
    """Milliseconds of a step by part."""
    parts = list(trainer["milliseconds"]["normal"])
    rows = [
        [f"`{family}`", *(fixed(found[part], 3) for part in parts), f"{own(trainer, family):.1%}"]
        for family, found in trainer["milliseconds"].items()
    ]
    return table(["family", *parts, "the trainer's own"], rows)


def gradients(figures: Figures) -> str:
    """Loss and gradient beside PyTorch's: milliseconds, their ratio, that of processor times, and the target."""
    found = figures["milliseconds"]
    rows = []
    for row in figures["rows"]:
        pair = [short(value) for value in found[row["work"]].values()] if row["work"] in found else ["", ""]
        ratios = [f"{row[name]:.2f} x" for name in ("measured", "by_processor")]
        rows.append([row["work"], row["against"], *pair, *ratios, bound(row), verdict(row)])
    heads = ["", "against", "ms", "its ms", "measured", "processor, one thread", "target", ""]
    return table(heads, rows) + quiet(figures)


def operations(figures: Figures) -> str:
    """Milliseconds of the operations of a network that take longest, and how many of the rest."""
    found = figures["rows"]
    shown = [row for row in found if row["all"] >= LEAST_SHOWN]
    rows = [
        [row["what"], row["way"], fixed(row["one"], 2), fixed(row["all"], 2),
         fixed(row["GFLOP/s"], 0) if row["GFLOP/s"] else ""]
        for row in shown
    ]  # fmt: skip
    rest = [row for row in found if row not in shown]
    sums = [fixed(sum(row[name] for row in rest), 2) for name in ("one", "all")]
    rows.append([f"{len(rest)} others", "", *sums, ""])
    limits = ", ".join(f"{value:,.0f} {name}" for name, value in figures["limits"].items())
    heads = ["", "", "one thread, ms", f"{figures['machine']['threads']} threads, ms", "GFLOP/s of one"]
    return table(heads, rows) + f"\nOne thread at best: {limits}.\n"


LEAST_SHOWN = 0.2  # milliseconds


def exponents(growth: Figures) -> str:
    """How cost grows at the largest sizes."""
    found = growth["exponents"]
    return table(
        ["family", "in d", "in D"],
        [[f"`{name}`", *(fixed(found[along][name], 2) for along in "dD")] for name in FAMILIES],
    )


def by_ranks(growth: Figures) -> str:
    """The same for ranks."""
    return table(
        ["sixteen workers", "in ranks, 1 to 16"],
        [[name, fixed(value, 2)] for name, value in growth["exponents"]["ranks"].items()],
    )


def rates(backends: Figures) -> str:
    """Million entries of directions a second, of every backend."""
    found: dict[str, dict[str, float]] = {}
    for row in backends["rows"]:
        found.setdefault(row["what"], {})[row["family"]] = row["rate"]
    rows = [
        [name, *(f"{rate[family] / 1e6:,.3g}" if family in rate else "" for family in FAMILIES)]
        for name, rate in found.items()
    ]
    return table(["", *(f"`{family}`" for family in FAMILIES)], rows)


def instructions(counts: Figures) -> str:
    """Instructions of AVX2 for an entry, and what a further direction costs where there are many."""
    rows = [
        [f"`{name}`", fixed(found["an entry"], 3), "" if name == "srht" else fixed(found["growth"], 3)]
        for name, found in counts["families"].items()
    ]
    return table(["family", "instructions an entry", "growth"], rows)


def parts(figures: Figures) -> str:
    """Nanoseconds an entry by part."""
    found = figures["nanoseconds"]
    names = list(found["normal"])
    return table(["family", *names], [[f"`{name}`", *(fixed(row[n], 3) for n in names)] for name, row in found.items()])


def cores(figures: Figures) -> str:
    """Milliseconds of one thread, how much more several threads do, and several processes; kernels alone, and Python's
    microseconds around them."""
    rows = [
        [
            f"`{row['family']}`",
            f"D = {row['D']:,}, d = {row['d']:,}",
            short(row["milliseconds"]),
            *(f"{row[name]:.2f} x" for name in ("threads", "processes", "kernel")),
            short(row["around"]),
        ]
        for row in figures["rows"]
    ]
    n = figures["machine"]["threads"]
    heads = [f"{n} threads", f"{n} processes", f"{n} threads, kernel alone", "around it, microseconds"]
    return table(["family", "", "one thread, ms", *heads], rows)


def sleeping(figures: Figures) -> str:
    """Microseconds of a kernel by how long its threads had nothing to do."""
    found = figures["sleeping"]
    names = {"idle": "nothing to do for", "kernel": "then the kernel takes"}
    return table(
        ["microseconds", *("" for _ in found)],
        [[title, *(short(row[name]) for row in found)] for name, title in names.items()],
    )


def awake(figures: Figures) -> str:
    """Mean milliseconds of a call by how long threads wait awake, alone and beside a busy process."""
    found = {(row["family"], row["spins"], row["busy"]): short(row["milliseconds"]) for row in figures["awake"]}
    families, spins = (list(dict.fromkeys(key[i] for key in found)) for i in (0, 1))
    heads = [f"`{n}`, {'one busy process' if busy else 'alone'}" for busy in (False, True) for n in spins]
    rows = [[f"`{name}`", *(found[name, n, busy] for busy in (False, True) for n in spins)] for name in families]
    return table(["mean milliseconds", *heads], rows)


def steps(figures: Figures) -> str:
    """A step of each optimizer beside AdamW's, by number of parameters."""
    sizes = list(dict.fromkeys(row["D"] for row in figures["rows"]))
    found = {(row["optimizer"], row["D"]): row for row in figures["rows"]}
    rows = [
        [
            f"`{name}`" if "." in name else name,
            *(f"{short(found[name, D]['milliseconds'])} ms, {found[name, D]['of AdamW']:.2f} x" for D in sizes),
            f"{found[name, sizes[-1]]['of AdamW, processor']:.2f} x",
            f"{found[name, sizes[-1]]['vectors']:.2f} D",
        ]
        for name in dict.fromkeys(row["optimizer"] for row in figures["rows"])
    ]
    heads = [*(f"D = {D:,}, of AdamW's" for D in sizes), "processor time", "memory"]
    return table(["", *heads], rows) + quiet(figures)


def exchanges(figures: Figures) -> str:
    """Milliseconds of a step over each link, and the bytes that it sent."""
    links = list(dict.fromkeys(row["link"] for row in figures["rows"]))
    found = {(row["method"], row["link"]): row for row in figures["rows"]}
    rows = [
        [
            method,
            *(f"{short(found[method, link]['milliseconds'])} ms" for link in links),
            f"{found[method, links[0]]['bytes']:,.0f}",
        ]
        for method in dict.fromkeys(row["method"] for row in figures["rows"])
    ]
    return table(["", *links, "bytes a step"], rows) + quiet(figures)


def main(arguments: list[str]) -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail where a page says something else")
    check = parser.parse_args(arguments).check
    speed = figures_of("speed")
    trainer = figures_of("trainer")
    growth = figures_of("growth")
    pages = {
        ROOT / "README.md": {"times": times(speed)},
        DOCS / "own-model.md": {
            "optimizer": steps(figures_of("optimizer")),
            "ddp": exchanges(figures_of("ddp")),
        },
        DOCS / "backends.md": {"rates": rates(figures_of("backends"))},
        DOCS / "speed.md": {
            "targets": targets(speed, trainer),
            "trainer": trainer_table(trainer),
            "networks": gradients(figures_of("networks")),
            "operations": operations(figures_of("operations")),
            "networks-avx2": gradients(figures_of("networks-avx2")),
            "targets-avx2": descends(figures_of("speed-avx2")),
            "exponents": exponents(growth),
            "ranks": by_ranks(growth),
            "instructions": instructions(figures_of("instructions")),
            "parts": parts(figures_of("parts")),
            "cores": cores(figures_of("cores")),
            "sleeping": sleeping(figures_of("cores")),
            "awake": awake(figures_of("cores")),
            "haswell": parts(figures_of("parts-avx2")),
        },
    }
    differ = [page.name for page, tables in pages.items() if not put(page, tables, check)]
    if check and differ:
        print(f"{', '.join(differ)} say other than benchmarks/*.json: python docs/speed_tables.py", file=sys.stderr)
    return 1 if check and differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
