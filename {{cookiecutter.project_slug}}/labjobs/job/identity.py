"""A job's identity: its id, computed from its settings and its script.

Settings that came later do not change the ids of older jobs, nor do renamed and deleted ones:
`python jobs.py docs settings` says what to write for each kind of change.
"""

import ast
import hashlib
import json
import os
import re
import shlex
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, get_args
from uuid import uuid4

from labjobs.cli import flags
from labjobs.cli.flags import as_plain, as_text
from labjobs.cli.registries import parsed
from labjobs.errors import SettingsError, cause, did_you_mean
from labjobs.files import CODE, PROJECT, shown
from labjobs.settings import JobId, Metric, Weights

S = TypeVar("S")

LONGEST_NAME = 200
"""Characters of a job's name; MLflow's databases take 250 of a run's."""


def identity(settings: Any) -> dict[str, Any]:
    """Return the settings that count as plain values, each in one form. A setting does not count if
    another one that `replaces` it is above 0.
    """
    known = flags.of(type(settings))
    plain = {name: as_plain(getattr(settings, name)) for name in known}
    for replaced, names in known.replacing.items():
        if any(getattr(settings, name) for name in names):
            del plain[replaced]
    return plain


def job_id(settings: Any, script: str = "run") -> str:
    """Return 12 hex digits: SHA-256 over the script's name and the identity, as JSON.

    Settings that were added later are left out at their neutral value, renamed ones stand under
    their former names, deleted ones as FORMER has them.
    """
    known = flags.of(type(settings))
    hashed = {name: as_plain(value) for name, value in known.former.items()}
    for name, value in identity(settings).items():
        if name not in known.neutral or value != known.neutral[name]:
            hashed[known.formerly.get(name, name)] = value
    text = json.dumps([script, hashed], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def inputs(settings: Any) -> dict[JobId, str]:
    """Return the jobs that a job is derived from: their ids, each with the flag that names it."""
    found: dict[JobId, str] = {}
    for name in flags.of(type(settings)):
        value = getattr(settings, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, JobId | Weights):
                job = each.job if isinstance(each, Weights) else each
                found.setdefault(job, flags.option(name))
    return found


def can_have_inputs(kind: type) -> bool:
    """Return whether jobs with settings of this class can be derived from others."""
    types = [each for flag in flags.of(kind).values() for each in flag.reader.types]
    return any({JobId, Weights} & {each, *get_args(each)} for each in types)


def neutral(settings: Any) -> dict[str, Any]:
    """Return, by name, the value to assume for a setting that a job does not have: an older job, if
    the setting was added later, or a newer job, if it was deleted."""
    known = flags.of(type(settings))
    return {**known.neutral, **known.former}


def formerly(kind: type) -> dict[str, str]:
    """Return the former names of the settings that were renamed, by their present ones."""
    return flags.of(kind).formerly


def changed(settings: Any) -> dict[str, str]:
    """Return the settings that differ from their defaults, as they are written as flags."""
    known, plain = flags.of(type(settings)), identity(settings)
    differ = (name for name, value in plain.items() if value != as_plain(known[name].default))
    return {name: as_text(plain[name]) for name in differ}


def as_command(settings: Any, script: str) -> str:
    """Return the command line that runs a job: `python run.py --lr=0.01 --seed=2`."""
    words = [f"{flags.option(name)}={text}" for name, text in changed(settings).items()]
    return shlex.join(["python", f"{script}.py", *words])


def as_words(settings: Any) -> str:
    """Return a job's name, one line that distinguishes it from others: `convnet seed=2 lr=0.01`.

    The model and the seed, where there are such settings, come first, because lists of runs and
    legends of charts cut off long names; then come the settings that differ from their defaults, as
    far as LONGEST_NAME allows.
    """
    first, rest = _first(settings), changed(settings)
    words = [f"{key}={value}" for key, value in rest.items() if key not in ("model", "seed")]
    words = [" ".join(word.split()) for word in (*first, *words)]
    while len(name := " ".join(words)) > LONGEST_NAME:
        words.remove(max(words, key=len))
    return name or "defaults"


def _first(settings: Any) -> list[str]:
    plain = identity(settings)
    model = [as_text(plain["model"])] if "model" in plain else []
    return [*model, f"seed={plain['seed']}"] if "seed" in plain else model


def restore(kind: type[S], stored: Mapping[str, Any]) -> S:
    """Return the settings of an identity that was stored, perhaps by older code.

    Settings that were added later have their neutral values. Raises SettingsError if today's
    settings cannot express them.
    """
    known = flags.of(kind)
    left = {name: as_plain(value) for name, value in stored.items()}
    for name, value in known.former.items():
        if left.get(name) == as_plain(value):
            del left[name]
    values = {}
    for name, flag in known.items():
        stored_as = name if name in left else known.formerly.get(name, name)
        if stored_as in left:
            values[name] = flag.stored(as_text(left.pop(stored_as)))
        elif name in known.neutral:
            values[name] = flag.rules["neutral"]
        elif name not in known.replacing:
            raise SettingsError(
                f"the job ran before the setting {name} existed, which has no neutral value"
            )
    for name, value in left.items():
        raise SettingsError(f"{name}={as_text(value)}: no longer a setting of this project")
    return kind(**values)


# A project's identity, independent of its name and its place: an id, made once.
#
# The id is in the file `.project-id`, which should be committed: clones of a project have the same
# id, so they share results. An experiment in a tracking store records the id of its project, so two
# projects that happen to have the same name never mix up their jobs.

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


# Job scripts, such as run.py: which settings and metrics their jobs have.
#
# Both are read from the script's source, because running a script would import torch:
#
#     from settings import METRICS, Settings
#     command = launch.begin(Settings, METRICS)
#     sys.exit(command.run(main, check))

DEFAULT = "run"
"""The default script."""


@dataclass(frozen=True)
class Script:
    """A job script; `name` is without `.py`."""

    name: str
    settings: type[Any]
    """The class of its jobs' settings."""

    metrics: Mapping[str, Metric]
    check: str
    """The function that says whether a job could run."""


@cache
def read(name: str) -> Script:
    """Return the script of a name such as `run`.

    Raises SettingsError if the project has no such script, or it does not say what its jobs are.
    """
    file = CODE / f"{name}.py"
    if "/" in name or not file.is_file():  # it must be beside run.py
        known = did_you_mean(file.name, sorted(path.name for path in CODE.glob("*.py")))
        raise SettingsError(f"{file.name}: there is no such script; {known}")
    tree = parsed(file)
    imported = {
        alias.asname or alias.name: (statement.module, alias.name)
        for statement in ast.walk(tree)
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }
    found = _declared(tree)
    if not found or not {*found[:2]} <= imported.keys():
        wanted = "launch.begin(Settings, METRICS), imported from settings.py, and run(main, check)"
        raise SettingsError(f"{file.name}: is not a job script, which calls {wanted}")
    settings, metrics = (imported[each] for each in found[:2])
    return Script(name, _value(*settings), _value(*metrics), check=found[2])


def _declared(tree: ast.Module) -> tuple[str, str, str] | None:
    """The names that a script uses for its class of settings, its metrics and its check."""
    begun: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=command)],
                value=ast.Call(
                    func=ast.Name(id="begin") | ast.Attribute(attr="begin"),
                    args=[ast.Name(id=settings), ast.Name(id=metrics)],
                ),
            ):
                begun[command] = settings, metrics
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=command), attr="run"),
                args=[_, ast.Name(id=check)],
            ) if command in begun:
                return *begun[command], check
    return None


def _value(module: str, name: str) -> Any:
    return getattr(import_module(module), name)
