"""A job's identity: its id, computed from its settings and its script; and its purpose.

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
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from labjobs import layout
from labjobs.cli import flags
from labjobs.cli.flags import as_plain, as_text, parsed
from labjobs.errors import SettingsError, cause, did_you_mean
from labjobs.files import CODE, PROJECT, read_record, shown, write_record
from labjobs.settings import JobId, Metric

S = TypeVar("S")

LONGEST_NAME = 200  # characters of a job's name; MLflow's databases take 250 of a run's


def identity(settings: Any) -> dict[str, Any]:
    """Return the settings that count as plain values, each in one form."""
    known = flags.of(type(settings))
    idle = known.idle(settings)
    return {name: as_plain(getattr(settings, name)) for name in known if name not in idle}


def job_id(settings: Any, script: str = "run") -> str:
    """Return 12 hex digits: SHA-256 over the script's name and the identity, as JSON. Settings that
    were added later are left out at their neutral value, renamed ones stand under their former
    names, deleted ones as FORMER has them."""
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
            if isinstance(each, JobId):
                found.setdefault(each.job, flags.option(name))
    return found


def since(kind: type) -> dict[str, dict[str, Any]]:
    """Return how settings of this class have changed: `neutral`, the values to assume for settings
    that an older or newer job does not have, and `former`, today's names by the former ones."""
    known = flags.of(kind)
    former = {before: name for name, before in known.formerly.items()}
    return {"neutral": {**known.neutral, **known.former}, "former": former}


def changed(settings: Any) -> dict[str, str]:
    """Return the settings that differ from their defaults, as they are written as flags."""
    known, plain = flags.of(type(settings)), identity(settings).items()
    return {name: as_text(v) for name, v in plain if v != as_plain(known[name].default)}


def as_flags(settings: Any) -> list[str]:
    """Return the settings that differ from their defaults as flags: `--lr=0.01`, `--seed=2`."""
    return [f"{flags.option(name)}={text}" for name, text in changed(settings).items()]


def as_command(settings: Any, script: str) -> str:
    """Return the command line that runs a job: `python run.py --lr=0.01 --seed=2`."""
    return shlex.join(["python", f"{script}.py", *as_flags(settings)])


CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""A control character, which a terminal would obey."""


def as_words(settings: Any) -> str:
    """Return a job's name, one line that distinguishes it from others: `convnet seed=2 lr=0.01`.

    The model and the seed, where there are such settings, come first, because lists of runs and
    legends of charts cut off long names; then come the settings that differ from their defaults, as
    far as LONGEST_NAME allows.
    """
    plain = identity(settings)
    named = {name: as_text(plain[name]) for name in ("model", "seed") if name in plain}
    words = [f"{key}={value}" for key, value in (named | changed(settings)).items()]
    words = [" ".join(word.removeprefix("model=").split()) for word in words]
    words = [CONTROL.sub("?", word) for word in words]
    while len(name := " ".join(words)) > LONGEST_NAME:
        words.remove(max(words, key=len))
    return name or "defaults"


def restore(kind: type[S], stored: Mapping[str, Any]) -> S:
    """Return the settings of an identity that was stored, perhaps by older code; those added later
    have their neutral values. Raises SettingsError if today's settings cannot express them."""
    known = flags.of(kind)
    left = {name: as_plain(value) for name, value in stored.items()}
    for name, value in known.former.items():
        if left.get(name) == as_plain(value):
            del left[name]
    values = {}
    for name, flag in known.items():
        stored_as = name if name in left else known.formerly.get(name, name)
        if stored_as in left:
            values[name] = flag.read(as_text(left.pop(stored_as)), stored=True)
        elif name in known.neutral:
            values[name] = flag.rules["neutral"]
        elif name not in known.replacing and name not in known.when:
            line = f"the job has no value of the setting {name}, which has no neutral one"
            raise SettingsError(line)
    for name, value in left.items():
        raise SettingsError(f"{name}={as_text(value)}: no setting in this settings.py")
    try:
        idle = known.idle(kind(**values))  # which keep their defaults, neutral or not
        return kind(**{n: v for n, v in values.items() if n not in idle or known[n].required})
    except ValueError as error:  # a rule in __post_init__
        raise SettingsError(str(error)) from error


# A project's identity: an id, made once, in a file that should be committed, so that clones share
# results. An experiment in a store records it, so that projects of one name never mix up jobs.

FILE = PROJECT / layout.PROJECT_ID

KEPT = PROJECT / "runs" / FILE.name
"""The id and the project's folder, once more: git takes an uncommitted file away (`stash -u`), and
a committed one with an older commit, but leaves ignored folders alone."""


@cache
def project_id() -> str:
    """Return the project's id, 32 hex digits; the first job of a project makes it. Raises
    SettingsError if the file contains something else or cannot be written."""
    if known := existing_id():
        _keep(known)
        return known
    part = FILE.with_name(f"{FILE.name}.{os.getpid()}")
    try:
        part.write_text(f"{uuid4().hex}\n", "utf-8")
        with suppress(FileExistsError):  # of several jobs at once, all get the id of the first
            os.link(part, FILE)  # a rename would replace the file of another job
    except OSError as error:
        raise SettingsError(cause(error)) from error
    finally:
        part.unlink(missing_ok=True)
    return existing_id()


