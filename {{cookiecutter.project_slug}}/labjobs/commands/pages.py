"""`docs`: the pages about the engine, in the terminal. The template's website has the same ones."""

import pydoc
import sys
from pathlib import Path

from labjobs.errors import SettingsError, did_you_mean
from labjobs.files import ENGINE


def print_docs(wanted: str) -> int:
    """Print a page by its name, the lines of all pages that have a word in them, or, if nothing is
    wanted, the names of the pages. Raises SettingsError for a word that is nowhere."""
    pages = {path.stem: _lines(path) for path in sorted((ENGINE / "docs").glob("*.md"))}
    if not wanted:
        width = max(map(len, pages))
        for name, lines in pages.items():
            print(f"{name:{width}}  {lines[0].removeprefix('# ')}")
    elif wanted in pages:
        # A pager waits for keys, which a program that reads the page does not press.
        (pydoc.pager if sys.stdout.isatty() else print)("\n".join(pages[wanted]))
    else:
        every = [(name, line.strip()) for name, lines in pages.items() for line in lines]
        found = [f"{name}: {line}" for name, line in every if wanted.lower() in line.lower()]
        if not found:
            hint = did_you_mean(wanted, pages)
            raise SettingsError(f"docs {wanted}: no page has this word; {hint}")
        print("\n".join(found))
    return 0


def _lines(page: Path) -> list[str]:
    """A page without its pictures."""
    return [line for line in page.read_text("utf-8").splitlines() if not line.startswith("![")]
