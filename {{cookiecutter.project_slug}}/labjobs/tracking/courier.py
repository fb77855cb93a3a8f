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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labjobs import exit_status, fork_server, layout, locks
from labjobs.errors import JobError, SettingsError, cause
from labjobs.files import CODE, read_record, write_record
from labjobs.job import attempts, data_evidence, journal
from labjobs.job.journal import Damaged
from labjobs.job.terminal import leave
from labjobs.tracking import costs, mlflow_client
from labjobs.tracking.costs import Meter
from labjobs.tracking.mlflow_client import prepare
from labjobs.tracking.mlflow_store import AT_THE_END, Elsewhere, Line, ParquetFiles, Run, Target

if TYPE_CHECKING:
    from labjobs.tracking.costs import Counters

# A job's journal on its way to a target, such as MLflow.
#
# A file in the job's folder (`sent.json` for MLflow) says how far the delivery has come: to which
# run, and up to which line of which journal. The file only saves work, because lines that are sent
# twice are stored once. A damaged journal is not sent.


class Delivery:
    """A journal on its way to a target. `status` is the journal's word for how the job ended, if it
    has ended. Raises Damaged if the journal or settings.json is damaged.
    """

    def __init__(self, folder: Path, kind: type[Target]) -> None:
        self.kind, self._folder = kind, folder
        self._about = journal.record_of(folder, layout.SETTINGS)
        if not self._about:
            line = "settings.json is damaged or missing; the job's own command writes it again"
            raise journal.Damaged(line)
        self._file = (folder / layout.JOURNAL).open("rb")
        self._reader = journal.Reader(self._file)
        self._id = ""
        self._unsent: list[Line] = []
        self._gpu = ""
        self._counters: Counters | None = None
        self.status = ""
        self.read()
        if not self._unsent:
            raise journal.Damaged(f"{layout.JOURNAL} is empty; {journal.WAY_OUT}")
        self._journal = str(self._reader.start["journal"])
        if self._reader.line < journal.expected(folder, self._journal):
            raise journal.Damaged(f"the end of {layout.JOURNAL} is lost; {journal.WAY_OUT}")
        self._target, self._is_open = kind(folder, self._about, self._journal), False

    @property
    def interval(self) -> float:
        """Seconds until the target wants the next lines."""
        return self._target.interval

    def read(self) -> None:
        """Read what the job has written since. Raises Damaged for damaged lines."""
        new = self._reader.read()
        self._unsent += new
        for line in new:
            if "start" in line:
                self._gpu, self._counters = "", None  # the last attempt's
            self._gpu = line.get("tags", {}).get("gpu", self._gpu)
            self.status = line.get("end", "" if "start" in line else self.status)

    def send(self, running: bool = False) -> None:
        """Send what has been read; while the job is running, also the machine's counters. Raises
        whatever the target raises, without losing anything.
        """
        try:
            if not self._is_open:
                self._open()
            self._target.beat()
            if self._unsent:
                os.fsync(self._file.fileno())  # what is sent must not be written a second time
                self._target.log(self._unsent)
                names = [name for line in self._unsent for name in line.get("files", ())]
                self._target.add(self._folder, names)
                self._unsent = []
                self._note("")
            if running and self.kind.COUNTERS and (sampled := self._sampled(self._target.begun)):
                self._target.log(sampled)
        except Exception:
            self._is_open = False
            raise

    def end(self, status: str) -> None:
        """Store how the run ended, after everything else is sent; then add the files that users
        look for. From then on, results count as stored, whatever happens to the files."""
        if read := data_evidence.summary(self._folder):
            self._target.has_read(read)
        beyond = {"line": self._reader.line + 1}  # not in the journal: what the courier has seen
        self._target.log([line | beyond for line in costs.as_lines(self._folder)])
        self._target.end(status)
        self._target.add(self._folder, AT_THE_END)
        self._note(status)

    def _open(self) -> None:
        self._target.open()
        if self._target.id != self._id:
            self._id = self._target.id
            self._reader, self._unsent = journal.Reader(self._file), []
            self.read()
            noted = self._noted
            if (noted.get("run"), noted.get("journal")) == (self._id, self._journal):
                self._unsent = [line for line in self._unsent if line["line"] > noted["lines"]]
        self._is_open = True

    def _sampled(self, since: int) -> list[Line]:
        """The counters, if it is time for them; empty if they cannot be read."""
        with suppress(Exception):  # metrics must not wait for a driver
            from labjobs.tracking.costs import Counters

            if self._counters is None or self._counters.uuid != self._gpu:
                self._counters = Counters(self._gpu)  # a job says after its start which GPU it has
            return self._counters.sample(since)
        return []

    def _note(self, status: str) -> None:
        noted = {
            "store": self.kind.place(),
            "run": self._id,
            "journal": self._journal,
            "lines": self._reader.line,
            "bytes": self._file.tell(),
            "status": status,
        }
        with suppress(OSError):  # a full disk: the next courier sends it again, which adds nothing
            write_record(self._folder / self.kind.NOTED_IN, noted)

    @property
    def _noted(self) -> dict[str, Any]:
        return read_record(self._folder / self.kind.NOTED_IN)


