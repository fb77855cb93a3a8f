"""Trials of a job, and what they say about each guarantee.

Each trial has a process of its own, so that none inherits anything from another. The processes are
forked, which costs no import of torch. What a trial prints goes into its folder.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from labjobs import layout
from labjobs.checks.facts import (
    EVERY,
    STEPS,
    Answer,
    Fact,
    Failure,
    Finding,
    Kind,
    Moment,
    Outcome,
    ShortJob,
    attribute_at,
)
from labjobs.checks.watching import Watched
from labjobs.cli.flags import option
from labjobs.errors import JobError, SettingsError, cause
from labjobs.job import journal, terminal
from labjobs.job.folder import JobFolder
from labjobs.job.terminal import Stopped
from labjobs.settings import Metric, value_at_start
from labjobs.sources import reached, unread
from labjobs.training.loop import Check, Main

T = TypeVar("T")

FORK = multiprocessing.get_context("fork")

MOMENTS = (Moment(EVERY, evaluating=True), Moment(EVERY + 2))
"""When a trial is interrupted: in its first evaluation, and between two steps after that. It trains
on after the next one, since a loop may depend on the result before."""

RUNTIME = {
    "log_every": 1,
    "compile": "off",  # it takes half a minute
    "pause_after": None,
    "profile": 0,
    "quiet": True,
    "force": False,
    "continue_anyway": False,
    "scratch": True,  # keeps no copy of the code
}
"""The runtime flags of a trial that differ from the command's flags."""


@dataclass
class Trials:
    """The trials of a job, each run in a folder of its own below `root` when it is needed."""

    job: JobFolder[Any]
    main: Main
    check: Check
    root: Path
    smaller: bool

    def __post_init__(self) -> None:
        import_module("torch._dynamo")  # as an optimizer would: once, not in each process

    @cached_property
    def whole(self) -> Outcome:
        """The outcome of the job without interruptions."""
        return _in_process(partial(self._trial, "whole", ShortJob))

    @cached_property
    def interrupted(self) -> Outcome:
        """The outcome of the job, interrupted at each of MOMENTS and continued in a new process."""
        whole, left = Outcome(), list(MOMENTS)
        while True:
            part = _in_process(partial(self._trial, "interrupted", ShortJob, left))
            whole = replace(part, facts=whole.facts | part.facts, stops=whole.stops + part.stops)
            if not part.stops:
                return whole
            del left[: left.index(part.stops[0]) + 1]

    @cached_property
    def watched(self) -> Outcome:
        """The outcome of the job while it is looked at."""
        found = _in_process(partial(self._trial, "watched", Watched))
        if found.failure:
            unseen = Answer(unknown=f"since looking at the job failed: {found.failure.error}")
            found.waits = found.gradients = found.measurements = found.forgotten = unseen
        return found

    @property
    def bits_may_differ(self) -> bool:
        """Whether the job runs on a device that may give different bits each time."""
        return self.whole.device != "cpu" and not self.job.runtime.deterministic

    def _trial(self, name: str, kind: type[ShortJob], stops: Sequence[Moment] = ()) -> Outcome:
        folder = self._folder_of(name)
        job = kind(folder, stops, self.smaller)
        job.outcome.failure = self._run(folder, job)
        if not job.outcome.failure:
            job.outcome.facts |= _measured(folder.path, folder.metrics)
        return job.outcome

    def _folder_of(self, name: str) -> JobFolder[Any]:
        """Make the folder of a trial, and write what the process prints into it."""
        root, mine = self.root / str(self.smaller) / name, self.job
        runtime = replace(mine.runtime, runs_root=root, **RUNTIME)  # type: ignore[arg-type]
        folder = JobFolder(mine.settings, runtime, mine.metrics, mine.script)
        folder.make()
        folder.take()
        with (root / layout.OUTPUT).open("ab") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        return folder

    def _run(self, folder: JobFolder[Any], job: ShortJob) -> Failure | None:
        """Do a job as an attempt does; returns why it failed, if it did."""
        try:
            self.check(job)
            folder.open()
            job.start()
            job.finish(self.main(job))
            folder.journal.flush()
        except Stopped:
            job.stop(save=True)
        except Exception as error:
            job.stop(save=False)
            if isinstance(error, SettingsError | JobError):
                return Failure(error, "", reached(error))
            return Failure(JobError(cause(error)), traceback.format_exc(), reached(error))
        finally:
            job.close()
        return None


