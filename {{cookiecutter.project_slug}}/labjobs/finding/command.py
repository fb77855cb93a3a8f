"""The command `jobs.py find`, from its arguments to its output."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from labjobs.errors import JobError
from labjobs.finding import batch_sizes, drawing, noise_scales, rates, target, trials, workers
from labjobs.finding.answer import Answer, show
from labjobs.finding.target import Target
from labjobs.finding.trials import Trials
from labjobs.job import purpose
from labjobs.job.interruption import Interrupted
from labjobs.job.terminal import leave

FINDERS: dict[str, Callable[[Target, argparse.Namespace, Trials], Answer]] = {
    purpose.FIND_LR: rates.find,
    purpose.FIND_BATCH_SIZE: batch_sizes.find,
    purpose.FIND_NOISE_SCALE: noise_scales.find,
    purpose.FIND_WORKERS: workers.find,
}


def find(given: argparse.Namespace, words: Sequence[str], runs_root: Path | None) -> int:
    """Find what `given.command` names for the job with these flags; return the exit status.

    Raises SettingsError for wrong flags.
    """
    what = given.command
    wanted = target.read(words, runs_root)
    try:
        with Trials(what, wanted.runtime.device, given.force) as running:
            answer = FINDERS[what](wanted, given, running)
    except Interrupted as stop:
        line = f"jobs.py: {what} was interrupted {stop}; the same command continues it"
        return leave(trials.KILLED + stop.number, line)
    except JobError as error:
        return leave(1, f"jobs.py: {error}")
    jobs = [*running.jobs.values()]
    answer.jobs = jobs
    name = f"{what.replace(' ', '-')}-{wanted.job.id}"
    answer.figure = drawing.write(name, answer.draw, jobs)
    return show(answer, given.json)
