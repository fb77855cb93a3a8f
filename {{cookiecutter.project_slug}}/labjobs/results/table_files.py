r"""The files of a table: a LaTeX tabular and its caption, Markdown, CSV, and where it comes from.

The `.tex` has nothing but the tabular, which needs \usepackage{booktabs}: the size, the place and
the environment around it are the author's. `results.tex` has all cells by name, for the text.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from labjobs import files
from labjobs.results import text
from labjobs.results.figure_files import latex, plain
from labjobs.results.paper_tables import TOTAL, Cell, Table
from labjobs.results.style import Venue

KINDS = ("tex", "caption.tex", "md", "csv", "json")  # the files of a table

HEAD = "% written by plot.py, and replaced by it"
PLUS_MINUS = r"\,$\pm$\,"
SPACE = 12  # points between two columns, in LaTeX's own documents
LAST_LATIN = 0x24F  # the last character of LaTeX's usual fonts, besides those that `latex` writes


def save(table: Table, stem: Path, caption: str, about: dict[str, Any], venue: Venue) -> list[str]:
    """Write a table's files, to a path without suffix; return a line with its width."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    label = f"\\caption{{{latex(caption)}}}\n\\label{{tab:{stem.name}}}"
    texts = {"tex": _tabular(table), "caption.tex": f"{HEAD}\n{label}\n"}
    # Whole numbers stay whole.
    records = pd.DataFrame(table.records or [*_written(table)], dtype=object)
    texts |= {"md": _markdown(table, caption), "csv": records.to_csv(index=False)}
    for kind, content in texts.items():
        files.write_text(stem.with_name(f"{stem.name}.{kind}"), content)
    files.write_json(stem.with_name(f"{stem.name}.json"), about)
    return [f"{stem}.tex  {_width(table, venue):.1f} in wide"]


def _written(table: Table) -> Iterator[dict[str, str]]:
    """The rows of a table of the project's own, which may have no records: its cells as written."""
    for name, cells in table.rows.items():
        row = {table.corner: name}
        for column, cell in zip(table.columns, cells, strict=True):
            head = f"{column.task} {column.title}".strip()
            row |= {head: cell.text} | ({f"{head} ±": cell.half} if cell.half else {})
        yield row


def macros(tables: Mapping[str, Table]) -> str:
    r"""Return LaTeX that defines \result{NAME} for each cell of some tables by its place, such as
    `main/mlp/test accuracy`, with the task before the metric if there are several. Names have only
    what TeX can look up; cells whose names it could not tell apart have none."""
    found = {}
    for name, table in tables.items():
        for row, cells in table.rows.items():
            for column, cell in zip(table.columns, cells, strict=True):
                place = "/".join(filter(None, (name, row, column.task, column.title)))
                half = PLUS_MINUS + latex(cell.half) if cell.half else ""
                key = re.sub(r"[^\w .,:=/+()-]+|_", "", place.replace("→", "to"))
                key = key.replace(" ()", "").strip()
                found[key] = latex(cell.text) + half if key not in found else ""
    known = r"\ifcsname result/#1\endcsname\csname result/#1\endcsname"
    lines = [HEAD, rf"\providecommand{{\result}}[1]{{{known}\else\errmessage{{no result #1}}\fi}}"]
    each = [rf"\expandafter\def\csname result/{k}\endcsname{{{v}}}" for k, v in found.items() if v]
    return "\n".join([*lines, *each]) + "\n"


