"""steps.pdf and steps.png: the ratios of steps.md, at the width of a column.

To be drawn again, once steps.py has written that page: python benchmarks/figure.py
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "{{cookiecutter.project_slug}}"))

from labjobs.results import figures, print_check
from labjobs.results.style import COLOURS, DEFAULT, VENUES

HERE = Path(__file__).resolve().parent

ROW = re.compile(r"\| ([\d.]+) \(([\d.]+) to ([\d.]+)\) \|")
NAMES = (
    "run.py, logging",
    "the same, both measure",
    "run.py, all on",
    "Accelerate",
    "Lightning",
    "Lightning, CSV",
    "MLflow async",
    "MLflow",
    "Lightning, MLflow",
)
"""The ways of steps.md in few words, in its order."""

TICKS = (1, 2, 5, 10, 20)
FILES: dict[str, dict[str, None]] = {"steps.pdf": {"CreationDate": None}, "steps.png": {}}
"""With the metadata that keeps the time of drawing out of them."""


def main() -> None:
    """Draw it."""
    figures.use(VENUES[DEFAULT])
    rows = ROW.findall((HERE / "steps.md").read_text())
    fig, ax = figures.figure("column", 2.6)
    for place, (name, numbers) in enumerate(zip(NAMES, rows, strict=True)):
        middle, least, most = map(float, numbers)
        colour = COLOURS[0 if name.startswith(("run.py", "the same")) else 6]
        ax.plot([least, most], [place, place], "-", color=colour, linewidth=1)
        ax.plot([middle], [place], "o", color=colour)
    ax.set_xscale("log")
    ax.axvline(1, color=COLOURS[6], linewidth=0.5)
    ax.set_yticks(range(len(NAMES)), NAMES)
    ax.invert_yaxis()
    ax.set_xlabel("time of a step, to a loop by hand")
    figures.ticks_at(ax, TICKS)
    assert not print_check.check(fig, VENUES[DEFAULT])
    for name, metadata in FILES.items():
        fig.savefig(HERE / name, metadata=metadata)


if __name__ == "__main__":
    main()
