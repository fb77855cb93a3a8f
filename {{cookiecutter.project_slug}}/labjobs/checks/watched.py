"""The job of a trial that is looked at while it runs."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn
from torch.utils.data import Dataset

from labjobs.checks import places
from labjobs.checks.answers import Answer, Finding
from labjobs.checks.carried import Carried, Change
from labjobs.checks.digests import digest
from labjobs.checks.draws import Draws
from labjobs.checks.evaluation import Evaluation
from labjobs.checks.evaluation import Seen as SeenEvaluation
from labjobs.checks.gradients import Gradients
from labjobs.checks.measurements import Measurements
from labjobs.checks.operations import weights
from labjobs.checks.short import ShortJob
from labjobs.checks.waits import Waits
from labjobs.data import trees
from labjobs.data.batches import Batches
from labjobs.data.order import Collate, fetch, whole
from labjobs.data.streams import is_stream
from labjobs.job.folder import JobFolder
from labjobs.sources import Place
from labjobs.stateful import Part
from labjobs.training.parts import Count

S = TypeVar("S")

REREAD = 8
"""Examples of a dataset that are read twice."""

UNSTABLE = "an example is not the same when it is read again; an augmentation may be random"

NO_TRAINING = Answer(unknown="since job.resume(…) is not called")


class Seen(NamedTuple):
    """What was seen of a job."""

    waits: Answer
    gradients: Answer
    measurements: Answer
    evaluations: tuple[SeenEvaluation, ...]
    in_background: bool
    unstable: tuple[Finding, ...]
    """Datasets whose examples are not the same when they are read again."""
    forgotten: Answer
    changes: tuple[Change, ...]
    unpredictable: tuple[Place, ...]
    clocks: tuple[Place, ...]


class Watched(ShortJob[S]):
    """A job that is looked at."""

    def __init__(self, folder: JobFolder[S]) -> None:
        super().__init__(folder)
        self._named: Mapping[str, Part] = {}
        self._draws = Draws(self._drawn)
        self._waits = Waits(self.device)
        self._measurements = Measurements()
        self._gradients: Gradients | None = None
        self._carried: Carried | None = None
        self._evaluation: Evaluation | None = None
        self._evaluations: list[SeenEvaluation] = []
        self._in_background = False
        self._datasets: list[Dataset[Any]] = []
        self._unstable: dict[Finding, None] = {}
        self._examples = 0

    def seen(self) -> Seen:
        """Return what was seen."""
        return Seen(
            waits=self._waits.answer() if self._gradients else NO_TRAINING,
            gradients=self._gradients.answer() if self._gradients else NO_TRAINING,
            measurements=self._measurements.answer(),
            evaluations=tuple(self._evaluations),
            in_background=self._in_background,
            unstable=tuple(self._unstable),
            forgotten=self._carried.forgotten() if self._carried else NO_TRAINING,
            changes=self._carried.changes() if self._carried else (),
            unpredictable=tuple(self._draws.unpredictable),
            clocks=tuple(self._draws.clocks),
        )

    def start(self) -> None:
        """Begin to look at the student's code."""
        super().start()
        self._draws.__enter__()

    def close(self) -> None:
        """Look no more."""
        self._draws.__exit__()
        super().close()

    def batches(  # type: ignore[override]
        self,
        part: Dataset[Any] | None,
        batch_size: int,
        shuffle: bool = False,
        collate: Collate | None = None,
    ) -> Batches | None:
        """Read some examples twice."""
        if part is not None and not is_stream(part):
            self._read_twice(*whole(part))
        return super().batches(part, batch_size, shuffle, collate)

    def resume(self, **training: Part) -> None:
        """Note the parts that the student passes to job.resume()."""
        super().resume(**training)
        self._named = training
        self._waits.mark(weights(training.values()))
        self._gradients = Gradients(training)

    def epochs(self) -> Iterator[int]:
        """Note the variables that exist when the loop begins."""
        self._carried = Carried(self._named, self._datasets)
        yield from super().epochs()

    def steps(
        self, batches: Batches | None = None, *, examples: int = 0, **units: float
    ) -> Iterator[Any]:
        """Look at what is done with each batch."""
        self._end_evaluation()
        for batch in super().steps(batches, examples=examples, **units):
            self._examples = examples or trees.rows(batch) or 0
            with self._waits.step(batch), self._measurements.step():
                yield batch

    def parts(self, batch: Any, elements: Count | None = None) -> Iterator[tuple[Any, Tensor]]:
        """Record how many examples a part has."""
        for part, fraction in super().parts(batch, elements):
            self._examples = trees.rows(part) or 0
            yield part, fraction

    def log(self, measured: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Look at what is measured."""
        self._measurements.log({**(measured or {}), **more}, self._examples)
        super().log(measured, **more)

    def log_epoch(self, metrics: Mapping[str, float]) -> None:
        """End an evaluation."""
        self._end_evaluation()
        super().log_epoch(metrics)

    def load_best(self, **models: nn.Module) -> None:
        """Begin the evaluation on test data."""
        super().load_best(**models)
        self._begin_evaluation()

    def finish(self, results: Mapping[str, float]) -> dict[str, float]:
        """End the evaluation on test data."""
        self._end_evaluation()
        return super().finish(results)

    def in_background(
        self, function: Callable[[nn.Module], Any], model: nn.Module, at_once: int = 1
    ) -> Iterator[tuple[Any, nn.Module]]:
        """Ignore evaluations in other threads."""
        self._end_evaluation()
        self._in_background = True
        yield from super().in_background(function, model, at_once)

    def _end_steps(self) -> None:
        super()._end_steps()
        if self._carried:
            self._carried.look()
        self._begin_evaluation()

    def _read_twice(self, dataset: Dataset[Any], indices: Tensor) -> None:
        self._datasets.append(dataset)
        once, again = (digest(fetch(dataset, indices[:REREAD], list)) for _ in range(2))
        if once != again:
            place = places.of_method(type(dataset), "__getitem__") or places.here()
            self._unstable[Finding(place, UNSTABLE)] = None  # one line for all parts

    def _begin_evaluation(self) -> None:
        self._end_evaluation()
        self._evaluation = Evaluation(self._named, self._random, self.device)

    def _end_evaluation(self) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation and (seen := evaluation.end()):
            self._evaluations.append(seen)

    def _check_evaluation(self) -> None:
        super()._check_evaluation()
        if self._evaluation and not self._in_background:
            self._evaluation.read()

    def _drawn(self) -> None:
        if self._evaluation:
            self._evaluation.draw()
