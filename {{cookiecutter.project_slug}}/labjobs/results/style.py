"""How figures look: matplotlib's rcParams for a venue's text, colours that everyone can
distinguish, and how settings and numbers are written."""

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from math import inf
from typing import Any, NamedTuple

from labjobs.cli.flags import as_text
from labjobs.errors import require_known

# Where figures are printed: widths of a column and of the page, text sizes, and their sources.


class Venue(NamedTuple):
    """A venue's page in inches, and the text of its figures in points. If a page has one column, it
    is as wide as the page; no figure is higher than `height`, if that is known."""

    name: str
    column: float
    full: float
    height: float
    source: str
    text: float = 10
    small: float = 9  # ticks
    least: float = 8  # no text is smaller, except superscripts and subscripts
    font: str = "serif"


NATURE = "research-figure-guide.nature.com"

VENUES = {
    venue.name: venue
    for venue in (
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
        Venue("nature", 3.504, 7.205, 6.69, f"{NATURE}: 89 and 183 mm, 5 to 7 pt", 7, 6, 5, "sans"),
        Venue("plos", 5.2, 7.5, 8.75, "journals.plos.org figures: 2.63 to 7.5 in, 8 to 12 pt"),
        Venue("elife", 5.626, 7.398, 9.23, "elife.cls 1.5", font="sans"),
    )
}
"""By the names that `plot.py --venue` knows; the first is the default."""

DEFAULT = next(iter(VENUES))


def named(name: str) -> Venue:
    """Return a venue by its name. Raises SettingsError if it is not known."""
    require_known([name], VENUES, "--venue {}: not known")
    return VENUES[name]


def listing() -> str:
    """Return the table that `--venue list` shows."""
    lines = ["venue    column  full   height  text, at least  font   source"]
    for at in VENUES.values():
        text = f"{at.text:g} pt, {at.least:g} pt"
        sizes = f"{at.column:<6.4g}  {at.full:<5.4g}  {at.height:<6.4g}"
        lines.append(f"{at.name:<8} {sizes}  {text:<14}  {at.font:<6} {at.source}")
    return "\n".join(lines)


FONTS: dict[str, dict[str, Any]] = {
    "serif": {"font.family": "STIXGeneral", "mathtext.fontset": "stix"},
    "sans": {"font.family": "DejaVu Sans", "mathtext.fontset": "dejavusans"},
}
"""Both come with matplotlib, so a figure is the same on every machine; STIX matches Times."""

LINES_AND_AXES: dict[str, Any] = {
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.handletextpad": 0.4,
    "legend.columnspacing": 0.8,
    "legend.labelspacing": 0.25,
    "legend.borderpad": 0.1,
    "legend.borderaxespad": 0.2,
    "axes.labelpad": 2,
    "axes.titlepad": 4,
    "figure.constrained_layout.h_pad": 0.02,
    "figure.constrained_layout.w_pad": 0.02,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.xmargin": 0.02,
    "axes.formatter.useoffset": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
    "svg.hashsalt": "figure",
}
"""In points; the rest are matplotlib's own defaults, whatever a matplotlibrc says."""

# Distinguishable with any colour vision: Okabe and Ito's (jfly.uni-koeln.de/color) without yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
GREY = "#666666"
LINES: tuple[Any, ...] = (
    *("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5))),
    *((0, (9, 1.5)), (0, (3, 1, 1, 1, 1, 1))),
)
MARKERS = "osD^vP"

LARGE = 1e5  # from which on results are written with an exponent

_labels: dict[str, str] = {}


class Look(NamedTuple):
    """How a series is drawn; its line and marker distinguish it even without colour."""

    colour: str = COLOURS[0]
    line: Any = LINES[0]
    marker: str = MARKERS[0]
    interval: bool = True  # whether they are drawn: that of the best of several would be too good
    joined: bool = True  # whether means are joined: not if they differ in further settings


PLAIN = Look()


def looks(names: Iterable[Any], ordered: bool = False) -> dict[Any, Look]:
    """Return a look for each name, in their order. If the names are ordered, as numbers are, so is
    the lightness of their colours, and only neighbours have different lines."""
    each, colours, lines = [*names], [*COLOURS], LINES
    if ordered and len(each) > 2:
        from matplotlib import colormaps
        from matplotlib.colors import to_hex

        places = [0.8 * i / (len(each) - 1) for i in range(len(each))]  # beyond, it is too light
        colours = [to_hex(colormaps["viridis"](place)) for place in places]
        lines = LINES[:2]
    every = zip(each, cycle(colours), cycle(lines), cycle(MARKERS), strict=False)
    return {name: Look(*how) for name, *how in every}


def parameters(venue: Venue) -> Any:
    """Return matplotlib's rcParams: labels as large as the venue's text, the rest smaller, and
    legends as small as the venue allows, since they take room from the axes."""
    labels = ("font.size", "axes.titlesize", "axes.labelsize", "figure.labelsize")
    sizes = dict.fromkeys(labels, venue.text)
    sizes |= dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), venue.small)
    return FONTS[venue.font] | LINES_AND_AXES | sizes | {"legend.fontsize": venue.least}


