"""What a paper says against what the results say: numbers in its text, the scale of its figures.

Numbers with a decimal point are looked for in the tables and captions that plot.py has written,
rounded as in the text, or as a percentage.
"""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

from labjobs.errors import SettingsError
from labjobs.results.style import Venue, named

LENGTH = r"\s*(?:pt|in|cm|mm|em|ex|bp)\b|\\[a-z]*width"

NUMBER = re.compile(rf"(?<![\w.\\])\d+\.\d+(?!\w|\.\d|{LENGTH})")
"""A decimal number that is no length and no version."""

UNSEEN = re.compile(r"(?<!\\)%.*|\\(?:input|includegraphics|[vh]space|label|ref|cite\w*)\b[^}]*}")
"""What is not text: comments, files, references."""

INCLUDED = re.compile(r"\\includegraphics\s*(?:\[([^]]*)\])?\s*{([^}]*)}")

WIDTH = re.compile(r"width\s*=\s*([\d.]*)\s*(\\(?:line|column|text)width|in|cm|mm|pt)")

INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}


def findings(paper: Path, figures: Path, tables: Path) -> list[str]:
    """Return what a LaTeX file says that the results do not, each in one line. Raises SettingsError
    if it cannot be read, or if no tables have been written."""
    try:
        text = paper.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--audit {paper}: cannot be read ({error})") from error
    known = [*_known(figures, tables)]
    if not known:
        raise SettingsError(f"--audit: no tables in {tables}; type python plot.py first")
    body = text.rpartition(r"\begin{document}")[2]
    before = text.count("\n", 0, len(text) - len(body))
    found = []
    for place, line in enumerate(body.split("\n"), before + 1):
        for number in NUMBER.findall(UNSEEN.sub("", line)):
            if not any(_is(value, number) for value in known):
                found.append(f"{paper}:{place}: no result is {number}")
        found += [f"{paper}:{place}: {each}" for each in _scaled(line, figures)]
    return found


def _known(figures: Path, tables: Path) -> Iterator[float]:
    """All numbers in the tables and captions."""
    for path in sorted(tables.glob("*.csv")):
        for row in csv.reader(path.read_text("utf-8").splitlines()):
            for cell in row:
                try:
                    yield float(cell)
                except ValueError:
                    continue
    captions = [*figures.glob("*.tex"), *tables.glob("*.tex")]
    for path in sorted(captions):
        for number in re.findall(r"\d+\.\d+(?:e-?\d+)?", path.read_text("utf-8")):
            yield float(number)


def _is(value: float, text: str) -> bool:
    """Whether a value rounds to a number as it is written, as it is or as a percentage. Signs are
    left to the words around a number."""
    decimals, wanted = len(text.partition(".")[2]), float(text)
    half = 0.5000001 * 10.0**-decimals
    return any(abs(abs(value) * factor - wanted) <= half for factor in (1, 100))


def _scaled(line: str, figures: Path) -> Iterator[str]:
    """Figures of the project that a line includes with another width than their own."""
    for options, name in INCLUDED.findall(line):
        record = figures / f"{Path(name).stem}.json"
        if not options or not record.exists():
            continue
        venue = named(json.loads(record.read_text("utf-8")).get("venue", ""))
        cure = f"include it without [{options}], or draw it for another --venue"
        scale = _scale(options, venue)
        if scale is None:
            yield f"{name} is included with {options}, which may rescale its text; {cure}"
        elif abs(scale - 1) > 0.01:
            size = scale * venue.small
            yield f"{name} is included at {scale:.0%}, with text of {size:.1f} pt; {cure}"


def _scale(options: str, venue: Venue) -> float | None:
    """The scale at which a figure that is a column wide is included; None if it cannot be told."""
    if found := re.search(r"scale\s*=\s*([\d.]+)", options):
        return float(found[1])
    if not (found := WIDTH.search(options)):
        return None
    unit = found[2].removeprefix("\\")
    wide = INCHES.get(unit) or (venue.full if unit == "textwidth" else venue.column)
    inches = float(found[1] or 1) * wide
    nearest = min((venue.column, venue.full), key=lambda width: abs(inches / width - 1))
    return inches / nearest
