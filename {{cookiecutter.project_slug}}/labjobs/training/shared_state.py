"""The checkpoints of a job whose weights are divided among its processes (--shard).

Each process writes its part of the divided tensors, while training waits; process 0 then writes
`last.pt`, which has everything else. `best.pt` has whole weights, as in any job.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, zeros
from torch.optim import Optimizer

from labjobs import layout
from labjobs.devices import GlobalStreams
from labjobs.distributed.collectives import Processes, own
from labjobs.errors import Diverged
from labjobs.job.journal import Journal
from labjobs.job.terminal import Interrupted, Interruption, log
from labjobs.training import checkpoints, sharding
from labjobs.training.meters import NamedSum, Step, TrainMeter
from labjobs.training.progress import Part
from labjobs.training.state import TrainingState

# What a training loop is made of, for a job of several processes: they decide everything together.
#
# Process 0 writes the journal, the checkpoints and the outputs. The others keep what they would
# write in a temporary folder of their own, and read checkpoints from the job's.


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


MB = 1e6


class ShardedState(SharedState):
    """The checkpoints of a job, as process 0 writes them with the others."""

    def __init__(
        self, processes: Processes, folder: Path, journal: Journal, minutes: float, mesh: DeviceMesh
    ) -> None:
        super().__init__(processes, folder, journal, minutes)
        self._mesh = mesh
        self._kept = ""
        """The folder of the last checkpoint's divided tensors."""
        self._held: tuple[int, int] | None = None

    def add(self, parts: Mapping[str, Part]) -> None:
        """Register parts. Raises SettingsError for an optimizer that needs whole weights."""
        sharding.refuse(parts.values())
        for part in parts.values():
            if isinstance(part, Optimizer):
                sharding.prepare(part)
        super().add(parts)

    def save(self, changed: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint; all processes call it."""
        self._writer.wait()
        before = self._kept
        super().save(changed)
        keep = {before, self._kept}
        self._writer.act(lambda: sharding.clean_shards(self._folder, keep))

    def finish(self) -> None:
        """Return once everything is written, in all processes."""
        super().finish()
        sharding.clean_shards(self._folder, {self._kept})
        self._tell_held()

    def _tell_held(self) -> None:
        """Say in the log how much of the weights and the optimizer's state each process holds."""
        everyones = self._processes.everyones(self._held)
        if self._held:
            self._held = None
            parts = ", ".join(f"{mine / MB:.3g}" for mine, _ in everyones)
            whole = everyones[0][1] / MB
            log.info("--shard: of %.3g MB of state the processes hold %s MB", whole, parts)

    def _content(self, parts: dict[str, Any]) -> dict[str, Any]:
        plain, record = self._write(parts)
        self._kept = record["folder"]
        return super()._content(plain) | {sharding.FIELD: record}

    def _opened(self, path: Path) -> dict[str, Any]:
        content = checkpoints.load(path, torch.device("cpu"))
        whole = sharding.filled_shards(content, self._folder, self._make)
        self._kept = content.get(sharding.FIELD, {}).get("folder", "")
        return whole

    def _write(self, parts: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Write the divided tensors; returns everything else, and where they are. Raises Diverged
        if the weights of a model are not finite."""
        self._check_finite()
        self._held = sharding.held(parts)
        found: dict[str, Tensor] = {}
        plain = sharding.shards_taken_out(parts, found)
        return plain, sharding.save_shards(found, self._folder, self._processes)

    def _check_finite(self) -> None:
        for name, part in self._parts.items():
            weights = [*part.parameters()] if isinstance(part, nn.Module) else []
            bad = any(not own(weight).isfinite().all() for weight in weights)
            if self._processes.largest([float(bad)])[0]:
                raise Diverged(f"weights of {name} are no longer finite; lower the learning rate")

    def _make(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        made: Tensor = zeros(*shape, dtype=dtype, device_mesh=self._mesh, placements=[Shard(0)])
        return made


class ShardedFollowingState(FollowingState, ShardedState):
    """The checkpoints as another process sees them."""

    def save(self, changed: Mapping[str, Any] | None = None) -> None:
        """Write this process's part of a checkpoint."""
        self.agreed = False
        self._write({name: self._state_of(name) for name in self._parts})

    def keep_best(self, content: dict[str, Any]) -> None:
        """Remember the best evaluation; its weights are in process 0 and in its best.pt."""
        self.best = content | {"models": {}}

    def finish(self) -> None:
        """Wait for process 0, and see the best weights in its file."""
        self._tell_held()
        path = self._folder / layout.BEST
        if path.exists():
            self.best = checkpoints.mapped(path)

    def _opened(self, path: Path) -> dict[str, Any]:
        content = checkpoints.mapped(path)
        return sharding.filled_shards(content, self._folder, self._make, check=False)