def _measured(attempt: Path, declared: Mapping[str, Any]) -> dict[Fact, str]:
    """Return what the journal of an attempt has of declared metrics, and the learning rate."""
    found = {}
    for line in journal.lines_of(attempt):
        for name, value in line.get("metrics", {}).items():
            part, _, metric = name.removeprefix("best_").partition("_")
            if metric not in declared and name != "lr":
                continue
            if part == "test" or name.startswith("best_"):
                fact = Fact(STEPS, Kind.RESULT, name)
            else:
                kind = Kind.EVALUATION if part == "val" else Kind.TRAINING
                fact = Fact(line["step"], kind, name)
            found[fact] = repr(value)
    return found


def _in_process(function: Callable[[], T]) -> T:
    """Return what a function returns in a process forked for it; raises its SettingsError."""
    receiving, sending = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_send, args=(function, sending))
    process.start()
    sending.close()
    try:
        returned: T | SettingsError = receiving.recv()
    except EOFError:
        process.join()
        raise JobError(f"a trial ended without a result, with status {process.exitcode}") from None
    except BaseException:  # a signal, perhaps only to this process
        process.terminate()
        raise
    finally:
        process.join()
    if isinstance(returned, SettingsError):  # a device that is not there
        raise returned
    return returned


def _send(function: Callable[[], Any], sending: Connection) -> None:
    terminal.handle_signals(signal.SIG_DFL)
    try:
        sending.send(function())
    except SettingsError as error:
        sending.send(error)


Facts = Mapping[Fact, str]


def _first_difference(one: Facts, other: Facts) -> Fact | None:
    """Return the first fact that is not the same in two trials; None if all are."""
    differ = [fact for fact in {**one, **other} if one.get(fact) != other.get(fact)]
    return min(differ, default=None)


def _difference(fact: Fact, one: Facts, other: Facts) -> str:
    match fact.kind:
        case Kind.START:
            return f"the initial state of {fact.name} is not the same"
        case Kind.BATCH:
            return f"the batch of step {fact.step} is not the same"
        case Kind.STATE:
            return f"{fact.name} is not the same at the end"
    was, now = one.get(fact, "missing"), other.get(fact, "missing")
    at = "" if fact.kind == Kind.RESULT else f" at step {fact.step}"
    return f"{fact.name}{at} was {was} and is now {now}"


# What the trials say about each guarantee.

ON_GPU = "since a GPU gives the same bits only with --deterministic"

SLACK = 0.5
"""The allowed relative difference of a metric's first value from the declared one, since only a few
examples are measured, with weights of any scale."""


def answers(trials: Trials) -> Iterator[tuple[str, Answer]]:
    """Yield each guarantee with its answer."""
    yield "exact resume", _exact_resume(trials)
    yield "the same bits twice", _same_bits(trials)
    seen = trials.watched
    yield "waits for the device", seen.waits
    yield "evaluation", _evaluation(trials)
    yield "gradients", seen.gradients
    yield "measurements", seen.measurements
    yield "parts of the state", seen.forgotten
    yield "loss at the start", _loss_at_start(trials)
    yield "settings", _settings(trials)


MISSING = "something is missing in job.resume(…), or changes between a step and its evaluation"

OTHER_BATCHES = (
    "batches depend on something that is not restored; for a stream, this is missing in its "
    "state_dict() or, if it has none, is something other than the epoch that set_epoch() gets"
)


def _exact_resume(trials: Trials) -> Answer:
    """Does a job that is interrupted and continued end with the same bits?"""
    whole, parts = trials.whole, trials.interrupted
    if parts.failure:
        line = f"interrupted and continued, it fails: {parts.failure.error}"
        return Answer((Finding(parts.failure.place or whole.resumed_at, line),))
    if not parts.stops:
        return Answer(unknown="since it trains in no job.steps(…)")
    if _before_interruption(trials):
        return Answer(unknown="since the same seed does not give the same bits")
    found = _first_difference(whole.facts, parts.facts)
    if found is None:
        return Answer()
    if trials.bits_may_differ:
        return Answer(unknown=ON_GPU)
    said = f"continued, {_difference(found, whole.facts, parts.facts)}"
    states = [fact for fact in whole.facts if fact.kind == Kind.STATE]
    differ = [fact.name for fact in states if whole.facts[fact] != parts.facts.get(fact)]
    if differ:
        said += f" (not the same at the end: {', '.join(differ)})"
    seen = trials.watched
    why = OTHER_BATCHES if found.kind == Kind.BATCH else MISSING
    # The likely cause: data that changes, else what the code carries from step to step.
    place, why = [*seen.unstable, *seen.changes, Finding(whole.resumed_at, why)][0]
    return Answer((Finding(place, f"{said}: {why}"),))


