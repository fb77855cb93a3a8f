"""A project's identity, independent of its name and its place: an id, made once.

The id is in the file `.project-id`, which should be committed: clones of a project have the same
id, so they share results. An experiment in a tracking store records the id of its project, so two
projects that happen to have the same name never mix up their jobs.
"""

import os
import re
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path
from uuid import uuid4

from labjobs.errors import SettingsError, cause
from labjobs.paths import PROJECT, shown

FILE = PROJECT / ".project-id"


@cache
def project_id() -> str:
    """Return the project's id, 32 hex digits; the first job of a project makes it.

    Raises SettingsError if the file contains something else or cannot be written.
    """
    return existing_id() or _made()


def existing_id() -> str:
    """Return the project's id; empty if no job has made it yet. Raises the same errors as
    `project_id`."""
    try:
        text = FILE.read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(cause(error)) from error
    if not re.fullmatch("[0-9a-f]{32}", text):
        raise _wrong("has no project id in it; restore it from version control")
    return text


def share_with_group(folder: Path) -> None:
    """Let the group write the files that this process makes, if they are in a folder that the group
    can write to, so that the members of a lab can continue each other's jobs."""
    with suppress(OSError):  # a folder that does not exist yet, or cannot exist
        if folder.stat().st_mode & stat.S_IWGRP:
            os.umask(os.umask(0o077) & ~stat.S_IRWXG)


def _made() -> str:
    """Make the file. Of several jobs that do so at once, all get the id of the first."""
    part = FILE.with_name(f"{FILE.name}.{os.getpid()}")
    try:
        part.write_text(f"{uuid4().hex}\n")
        with suppress(FileExistsError):
            os.link(part, FILE)  # a rename would replace the file of another job
    except OSError as error:
        raise _wrong(cause(error)) from error
    finally:
        part.unlink(missing_ok=True)
    return existing_id()


def _wrong(why: str) -> SettingsError:
    return SettingsError(f"{shown(FILE)}: {why}")