def delivered(folder: Path, kind: type[Target]) -> bool:
    """Whether a target had everything in a job's journal when it was last reached."""
    noted = read_record(folder / kind.NOTED_IN)
    start = journal.record_of(folder, layout.SETTINGS).get("journal", {})
    all_of_it = noted.get("store"), noted.get("journal"), bool(noted.get("status"))
    if all_of_it != (kind.place(), start.get("journal"), True):
        return False
    # less, because it was damaged
    return bool((folder / layout.JOURNAL).stat().st_size <= noted["bytes"])


# A courier's main loop: each target gets its lines when it wants them. An unavailable target is
# tried again, without delaying the others.

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


# The targets of couriers: the tracking store, which says what has run, and copies of its data.

TARGETS: tuple[type[Target], ...] = (Run, ParquetFiles)
"""The store, which is always in use, comes first."""


def in_use() -> list[type[Target]]:
    """Return the targets that the environment names."""
    return [kind for kind in TARGETS if kind.place()]


def check_targets() -> None:
    """Raise SettingsError if one of them cannot be used."""
    for kind in TARGETS:
        kind.check()


def all_have(folder: Path) -> bool:
    """Whether each target is known to have everything of an attempt."""
    return all(delivered(folder, kind) for kind in in_use())


def copies_lack(folder: Path) -> bool:
    """Whether a target other than the store lacks a part of a finished attempt on this disk."""
    copies = in_use()[1:]
    finished = bool(copies) and attempts.status_of(folder) == "finished"
    return finished and not all(delivered(folder, kind) for kind in copies)


PATIENCE = 30.0
"""Seconds that a finished job waits until its targets have everything."""

IMPATIENCE = 5.0
"""Seconds that a job waits if it will be continued later anyway."""

DISPLACED = 4
"""The courier's exit status if the job is trained from another folder."""

SERVER = "COURIERS"
"""The variable with the number of the socket of a server that starts couriers, in a sweep."""

MODULES = [
    "labjobs.tracking.courier",
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
        said = (
            self._errors.read().strip()
            or f"{mlflow_client.shown()}: no answer within {seconds:.0f} s"
        )
        return "" if code == 0 else mlflow_client.last_line(said)

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
            self._process = fork_server.start(
                fork_server.inherited(SERVER),
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
    path, me = folder / layout.COURIER_LOCK, f"{platform.node()} {os.getpid()}".encode()
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
            deliveries = [Delivery(folder, kind) for kind in in_use()]
            carry(deliveries, meter.beside(trainer.has_ended), next_waits)
    except Elsewhere as error:
        trainer.interrupt()
        print(error, file=sys.stderr)
        sys.exit(DISPLACED)
    except (OSError, Damaged) as error:  # of the job's own files
        sys.exit(cause(error))


# `python jobs.py sync`: send the results of jobs on this disk that are missing in the targets.


def sync(runs_root: Path) -> int:
    """Send the missing results of every job that is not running; return the exit status. Raises
    SettingsError if there is no such folder, or a target is not valid.
    """
    check_targets()
    if not runs_root.expanduser().is_dir():
        raise SettingsError(f"--runs-root: there is no folder {runs_root}")
    folders = [file.parent for file in sorted(runs_root.expanduser().glob(f"*/*/{layout.JOURNAL}"))]
    return max(_send_all(folders, kind) for kind in in_use())


def _send_all(folders: Sequence[Path], kind: type[Target]) -> int:
    """Send what one target lacks; return the exit status."""
    left = [folder for folder in folders if not delivered(folder, kind)]
    left = [folder for folder in left if not locks.held(folder / layout.LOCK)]
    to = f" to {kind.NAME}" if len(in_use()) > 1 else ""
    sent = 0
    for folder in left:
        try:
            _send(folder, kind)
        except (JobError, Elsewhere) as error:
            leave(exit_status.FAILED, f"job {folder.parent.name} {error}")
        except Exception as error:
            line = f"{sent} of {len(left)} jobs sent; {kind.NAME}: {kind.reason(error)}"
            return leave(exit_status.NOT_UPLOADED, f"{line}; python jobs.py sync sends the rest")
        else:
            sent += 1
            print(f"job {folder.parent.name} sent{to}")
    line = f"{sent} of {len(left)} jobs sent{to}" if left else f"{kind.NAME} has all"
    return leave(exit_status.DONE if sent == len(left) else 1, line)


def _send(folder: Path, kind: type[Target]) -> None:
    """Raises JobError for what is wrong with the job's files, or what the target raises."""
    with ExitStack() as held:
        delivery = _open(folder, kind, held)
        delivery.send()
        delivery.end(delivery.status or "KILLED")
        if attempts.status_of(folder) == "finished" and all_have(folder):
            attempts.drop_checkpoints(folder)


def _open(folder: Path, kind: type[Target], held: ExitStack) -> Delivery:
    try:
        if lock := locks.take(folder / layout.LOCK):
            held.enter_context(lock)
            held.enter_context(turn(folder))
            return Delivery(folder, kind)
    except (OSError, Damaged) as error:
        raise JobError(f"cannot be sent: {cause(error)}") from error
    raise JobError("is running and uploads its results itself")


if __name__ == "__main__":
    os.nice(5)  # training goes first
    main()
