"""Times run.py's loop and loops by hand in turns, in one process, for hand_loops.py and others.

Runs in a project.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import run
import torch
from labjobs import devices
from labjobs.attempt import Attempt
from labjobs.cli.parser import parse
from labjobs.data.batches import Batches
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import Runtime
from labjobs.training.loop import Job
from loops import terminal
from settings import METRICS, Settings

SKIPPED = 2
"""Turns at the beginning that do not count, because torch compiles and initializes in them."""

Loops = dict[str, Iterator[Any]]
"""Loops by hand, by name: each takes the steps of one turn when its next element is asked for."""


class Turns:
    """run.py's batches; after each turn of run.py's loop, each loop by hand takes one.

    `seconds` has the seconds per step of each loop, turn by turn.
    """

    def __init__(self, batches: Batches, others: Loops, steps: int, device: torch.device) -> None:
        self.batches, self._others, self._steps = batches, others, steps
        self._device = device
        self.seconds: dict[str, list[float]] = {name: [] for name in ("run.py", *others)}
        self._done = 0

    endless = Batches.endless

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batches, name)

    def epoch(self, number: int, done: int) -> Iterator[Any]:
        """Yield the batches of an epoch; between two of them the other loops may take a turn."""
        if not self._done:
            self._begun = time.perf_counter()
        for each in self.batches.epoch(number, done):
            if self._done and self._done % self._steps == 0:
                self._end()
            yield each
            self._done += 1

    def _end(self) -> None:
        devices.wait(self._device)
        self._note("run.py", self._begun)
        with torch.enable_grad():
            for name, loop in self._others.items():
                begun = time.perf_counter()
                next(loop)
                devices.wait(self._device)
                self._note(name, begun)
        self._begun = time.perf_counter()

    def _note(self, name: str, begun: float) -> None:
        self.seconds[name].append((time.perf_counter() - begun) / self._steps)


def seconds_per_step(
    by_hand: Callable[[Settings], Loops], turns: int, steps: int, flags: list[str]
) -> dict[str, list[float]]:
    """Return the seconds per step of run.py's loop and of each loop by hand, turn by turn.

    run.py's loop trains in a job with these flags, on one thread. After every `steps` steps of it,
    each of the loops that `by_hand` makes from the job's settings takes a turn; there are `turns`
    of them, of which the first two are left out.
    """
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{Path.cwd()}/steps.db"
    length = str(turns * steps + 1)
    words = [*flags, "--steps", length, "--eval-every", length, "--threads", "1", "--force"]
    settings, runtime = parse(Settings, Runtime, words)
    torch.set_num_threads(1)
    found: list[Turns] = []

    def main(job: Job[Settings]) -> dict[str, float]:
        """Train as run.py does, with the turns of the other loops in between."""
        model, batches, val, _ = run.load(job)
        found.append(Turns(batches, by_hand(job.settings), steps, job.device))
        model.to(job.device)
        forward = job.prepare(run.forward, job.settings.precision)
        run.train(job, forward, model, found[0], val)
        return {}

    with terminal():
        assert Attempt(JobFolder(settings, runtime, METRICS)).run(main, run.check) == 0
    (measured,) = found
    return {name: each[SKIPPED:] for name, each in measured.seconds.items()}
