"""Draws the engine's layers from its code: the contract of import-linter, and the real imports."""

import tomllib
from pathlib import Path
from textwrap import wrap

import grimp
import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import FancyBboxPatch

REPOSITORY = Path(__file__).resolve().parents[1]
LIBRARIES = ("torch", "numpy", "mlflow", "sqlalchemy", "pandas", "scipy", "matplotlib")
WIDTH, LIBRARIES_WIDTH, LINE = 100.0, 40.0, 7.0


def layers() -> list[list[str]]:
    """Return the modules of each layer, the highest first, as pyproject.toml has them."""
    tools = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]
    found = tools["importlinter"]["contracts"][0]["layers"]
    return [[name.strip() for name in row.split("|")] for row in found]


def libraries(graph: grimp.ImportGraph, rows: list[list[str]]) -> list[set[str]]:
    """Return for each layer which large libraries its modules import, at any place in them."""
    found: list[set[str]] = [set() for _ in rows]
    members = {name: row for row, names in enumerate(rows) for name in names}
    for module in graph.modules:
        parts = module.split(".")
        names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        row = next((members[name] for name in names if name in members), None)
        if row is not None and parts[0] == "labjobs":
            imported = graph.find_modules_directly_imported_by(module)
            found[row] |= {name for name in imported if name in LIBRARIES}
    return found


def draw(path: Path) -> None:
    """Draw the layers to an SVG file; a project has to be on sys.path."""
    rows = layers()
    graph = grimp.build_graph("labjobs", include_external_packages=True, cache_dir=None)
    used = libraries(graph, rows)
    lines = [_wrapped([name.removeprefix("labjobs.") for name in row]) for row in rows]
    height = sum(len(each) for each in lines) * LINE + len(rows) * 2.5 + 7
    with matplotlib.rc_context({"svg.hashsalt": "layers", "svg.fonttype": "path"}):
        fig = pyplot.figure(figsize=(8, 8 * height / (WIDTH + LIBRARIES_WIDTH)))
        ax = fig.add_axes((0, 0, 1, 1), xlim=(0, WIDTH + LIBRARIES_WIDTH), ylim=(height, 0))
        ax.axis("off")
        ax.text(1, 3.5, "imports only what is below", va="center", size=9, color="#555555")
        ax.text(WIDTH + 2, 3.5, "libraries", va="center", size=9, color="#555555")
        top = 7.0
        for texts, names in zip(lines, used, strict=True):
            tall = len(texts) * LINE
            box = FancyBboxPatch(
                (1, top), WIDTH - 2, tall, boxstyle="round,pad=0,rounding_size=1", fc="#e8f0fa"
            )
            box.set_edgecolor("#4a78b0")
            ax.add_patch(box)
            for number, text in enumerate(texts):
                place = top + (number + 0.5) * LINE
                ax.text(WIDTH / 2, place, text, ha="center", va="center", size=9, color="#111111")
            said = "\n".join(wrap(", ".join(name for name in LIBRARIES if name in names), 24))
            ax.text(WIDTH + 2, top + tall / 2, said, va="center", size=9, color="#8a4b08")
            top += tall + 2.5
        fig.savefig(path, metadata={"Date": None}, facecolor="white")
        pyplot.close(fig)


def _wrapped(names: list[str], width: int = 58) -> list[str]:
    """Return names joined into lines of at most `width` characters."""
    lines = [""]
    for name in names:
        longer = f"{lines[-1]}   {name}" if lines[-1] else name
        if len(longer) > width:
            lines.append(name)
        else:
            lines[-1] = longer
    return lines
