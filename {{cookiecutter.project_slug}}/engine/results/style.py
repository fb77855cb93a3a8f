"""How figures look: matplotlib's rcParams for a venue's text, and colours told apart by anyone."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from engine.results.venues import Venue

FONTS: dict[str, dict[str, Any]] = {
    "serif": {"font.family": "STIXGeneral", "mathtext.fontset": "stix"},
    "sans": {"font.family": "DejaVu Sans", "mathtext.fontset": "dejavusans"},
}
"""Both come with matplotlib, so a figure is the same on every machine; STIX matches Times."""

LINES_AND_AXES: dict[str, Any] = {
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.xmargin": 0.02,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "image.cmap": "viridis",
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
}
"""In points; the rest are matplotlib's own defaults, whatever a matplotlibrc says."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Told apart with any colour vision: Okabe and Ito's (jfly.uni-koeln.de/color) without yellow."""
GREY = "#666666"
LINES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
MARKERS = "osD^v"


class Look(NamedTuple):
    """How one series is drawn, told apart without its colour too."""

    colour: str = COLOURS[0]
    line: Any = LINES[0]
    marker: str = MARKERS[0]


PLAIN = Look()


def looks(values: Iterable[Any]) -> dict[Any, Look]:
    """A look for each distinct value, in order: the same in all figures that have the same."""
    return {
        value: Look(COLOURS[i % len(COLOURS)], LINES[i % len(LINES)], MARKERS[i % len(MARKERS)])
        for i, value in enumerate(_distinct(values))
    }


def parameters(venue: Venue) -> Any:
    """matplotlib's rcParams: labels and titles as large as the venue's text, the rest smaller."""
    labels = ("font.size", "axes.titlesize", "axes.labelsize", "figure.titlesize")
    small = ("xtick.labelsize", "ytick.labelsize", "legend.fontsize", "legend.title_fontsize")
    sizes = dict.fromkeys(labels, venue.text) | dict.fromkeys(small, venue.small)
    return FONTS[venue.font] | LINES_AND_AXES | sizes


def number(value: float, digits: int = 3) -> str:
    """A number in few characters and no small script: 0.001, 1e-5."""
    return f"{value:.{digits}g}".replace("e-0", "e-").replace("e+0", "e")


def written(value: Any, digits: int = 3) -> str:
    """A setting's value as it is written in a figure."""
    return number(value, digits) if isinstance(value, float) else str(value).replace("$", r"\$")


def names(values: Iterable[Any]) -> dict[Any, str]:
    """Each distinct value, in order, as it is written: in as few digits as tell them apart."""
    each, texts = _distinct(values), list[str]()
    for digits in (3, 6, 17):
        texts = [written(value, digits) for value in each]
        if len({*texts}) == len(each):
            break
    return dict(zip(each, texts, strict=True))


def _distinct(values: Iterable[Any]) -> list[Any]:
    """In order, None first."""
    return sorted(set(values), key=lambda value: (value is not None, value))
