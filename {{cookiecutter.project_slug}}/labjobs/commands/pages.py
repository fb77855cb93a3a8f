"""`docs`: the pages about the engine, in the terminal. The template's website has the same ones."""

import pydoc
import sys
from pathlib import Path

from labjobs.errors import SettingsError, did_you_mean
from labjobs.files import ENGINE


def print_docs(wanted: str) -> int:
    """Print a page by its name, the lines of all pages that have a word in them, or, if nothing is
    wanted, the names of the pages. Raises SettingsError for a word that is nowhere."""
    pages = {path.stem: path for path in sorted((ENGINE / "docs").glob("*.md"))}
    if not wanted:
        width = max(map(len, pages))
        print("\n".join(f"{name:{width}}  {_title(path)}" for name, path in pages.items()))
    elif wanted in pages:
        text = _without_pictures(pages[wanted])
        # A pager waits for keys, which a program that reads the page does not press.
        (pydoc.pager if sys.stdout.isatty() else print)(text)
    else:
        print("\n".join(_found(wanted, pages)))
    return 0


def _title(page: Path) -> str:
    return page.read_text().partition("\n")[0].removeprefix("# ")


def _without_pictures(page: Path) -> str:
    lines = page.read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith("!["))


def _found(word: str, pages: dict[str, Path]) -> list[str]:
    lines = [
        f"{name}: {line.strip()}"
        for name, page in pages.items()
        for line in _without_pictures(page).splitlines()
        if word.lower() in line.lower()
    ]
    if not lines:
        raise SettingsError(f"docs {word}: no page has this word; {did_you_mean(word, pages)}")
    return lines
