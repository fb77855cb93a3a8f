"""The job as run.py sees it: everything around a training loop that stays in view.

A thin façade: where training is, is in position.py and length.py; checkpoints are in state.py,
numbers in meters.py and stopwatch.py, what runs in the background in background.py.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from engine import files
from engine.cli.spans import Span
from engine.data import batches as loaders
from engine.data.batches import Batches
from engine.errors import JobError
from engine.job.folder import JobFolder
from engine.job.identity import identity
from engine.job.interruption import Paused
from engine.stateful import Part
from engine.training import checkpoints, compilation, devices, parts
from engine.training.artifacts import Artifacts
from engine.training.background import Background
from engine.training.forward import Forward, Prepared
from engine.training.length import Length
from engine.training.meters import TrainMeter
from engine.training.outputs import Outputs
from engine.training.position import Position
from engine.training.precision import Precision
from engine.training.report import Report
from engine.training.seeding import GlobalStreams
from engine.training.state import TrainingState
from engine.training.stopwatch import Stopwatch

S = TypeVar("S")
Metrics = Mapping[str, float]


class Job(Generic[S]):
    """One job, with its `settings`, its `runtime` flags and its `device`."""

    def __init__(self, folder: JobFolder[S], device: torch.device | None = None) -> None:
        self.settings, self.runtime = folder.settings, folder.runtime
        self.device = device or devices.choose(folder.runtime.device)
        self._folder = folder
        self._length = Length(folder.settings)
        self._position = Position(folder.settings, self._length)
        self._watch = Stopwatch()
        self._background = Background(self.device, folder.interruption.check)
        self._batches: list[Batches] = []
        self._outputs: list[Outputs] = []
        self._spec: dict[str, Any] = {}
        self._at: dict[str, Any] | None = None  # of the background result that is being looked at
        self._logged = False  # whether this interval's evaluation was

    def start(self) -> None:
        """Take the device and this job's threads, and seed all random numbers."""
        devices.use(self.device, self.runtime.deterministic)
        if self.runtime.threads != "auto":
            torch.set_num_threads(self.runtime.threads)
        else:
            torch.set_num_threads(min(torch.get_num_threads(), devices.cpu_cores()))
        self._random = GlobalStreams(getattr(self.settings, "seed", 0), self.device)
        self._tag(devices.tags(self.device))

    # What a loop is made of

    def batches(
        self, part: Dataset[Any] | None, batch_size: int, shuffle: bool = False
    ) -> Batches | None:
        """Return the batches of a dataset on the device; None of None.

        Those with `shuffle` are to train on: in an order that depends on the seed and the epoch.
        """
        if part is None:
            return None
        runtime = self.runtime
        seed = getattr(self.settings, "seed", 0) if shuffle else None
        how = (self.device, batch_size, runtime.loader, runtime.workers)
        made = loaders.make(part, *how, seed=seed)
        made.check = self._check_batch
        self._batches.append(made)
        if shuffle and self._length.steps_per_epoch is None:
            self._length.set_epoch(len(made))
        return made

    def prepare(self, forward: Forward, precision: str = "fp32") -> Prepared:
        """Return a forward function as it is to be called: in this number format (`auto`: bf16 on a
        GPU that has it, else fp32), compiled where that pays.

        Raises SettingsError for a precision that the device does not have.
        """
        chosen = Precision(precision, self.device)
        self._tag({"precision": chosen.name})
        steps = self._length.total if self._length.steps_per_epoch is not None else None
        wanted = compilation.wanted(self.runtime.compile, self.device, steps)
        return Prepared(forward, chosen, wanted)

    def save_spec(self, spec: Any) -> None:
        """Keep what the network must know of the data: a dataclass or a dictionary of plain values,
        with which `jobs.load` makes the model again."""
        self._spec = asdict(spec) if is_dataclass(spec) else dict(spec)
        if self._is_open:
            files.write_json(self._folder.path / "spec.json", self._spec)
            self._folder.journal.files(["spec.json"])

    # The loop

    def resume(self, **training: Part) -> None:
        """Continue from the job's checkpoint, if it has one. Names everything that has a state:
        models, optimizers, schedulers, scalers, EMA, early stopping, whatever the loop changes.

        Raises JobError for a part without a state, or a checkpoint that does not fit the code.
        """
        self._folder.interruption.hold()
        self._state.add(training)
        own: dict[str, Part] = {
            "length": self._length,
            "position": self._position,
            "random": self._random,
            "meter": self._meter,
            "stopwatch": self._watch,
            "background": self._background,
        }
        self._state.add({f"job.{name}": part for name, part in own.items()})
        self._state.restore()

    def epochs(self) -> Iterator[int]:
        """Yield the number of each evaluation interval, from 1; by default it is an epoch.

        The body trains (`steps`) and evaluates. It may `break` to end training for good.
        """
        position = self._position
        while not position.ended:
            self._pause_if_due()
            yield position.interval + 1
            if not position.evaluating:
                raise JobError(
                    "the body of job.epochs() took no step: loop over job.steps(batches)"
                )
            position.end_interval()
            self._save_if_due()

    def steps(self, batches: Batches) -> Iterator[Any]:
        """Yield the batches of this interval that are not done yet, each for one optimizer step.

        A step is whole when the next batch is asked for. Between steps checkpoints are made, and
        signals and --pause-after end the job.
        """
        position, length = self._position, self._length
        stream = self._stream(batches)
        self._watch.start()
        while not position.evaluating and not position.interval_ends:
            measuring = length.measuring
            batch, examples = next(stream)
            yield batch
            position.step += 1
            if measuring:
                devices.wait(self.device)
                length.measure(position.step)
            self._watch.trained(examples)
            self._meter.end_step(position.step)
            self._report.step()
            if not position.interval_ends:
                self._pause_if_due()
                self._save_if_due()
        self._end_steps()

    def parts(
        self, batch: Any, elements: parts.Count | None = None
    ) -> Iterator[tuple[Any, Tensor]]:
        """Yield the batch in --accumulate parts, each with its fraction () of the batch, for
        `loss.backward(fraction)`: the gradients add up to that of the whole batch's mean.

        `elements` counts what the loss is a mean over, if that is not examples.
        """
        return parts.parts(batch, getattr(self.settings, "accumulate", 1), elements)

    def log(self, measured: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Log what a step measured, as `train_<name>`; `more` are numbers of the host's, such as
        the learning rate, or tensors. Nothing here waits for the device."""
        if measured:
            self._meter.add(measured)
        if more:
            self._meter.add(more)

    def log_epoch(self, metrics: Metrics) -> None:
        """Log an evaluation, under the optimizer step that it was made at."""
        at = self._at or self._now()
        self._logged = True
        times = self._watch.read()
        every = {**metrics, "epoch": at["epoch"], **times}
        line = self._report.line(at, metrics, self._meter.since_last(), times)
        self._folder.journal.metrics(at["step"], every, of=self._length.total)
        self._folder.journal.flush()
        self._report.show(line)

    def keep_best(self, metrics: Metrics, **models: nn.Module) -> None:
        """Keep the weights of these models in best.pt, with the metrics that they came to."""
        at = self._at or self._now()
        self._state.keep_best(
            {
                "schema": 1,
                "settings": identity(self.settings),
                "spec": self._spec,
                **at,
                "metrics": dict(metrics),
                "models": {name: checkpoints.weights(model) for name, model in models.items()},
            }
        )

    def load_best(self, **models: nn.Module) -> None:
        """End training, and give these models the weights that were kept as the best.

        Raises JobError where none were kept under that name.
        """
        self.end_training()
        for name, model in models.items():
            if name not in self._state.best.get("models", {}):
                raise JobError(f"no best weights of {name}: job.keep_best(metrics, {name}=…)")
            model.load_state_dict(self._state.best["models"][name])

    def in_background(
        self, function: Callable[..., Any], model: nn.Module, *args: Any
    ) -> Iterator[tuple[Any, nn.Module]]:
        """Have `function(copy of the model, *args)` called in a thread while training goes on.

        Yields (result, copy) of the calls that are due: each one interval later, the last after the
        last interval. `log_epoch` and `keep_best` then go by the step of the call.
        """
        total = self._length.total
        last = total is not None and self._position.step >= total
        call = _Call(function, args)
        for at, result, copy in self._background.results(call, model, self._now(), last):
            self._at = at
            yield result, copy
            self._at = None

    # What schedules go by

    @property
    def step(self) -> int:
        """Optimizer steps that are done."""
        return self._position.step

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps of the whole job; None while --minutes are not measured yet."""
        return self._length.total

    @property
    def fraction_done(self) -> float:
        """Fraction of the job that is done."""
        return self._position.fraction

    def span(self, span: Span) -> int:
        """Return a span such as --warmup as a number of steps."""
        return span.steps(self._length.steps_per_epoch)

    # What a loop logs besides numbers

    def log_image(self, name: str, image: Any) -> None:
        """Log an image: (H, W), (C, H, W) or (H, W, C), uint8 or floats in [0, 1]."""
        self._artifacts.image(name, self._now()["step"], image)

    def log_text(self, name: str, text: str) -> None:
        """Log a text."""
        self._artifacts.text(name, self._now()["step"], text)

    def log_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log a table: a dictionary for each row."""
        self._artifacts.table(name, self._now()["step"], rows)

    def log_file(self, path: Path) -> None:
        """Log a copy of a file."""
        self._artifacts.file(path, self._now()["step"])

    def outputs(self) -> Outputs:
        """Return where values of each test example can be added, to be kept in predictions.npz."""
        self._outputs.append(Outputs())
        return self._outputs[-1]

    # The end, for launch.py

    def end_training(self) -> None:
        """Save the end of training, once; from then on signals end the job at once."""
        if "_state" not in self.__dict__ or self._position.over:
            return
        self._position.over = True
        self._background.close()
        self._meter.close(self._position.step)
        self._report.close()
        self._state.save()
        self._state.finish()
        self._folder.interruption.release()

    def finish(self, results: Metrics) -> dict[str, float]:
        """Log the results of a job that ran to its end; returns them with those of its best weights."""
        self.end_training()
        best = self._state.best if "_state" in self.__dict__ else {}
        kept = {f"best_{name}": value for name, value in best.get("metrics", {}).items()}
        step = best.get("step", self._position.step)
        every = {**results, **kept, **({"best_step": step} if best else {})}
        for outputs in self._outputs:
            self._folder.journal.files(outputs.save(self._folder.path))
        self._folder.journal.metrics(step, every)
        return every

    def stop(self, save: bool) -> None:
        """End early, with a checkpoint if `save`; the processes and threads that were started end."""
        self._background.close()
        if "_state" in self.__dict__ and not self._position.over:
            self._report.close()
            if save:
                self._save()
            self._state.close()

    def close(self) -> None:
        """End the processes that read data."""
        self._background.close()
        for batches in self._batches:
            batches.close()

    # Inside

    @cached_property
    def _state(self) -> TrainingState:
        minutes = self.runtime.checkpoint_minutes
        return TrainingState(self._folder.path, self._folder.journal, minutes)

    @cached_property
    def _meter(self) -> TrainMeter:
        journal = self._folder.journal
        return TrainMeter(journal, journal.log_every, self.device, self._folder.metrics)

    @cached_property
    def _artifacts(self) -> Artifacts:
        return Artifacts(self._folder.path, self._folder.journal)

    @cached_property
    def _report(self) -> Report:
        return Report(self._position, self._meter, self.runtime.quiet)

    @property
    def _is_open(self) -> bool:
        return hasattr(self._folder, "journal")

    def _tag(self, tags: dict[str, str]) -> None:
        if self._is_open:
            self._folder.journal.tags(tags)

    def _now(self) -> dict[str, Any]:
        return {"step": self._position.step, "epoch": self._position.epoch}

    def _stream(self, batches: Batches) -> Iterator[tuple[Any, int]]:
        """The batches from here on, without end; goes on between intervals."""
        if "_open_stream" not in self.__dict__:
            self._length.set_epoch(len(batches))
            self._meter.set_total(self._length.total)
            self._open_stream = self._watch.waiting(self._endless(batches))
        return self._open_stream

    def _endless(self, batches: Batches) -> Iterator[tuple[Any, int]]:
        while True:
            yield from batches.from_position(*self._position.place())

    def _end_steps(self) -> None:
        """The steps of an interval are done: what comes now is its evaluation."""
        self._meter.flush()  # waits for the device, once
        self._watch.end_steps()
        self._position.evaluating, self._logged = True, False
        # A job that is stopped while it evaluates begins its evaluation again, from here.
        self._before_evaluation = self._random.state_dict()

    def _check_batch(self) -> None:
        """Whether an evaluation may go on: not once a signal came, unless its results are in use."""
        if not self._logged:
            self._folder.interruption.check()

    def _pause_if_due(self) -> None:
        pause = self.runtime.pause_after
        if pause is not None and self._length.steps_per_epoch is not None:
            if self._position.step >= self.span(pause) and not self._position.evaluating:
                raise Paused(f"after {self._position.step} steps, as --pause-after asked")

    def _save_if_due(self) -> None:
        self._folder.interruption.check()
        if self._state.due:
            self._save()

    def _save(self) -> None:
        evaluating = self._position.evaluating
        self._state.save({"job.random": self._before_evaluation} if evaluating else None)


class _Call:
    """A function with arguments besides the model."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any]) -> None:
        self._function, self._args = function, args

    def __call__(self, model: nn.Module) -> Any:
        return self._function(model, *self._args)
