"""A target: a place that a courier copies jobs' journals to, such as MLflow.

docs/trackers.md shows how to write one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from labjobs.job.data import Summary

Line = dict[str, Any]
"""A line of the journal (labjobs/job/journal.py)."""


class Target(ABC):
    """The copy of one attempt's journal in one place.

    Any method may raise any exception, which means that the place is unavailable. The courier then
    waits, calls `open` again, and sends again everything that was not acknowledged. So a target
    must store lines only once, even if they are sent twice.
    """

    NAME: ClassVar[str]
    """The name of the place in messages."""

    NOTED_IN: ClassVar[str]
    """The file in an attempt's folder that says how far the copy has come."""

    COUNTERS: ClassVar[bool] = False
    """Whether it takes the counters of the machine too (counters.py). They are not in the
    journal, and have no line number."""

    interval = 1.0
    """Seconds until it wants the next lines."""

    id = ""
    """The id of the copy in that place. A copy with a new id does not have any lines yet."""

    begun = 0
    """When the copy was made, in milliseconds since 1970; only for COUNTERS."""

    @abstractmethod
    def __init__(self, folder: Path, about: dict[str, Any], journal: str) -> None:
        """Remember an attempt's folder, the content of its settings.json and its journal's id.
        Does not contact the place yet."""

    @staticmethod
    @abstractmethod
    def place() -> str:
        """Return what distinguishes places, such as a hash of an address; empty if not in use."""

    @staticmethod
    @abstractmethod
    def check() -> None:
        """Raise SettingsError if the place cannot be used."""

    @staticmethod
    @abstractmethod
    def reason(error: BaseException) -> str:
        """Return why the place is unavailable, in one line without secrets."""

    @abstractmethod
    def open(self) -> None:
        """Find the copy or make it, and set `id`. Raises store.Elsewhere if the attempt is trained
        from another folder."""

    @abstractmethod
    def log(self, lines: Sequence[Line], mended: bool = False) -> None:
        """Store lines: once this returns, the place has them.

        In a journal that was `mended`, steps may have been measured again after lines were lost.
        """

    @abstractmethod
    def end(self, status: str) -> None:
        """Store how the attempt ended: FINISHED, FAILED or KILLED. All lines are there."""

    def beat(self) -> None:
        """Say that the attempt is alive; called once before other calls. Raises as `open` does."""
        return

    def add(self, folder: Path, names: Iterable[str]) -> None:
        """Store files in an attempt's folder. "Finished" does not promise that the files are
        stored, so nothing is raised."""
        return

    def has_read(self, data: Summary) -> None:
        """Store which data the attempt has read; called before `end`."""
        return
