"""What a job shows while it runs: a bar on a terminal, plain lines elsewhere (tqdm).

It shows numbers that the host already has, so it never waits for the device.
"""

import logging
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Never

from tqdm import tqdm

# How signals end a job: immediately or, while it trains, between two steps, since no checkpoint
# could hold a half-done step. The signals are Ctrl-C (INT), a closed terminal (HUP), TERM, and
# USR1, with which Slurm warns that a job is about to end.

SIGNALS = [
    number
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)
    if signal.getsignal(number) is not signal.SIG_IGN
]
"""The signals that are not ignored from the start, as Ctrl-C is under run.sh and HUP under
nohup."""


class Stopped(BaseException):
    """The job stops before its end, to be continued by the same command."""


class Interrupted(Stopped):
    """A signal asked the job to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(f"by {signal.Signals(number).name}")
        self.number = number


class Paused(Stopped):
    """The job has reached its --pause-after."""


class Interruption:
    """The signal that asks a job to stop."""

    def __init__(self) -> None:
        self._asked = 0
        self._held = False

    def listen(self) -> None:
        """From here on a signal raises Interrupted."""
        handle_signals(self._stop)

    def hold(self) -> None:
        """From here on, a signal is only recorded, for `check` to raise Interrupted."""
        self._held = True

    def release(self) -> None:
        """From here on, a signal raises Interrupted again; a recorded signal does so
        immediately."""
        self._held = False
        self.check()

    def check(self) -> None:
        """Raise Interrupted if a signal has asked for it."""
        if self._asked:
            raise Interrupted(self._asked)

    @property
    def asked(self) -> int:
        """The signal that has asked the job to stop; 0 if none has."""
        return self._asked

    def _stop(self, number: int, _frame: object) -> None:
        handle_signals(signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's would raise as its loaders end
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the process at once
        self._asked = number
        if not self._held:
            raise Interrupted(number)


def handle_signals(handler: Any) -> None:
    """Set what the signals do."""
    for number in SIGNALS:
        signal.signal(number, handler)


log = logging.getLogger("job")
log.addHandler(logging.NullHandler())  # a job that cannot be opened has nowhere to log to
log.propagate = False


BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_fmt}]"
"""tqdm's own format without the time left, since tqdm ignores evaluations; report.py has it."""


def progress_bar(steps: int | None, quiet: bool, done: int) -> "tqdm[Never]":
    """Return a bar over the optimizer steps of a job, from those done before; it shows nothing
    where the output is not a terminal."""
    return tqdm(
        total=steps,
        initial=done,
        unit="step",
        disable=quiet or not sys.stdout.isatty(),
        file=sys.stdout,
        leave=False,
        dynamic_ncols=True,
        mininterval=0.5,
        bar_format=BAR,
    )


class Terminal(logging.Handler):
    """Prints log lines above the bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line, except of what the job's last line says again."""
        if not (record.exc_info or record.__dict__.get("said_last")):
            with suppress(OSError):  # a terminal that was closed; the line is in the log file
                tqdm.write(self.format(record), file=sys.stdout)
                sys.stdout.flush()


def leave(status: int, line: str) -> int:
    """Print a process's last line, on stderr unless all is well; returns its exit status."""
    if sys.stdout.isatty():
        print("\r\033[K", end="", flush=True)  # what is left of a progress bar
    print(line, file=sys.stderr if status else sys.stdout, flush=True)
    return status


def as_line(metrics: Mapping[str, float]) -> str:
    """Return metrics in one line: `val_loss 0.04213, val_accuracy 0.9861`."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def without_tests(results: Mapping[str, float]) -> dict[str, float]:
    """Return a job's results without those on test data, by which nothing is to be chosen; all of
    them if there are no others."""
    return {k: v for k, v in results.items() if not k.startswith("test_")} or dict(results)


def counted(number: int, thing: str) -> str:
    """Return a number of things: `1 job`, `3 jobs`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
