"""What a job shows while it runs: a bar on a terminal, plain lines elsewhere (tqdm).

It shows numbers that the host already has, so it never waits for the device.
"""

import logging
import sys
from contextlib import suppress

from tqdm import tqdm


class Progress:
    """A bar over the optimizer steps of a job, from those done before; nothing where the output is
    not a terminal."""

    def __init__(self, steps: int, quiet: bool, done: int) -> None:
        self._bar = tqdm(
            total=steps,
            initial=done,
            unit="step",
            disable=quiet or not sys.stdout.isatty(),
            file=sys.stdout,
            leave=False,
            dynamic_ncols=True,
            mininterval=0.5,
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
        """Print one line."""
        if not record.exc_info:
            with suppress(OSError):  # a terminal that was closed; the line is in the log file
                tqdm.write(self.format(record), file=sys.stdout)
                sys.stdout.flush()
