"""The job as run.py sees it: everything around a training loop that stays in view.

A loop can be stopped and continued anywhere, while its body stays the student's. `Job` holds the
parts that do the work: its position and length (progress.py), checkpoints (checkpoints.py),
numbers (meters.py), outputs (outputs.py), what runs in the background (compilation.py). Of a job of
several processes each has a slice of every batch, the gradients are added up, and what the
processes decide they decide together; `torchrun --nproc-per-node 4 run.py FLAGS` trains as `python
run.py FLAGS`.
"""

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, Generic, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import Dataset

from labjobs import devices, machine
from labjobs.data import batches as loaders
from labjobs.data.batches import Batches, Place
from labjobs.data.order import Collate, Order, Sampler
from labjobs.data.splits import groups_of
from labjobs.devices import FORMATS, GlobalStreams, Precision
from labjobs.distributed.collectives import Processes, is_divided, own
from labjobs.errors import Diverged, JobError, SettingsError, few
from labjobs.job import attempts, data_evidence, identity
from labjobs.job.folder import JobFolder
from labjobs.job.terminal import Interrupted, Paused, counted, log
from labjobs.settings import Span
from labjobs.training import checkpoints, compilation, outputs, probes
from labjobs.training.checkpoints import TrainingState
from labjobs.training.compilation import Background, GraphedStep, Prepared, UsualShapes
from labjobs.training.init_from import Beginning, Factor, Trained
from labjobs.training.meters import TrainMeter, check_ranges, numbers
from labjobs.training.optim import Count, SharedGradients, parts_of
from labjobs.training.outputs import Outputs, Value
from labjobs.training.probes import NoiseScale, Pace, Profile, Watcher
from labjobs.training.progress import Length, Part, Position, Report, Stopwatch

S = TypeVar("S")
F = TypeVar("F", bound=compilation.Function)
Absent = TypeVar("Absent", bound=None)
Metrics = Mapping[str, float]

Main = Callable[["Job[Any]"], Mapping[str, float]]
Check = Callable[["Job[Any]"], object]
"""The functions of a script that do a job, and that say whether it could run."""


