"""A training loop that can be stopped and continued anywhere, while its body stays the student's.

Where it is, is in position.py and length.py; checkpoints are in state.py, numbers in meters.py and
stopwatch.py, what runs in the background in background.py.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import count
from typing import Any, Protocol

import torch
from torch import nn

from labjobs.cli.spans import Span
from labjobs.data.batches import Batches
from labjobs.data.streams import Place
from labjobs.errors import JobError
from labjobs.job.folder import JobFolder
from labjobs.job.identity import identity
from labjobs.job.interruption import Paused
from labjobs.stateful import Part
from labjobs.training import checkpoints, compilation, devices
from labjobs.training.background import Background
from labjobs.training.beginning import Beginning
from labjobs.training.length import Length
from labjobs.training.longer import Trained
from labjobs.training.measures import check_ranges, numbers
from labjobs.training.meters import TrainMeter
from labjobs.training.position import Position
from labjobs.training.report import Report
from labjobs.training.seeding import GlobalStreams
from labjobs.training.state import TrainingState
from labjobs.training.stopwatch import Stopwatch

Metrics = Mapping[str, float]


class Watcher(Protocol):
    """Observes the steps of a loop, as --profile does."""

    def steps(
        self, stream: Iterator[tuple[Any, int]], batches: Batches | None
    ) -> Iterator[tuple[Any, int]]:
        """Yield the batches with their numbers of examples."""

    def end_steps(self) -> None:
        """The steps of an interval are over, and the device has done them."""

    def close(self) -> None:
        """There are no more steps."""


class TrainingLoop:
    """The part of a job that does the training."""

    _watcher: Watcher | None = None
    _random: GlobalStreams
    _state: TrainingState | None = None
    _parts: list[Part]
    _meter: TrainMeter
    _open_stream: Iterator[tuple[Any, int]] | None = None
    _streamed: Batches | None
    _graphs = False
    """Whether steps are recorded as CUDA graphs."""
    _logged = False
    """Whether this interval's evaluation was logged."""

    def __init__(self, folder: JobFolder[Any], device: torch.device) -> None:
        self.device = device
        self._folder = folder
        self._beginning = Beginning(folder)
        self._length = Length(folder.settings)
        self._position = Position(folder.settings, self._length)
        self._watch = Stopwatch()
        self._background = Background(device, folder.interruption.check)
        self._place = Place()
        self._all_batches: list[Batches] = []
        self._at: dict[str, Any] | None = None  # of the background result that is being looked at
        self._spec: dict[str, Any] = {}
        self._measured: set[str] = set()
        """Names of what was logged since this process began."""
        self._begins = True
        """Whether the job begins in this process."""
        self._trained: dict[int, tuple[dict[str, float], dict[str, float]]] = {}
        """Training means and rates of the intervals that are not logged yet, by step."""

    def resume(self, **training: Part) -> None:
        """Continue from the job's checkpoint, if it has one. Names everything that has a state:
        models, optimizers, schedulers, scalers, EMA, early stopping, whatever the loop changes.

        Raises JobError for a part without a state, a second call, or a checkpoint that does not fit
        the code.
        """
        if self._state:
            raise JobError("job.resume: was already called; pass all parts in one call")
        folder = self._folder
        folder.interruption.hold()
        self._graphs = compilation.graphs(folder.runtime.compile, self.device)
        self._meter = self._new_meter()
        self._state = self._new_state()
        self._state.add(training)
        own: dict[str, Part] = {
            "length": self._length,
            "position": self._position,
            "random": self._random,
            "meter": self._meter,
            "stopwatch": self._watch,
            "background": self._background,
        }
        if any(batches.steps_per_epoch is None for batches in self._all_batches):
            own["stream"] = self._place
        self._state.add({f"job.{name}": part for name, part in own.items()})
        self._parts = list(training.values())
        self._state.restore(self._first_state)
        self._begins = not self._position.step

    def epochs(self) -> Iterator[int]:
        """Yield the number of each evaluation interval, from 1; by default it is an epoch.

        The body trains (`steps`) and evaluates. It may `break` to end training for good.
        """
        position = self._position
        while self._saved_state and not position.ended:
            self._pause_if_due()
            yield position.interval + 1
            if not position.evaluating:
                raise JobError("job.epochs(): its body must run job.steps(batches) to the end")
            position.end_interval()
            self._save_if_due()

    def steps(
        self, batches: Batches | None = None, *, examples: int = 0, **units: float
    ) -> Iterator[Any]:
        """Yield the batches of this interval that are not done yet, each for one optimizer step.

        Without batches, where the loop makes its data itself, yield the number of steps done before
        each; `examples` is then how many a step trains on, by which its speed is told, if given.
        `units` is how much of something else an example is, such as `tokens=1024`: its speed is
        told in these too. With `flops`, the floating-point operations of training on an example,
        the MFU is told, if the device's peak is known.

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
            if self._graphs:
                compilation.begin_step()
            yield batch
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

    def log(self, measured: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Log what a step measured, as `train_<name>`; `more` are tensors too, or numbers that the
        host knows, such as the learning rate. Nothing here waits for the device."""
        if measured:
            self._meter.add(measured)
        if more:
            self._meter.add(more)

    def log_epoch(self, metrics: Metrics) -> None:
        """Log an evaluation, under the optimizer step that it was made at."""
        at = self._at or self._now()
        self._logged = True
        training, rates = self._trained.pop(at["step"], ({}, {}))
        values = numbers(metrics)
        check_ranges(values, self._folder.metrics)
        self._report.show(at, {**training, **values}, rates)
        self._measured |= training.keys() | values.keys()
        times = {"epoch": at["epoch"], "elapsed_seconds": self._watch.elapsed, **rates}
        self._folder.journal.metrics(at["step"], {**values, **times}, of=self._length.total)
        self._folder.journal.flush()

    def keep_best(self, metrics: Metrics, **models: nn.Module) -> None:
        """Keep the weights of these models in best.pt, with the metrics that they came to."""
        content = {
            "schema": 1,
            "settings": identity(self._folder.settings),
            "spec": self._spec,
            **(self._at or self._now()),
            "metrics": numbers(metrics),
            "models": {name: checkpoints.weights(model) for name, model in models.items()},
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

    def in_background(
        self, function: Callable[[nn.Module], Any], model: nn.Module, at_once: int = 1
    ) -> Iterator[tuple[Any, nn.Module]]:
        """Have `function(copy of the model)` called in a thread while training goes on.

        Yields (result, copy) of the calls that are due: each `at_once` intervals later, as many
        threads as there are, the last ones after the last interval. `log_epoch` and `keep_best`
        then go by the step of the call.
        """
        total = self._length.total
        last = total is not None and self._position.step >= total
        results = self._background.results(function, model, self._now(), last, at_once)
        for at, result, copy in results:
            self._at = at
            try:
                yield result, copy
            finally:  # also after a `break`
                self._at = None

    @property
    def best(self) -> dict[str, Any]:
        """The content of best.pt; empty if nothing has been kept."""
        return self._state.best if self._state else {}

    @property
    def step(self) -> int:
        """Optimizer steps that are done."""
        return self._position.step

    @property
    def epoch(self) -> int:
        """Completed passes over the training data; 0 for a stream."""
        return int(self._position.epoch)

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
        return span.steps(self._length.steps_per_epoch or None)

    def end_training(self) -> None:
        """Save the end of training, once; from then on a signal ends the job at once."""
        if self._state is None:
            return
        if not self._position.over:
            self._position.over = True
            self._background.close()
            if self._watcher:
                self._watcher.close()
            self._meter.close(self._position.step)
            self._report.close()
            self._state.save()
        self._state.finish()
        early = self._position.evaluating or self._position.step < (self._length.total or 0)
        per_epoch = self._length.steps_per_epoch or 0
        self._beginning.note_end(Trained(self._position.step, per_epoch, early))
        self._folder.interruption.release()

    def stop(self, save: bool) -> None:
        """End early, with a checkpoint if `save`."""
        if self._state is None or self._position.over:
            return
        if self._open_stream:
            self._report.close()
        if save:
            self._save()
        self._state.close()

    def _new_meter(self) -> TrainMeter:
        folder = self._folder
        return TrainMeter(folder.journal, self.device, folder.metrics, self._graphs)

    def _new_state(self) -> TrainingState:
        folder = self._folder
        return TrainingState(folder.path, folder.journal, folder.runtime.checkpoint_minutes)

    def _first_state(self) -> dict[str, Any]:
        """What a job without a checkpoint continues from; empty if it starts anew."""
        return self._beginning.state()

    @cached_property
    def _report(self) -> Report:
        return Report(self._position, self._folder.runtime.quiet)

    @property
    def _saved_state(self) -> TrainingState:
        if self._state is None:
            raise JobError("call job.resume(…) first, with everything that has a state")
        return self._state

    def _now(self) -> dict[str, Any]:
        return {"step": self._position.step, "epoch": self._position.epoch}

    def _stream(self, batches: Batches | None, examples: int) -> Iterator[tuple[Any, int]]:
        """The batches from here on, without end: the same iterator for all intervals."""
        if self._open_stream is None:
            self._streamed = batches
            self._length.set_epoch(None if batches is None else batches.steps_per_epoch)
            self._meter.choose_spacing(self._length.total)
            stream: Iterator[tuple[Any, int]]
            if batches is None:
                stream = ((step, examples) for step in count(self.step))
            else:
                stream = self._watch.waiting(batches.endless(*self._position.place(), self._place))
            self._open_stream = self._watcher.steps(stream, batches) if self._watcher else stream
        if batches is not self._streamed:
            raise JobError("job.steps(batches): a job can train on one set of batches only")
        return self._open_stream

    def _end_steps(self) -> None:
        """The steps of an interval are done: what comes now is its evaluation."""
        self._meter.flush()  # waits for the device, once
        if self._watcher:
            self._watcher.end_steps()
        if not self._position.evaluating:
            self._watch.end_steps()
        self._trained[self.step] = self._meter.since_last(), self._watch.rates
        self._position.evaluating, self._logged = True, False
        # A job that is stopped while it evaluates begins its evaluation again, from here.
        self._before_evaluation = self._random.state_dict()

    def _check_evaluation(self) -> None:
        """Let a signal end an evaluation, but not once its results are in use."""
        if not self._logged:
            self._folder.interruption.check()

    def _pause_if_due(self) -> None:
        pause, position = self._folder.runtime.pause_after, self._position
        if pause is None or self._length.steps_per_epoch is None or position.evaluating:
            return
        if position.step >= self.span(pause):
            raise Paused(f"after {position.step} steps, as --pause-after asked")

    def _save_if_due(self) -> None:
        self._folder.interruption.check()
        if self._saved_state.due:
            self._save()

    def _save(self) -> None:
        evaluating = self._position.evaluating
        self._saved_state.save({"job.random": self._before_evaluation} if evaluating else None)
