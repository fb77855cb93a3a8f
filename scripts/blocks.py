"""Count the code blocks of all pages, by how tests know that they are right.

python scripts/blocks.py    the table of docs/blocks.md
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
INNER = "{{cookiecutter.project_slug}}"
PAGES = ("*.md", "docs/*.md", f"{INNER}/*.md", f"{INNER}/labjobs/docs/*.md", "examples/*/*.md")

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)

RECIPES = (
    *("What `plain` leaves out", "Another loss", "Metrics of all outputs"),
    *("An optimizer, a schedule, two learning rates", "A step as one CUDA graph"),
    *("Examples of different lengths", "Batches that change during training", "Streams"),
    *("State that is carried from batch to batch", "Pairs and triplets", "A figure of your own"),
    *("The same fraction of each class in every part", "Evaluation in the background"),
    "All images of a patient in one part",
)
RUN = {
    "recipes.md": dict.fromkeys(RECIPES, "test_recipes.py")
    | {"A script of your own": "test_scripts.py", "An average over many tasks": "test_figures.py"},
    "adopt.md": dict.fromkeys(
        ("Add labjobs to a script of your own", "1. Settings, identity, MLflow", "3. Sweeps"),
        "test_adoption.py",
    ),
}
"""Tests that put a block into a project and run it, by page and heading."""

WRITTEN = {"tutorial.md": "docs/make_tutorial.py"}
"""Pages whose blocks a script has run, and written with what they printed."""

KINDS = {
    "run": "in a project that a test runs or checks, or run by the script that wrote the page",
    "grids": "`bash run.sh --list` reads the grid, and checks all of its jobs",
    "declared": "settings and metrics, which the engine declares and checks",
    "commands": "each flag and each command of `jobs.py` exists",
    "code": "a part of a function or script, which Python compiles",
    "data": "TOML, JSON and the like, which are read",
    "shown": "what a command has printed, or a file for another program",
}

LANGUAGES = {"bash": "commands", "python": "code", "toml": "data", "json": "data", "ini": "data"}


class Block(NamedTuple):
    """A code block, the page and the heading that it is under."""

    page: Path
    heading: str
    language: str
    text: str

    @property
    def name(self) -> str:
        """What the page is called in the table."""
        path = self.page.relative_to(REPOSITORY)
        return (
            f"a project's {path.name}"
            if path.parts[:-1] == (INNER,)
            else str(path).replace(f"{INNER}/", "")
        )

    @property
    def kind(self) -> str:
        """How it is known to be right: one of KINDS."""
        if self.page.name in WRITTEN or self.heading in RUN.get(self.page.name, {}):
            return "run"
        if self.text.startswith("grid() {"):
            return "grids"
        if re.match(r'"\w+": Metric\(|\w+: [\w\[\]", ]+ = ', self.text):
            return "declared"
        return LANGUAGES.get(self.language, "shown")


def blocks() -> Iterator[Block]:
    """Yield the code blocks of all pages."""
    for page in sorted(path for pattern in PAGES for path in REPOSITORY.glob(pattern)):
        text = page.read_text()
        for found in FENCED.finditer(text):
            *_, heading = HEADING.findall(FENCED.sub("", text[: found.start()]))
            yield Block(page, heading, *found.groups())


def table() -> str:
    """Return how many blocks of each kind the pages have, in Markdown."""
    rows: dict[str, Counter[str]] = {}
    for block in blocks():
        rows.setdefault(block.name, Counter())[block.kind] += 1
    rows["all pages"] = sum(rows.values(), Counter())
    lines = ["| page | blocks | " + " | ".join(KINDS) + " |", "| --- " * (len(KINDS) + 2) + "|"]
    for name, counts in rows.items():
        cells = [counts.total(), *(counts[kind] or "" for kind in KINDS)]
        lines.append(f"| {name} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
    sys.exit(0)
