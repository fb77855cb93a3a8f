"""The job as run.py sees it: everything around a training loop that stays in view."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import deepcopy
from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property, lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from labjobs import devices, files, layout, machine
from labjobs.data import batches as loaders
from labjobs.data import trees
from labjobs.data.batches import Batches
from labjobs.data.order import Collate
from labjobs.data.streams import Place
from labjobs.devices import GlobalStreams, Precision
from labjobs.distributed.ranks import ALONE
from labjobs.errors import JobError
from labjobs.job import attempts
from labjobs.job import runtime as purpose
from labjobs.job.folder import JobFolder
from labjobs.job.identity import identity
from labjobs.job.terminal import Paused
from labjobs.settings import Span
from labjobs.training import checkpoints, compilation, outputs, ranges
from labjobs.training.forward import Forward, Prepared
from labjobs.training.init_from import Beginning, Factor, Trained
from labjobs.training.meters import TrainMeter, check_ranges, numbers, warn_of_unmeasured
from labjobs.training.outputs import Artifacts, Outputs, Value
from labjobs.training.probes import NoiseScale, Pace
from labjobs.training.progress import Length, Part, Position, Report, Stopwatch
from labjobs.training.ranges import Ranges
from labjobs.training.state import TrainingState

# Functions of a model's weights, such as an evaluation, that run while training goes on.
#
# A thread calls the function with a copy of the weights, on a GPU on a stream of its own. Results
# come in the order in which they were asked for and always as many intervals later as there are
# threads, so that what is made of them does not depend on which was faster; after the last interval
# all of them come.
#
# What runs in the background must not draw from the global random numbers, which training draws
# from. torch.compile sets them back to where they were when it began to compile, so training waits
# for what may compile: the first call with each copy.

LOOK = 0.1
"""Seconds after which a wait for a result checks for a signal."""


@dataclass
class _Weights:
    """A copy of a model's weights, and the stream that it is used on."""

    model: nn.Module
    stream: devices.SideStream


@dataclass
class _Task:
    """A function's call in the background, for the weights of a step."""

    at: dict[str, Any]
    weights: "_Weights"
    result: Future[Any]


class Background:
    """The calls of one function in threads, each on a copy of a model's weights."""

    def __init__(self, device: torch.device, check: Callable[[], None]) -> None:
        self._device, self._check = device, check
        self.compiles = False
        """Whether calls may compile."""
        self._threads: ThreadPoolExecutor | None = None
        self._pending: deque[_Task] = deque()
        self._restored: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._spare: list[_Weights] = []
        self._begun = -1

    def results(
        self,
        function: Callable[[nn.Module], Any],
        model: nn.Module,
        at: dict[str, Any],
        last: bool,
        at_once: int,
    ) -> Iterator[tuple[dict[str, Any], Any, nn.Module]]:
        """Yield what is due, as (when it was asked for, result, weights), and begin the next call.

        `at` has the `step` at which it is asked for. The weights change after they were yielded.
        Raises what the function raised.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                at_once, "background", devices.in_thread, initargs=(self._device,)
            )
        for asked, weights in self._restored:
            self._submit(function, model, weights, asked)
        self._restored = []
        new = at["step"] > self._begun
        yield from self._finished(leave=at_once - 1 if new else at_once)
        if new:
            self._begun = at["step"]
            self._submit(function, model, model.state_dict(), at)
        if last:
            yield from self._finished(leave=0)

    def state_dict(self) -> dict[str, Any]:
        """Return the weights whose results are still missing."""
        pending = [(task.at, task.weights.model.state_dict()) for task in self._pending]
        return {"begun": self._begun, "pending": pending or self._restored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the function called for these weights again, when it is known."""
        self._begun, self._restored = state["begun"], state["pending"]

    def close(self) -> None:
        """Wait for the running calls; those that have not begun are dropped."""
        if self._threads:
            self._threads.shutdown(cancel_futures=True)
        self._pending.clear()

    def _finished(self, leave: int) -> Iterator[tuple[dict[str, Any], Any, nn.Module]]:
        while len(self._pending) > leave:
            task = self._pending[0]
            result = self._wait(task.result)
            self._pending.popleft()
            yield task.at, result, task.weights.model
            self._spare.append(task.weights)

    def _wait(self, result: Future[Any]) -> Any:
        self._check()
        while wait([result], LOOK).not_done:
            self._check()
        return result.result()

    def _submit(
        self,
        function: Callable[[nn.Module], Any],
        model: nn.Module,
        weights: dict[str, Any],
        at: dict[str, Any],
    ) -> None:
        assert self._threads
        first = not self._spare
        if first:
            self._spare.append(_Weights(deepcopy(model), devices.SideStream(self._device)))
        copy = self._spare.pop()
        copy.model.load_state_dict(weights)
        copy.stream.wait_stream()
        result = self._threads.submit(_call, function, copy)
        self._pending.append(_Task(at, copy, result))
        if first and self.compiles:
            self._wait(result)


