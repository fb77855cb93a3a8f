"""What a training loop is made of, for a job of several processes: they decide everything together.

Process 0 writes the journal, the checkpoints and the outputs. The others keep what they would write
in a temporary folder of their own, and read checkpoints from the job's.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from labjobs.job.interruption import Interrupted, Interruption
from labjobs.job.journal import Journal
from labjobs.training.meters import NamedSum, Step, TrainMeter
from labjobs.training.processes import Processes
from labjobs.training.seeding import GlobalStreams
from labjobs.training.state import TrainingState


class SharedInterruption(Interruption):
    """A signal that asks any process of a job to stop; all of them stop after the same step."""

    agreed = 0
    """The signal that all processes know of."""

    def __init__(self, processes: Processes) -> None:
        super().__init__()
        self._processes = processes

    @property
    def noted(self) -> int:
        """The signal that has asked this process to stop; 0 if none has."""
        return self._asked

    def release(self) -> None:
        """From here on a signal raises Interrupted again, in each process by itself."""
        self.agreed = int(self._processes.largest([self.noted])[0])
        super().release()

    def check(self) -> None:
        """Raise Interrupted if all processes know that a signal has asked for it."""
        if self.agreed:
            raise Interrupted(self.agreed)


class SharedMeter(TrainMeter):
    """Means over the examples of all processes. They add up at the same steps what they measured:
    when process 0 finds that it is time."""

    due = False

    def __init__(self, processes: Processes, journal: Journal, *more: Any) -> None:
        super().__init__(journal, *more)
        self._processes = processes

    def exchange(self) -> None:
        """Take what has been measured; all processes do."""
        self.due = False
        super()._exchange(wait=True)

    def flush(self) -> None:
        """Wait for the device and write every point so far."""
        self.exchange()
        self.exchange()

    def _exchange(self, wait: bool) -> None:
        self.due = True

    def _read(self, steps: list[Step], values: Iterator[float]) -> list[list[NamedSum]]:
        mine = super()._read(steps, values)
        if not steps:
            return mine
        everyones = self._processes.everyones(mine)
        return [
            [each for sums in of_step for each in sums] for of_step in zip(*everyones, strict=True)
        ]


class SharedStreams(GlobalStreams):
    """The random numbers of all processes, each with its own."""

    def __init__(self, seed: int, device: torch.device, processes: Processes) -> None:
        super().__init__(seed, device, processes.rank)
        self._processes = processes

    def state_dict(self) -> dict[str, Any]:
        """Return the state of process 0, with those of the others."""
        first, *others = self._processes.everyones(self.own_state())
        return {**first, "others": others}


class SharedState(TrainingState):
    """The checkpoints of a job, which process 0 writes when all processes are at the same step."""

    agreed = False
    """Whether all processes know that it is time for a checkpoint."""

    def __init__(
        self, processes: Processes, folder: Path, journal: Journal, minutes: float
    ) -> None:
        super().__init__(folder, journal, minutes)
        self._processes = processes

    @property
    def due(self) -> bool:
        """Whether it is time for a checkpoint, as all processes know."""
        return self.agreed

    @property
    def due_here(self) -> bool:
        """Whether this process finds that it is time for a checkpoint."""
        return super().due

    def save(self, changed: Mapping[str, Any] | None = None) -> None:
        """Have a checkpoint written; all processes call it."""
        self.agreed = False
        super().save(changed)

    def restore(self, other: Callable[[], dict[str, Any]]) -> None:
        """Continue from the newest whole checkpoint; before the others, as this process puts
        damaged ones aside, and writes new ones only when all have read the old."""
        super().restore(other)
        self._processes.wait()
        self._processes.wait()


class FollowingState(SharedState):
    """The checkpoints as a process sees them that writes none."""

    @property
    def due_here(self) -> bool:
        """Whether this process finds that it is time: process 0 decides."""
        return False

    def save(self, changed: Mapping[str, Any] | None = None) -> None:
        """Give process 0 what its checkpoint has of this process."""
        self.agreed = False
        for name in self._parts:
            self._state_of(name)

    def keep_best(self, content: dict[str, Any]) -> None:
        """Remember the best weights."""
        self.best = content

    def finish(self) -> None:
        """Do nothing: nothing is being written."""

    def close(self) -> None:
        """Do nothing: nothing is being written."""

    def restore(self, other: Callable[[], dict[str, Any]]) -> None:
        """Continue from the checkpoint that process 0 continues from."""
        self._processes.wait()
        TrainingState.restore(self, other)
        self._processes.wait()
