"""What makes a project itself, whatever its name and wherever it lies: an id, made once.

It is in the file `.project-id`, which belongs into version control: clones of a project have the
same, so they share results. A tracking store's experiment notes whose it is; so two projects that
happen to have the same name never take each other's jobs for their own.
"""

import os
import re
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path
from uuid import uuid4

from engine.errors import SettingsError, cause
from engine.paths import PROJECT, shown

FILE = PROJECT / ".project-id"


@cache
def project_id() -> str:
    """Return the project's id, 32 hex digits; the first job of a project makes it.

    Raises SettingsError if the file holds something else or cannot be written.
    """
    return existing_id() or _made()


def existing_id() -> str:
    """Return the project's id; nothing if no job has made it yet. Raises as `project_id` does."""
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
    """Let the group write what this process makes, if it may write in a folder that the group
    shares; so the members of a lab can go on with each other's jobs."""
    with suppress(OSError):  # a folder that is not there yet, or cannot be
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
