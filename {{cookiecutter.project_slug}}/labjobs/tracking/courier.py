"""The courier: a separate process that copies a job's journal to the tracking store and to whatever
else the environment asks for (copies.py). Only the courier imports MLflow and other trackers. In
the training process, MLflow's threads would compete with the loop for the interpreter's lock, and
importing it would nearly double the time to start. So the job starts the courier before it imports
torch, and passes it the job's folder through a pipe. While the store is unavailable, the courier
keeps trying as long as the job runs and for DELIVERY more seconds. The job's next courier sends the
rest.
"""

import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from weakref import finalize

from labjobs import exit_status, fork_server, layout, locks
from labjobs.errors import Elsewhere, JobError, cause, few
from labjobs.files import CODE, json_of, read_record
from labjobs.job import attempts, code_evidence, journal
from labjobs.job.journal import Damaged
from labjobs.job.terminal import leave
from labjobs.tracking import copies, costs, mlflow_store
from labjobs.tracking.costs import Meter
from labjobs.tracking.mlflow_store import AT_THE_END, Line, Run, prepare, reason
from labjobs.tracking.stored_jobs import Known

# The job's side: it starts the process, gives it its work and receives the outcome.

PATIENCE = 30.0  # seconds that a finished job waits until everything is delivered
IMPATIENCE = 5.0  # seconds that a job waits if it will be continued later anyway
SERVER = "COURIERS"  # the variable with the number of the socket of a sweep's server of couriers

MODULES = [
    "labjobs.tracking.courier",
    "mlflow.store.tracking.rest_store",
    "mlflow.store.tracking.sqlalchemy_store",
]
"""The modules that this server imports, for every kind of store."""


class Courier:
    """The courier of an attempt. After its end, `displaced` says whether the job is trained from
    another folder. It `measures` what this process uses."""

    def __init__(self, measures: bool = True) -> None:
        self._folder: Path | None = None
        self.displaced = False
        self._measures = measures
        self._start()

    def carry(self, folder: Path) -> None:
        """Begin to deliver the journal in a job's folder."""
        self._folder = folder
        with suppress(BrokenPipeError):  # it has ended already; `finish` sees to that
            self._words.write(json.dumps(str(folder)).encode() + b"\n")  # it may be any path

    def finish(self, seconds: float) -> str:
        """Wait until everything is delivered; return the problem in one line, empty if there is
        none. A courier that needs longer than these seconds continues on its own."""
        code, folder = self._wait(seconds), self._folder
        early = code == 0 and folder and not delivered(folder)
        if folder and code is not None and (early or code < 0):  # another one does its work
            self._start()
            self.carry(folder)
            code = self._wait(seconds)
        self.displaced = code == exit_status.ELSEWHERE
        self._errors.seek(0)
        late = f"{mlflow_store.shown()}: no answer within {seconds:.0f} s"
        said = self._errors.read().decode(errors="replace").strip() or late
        return "" if code == 0 else mlflow_store.last_line(said)

    def _wait(self, seconds: float) -> int | None:
        """Tell the courier that the job has ended; return its exit status, None while it sends."""
        with suppress(BrokenPipeError):
            self._words.close()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the process)
        finalize(self, self._errors.close)
        read, write = os.pipe()
        self._words = open(write, "wb", buffering=0)  # noqa: SIM115
        with open(read, "rb") as words, open(os.devnull, "wb") as nothing:
            self._process = fork_server.start(
                fork_server.inherited(SERVER),
                ["-m", "labjobs.tracking.courier", str(os.getpid()), str(int(self._measures))],
                CODE,
                (words.fileno(), nothing.fileno(), self._errors.fileno()),
                session=True,  # Ctrl-C at the terminal stops the job, not its courier
            )


# The courier's own process: it delivers one journal until the job has ended.


