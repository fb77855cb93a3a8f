"""A paper and its results: what it says and they do not, and what the NeurIPS checklist asks.

Numbers with a decimal point are looked for in the tables and captions that plot.py has written,
rounded as in the text, or as a percentage.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from labjobs.errors import SettingsError
from labjobs.files import read_json
from labjobs.results import groups, paper_tables, style, tables
from labjobs.results.metrics import NoResults
from labjobs.results.paper_tables import Tabulating
from labjobs.results.style import Venue

LENGTH = r"in\b|\s*(?:pt|cm|mm|em|ex|bp)\b|\\[a-z]*width"  # but `0.93 in all runs` is none

NUMBER = re.compile(
    rf"(?<![^\W_]|[.,\\])(?:\d[\d,]*)?\.\d+(?:e[-+]?\d+)?(?![^\W_]{{2}}|\d|\.\d|{LENGTH})"
)
"""A decimal number that is no length and no version; `1,234.5`, `.93`, `7.8e-3`, `1.7x`, `45.6M`
and `0.93_{0.01}` are numbers."""

UNSEEN = re.compile(
    r"(?<!\\)%.*|\\(?:input|includegraphics|[vh]space|label|ref|cite\w*)\b[^}]*}"
    r"|\\(?![a-z]*width)[A-Za-z]+"
)
"""What is not text: comments, files, references, and commands such as `\\pm` in `0.93\\pm0.01`."""

PARTS = re.compile(r"\\(?:input|include|subfile)\s*{([^}]*)}")
INCLUDED = re.compile(r"\\includegraphics\s*(?:\[([^]]*)\])?\s*{([^}]*)}")
BOXED = re.compile(r"\\(?:resize|scale)box\b(?=.*\\includegraphics)")
WIDTH = re.compile(r"width\s*=\s*([\d.]*)\s*(\\(?:line|column|text)width|in|cm|mm|pt)")

COUNTS = ("n", "jobs", "tried", "finished", "diverged", "failed", "among", "best_step")
"""Columns of tables that are no results. Neither are settings, but fractions among them, such as a
learning rate, stand in papers as well."""

INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}


def findings(paper: Path, figures: Path, of_tables: Path) -> list[str]:
    """Return what a LaTeX file, or one that it includes, says that the results do not, each in one
    line. Raises SettingsError if one cannot be read, or if no tables have been written."""
    known = [*_known(figures, of_tables)]
    if not any(of_tables.glob("*.csv")):
        raise SettingsError(f"--audit: no tables in {of_tables}; type python plot.py first")
    made = {folder.resolve() for folder in (figures, of_tables)}
    files = [paper]
    for path in files:  # which grow
        named = PARTS.findall(re.sub(r"(?<!\\)%.*", "", _read(path)))
        parts = (paper.parent / (name if Path(name).suffix else f"{name}.tex") for name in named)
        new = (part for part in parts if part.is_file() and part.resolve().parent not in made)
        files += [part for part in dict.fromkeys(new) if part not in files]
    return [line for path in files for line in _findings(path, _read(path), known, figures)]


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--audit {path}: cannot be read ({error})") from error


def _findings(paper: Path, text: str, known: Sequence[float], figures: Path) -> list[str]:
    body = text.rpartition(r"\begin{document}")[2]
    before = text.count("\n", 0, len(text) - len(body))
    found = []
    for place, line in enumerate(body.split("\n"), before + 1):
        for number in NUMBER.findall(UNSEEN.sub(" ", line.replace("{,}", ","))):
            if not any(_is(value, number) for value in known):
                found.append(f"{paper}:{place}: no result is {number}")
        found += [f"{paper}:{place}: {each}" for each in _scaled(line, figures)]
    return found


def _known(figures: Path, of_tables: Path) -> Iterator[float]:
    """All numbers in the tables and captions."""
    for path in sorted(of_tables.glob("*.csv")):
        about = read_json(path.with_suffix(".json"))
        if not path.read_bytes().strip():  # a table without rows
            continue
        for name, cells in pd.read_csv(path, dtype=str).items():
            numbers = pd.to_numeric(cells, errors="coerce")
            is_result = name not in {*about.get("shared", ()), *about.get("varied", ()), *COUNTS}
            yield from numbers if is_result else numbers[numbers % 1 != 0]
    for path in [*figures.glob("*.tex"), *of_tables.glob("*.tex")]:  # captions
        yield from map(float, re.findall(r"\d+\.\d+(?:e-?\d+)?", path.read_text("utf-8")))


def _is(value: float, text: str) -> bool:
    """Whether a value rounds to a number as it is written, as it is or as a percentage. Signs are
    left to the words around a number."""
    digits, _, exponent = text.replace(",", "").partition("e")
    decimals, wanted = len(digits.partition(".")[2]), float(f"{digits}e{exponent or 0}")
    half = 0.5000001 * 10.0 ** (int(exponent or 0) - decimals)
    return any(abs(abs(value) * factor - wanted) <= half for factor in (1, 100))


def _scaled(line: str, figures: Path) -> Iterator[str]:
    """Figures of the project that a line includes with another width than their own."""
    box = BOXED.search(line)
    for options, name in INCLUDED.findall(line):
        about = read_json(figures / f"{Path(name).stem}.json")
        if not about or not (options or box):
            continue
        options = box[0] if box else f"[{options}]"
        venue = style.named(about.get("venue", ""))
        cure = f"include it without {options}, or draw it for another --venue"
        scale = None if box else _scale(options, venue, about["inches"][0])
        if scale is None:
            yield f"{name} is included with {options}, which may rescale its text; {cure}"
        elif abs(scale - 1) > 0.01:
            size = scale * venue.small
            yield f"{name} is included at {scale:.0%}, with text of {size:.1f} pt; {cure}"


def _scale(options: str, venue: Venue, own: float) -> float | None:
    """The scale at which a figure whose `own` width is in inches is included; None if it cannot be
    told."""
    if found := re.search(r"scale\s*=\s*([\d.]+)", options):
        return float(found[1])
    if not (found := WIDTH.search(options)):
        return None
    unit = found[2].removeprefix("\\")
    wide = INCHES.get(unit) or (venue.full if unit == "textwidth" else venue.column)
    return float(found[1] or 1) * wide / own


def checklist(jobs: pd.DataFrame, left_out: str, main: Tabulating | None) -> str:
    """Return the answers to items 7 and 8, statistical significance and compute resources, that the
    jobs of plot.py give: neurips.cc/public/guides/PaperChecklist. `left_out` is a sentence about
    others, `main` what makes the main table, if plot.py has one."""
    repeats = groups.varying_repeats(jobs)
    others = [name for name in groups.repeated(jobs) if name not in repeats]
    folds = groups.split_settings(jobs, [groups.FOLD])  # 0 if there is no cross-validation
    fixed = [name for name in others if name not in folds or jobs[name].map(bool).all()]
    tried = Counter(tables.tried(jobs)["state"])
    states = ", ".join(f"{count} {state}" for state, count in sorted(tried.items()))
    same = f"; the same in all: {style.settings(fixed)}" if fixed else ""
    lines = [
        "## 7. Experiment statistical significance",
        "",
        f"- Jobs tried: {tried.total()}: {states}.{left_out}",
        f"- Varied between repeats: {style.settings(repeats) if repeats else 'nothing'}{same}.",
    ]
    try:
        if main:
            table, _ = main(jobs)
            lines.append(f"- {table.what}, as in the table main:{table.about}")
    except NoResults as none:
        lines.append(f"- There is no table of test results: {none}.")
    lines += [
        "- Intervals are 95% t intervals; over repeats and test examples, the squares of both "
        "halves are added; near the ends of a fraction's range they are binomial (Korn and "
        "Graubard 1998). Differences are paired by repeat and test example where these are shared, "
        "else by Welch's test, and adjusted for all rows of a column by Holm's method.",
        "",
        "## 8. Experiments compute resources",
        "",
        f"- Devices: {', '.join(sorted(jobs['hardware'].unique()))}.",
    ]
    spent = tables.spent(jobs.attrs["experiment"])
    for name, title in paper_tables.COSTS.items():
        each = groups.finite(jobs, name)
        if len(each):
            total = groups.finite(spent, name).sum() if name in paper_tables.TOTALS else None
            whole = f"; {style.number(total)} in all {len(spent)} attempts" if total else ""
            what = f"{title}: {style.number(each.mean())} for a job on average"
            lines.append(f"- {what}, {style.number(each.max())} at most{whole}.")
    lines.append(
        "- All attempts are those in the store: also jobs that failed, diverged, became stale, or "
        "were made by `jobs.py find`, but none that was started over or deleted."
    )
    return "\n".join(lines)
