r"""The files of a figure: PDF and PNG, its caption for LaTeX, and where it comes from.

Where it comes from (results.py) is in the metadata of the PDF and the PNG, and in the `.json`
beside them. The `.tex` has the caption with the numbers in it, so that a paper's text cannot drift
from its figure: `\input` it.
"""

import io
import json
import os
import re
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.errors import SettingsError
from engine.results import pdf_check, print_check
from engine.results.venues import Venue

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
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "→": r"$\to$",
    "∞": r"$\infty$",
    **{character: f"${character}$" for character in "<>|"},
    **{character: f"$\\{name}$" for character, name in (GREEK | {"λ": "lambda"}).items()},
}
"""How characters are written in LaTeX that mean something there or may be missing."""

TEXTS = {"pdf": "Subject", "png": "Description"}
"""Where in a file's metadata it says where it comes from."""


class Misprint(Exception):
    """A figure would not print right. Each line of its text is one thing that is wrong."""


class Saved(NamedTuple):
    """A file, with its printed width and height in inches."""

    path: Path
    width: float
    height: float


def save(
    fig: "Figure", beside: Path, caption: str, about: dict[str, Any], venue: Venue, checked: bool
) -> list[Saved]:
    """Write a figure, with the files that go with it, under a path without suffix.

    The same figure gives the same bytes; a file is whole or absent. Raises Misprint, and writes
    nothing, if it is `checked` and would not print right; OSError where the folder cannot be
    written.
    """
    width, height = (float(side) for side in fig.get_size_inches())
    problems = print_check.check(fig, venue) if checked else []
    source = json.dumps(about)
    images = {kind: _drawn(fig, kind, beside.name, source) for kind in TEXTS}
    if checked:
        problems += pdf_check.check(images["pdf"], width, height, venue.least)
    if problems:
        raise Misprint("\n".join(problems))
    beside.parent.mkdir(parents=True, exist_ok=True)
    label = f"\\label{{fig:{beside.name}}}"
    texts = {
        "json": json.dumps(about, indent=2) + "\n",
        "tex": f"% written by plot.py\n\\caption{{{_latex(caption)}}}\n{label}\n",
    }
    for kind, content in (images | {kind: text.encode() for kind, text in texts.items()}).items():
        _write(beside.with_name(f"{beside.name}.{kind}"), content)
    return [Saved(beside.with_name(f"{beside.name}.{kind}"), width, height) for kind in TEXTS]


def whence(path: Path) -> dict[str, Any]:
    """Where a figure comes from, by its PDF, PNG, caption or JSON.

    Raises SettingsError if the file does not say, OSError if it cannot be read.
    """
    try:
        return dict(json.loads(_source(path)))
    except (ValueError, TypeError, KeyError) as error:
        raise SettingsError(f"--whence {path}: does not say where it comes from") from error


def told(about: dict[str, Any]) -> str:
    """Where a figure comes from, a line for each thing."""
    return "\n".join(f"{key}: {_line(value)}" for key, value in about.items())


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_line(of_it)}" for name, of_it in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _source(path: Path) -> str:
    if path.suffix == ".pdf":
        found = re.search(rb"/Subject \(((?:\\.|[^\\)])*)\)", path.read_bytes(), re.DOTALL)
        return re.sub(rb"\\(.)", rb"\1", found[1]).decode() if found else ""
    if path.suffix == ".png":
        from PIL import Image

        with Image.open(path) as image:
            return str(image.info[TEXTS["png"]])
    return path.with_suffix(".json").read_text()


def _drawn(fig: "Figure", kind: str, title: str, source: str) -> bytes:
    """The figure as PDF or PNG, without the time of drawing."""
    metadata: dict[str, Any] = {"Title": title, TEXTS[kind]: source}
    metadata |= {"CreationDate": None} if kind == "pdf" else {}
    file = io.BytesIO()
    fig.savefig(file, format=kind, metadata=metadata)
    return file.getvalue()


def _write(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in " ".join(text.split()))
