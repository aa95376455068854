"""The packages, what imports what, and the picture of it: read from the sources, not from what someone believes.

python docs/package_graph.py            draws docs/packages.png and writes the table of docs/architecture.md
python docs/package_graph.py --check    fails where an import goes up, or the table says something else

An import goes down from one layer to a lower one. Within a layer nobody imports a neighbour. Modules whose names begin
with an underscore are at the bottom, for everyone, and not drawn. `import rbd_ref` for its version is no edge.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pages import put, table

HERE = Path(__file__).parent
ROOT = HERE.parent
PAGE = HERE / "architecture.md"
PICTURE = HERE / "packages.png"
LAYERS = (
    ("sweep", "paper"),
    ("train", "replay", "report", "analysis", "suggest", "warmup", "conformance"),
    ("training",),
    ("runs",),
    ("methods", "models", "data"),
    ("basis", "random"),
    ("kernels", "numpy_backend"),
    ("backend",),
    ("spec",),
)
FACADE = "rbd_ref"  # rbd_ref/__init__.py
TITLES = {
    FACADE: "the names that users call",
    "sweep": "command: trains a grid",
    "paper": "command: repeats the paper",
    "train": "command: trains",
    "replay": "command: repeats a run",
    "report": "command: shows runs",
    "analysis": "command: looks into runs",
    "suggest": "command: rate and costs",
    "warmup": "command: compiles kernels",
    "conformance": "the suite for backends",
    "training": "trainer, problems, logbook",
    "runs": "settings, journal, folders",
    "methods": "sgd, rbd, fpd, nes",
    "models": "networks and layers",
    "data": "data sets and batches",
    "basis": "project and reconstruct",
    "random": "portable random numbers",
    "kernels": "spec as machine code",
    "numpy_backend": "spec as a backend",
    "backend": "what a backend is",
    "spec": "the definition, NumPy only",
    "rbd_mpi": "the communicator over MPI",
    "rbd_torch": "RBD for torch, backend `torch`",
    "rbd_jax": "the backend `jax`",
    "rbd_cuda": "the backend `cuda`",
    "rbd_ipu": "the backend `ipu`",
    "backends": "torch, jax, cuda, ipu",  # the four as one box of the picture
}
Edges = dict[str, set[str]]  # a unit, and the units that its files import


def outside() -> dict[str, Path]:
    """The packages beside rbd_ref, which it finds by entry points."""
    return {path.parent.name: path.parent for path in sorted(ROOT.glob("[bm]*/rbd_*/__init__.py"))}


def units() -> dict[str, list[Path]]:
    """Every unit of the graph and its files: packages and modules of rbd_ref, and the packages beside it."""
    package = ROOT / "rbd_ref"
    found = {path.stem: [path] for path in package.glob("*.py") if not path.name.startswith("_")}
    found |= {init.parent.name: sorted(init.parent.rglob("*.py")) for init in package.glob("*/__init__.py")}
    found |= {name: sorted(folder.rglob("*.py")) for name, folder in outside().items()}
    return {FACADE: [package / "__init__.py"], **found}


def imported(tree: ast.AST) -> Iterator[str]:
    """The full names of the modules that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from names if node.module == FACADE else [node.module]


def uses_more_than_version(tree: ast.AST) -> bool:
    """Whether a file takes anything but `__version__` from `rbd_ref` itself."""
    taken = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    return any(node.value.id == FACADE and node.attr != "__version__" for node in taken)  # type: ignore[attr-defined]


