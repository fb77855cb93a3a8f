"""From a command line to an attempt at a job.

`begin` does what needs no torch: help, wrong settings, finished jobs, and the start of the courier,
which imports MLflow while the script imports torch. The `run` method of the object that it returns
does the rest.
"""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from labjobs import exit_status
from labjobs import settings as declared
from labjobs.attempt import Attempt, Scratch
from labjobs.checks.check import Check
from labjobs.cli.parser import parse
from labjobs.distributed import ranks
from labjobs.distributed.ranks import ALONE
from labjobs.errors import SettingsError
from labjobs.job import terminal
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import Runtime
from labjobs.job.terminal import leave
from labjobs.settings import Metric
from labjobs.tracking import mlflow_client

if TYPE_CHECKING:
    from labjobs.followers import Together

S = TypeVar("S")


def begin(kind: type[S], metrics: Mapping[str, Metric]) -> "Attempt[S] | Check[S] | Together[S]":
    """Read the command line of a job script; ends the process if there is nothing else to do.
    Returns an object with a method `run(main, check)`: an attempt at the job, an attempt of several
    processes, or, for --check, the test of the guarantees. The grid of run.sh reads from the
    script's source which settings and metrics it gives here (job/identity.py).
    """
    terminal.handle_signals(signal.SIG_DFL)
    ranks.translate()
    script = Path(sys.argv[0]).name
    os.environ["MLFLOW_TRACKING_URI"] = (
        mlflow_client.store_uri()
    )  # absolute, for all that is started

    def folder() -> JobFolder[S]:
        declared.check(metrics)
        settings, runtime = parse(kind, Runtime, sys.argv[1:])
        return JobFolder(settings, runtime, metrics, Path(script).stem)

    try:
        if ranks.mine() != ALONE:
            from labjobs import followers  # which one process does not need

            return followers.begin(folder, lambda: _attempt_of_several(folder()))
        own = folder()
        ranks.check(own.settings, own.runtime, 1)
        return Check(own) if own.runtime.check else _attempt(own)
    except SettingsError as error:
        sys.exit(leave(exit_status.WRONG, f"{script}: {error}"))


def _attempt(folder: JobFolder[S]) -> Attempt[S]:
    return Scratch(folder) if folder.runtime.scratch else Attempt(folder)


def _attempt_of_several(folder: JobFolder[S]) -> Attempt[S]:
    if folder.runtime.check:
        raise SettingsError("--check: works with one process; leave torchrun out")
    ranks.check(folder.settings, folder.runtime, ranks.mine().size)
    return _attempt(folder)