def label_settings(labels: Mapping[str, str]) -> None:
    """Write settings and metrics by these labels from now on: `learning rate` for `lr`."""
    _labels.clear()
    _labels.update(labels)


def setting(name: str, usual: str | None = None) -> str:
    """Return what LABELS of plot.py calls a setting or a metric; or else its usual label, by
    default its name."""
    return _labels.get(name, name.replace("_", " ") if usual is None else usual)


def settings(names: Sequence[str]) -> str:
    """Return settings as part of a sentence: `model, seed and learning rate`."""
    *most, last = map(setting, names)
    return f"{', '.join(most)} and {last}" if most else last


def number(value: float, digits: int | None = 3) -> str:
    """Return a number in few characters, without superscripts: 0.001, 1e-5. With None, it has as
    many digits as distinguish it from all others."""
    text = f"{value:.{digits}g}" if digits else str(float(value))
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def decimals(found: Iterable[Sequence[Any]], values: Iterable[float] = ()) -> int | None:
    """Return as many decimals as give half of the typical interval (mean, low, high) two digits, or
    one if it begins with 4 to 9; without intervals three digits of the typical value. None for
    numbers with exponents."""
    known = [float(high - low) / 2 for _, low, high in found if high > low]
    size = statistics.median(known or [*map(abs, values)] or [1.0]) or 1.0
    if not math.isfinite(size):
        return None
    exponent = math.floor(math.log10(size))
    digits = (1 if size / 10**exponent < 3.55 else 0) if known else 2
    return max(0, digits - exponent) if digits - exponent <= 6 else None


def rounded(value: float, decimals: int | None, digits: int = 3) -> str:
    """Return a number with this many decimals; if that is None, with this many digits."""
    return signed(number(value, digits) if decimals is None else f"{value:.{decimals}f}")


def signed(text: str) -> str:
    """Return a number's text with a proper minus, and 0 without one."""
    if not text.startswith("-"):
        return text
    return text.replace("-", "−", 1) if float(text) else text[1:]


def names(values: Iterable[Any]) -> dict[Any, str]:
    """Return each distinct value of a setting, None first and numbers in words in their order, as
    it is written: as on the command line, but in as few digits as distinguish them, and in quotes
    where words would read like another value."""
    each = sorted(set(values), key=_place)
    texts: list[str] = []
    for digits in (3, 6, None):
        texts = [_written(value, digits) for value in each]
        if len({*texts}) == len(each):
            return dict(zip(each, texts, strict=True))
    return {
        value: f'"{value}"' if isinstance(value, str) and texts.count(text) > 1 else text
        for value, text in zip(each, texts, strict=True)
    }


def _written(value: Any, digits: int | None) -> str:
    """A value as on the command line, on one line; a `\\$` is a dollar for matplotlib."""
    if isinstance(value, float):
        return number(value, digits)
    text = as_text(None if value == NONE else value)
    return text.replace("$", r"\$").replace("\n", " ") or "(empty)"


NONE = "None"  # what is stored of a setting without a value, beside words such as ids of jobs


def _place(value: Any) -> tuple[Any, ...]:
    """What a value is sorted by: `2e` before `10e`."""
    if value == NONE or not isinstance(value, str):
        return value not in (None, NONE), None if value == NONE else value
    parts = re.split(r"(\d+(?:\.\d+)?)", value)
    return True, [float(part) if place % 2 else part for place, part in enumerate(parts)], value
