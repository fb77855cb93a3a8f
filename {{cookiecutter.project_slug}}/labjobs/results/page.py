"""A static page of results, in one file that needs neither a server nor a network: figures with
captions, tables, and all jobs with their curves."""

import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any

from labjobs.files import ENGINE, json_of, read_json, write_text

IMAGES = {"svg": "svg+xml", "png": "png"}  # that browsers show, the preferred one first
POINTS = 100  # the largest number of points of a curve
LARGER = 1.2  # than in print, by how many times, so that figures' text has the page's size

Curve = Sequence[tuple[int, float]]


@dataclass
class Jobs:
    """The jobs of a page: the names of the columns, of which the first is the job's id, the rows,
    and curves of the metric named `curve`, by the ids of jobs."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    curve: str = ""
    curves: Mapping[str, Curve] = field(default_factory=dict)


def write(path: Path, title: str, about: str, drawn: Collection[Path], jobs: Jobs) -> None:
    """Write a page with these jobs, and with the figures and tables among the files that were
    `drawn`. Raises OSError."""
    stems = dict.fromkeys(file.with_suffix("") for file in drawn if file.suffix == ".json")
    each = [(stem, stem.with_suffix(f".{kind}")) for stem in stems for kind in [*IMAGES][::-1]]
    images = {stem: file for stem, file in each if file in drawn}  # the preferred one is last
    tables = [file for stem in stems if (file := stem.with_suffix(".md")) in drawn]
    parts = {
        "TITLE": escape(title),
        "ABOUT": escape(about),
        "FIGURES": "\n".join(map(_figure, images, images.values())),
        "TABLES": "\n".join(_table(file.read_text("utf-8")) for file in tables),
        "DATA": _data(jobs),
    }
    page = (ENGINE / "results" / "page.html").read_text("utf-8")
    write_text(path, re.sub("|".join(parts), lambda found: parts[found[0]], page))


def _figure(stem: Path, image: Path) -> str:
    kind, content = IMAGES[image.suffix[1:]], b64encode(image.read_bytes()).decode()
    about = read_json(stem.with_suffix(".json"))
    caption, width = escape(str(about.get("caption"))), LARGER * about["inches"][0]
    size = f'alt="{escape(stem.name)}" style="width: {width:g}in"'
    source = f'<img {size} src="data:image/{kind};base64,{content}">'
    return f"<figure>{source}<figcaption>{caption}</figcaption></figure>"


def _table(markdown: str) -> str:
    """A table in HTML, from its Markdown: rows between bars, then the caption."""
    lines, _, caption = markdown.partition("\n\n")
    head, _, *rows = [re.split(r"(?<!\\)\|", line.strip("|")) for line in lines.splitlines()]
    thead, *tbody = (_row(row, tag) for row, tag in [(head, "th"), *((r, "td") for r in rows)])
    body = f"<thead>{thead}</thead><tbody>{''.join(tbody)}</tbody>"
    shown = f'<div class="wide"><table>{body}</table></div>'
    return f"<figure>{shown}<figcaption>{escape(caption.strip())}</figcaption></figure>"


def _row(cells: Iterable[str], tag: str) -> str:
    texts = (escape(cell.strip().replace(r"\|", "|")) for cell in cells)
    bold = (re.sub(r"^\*\*(.*)\*\*", r"<b>\1</b>", text) for text in texts)
    return f"<tr>{''.join(f'<{tag}>{text}</{tag}>' for text in bold)}</tr>"


def _data(jobs: Jobs) -> str:
    """The jobs as JSON that can stand in a page: it cannot end the element around it."""
    finite = {job: [p for p in every if isfinite(p[1])] for job, every in jobs.curves.items()}
    steps = {job: -(-len(points) // POINTS) for job, points in finite.items() if points}
    curves = {job: finite[job][::-step][::-1] for job, step in steps.items()}  # the last too
    return json_of(vars(jobs) | {"curves": curves}, indent=None).replace("<", "\\u003c")
