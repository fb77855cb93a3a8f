"""Whether a figure prints correctly: its text must be large enough, complete and not overlap, and
its page must have the venue's size.

The figure is drawn once more, and each piece of text is recorded, so that problems can be named. By
design, the check does not detect text over lines and images, text within images, lines that end
beyond the axes, and what a document does to the figure (include it without a width).
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Affine2D
from numpy.typing import NDArray

from labjobs.results.style import Venue

SCRIPT = 0.7  # ratio of the size of a superscript or subscript in mathtext to its base, as in TeX
EXACT = 0.005  # inches by which a page may differ from its size
INCH = 72  # points of an inch
SLACK = 0.5  # points by which text may seem to be cut off, since renderers differ a little
DPI = 300  # dots per inch at which the figure is drawn for the check


class _Piece(NamedTuple):
    """A line of text as it was drawn, in points from the lower left corner of the page."""

    what: str
    text: Text
    size: float
    smallest: float
    ink: Path
    corners: NDArray[Any]  # of the box around it (4, 2), one after the other
    clip: NDArray[Any] | None  # the box that clips it, as two corners (2, 2)


def check(figure: Figure, venue: Venue) -> list[str]:
    """Return what would not print correctly, each problem in one line; empty if there is none."""
    if any(text.get_usetex() for text in figure.findobj(Text)):
        return ["its text is set by TeX, without TrueType fonts; leave text.usetex off"]
    pieces, found = _pieces(figure)
    width, height = figure.get_size_inches()
    if min(abs(width - venue.column), abs(width - venue.full)) > EXACT:
        widths = f"{venue.column:g} (column) or {venue.full:g} (full)"
        found.append(f"the page is {width:g} in wide; should be {widths}")
    if height > venue.height + EXACT:
        found.append(f"the page is {height:g} in high; at most {venue.height:g} fit")
    for piece in pieces:
        found += [f"{piece.what} {wrong}" for wrong in _wrong(piece, venue.least, width, height)]
    for one, other in combinations(pieces, 2):
        if _overlap(one, other):
            found.append(f"{one.what} and {other.what} overlap")
    for ax in figure.axes:
        ends = ax.get_position().extents
        if min(ends) < -0.001 or max(ends) > 1.001:
            found.append(f"the axes {_short(ax.get_title())} reach beyond the page's edge")
    return found


def _wrong(piece: _Piece, least: float, width: float, height: float) -> Iterator[str]:
    """Whether text is too small, or cut off by the page's edge or the axes that clip it."""
    if piece.size < least - 0.01:
        yield f"is {piece.size:.3g} pt, under {least:g}"
    elif piece.smallest < SCRIPT * least - 0.01:
        under = f"under {SCRIPT * least:.3g}: scripts of scripts are too small"
        yield f"has parts of {piece.smallest:.3g} pt, {under}"
    edges = {"the page's edge": np.array([[0, 0], [INCH * width, INCH * height]])}
    if piece.clip is not None:
        edges["the edge of its axes"] = piece.clip
    by, edge = max(
        (np.max([box[0] - piece.corners, piece.corners - box[1]]), edge)
        for edge, box in edges.items()
    )
    if by > SLACK:
        yield f"is cut by {by:.1f} pt at {edge}"


def _overlap(one: _Piece, other: _Piece) -> bool:
    (low, high), (least, most) = ((p.corners.min(0), p.corners.max(0)) for p in (one, other))
    beside = ((high < least) | (low > most)).any()
    return one.text is not other.text and not beside and one.ink.intersects_path(other.ink)


