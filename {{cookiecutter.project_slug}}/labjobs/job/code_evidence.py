"""The code that produced a job's results, as recorded in its folder, and the present code.

`settings.json` has the digest of the code that began the job, and `.code/<digest>.json` in the
folder of runs, which jobs with the same code share, each definition that its results depend on,
with its hash and its source (labjobs.evidence). They distinguish a change of the code from code
that was only moved, reformatted or commented.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from labjobs import layout
from labjobs.errors import SettingsError, few
from labjobs.evidence.fingerprint import Fingerprint, Project
from labjobs.files import CODE, read_record, record, write_shared, write_text
from labjobs.job.identity import identity
from labjobs.job.journal import record_of, tag_of
from labjobs.privacy import scrub

MIXED = "mixed"  # takes the place of a digest if a job was continued with changed code
INPUT = "input"  # prefix of the names of parts that are jobs
REMOVED = "removed"  # takes the place of the digest of an input that is no longer there
NAMED = 3  # the largest number of changed definitions that a message names

# Changes of the code that somebody has accepted because they do not change results are in
# `accepted.jsonl` in the project's folder, to be committed with the change, a line each, so that
# git can merge those of two branches. Only the digests of the whole code decide: a refactor that
# moves work from one function to another is right as a whole.


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
    schema: int = 3


@cache
def accepted(folder: Path = CODE) -> Sequence[Accepted]:
    """Return what is accepted; SettingsError if its file cannot be read."""
    try:
        lines = sorted({*(folder / layout.ACCEPTED).read_text("utf-8").splitlines()})
        return [Accepted(**json.loads(line)) for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError) as error:
        line = f"{layout.ACCEPTED}: cannot be read; restore it from version control"
        raise SettingsError(line) from error


def accept(further: Iterable[Accepted], folder: Path = CODE) -> None:
    """Write down further changes as accepted."""
    lines = {f"{json.dumps(asdict(each))}\n" for each in (*accepted(folder), *further)}
    write_text(folder / layout.ACCEPTED, "".join(sorted(lines)))
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


def present(
    settings: Any, script: str, inputs: Mapping[str, str], without: Sequence[str] = ()
) -> Fingerprint:
    """Return the fingerprint of the present code, for a job with these settings; `inputs` are the
    digests of the jobs that it is derived from, by their ids. `without` is as in Project."""
    return _project(script).fingerprint(identity(settings), inputs=inputs, without=without)


def fits(digest: str, code: Fingerprint) -> bool:
    """Return whether results whose code has this digest count as results of the given code."""
    return digest in same(code.widened(digest.split()[1:]).digest)


def present_as_in(folder: Path, code: Fingerprint) -> Fingerprint:
    """Return the present code of a job, widened in the same way as the code of an attempt."""
    return code.widened(digest(folder).split()[1:])


def widen(
    folder: Path, code: Fingerprint, script: str, ran: set[CodeType]
) -> tuple[str, list[str]]:
    """Add further definitions that have run to the code of an attempt, with everything that they
    depend on; returns its digest then, and the names of what was added."""
    code = present_as_in(folder, code)
    names = [] if digest(folder) == MIXED else _project(script).lacking(code, ran)
    return keep(folder, code.widened(names)) if names else "", [*map(in_python, names)]


def keep(folder: Path, code: Fingerprint) -> str:
    """Record the definitions of a job's code, without secrets; for other files, only their hashes.
    Returns the code's digest."""
    if not _parts(path := definitions(folder, code.digest)):
        parts = {name: {"hash": found} for name, found in code.parts.items()}
        for name in parts:
            if not name.startswith("file:"):
                parts[name]["source"] = scrub(code.source(name), code=True)
        content = record({"schema": 1, "digest": code.digest, "parts": parts})
        write_shared(path, lambda file: file.write(content))
        _parts.cache_clear()
    return code.digest


def definitions(folder: Path, known: str = "") -> Path:
    """Return the file with the definitions that a job's code, with its digest, consists of."""
    name, *_ = (known or digest(folder) or MIXED).split(" ")  # without what it was widened by
    return folder.parent.parent / layout.CODES / f"{name}.json"


def digest(folder: Path) -> str:
    """Return the digest of a job's code; empty if it is not recorded. While the job has not ended,
    settings.json has it; if that is damaged, the journal has it too."""
    records = (record_of(folder, name) for name in (layout.OUTCOME, layout.SETTINGS))
    known = next((each["code"] for each in records if each.get("code")), "")
    return str(known or tag_of(folder, "code"))