def _same_bits(trials: Trials) -> Answer:
    """Does the same seed give the same bits again?"""
    seen, whole = trials.watched, trials.whole
    found = _before_interruption(trials)
    if found is None or seen.unstable:
        return Answer(tuple(seen.unstable))
    if trials.bits_may_differ:
        return Answer(unknown=ON_GPU)
    said = f"run again, {_difference(found, whole.facts, trials.interrupted.facts)}"
    why = ": a clock is read" if seen.clock else "; is something random without a seed?"
    return Answer((Finding(seen.clock or whole.resumed_at, f"{said}{why}"),))


def _before_interruption(trials: Trials) -> Fact | None:
    """The first fact that differs before the trial was interrupted: until then, an interrupted
    trial is the same job run again."""
    again = trials.interrupted
    found = _first_difference(trials.whole.facts, again.facts)
    if found is None or again.failure:
        return None
    before = not again.stops or (found.step, found.kind) <= (again.stops[0].step, Kind.TRAINING)
    return found if before else None


def _evaluation(trials: Trials) -> Answer:
    """Does evaluation leave training alone, and does it give the same result again?"""
    seen = trials.watched
    if seen.failure:
        return seen.waits  # why nothing could be looked at
    if seen.in_background:
        return Answer(unknown="since it runs in the background")
    if not seen.evaluations:
        return Answer(unknown="since no validation or test batches are read")
    found = list(dict.fromkeys(seen.changed_in_evaluation))
    # What is random in evaluation, in at most one line.
    drew = [at for has_drawn, at in seen.evaluations if has_drawn]
    place = (drew or [at for _, at in seen.evaluations])[0]
    drawn = ": random numbers are drawn" if drew else ""
    both = trials.whole.facts, seen.facts
    in_journal = (Kind.TRAINING, Kind.EVALUATION, Kind.RESULT)
    logged = ({f: v for f, v in facts.items() if f.kind in in_journal} for facts in both)
    differs = _first_difference(*logged)
    if differs and differs.kind != Kind.TRAINING:
        text = f"{differs.name} is not the same when it is evaluated again{drawn}"
        found.append(Finding(place, text))
    elif drew:
        found.append(Finding(place, "evaluation changes the random numbers of training"))
    return Answer(tuple(found))


def _loss_at_start(trials: Trials) -> Answer:
    """Does the first step measure the values that METRICS declares?"""
    declared: dict[str, Metric] = dict(trials.job.metrics)
    wanted = {name: metric for name, metric in declared.items() if metric.at_start is not None}
    if not wanted:
        return Answer(unknown="since no metric in METRICS has at_start=")
    if getattr(trials.job.settings, "init_from", None):
        return Answer(unknown="since it starts from the weights of another job")
    whole, found = trials.whole, []
    for name, metric in wanted.items():
        value = whole.facts.get(Fact(1, Kind.TRAINING, f"train_{name}"))
        expected = value_at_start(metric, whole.spec)
        if value is None or expected is None:
            missing = f"no {name} in the first step" if value is None else "no such entry"
            return Answer(unknown=f"since there is {missing} ({metric.at_start})")
        if abs(float(value) - expected) > SLACK * abs(expected):
            text = f"train_{name} begins at {float(value):.4g}, and not at about {expected:.4g}"
            found.append(Finding(whole.resumed_at, f"{text} ({metric.at_start})"))
    return Answer(tuple(found))


def _settings(trials: Trials) -> Answer:
    """Does the code that was imported read each setting?"""
    settings, text = trials.job.settings, "{} does nothing: no code reads it"
    names, whole = unread(settings, map(Path, trials.whole.imported))
    if whole:
        return Answer(unknown=f"since `{whole}` may read all of them")
    places = [attribute_at(type(settings), name) for name in names]
    return Answer(tuple(map(Finding, places, [text.format(option(name)) for name in names])))
