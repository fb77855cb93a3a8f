"""The checkpoints of a job whose weights are divided among its processes (--shard).

Each process writes its part of the divided tensors, while training waits; process 0 then writes
`last.pt`, which has everything else. `best.pt` has whole weights, as in any job.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, zeros
from torch.optim import Optimizer

from labjobs.errors import Diverged
from labjobs.job.journal import Journal
from labjobs.job.terminal import log
from labjobs.stateful import Part
from labjobs.training import checkpoints, sharding, shards
from labjobs.training.divided import own
from labjobs.training.processes import Processes
from labjobs.training.shared import FollowingState, SharedState

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
        self._writer.act(lambda: shards.clean(self._folder, keep))

    def finish(self) -> None:
        """Return once everything is written, in all processes."""
        super().finish()
        shards.clean(self._folder, {self._kept})
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
        return super()._content(plain) | {shards.FIELD: record}

    def _opened(self, path: Path) -> dict[str, Any]:
        content = checkpoints.load(path, torch.device("cpu"))
        whole = shards.filled(content, self._folder, self._make)
        self._kept = content.get(shards.FIELD, {}).get("folder", "")
        return whole

    def _write(self, parts: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Write the divided tensors; returns everything else, and where they are. Raises Diverged
        if the weights of a model are not finite."""
        self._check_finite()
        self._held = sharding.held(parts)
        found: dict[str, Tensor] = {}
        plain = shards.taken_out(parts, found)
        return plain, shards.save(found, self._folder, self._processes)

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
        path = self._folder / "best.pt"
        if path.exists():
            self.best = checkpoints.mapped(path)

    def _opened(self, path: Path) -> dict[str, Any]:
        content = checkpoints.mapped(path)
        return shards.filled(content, self._folder, self._make, check=False)
