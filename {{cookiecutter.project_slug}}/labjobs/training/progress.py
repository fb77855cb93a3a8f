"""Where a training loop is: its length, its position, its speed, and what it says about them."""

import time
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from labjobs.data.order import Order
from labjobs.errors import JobError, SettingsError
from labjobs.job.terminal import as_line, duration, log, progress_bar
from labjobs.settings import Span


class Part(Protocol):
    """A part of the training loop with a state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values and tensors."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Restore a state."""


class Stateful:
    """A part whose state is the attributes named in `kept`."""

    kept: ClassVar[tuple[str, ...]]

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes' values."""
        return {name: getattr(self, name) for name in self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the attributes; a tensor is filled in place, so it stays on its device."""
        for name in self.kept:
            mine, value = getattr(self, name), state[name]
            setattr(self, name, mine.copy_(value) if hasattr(mine, "copy_") else value)


WARM_UP = 10  # steps before the timed ones: they compile code, choose kernels and fill caches
TIMED = 20  # steps whose time tells how many steps fit into --minutes
A_MINUTE = 600  # steps that it counts as before that


class Length(Stateful):
    """The length of a job by its settings' `epochs`, or `steps` or `minutes` if one is above 0.

    Minutes become a number of steps, measured over TIMED steps and kept in the checkpoint, so that
    a job that is killed and continued takes as many steps as one that is not. `steps_per_epoch` is
    None until the training batches are known, and 0 if there are no epochs, as in a stream, or if
    they differ in length; it is kept too, since a job that continues may ask for it before its
    first step.
    """

    kept = ("_measured", "steps_per_epoch")

    def __init__(self, settings: Any) -> None:
        self.epochs = int(getattr(settings, "epochs", 1))
        self.minutes = float(getattr(settings, "minutes", 0))
        self._steps = int(getattr(settings, "steps", 0))
        self.in_epochs = not (self._steps or self.minutes)
        self._measured = 0  # steps that the minutes amount to
        self._taken = 0  # steps that this process has taken
        self._began = self._timed_from = 0.0
        self.steps_per_epoch: int | None = None
        self._order: Order | None = None
        self._ends = [0]  # the steps by the end of each epoch so far, if they differ in length
        self.clock: Callable[[], float] = time.monotonic  # the same for all processes of a job

    def of(self, settings: Any) -> "Length":
        """Return the length that a job with other settings has on the same data."""
        other = Length(settings)
        other.steps_per_epoch, other._order = self.steps_per_epoch, self._order
        return other

    def set_epoch(self, order: Order | None) -> None:
        """Record which batches an epoch has, None for a stream.

        Raises SettingsError for a length in epochs of a stream.
        """
        self._order = order if order is not None and order.chosen else None
        self.steps_per_epoch = len(order) if order is not None and not self._order else 0
        if self.in_epochs and order is None:
            raise SettingsError("--epochs: this data has no epochs; use --steps or --minutes")

    def steps_in(self, epochs: float, of: str) -> int:
        """Return how many steps so many epochs are. Raises SettingsError for a stream, which says
        what they are `of`."""
        if self._order is not None:
            whole = int(epochs)
            begin, end = self._end(whole), self._end(whole + 1)
            return round(begin + (epochs - whole) * (end - begin))
        if not self.steps_per_epoch:
            raise SettingsError(f"{of}: this data has no epochs; give a number of steps")
        return round(epochs * self.steps_per_epoch)

    def place(self, step: int) -> tuple[int, int]:
        """Return the next step's epoch, counted from 1, and its batch in there, counted from 0."""
        if self._order is not None:  # to ask for its truth would be to ask for its batches
            while self._ends[-1] < step:
                self._end(len(self._ends))
            epoch = bisect(self._ends, step)
            return epoch, step - self._ends[epoch - 1]
        per_epoch = self.steps_per_epoch
        return (step // per_epoch + 1, step % per_epoch) if per_epoch else (1, step)

    def epochs_in(self, step: int) -> float:
        """Return how many epochs so many steps are; 0 for a stream."""
        if self._order is not None:
            epoch, more = self.place(step)
            return epoch - 1 + (more / (self._ends[epoch] - self._ends[epoch - 1]) if more else 0)
        return step / self.steps_per_epoch if self.steps_per_epoch else 0.0

    def _end(self, epoch: int) -> int:
        """The steps by the end of an epoch, of those that differ in length."""
        assert self._order is not None
        while len(self._ends) <= epoch:
            self._ends.append(self._ends[-1] + len(self._order.sizes(len(self._ends))))
        return self._ends[epoch]

    @property
    def total(self) -> int | None:
        """Steps of the whole job; None while its minutes are not measured yet.

        Raises JobError before the length of an epoch is known, if the job's is in epochs.
        """
        if self.minutes:
            return self._measured or None
        if self._steps:
            return self._steps
        if self.steps_per_epoch is None:
            raise JobError(
                "the number of steps is not known before job.batches(…, shuffle=True) is called"
            )
        return self.steps_in(self.epochs, "--epochs")

    @property
    def expected(self) -> int | None:
        """Steps of the whole job, by its settings and its data alone; None before the length of an
        epoch is known."""
        if self.minutes:
            return round(A_MINUTE * self.minutes)
        return None if self.in_epochs and self.steps_per_epoch is None else self.total

    def fraction(self, step: int) -> float:
        """Return the fraction of the job that is done after so many steps; of its time while its
        minutes are not measured."""
        if total := self.total:
            return step / total
        return min(1.0, self._elapsed / (60 * self.minutes)) if self._began else 0.0

    def measure(self, step: int) -> None:
        """Record that a step was taken, after the device has done it."""
        self._taken += 1
        if self._taken == WARM_UP:
            self._timed_from = self.clock()
        elif self._taken == WARM_UP + TIMED:
            each = (self.clock() - self._timed_from) / TIMED
            self._measured = step + max(0, round((60 * self.minutes - self._elapsed) / each))

    @property
    def measuring(self) -> bool:
        """Whether the next step is to be measured; notes when the first one began."""
        if self._measured or not self.minutes:
            return False
        self._began = self._began or self.clock()
        return True

    @property
    def _elapsed(self) -> float:
        return self.clock() - self._began


class Position(Stateful):
    """The position of a loop: `step` steps are done, in `interval` whole evaluation intervals.

    `evaluating`: the steps of this interval are done, its evaluation is not. `over`: the loop has
    ended, by its length or by the student's `break`.
    """

    kept = ("step", "interval", "evaluating", "over")

    def __init__(self, settings: Any, length: Length) -> None:
        self.length = length
        every = Span(getattr(settings, "eval_every", "1e"))
        self._every, self._in_epochs = every.number, every.endswith("e")
        self.step = self.interval = 0
        self.evaluating = self.over = False

    @property
    def interval_end(self) -> int:
        """The step at whose end the model is evaluated next, or at which the job ends."""
        end, total = self._next_evaluation(), self.length.total
        return end if total is None else min(end, total)

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to train or to evaluate."""
        if self.over or self.evaluating or not self.step:
            return self.over
        total = self.length.total
        return total is not None and self.step >= total

    def end_interval(self) -> None:
        """An interval and its evaluation are over."""
        self.interval += 1
        self.evaluating = False
        while self._next_evaluation() <= self.step:  # spans shorter than a step
            self.interval += 1

    def is_evaluated(self, step: int) -> bool:
        """Whether the model is evaluated after a step, whatever the job's length is."""
        while (end := self._next_evaluation()) < step:
            self.interval += 1
        return end == step

    def _next_evaluation(self) -> int:
        end = round((self.interval + 1) * self._every, 9)  # 3 * 0.1 is 0.3
        if self._in_epochs:
            return max(1, self.length.steps_in(end, "--eval-every"))
        return max(1, round(end))


T = TypeVar("T")


class Stopwatch(Stateful):
    """Times of training and evaluation, over all attempts at a job, in seconds."""

    kept = ("_seconds", "_trained", "_waited", "_examples", "rates")

    def __init__(self) -> None:
        self._seconds = self._trained = self._waited = 0.0
        self._examples = 0
        self._noted = time.monotonic()
        self._units: dict[str, float] = {}
        self.peak: float | None = None  # operations a second that the device can do, if known
        self.rates: dict[str, float] = {}
        """Of the last interval: training examples per second, what they consist of per second, the
        MFU if it is known, and the fraction of its training spent waiting for data."""

    def start(self, units: Mapping[str, float]) -> None:
        """Training begins or goes on; time before that does not count. `units` is how much of
        something else an example is, by name, such as its `flops`; 0 if it is not known."""
        self._noted = time.monotonic()
        self._units = {name: each for name, each in units.items() if each}

    def waiting(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield batches without end, with the time spent waiting for each of them counted."""
        while True:
            asked = time.monotonic()
            batch = next(batches)
            self._waited += time.monotonic() - asked
            yield batch

    def trained(self, examples: int) -> None:
        """Record that a step with this many examples was taken."""
        self._examples += examples

    def end_steps(self) -> None:
        """The steps of an interval are over and the device has done them."""
        self._lap()
        if self._trained and self._examples:
            rate = self._examples / self._trained
            self.rates = {
                "examples_per_second": rate,
                **{f"{name}_per_second": rate * each for name, each in self._units.items()},
                "data_wait_fraction": min(1.0, self._waited / self._trained),
            }
            speed = self.rates.pop("flops_per_second", 0.0)
            if speed and self.peak:
                self.rates["mfu"] = speed / self.peak
        self._trained = self._waited = 0.0
        self._examples = 0

    @property
    def elapsed(self) -> float:
        """Seconds of training and evaluation so far; also asked for between two steps."""
        self._lap()
        return self._seconds

    def state_dict(self) -> dict[str, Any]:
        """Return the times so far; called between two steps or in an evaluation."""
        self._lap()
        return super().state_dict()

    def _lap(self) -> None:
        """Count the time since the last call, which was training if steps were taken."""
        now = time.monotonic()
        self._seconds += now - self._noted
        self._trained += (now - self._noted) if self._examples else 0.0
        self._noted = now


class Report:
    """The progress of a job, from numbers that the host has: it never waits for the device."""

    def __init__(self, position: Position, quiet: bool) -> None:
        self._position = position
        self._steps = 0  # that this process has taken
        self._first = 0.0, 1.0  # when its first evaluation was over, and how much was done then
        self._bar = progress_bar(position.length.total, quiet, done=position.step)

    def step(self) -> None:
        """One optimizer step was queued."""
        self._bar.update()
        self._steps += 1

    def show(
        self, at: Mapping[str, Any], metrics: Mapping[str, float], rates: Mapping[str, float]
    ) -> None:
        """Log an evaluation in one line: where it was made, what came out, how fast it goes."""
        length = self._position.length
        if length.in_epochs:
            place = f"epoch {round(at['epoch'], 2):g}/{length.epochs}"
        else:
            place = f"step {at['step']}" + (f"/{length.total}" if length.total else "")
        parts = [as_line(metrics)] if metrics else []
        speeds = {name.removesuffix("_per_second"): rate for name, rate in rates.items()}
        parts += [f"{rate:,.0f} {unit}/s" for unit, rate in speeds.items() if unit not in rates]
        parts += [f"{rates['mfu']:.1%} MFU"] if "mfu" in rates else []
        if left := self._left():
            parts.append(f"{left} left")
        log.info("%s: %s", place, ", ".join(parts))

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()

    def _left(self) -> str:
        """The time left, with its evaluations: by what came after the first one of this process,
        since the first steps compile code and fill caches."""
        now, done = time.monotonic(), self._position.length.fraction(self._position.step)
        began, before = self._first
        if before < done < 1:
            return duration((now - began) / (done - before) * (1 - done))
        if before == 1 and self._steps >= WARM_UP:
            self._first = now, done
        return ""
