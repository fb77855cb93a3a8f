"""Trials of a job, each in a process of its own, so that none inherits anything from another.

The processes are forked, which costs no import of torch. What a trial prints goes into its folder.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from labjobs import attempt, layout
from labjobs.checks.facts import (
    STEPS,
    Fact,
    Kind,
    Moment,
    Recorded,
    ShortJob,
    difference,
    first_difference,
    measured,
)
from labjobs.checks.operations import FINE, Answer, Finding, some
from labjobs.checks.watching import Seen, SeenInEvaluation, Watched
from labjobs.errors import JobError, SettingsError, cause
from labjobs.job import terminal
from labjobs.job.folder import JobFolder
from labjobs.job.terminal import Stopped
from labjobs.settings import Metric, value_at_start
from labjobs.sources import Place, reached

S = TypeVar("S")
T = TypeVar("T")

FORK = multiprocessing.get_context("fork")

MOMENTS = (Moment(STEPS // 2, evaluating=True), Moment(STEPS - 3))
"""When a trial is interrupted: in its first evaluation, and between two steps after that."""

PLAIN = {
    "log_every": 1,
    "compile": "off",  # it takes half a minute
    "pause_after": None,
    "profile": 0,
    "quiet": True,
    "force": False,
    "continue_anyway": False,
}
"""The runtime flags of a trial that differ from the command's flags."""


