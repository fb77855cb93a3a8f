"""Where figures are printed: widths of a column and of the page, text sizes, and their sources."""

from math import inf
from typing import NamedTuple

from labjobs.errors import SettingsError, did_you_mean


class Venue(NamedTuple):
    """A venue's page in inches, and the text of its figures in points.

    If a page has one column, it is as wide as the page. No figure is higher than `height`, if that
    is known.
    """

    name: str
    column: float
    full: float
    height: float
    source: str
    text: float = 10
    small: float = 9
    """Ticks and legends."""
    least: float = 8
    """No text is smaller, except superscripts and subscripts."""
    font: str = "serif"


_KNOWN = (
    Venue("icml", 3.25, 6.75, 9, "icml2024.sty"),
    Venue("neurips", 5.5, 5.5, 9, "neurips_2024.sty"),
    Venue("iclr", 5.5, 5.5, 9, "iclr2025_conference.sty"),
    Venue("cvpr", 3.28125, 6.875, 8.875, "cvpr.sty of 2025, which ICCV shares"),
    Venue("eccv", 4.803, 4.803, 7.598, "llncs.cls 2.23"),
    Venue("aistats", 3.25, 6.75, inf, "tueplots 0.2.5, aistats2025"),
    Venue("uai", 3.25, 6.75, inf, "tueplots 0.2.5, uai2023"),
    Venue("aaai", 3.3125, 7, 9, "aaai25.sty"),
    Venue("acl", 3.031, 6.299, 9.72, "acl.sty"),
    Venue("jmlr", 6, 6, 8.5, "jmlr2e.sty"),
    Venue("tmlr", 6.5, 6.5, 9, "tmlr.sty, which sets CM Bright", font="sans"),
    Venue("ieee", 3.487, 7.14, 9.63, "IEEEtran.cls: 21 and 43 pica"),
    Venue(
        "nature",
        3.504,
        7.205,
        6.69,
        "research-figure-guide.nature.com: 89 and 183 mm, 5 to 7 pt, Arial or Helvetica",
        text=7,
        small=6,
        least=5,
        font="sans",
    ),
    Venue("plos", 5.2, 7.5, 8.75, "journals.plos.org figures: 2.63 to 7.5 in, 8 to 12 pt"),
    Venue("elife", 5.626, 7.398, 9.23, "elife.cls 1.5", font="sans"),
)
VENUES = {venue.name: venue for venue in _KNOWN}
"""By the names that `plot.py --venue` knows; the first is the default."""

DEFAULT = next(iter(VENUES))


def named(name: str) -> Venue:
    """Return a venue by its name. Raises SettingsError if it is not known."""
    if name not in VENUES:
        raise SettingsError(f"--venue {name}: not known; {did_you_mean(name, VENUES)}")
    return VENUES[name]


def listing() -> str:
    """Return the table that `--venue list` shows."""
    lines = ["venue    column  full   height  text, at least  font   source"]
    for name, at in VENUES.items():
        sizes = f"{at.column:<6.4g}  {at.full:<5.4g}  {at.height:<6.4g}"
        text = f"{at.text:g} pt, {at.least:g} pt"
        lines.append(f"{name:<8} {sizes}  {text:<14}  {at.font:<6} {at.source}")
    return "\n".join(lines)
