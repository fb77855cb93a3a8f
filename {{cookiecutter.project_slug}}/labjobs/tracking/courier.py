"""The courier: a separate process that copies a job's journal to its targets, such as MLflow. Only
the courier imports MLflow. In the training process, MLflow's threads would compete with the loop
for the interpreter's lock, and importing it would nearly double the time to start. So the job
starts the courier before it imports torch, and passes it the job's folder through a pipe. While a
target is unavailable, the courier keeps trying as long as the job runs and for DELIVERY more
seconds (carrying.py). The job's next courier sends the rest.
"""

import gc
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labjobs import locks
from labjobs.errors import cause
from labjobs.job.lines import Damaged
from labjobs.paths import CODE
from labjobs.tracking import address, targets
from labjobs.tracking.carrying import carry
from labjobs.tracking.delivery import Delivery
from labjobs.tracking.experiment import prepare
from labjobs.tracking.meter import Meter
from labjobs.tracking.store import Elsewhere
from labjobs.warm import client

PATIENCE = 30.0
"""Seconds that a finished job waits until its targets have everything."""

IMPATIENCE = 5.0
"""Seconds that a job waits if it will be continued later anyway."""

DISPLACED = 4
"""The courier's exit status if the job is trained from another folder."""

SERVER = "COURIERS"
"""The variable with the number of the socket of a server that starts couriers, in a sweep."""

MODULES = [
    "labjobs.tracking.targets",
    "mlflow.store.tracking.rest_store",
    "mlflow.store.tracking.sqlalchemy_store",
]
"""The modules that this server imports, for every kind of store."""


class Courier:
    """The job's side: starts the process, gives it its work and receives the outcome. After the
    end, `displaced` says whether the job is trained from another folder.
    """

    def __init__(self) -> None:
        self._folder = Path()
        self.displaced = False
        self._start()

    def carry(self, folder: Path) -> None:
        """Begin to deliver the journal in a job's folder."""
        self._folder = folder
        with suppress(BrokenPipeError):  # it has ended already; `finish` sees to that
            print(folder, file=self._words, flush=True)

    def finish(self, seconds: float) -> str:
        """Wait until everything is delivered; return the problem in one line, empty if there is
        none. A courier that needs longer than these seconds continues on its own.
        """
        code = self._wait(seconds)
        if code is not None and code < 0:  # it was killed: another one does its work
            self._start()
            self.carry(self._folder)
            code = self._wait(seconds)
        self.displaced = code == DISPLACED
        self._errors.seek(0)
        said = self._errors.read().strip() or f"{address.shown()}: no answer within {seconds:.0f} s"
        return "" if code == 0 else address.last_line(said)

    def _wait(self, seconds: float) -> int | None:
        """Tell the courier that the job has ended; return its exit status, None if it is still
        sending."""
        with suppress(BrokenPipeError):
            self._words.close()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (open as long as the process)
        read, write = os.pipe()
        self._words = open(write, "w")  # noqa: SIM115
        with open(read) as words, open(os.devnull, "w") as nothing:
            self._process = client.start(
                client.inherited(SERVER),
                ["-m", "labjobs.tracking.courier", str(os.getpid())],
                CODE,
                (words.fileno(), nothing.fileno(), self._errors.fileno()),
                session=True,  # Ctrl-C at the terminal stops the job, not its courier
            )


class Trainer:
    """The process that trains, seen from its courier, which reads from its pipe.

    The pipe can stay open after the trainer's end, in the processes of a loader. The courier is a
    child of the trainer or, in a sweep, of a server; a pidfd works for both, where the system has
    them.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._over = False
        self._end: int | None = None
        try:
            self._end = os.pidfd_open(pid)
        except ProcessLookupError:
            self._over = True
        except (AttributeError, OSError):  # this system has no pidfds
            self._over = not self._is_parent()

    def has_ended(self, seconds: float) -> bool:
        """Wait up to this many seconds for its end; return whether it has ended."""
        if self._over:
            time.sleep(seconds)
            return True
        files = [sys.stdin.fileno(), *([] if self._end is None else [self._end])]
        self._over = bool(select.select(files, [], [], seconds)[0])
        return self._over or (self._end is None and not self._is_parent())

    def interrupt(self) -> None:
        """Send it TERM, if it is still running."""
        with suppress(ProcessLookupError):
            if self._end is not None:
                signal.pidfd_send_signal(self._end, signal.SIGTERM)
            elif self._is_parent():
                os.kill(self.pid, signal.SIGTERM)

    def _is_parent(self) -> bool:
        return os.getppid() == self.pid


@contextmanager
def turn(folder: Path) -> Iterator[Callable[[], bool]]:
    """Become the only courier of a job, after the courier of an earlier attempt has ended. Yields a
    function that says whether another courier is waiting.
    """
    path, me = folder / "courier.lock", f"{platform.node()} {os.getpid()}".encode()
    with locks.waiting(path, note=me.decode()) as file:
        yield lambda: os.pread(file.fileno(), 512, 0) != me


def main() -> None:
    """Deliver one journal, named by the pipe's first line, until its job ends."""
    trainer = Trainer(int(sys.argv[1]))
    with suppress(Exception):  # an unavailable store is reported later, if it still is
        prepare()
    gc.freeze()  # skips a last garbage collection, which took a second
    folder = Path(sys.stdin.readline().rstrip("\n"))
    if folder == Path():
        return  # the job ended before it began
    try:
        with turn(folder) as next_waits:
            meter = Meter(folder, trainer.pid)
            deliveries = [Delivery(folder, kind) for kind in targets.in_use()]
            carry(deliveries, meter.beside(trainer.has_ended), next_waits)
    except Elsewhere as error:
        trainer.interrupt()
        print(error, file=sys.stderr)
        sys.exit(DISPLACED)
    except (OSError, Damaged) as error:  # of the job's own files
        sys.exit(cause(error))


if __name__ == "__main__":
    os.nice(5)  # training goes first
    main()