class Failure(NamedTuple):
    """Why a trial ended early, and where in the student's code."""

    line: str
    trace: str
    of_settings: bool
    place: Place | None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial. `stops` are the moments at which it was interrupted."""

    facts: dict[Fact, str] = field(default_factory=dict)
    stops: tuple[Moment, ...] = ()
    seen: Seen | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    resumed_at: Place | None = None
    device: str = "cpu"
    failure: Failure | None = None


class Trials(Generic[S]):
    """The trials of a job, whose folders are in a temporary one."""

    def __init__(
        self,
        folder: JobFolder[S],
        main: attempt.Main,
        check: attempt.Check,
        temporary: Path,
    ) -> None:
        self._folder, self._main, self._check = folder, main, check
        self._temporary = temporary
        import_module("torch._dynamo")  # as an optimizer would: once, not in each process

    def whole(self) -> Outcome:
        """Run the job without interruptions."""
        return _in_process(partial(self._recorded, "whole", ()))

    def interrupted(self) -> Outcome:
        """Run the job, interrupt it at each of MOMENTS and continue it in a new process."""
        whole, left = Outcome(), list(MOMENTS)
        while True:
            part = _in_process(partial(self._recorded, "interrupted", left))
            whole = replace(part, facts=whole.facts | part.facts, stops=whole.stops + part.stops)
            if not part.stops:
                return whole
            del left[: left.index(part.stops[0]) + 1]

    def watched(self) -> Outcome:
        """Run the job and look at what it does."""
        return _in_process(self._watched)

    def _recorded(self, name: str, stops: Sequence[Moment]) -> Outcome:
        folder = self._folder_of(name)
        job = Recorded(folder, stops)
        failure = self._run(folder, job)
        facts = job.facts | measured(folder.path, folder.metrics) if not failure else job.facts
        return Outcome(
            facts,
            (job.stopped,) if job.stopped else (),
            spec=job.spec,
            resumed_at=job.resumed_at,
            device=job.device.type,
            failure=failure,
        )

    def _watched(self) -> Outcome:
        folder = self._folder_of("watched")
        job = Watched(folder)
        failure = self._run(folder, job)
        if failure:
            return Outcome(failure=failure)
        return Outcome(measured(folder.path, folder.metrics), seen=job.seen())

    def _folder_of(self, name: str) -> JobFolder[S]:
        """Make the folder of a trial, and write what the process prints into it."""
        root, mine = self._temporary / name, self._folder
        runtime = replace(mine.runtime, runs_root=root, **PLAIN)  # type: ignore[arg-type]
        folder = JobFolder(mine.settings, runtime, mine.metrics, mine.script)
        folder.make()
        folder.take()
        with (root / layout.OUTPUT).open("ab") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        return folder

    def _run(self, folder: JobFolder[S], job: ShortJob[S]) -> Failure | None:
        """Do a job as an attempt does; returns why it failed, if it did."""
        try:
            self._check(job)
            folder.open()
            job.start()
            job.finish(self._main(job))
            folder.journal.flush()
        except Stopped:
            job.stop(save=True)
        except Exception as error:
            job.stop(save=False)
            return _failure(error)
        finally:
            job.close()
        return None


def _failure(error: Exception) -> Failure:
    of_settings = isinstance(error, SettingsError)
    trace = "" if isinstance(error, SettingsError | JobError) else traceback.format_exc()
    return Failure(cause(error), trace, of_settings, reached(error))


def _in_process(function: Callable[[], T]) -> T:
    """Return what a function returns in a process that is forked for it."""
    receiving, sending = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_send, args=(function, sending))
    process.start()
    sending.close()
    try:
        returned: T = receiving.recv()
    except EOFError:
        process.join()
        raise JobError(f"a trial ended without a result, with status {process.exitcode}") from None
    except BaseException:  # a signal, perhaps only to this process
        process.terminate()
        raise
    finally:
        process.join()
    return returned


def _send(function: Callable[[], Any], sending: Connection) -> None:
    terminal.handle_signals(signal.SIG_DFL)
    sending.send(function())


# What the trials of a job have shown.


@dataclass(frozen=True)
class Evidence:
    """The outcomes of the trials of a job."""

    job: JobFolder[Any]
    whole: Outcome
    interrupted: Outcome
    watched: Outcome

    @property
    def bits_may_differ(self) -> bool:
        """Whether the job runs on a device that may give different bits each time."""
        return self.whole.device != "cpu" and not self.job.runtime.deterministic

    @property
    def unseen(self) -> str:
        """Why the job could not be looked at; empty if it was."""
        failure = self.watched.failure
        return f"since looking at the job failed: {failure.line}" if failure else ""


# Does evaluation leave training alone, and does it give the same result when it is repeated?


def evaluation(evidence: Evidence) -> Answer:
    """Answer whether evaluation leaves training alone and gives the same result again."""
    seen = evidence.watched.seen
    if not seen:
        return Answer(unknown=evidence.unseen)
    if seen.in_background:
        return Answer(unknown="since it runs in the background")
    if not seen.evaluations:
        return Answer(unknown="since no validation or test batches are read")
    changes = dict.fromkeys(_changes(each) for each in seen.evaluations if each.changed)
    return Answer((*changes, *_random(seen.evaluations, evidence)))


def _changes(seen: SeenInEvaluation) -> Finding:
    place = seen.changes.outer if seen.changes else seen.reads
    return Finding(
        place, f"evaluation changes {some(seen.changed)}; is the model in training mode?"
    )


def _random(evaluations: Sequence[SeenInEvaluation], evidence: Evidence) -> Sequence[Finding]:
    """What is random in evaluation, in at most one line."""
    metrics = evidence.watched.facts
    whole = {fact: value for fact, value in evidence.whole.facts.items() if fact in metrics}
    differs = first_difference(whole, metrics)
    lines = next((each.draws for each in evaluations if each.draws), None)
    place = lines.outer if lines else evaluations[0].reads
    within = f": random numbers are drawn{lines.within}" if lines else ""
    if differs and differs.kind != Kind.TRAINING:
        return [
            Finding(place, f"{differs.name} is not the same when it is evaluated again{within}")
        ]
    if any(each.drew for each in evaluations):
        return [Finding(place, f"evaluation changes the random numbers of training{within}")]
    return []


# Does a job have the same bits when it is run again, and when it is interrupted and continued?
#
# An interrupted trial is a second one up to its first interruption.

ON_GPU = "since a GPU gives the same bits only with --deterministic"


def same_bits(evidence: Evidence) -> Answer:
    """Answer whether the same seed gives the same bits again."""
    seen, whole, again = evidence.watched.seen, evidence.whole, evidence.interrupted
    unstable = seen.unstable if seen else ()
    found = _before_interruption(evidence)
    if found is None or unstable:
        return Answer(unstable)
    if evidence.bits_may_differ:
        return Answer(unknown=ON_GPU)
    said = f"run again, {difference(found, whole.facts, again.facts)}"
    if seen and seen.unpredictable:
        finding = Finding(seen.unpredictable[0], f"{said}: random numbers without a seed")
    elif seen and seen.clocks:
        finding = Finding(seen.clocks[0], f"{said}: a clock is read")
    else:
        finding = Finding(whole.resumed_at, said)
    return Answer((finding,))


def exact_resume(evidence: Evidence) -> Answer:
    """Answer whether a job that is interrupted and continued ends with the same bits."""
    whole, parts = evidence.whole, evidence.interrupted
    if parts.failure:
        line = f"interrupted and continued, it fails: {parts.failure.line}"
        return Answer((Finding(parts.failure.place or whole.resumed_at, line),))
    if not parts.stops:
        return Answer(unknown="since it trains in no job.steps(…)")
    if _before_interruption(evidence):
        return Answer(unknown="since the same seed does not give the same bits")
    found = first_difference(whole.facts, parts.facts)
    if found is None:
        return FINE
    if evidence.bits_may_differ:
        return Answer(unknown=ON_GPU)
    said = f"continued, {difference(found, whole.facts, parts.facts)}"
    place, why = _culprit(evidence)
    return Answer((Finding(place, f"{said}{_states(evidence)}{why}"),))


def _before_interruption(evidence: Evidence) -> Fact | None:
    """The first fact that differs before the trial was interrupted."""
    whole, again = evidence.whole, evidence.interrupted
    found = first_difference(whole.facts, again.facts)
    if found is None or again.failure:
        return None
    if not again.stops:
        return found
    first = again.stops[0]
    return found if (found.step, found.kind) <= (first.step, Kind.TRAINING) else None


def _states(evidence: Evidence) -> str:
    """Which parts are not the same at the end, in words."""
    one, other = evidence.whole.facts, evidence.interrupted.facts
    differ = [fact.name for fact in one if fact.kind == Kind.STATE and one[fact] != other.get(fact)]
    return f" (not the same at the end: {', '.join(differ)})" if differ else ""


def _culprit(evidence: Evidence) -> tuple[Place | None, str]:
    """The line that is the likely cause, and why."""
    seen = evidence.watched.seen
    if seen and seen.unstable:
        place, text = seen.unstable[0]
        return place, f": {text}"
    if seen and seen.changes:
        change = seen.changes[0]
        return change.place, f": {change.text}"
    return evidence.whole.resumed_at, ": something is missing in job.resume(…)"


# Does a metric have the value at the start that METRICS declares?

SLACK = 0.5
"""The allowed relative difference, since only a few examples are measured, with weights of any
scale."""


def loss_at_start(evidence: Evidence) -> Answer:
    """Answer whether the first step measures what is declared."""
    declared: dict[str, Metric] = dict(evidence.job.metrics)
    wanted = {name: metric for name, metric in declared.items() if metric.at_start is not None}
    if not wanted:
        return Answer(unknown="since no metric in METRICS has at_start=")
    if getattr(evidence.job.settings, "init_from", None):
        return Answer(unknown="since it starts from the weights of another job")
    found = []
    for name, metric in wanted.items():
        measured = evidence.whole.facts.get(Fact(1, Kind.TRAINING, f"train_{name}"))
        expected = value_at_start(metric, evidence.whole.spec)
        if measured is None or expected is None:
            missing = f"no {name} in the first step" if measured is None else "no such entry"
            return Answer(unknown=f"since there is {missing} ({metric.at_start})")
        if abs(float(measured) - expected) > SLACK * abs(expected):
            text = f"train_{name} begins at {float(measured):.4g}, and not at about {expected:.4g}"
            found.append(Finding(evidence.whole.resumed_at, f"{text} ({metric.at_start})"))
    return Answer(tuple(found))


# The guarantees, each with the function that tests it.

Guarantee = Callable[[Evidence], Answer]


def seen(answer: Callable[[Seen], Answer]) -> Guarantee:
    """Return a guarantee whose answer depends only on what was seen of a job."""

    def guarantee(evidence: Evidence) -> Answer:
        found = evidence.watched.seen
        return answer(found) if found else Answer(unknown=evidence.unseen)

    return guarantee


GUARANTEES: dict[str, Guarantee] = {
    "exact resume": exact_resume,
    "the same bits twice": same_bits,
    "waits for the device": seen(lambda seen: seen.waits),
    "evaluation": evaluation,
    "gradients": seen(lambda seen: seen.gradients),
    "measurements": seen(lambda seen: seen.measurements),
    "parts of the state": seen(lambda seen: seen.forgotten),
    "loss at the start": loss_at_start,
}
