"""A courier's main loop: each target gets its lines when it wants them. An unavailable target is
tried again, without delaying the others.
"""

import signal
import sys
import time
from collections.abc import Callable, Sequence

from labjobs.job.lines import Damaged
from labjobs.tracking.delivery import Delivery
from labjobs.tracking.store import Elsewhere

INTERVAL = 1.0
"""Seconds between two checks of the journal."""

LONGEST = 10.0
"""Largest number of seconds between two attempts to reach an unavailable target."""

DELIVERY = 120.0
"""Seconds that a courier keeps trying after its job has ended."""


class Upload:
    """The delivery of a journal to one target, with the problem of the last attempt: `problem`."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery, self.problem, self.done = delivery, "", False
        self._pause, self.due = 0.0, 0.0

    def attempt(self, over: bool) -> None:
        """Send what is new; if the job is `over`, also its end. Raises Elsewhere and Damaged."""
        delivery = self.delivery
        try:
            delivery.send(running=not over)
            if over:
                delivery.end(delivery.status or "KILLED")
                self.done = True
            self._pause, self.problem = delivery.interval, ""
        except (Elsewhere, Damaged):
            raise
        except Exception as error:
            self._pause = INTERVAL if over else min(LONGEST, 2 * self._pause + INTERVAL)
            self.problem = delivery.kind.reason(error)
        self.due = time.monotonic() + self._pause


def carry(
    deliveries: Sequence[Delivery],
    job_ended: Callable[[float], bool],
    next_waits: Callable[[], bool],
) -> None:
    """Deliver until the job has ended and everything is sent, or until the job's next courier can
    take over.

    `job_ended` waits up to the given number of seconds for the end. Raises Elsewhere if the job
    belongs to another process.
    """
    uploads = [Upload(delivery) for delivery in deliveries]
    pause, over, said = 0.0, False, ""
    while left := [each for each in uploads if not each.done]:
        gone = job_ended(
            pause
        )  # asked before reading, so that everything that the job wrote is read
        for upload in left:
            upload.delivery.read()
        if not over and (gone or left[0].delivery.status):
            over = True
            signal.setitimer(signal.ITIMER_REAL, DELIVERY)  # ends this process
        for upload in left:
            if over or upload.due <= time.monotonic():
                upload.attempt(over)
        problem = "; ".join(upload.problem for upload in left if upload.problem)
        if problem and over and next_waits():
            return
        if problem and problem != said:
            print(problem, file=sys.stderr, flush=True)
        said = problem
        pause = max(0.0, min(upload.due for upload in left) - time.monotonic())
