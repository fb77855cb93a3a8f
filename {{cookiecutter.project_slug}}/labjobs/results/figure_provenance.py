"""Where a figure comes from: the jobs, their code and settings; in its files, and read back."""

import html
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labjobs.errors import SettingsError

if TYPE_CHECKING:
    import pandas as pd

METADATA = {"pdf": "Subject", "png": "Description", "svg": "Description", "tiff": "description"}
"""The field in the metadata of a file, by matplotlib's name, or Pillow's for TIFF."""

TIFF_TAG = 270
"""ImageDescription (TIFF 6.0, page 34)."""


def provenance(jobs: "pd.DataFrame") -> dict[str, Any]:
    """Return where a figure of these jobs comes from, as JSON: their ids, the commits of their code
    and whether it differed from the commit, the settings that they share and those that vary, and
    when the newest job ended."""
    names = jobs.attrs["settings"]
    varied = [name for name in names if jobs[name].nunique(dropna=False) > 1]
    newest = datetime.fromtimestamp(int(jobs["ended"].max()) / 1000, UTC)
    return {
        "jobs": sorted(jobs["job_id"]),
        "commits": sorted({_commit(job) for _, job in jobs.iterrows()}),
        "shared": {name: jobs[name].tolist()[0] for name in names if name not in varied},
        "varied": {name: sorted(set(jobs[name].tolist()), key=str) for name in varied},
        "newest": newest.isoformat(timespec="seconds"),
    }


def read(path: Path) -> dict[str, Any]:
    """Return where a figure comes from, read from any of its files.

    Raises SettingsError if the file does not say, OSError if it cannot be read.
    """
    try:
        return {**json.loads(_kept(path))}
    except (ValueError, TypeError, KeyError) as error:
        raise SettingsError(f"--provenance {path}: has no provenance information") from error


def as_lines(about: dict[str, Any]) -> str:
    """Return where a figure comes from, a line for each thing."""
    return "\n".join(f"{key}: {_line(value)}" for key, value in about.items())


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_line(of_it)}" for name, of_it in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _commit(job: "pd.Series[Any]") -> str:
    changed = " with changes" if job.get("dirty") == "true" else ""
    return f"{job.get('commit', 'unknown')}{changed}"


def _kept(path: Path) -> str:
    """The text as figure_files.py has written it."""
    match path.suffix:
        case ".pdf":
            found = re.search(rb"/Subject \(((?:\\.|[^\\)])*)\)", path.read_bytes(), re.DOTALL)
            return re.sub(rb"\\(.)", rb"\1", found[1]).decode() if found else ""
        case ".svg":
            (text,) = re.findall("<dc:description>(.*?)</dc:description>", path.read_text())
            return html.unescape(text)
        case ".png" | ".tiff":
            from PIL import Image

            with Image.open(path) as image:
                return str(image.info.get(METADATA["png"]) or image.getexif()[TIFF_TAG])
    return path.with_suffix(".json").read_text()
