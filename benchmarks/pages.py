"""What the pages of results have in common: what was measured on, and how spread is shown."""

import datetime
import os
import platform
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from itertools import chain


def machine(*packages: str, gpu: str = "") -> str:
    """The machine, the versions and the day, for a page's first lines."""
    cpu = f"{os.cpu_count()} cores, {platform.machine()}"
    named = ", ".join(f"{name} {version(name)}" for name in packages)
    python = platform.python_version()
    return f"{gpu or 'CPU'}, {cpu}; Python {python}, {named}; {datetime.date.today()}"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, least and most."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def page(title: str, about: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a page: a title, a paragraph that says what was measured, and a table."""
    print(f"# {title}\n\n{textwrap.fill(about, 100)}\n")
    table(head, rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, each row as soon as it is known."""
    for row in chain((head, ["---"] * len(head)), rows):
        print("|", " | ".join(row), "|", flush=True)