class Job(Generic[S]):
    """One job, with its `settings`, its `runtime` flags and its `device`."""

    _state: TrainingState | None = None
    _parts: Mapping[str, Part] = {}  # what job.resume() was given
    _shared_gradients: SharedGradients | None = None
    _open_stream: Iterator[tuple[Any, int]] | None = None
    _graphed: GraphedStep | None = None
    _in_interval = False  # whether the body of job.epochs() runs
    _logged = False  # whether this interval's evaluation was logged
    _said = ""  # the number format of the job's first line
    _peak = 0  # the most bytes on the device, as noted last
    _signal = 0  # the signal to stop by that all processes know of
    _time = 0.0  # process 0's clock after the last step

    def __init__(
        self,
        folder: JobFolder[S],
        device: torch.device | None = None,
        processes: Processes | None = None,
        shared: Path | None = None,
    ) -> None:
        """Of `processes`, all read and process 0 writes the attempt's folder, `shared`."""
        if folder.runtime.shard:
            folder.runtime = replace(folder.runtime, compile="off")
        self.settings, self.runtime = folder.settings, folder.runtime
        self._folder, self._shared = folder, shared
        self._several, self._processes = processes, processes or Processes()
        self._length = Length(folder.settings)
        if processes:
            self.device = devices.choose_for(folder.runtime.device, processes)
            self._length.clock = lambda: self._time
        else:
            self.device = device or devices.choose(folder.runtime.device)
        self._beginning = Beginning(folder)
        self._position = Position(folder.settings, self._length)
        self._watch = Stopwatch()
        self._watcher = Watcher()
        self._background = Background(self.device, self._check_signal)
        self._place = Place()
        self._shapes = UsualShapes(self._processes)
        self._precisions: dict[str, None] = {}  # those of what has been prepared, in order
        self._prepared: list[Prepared] = []
        self._all_batches: list[Batches] = []
        self._at: dict[str, Any] | None = None  # of the background result that is being looked at
        self._spec: dict[str, Any] = {}
        self._trained: dict[int, tuple[dict[str, float], dict[str, float]]] = {}
        """Training means and rates of the intervals that are not logged yet, by step."""

    def start(self) -> None:
        """Take the device and this job's threads, and seed all random numbers."""
        devices.use(self.device, self.runtime.deterministic)
        self._set_threads()
        self._processes.use(self.device)
        self._random = GlobalStreams(self._seed, self.device, self._processes)
        self._say_where()
        journal = self._folder.journal
        journal.tags(devices.tags(self.device) | {"threads": str(torch.get_num_threads())})
        self._compare_with_before()
        running = identity.purpose()  # `jobs.py find` runs jobs too
        if steps := self.runtime.profile:
            self._watcher = Profile(steps, self._folder, self.device, self._prepared)
        elif running in (identity.FIND_BATCH_SIZE, identity.FIND_WORKERS):
            self._watcher = Pace(self.device, journal, lambda: self.step)
        elif running == identity.FIND_NOISE_SCALE:
            self._watcher = NoiseScale(lambda: [*self._parts.values()], self.log)

    # Before the loop: data, models, forward functions.

    def data(self, *paths: str | os.PathLike[str]) -> None:
        """Count files, and folders with all that is in them, as data that the job reads, for what
        Python does not open itself: libraries in C, other programs. Call it before they read, and
        without paths if they read nothing.

        Raises JobError for a path that does not exist, or that no later command could find again.
        """
        data_evidence.declare(paths, self._folder.places, self._processes.rank.number == 0)

    def batches(
        self,
        part: Dataset[Any] | Absent,
        batch_size: int | Sampler,
        shuffle: bool = False,
        collate: Collate | None = None,
    ) -> Batches | Absent:
        """Return the batches of a dataset or a stream on the device; None if there is none.

        Those with `shuffle` are to train on: in an order that depends on the seed and the epoch.
        In place of the batch size, a function may choose the examples of each batch of an epoch.
        `collate`, a function at the top of a module, makes a batch of a list of examples where they
        cannot be stacked, such as texts of different lengths.
        """
        if part is None:
            return part
        if callable(batch_size):
            batch_size = _until_end(batch_size, Length(self.settings))
            if shuffle:
                self._beginning.note_length_read(sys._getframe(1))
        runtime, seed = self.runtime, self._seed if shuffle else None
        how = (self.device, batch_size, runtime.loader, runtime.workers)
        rank = self._processes.rank
        made = loaders.make(part, *how, seed=seed, collate=collate, rank=rank)
        made.check = partial(self._begin_batch, made)
        made.step = lambda: self._position.step
        made.groups = groups_of(part) if made.order is not None else None
        self._all_batches.append(made)
        # With --shard, processes need each other for every batch. A stream has no last one.
        last = made.order.sizes(1)[-1] if runtime.shard and made.order is not None else rank.size
        if last < rank.size:
            line = f"an epoch's last batch has {counted(last, 'example')}, fewer than {rank.size}"
            raise SettingsError(f"--shard: {line} processes; choose another --batch-size")
        if shuffle and self._length.steps_per_epoch is None:
            self._length.set_epoch(made.order)
        return made

    def prepare(self, forward: F, precision: str = "fp32") -> F:
        """Return a forward function as it is to be called: in this number format (`auto`: bf16 on a
        GPU that has it, else fp32), and compiled where that pays. Beyond the model, the batch and
        the settings it may take more, and beyond the loss and what was measured return more.

        Raises SettingsError for a precision that the device or --shard does not have, and for tf32
        beside others, as it is the whole process's. Raises JobError for another one than the job
        began with.
        """
        if self.runtime.shard and precision == "fp16":
            raise SettingsError("--shard: not with --precision fp16; use bf16")
        chosen = Precision(precision, self.device, keep_weights=not self.runtime.shard)
        if hasattr(self._folder, "journal"):  # a sweep that only checks the job asks no GPU
            self._note_precision(precision, chosen.name)
        compile = self.runtime.compile
        if compile == "auto" and self.device.type != "cuda":
            compile = "off"
        self._background.compiles |= compile != "off"
        shapes = self._shapes.of[len(self._prepared)]
        self._prepared.append(Prepared(forward, chosen, compile, shapes, self._compiling_pays))
        return cast(F, self._prepared[-1])

    def init(self, **models: nn.Module) -> None:
        """Give models the best weights of the job that --init-from names, if it names one: before
        their optimizer and their EMA are made. What does not fit keeps its initial values, and the
        log says what. With --shard, divide the models then among the processes, on their devices.
        In check(), on the meta device, it is only checked whether all that can be done.

        Raises SettingsError if no weights fit, or a model cannot be divided.
        """
        self._beginning.take(models)
        if not self.runtime.shard:
            return
        from labjobs.distributed import fsdp  # slow

        if getattr(self.settings, "optimizer", "") == "muon":
            raise SettingsError(fsdp.MUON)
        for name, model in models.items():
            fsdp.check(name, model, compilation.blocks)
            if self._several and not any(weight.is_meta for weight in model.parameters()):
                self._several.copy_from_first(_tensors([model]))
                fsdp.divide(model, self._several.mesh(self.device), compilation.blocks)

    def check_schedule(self, factor: Factor) -> None:
        """Raise SettingsError if the job is to go on from another one, --init-from JOB:last, and
        its learning rate is not what it was there in the steps that are done.

        `factor(settings, job, plateaus)` is what learning rates are multiplied by in the next step.
        The engine also uses it to decide whether to keep last.pt once the job has finished.
        """
        self._beginning.check(factor)

    def check_end(self) -> None:
        """Raise SettingsError if no other job could go on from the end of this one, as in `breed`;
        after check()."""
        self._beginning.check_end()

    def save_spec(self, spec: Any) -> None:
        """Keep what the network has to know of the data, a dataclass or a dictionary of plain
        values: jobs.load makes the model again with it."""
        self._spec = asdict(spec) if is_dataclass(spec) else dict(spec)  # type: ignore[arg-type]
        self._folder.note(spec=self._spec)

    def save_split(self, **parts: Dataset[Any] | None) -> None:
        """Keep which examples each part of the data has, by name, such as `train`. Raises JobError
        if two of `train`, `val` and `test` share examples."""
        self._folder.note(**outputs.save_split(self._folder.root.parent, parts))

    # The loop.

    def resume(self, **training: Part) -> None:
        """Continue from the job's checkpoint, if it has one. Names everything that has a state:
        models, optimizers, schedulers, scalers, EMA, early stopping, whatever the loop changes.

        Raises JobError for a part without a state, a second call, or a checkpoint that does not fit
        the code.
        """
        if self._state:
            raise JobError("job.resume: was already called; pass all parts in one call")
        folder, runtime, several = self._folder, self.runtime, self._several
        models = [part for part in training.values() if isinstance(part, nn.Module)]
        shard = bool(several and runtime.shard)
        if shard and any(not is_divided(weight) for each in models for weight in each.parameters()):
            line = "run.py has to call job.init(…) with each model before its optimizer is made"
            raise JobError(f"--shard: {line}")
        self._random.separate()
        folder.interruption.hold()
        folder.interruption.ends_waits = not several  # which stop together
        self._meter = TrainMeter(folder.journal, self.device, folder.metrics, self._processes)
        self._meter.graphs = compilation.graphs(runtime.compile, self.device)
        attempt, minutes = self._shared or folder.path, runtime.checkpoint_minutes
        parts: dict[str, Part] = {
            **training,
            "job.length": self._length,
            "job.position": self._position,
            "job.random": self._random,
            "job.meter": self._meter,
            "job.stopwatch": self._watch,
            "job.background": self._background,
            "job.shapes": self._shapes,
        }
        if any(batches.order is None for batches in self._all_batches):
            parts["job.stream"] = self._place
        _say_formats(models)
        self._parts = training
        self._meter.skips = self._scales
        self._state = TrainingState(attempt, folder.journal, minutes, parts, self._processes, shard)
        self._state.restore(self._first_state)
        if several:
            averaged = [getattr(part, "model", None) for part in training.values()]
            every = [*models, *(model for model in averaged if isinstance(model, nn.Module))]
            several.copy_from_first(_tensors(every))
            self._shared_gradients = SharedGradients(models, several, self.device, runtime.shard)
            _warn_of_batch_norm(models, several.rank.size)
            self._agree()

    def graphed(self, step: compilation.Step) -> compilation.Step:
        """Return a function of a batch that takes an optimizer step, recorded as one CUDA graph, as
        --graph says: for small networks, whose operations the GPU ends sooner than the host can
        start the next. Call it after `resume`, and set learning rates before each step.

        What is logged within has to be tensors. Raises JobError, with the line, for what a graph
        cannot do, such as waiting for the device.
        """
        _ = self._saved_state  # raises JobError before job.resume
        if self.runtime.graph == "off" or self.device.type != "cuda" or self._several:
            if self.runtime.graph == "on":
                raise SettingsError("--graph on: needs a CUDA GPU and a job of one process")
            return compilation.rounded_rates(step, self._parts)
        if self._meter.graphs:
            raise SettingsError(
                f"--compile {self.runtime.compile}: records CUDA graphs of its own; use on, or "
                "max-autotune-no-cudagraphs, or --graph off"
            )
        self._graphed = GraphedStep(step, self.device, self._meter, self._parts)
        self._watcher.graphed = True
        return self._graphed

    def epochs(self) -> Iterator[int]:
        """Yield the number of each evaluation interval, from 1; by default it is an epoch.

        The body trains (`steps`) and evaluates. It may `break` to end training for good.
        """
        position = self._position
        while self._saved_state and not position.ended:
            self._pause_if_due()
            self._in_interval = True
            try:
                yield position.interval + 1
            finally:  # also after a `break`
                self._in_interval = False
            if not position.evaluating:
                raise JobError("job.epochs(): its body must run job.steps(batches) to the end")
            position.end_interval()
            self._folder.interruption.ends_waits = not self._several
            self._save_if_due()

    def steps(
        self, batches: Batches | None = None, *, examples: int = 0, **units: float
    ) -> Iterator[Any]:
        """Yield the batches of this interval that are not done yet, each for one optimizer step.

        Without batches, where the loop makes its data itself, yield the number of steps done before
        each; `examples`, if given, is then how many a step trains on, for the logged speed.
        `units` is how much of something else an example is, such as `tokens=1024`: its speed is
        told in these too.

        A step is whole when the next batch is asked for. Between steps checkpoints are made, and
        signals and --pause-after end the job.
        """
        position, length = self._position, self._length
        stream = self._stream(batches, examples)
        self._watch.start(units)
        end = position.step if position.evaluating else position.interval_end
        while position.step < end:
            measuring = length.measuring
            batch, size = next(stream)
            if self._meter.graphs:
                # what compiled code returned so far may be written over
                torch.compiler.cudagraph_mark_step_begin()
            yield batch
            if self.runtime.graph == "on" and not self._graphed:
                raise JobError("--graph on: this script gives no step to job.graphed")
            position.step += 1
            if measuring:
                devices.wait(self.device)
                length.measure(position.step)
                end = position.interval_end
            self._watch.trained(size)
            self._meter.end_step(position.step)
            self._report.step()
            if position.step < end:
                self._pause_if_due()
                self._save_if_due()
        self._end_steps()

    def parts(self, batch: Any, elements: Count | None = None) -> Iterator[tuple[Any, Tensor]]:
        """Yield the batch in --accumulate parts, each with its fraction () of the batch, for
        `loss.backward(fraction)`: the gradients add up to that of the whole batch's mean. Of
        several processes, each has the parts of its slice, and then the gradients of all.

        `elements` counts what the loss is a mean over, if that is not examples.
        """
        number = getattr(self.settings, "accumulate", 1)
        if self._shared_gradients:
            return self._shared_gradients.parts(batch, number, elements)
        return self._watcher.parts(parts_of(batch, number, self.device, elements))

    def log(self, measured: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Log what a step measured, as `train_<name>`; `more` are tensors too, or numbers that the
        host knows, such as the learning rate. A number that METRICS does not declare is kept as it
        is, under its own name. Nothing here waits for the device."""
        if measured:
            self._meter.add(measured)
        if more:
            self._meter.add(more)

    def in_background(
        self, function: Callable[[nn.Module], Any], model: nn.Module
    ) -> Iterator[tuple[Any, nn.Module]]:
        """Have `function(copy of the model)` called in a thread while training goes on.

        Yields (result, copy) of the calls that are due: each an interval later, the last one after
        the last interval. `log_epoch` and `keep_best` then go by the step of the call. Raises
        JobError with several processes, whose threads could not take turns.
        """
        if self._several:
            raise JobError("job.in_background: does not work with several processes; use one")
        total = self._length.total
        last = total is not None and self._position.step >= total
        for at, result, copy in self._background.results(function, model, self._now(), last):
            self._at = at
            try:
                yield result, copy
            finally:  # also after a `break`
                self._at = None

    def log_epoch(self, metrics: Metrics) -> None:
        """Log an evaluation, under the optimizer step that it was made at."""
        at = self._at or self._now()
        values = numbers(metrics)
        self._check_same(values)
        if not self._logged and (found := data_evidence.note_open()):
            line = "opened without Python: %s; counts as it is now, and more may have been read"
            log.info(line, few(found, data_evidence.NAMED))
        self._logged = True
        self._folder.interruption.ends_waits = False  # until the results have been used
        training, rates = self._trained.pop(at["step"], ({}, {}))
        both = values.keys() & training.keys()
        if taken := sorted(name for name in both if values[name] != training[name]):
            line = f"{few(taken, data_evidence.NAMED)}: job.log has logged that of the same steps"
            raise JobError(f"{line}; log the evaluation under another name")
        check_ranges(values, self._folder.metrics)
        self._report.show(at, {**training, **values}, rates)
        times = {"epoch": at["epoch"], "elapsed_seconds": self._watch.elapsed, **rates}
        self._folder.journal.metrics(at["step"], {**values, **times}, of=self._length.total)
        self._note_peak()
        self._folder.journal.flush()

    def keep_best(self, metrics: Metrics, **models: nn.Module) -> None:
        """Keep the weights of these models in best.pt, with the metrics that they reached."""
        content = {
            "schema": 1,
            "id": self._folder.id,
            "settings": identity.identity(self._folder.settings),
            "spec": self._spec,
            **(self._at or self._now()),
            "metrics": numbers(metrics),
            "models": checkpoints.on_host({name: m.state_dict() for name, m in models.items()}),
        }
        self._saved_state.keep_best(content)

    def load_best(self, **models: nn.Module) -> None:
        """End training, and give these models the weights that were kept as the best.

        Raises JobError where none were kept under that name.
        """
        self.end_training()
        for name, model in models.items():
            kept = self.best.get("models", {})
            if name not in kept:
                raise JobError(f"no best weights of {name}: call job.keep_best(metrics, {name}=…)")
            model.load_state_dict(kept[name])

    @property
    def best(self) -> dict[str, Any]:
        """The content of best.pt; empty if nothing has been kept."""
        return self._state.best if self._state else {}

    @property
    def step(self) -> int:
        """Optimizer steps that are done."""
        self._refuse_in_graph("step")
        return self._position.step

    @property
    def epoch(self) -> int:
        """Completed passes over the training data; 0 for a stream."""
        self._refuse_in_graph("epoch")
        return int(self._length.epochs_in(self._position.step))

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps of the whole job; None while --minutes are not measured yet."""
        self._beginning.note_length_read(sys._getframe(1))
        return self._length.total

    @property
    def fraction_done(self) -> float:
        """Fraction of the job that is done."""
        self._refuse_in_graph("fraction_done")
        self._beginning.note_length_read(sys._getframe(1))
        return self._length.fraction(self._position.step)

    def span(self, span: Span) -> int:
        """Return a span such as --warmup as a number of steps."""
        return self._length.steps_in(span.number, span) if span.endswith("e") else int(span)

    # What else a job keeps.

    def log_image(self, name: str, image: Any) -> None:
        """Log an image, (H, W), (C, H, W) or (H, W, C), or several as a grid, (N, C, H, W).

        Pixels are uint8, or floats in [0, 1].
        """
        png = outputs.as_png(name, image)
        self._keep_file(name, "png", lambda file: file.write(png))

    def log_figure(self, name: str, figure: Any) -> None:
        """Log a matplotlib figure, at its own size and resolution."""
        # The same bytes from each version of matplotlib.
        how = {"format": "png", "dpi": "figure", "metadata": {"Software": None}}
        self._keep_file(name, "png", lambda file: figure.savefig(file, **how))

    def log_text(self, name: str, text: str) -> None:
        """Log a text."""
        self._keep_file(name, "txt", lambda file: file.write(text.encode()))

    def log_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log a table, as a dictionary for each row."""
        self._keep_file(name, "csv", lambda file: file.write(outputs.as_csv(rows)))

    def log_file(self, path: Path) -> None:
        """Log a copy of a file."""
        with path.open("rb") as source:
            kind = path.suffix.removeprefix(".")
            self._keep_file(path.stem, kind, lambda file: shutil.copyfileobj(source, file))

    def keep_outputs(self, measured: Mapping[str, Any] = {}, /, **values: Value) -> None:
        """Keep values of each test example, a batch at a time, in predictions.npz: tensors (B, …)
        by name, or lists of tensors of different lengths. Of what is `measured`, what has a value
        for each example (B,) is kept too; tables need it for their intervals. Nothing here waits
        for the device.

        Raises JobError before training has ended, for values of different numbers of examples, or
        unlike those of earlier batches.
        """
        if self._in_interval and not self._position.over:
            line = "keeps test examples, once training has ended; leave it out of other evaluations"
            raise JobError(f"job.keep_outputs: {line}")
        self._outputs.add(values, measured)

    # The end.

    def end_training(self) -> None:
        """Save the end of training, once; from then on a signal ends the job at once."""
        if self._state is None:
            return
        position, total = self._position, self._length.total or 0
        if not position.over:
            position.over = True
            if position.step < total:
                log.info("training ended early, after %d of %d steps", position.step, total)
            self._background.close()
            self._watcher.close()
            self._meter.close(position.step)
            self._report.close()
            self._state.save()
        self._state.finish()
        early = position.evaluating or position.step < total
        self._beginning.note_end(Trained(position.step, self._length.steps_per_epoch or 0, early))
        interruption = self._folder.interruption
        self._signal = int(self._processes.largest([interruption.asked])[0])
        interruption.release()
        self._check_signal()

    def finish(self, results: Metrics) -> dict[str, float]:
        """Log the results of a finished job; returns them with those of its best evaluation."""
        if self._several:
            data_evidence.sync()  # process 0 collects what all have read
        if not isinstance(results, dict):
            wrong = f"main() returned {type(results).__name__}"
            raise JobError(f"{wrong}; return the results, a dictionary, or {{}} if there are none")
        tested = numbers(results)
        self._check_same(tested)
        self.end_training()
        self._note_peak()
        journal, best = self._folder.journal, self.best
        journal.files(self._outputs.save())
        kept = {f"best_{name}": value for name, value in best.get("metrics", {}).items()}
        monitor = getattr(self.settings, "monitor", "none")
        if math.isnan(kept.get(f"best_{monitor}", 0.0)):
            log.warning("%s was NaN each time, so it has not chosen the best weights", monitor)
        step = best.get("step", self.step)
        check_ranges(tested, self._folder.metrics)
        every = {**tested, **kept, **({"best_step": step} if best else {})}
        journal.results(step, every, self.step)
        return every

    def stop(self, save: bool) -> None:
        """End early, with a checkpoint if `save`."""
        if self._state is None:
            return
        self._note_peak()
        if self._position.over:
            return
        if self._open_stream:
            self._report.close()
        if save:
            self._save()
        self._state.close()

    def check_finite(self) -> None:
        """Look, after an error, at what training depends on: NaN has many ways to raise one later.

        Raises Diverged if the training loss, weights or their gradients are not finite.
        """
        if self._state is None:
            return
        if not self._several:  # whose sums are added up together
            self._meter.check_finite(self.step + 1)
        models = (part for part in self._parts.values() if isinstance(part, nn.Module))
        for name, weight in (each for model in models for each in model.named_parameters()):
            # A GradScaler's own gradients are infinite now and then.
            looked_at = {"weights": weight, "gradients": None if self._scales else weight.grad}
            for what, value in looked_at.items():
                if value is not None and not own(value).isfinite().all():
                    raise Diverged(f"{what} are no longer finite ({name}); {Diverged.CURE}")

    def close(self) -> None:
        """End the threads and the processes that were started."""
        self._background.close()
        for batches in self._all_batches:
            batches.close()
        if self._processes.first:
            self._processes.first.ending = True

    # Parts of the loop; `--check` watches some of them.

    def _first_state(self) -> dict[str, Any]:
        """What a job without a checkpoint continues from; empty if it starts anew."""
        return self._beginning.state(self._parts, self._length.steps_per_epoch)

    def _stream(self, batches: Batches | None, examples: int) -> Iterator[tuple[Any, int]]:
        """The batches from here on, without end: the same iterator for all intervals."""
        if self._open_stream is None:
            self._streamed = batches
            self._length.set_epoch(None if batches is None else batches.order)
            self._meter.choose_spacing(self._length.total)
            if batches is not None:
                if batches.order is not None:
                    self._check_length(batches.order)
                begin = self._length.place(self.step)
                stream = self._watch.waiting(batches.endless(*begin, self._place))
            elif self._several:
                raise JobError("job.steps() without batches: does not work with several processes")
            else:
                stream = ((step, examples) for step in count(self.step))
            stream, shared = self._watcher.steps(stream, batches), self._shared_gradients
            self._open_stream = shared.slices(stream) if shared else stream
        if batches is not self._streamed:
            cure = "give job.batches a function that chooses them (`python jobs.py docs recipes`)"
            line = f"a job trains on one set of batches; where they change, {cure}"
            raise JobError(f"job.steps(batches): {line}")
        return self._open_stream

    def _check_length(self, order: Order) -> None:
        """Raise JobError if other batches than those of this order told the length of an epoch."""
        every = (each.order for each in self._all_batches if each.order is not None)
        first = next((each for each in every if each.shuffled), order)
        if first is not order and len(first) != len(order):
            line = f"an epoch has {len(order)} steps, but job.total_steps went by {len(first)}"
            cure = "call job.batches(…, shuffle=True) for these first"
            raise JobError(f"job.steps(batches): {line}; {cure}")

    def _end_steps(self) -> None:
        """The steps of an interval are done: what comes now is its evaluation."""
        self._meter.flush()
        devices.wait_for_stream(self.device)  # also if nothing was measured, for the speed
        self._watcher.end_steps()
        if not self._position.evaluating:
            self._watch.end_steps()
        self._trained[self.step] = self._meter.since_last(), self._watch.rates
        self._position.evaluating, self._logged = True, False
        # A job that is stopped while it evaluates begins its evaluation again, from here.
        self._before_evaluation = self._random.state_dict()

    def _begin_batch(self, batches: Batches) -> None:
        """A batch of an evaluation comes next: a signal may end that, but not once its results are
        in use."""
        self._outputs.batch_of = batches
        if not self._logged:
            self._check_signal()

    def _check_signal(self) -> None:
        """Raise Interrupted if a signal has asked the job to stop, and all processes know."""
        if signal := self._signal if self._several else self._folder.interruption.asked:
            raise Interrupted(signal)

    def _pause_if_due(self) -> None:
        pause, position = self.runtime.pause_after, self._position
        if pause is None or self._length.steps_per_epoch is None or position.evaluating:
            return
        try:
            due = self.span(pause)
        except SettingsError as error:  # for epochs of a stream
            raise SettingsError(f"--pause-after {error}") from None
        if position.step >= due:
            raise Paused(f"after {counted(position.step, 'step')}, as --pause-after asked")

    def _save_if_due(self) -> None:
        due = self._agree() if self._several else self._saved_state.due
        self._check_signal()
        if due:
            self._save()

    def _agree(self) -> bool:
        """Decide after a step, for all processes: whether a signal ends the job, whether to add up
        what was measured, and whether to make a checkpoint, which is returned."""
        rank, state, signal = self._processes.rank, self._saved_state, self._folder.interruption
        mine = [float(signal.asked), 0.0, 0.0, 0.0]
        if rank.number == 0:
            mine[1:] = [float(state.due), float(self._meter.due), time.monotonic()]
        asked, due, exchange, self._time = self._processes.largest(mine)
        self._signal = int(asked)
        if exchange:
            self._meter.exchange(wait=True)
        return bool(due)

    def _save(self) -> None:
        evaluating = self._position.evaluating
        self._saved_state.save({"job.random": self._before_evaluation} if evaluating else None)

    @property
    def _saved_state(self) -> TrainingState:
        if self._state is None:
            raise JobError("call job.resume(…) first, with everything that has a state")
        return self._state

    @property
    def _scales(self) -> bool:
        """Whether a GradScaler scales the loss, and skips steps whose gradients overflow."""
        scalers = (part for part in self._parts.values() if isinstance(part, torch.amp.GradScaler))
        return any(scaler.is_enabled() for scaler in scalers)

    @property
    def _seed(self) -> int:
        return int(getattr(self.settings, "seed", 0))

    @cached_property
    def _report(self) -> Report:
        return Report(self._position, self.runtime.quiet)

    @cached_property
    def _outputs(self) -> Outputs:
        return Outputs(self._folder.path, self.device, self._processes)

    def _now(self) -> dict[str, Any]:
        step = self._position.step
        return {"step": step, "epoch": self._length.epochs_in(step)}

    def _keep_file(self, name: str, kind: str, fill: Callable[[BinaryIO], object]) -> None:
        kept = outputs.keep_file(self._folder.path, name, f"{self.step:08d}.{kind}", fill)
        self._folder.journal.files([kept])

    def _check_same(self, metrics: Metrics) -> None:
        """Raise JobError for a metric that is not the same in all processes."""
        first, *others = self._processes.everyones(metrics)
        for name in first:
            if any(repr(first[name]) != repr(other.get(name)) for other in others):
                line = f"{name} differs between the processes, since each has seen other examples"
                cure = "measure it with Means, which add up what all of them have"
                raise JobError(f"{line}; {cure}")

    def _set_threads(self) -> None:
        """Take as many threads as were asked for, or as the job has had before, since on a CPU they
        change the last digits, or else all that there are."""
        most = min(torch.get_num_threads(), machine.cores())
        before = self._folder.journal.tags_before if self._has_begun else {}
        usual = int(before.get("threads", most))
        wanted = self.runtime.threads
        torch.set_num_threads(usual if wanted == "auto" else wanted)
        if wanted not in ("auto", usual) and before and self.device.type == "cpu":
            line = "threads: begun with %d and continued with %d: the same bits cannot be expected"
            log.warning(line, usual, wanted)

    def _compare_with_before(self) -> None:
        """Note how many processes there are, and warn of another device than before.

        Raises JobError if the first points of the curve are of another number of processes, whose
        results differ in rounding at least, and there is no checkpoint to continue.
        """
        journal, size = self._folder.journal, str(self._processes.rank.size)
        device, before = devices.describe(self.device), journal.tags_before
        others = before.get("processes", "1")
        begun = journal.has_points and not attempts.has_checkpoint(self._folder.path)
        if begun and others != size:
            raise JobError(
                f"it was begun by {others} processes and has no checkpoint yet, and this job has "
                f"{size}; start it with as many as before, or start over with --force"
            )
        if size != "1" or "processes" in before:
            journal.tags({"processes": size})
        if before.get("device", device) != device and self._has_begun:
            line = "begun on %s and continued on %s: the same bits cannot be expected"
            log.warning(line, before["device"], device)

    def _say_where(self) -> None:
        """Log the job's first line. Raises SettingsError for a precision that the GPU lacks."""
        asked = str(getattr(self.settings, "precision", "fp32"))
        self._said = Precision(asked if asked in FORMATS else "fp32", self.device).name
        device, size = devices.describe(self.device), self._processes.rank.size
        of = device if size == 1 else f"{size} × {device}"
        log.info("%s: %s on %s in %s", self._folder.label, self._folder.name, of, self._said)
        if asked == "auto" and devices.is_slow_in_fp32(self.device):
            log.info("%s has no bf16: --precision fp16 is several times faster there", device)

    def _note_precision(self, asked: str, name: str) -> None:
        """Set the number format of a prepared function, and say it if the first line did not.

        Raises JobError for one that the job was not begun in, as `auto` is on another GPU."""
        journal, before = self._folder.journal, self._precisions
        begun = journal.tags_before.get("precision")
        if asked == "auto" and begun and name not in begun.split(", ") and self._has_begun:
            raise JobError(
                f"it was begun in {begun}, and on {devices.describe(self.device)} it would go on "
                f"in {name}; continue it on a GPU like the first, or start over with --force"
            )
        if "tf32" in {name, *before} and {name, *before} != {"tf32"}:
            raise SettingsError("--precision tf32: job.prepare was given others too")
        if self.device.type == "cuda":
            devices.set_tf32(name == "tf32")
        if name not in (self._said, *before):
            log.info("a function that was prepared computes in %s", name)
        self._precisions = {**before, name: None}
        journal.tags({"precision": ", ".join(self._precisions)})
        peak = probes.peak(devices.describe(self.device), name)
        self._watch.peak = peak and peak * self._processes.rank.size

    def _compiling_pays(self, model: nn.Module) -> bool | None:
        """Whether the job is long enough for its functions of this model to be compiled; None while
        its length is not known. It depends on the settings alone, so it is the same when the job
        goes on, and in the jobs with which `find` measures for it."""
        length = self._length
        if given := os.environ.get(identity.LENGTH):  # of the job that this one measures for
            length = length.of(SimpleNamespace(**json.loads(given)))
        if (steps := length.expected) is None:
            return None
        weights = sum(weight.numel() for weight in model.parameters())
        each = weights * int(getattr(self.settings, "batch_size", 1))
        pays = steps * each >= compilation.WORTH
        if pays and (done := self._beginning.done) and done * each < compilation.WORTH:
            line = "that job was too short to be compiled; with --compile off, both have the bits"
            log.warning("%s of a single job", line)
        return pays

    @property
    def _has_begun(self) -> bool:
        """Whether the attempt has points of a curve, or a checkpoint, of an earlier process."""
        return self._folder.journal.has_points or attempts.has_checkpoint(self._folder.path)

    def _refuse_in_graph(self, name: str) -> None:
        if self._graphed and self._graphed.recording:
            raise JobError(f"job.{name} would stay what it is now; read it outside of the step")

    def _note_peak(self) -> None:
        """Note the most memory of the device that this process has taken so far."""
        peak = devices.peak_memory(self.device) or 0
        if peak > self._peak:
            self._peak = peak
            self._folder.journal.cost({"device_bytes": peak})


def _say_formats(models: Iterable[nn.Module]) -> None:
    """Log in which formats weights are, unless in float32; the job's first line has that of what is
    computed under autocast."""
    found = {weight.dtype for model in models for weight in model.parameters()} - {torch.float32}
    if found:
        log.info("weights are %s", ", ".join(sorted(str(each)[6:] for each in found)))


def _until_end(sampler: Sampler, length: Length) -> Sampler:
    """Return a function that asks this one for no epoch after the last, as loaders read ahead."""
    last = length.epochs - 1 if length.in_epochs else sys.maxsize
    return lambda count, epoch, random: sampler(count, min(epoch, last), random)


def _tensors(models: Iterable[nn.Module]) -> Iterator[Tensor]:
    """Yield the weights and buffers of some models, each once, that are not divided."""
    together = nn.ModuleList(models)
    yield from (t for t in (*together.parameters(), *together.buffers()) if not is_divided(t))


def _warn_of_batch_norm(models: Iterable[nn.Module], processes: int) -> None:
    norms = [each for each in nn.ModuleList(models).modules() if isinstance(each, _BatchNorm)]
    if any(not isinstance(norm, nn.SyncBatchNorm) for norm in norms):
        log.warning(
            "batch norm: each of the %d processes normalizes by its own slice of a batch, so "
            "results differ from those of one process; see `python jobs.py docs several-gpus`",
            processes,
        )
