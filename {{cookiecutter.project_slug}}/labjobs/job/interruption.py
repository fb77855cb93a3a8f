"""How signals end a job: immediately or, while it trains, between two steps. The signals are Ctrl-C
(INT), a closed terminal (HUP), TERM, and USR1, with which Slurm warns that a job is about to end.

A training loop that ended anywhere would leave a half-done step behind, which no checkpoint could
hold. So it holds signals back, and checks for them where the state is consistent.
"""

import signal
from typing import Any

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
        handle(self._stop)

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
    def asked(self) -> bool:
        """Whether a signal has asked the job to stop."""
        return bool(self._asked)

    def _stop(self, number: int, _frame: object) -> None:
        handle(signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's would raise as its loaders end
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the process at once
        self._asked = number
        if not self._held:
            raise Interrupted(number)


def handle(handler: Any) -> None:
    """Set what the signals do."""
    for number in SIGNALS:
        signal.signal(number, handler)
