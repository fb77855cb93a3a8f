"""What was found: a table, a suggestion or why there is none, a figure, and what to run next."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from labjobs.finding.drawing import Drawing
from labjobs.job.folder import JobFolder

Row = dict[str, str | int | float | None]
"""A row of the table, by the names of its columns."""


@dataclass
class Answer:
    """The answer for a setting or flag."""

    what: str
    """The name of the setting or flag, as a field."""

    value: float | int | None
    """The suggested value; None if nothing stands out."""

    why: str
    """How it was found, or why there is no suggestion, in one line."""

    rows: Sequence[Row]
    next: str
    """The command to run next."""

    draw: Drawing
    """Returns the figure and its caption."""

    jobs: Iterable[JobFolder[Any]] = ()
    figure: Sequence[str] = ()
    """The paths of its files."""

    @property
    def suggested(self) -> str:
        """The suggestion as a flag."""
        return f"--{self.what.replace('_', '-')} {self.value}"


def show(answer: Answer, as_json: bool) -> int:
    """Print an answer; returns the exit status: 0 if something is suggested, else 1."""
    if as_json:
        print(json.dumps(_plain(answer), indent=2))
    else:
        for line in table(answer.rows):
            print(line)
        found = answer.value is not None
        print(f"suggestion: {answer.suggested} ({answer.why})" if found else _nothing(answer))
        for path in answer.figure:
            print(f"figure: {path}")
        print(f"next: {answer.next}")
    sys.stdout.flush()
    return 1 if answer.value is None else 0


def table(rows: Sequence[Row]) -> list[str]:
    """Return rows as lines of text, with columns as narrow as possible."""
    names = [*rows[0]] if rows else []
    texts = [names, *([_text(row[name]) for name in names] for row in rows)]
    widths = [max(len(row[place]) for row in texts) for place in range(len(names))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in texts
    ]


def _nothing(answer: Answer) -> str:
    return f"nothing stands out: {answer.why}"


def _text(value: str | int | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def _plain(answer: Answer) -> dict[str, Any]:
    return {
        "suggestion": None if answer.value is None else {answer.what: answer.value},
        "why": answer.why,
        "rows": list(answer.rows),
        "jobs": [job.id for job in answer.jobs],
        "figure": list(answer.figure),
        "next": answer.next,
    }
