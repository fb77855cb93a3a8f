"""Code changes that somebody has accepted because they do not change results.

They are in `accepted.json` in the project's folder, to be committed with the change:

    {"schema": 1,
     "changes": [{"old": {"MLP": "1c08…"}, "new": {"MLP": "77f2…"}, "because": "flatten for view",
                  "by": "Ada", "on": "2026-11-22", "verified": true}],
     "codes": [["90b5…", "e31f…"]]}

`old` and `new` are the hashes of definitions, by their names without a module: for people, and for
messages that name further changes. `codes` are the fingerprints of whole jobs before and after the
change, which thousands of jobs can share: with them, runs in the store count again.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from labjobs.errors import SettingsError
from labjobs.files import write_json
from labjobs.paths import CODE

FILE = "accepted.json"

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
        content = json.loads((folder / FILE).read_bytes())
        codes = [(str(old), str(new)) for old, new in content["codes"]]
        return Accepted([Change(**each) for each in content["changes"]], codes)
    except FileNotFoundError:
        return Accepted()
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SettingsError(f"{FILE}: cannot be read; restore it from version control") from error


def accept(changes: Iterable[Change], codes: Iterable[tuple[str, str]], folder: Path) -> None:
    """Write down further changes as accepted."""
    before = accepted(folder)
    every = [*before.changes, *(each for each in changes if each not in before.changes)]
    pairs = sorted({*before.codes, *codes})
    content = {"schema": 1, "changes": [asdict(each) for each in every], "codes": pairs}
    write_json(folder / FILE, content)
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
