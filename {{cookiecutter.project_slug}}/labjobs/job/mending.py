"""A damaged journal is repaired before a job continues with it, and the damage is reported. Whole
lines are put in order, and each is kept once. Everything else goes to `metrics.damaged`. Missing
lines are replaced by one line with the number of the last of them, so that the numbers of the other
lines do not change:

    {"line": 7, "lost": 3, "crc": "…"}

The start of a journal is in settings.json too, and the number of lines is in the files that were
written later. Half a line at the end is not damage: a process was killed while it was writing.
"""

import json
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from labjobs import files
from labjobs.job import lines

ASIDE = "metrics.damaged"


class Mended(NamedTuple):
    """A journal that is whole: its start, and the number of its last line. `lost` has the first and
    last numbers of missing lines; `damage` says what has just been repaired. The last step of each
    metric, and if lines are gone, (name, step) of each point; the tags.
    """

    start: dict[str, Any]
    last: int
    lost: list[tuple[int, int]]
    damage: str
    last_steps: dict[str, int]
    points: set[tuple[str, int]]
    tags: dict[str, str]


class _Sorted(NamedTuple):
    """The lines in a journal's file."""

    whole: dict[int, bytes]
    said: dict[int, dict[str, Any]]
    foreign: list[bytes]
    known_lost: int
    last: int


def mend(folder: Path, **begins: Any) -> Mended:
    """Make a job's journal whole; `begins` is what the first line of a new journal says, besides
    its id.

    Raises OSError if it cannot be read or written.
    """
    path = folder / lines.FILE
    *ended, half = (path.read_bytes() if path.exists() else b"").split(b"\n")
    start = _start(folder, ended) or {"journal": uuid4().hex, **begins}
    found = _sort(ended, lines.seed_of(start["journal"]), lines.expected(folder, start["journal"]))
    text, lost = _in_order(found, start)
    damage = ""
    if text != b"".join(line + b"\n" for line in ended):
        damage = _about(found, lost)
        with (folder / ASIDE).open("ab") as aside:
            aside.writelines(found.foreign)
        files.write(path, lambda file: file.write(text))
    elif half:
        os.truncate(path, len(text))
    points = _points(found.said, bool(lost))
    return Mended(start, found.last, lost, damage, *points, _tags(found.said))


def _tags(said: Mapping[int, Mapping[str, Any]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for number in sorted(said):
        found |= said[number].get("tags", {})
    return found


def _start(folder: Path, ended: Sequence[bytes]) -> dict[str, Any]:
    """The start of the journal, from settings.json or else from one of its lines."""
    noted = lines.record_of(folder, "settings.json").get("journal")
    return noted or next(filter(None, (lines.start_in(line + b"\n") for line in ended)), {})


def _sort(ended: Sequence[bytes], seed: int, expected: int) -> _Sorted:
    whole: dict[int, bytes] = {}
    said: dict[int, dict[str, Any]] = {}
    foreign: list[bytes] = []
    known_lost = last = unreadable = 0
    for line in (each + b"\n" for each in ended):
        if not (content := lines.decoded(line, seed)):
            foreign.append(line)
            unreadable += 1  # lines that were the last, if known
            continue
        unreadable, number = 0, content["line"]
        last = max(last, number)
        if "lost" in content:
            known_lost += content["lost"]
        else:
            whole[number], said[number] = line, content
    return _Sorted(whole, said, foreign, known_lost, max(last + unreadable, expected))


def _in_order(found: _Sorted, start: Mapping[str, Any]) -> tuple[bytes, list[tuple[int, int]]]:
    """The text of a whole journal, and the first and last of lines that are gone."""
    seed, whole = lines.seed_of(start["journal"]), dict(found.whole)
    if found.last and 1 not in whole:
        whole[1] = lines.encoded(1, json.dumps({"start": start}), seed)
    parts, lost = [], []
    for before, number in pairwise([0, *sorted(whole), found.last + 1]):
        if number - before > 1:
            lost.append((before + 1, number - 1))
            gone = json.dumps({"lost": number - before - 1})
            parts.append(lines.encoded(number - 1, gone, seed))
        parts.append(whole.get(number, b""))
    return b"".join(parts), lost


def _about(found: _Sorted, lost: Sequence[tuple[int, int]]) -> str:
    """What is wrong with a journal, in one line."""
    gone = sum(last - first + 1 for first, last in lost) - found.known_lost
    what = f"{gone} of its {found.last} lines" if gone > 0 else "nothing"
    aside = f"; what was not in order is kept in {ASIDE}" if found.foreign else ""
    return f"{lines.FILE} was damaged and has lost {what}{aside}"


def _points(
    said: Mapping[int, Mapping[str, Any]], lost: bool
) -> tuple[dict[str, int], set[tuple[str, int]]]:
    points = [(line["step"], name) for line in said.values() for name in line.get("metrics", ())]
    last_steps = {name: step for step, name in sorted(points)}
    return last_steps, {(name, step) for step, name in points} if lost else set()