def parts(folder: Path) -> dict[str, dict[str, str]]:
    """Return the parts of the code that a job is from, by name: `hash` and, but for other files,
    `source`. Empty if they are not recorded."""
    return _parts(definitions(folder))


def changes(folder: Path, code: Fingerprint) -> dict[str, list[str]]:
    """Return the parts of the code that have changed since a job, by name, each with its hashes
    then and now, empty where there is none. Empty if the job's code was not recorded."""
    then = {name: part["hash"] for name, part in parts(folder).items()}
    now = present_as_in(folder, code).parts
    both = {name: [then.get(name, ""), now.get(name, "")] for name in {**then, **now} if then}
    return {name: [before, after] for name, (before, after) in both.items() if before != after}


def changed(folder: Path, code: Fingerprint) -> list[str]:
    """Return the names of the parts that have changed since a job; those whose change was accepted
    are left out if there are others, and all but files that are no Python, if there are any:
    what is found through such a file seems to have changed."""
    found = changes(folder, code)
    if unread := [name for name in found if name in code.unread]:
        return unread
    known = [each for change in accepted() for each in change.definitions.items()]
    return [name for name in found if (in_python(name), found[name]) not in known] or [*found]


def distance(folder: Path, code: Fingerprint) -> float:
    """Return how many lines of the code have changed since a job, one at least in each part that
    has, whether or not that was accepted of others; 0 if the code counts as the same, infinity if
    it is not known."""
    if fits(digest(folder), code):
        return 0
    names, kept, now = changes(folder, code), parts(folder), present_as_in(folder, code)
    lines = 0.0 if names else math.inf
    for name in names:
        is_stored = name in now.parts and not name.startswith("file:")
        was = Counter(kept.get(name, {}).get("source", "").splitlines())
        present = Counter(now.source(name).splitlines() if is_stored else [])
        lines += ((was - present) + (present - was)).total() or 1
    return lines


def difference(folder: Path, code: Fingerprint) -> str:
    """Return how the given code differs from a job's code, in a few words, with the names of
    definitions as in Python: `models.ConvNet changed`. Empty if it is the same."""
    known = digest(folder)
    if fits(known, code):
        return ""
    if known == MIXED:
        return "it was continued with changed code"
    ways = {name: way(name, code) for name in changed(folder, code)}
    for how in (UNREAD, REMOVED, "changed"):
        if names := [in_python(name) for name in ways if ways[name] == how]:
            return f"{few(names, NAMED)} {how}"
    return "its code was not recorded"


UNREAD = "cannot be read as Python"


def way(part: str, code: Fingerprint) -> str:
    """Return in a few words how a part of the code has changed since a job."""
    if part in code.unread:
        return UNREAD
    is_input = part.startswith(f"{INPUT}:") and part in code.parts
    return REMOVED if is_input and code.source(part) == f"code {REMOVED}" else "changed"


def conflict(attempts: Iterable[Path]) -> bool:
    """Return whether attempts are from different states of the code. Where only settings differ, so
    may what a definition amounts to, but not its text."""
    found: dict[str, set[tuple[str, str]]] = {}
    for attempt in {oldest(digest(each)): each for each in attempts}.values():
        for name, part in parts(attempt).items():
            found.setdefault(name, set()).add((part["hash"], part.get("source", part["hash"])))
    every = [map(set, zip(*each, strict=True)) for each in found.values()]
    return any(len(hashes) > 1 and len(sources) > 1 for hashes, sources in every)


@lru_cache(maxsize=64)  # thousands of jobs have the same code
def _parts(path: Path) -> dict[str, dict[str, str]]:
    kept = read_record(path)
    own = str(kept.get("digest")).partition(" ")[0] == path.stem
    return dict(kept["parts"]) if own else {}


def binds(script: str, name: str) -> bool:
    """Return whether a module of the project has such a name: `models.ConvNet`."""
    module, _, own = name.rpartition(".")
    found = _project(script).symbols.get(module)
    return bool(found and own in found.bound)


def in_python(part: str) -> str:
    """Return a part's name as in Python: `models.ConvNet`, `models.py`; or `input 1872aa178ea7`."""
    module, _, name = part.partition(":")
    if module == INPUT:
        return f"{module} {name}"
    if name in ("<module>", "<file>"):
        return f"{module}.py"
    return f"{module}.{name}" if name and module != "file" else name or module