def _call(function: Callable[[nn.Module], Any], weights: _Weights) -> Any:
    with weights.stream:
        result = function(weights.model)
    weights.stream.synchronize()  # the result may be tensors, and is read on another stream
    return result


# A training loop that can be stopped and continued anywhere, while its body stays the student's.
#
# Where it is, is in position.py and length.py; checkpoints are in state.py, numbers in meters.py
# and stopwatch.py, what runs in the background in background.py.

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


# A batch in parts, whose gradients add up to the gradient of the whole batch.

Count = Callable[[Any], Tensor]
"""From a batch to the number of its elements (), on the batch's device."""


def parts(
    batch: Any, count: int, elements: Count | None = None, exactly: bool = False
) -> Iterator[tuple[Any, Tensor]]:
    """Yield up to `count` parts of a batch, about equal, each with its fraction () of the batch.

    The fraction is that of the examples; with `elements`, that of the elements that this counts,
    such as the tokens that are not padding. With
    `exactly`, there are `count` parts. No part is a single example, unless the batch is:
    batch norm cannot take one. Raises JobError for a batch that cannot be split into examples.
    """
    size = trees.rows(batch)
    if not size:
        raise JobError(
            "--accumulate: this batch cannot be split into parts, since it is not made of tensors "
            "that have a row for each example"
        )
    split = trees.split(batch, _sizes(size, count) if exactly else _examples_in_part(size, count))
    if elements:
        whole = elements(batch)
        yield from ((part, elements(part) / whole) for part in split)
    else:
        for part in split:
            first = trees.leaves(part)[0]
            yield part, _constant(len(first) / size, first.device)


def _examples_in_part(size: int, count: int) -> int:
    """Examples in all parts but the last."""
    each = max(2, -(-size // count))
    while each < size and size % each == 1:
        each += 1
    return each


def _sizes(size: int, count: int) -> list[int]:
    """Examples in each of so many parts."""
    each, more = divmod(size, count)
    return [each + (number < more) for number in range(count)]


@lru_cache
def _constant(value: float, device: torch.device) -> Tensor:
    return torch.full((), value, device=device)  # filled there: a copy would wait for the device


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
            from labjobs.training.profile import Profile  # slow to import

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
            self._watch.peak = ranges.peak(devices.describe(self.device), chosen.name)
        known = not self._length.in_epochs or self._length.steps_per_epoch is not None
        steps = self._length.total if known else None
        choice = self.runtime.compile
        wanted = compilation.wanted(choice, self.device, steps)
        self._background.compiles |= wanted
        return Prepared(forward, chosen, choice if wanted else "off")

    def parts(self, batch: Any, elements: Count | None = None) -> Iterator[tuple[Any, Tensor]]:
        """Yield the batch in --accumulate parts, each with its fraction () of the batch, for
        `loss.backward(fraction)`: the gradients add up to that of the whole batch's mean.

        `elements` counts what the loss is a mean over, if that is not examples.
        """
        count = getattr(self.settings, "accumulate", 1)
        if count == 1:
            return iter(((batch, self._whole),))
        made = parts(batch, count, elements)
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
        files.write_json(self._folder.path / layout.SPEC, self._spec)
        self._folder.journal.files([layout.SPEC])

    def save_split(self, **parts: Dataset[Any] | None) -> None:
        """Keep which examples each part of the data has, by name, such as `train`."""
        self._folder.journal.files(outputs.save_split(self._folder.path, parts))

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
        process, used = machine.own()
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
