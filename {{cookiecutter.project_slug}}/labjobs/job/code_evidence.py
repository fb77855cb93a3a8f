"""The code that produced a job's results, as recorded in its folder, and the present code.

`code.json` holds the fingerprint of the code that began the job: each definition that its results
depend on, with its hash and its source (labjobs.evidence). It distinguishes a change of the code
from code that was only moved, reformatted or commented.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from labjobs import layout
from labjobs.errors import SettingsError
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

# Code changes that somebody has accepted because they do not change results are in `accepted.json`
# in the project's folder, to be committed with the change:
#
#     {"schema": 1,
#      "changes": [{"old": {"MLP": "1c08…"}, "new": {"MLP": "77f2…"}, "because": "flatten for view",
#                   "by": "Ada", "on": "2026-11-22", "verified": true}],
#      "codes": [["90b5…", "e31f…"]]}
#
# `old` and `new` are for people, and for messages that name further changes. `codes` are the
# fingerprints of whole jobs before and after: with them, runs in the store count again.

Hashes = Mapping[str, str]
"""Hashes of definitions, by their names without a module."""


@dataclass(frozen=True)
class Change:
    """Definitions before and after a change; the reason, by whom and when; whether a job was
    replayed and gave the same bits."""

    old: Hashes
    new: Hashes
    because: str
    by: str
    on: str
    verified: bool


@dataclass(frozen=True)
class Accepted:
    """What is accepted in a project."""

    changes: list[Change] = field(default_factory=list)
    codes: list[tuple[str, str]] = field(default_factory=list)

    def same(self, digest: str) -> set[str]:
        """Return the fingerprints that count as the same, including this one."""
        found = {digest}
        for _ in self.codes:  # changes may follow one another
            found |= {each for pair in self.codes if found & {*pair} for each in pair}
        return found

    def oldest_code(self, digest: str) -> str:
        """Return the oldest fingerprint that counts as the same."""
        older = {new: old for old, new in self.codes}
        while digest in older:
            digest = older.pop(digest)  # once each, in case a change was reverted
        return digest

    def oldest(self, hashes: Hashes) -> dict[str, str]:
        """Return the hashes of the oldest definitions that count as the same."""
        found = dict(hashes)
        largest_first = sorted(self.changes, key=lambda each: -len(each.new) - len(each.old))
        for _ in self.changes:
            for change in largest_first:
                if change.new.items() <= found.items():
                    for name in change.new:
                        del found[name]
                    found.update(change.old)
        return found


@cache
def accepted(folder: Path = CODE) -> Accepted:
    """Return what is accepted; SettingsError if its file cannot be read."""
    try:
        content = json.loads((folder / layout.ACCEPTED).read_bytes())
        codes = [(str(old), str(new)) for old, new in content["codes"]]
        return Accepted([Change(**each) for each in content["changes"]], codes)
    except FileNotFoundError:
        return Accepted()
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SettingsError(
            f"{layout.ACCEPTED}: cannot be read; restore it from version control"
        ) from error


def accept(changes: Iterable[Change], codes: Iterable[tuple[str, str]], folder: Path) -> None:
    """Write down further changes as accepted."""
    before = accepted(folder)
    every = [*before.changes, *(each for each in changes if each not in before.changes)]
    pairs = sorted({*before.codes, *codes})
    content = {"schema": 1, "changes": [asdict(each) for each in every], "codes": pairs}
    write_json(folder / layout.ACCEPTED, content)
    accepted.cache_clear()


def between(old: Hashes, new: Hashes) -> Sequence[tuple[Hashes, Hashes]]:
    """Return the changes from one code to another, each with the definitions before and after.
    There is one change for each definition, so that it also applies to other jobs. If definitions
    were added or removed, everything is one change, since nobody can say which other definitions
    they belong to.
    """
    before = {name: found for name, found in old.items() if new.get(name) != found}
    after = {name: found for name, found in new.items() if old.get(name) != found}
    if before.keys() == after.keys():
        return [({name: before[name]}, {name: after[name]}) for name in before]
    return [(before, after)]


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
    return digest in accepted().same(_widened_as(digest, code).digest)


def present_as_in(folder: Path, code: Fingerprint) -> Fingerprint:
    """Return the present code of a job, widened in the same way as the code of an attempt."""
    return _widened_as(digest(folder), code)


def _widened_as(digest: str, code: Fingerprint) -> Fingerprint:
    return code.widened(digest.split()[1:])


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


def changed(folder: Path, code: Fingerprint) -> list[str]:
    """Return the names of the parts of the code that have changed since a job, except for accepted
    changes."""
    kept, code = parts(folder), present_as_in(folder, code)
    labels = {part["label"]: name for name, part in kept.items()}
    labels |= {label: name for name, label in code.labels.items()}
    before = {part["label"]: part["hash"] for part in kept.values()}
    after = {code.labels[name]: found for name, found in code.parts.items()}
    before, after = accepted().oldest(before), accepted().oldest(after)
    differing = [each for each in {**before, **after} if before.get(each) != after.get(each)]
    return [labels.get(label, label) for label in differing]


def difference(folder: Path, code: Fingerprint) -> str:
    """Return how the given code differs from a job's code, in a few words, with the names of
    definitions as in Python: `models.ConvNet changed`. Empty if it is the same."""
    known = digest(folder)
    if fits(known, code):
        return ""
    if known == MIXED:
        return "it was continued with changed code"
    if not parts(folder):
        return "its code was not recorded"
    names = changed(folder, code)
    if not names:
        return ""
    named, more = ", ".join(map(in_python, names[:NAMED])), len(names) - NAMED
    return f"{named} and {more} more changed" if more > 0 else f"{named} changed"


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