def _pieces(figure: Figure) -> tuple[list[_Piece], list[str]]:
    """Every line of text that a renderer is asked to draw, and what matplotlib warns about:
    characters that the font lacks, and axes without a size."""
    pieces: list[_Piece] = []
    places: dict[Any, str] = {}
    for number, ax in enumerate(figure.axes, start=1):
        name = _short(ax.get_title()) if ax.get_title() else str(number)
        places |= dict.fromkeys(ax.findobj(Text), f" in the axes {name}")
    drawing: list[Text] = []

    class Recorder(RendererBase):
        """Records text instead of drawing it, and draws nothing else."""

        def nothing(self, *args: Any, **kwargs: Any) -> None:
            """Draw nothing."""

        draw_path = draw_markers = draw_path_collection = draw_image = nothing
        draw_quad_mesh = draw_gouraud_triangles = nothing

        def get_canvas_width_height(self) -> Any:
            return figure.bbox.size

        def points_to_pixels(self, points: Any) -> Any:
            return points * DPI / INCH

        def draw_text(  # type: ignore
            self, gc, x, y, s, prop, angle, ismath=False, mtext=None
        ) -> None:
            """Record the ink of a text and the rectangle that clips it, in points."""
            vertices, codes = text_to_path.get_text_path(prop, s, ismath=ismath)
            if 0 in (gc.get_alpha(), gc.get_rgb()[3]) or not len(vertices):
                return
            size, text = prop.get_size_in_points(), drawing[-1]
            ink = Path(np.multiply(vertices, size / text_to_path.FONT_SCALE), codes)
            place = np.array([x, figure.bbox.height - y]) * INCH / DPI
            there = Affine2D().rotate_deg(angle).translate(*place)
            corners, ink = there.transform(_corners(ink)), ink.transformed(there)
            clip = gc.get_clip_rectangle()
            box = None if clip is None else np.array([clip.min, clip.max]) * INCH / DPI
            if box is not None and ((corners.max(0) < box[0]) | (corners.min(0) > box[1])).any():
                return  # hidden completely
            glyphs = MathTextParser("path").parse(s, INCH, prop).glyphs if ismath else ()
            smallest = min((glyph[1] for glyph in glyphs), default=size)
            what = f"{_short(s)}{places.get(text, '')}"
            pieces.append(_Piece(what, text, size, smallest, ink, corners, box))

    with warnings.catch_warnings(record=True) as warned, _recorded(figure, drawing):
        warnings.simplefilter("always")
        figure.draw_without_rendering()  # the layout is final only the second time
        figure.draw(Recorder())
    said = sorted({str(each.message) for each in warned})
    missing = [chr(int(found[1])) for line in said if (found := re.match(r"Glyph (\d+)", line))]
    cure = "write other LABELS, or rename the values"
    problems = [f"its font lacks {' '.join(missing)}; {cure}"] if missing else []
    # By this, matplotlib warns that axes have no size.
    return pieces, problems + [line for line in said if line.startswith("constrained_layout")]


@contextmanager
def _recorded(figure: Figure, drawing: list[Text]) -> Iterator[None]:
    """Draw at DPI, and keep the text that is being drawn at the end of a list: a renderer is not
    always told. Its outlines and shadows, which are drawn as lines, are left out."""
    draw, dpi = Text.draw, figure.dpi

    def record(self: Text, renderer: Any) -> None:
        drawing.append(self)
        effects = self.get_path_effects()
        self.set_path_effects([])
        draw(self, renderer)
        self.set_path_effects(effects)

    Text.draw, figure.dpi = record, DPI  # type: ignore
    try:
        yield
    finally:
        Text.draw, figure.dpi = draw, dpi  # type: ignore


def _corners(ink: Path) -> NDArray[Any]:
    points = np.concatenate(ink.to_polygons(closed_only=False))  # get_extents() is 200 times slower
    (left, bottom), (right, top) = points.min(axis=0), points.max(axis=0)
    return np.array([[left, bottom], [right, bottom], [right, top], [left, top]])


def _short(s: str) -> str:
    """The text in quotes; only its beginning if it is long."""
    line = " ".join(s.split())
    return f'"{line if len(line) <= 30 else line[:29] + "…"}"'
