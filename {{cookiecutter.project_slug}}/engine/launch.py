"""From a command line to what has to be done.

`begin` does what needs no torch: help, wrong settings, finished jobs, and the start of the courier,
which imports MLflow while the script imports torch. The `run` of what it returns does the rest.
"""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from engine.attempt import Attempt, Scratch
from engine.checks.command import Check
from engine.cli import metrics as declared
from engine.cli.metrics import Metric
from engine.cli.parser import parse
from engine.errors import SettingsError
from engine.job import interruption
from engine.job.folder import JobFolder
from engine.job.runtime import Runtime
from engine.job.terminal import leave
from engine.tracking import address

S = TypeVar("S")


def begin(kind: type[S], metrics: Mapping[str, Metric]) -> Attempt[S] | Check[S]:
    """Read the command line of a job script; ends the process if that is all there is to do.

    Returns what to call `run(main, check)` of: an attempt at the job or, for --check, the test of
    its guarantees. The grid of run.sh reads from the script's source which settings and metrics it
    gives here (job/scripts.py).
    """
    interruption.handle(signal.SIG_DFL)
    script = Path(sys.argv[0]).name
    os.environ["MLFLOW_TRACKING_URI"] = address.uri()  # absolute, for all that is started
    try:
        declared.check(metrics)
        settings, runtime = parse(kind, Runtime, sys.argv[1:])
        folder = JobFolder(settings, runtime, metrics, Path(script).stem)
        if runtime.check:
            return Check(folder)
        return Scratch(folder) if runtime.scratch else Attempt(folder)
    except SettingsError as error:
        sys.exit(leave(2, f"{script}: {error}"))