def targets(source: Path) -> Iterator[str]:
    """The units that a file imports, those at the bottom left out."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for name in imported(tree):
        top, *rest = name.split(".")
        if top in outside():
            yield top
        elif top == FACADE and not rest and uses_more_than_version(tree):
            yield FACADE
        elif top == FACADE and rest and not rest[0].startswith("_"):
            yield rest[0]


def edges() -> Edges:
    """Who imports whom."""
    return {unit: {name for file in files for name in targets(file)} - {unit} for unit, files in units().items()}


def height(unit: str) -> int:
    """The layer of a unit, counted from below; what users call and what is found by entry points is at the top."""
    if unit == FACADE or unit in outside():
        return len(LAYERS)
    return next(len(LAYERS) - n for n, layer in enumerate(LAYERS) if unit in layer)


def unplaced(graph: Edges) -> list[str]:
    """Sentences about units that are in no layer."""
    known = {FACADE, *outside(), *(unit for layer in LAYERS for unit in layer)}
    found = sorted({*graph, *(name for names in graph.values() for name in names)} - known)
    return [f"{unit} is in no layer, expected it in LAYERS of docs/package_graph.py: add it" for unit in found]


def upward(graph: Edges) -> list[str]:
    """Sentences about imports that do not go down."""
    return [
        f"{unit} imports {name}, which is not below it: turn the import round, or move what is needed down"
        for unit, names in graph.items()
        for name in sorted(names)
        if height(name) >= height(unit)
    ]


def undeclared(graph: Edges) -> list[str]:
    """Sentences about imports that the docstring of a package does not allow."""
    wrong = []
    for unit in graph:
        line = re.search(r"^May import: ([\w, ]+)\.$", units()[unit][0].read_text(encoding="utf-8"), flags=re.M)
        more = graph[unit] - set(line[1].split(", ")) if line else set()
        wrong += [f"{unit} imports {name}, which its line `May import:` does not name" for name in sorted(more)]
    return wrong


def faults(graph: Edges) -> list[str]:
    """All that is wrong, a sentence each."""
    return unplaced(graph) or [*upward(graph), *undeclared(graph)]


def packages(graph: Edges) -> str:
    """The table of the page, top to bottom."""
    order = [FACADE, *(unit for layer in LAYERS for unit in layer), *outside()]
    place = {unit: n for n, unit in enumerate(order)}
    rows = [
        [f"`{unit}`", TITLES[unit], ", ".join(f"`{name}`" for name in sorted(graph[unit], key=place.__getitem__))]
        for unit in order
    ]
    return table(["", "what it holds", "imports"], rows)


# The picture

INK, LINE = "#1d2733", "#0b6e99"
COLOURS = {"spec": "#fdf1d6", "rbd_mpi": "#e2f1e8", "backends": "#e2f1e8"}  # and the others pale blue
WIDTH, HEIGHT, ROW = 3.4, 0.8, 1.5
COLUMNS = {
    "rbd_mpi": -9,
    FACADE: -5.4,
    "sweep": -1.8,
    "paper": 1.8,
    "train": -1.8,
    "replay": 1.8,
    "suggest": 5.4,
    "analysis": 9,
    "warmup": 12.6,
    "report": 16.2,
    "conformance": 19.8,
    "training": -2.4,
    "runs": 0,
    "methods": -4.5,
    "data": 0,
    "models": 4.5,
    "basis": -4.5,
    "random": 4.5,
    "numpy_backend": -5.8,
    "kernels": 2.8,
    "backend": 0,
    "spec": 0,
    "backends": 19.8,
}
NOTE = """\
An arrow is an import. Left out: imports that a longer
path of arrows stands in for, and those of _check,
_types and the like, which everyone may import."""


def drawn(graph: Edges) -> Edges:
    """The graph with the four backends as one box, called `backends`."""
    four = set(outside()) - {"rbd_mpi"}
    return {
        **{unit: names for unit, names in graph.items() if unit not in four},
        "backends": set().union(*(graph[unit] for unit in four)),
    }


def place(unit: str) -> tuple[float, float]:
    """The middle of a box."""
    row = 2 if unit == "backends" else len(LAYERS) - height(unit)
    return COLUMNS[unit], -ROW * row


def below(graph: Edges, unit: str) -> set[str]:
    """All that a unit imports, itself or by others."""
    return set().union(*({name} | below(graph, name) for name in graph[unit]))


def arrows(graph: Edges) -> list[tuple[str, str]]:
    """The edges that are drawn: of packages outside all, of others those that no longer path stands in for."""
    return [
        (unit, name)
        for unit, names in graph.items()
        for name in sorted(names)
        if unit == "backends" or not any(name in below(graph, other) for other in names)
    ]


def ends(unit: str, name: str) -> tuple[tuple[float, float], tuple[float, float], str]:
    """Where an arrow begins and ends, and how it runs: straight down, or for backends along the right side."""
    (x0, y0), (x1, y1) = place(unit), place(name)
    if unit == "backends":
        return (x0, y0 - HEIGHT / 2), (x1 + WIDTH / 2, y1), "angle,angleA=-90,angleB=0,rad=14"
    lean = 0.22 * WIDTH * max(-1.0, min(1.0, (x0 - x1) / 6))  # arrows from afar arrive on their own side
    return (x0, y0 - HEIGHT / 2), (x1 + lean, y1 + HEIGHT / 2), "arc3"


def draw(graph: Edges) -> None:
    """docs/packages.png."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    figure, axes = plt.subplots(figsize=(18, 7.4), layout="constrained")
    for unit, name in arrows(graph):
        start, end, way = ends(unit, name)
        line = {"arrowstyle": "-|>", "mutation_scale": 13, "color": LINE, "lw": 1.5, "shrinkA": 0, "shrinkB": 3}
        axes.add_patch(FancyArrowPatch(start, end, connectionstyle=way, zorder=1, **line))
    for unit in graph:
        x, y = place(unit)
        fill = {"facecolor": COLOURS.get(unit, "#e8eef4"), "edgecolor": INK, "linewidth": 0.9, "zorder": 2}
        corner = (x - WIDTH / 2, y - HEIGHT / 2)
        axes.add_patch(FancyBboxPatch(corner, WIDTH, HEIGHT, "round,pad=0,rounding_size=0.12", **fill))
        axes.text(x, y + 0.15, unit, ha="center", va="center", weight="bold", color=INK, fontsize=12)
        axes.text(x, y - 0.19, TITLES[unit], ha="center", va="center", color=INK, fontsize=8.5)
    axes.text(-10.5, place("spec")[1], NOTE, va="center", color=INK)
    axes.set(xlim=(-10.8, 21.6), ylim=(place("spec")[1] - 0.5, 0.5))
    axes.set_axis_off()
    figure.savefig(PICTURE, dpi=150)
    plt.close(figure)


def main(arguments: list[str]) -> int:
    """Draw and write, or compare."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="fail where an import goes up or the page says otherwise")
    check = parser.parse_args(arguments).check
    graph = edges()
    wrong = faults(graph)
    if not wrong and not put(PAGE, {"packages": packages(graph)}, check) and check:
        wrong = [f"{PAGE.name} says other than the sources: python docs/package_graph.py"]
    if not wrong and not check:
        draw(drawn(graph))
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
