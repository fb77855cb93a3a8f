r"""The files of a figure: PDF, PNG and others, its caption for LaTeX, and where it comes from.

Where it comes from (provenance.py) is in the metadata of each image, and in a `.json` of the same
name. The `.tex` has the caption with the numbers in it, so that a paper's text cannot drift from
its figure: `\input` it.
"""

import io
import json
import unicodedata
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from labjobs import files
from labjobs.results import print_check
from labjobs.results.figure_provenance import METADATA
from labjobs.results.style import Venue

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREEK = {letter: unicodedata.name(letter).split()[-1].lower() for letter in "αβγδεζηθκμνξπρστφχψω"}

LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "²": r"$^2$",
    "³": r"$^3$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "→": r"$\to$",
    "∞": r"$\infty$",
    **{character: f"${character}$" for character in "<>|"},
    **{character: f"$\\{name}$" for character, name in (GREEK | {"λ": "lambda"}).items()},
}
"""How to write characters in LaTeX that have a special meaning there or may be missing."""

TIMES = {"pdf": "CreationDate", "svg": "Date"}
"""The time of drawing, which would change the bytes of the same figure."""


class Misprint(Exception):
    """A figure would not print correctly. Each line of its text is one problem."""


class Saved(NamedTuple):
    """A file, with its printed width and height in inches."""

    path: Path
    width: float
    height: float


def save(
    fig: "Figure",
    stem: Path,
    caption: str,
    about: dict[str, Any],
    venue: Venue,
    checked: bool = True,
    kinds: Sequence[str] = ("pdf", "png"),
) -> list[Saved]:
    """Write a figure in some formats, with its caption and provenance, to a path without suffix.

    The same figure gives the same bytes; a file is whole or absent. Raises Misprint, and writes
    nothing, if the figure is `checked` and would not print correctly; OSError if the folder cannot
    be written.
    """
    width, height = (float(side) for side in fig.get_size_inches())
    problems = print_check.check(fig, venue) if checked else []
    source = json.dumps(about)
    images = {kind: _drawn(fig, kind, stem.name, source) for kind in kinds}
    if checked:
        pdf = images.get("pdf") or _drawn(fig, "pdf", stem.name, source)
        problems += print_check.check_pdf(pdf, width, height, venue.least)
    if problems:
        raise Misprint("\n".join(problems))
    stem.parent.mkdir(parents=True, exist_ok=True)
    text = f"\\caption{{{_latex(caption)}}}\n\\label{{fig:{stem.name}}}\n"
    tex = f"% written with the figure, and replaced with it\n{text}"
    texts = {"json": json.dumps(about, indent=2) + "\n", "tex": tex}
    for kind, content in (images | {kind: text.encode() for kind, text in texts.items()}).items():
        files.write(stem.with_name(f"{stem.name}.{kind}"), partial(_fill, content))
    return [Saved(stem.with_name(f"{stem.name}.{kind}"), width, height) for kind in kinds]


def _fill(content: bytes, file: BinaryIO) -> None:
    file.write(content)


def _drawn(fig: "Figure", kind: str, title: str, source: str) -> bytes:
    """The figure in a format, without the time of drawing."""
    options: dict[str, Any] = {"metadata": {"Title": title, METADATA[kind]: source}}
    if kind == "tiff":
        options = {"pil_kwargs": {METADATA[kind]: source, "compression": "tiff_lzw"}}
    elif kind in TIMES:
        options["metadata"][TIMES[kind]] = None
    file = io.BytesIO()
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # print_check reports them
        fig.savefig(file, format=kind, **options)
    return file.getvalue()


def _latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in " ".join(text.split()))
