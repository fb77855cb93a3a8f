"""The output of a job while it trains: a progress bar, and a line for each evaluation."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from labjobs.job.terminal import Progress, as_line, duration, log
from labjobs.training.length import WARM_UP
from labjobs.training.position import Position


class Report:
    """The progress of a job, from numbers that the host has: it never waits for the device."""

    def __init__(self, position: Position, quiet: bool) -> None:
        self._position = position
        self._steps = 0  # that this process has taken
        self._first = 0.0, 1.0  # when its first evaluation was over, and how much was done then
        self._bar = Progress(position.length.total, quiet, done=position.step)

    def step(self) -> None:
        """One optimizer step was queued."""
        self._bar.step()
        self._steps += 1

    def show(
        self,
        at: Mapping[str, Any],
        metrics: Mapping[str, float],
        rates: Mapping[str, float],
    ) -> None:
        """Log an evaluation in one line: where it was made, what came out, how fast it goes."""
        parts = [as_line(metrics)] if metrics else []
        if rates:
            parts.append(", ".join(speeds(rates)))
        if left := self._left():
            parts.append(f"{left} left")
        log.info("%s: %s", self._place(at), ", ".join(parts))

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()

    def _place(self, at: Mapping[str, Any]) -> str:
        length = self._position.length
        if length.in_epochs:
            return f"epoch {round(at['epoch'], 2):g}/{length.epochs}"
        return f"step {at['step']}" + (f"/{length.total}" if length.total else "")

    def _left(self) -> str:
        """The time left, with its evaluations: by what came after the first one of this process,
        since the first steps compile code and fill caches."""
        now, done = time.monotonic(), self._position.fraction
        began, before = self._first
        if before < done < 1:
            return duration((now - began) / (done - before) * (1 - done))
        if before == 1 and self._steps >= WARM_UP:
            self._first = now, done
        return ""


def speeds(rates: Mapping[str, float]) -> Iterator[str]:
    """Yield how fast training goes: in examples and whatever else was counted, and its MFU."""
    for name, rate in rates.items():
        unit = name.removesuffix("_per_second")
        if unit != name:
            yield f"{rate:,.0f} {unit}/s"
    if "mfu" in rates:
        yield f"{rates['mfu']:.1%} MFU"