def main(trainer: int, measures: int) -> None:
    """Deliver the journal of this process, in the folder that the pipe's first line names."""
    gc.disable()  # collections would look through all of MLflow, again and again
    with suppress(Exception):  # an unavailable store is reported later, if it still is
        prepare()
    gc.freeze()  # for the last one too, which took a second
    gc.enable()
    line = sys.stdin.readline()
    if not line:
        return  # the job ended before it began
    folder = Path(json.loads(line))
    try:
        with _in_turn(folder):
            carry(folder, Meter(folder, trainer if measures else 0))
    except Elsewhere as error:
        if not _has_ended(folder, 0):
            os.kill(trainer, signal.SIGTERM)
        print(error, file=sys.stderr)
        sys.exit(exit_status.ELSEWHERE)
    except (OSError, JobError) as error:  # of the job's own files, or of copies
        sys.exit(cause(error))


def _in_turn(folder: Path) -> AbstractContextManager[None]:
    """Hold the lock of an attempt's couriers, once the earlier ones have ended; say so if one is
    there. While its store is away, that takes up to DELIVERY seconds."""
    lock = folder / layout.COURIER_LOCK
    if locks.held(lock):
        line = "an earlier process is still sending its results"
        print(f"job {folder.parent.name}: {line}", file=sys.stderr, flush=True)
    return locks.waiting(lock, remove=True)


def _has_ended(folder: Path, seconds: float) -> bool:
    """Wait up to this many seconds for the trainer's end; return whether it has ended. Then its
    pipe is closed, unless processes of a loader have it, and its lock is free."""
    if select.select([sys.stdin], [], [], seconds)[0]:
        return True
    lock = folder / layout.LOCK
    return lock.exists() and not locks.held(lock)


INTERVAL = 1.0  # seconds between two checks of the journal
LONGEST = 10.0  # largest number of seconds between two attempts to reach an unavailable store
DELIVERY = 120.0  # seconds that a courier keeps trying after its job has ended

LIVE = 30.0  # seconds, at least, between two copies of a running job in other trackers
SELDOM = 50.0  # times as long as the last one took: they take 2 % of a core at most


def carry(folder: Path, meter: Meter) -> None:
    """Deliver until the job has ended and everything is sent. Raises Elsewhere if the job belongs
    to another process, and Damaged."""
    delivery = Delivery(folder)
    pause, over, said = 0.0, False, ""
    while True:
        if over:
            time.sleep(pause)
        else:
            gone = _has_ended(folder, pause)  # asked first, so that everything it wrote is read
            delivery.read()
            over = gone or bool(delivery.status)
            meter.look(delivery.gpu, delivery.processes, ended=over)
            if over:
                signal.setitimer(signal.ITIMER_REAL, DELIVERY)  # ends this process
        try:
            delivery.send(over)
            if over:
                break
            problem, pause = "", INTERVAL
        except (Elsewhere, Damaged):
            raise
        except Exception as error:  # whatever a store raises
            problem = reason(error)
            pause = INTERVAL if over else min(LONGEST, 2 * pause + INTERVAL)
            if problem != said:
                print(problem, file=sys.stderr, flush=True)
        said = problem
        delivery.show()
    delivery.copy()
    attempts.drop_checkpoints(folder)  # also of a job that has not waited for this


