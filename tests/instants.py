"""Says how a job's forward function is called, and kills the job at an instant that a test chose.

Is put beside a project's run.py. KILLED_AT="capture 2", in the environment, is the second time
that this process is in a capture.
"""

import os
import signal
from collections import Counter
from typing import Any

import torch

reached = Counter[str]()  # how often this process was where
where = ("", 0)  # "part" of a step, a step's "last batch", or what is evaluated; and the step
calls = 0  # of the forward function there
uncompiled = False  # whether the forward function has run as it is


def begin(job: Any, name: str) -> None:
    """A step or an evaluation begins. The last checkpoint is on disk then, so that a job that is
    killed here goes on from here."""
    global where, calls
    if writing := job._state._last:
        writing.result()
    where, calls = (name, job.step), 0


def run_as_it_is() -> None:
    """The forward function runs without being compiled."""
    global uncompiled
    uncompiled = True


def called() -> None:
    """The forward function has been called."""
    global calls, uncompiled
    name, step = where
    print(
        f"called: {name}, {step}, {calls}, {'as it is' if uncompiled else 'compiled'}", flush=True
    )
    calls, uncompiled = calls + 1, False
    capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    _reach("capture" if capturing else name)


def stepped() -> None:
    """A step has been taken, with no call at all if it was a replay."""
    if not calls:
        _reach("replay")


def _reach(place: str) -> None:
    reached[place] += 1
    if os.environ.get("KILLED_AT") == f"{place} {reached[place]}":
        os.kill(os.getpid(), signal.SIGKILL)