def _tabular(table: Table) -> str:
    columns = [*zip(*_rows(table).values(), strict=True)]
    kinds = "".join("c" if any(cell.half for cell in cells) else "r" for cells in columns)
    lines = [HEAD + r"; needs \usepackage{booktabs}"]
    lines += [rf"\begin{{tabular}}{{@{{}}l{kinds}@{{}}}}", r"\toprule", *_spanners(table)]
    lines += [_line(map(latex, [table.corner, *(column.title for column in table.columns)]))]
    rows = zip(*map(_latex_cells, columns), strict=True)
    body = [_line([latex(name), *row]) for name, row in zip(_rows(table), rows, strict=True)]
    if table.total:
        body.insert(-1, r"\midrule")
    lines += [r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _rows(table: Table) -> dict[str, list[Cell]]:
    return table.rows | ({TOTAL: table.total} if table.total else {})


def _spanners(table: Table) -> list[str]:
    """The tasks above their columns, each with a rule below it; nothing for a single task."""
    if not any(column.task for column in table.columns):
        return []
    heads, rules, start = [""], [], 2
    for task, of_task in groupby(column.task for column in table.columns):
        end = start + len([*of_task]) - 1
        edge = "@{}" * (end == 1 + len(table.columns))  # else LaTeX adds space beyond the table
        heads.append(rf"\multicolumn{{{end - start + 1}}}{{c{edge}}}{{{latex(task)}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{end}}}")
        start = end + 1
    return [_line(heads), "".join(rules)]


def _latex_cells(cells: Sequence[Cell]) -> list[str]:
    """The cells of a column. Those with ± are as wide as the widest, by invisible characters, so
    that each ± stands below the others where LaTeX centres them."""
    pairs = [cell for cell in cells if cell.half]
    mean = max((cell.text for cell in pairs), key=len, default="")
    half = max((cell.half for cell in pairs), key=len, default="")
    texts = []
    for cell in cells:
        text = PLUS_MINUS.join(latex(each) for each in (cell.text, cell.half) if each)
        text = rf"\textbf{{{text}}}" if cell.bold else text
        text += r"\rlap{$^\dagger$}" * cell.chosen  # the text's own is a bitmap in old fonts
        if cell.half:
            text = _invisible(mean[len(cell.text) :]) + text + _invisible(half[len(cell.half) :])
        texts.append(text)
    return texts


def _invisible(text: str) -> str:
    return rf"\phantom{{{latex(text)}}}" if text else ""


def _markdown(table: Table, caption: str) -> str:
    heads = [f"{column.task} {column.title}".strip() for column in table.columns]
    lines = [[table.corner, *heads], ["---", *["---:"] * len(heads)]]
    lines += [[name, *map(_markdown_cell, row)] for name, row in _rows(table).items()]
    rows = ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines]
    return plain("\n".join(rows) + f"\n\n{caption}\n")


def _markdown_cell(cell: Cell) -> str:
    each = f"{cell.text} ± {cell.half}" if cell.half else cell.text
    return (f"**{each}**" if cell.bold else each) + "†" * cell.chosen


# Whether a table prints correctly.


def _width(table: Table, venue: Venue) -> float:
    """How wide it is in inches, in the venue's font and the size of its text; `problems` names
    characters that this font lacks."""
    rows = _rows(table)
    columns = [[table.corner, *rows]]
    for column, cells in zip(table.columns, zip(*rows.values(), strict=True), strict=True):
        columns.append([column.title, *(_markdown_cell(c).replace("**", "") for c in cells)])
    widths = [max(text.width(each, venue.text) for each in column) for column in columns]
    return (sum(widths) + SPACE * (len(widths) - 1)) / 72


def problems(table: Table, venue: Venue) -> list[str]:
    """Return what would not print correctly, each problem in one line; empty if there is none."""
    found, width = list[str](), _width(table, venue)
    if width > venue.full:
        cure = "name less in SHOWN and ROWS of plot.py, or give shorter LABELS or one --task"
        found.append(f"{width:.1f} in wide, and the page has {venue.full:g}; {cure}")
    high = 1.2 * venue.text / 72 * len(_rows(table))  # LaTeX's distance between lines
    if high > venue.height:
        cure = "leave rows out with ONLY or ROWS of plot.py"
        found.append(f"{high:.0f} in high, and the page has {venue.height:g}; {cure}")
    texts = [table.corner, *table.rows, *(f"{c.task}{c.title}" for c in table.columns)]
    strange = {c for each in texts for c in each if ord(c) > LAST_LATIN and latex(c) == c}
    if strange:
        signs = " ".join(sorted(strange))
        found.append(f"LaTeX's usual fonts lack {signs}; write other LABELS, or rename the values")
    return found
