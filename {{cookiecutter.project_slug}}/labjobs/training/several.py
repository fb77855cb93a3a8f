"""A job of several processes, each with a slice of every batch, on a GPU of its own.

`torchrun --nproc-per-node 4 run.py FLAGS` trains as `python run.py FLAGS` does: the batches are the
same, the gradients are added up, and what the processes decide they decide together. Nothing in
run.py differs.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from labjobs import devices
from labjobs.data.batches import Batches
from labjobs.data.order import slice_of
from labjobs.distributed.collectives import Processes, is_divided
from labjobs.errors import JobError, SettingsError
from labjobs.job import data_evidence
from labjobs.job.folder import JobFolder
from labjobs.job.terminal import log
from labjobs.training import loop
from labjobs.training.forward import Forward, Prepared
from labjobs.training.loop import Count, Job, Metrics
from labjobs.training.meters import Gradients, numbers, wide
from labjobs.training.outputs import Outputs, SharedOutputs
from labjobs.training.progress import Part
from labjobs.training.shared_state import (
    FollowingState,
    SharedInterruption,
    SharedMeter,
    SharedState,
    SharedStreams,
)

S = TypeVar("S")


class JobOfSeveral(Job[S]):
    """One process's side of a job. `shared` is the attempt's folder, which process 0 writes."""

    _meter: SharedMeter
    _time = 0.0
    """Process 0's clock after the last step."""
    _added = True
    """Whether the gradients of this step were added up."""

    def __init__(self, folder: JobFolder[S], processes: Processes, shared: Path) -> None:
        self._processes, self._shared = processes, shared
        self._rank = processes.rank
        self._interruption = SharedInterruption(processes)
        folder.interruption = self._interruption
        if folder.runtime.shard:
            folder.runtime = replace(folder.runtime, compile="off")
        super().__init__(folder, devices.choose_for(folder.runtime.device, self._rank))
        gpus = processes.everyones(devices.tags(self.device).get("gpu", ""))
        devices.check_each_has_its_own(gpus)
        self._length.clock = lambda: self._time

    def start(self) -> None:
        """Take the device, and seed all random numbers."""
        super().start()
        self._processes.use(self.device)
        self._random = SharedStreams(self._seed, self.device, self._processes)

    def init(self, **models: nn.Module) -> None:
        """Give models the weights that --init-from names; with --shard, divide them then among the
        processes, on their devices. In check() it is only checked whether that can be done."""
        super().init(**models)
        if not self.runtime.shard:
            return
        from labjobs.training import sharding  # slow

        sharding.check(models, getattr(self.settings, "optimizer", ""))
        for model in models.values():
            if not any(weight.is_meta for weight in model.parameters()):
                self._processes.copy_from_first(_tensors([model]))
                sharding.divide(model, self._processes.mesh(self.device))

    def prepare(self, forward: Forward, precision: str = "fp32") -> Prepared:
        """Return a forward function as it is to be called.

        Raises SettingsError for a precision that the device or --shard does not have.
        """
        if self.runtime.shard and precision == "fp16":
            raise SettingsError("--shard: not with --precision fp16; use bf16")
        return super().prepare(forward, precision)

    def resume(self, **training: Part) -> None:
        """Continue from the job's checkpoint, all processes with the same weights."""
        models = [part for part in training.values() if isinstance(part, nn.Module)]
        if self.runtime.shard:
            self._check_divided(models)
        self._random.separate()
        super().resume(**training)
        averaged = [getattr(part, "model", None) for part in training.values()]
        every = [*models, *(model for model in averaged if isinstance(model, nn.Module))]
        self._processes.copy_from_first(_tensors(every))
        self._gradients = Gradients(models, self._processes)
        self._warn_of_batch_norm(models)
        self._agree()

    def parts(self, batch: Any, elements: Count | None = None) -> Iterator[tuple[Any, Tensor]]:
        """Yield this process's slice of the batch in --accumulate parts, each with its fraction ()
        of the whole batch; then add up the gradients of all processes."""
        self._gradients.begin()
        mine, size = self._slice
        fraction = torch.full((), mine / size, dtype=wide(self.device), device=self.device)
        if elements:
            fraction = self._fraction(elements(batch) * (mine > 0))
        if mine:
            for part, of_mine in self._own_parts(batch, size, elements):
                yield part, of_mine * fraction
        self._gradients.add_up()
        self._added = True

    def log_epoch(self, metrics: Metrics) -> None:
        """Log an evaluation, which all processes have the same results of."""
        self._check_same(metrics)
        super().log_epoch(metrics)

    def finish(self, results: Metrics) -> dict[str, float]:
        """Log the results, which all processes have the same of."""
        data_evidence.sync()  # process 0 collects what all have read
        self._check_same(results)
        return super().finish(results)

    def in_background(self, *_: Any, **__: Any) -> Iterator[Any]:
        """Raise JobError: threads of several processes could not take turns."""
        raise JobError("job.in_background: does not work with several processes; use one")

    def close(self) -> None:
        """End the threads and the processes that were started."""
        super().close()
        if self._processes.first:
            self._processes.first.ending = True

    def _new_meter(self) -> SharedMeter:
        journal, metrics = self._folder.journal, self._folder.metrics
        return SharedMeter(self._processes, journal, self.device, metrics, self._graphs)

    def _new_state(self) -> SharedState:
        minutes = self._folder.runtime.checkpoint_minutes
        how = self._processes, self._shared, self._folder.journal, minutes
        if not self.runtime.shard:
            return FollowingState(*how) if self._rank.number else SharedState(*how)
        from labjobs.training import shared_state  # slow

        kind = (
            shared_state.ShardedFollowingState if self._rank.number else shared_state.ShardedState
        )
        return kind(*how, self._processes.mesh(self.device))

    def _stream(self, batches: Batches | None, examples: int) -> Iterator[tuple[Any, int]]:
        if batches is None:
            raise JobError("job.steps() without batches: does not work with several processes")
        return self._sliced(super()._stream(batches, examples))

    def _sliced(self, stream: Iterator[tuple[Any, int]]) -> Iterator[tuple[Any, int]]:
        """Yield this process's slices, with the number of examples in the whole batches."""
        for batch, size in stream:
            if not self._added:
                raise JobError("several processes need job.parts(batch) in the loop; see run.py")
            self._added = False
            self._slice = len(slice_of(size, self._rank)), size
            yield batch, size

    def _save_if_due(self) -> None:
        self._agree()
        super()._save_if_due()

    def _agree(self) -> None:
        """Decide after a step, for all processes: whether a signal ends the job, whether to make a
        checkpoint and whether to add up what was measured."""
        state = self._saved_state
        assert isinstance(state, SharedState)
        mine = [float(self._interruption.noted), 0.0, 0.0, 0.0]
        if self._rank.number == 0:
            mine[1:] = [float(state.due_here), float(self._meter.due), time.monotonic()]
        asked, save, exchange, self._time = self._processes.largest(mine)
        self._interruption.agreed, state.agreed = int(asked), bool(save)
        if exchange:
            self._meter.exchange()

    def _accept(self, batches: Batches, batch_size: int) -> None:
        """Raise SettingsError for batches that not all processes have a part of, with --shard: they
        need each other for every batch."""
        super()._accept(batches, batch_size)
        last = batches.examples % batch_size
        if self.runtime.shard and 0 < last < self._rank.size:
            raise SettingsError(
                f"--shard: with --batch-size {batch_size} the last batch of {batches.examples} "
                f"examples has {last}, fewer than the {self._rank.size} processes; choose another"
            )

    def _own_parts(
        self, batch: Any, size: int, elements: Count | None
    ) -> Iterator[tuple[Any, Tensor]]:
        """The parts of this process's slice; with --shard all processes have as many, since they
        need each other for every part."""
        count = getattr(self.settings, "accumulate", 1)
        if not self.runtime.shard or count == 1:
            return super().parts(batch, elements)
        most = size // self._rank.size // 2  # no part is a single example
        return loop.parts(batch, max(1, min(count, most)), elements, exactly=True)

    def _fraction(self, mine: Tensor) -> Tensor:
        """This process's fraction of the elements of all."""
        own = mine.to(wide(self.device))
        whole = own.clone()
        self._processes.add_up([whole])
        return own / whole

    def _check_same(self, metrics: Metrics) -> None:
        """Raise JobError for a metric that is not the same in all processes."""
        first, *others = self._processes.everyones(numbers(metrics))
        for name in first:
            if any(repr(first[name]) != repr(other.get(name)) for other in others):
                raise JobError(
                    f"{name} differs between the processes, since each has seen other examples; "
                    "measure it with Means, which add up what all of them have"
                )

    def _check_divided(self, models: Iterable[nn.Module]) -> None:
        if any(not is_divided(weight) for model in models for weight in model.parameters()):
            raise JobError(
                "--shard: run.py has to call job.init(…) with each model before its optimizer is "
                "made"
            )

    def _warn_of_batch_norm(self, models: Iterable[nn.Module]) -> None:
        kinds = {type(module) for model in models for module in model.modules()}
        if any(issubclass(kind, _BatchNorm) and kind is not nn.SyncBatchNorm for kind in kinds):
            count = self._rank.size
            log.warning(
                "batch norm: each of the %d processes normalizes by its own slice of a batch, so "
                "results differ from those of one process; see `python jobs.py docs several-gpus`",
                count,
            )

    @cached_property
    def _outputs(self) -> Outputs:
        return SharedOutputs(self._folder.path, self.device, self._processes, self._shared)


def _tensors(models: Iterable[nn.Module]) -> Iterator[Tensor]:
    """Yield the weights and buffers of some models, each once, that are not divided."""
    found = {id(each): each for m in models for each in (*m.parameters(), *m.buffers())}
    return (each for each in found.values() if not is_divided(each))
