"""The code that produced a job's results, as recorded in its folder, and the present code.

`code.json` holds the fingerprint of the code that began the job: each definition that its results
depend on, with its hash and its source (labjobs.evidence). It distinguishes a change of the code
from code that was only moved, reformatted or commented.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from labjobs import layout
from labjobs.errors import SettingsError, few
from labjobs.evidence.fingerprint import Fingerprint, Project
from labjobs.files import CODE, opened, write_json, write_record
from labjobs.job.identity import identity
from labjobs.job.journal import record_of
from labjobs.privacy import scrub

MIXED = "mixed"
"""Takes the place of a digest if a job was continued with changed code."""

INPUT = "input"
"""Prefix of the names of parts that are jobs."""

NAMED = 3
"""The largest number of changed definitions that a message names."""

# Changes of the code that somebody has accepted because they do not change results are in
# `accepted.json` in the project's folder, to be committed with the change. Only the digests of the
# whole code decide: a refactor that moves work from one function to another is right as a whole.


@dataclass(frozen=True)
class Accepted:
    """A change of the code of jobs, from one digest to another: which definitions it changes, with
    their hashes then and now; the reason, by whom and when; and the jobs that were replayed with
    the same bits, each with how far: "to its end", "up to step 40"."""

    old: str
    new: str
    definitions: Mapping[str, Sequence[str]]
    because: str
    by: str
    on: str
    replayed: Mapping[str, str]


@cache
def accepted(folder: Path = CODE) -> Sequence[Accepted]:
    """Return what is accepted; SettingsError if its file cannot be read."""
    try:
        content = json.loads((folder / layout.ACCEPTED).read_bytes())
        return [Accepted(**each) for each in content["accepted"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SettingsError(
            f"{layout.ACCEPTED}: cannot be read; restore it from version control"
        ) from error


def accept(further: Iterable[Accepted], folder: Path = CODE) -> None:
    """Write down further changes as accepted."""
    every = sorted([*accepted(folder), *further], key=lambda each: (each.old, each.new))
    content = {"schema": 2, "accepted": [asdict(each) for each in every]}
    write_json(folder / layout.ACCEPTED, content)
    accepted.cache_clear()


def same(digest: str, folder: Path = CODE) -> set[str]:
    """Return the digests of code that count as the same, including this one."""
    found, further = set[str](), {digest}
    while further:  # changes may follow one another
        found |= further
        pairs = [{each.old, each.new} for each in accepted(folder)]
        further = {each for pair in pairs if pair & found for each in pair - found}
    return found


def oldest(digest: str, folder: Path = CODE) -> str:
    """Return the digest of the oldest code that counts as the same."""
    older = {each.new: each.old for each in accepted(folder)}
    while digest in older:
        digest = older.pop(digest)  # once each, in case a change was reverted
    return digest


# The code of a job, now and as its folder has it.


@cache
def _project(script: str) -> Project:
    return Project(CODE, script)


def present(settings: Any, script: str, inputs: Mapping[str, str]) -> Fingerprint:
    """Return the fingerprint of the present code, for a job with these settings; `inputs` are the
    digests of the jobs that it is derived from, by their ids."""
    return _project(script).fingerprint(identity(settings), inputs=inputs)


def fits(digest: str, code: Fingerprint) -> bool:
    """Return whether results whose code has this digest count as results of the given code."""
    return digest in same(code.widened(digest.split()[1:]).digest)


def present_as_in(folder: Path, code: Fingerprint) -> Fingerprint:
    """Return the present code of a job, widened in the same way as the code of an attempt."""
    return code.widened(digest(folder).split()[1:])


def widen(folder: Path, code: Fingerprint, script: str, ran: Iterable[CodeType]) -> list[str]:
    """Add further definitions that have run to the code of an attempt, with everything that they
    depend on; returns the names of what was added."""
    if digest(folder) == MIXED:
        return []
    code = present_as_in(folder, code)
    if names := _project(script).lacking(code, ran):
        keep(folder, code.widened(names))
    return [in_python(name) for name in names]


def keep(folder: Path, code: Fingerprint) -> None:
    """Record a job's code, without secrets; for other files, only their hashes."""
    parts = {}
    for name, found in code.parts.items():
        parts[name] = {"hash": found, "label": code.labels[name]}
        if not name.startswith("file:"):
            parts[name]["source"] = scrub(code.source(name), code=True)
    write_record(folder / layout.CODE, {"schema": 1, "digest": code.digest, "parts": parts})


def keep_mixed(folder: Path) -> None:
    """Record that a job was continued with changed code, so that it fits no version of the code."""
    write_record(folder / layout.CODE, {"schema": 1, "digest": MIXED})


def digest(folder: Path) -> str:
    """Return the digest of a job's code; empty if it is not recorded. If code.json is damaged,
    settings.json has the digest too.
    """
    kept = _kept(folder).get("digest") or record_of(folder, layout.SETTINGS).get("code", "")
    return str(kept)


def recorded(folder: Path) -> bool:
    """Return whether code.json exists and is undamaged."""
    return bool(_kept(folder))


def parts(folder: Path) -> dict[str, dict[str, str]]:
    """Return the parts of the code that a job is from, by name: `hash`, `label` and, but for other
    files, `source`. Empty if they are not recorded."""
    return dict(_kept(folder).get("parts", {}))


def changes(folder: Path, code: Fingerprint) -> dict[str, list[str]]:
    """Return the parts of the code that have changed since a job, by name, each with its hashes
    then and now, empty where there is none. Empty if the job's code was not recorded."""
    kept, code = parts(folder), present_as_in(folder, code)
    # Code may have been moved to another module: labels tell what is the same.
    then = {part["label"]: (name, part["hash"]) for name, part in kept.items()}
    now = {label: (name, code.parts[name]) for name, label in code.labels.items()}
    found, none = {}, ("", "")
    for label in {**then, **now} if kept else ():
        (was_called, before), (name, after) = then.get(label, none), now.get(label, none)
        if before != after:
            found[name or was_called] = [before, after]
    return found


def changed(folder: Path, code: Fingerprint) -> list[str]:
    """Return the names of the parts that have changed since a job; those whose change was accepted
    are left out if there are others."""
    found = changes(folder, code)
    known = [each for change in accepted() for each in change.definitions.items()]
    return [name for name in found if (in_python(name), found[name]) not in known] or [*found]


def difference(folder: Path, code: Fingerprint) -> str:
    """Return how the given code differs from a job's code, in a few words, with the names of
    definitions as in Python: `models.ConvNet changed`. Empty if it is the same."""
    known = digest(folder)
    if fits(known, code):
        return ""
    if known == MIXED:
        return "it was continued with changed code"
    names = changed(folder, code)
    return f"{few(map(in_python, names), NAMED)} changed" if names else "its code was not recorded"


def _kept(folder: Path) -> dict[str, Any]:
    with suppress(OSError):
        return _opened((folder / layout.CODE).read_bytes())
    return {}


@lru_cache(maxsize=64)  # thousands of jobs have the same code
def _opened(data: bytes) -> dict[str, Any]:
    return opened(data)


def in_python(part: str) -> str:
    """Return a part's name as in Python: `models.ConvNet`, `models.py`; or `input 1872aa178ea7`."""
    module, _, name = part.partition(":")
    if module == INPUT:
        return f"{module} {name}"
    if name in ("<module>", "<file>"):
        return f"{module}.py"
    return f"{module}.{name}" if name and module != "file" else name or module
