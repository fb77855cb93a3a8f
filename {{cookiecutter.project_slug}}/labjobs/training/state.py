"""All that a training loop needs to continue where it was, in the job's `last.pt`.

Each part has `state_dict()` and `load_state_dict()`. By time, all of them are copied, and a thread
writes the copy while training goes on. The best weights so far are in `last.pt` as well as in
`best.pt`, so the two always fit together.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from labjobs.errors import JobError
from labjobs.job import journal
from labjobs.job.terminal import log
from labjobs.paths import shown
from labjobs.stateful import Part
from labjobs.training import checkpoints
from labjobs.training.writer import Writer

CPU = torch.device("cpu")
SCHEMA = 1


class TrainingState:
    """The parts of a training loop and their checkpoints. `best` is the content of best.pt."""

    def __init__(self, folder: Path, journal: journal.Journal, minutes: float) -> None:
        self._folder, self._journal = folder, journal
        self._parts: dict[str, Part] = {}
        self._interval = 60 * minutes
        self._saved = time.monotonic()
        self._writer = Writer()
        self.best: dict[str, Any] = {}

    def add(self, parts: Mapping[str, Part]) -> None:
        """Register parts.

        Raises JobError for one without a state that can be restored, or a name used twice.
        """
        for name, part in parts.items():
            if name in self._parts:
                raise JobError(f"job.resume: two parts are named {name}")
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise JobError(f"job.resume: {name} needs state_dict() and load_state_dict()")
            self._parts[name] = part
            self._state_of(name)

    @property
    def due(self) -> bool:
        """Whether it is time for a checkpoint. Raises OSError if the last could not be written."""
        return time.monotonic() - self._saved > self._interval and self._writer.idle

    def save(self, changed: Mapping[str, Any] | None = None) -> None:
        """Copy all parts and have the copy written; `changed` replaces the states of some."""
        states = {name: self._state_of(name) for name in self._parts}
        models = [name for name, part in self._parts.items() if isinstance(part, nn.Module)]
        content = self._content(states | dict(changed or {}))
        content |= {"best": self.best, "lines": self._journal.lines}
        self._journal.flush()
        self._writer.act(self._journal.sync)  # no checkpoint is ahead of the journal
        finite = {name: content["parts"][name] for name in models}
        self._writer.write(self._folder / "last.pt", content, finite, self._folder / "previous.pt")
        self._saved = time.monotonic()

    def keep_best(self, content: dict[str, Any]) -> None:
        """Write best.pt; the values must not change any more."""
        self.best = content
        self._writer.write(self._folder / "best.pt", content, content.get("models", {}))

    def finish(self) -> None:
        """Return once everything is written. Raises what a write raised."""
        self._writer.close()
        (self._folder / "previous.pt").unlink(missing_ok=True)

    def close(self) -> None:
        """Wait for what is being written, without raising its errors."""
        self._writer.close()

    def restore(self, other: Callable[[], dict[str, Any]]) -> None:
        """Continue from the newest whole checkpoint, or else from what `other` returns, if that is
        not empty.

        Raises JobError for a checkpoint that does not fit the code.
        """
        content = self._read() or other()
        if not content:
            self._journal.go_on_from(0)
            return
        for name, part in self._parts.items():
            if name not in content.get("parts", {}):
                log.warning("the checkpoint has no %s, which starts from its initial state", name)
                continue
            try:
                part.load_state_dict(content["parts"][name])
            except (KeyError, RuntimeError, ValueError, TypeError, AttributeError) as error:
                raise JobError(
                    f"its checkpoint does not fit the code ({name}: {_first_line(error)}); "
                    f"--force starts over, or delete {shown(self._folder)}"
                ) from error
        if lost := self._journal.go_on_from(content.get("lines", 0)):
            log.warning("%s", lost)
        if content.get("best"):
            self.keep_best(content["best"])

    def _content(self, parts: dict[str, Any]) -> dict[str, Any]:
        """What a checkpoint keeps of the parts' states, in the host's memory."""
        content: dict[str, Any] = checkpoints.on_host({"schema": SCHEMA, "parts": parts})
        return content

    def _opened(self, path: Path) -> dict[str, Any]:
        """What a checkpoint holds. Raises Damaged if it is not whole."""
        content = checkpoints.load(path, CPU)
        if "shards" not in content:
            return content
        from labjobs.training import shards  # slow

        return shards.filled(content, self._folder)

    def _state_of(self, name: str) -> dict[str, Any]:
        state = self._parts[name].state_dict()
        try:
            checkpoints.check_plain(state)
        except TypeError as error:
            raise JobError(
                f"job.resume: the state of {name} holds {error}; only tensors and plain values can "
                "be restored"
            ) from error
        return state

    def _read(self) -> dict[str, Any]:
        """The newest checkpoint that is whole; nothing if there is none.

        A damaged one is put aside, so that it never takes the place of a whole `previous.pt`.
        """
        paths = [self._folder / name for name in ("last.pt", "previous.pt")]
        found = [path for path in paths if path.exists()]
        for path in found:
            try:
                content = self._opened(path)
            except checkpoints.Damaged:
                aside = path.replace(path.with_suffix(".damaged"))
                log.warning("%s is damaged; it was put aside as %s", path.name, aside.name)
            else:
                log.info("continuing from %s", path.name)
                return content
        if found:
            log.warning("no checkpoint is left; starting over")
        elif self._journal.has_points:
            log.info(
                "there was no checkpoint yet (one is made every %g minutes: --checkpoint-minutes); "
                "starting over",
                self._interval / 60,
            )
        return {}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
