"""The data behind a job's results, as an attempt has read it, and the present data.

While an attempt runs, the files that it reads are recorded in its folder (reads.py). When it ends,
it stores the digest of the list of these files, which it shares with other jobs that have read the
same files: `.data/<digest>.jsonl` in the folder of runs.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from labjobs import files, layout
from labjobs.files import PROJECT, shown
from labjobs.job import journal, reads
from labjobs.job.reads import Entry, Places

MIXED = "mixed"
"""Takes the place of a digest if a job was continued with changed data."""

NAMED = 2
"""The largest number of changed files that a message names."""


def begin(attempt: Path, places: Places) -> reads.Reads:
    """Return an object that records the files that an attempt reads from now on."""
    known: dict[str, Entry] = {}
    for path in (places.runs_root / layout.DATA_LISTS).glob("*.jsonl"):
        known |= reads.read(path)
    return reads.Reads(attempt / layout.DATA, places, known)


def keep(attempt: Path, places: Places, before: str) -> str:
    """Write the list of files that an attempt has read, including those read `before`; returns its
    digest, or an empty text if there are none."""
    found = {**_listed(_list(before, places)), **reads.of_attempt(attempt)}
    new = reads.content_digest(found.values())
    if not new or before == MIXED:
        return before
    path = _list(new, places)
    try:
        _write(path, found.values())
    except OSError:
        if reads.content_digest(reads.read(path).values()) != new:  # another user may own it
            raise
    return new


def read_by(found: Iterable[Path]) -> Iterator[Entry]:
    """Yield the files that attempts had read when they last ended."""
    for attempt in found:
        yield from _listed(_list(digest(attempt), last_places(attempt))).values()


def forget_notes(attempt: Path) -> None:
    """Delete the attempt's own notes: its records have the digest of the list."""
    reads.forget(attempt)


def digest(attempt: Path) -> str:
    """Return the digest of the data that an attempt had read when it last ended; empty if it had
    read nothing."""
    ended = journal.record_of(attempt, layout.OUTCOME) or journal.record_of(
        attempt, layout.SETTINGS
    )
    return str(ended.get("data", ""))


class Summary(NamedTuple):
    """Where the files are that an attempt has read, in short: the common folder, or the single
    file."""

    name: str
    path: Path
    digest: str
    files: int
    bytes: int


def summary(attempt: Path) -> Summary | None:
    """Return the files that an attempt had read when it last ended; None if there are none, or if
    they are not known."""
    places, known = last_places(attempt), digest(attempt)
    listed = _listed(_list(known, places))
    if not listed:
        return None
    name = os.path.commonpath(listed)
    read = [entry for entry in listed.values() if not entry.name.endswith("/")]
    size = sum(entry.size for entry in read)
    return Summary(_printable(name), places.path(name), known, len(read), size)


def difference(attempt: Path, places: Places) -> str:
    """Return which of the files that an attempt has read are different now, in a few words:
    `data/train/cat changed`. Empty if none is different, or if they cannot be checked."""
    known = digest(attempt)
    if known == MIXED:
        return "it was continued with changed data"
    own = reads.of_attempt(attempt)
    changed = sorted(_changed(_list(known, places), places) | _unlike(own, _present(own, places)))
    named, more = ", ".join(map(_printable, changed[:NAMED])), len(changed) - NAMED
    if more > 0:
        return f"{named} and {more} more changed"
    return f"{named} changed" if named else ""


def last_places(attempt: Path) -> Places:
    """Return where the data lay when an attempt last ended."""
    root = journal.record_of(attempt, layout.OUTCOME).get("data_root", "data")
    return Places(PROJECT / root, attempt.parent.parent)


def unchecked(attempt: Path, places: Places) -> str:
    """Return why the data of an attempt cannot be checked; empty if it can."""
    known = digest(attempt)
    if known in ("", MIXED):
        return ""
    listed = _listed(_list(known, places))
    if not listed:
        return f"{shown(_list(known, places))} is missing or damaged"
    return "" if all(map(places.at_hand, listed)) else f"there is no folder {places.data_root}"


def fits(digest: str, places: Places) -> bool:
    """Return whether the data is the same as the data with a digest; if this cannot be checked, it
    counts as the same."""
    return digest != MIXED and not _changed(_list(digest, places), places)


def conflict(attempts: Iterable[Path]) -> str:
    """Return the name of a file that attempts have read with different contents; empty if there is
    none."""
    hashes: dict[str, str] = {}
    for entry in read_by(attempts):
        if hashes.setdefault(entry.name, entry.hash) != entry.hash:
            return _printable(entry.name)
    return ""


def _printable(name: str) -> str:
    """The name of a file or a folder, also if it is no text."""
    return os.fsencode(name.rstrip("/")).decode(errors="backslashreplace")


def _list(digest: str, places: Places) -> Path:
    return places.runs_root / layout.DATA_LISTS / f"{digest}.jsonl"


def _write(path: Path, found: Iterable[Entry]) -> None:
    files.write_shared(path, lambda file: file.writelines(map(reads.encoded, found)))


@cache  # thousands of jobs have the same list
def _listed(path: Path) -> Mapping[str, Entry]:
    """The entries of a list by name; none if it is missing or damaged."""
    found = reads.read(path)
    return found if reads.content_digest(found.values()) == path.stem else {}


@cache
def _changed(path: Path, places: Places) -> frozenset[str]:
    """The names in a list whose content has changed. If only times have changed, as in a copy, the
    new times are recorded, so that the files need not be read the next time.
    """
    listed = _listed(path)
    present = _present(listed, places)
    changed = _unlike(listed, present)
    updated = {**listed, **{name: entry for name, entry in present.items() if entry}}
    if not changed and updated != listed:
        with suppress(OSError):  # we may not write it
            _write(path, updated.values())
    return frozenset(changed)


def _present(found: Mapping[str, Entry], places: Places) -> dict[str, Entry | None]:
    """The present state of the files that were read, if their folders are available."""
    with reads.aside():
        return {
            name: reads.look(places.path(name), name, entry)
            for name, entry in found.items()
            if places.at_hand(name)
        }


def _unlike(before: Mapping[str, Entry], now: Mapping[str, Entry | None]) -> set[str]:
    return {name for name, entry in now.items() if not entry or entry.hash != before[name].hash}