class Delivery:
    """A journal on its way to its run in the store. `status` is the journal's word for how the job
    ended, if it has ended; `gpu` is the UUID of the job's GPU, if it is known; `processes` is how
    many there are. sent.json says how far the delivery has come: to which run, and up to which line
    of which journal. That only saves work, because lines that are sent twice are stored once. A
    damaged journal is not sent: the job's next attempt repairs it. Raises Damaged, OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder, about = folder, copies.settings_of(folder)
        self._file = (folder / layout.JOURNAL).open("rb")
        self._reader = journal.Reader(self._file)
        self._unsent: list[Line] = []
        self.read()
        journal.check(folder, self._reader)
        if not self._unsent:  # the job was killed before the first one
            raise Damaged(f"{layout.JOURNAL} has no line yet; the job's own command writes some")
        self._journal = str(self._reader.start["journal"])
        self._run = Run(folder, about, self._journal, self._unsent[0].get("time", 0))
        self._is_open = False
        self._next_copy = time.monotonic() + LIVE

    def read(self) -> None:
        """Read what the job has written since. Raises Damaged for damaged lines."""
        new = self._reader.read()
        self._unsent += new
        for line in new:
            if "start" in line:
                self.status, self.gpu, self.processes = "", "", 1  # the last attempt's
            self.status, tags = line.get("end", self.status), line.get("tags", {})
            self.gpu = tags.get("gpu", self.gpu)
            self.processes = int(tags.get("processes", self.processes))

    def send(self, over: bool = False) -> None:
        """Send what has been read and, if the job is `over`, its end. Raises whatever the store
        raises, without losing anything."""
        try:
            if not self._is_open:
                self._open()
            self._run.beat()
            if self._unsent:
                os.fsync(self._file.fileno())  # what is sent must not be written a second time
                self._run.log(self._unsent)
                names = [name for line in self._unsent for name in line.get("files", ())]
                self._run.add(self._folder, names)
                self._unsent = []
                self._note("")
            if over:
                self._end(self.status or "KILLED")
        except Exception:
            self._is_open = False
            raise

    def _open(self) -> None:
        self._run.open()
        # It can be another run than before. sent.json says how much of the journal this one has.
        self._reader, self._unsent = journal.Reader(self._file), []
        self.read()
        noted = read_record(self._folder / layout.SENT)
        lost = noted.get("status") and not self._run.had_ended  # the store is an older backup
        same = (noted.get("run"), noted.get("journal")) == (self._run.id, self._journal)
        if same and not lost:
            self._unsent = [line for line in self._unsent if line["line"] > noted["lines"]]
        self._is_open = True

    def _end(self, status: str) -> None:
        """Store how the run ended, after everything else is sent; then add the files that users
        look for. From then on, results count as stored, whatever happens to the files."""
        self._run.has_read(self._folder)
        self._run.log(costs.as_lines(self._folder))
        self._run.end(status, journal.last_time(self._folder))
        self._run.add(self._folder, AT_THE_END)
        definitions = code_evidence.definitions(self._folder)
        self._run.add(definitions.parent, [definitions.name])
        self._note(status)

    def show(self) -> None:
        """Copy the running job to other trackers, if it is time; its end says what goes wrong."""
        if copies.wanted() and (begun := time.monotonic()) >= self._next_copy:
            with suppress(Exception):
                copies.write(self._folder, copies.RUNNING)
            took = time.monotonic() - begun
            self._next_copy = begun + max(LIVE, SELDOM * took)

    def copy(self) -> None:
        """Copy the job, which has ended, to other trackers. Raises JobError, OSError."""
        if wanted := copies.wanted():
            status = self.status or "KILLED"
            copies.write(self._folder, status)
            self._note(status, wanted)

    def _note(self, status: str, made: Mapping[str, str] = {}) -> None:
        journal.note_sent(
            self._folder,
            self._journal,
            store=mlflow_store.fingerprint(),
            copies=made,
            run=self._run.id,
            lines=self._reader.line,
            bytes=self._file.tell(),
            status=status,
        )


def delivered(folder: Path) -> bool:
    """Whether the store and the copies are known to have all of an attempt's journal."""
    noted = read_record(folder / layout.SENT)
    start = journal.record_of(folder, layout.SETTINGS).get("journal", {})
    all_of_it = noted.get("store"), noted.get("journal"), bool(noted.get("status"))
    wanted = mlflow_store.fingerprint(), start.get("journal"), True
    if all_of_it != wanted or copies.lacking(folder):
        return False
    with (folder / layout.JOURNAL).open("rb") as file:
        is_own = journal.start_in(file.readline()) == start
        # A journal can be shorter than it was: it was damaged since.
        return is_own and os.fstat(file.fileno()).st_size <= int(noted["bytes"])


