"""What a job shows while it runs: a bar on a terminal, plain lines elsewhere (tqdm).

It shows numbers that the host already has, so it never waits for the device.
"""

import logging
import sys
from collections.abc import Mapping
from contextlib import suppress

from tqdm import tqdm

log = logging.getLogger("job")
log.addHandler(logging.NullHandler())  # a job that cannot be opened has nowhere to log to
log.propagate = False


BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_fmt}]"
"""tqdm's own format without the time left, since tqdm ignores evaluations; report.py has it."""


class Progress:
    """A bar over the optimizer steps of a job, from those done before; nothing where the output is
    not a terminal."""

    def __init__(self, steps: int | None, quiet: bool, done: int) -> None:
        self._bar = tqdm(
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

    def step(self) -> None:
        """One optimizer step was queued."""
        self._bar.update()

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()


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


def counted(number: int, thing: str) -> str:
    """Return a number of things: `1 job`, `3 jobs`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
