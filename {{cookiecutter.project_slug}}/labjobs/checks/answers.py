"""The result for a guarantee: it is fine, broken somewhere, or nobody can know."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from labjobs.sources import Place


class Finding(NamedTuple):
    """What breaks a guarantee, in one line, and where in the student's code it does."""

    place: Place | None
    text: str


class Answer(NamedTuple):
    """The answer for one guarantee: fine if there are no findings, and nothing is unknown."""

    findings: tuple[Finding, ...] = ()
    unknown: str = ""
    """Why it cannot be known."""

    def lines(self, guarantee: str) -> Iterator[str]:
        """Yield the answer in lines: one for each finding, or just one."""
        for place, text in self.findings:
            yield f"{guarantee}: {place}: {text}" if place else f"{guarantee}: {text}"
        if not self.findings:
            yield f"{guarantee}: {f'cannot know, {self.unknown}' if self.unknown else 'fine'}"


FINE = Answer()

NAMED = 2
"""The largest number of names in a line."""


def some(names: Sequence[str]) -> str:
    """Return names in words, the first few of them."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