# `python jobs.py sync`: send the results of jobs on this disk that are missing there.


def sync(runs_root: Path, known: Known | None = None, as_json: bool = False) -> int:
    """Send the missing results of every job that is not running; return the exit status. If it is
    `known` what the store has, it is compared with the journals, whatever was sent before: it may
    be another store by now, a backup, or someone has changed it. What was sent is printed, if
    wanted `as_json`."""
    sent = list[str]()

    def end(status: int, line: str, unsent: int | None) -> int:
        if as_json:
            print(json_of({"sent": sent, "missing": unsent}))
        return leave(status, line) if status or not as_json else status

    if known and known.problem:
        line = f"{known.problem}; python jobs.py sync sends what is left"
        return end(exit_status.NOT_UPLOADED, line, unsent=None)

    def changed(attempt: Path) -> bool:
        return bool(known and known.changed(attempt))

    def missing(attempt: Path) -> bool:
        return not delivered(attempt) or bool(known and not known.holds(attempt))

    def lacking(attempt: Path) -> Sequence[str]:
        return known.lacking(attempt) if known else ()

    folders = [file.parent for file in sorted(runs_root.glob(f"*/*/{layout.JOURNAL}"))]
    left = [each for each in folders if missing(each) or changed(each) or lacking(each)]
    left = [folder for folder in left if not locks.held(folder / layout.LOCK)]
    for folder in left:
        try:
            if delivered(folder):
                _forget(folder)  # what is there stays once; another `sync` may do the same
            _send(folder)
            if changed(folder):  # it has points that nobody logged, which cannot be deleted
                mlflow_store.client().delete_run(read_record(folder / layout.SENT)["run"])
                _forget(folder)
                _send(folder)
            if names := lacking(folder):
                raise JobError(f"was sent without {few(names, 3)}: the tag `files` says why")
        except JobError as error:
            leave(exit_status.FAILED, f"job {folder.parent.name} {error}")
        except PermissionError as error:  # the folder of another user
            leave(exit_status.FAILED, f"job {folder.parent.name} cannot be sent: {cause(error)}")
        except Exception as error:
            line = f"{len(sent)} of {len(left)} attempts sent; the tracking store: {reason(error)}"
            line += "; python jobs.py sync sends the rest"
            return end(exit_status.NOT_UPLOADED, line, len(left) - len(sent))
        else:
            sent.append(f"{folder.parent.name}/{folder.name}")
            if not as_json:
                print(f"job {sent[-1]} sent")
    line = f"{len(sent)} of {len(left)} attempts sent" if left else "the tracking store has all"
    unsent = len(left) - len(sent)
    return end(exit_status.FAILED if unsent else exit_status.DONE, line, unsent)


def _forget(folder: Path) -> None:
    """Have all of an attempt sent again."""
    journal.note_sent(folder, journal.id_of(folder), run="", status="", lines=0)


def _send(folder: Path) -> None:
    """Raises JobError for the job's files and its copies, or what the store raises."""
    with ExitStack() as held:
        try:
            lock = locks.take(folder / layout.LOCK)
            if not lock:
                raise JobError("is running and uploads its results itself, or another sync does")
            held.enter_context(lock)
            held.enter_context(_in_turn(folder))
            delivery = Delivery(folder)
        except (OSError, Damaged) as error:
            raise JobError(f"cannot be sent: {cause(error)}") from error
        delivery.send(over=True)
        try:
            delivery.copy()
        except (OSError, JobError) as error:
            raise JobError(f"was not copied: {cause(error)}") from error
        attempts.drop_checkpoints(folder)


if __name__ == "__main__":
    os.nice(5)  # training goes first
    main(*map(int, sys.argv[1:]))
