r"""The files of a figure: PDF, PNG and others, its caption for LaTeX, and where it comes from.

Where it comes from, its provenance, is in the metadata of each image, and in a `.json` of the same
name. The `.tex` has the caption with the numbers in it, so that a paper's text cannot drift from
its figure: `\input` it.
"""

import json
import re
import unicodedata
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote, unquote

from labjobs import files
from labjobs.errors import SettingsError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

GREEK = {letter: unicodedata.name(letter).split()[-1].lower() for letter in "αβγδεζηθκμνξπρστφχψω"}
SIGNS = {"±": "pm", "×": "times", "≥": "geq", "≤": "leq", "→": "to", "∞": "infty"}
MARKS = {"↑": "uparrow", "↓": "downarrow", "†": "dagger", "λ": "lambda"}

LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{"–": "--", "−": "$-$", "²": "$^2$", "³": "$^3$", "…": r"\dots{}"},
    **{character: f"${character}$" for character in "<>|"},
    **{character: f"$\\{name}$" for character, name in (GREEK | SIGNS | MARKS).items()},
}
"""How to write characters in LaTeX that have a special meaning there or may be missing."""

METADATA = {"pdf": "Subject", "png": "Description", "svg": "Description", "tiff": "description"}
"""The formats of images, and the field for provenance in the metadata of each, by matplotlib's
name, or Pillow's for TIFF."""

KINDS = (*METADATA, "tex", "json")  # the files that a figure can have
OLD = "old"  # the folder, beside the figures, for those that are no longer drawn

MARK = "provenance: "  # what provenance in the metadata begins with
UNESCAPED = " !\"#$'*+,/:;=?@[]^`{|}"  # besides letters and digits, as they are in every format

MATHEMATICS = re.compile(r"(?<!\\)(\$[^$]*[^\\$]\$)")


def save(
    fig: "Figure",
    stem: Path,
    caption: str,
    about: dict[str, Any],
    kinds: Sequence[str] = ("pdf", "png"),
) -> list[str]:
    """Write a figure in some formats, with its caption and provenance, to a path without suffix;
    return a line for each image: its path, and its printed width and height. The same figure gives
    the same bytes; a file is whole or absent. Raises OSError if the folder cannot be written."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    for path in paths:
        files.write(path, partial(_draw, fig, path, about))
    tex = f"\\caption{{{latex(caption)}}}\n\\label{{fig:{stem.name}}}\n"
    head = "% written with the figure, and replaced with it\n"
    files.write_text(stem.with_name(f"{stem.name}.tex"), head + tex)
    width, height = (float(side) for side in fig.get_size_inches())
    printed = {"caption": plain(caption), "inches": [width, height]}
    files.write_json(stem.with_name(f"{stem.name}.json"), about | printed)
    return [f"{path}  {width:g} x {height:g} in" for path in paths]


def plain(text: str) -> str:
    """Return a text as it is read: a `\\$` is matplotlib's."""
    return text.replace(r"\$", "$")


def latex(text: str) -> str:
    """Return a text as LaTeX writes it, on one line; mathematics between dollars stay as they are,
    as in figures."""
    parts = MATHEMATICS.split(" ".join(text.split()))
    for place, part in enumerate(parts):
        if place % 2 == 0:
            parts[place] = "".join(LATEX.get(each, each) for each in plain(part))
    return "".join(parts)


def _draw(fig: "Figure", path: Path, about: dict[str, Any], file: BinaryIO) -> None:
    """Draw in the format of a path, without the time of drawing, which would change the bytes."""
    import matplotlib

    kind, source = path.suffix[1:], MARK + quote(json.dumps(about), UNESCAPED)
    times = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
    options: dict[str, Any] = {"metadata": {"Title": path.stem, METADATA[kind]: source, **times}}
    if kind == "tiff":
        options = {"pil_kwargs": {METADATA[kind]: source, "compression": "tiff_lzw"}}
    # Whatever a figure's function has set: TrueType fonts, as publishers ask, and the whole page.
    with matplotlib.rc_context({"pdf.fonttype": 42, "savefig.bbox": None}):
        fig.savefig(file, format=kind, **options)


def put_aside(
    out: Path, what: str, program: str, written: Collection[Path], kinds: Collection[str]
) -> list[str]:
    """Move the files of each `figure`, or `table`, that a program has written, but not this time,
    to a folder `old`; return what these files were called. A document must not show what other jobs
    gave, or what is drawn no more."""
    moved = []
    for record in sorted(out.glob("*.json")):
        with suppress(SettingsError, OSError):
            about = read(record)
            if what not in about or about.get("program") != program:
                continue
            for kind in kinds:
                path = out / f"{record.stem}.{kind}"
                if path not in written and path.exists():
                    (out / OLD).mkdir(exist_ok=True)
                    path.replace(out / OLD / path.name)
                    moved.append(record.stem)
    return sorted({*moved})


# Where a figure comes from: the jobs, their code and settings.


def provenance(jobs: "pd.DataFrame") -> dict[str, Any]:
    """Return where a figure of these jobs comes from, as JSON: their ids, also of those among which
    it was chosen what is shown, the commits of their code and whether it differed from the commit,
    the settings that they share and those that vary, and when the newest job ended."""
    names = jobs.attrs["settings"]
    varied = [name for name in names if jobs[name].nunique(dropna=False) > 1]
    newest = datetime.fromtimestamp(int(jobs["ended"].max()) / 1000, UTC)
    about = [each for each in ("commit", "dirty") if each in jobs]
    commits = {
        f"{job.get('commit', 'unknown')}{' with changes' if job.get('dirty') == 'true' else ''}"
        for job in jobs[about].drop_duplicates().to_dict("records")
    }
    return {
        "jobs": sorted(jobs["job_id"]),
        "commits": sorted(commits),
        "shared": {name: jobs[name].tolist()[0] for name in names if name not in varied},
        "varied": {name: sorted(set(jobs[name].tolist()), key=str) for name in varied},
        "newest": newest.isoformat(timespec="seconds"),
    }


def read(path: Path) -> dict[str, Any]:
    """Return where a figure or a table comes from, read from any of its files. Raises SettingsError
    if the file does not say, OSError if it cannot be read."""
    try:
        if path.suffix in (".json", ".tex", ".csv", ".md"):
            text = path.with_name(f"{path.name.split('.')[0]}.json").read_text("utf-8")
        else:
            text = unquote(path.read_bytes().decode("latin-1").partition(MARK)[2])
        return {**json.JSONDecoder().raw_decode(text)[0]}
    except (ValueError, TypeError) as error:
        raise SettingsError(f"--provenance {path}: has no provenance information") from error