def existing_id() -> str:
    """Return the project's id; empty if nothing knows one. Raises as `project_id` does."""
    try:
        text = FILE.read_text("utf-8", "replace").strip()
    except FileNotFoundError:
        return _kept()
    except OSError as error:
        raise SettingsError(cause(error)) from error
    if not re.fullmatch("[0-9a-f]{32}", text):
        line = f"{shown(FILE)}: has no project id in it; restore it from version control"
        raise SettingsError(line)
    return text


def _keep(known: str) -> None:
    with suppress(OSError):  # a folder of someone else; the file alone has the id then
        if KEPT.parent.is_dir() and not _kept():
            write_record(KEPT, {"id": known, "project": str(PROJECT)})


def restore_id(known: str) -> None:
    """Keep a lost id, which the project's own store knows, where git takes no file away."""
    with suppress(OSError):
        KEPT.parent.mkdir(exist_ok=True)
    _keep(known)


def _kept() -> str:
    """The id if .project-id is missing; empty in a copy of the runs in another project."""
    kept = read_record(KEPT)
    return str(kept["id"]) if kept.get("project") == str(PROJECT) else ""


def share_with_group(folder: Path) -> None:
    """Let the group write the files that this process makes if it can write in the folder, so that
    the members of a lab can continue each other's jobs."""
    with suppress(OSError):  # a folder that does not exist yet, or cannot exist
        if folder.stat().st_mode & stat.S_IWGRP:
            os.umask(os.umask(0o077) & ~stat.S_IRWXG)


# Job scripts, such as run.py: which settings and metrics their jobs have. Both are read from the
# script's source, because running a script would import torch:
#
#     from settings import METRICS, Settings
#     command = launch.begin(Settings, METRICS)
#     sys.exit(command.run(main, check))

DEFAULT = "run"  # the default script

BEGIN = re.compile(
    r"^ *(?P<command>\w+) = (?:\w+\.)?begin\((?P<settings>\w+), (?P<metrics>\w+)\)$"
    r".*\b(?P=command)\.run\(\w+, (?P<check>\w+)\)",
    re.MULTILINE | re.DOTALL,
)
"""The two calls in a script, as `ast.unparse` writes them."""


class Script(NamedTuple):
    """A job script, without `.py`, and what its jobs are; `check` says whether one could run."""

    name: str
    settings: type[Any]
    metrics: Mapping[str, Metric]
    check: str


@cache
def read(name: str) -> Script:
    """Return the script of a name such as `run`. Raises SettingsError if there is none, or it does
    not say what its jobs are."""
    file = CODE / f"{name}.py"
    if "/" in name or not file.is_file():  # it must be beside run.py
        known = did_you_mean(file.name, sorted(path.name for path in CODE.glob("*.py")))
        known = "a script lies beside run.py; give its name alone" if "/" in name else known
        raise SettingsError(f"{name}.py: there is no such script; {known}")
    tree = parsed(file)
    imported = {
        alias.asname or alias.name: (statement.module, alias.name)
        for statement in ast.walk(tree)
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }
    begun = BEGIN.search(ast.unparse(tree))
    if not begun or not {begun["settings"], begun["metrics"]} <= imported.keys():
        wanted = "launch.begin(Settings, METRICS), imported from settings.py, and run(main, check)"
        raise SettingsError(f"{file.name}: is not a job script, which calls {wanted}")
    homes = (imported[begun[each]] for each in ("settings", "metrics"))
    settings, metrics = (getattr(import_module(module), each) for module, each in homes)
    return Script(name, settings, metrics, begun["check"])


def kind_of(name: str) -> type[Any] | None:
    """Return the class of a script's settings; None if the script is gone."""
    try:
        return read(name).settings
    except SettingsError:
        return None


# The purpose of a job that is not run for its own results: `jobs.py find` runs jobs to measure.
#
# The purpose is in the environment, since it changes no result, and in a tag of the run, so that
# figures and tables leave the job out; after a `;` follows what the job was run with. What such a
# job measures is named in journal.py.

PURPOSE = "JOB_PURPOSE"
TAG = "purpose"
LENGTH = "JOB_LENGTH"  # in the environment: settings that say how long the job is to be later

FIND_LR = "find lr"
FIND_BATCH_SIZE = "find batch-size"
FIND_NOISE_SCALE = "find noise-scale"
FIND_WORKERS = "find workers"


# Where a job of run.sh runs, if that is another machine (labjobs.sweeps.hosts).

PLACE = "JOB_PLACE"  # in the environment of the job's process here: the place on a host
ON_HOST = "JOB_ON_HOST"  # in that of the job there: `fetched`, or `shared` if the disk is


def is_fetched() -> bool:
    """Return whether another machine fetches what this job writes, and uploads it."""
    return os.environ.get(ON_HOST) == "fetched"


def purpose() -> str:
    """Return the purpose of this job; empty if it is run for its results."""
    return os.environ.get(PURPOSE, "").partition(";")[0]
