"""The files of a job that are also in its run, where MLflow's users look for them. Weights can be
large. If MLflow keeps files on the same disk as the job's folder, the run gets a second name for
the same file (a hard link) instead of a copy: `best.pt` is never changed, only replaced.
"""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

WEIGHTS = "best.pt"

AT_THE_END = ("settings.json", "code.json", "changes.diff", "log.txt", WEIGHTS)
"""The files that a run gets when its job ends, the small ones first; the journal names the
others."""


def on_disk(uri: str) -> Path | None:
    """Return the folder of a run's files; None if they are on a server or another machine."""
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme == "file" and not parts.netloc else None


def link(file: Path, folder: Path) -> bool:
    """Give a file the same name in another folder too; return False if that is not possible, for
    example between two disks."""
    target = folder / file.name
    part = target.with_name(f".{target.name}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        os.link(file, part)
        part.replace(target)
        part.unlink(missing_ok=True)  # if both names are the same file already, replace() leaves it
    except OSError:
        return False
    return True
