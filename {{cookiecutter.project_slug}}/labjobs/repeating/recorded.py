"""An attempt at a job as it was recorded, with everything that is needed to run it again."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from labjobs.cli.flags import option
from labjobs.cli.values import as_text
from labjobs.errors import JobError
from labjobs.job import code, data, lines
from labjobs.job.runtime import MATTER


@dataclass(frozen=True)
class Recorded:
    """A finished attempt, in its folder `path`."""

    path: Path

    @property
    def job(self) -> str:
        """The id of the job."""
        return self.path.parent.name

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """What settings.json holds."""
        return lines.record_of(self.path, "settings.json")

    @cached_property
    def journal(self) -> "Journal":
        """The journal. Raises JobError if it is damaged, OSError if it cannot be read."""
        return read(self.path)

    @property
    def inputs(self) -> dict[str, str]:
        """The attempts that it is derived from, by job."""
        return dict(self.about.get("inputs", {}))

    def copy(self, name: str) -> Path:
        """Return where the copy of its code (`code_copy`) or the list of its packages (`installed`)
        lies. Raises JobError if there is none."""
        kept = self.about.get(name)
        file = self.path.parent.parent / str(kept)
        if not kept or not file.is_file():
            what = "code" if name == "code_copy" else "list of packages"
            raise JobError(f"its {what} is not in {self.path.parent.parent.name}/")
        return file

    def check(self) -> None:
        """Raise JobError if it cannot be repeated."""
        settings = self.about.get("settings")
        if not settings:
            raise JobError("its settings.json is damaged or missing")
        if code.digest(self.path) == code.MIXED:
            raise JobError(
                "it was continued with changed code, so it belongs to no version of the code"
            )
        if settings.get("minutes"):
            raise JobError("its length is in minutes, so its number of steps varies")
        if (count := self.journal.tag("processes")) not in ("", "1"):
            raise JobError(f"it ran in {count} processes, and repeat starts only one")
        places = data.last_places(self.path)
        if change := data.difference(self.path, places):
            raise JobError(f"its data has changed ({change})")
        if why := data.unchecked(self.path, places):
            raise JobError(f"its data cannot be checked: {why}")

    def flags(self) -> list[str]:
        """Return its settings and those flags that can change bits, as on the command line."""
        runtime = self.about.get("runtime", {})
        words = {**self.about["settings"], **{k: v for k, v in runtime.items() if k in MATTER}}
        words["threads"] = self.journal.tag("threads") or "auto"
        words["log_every"] = self.journal.start["log_every"]
        words["data_root"] = data.last_places(self.path).data_root
        if self.journal.tag("device") == "cpu":
            words["device"] = "cpu"
        return [f"{option(name)}={as_text(value)}" for name, value in words.items()]


@dataclass(frozen=True)
class Journal:
    """What an attempt has logged: the first line of its journal, and the others."""

    start: Mapping[str, Any]
    said: list[dict[str, Any]]

    def tag(self, name: str) -> str:
        """Return a tag as it was last logged; empty if it was not."""
        found = (line["tags"][name] for line in self.said[::-1] if name in line.get("tags", {}))
        return str(next(found, ""))


def read(attempt: Path) -> Journal:
    """Return the journal of an attempt. Raises JobError if it is damaged, OSError."""
    with (attempt / lines.FILE).open("rb") as file:
        reader = lines.Reader(file)
        said = reader.read()
        if "log_every" not in reader.start:
            raise JobError(f"{attempt / lines.FILE}: the beginning is damaged")
        return Journal(reader.start, said)
