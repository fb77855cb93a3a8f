"""What MLflow's own pages show about a run: who ran what, from which commit, in which sweep.

MLflow fills in these fields itself only if a training process calls `mlflow.start_run()`. Names
that begin with `mlflow.` are reserved for MLflow (mlflow.org/docs, tracking, system tags).
"""

import getpass
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from labjobs.job import provenance
from labjobs.job.folder import JobFolder
from labjobs.job.identity import as_command, as_words, identity
from labjobs.job.lines import record_of
from labjobs.paths import CODE, PROJECT
from labjobs.privacy import scrub

LONGEST = 1000
"""Characters of a line of the description; MLflow refuses tags of more than 8000."""


def tags(folder: JobFolder[Any]) -> dict[str, str]:
    """Return the fields of a run's page as tags; unknown ones are left out."""
    version = provenance.version()
    found = {
        "mlflow.user": _user(),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": f"{folder.script}.py",
        "mlflow.source.git.commit": version["commit"],
        "mlflow.source.git.branch": version.get("branch", ""),
        "mlflow.note.content": _note(folder),
        "sweep": sweep(),
        "seed_group": seed_group(folder),
        "inputs": ", ".join(f"{job}/{attempt}" for job, attempt in _inputs(folder).items()),
    }
    return {name: text for name, text in found.items() if text}


def sweep() -> str:
    """Return the name of the sweep that runs this job, which contains the time when it began; empty
    if the job was started by hand."""
    return "" if CODE == PROJECT else CODE.parent.name


def seed_group(folder: JobFolder[Any]) -> str:
    """Return what all repeats of a job over seeds have in common, and no other jobs: its name
    without the seed, and digits of a hash over its settings and its code.

    Empty for a job without a seed.
    """
    settings = identity(folder.settings)
    if "seed" not in settings:
        return ""
    seed = settings.pop("seed")
    repeated = json.dumps([folder.script, settings, folder.code.digest], sort_keys=True)
    words = (word for word in as_words(folder.settings).split(" ") if word != f"seed={seed}")
    return " ".join([*words, f"({hashlib.sha256(repeated.encode()).hexdigest()[:6]})"])


def _note(folder: JobFolder[Any]) -> str:
    """The description, in Markdown: the command that repeats the job, what it is derived from, its
    note and its folder."""
    command = as_command(folder.settings, folder.script)
    note = str(getattr(folder.settings, "note", ""))
    derived = ", ".join(f"`{job}`" for job in _inputs(folder))
    of = f"Derived from the job{'s' * (',' in derived)} {derived}" if derived else ""
    lines = [f"`{command}`", of, note, f"Folder: `{_place(folder.path)}`"]
    return scrub("\n\n".join(line[:LONGEST] for line in lines if line))


def _inputs(folder: JobFolder[Any]) -> dict[str, str]:
    """The attempts that an open attempt is derived from, by job."""
    return dict(record_of(folder.path, "settings.json").get("inputs", {}))


def _place(path: Path) -> str:
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        return str(os.getuid())
