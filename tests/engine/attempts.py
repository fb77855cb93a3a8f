"""Attempts at the jobs of toy.py, in this process: without a store, a courier and a project.

toy = Toy(tmp_path, said)
whole = toy.run(epochs=3, ema=0.9)              # a job to its end
toy.run("again", epochs=3, stop=At("step", 5))  # the same in another folder, until a signal
"""

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from bits import plain
from labjobs import layout
from labjobs.attempt import Attempt
from labjobs.job import journal
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import Runtime
from labjobs.job.terminal import handle_signals
from labjobs.training.loop import Job
from toy import METRICS, Hook, Loop, Settings, factor

TIMES = {"elapsed_seconds", "examples_per_second", "data_wait_fraction"}


@dataclass(frozen=True)
class At:
    """A moment of a job: the `number`th "step", or "batch" of an evaluation, counted from 1."""

    what: str
    number: int


def signals(at: At | None) -> Hook:
    """Return a hook that sends this process a TERM at a moment."""
    seen: dict[str, int] = {}

    def hook(what: str, _job: Job[Settings]) -> None:
        seen[what] = seen.get(what, 0) + 1
        if at and (what, seen[what]) == (at.what, at.number):
            os.kill(os.getpid(), signal.SIGTERM)

    return hook


class Here(Attempt):
    """An attempt without a store and a courier."""

    def _begin(self) -> None:
        self.folder.make()
        self.folder.take()


@dataclass(frozen=True)
class Ended:
    """How a job ended, and what it left."""

    status: int
    said: str
    folder: Path

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Return (step, value) of each metric in the journal, but for times."""
        found: dict[str, list[tuple[int, float]]] = {}
        for line in self.journal():
            for name, value in line.get("metrics", {}).items():
                if name not in TIMES:
                    found.setdefault(name, []).append((line["step"], value))
        return {name: sorted(points) for name, points in found.items()}

    def journal(self) -> list[dict[str, Any]]:
        with (self.folder / layout.JOURNAL).open("rb") as file:
            return journal.Reader(file).read()

    def checkpoint(self, name: str) -> dict[str, Any]:
        """Return what best.pt or last.pt holds, but for times."""
        content: dict[str, Any] = torch.load(self.folder / name, weights_only=True)
        content.get("parts", {}).pop("job.stopwatch", None)
        content.pop("lines", None)  # of the journal, which has some for each attempt
        return content

    def content(self) -> Any:
        """Return weights, state and curves in a form whose == compares tensors bit for bit."""
        return plain([self.checkpoint("best.pt"), self.checkpoint("last.pt"), self.curves()])

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text()


class Toy:
    """Jobs of the toy project, with their folders in one place."""

    def __init__(self, root: Path, capture: Callable[[], str]) -> None:
        self._root, self._capture = root, capture

    def run(
        self,
        name: str = "whole",
        loop: Loop | None = None,
        stop: At | None = None,
        runtime: Mapping[str, Any] | None = None,
        check: Callable[[Job[Settings]], None] = lambda job: job.check_schedule(factor),
        keep_last: bool = True,
        **settings: Any,
    ) -> Ended:
        """Run a job to its end, or until a signal comes at a moment.

        Its last.pt stays for tests to look at, unless they are about what becomes of it.
        """
        how = Runtime(**{"device": "cpu", "runs_root": self._root / name, **(runtime or {})})
        loop = loop or Loop()
        if stop:
            loop = replace(loop, hook=signals(stop))
        folder = JobFolder(Settings(**settings), how, METRICS)
        dropped = patch("labjobs.attempt.attempts.drop_checkpoints") if keep_last else nullcontext()
        try:
            with dropped:
                status = Here(folder).run(loop.main, check)
        finally:
            handle_signals(signal.SIG_DFL)
            folder._lock.close()
        return Ended(status, self._capture(), folder.path)

    def done(self, *job: Any, **how: Any) -> Ended:
        """Run a job that finishes."""
        ended = self.run(*job, **how)
        assert ended.status == 0, ended.said
        return ended


def steps_of(done: Ended, metric: str) -> list[int]:
    """Return the steps under which a metric was logged."""
    return [step for step, _ in done.curves().get(metric, [])]
