"""The job as run.py sees it: everything around a training loop that stays in view."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from labjobs import files, machine
from labjobs.data import batches as loaders
from labjobs.data.batches import Batches
from labjobs.data.order import Collate
from labjobs.errors import JobError
from labjobs.job import attempts, purpose, usage
from labjobs.job.folder import JobFolder
from labjobs.job.ranks import ALONE
from labjobs.profiling import peaks
from labjobs.profiling.ranges import Ranges
from labjobs.training import compilation, devices, parts, splits
from labjobs.training.artifacts import Artifacts
from labjobs.training.forward import Forward, Prepared
from labjobs.training.longer import Factor
from labjobs.training.measures import check_ranges, numbers, warn_of_unmeasured
from labjobs.training.noise_scale import NoiseScale
from labjobs.training.outputs import Outputs, Value
from labjobs.training.pace import Pace
from labjobs.training.precision import Precision
from labjobs.training.seeding import GlobalStreams
from labjobs.training.training_loop import Metrics, TrainingLoop

S = TypeVar("S")


class Job(TrainingLoop, Generic[S]):
    """One job, with its `settings`, its `runtime` flags and its `device`."""

    settings: S
    _rank = ALONE
    _noise_scale: NoiseScale | None = None
    _peak = 0
    """The most bytes on the device, as noted last."""

    def __init__(self, folder: JobFolder[S], device: torch.device | None = None) -> None:
        super().__init__(folder, device or devices.choose(folder.runtime.device))
        self.settings, self.runtime = folder.settings, folder.runtime
        if self.runtime.nvtx:
            self._watcher = Ranges(self.device)

    def start(self) -> None:
        """Take the device and this job's threads, and seed all random numbers."""
        devices.use(self.device, self.runtime.deterministic)
        wanted = self.runtime.threads
        most = min(torch.get_num_threads(), machine.cores())
        torch.set_num_threads(most if wanted == "auto" else wanted)
        self._random = GlobalStreams(self._seed, self.device)
        self._whole = torch.ones((), device=self.device)  # the fraction of a batch in one part
        folder = self._folder
        threads = str(torch.get_num_threads())  # on a CPU they change the last digits
        folder.journal.tags(devices.tags(self.device) | {"threads": threads})
        self._note_processes()
        if count := self.runtime.profile:
            from labjobs.profiling.profile import Profile  # slow to import

            parts, finished = lambda: self._parts, folder.journal.files
            self._watcher = Profile(count, folder.path, self.device, parts, finished)
        elif not self.runtime.nvtx:
            self._measure(purpose.purpose())

    def _note_processes(self) -> None:
        """Raise JobError if the first points of the curve are of another number of processes, whose
        results differ in rounding at least, and there is no checkpoint to continue."""
        journal, size = self._folder.journal, str(self._rank.size)
        before = journal.tags_before.get("processes", "1")
        begun = journal.has_points and not attempts.has_checkpoint(self._folder.path)
        if begun and before != size:
            raise JobError(
                f"it was begun by {before} processes and has no checkpoint yet, and this job has "
                f"{size}; start it with as many as before, or start over with --force"
            )
        if size != "1" or "processes" in journal.tags_before:
            journal.tags({"processes": size})

    @overload
    def batches(
        self,
        part: Dataset[Any],
        batch_size: int,
        shuffle: bool = False,
        collate: Collate | None = None,
    ) -> Batches: ...
    @overload
    def batches(
        self,
        part: Dataset[Any] | None,
        batch_size: int,
        shuffle: bool = False,
        collate: Collate | None = None,
    ) -> Batches | None: ...
    def batches(
        self,
        part: Dataset[Any] | None,
        batch_size: int,
        shuffle: bool = False,
        collate: Collate | None = None,
    ) -> Batches | None:
        """Return the batches of a dataset or a stream on the device; None of None.

        Those with `shuffle` are to train on: in an order that depends on the seed and the epoch.
        `collate`, a function at the top of a module, makes a batch of a list of examples where they
        cannot be stacked, such as texts of different lengths.
        """
        if part is None:
            return None
        runtime, seed = self.runtime, self._seed if shuffle else None
        how = (self.device, batch_size, runtime.loader, runtime.workers)
        made = loaders.make(part, *how, seed=seed, collate=collate, rank=self._rank)
        made.check = partial(self._begin_batch, made)
        self._accept(made, batch_size)
        if shuffle and self._length.steps_per_epoch is None:
            self._length.set_epoch(made.steps_per_epoch)
        return made

    def prepare(self, forward: Forward, precision: str = "fp32") -> Prepared:
        """Return a forward function as it is to be called: in this number format (`auto`: bf16 on a
        GPU that has it, else fp32), and compiled where that pays.

        Raises SettingsError for a precision that the device does not have.
        """
        chosen = Precision(precision, self.device, keep_weights=not self.runtime.shard)
        if hasattr(self._folder, "journal"):  # a sweep that only checks the job asks no GPU
            self._folder.journal.tags({"precision": chosen.name})
            self._watch.peak = peaks.peak(devices.describe(self.device), chosen.name)
        known = not self._length.in_epochs or self._length.steps_per_epoch is not None
        steps = self._length.total if known else None
        choice = self.runtime.compile
        wanted = compilation.wanted(choice, self.device, steps)
        self._background.compiles |= wanted
        return Prepared(forward, chosen, choice if wanted else "off")

    def parts(
        self, batch: Any, elements: parts.Count | None = None
    ) -> Iterator[tuple[Any, Tensor]]:
        """Yield the batch in --accumulate parts, each with its fraction () of the batch, for
        `loss.backward(fraction)`: the gradients add up to that of the whole batch's mean.

        `elements` counts what the loss is a mean over, if that is not examples.
        """
        count = getattr(self.settings, "accumulate", 1)
        if count == 1:
            return iter(((batch, self._whole),))
        made = parts.parts(batch, count, elements)
        return self._noise_scale.parts(made) if self._noise_scale else made

    def init(self, **models: nn.Module) -> None:
        """Give models the best weights of the job that --init-from names, if it names one: before
        their optimizer and their EMA are made. What does not fit keeps its initial values, and the
        log says what. In check(), on the meta device, it is only checked whether any weights fit.

        Raises SettingsError if none do, or if --compile cannot be had with these models.
        """
        compilation.check(self.runtime.compile, models.values())
        self._beginning.take(models)

    def check_schedule(self, factor: Factor) -> None:
        """Raise SettingsError if the job is to go on from another one, --init-from JOB:last, and
        its learning rate is not what it was there in the steps that are done.

        `factor(settings, job, plateaus)` is what learning rates are multiplied by in the next step.
        The engine also uses it to decide whether to keep last.pt once the job has finished.
        """
        self._beginning.check(factor)

    def save_spec(self, spec: Any) -> None:
        """Keep what the network has to know of the data, a dataclass or a dictionary of plain
        values: jobs.load makes the model again with it."""
        self._spec = asdict(spec) if is_dataclass(spec) else dict(spec)  # type: ignore[arg-type]
        files.write_json(self._folder.path / "spec.json", self._spec)
        self._folder.journal.files(["spec.json"])

    def save_split(self, **parts: Dataset[Any] | None) -> None:
        """Keep which examples each part of the data has, by name, such as `train`."""
        self._folder.journal.files(splits.save(self._folder.path, parts))

    def log_image(self, name: str, image: Any) -> None:
        """Log an image, (H, W), (C, H, W) or (H, W, C), or several as a grid, (N, C, H, W).

        Pixels are uint8, or floats in [0, 1].
        """
        self._artifacts.image(name, self.step, image)

    def log_text(self, name: str, text: str) -> None:
        """Log a text."""
        self._artifacts.text(name, self.step, text)

    def log_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log a table, as a dictionary for each row."""
        self._artifacts.table(name, self.step, rows)

    def log_file(self, path: Path) -> None:
        """Log a copy of a file."""
        self._artifacts.file(path, self.step)

    def keep_outputs(self, **values: Value) -> None:
        """Keep values of each test example, a batch at a time, in predictions.npz: tensors (B, …)
        by name, or lists of tensors of different lengths. Nothing here waits for the device.

        Raises JobError for values of different numbers of examples, or unlike those of earlier
        batches.
        """
        self._outputs.add(values)

    def finish(self, results: Metrics) -> dict[str, float]:
        """Log the results of a finished job; returns them with those of its best evaluation."""
        self.end_training()
        self._note_cost()
        journal, best = self._folder.journal, self.best
        journal.files(self._outputs.save())
        kept = {f"best_{name}": value for name, value in best.get("metrics", {}).items()}
        step = best.get("step", self.step)
        tested = numbers(results)
        check_ranges(tested, self._folder.metrics)
        every = {**tested, **kept, **({"best_step": step} if best else {})}
        journal.metrics(step, every)
        if self._begins:
            warn_of_unmeasured(self._folder.metrics, self._measured | tested.keys())
        return every

    def log_epoch(self, metrics: Metrics) -> None:
        """Log an evaluation, under the optimizer step that it was made at."""
        super().log_epoch(metrics)
        if (devices.peak_memory(self.device) or 0) > self._peak:  # for a job that is killed later
            self._note_cost()

    def stop(self, save: bool) -> None:
        """End early, with a checkpoint if `save`."""
        if self._state:
            self._note_cost()
        super().stop(save)

    def _note_cost(self) -> None:
        """Note what this process has used so far of the machine and of the device."""
        process, used = usage.own()
        self._peak = devices.peak_memory(self.device) or 0
        on_device = {"device_bytes": self._peak, "gpu_seconds": used["seconds"]}
        self._folder.journal.cost(process, used | (on_device if self._peak else {}))

    def close(self) -> None:
        """End the threads and the processes that were started."""
        self._background.close()
        for batches in self._all_batches:
            batches.close()

    def _measure(self, what: str) -> None:
        """Measure for `jobs.py find`, if it runs this job."""
        if what in (purpose.FIND_BATCH_SIZE, purpose.FIND_WORKERS):
            journal, workers = self._folder.journal, self.runtime.workers
            self._watcher = Pace(self.device, journal, lambda: self.step, workers)
        elif what == purpose.FIND_NOISE_SCALE:
            self._watcher = self._noise_scale = NoiseScale(lambda: self._parts, self.log)

    def _accept(self, batches: Batches, batch_size: int) -> None:
        """Take note of batches that the job has."""
        self._all_batches.append(batches)

    def _begin_batch(self, batches: Batches) -> None:
        """A batch of an evaluation comes next."""
        self._outputs.batch_of = batches
        self._check_evaluation()

    @cached_property
    def _outputs(self) -> Outputs:
        return Outputs(self._folder.path, self.device)

    @cached_property
    def _artifacts(self) -> Artifacts:
        return Artifacts(self._folder.path, self._folder.journal)

    @property
    def _seed(self) -> int:
        return int(getattr(self.settings, "seed", 0))
