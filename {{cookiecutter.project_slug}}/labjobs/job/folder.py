"""A job on disk: its id, the folder of its attempt and who owns that.

layout.py names the files in `runs/<id>/<attempt>/` (attempts.py). The lock is held by the process
that trains, so an attempt has one owner on this disk, and a dead owner is noticed immediately. The
`owner` in the lock file tells the tracking store which folder a run is from.
"""

import logging
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar
from uuid import uuid4
from weakref import finalize

from labjobs import layout, locks
from labjobs.errors import Elsewhere, JobError, SettingsError
from labjobs.evidence import fingerprint
from labjobs.evidence.fingerprint import Fingerprint
from labjobs.files import CODE, opened, portable, read_record, record, write_record, write_text
from labjobs.job import attempts, code_evidence, data_evidence, identity, journal, provenance
from labjobs.job.attempts import Evidence
from labjobs.job.data_evidence import Places
from labjobs.job.identity import DEFAULT
from labjobs.job.journal import Journal, record_of
from labjobs.job.runtime import MATTER, Runtime
from labjobs.job.terminal import Interruption, Terminal, log
from labjobs.settings import Metric, as_plain

S = TypeVar("S")

STOPPED = "stopped"  # tag of a run that a search has stopped, `at 2e`; `false` once it trains on
WIDTH = 512  # bytes of a lock file


class JobFolder(Generic[S]):
    """A job's folder, `root`, beside those of other jobs in `runs_root`, and its attempt's, `path`.
    `journal` is there once it is open."""

    journal: Journal
    owner = ""
    """Which process owns the attempt, once this one does."""
    trained: Mapping[str, Any] = {}
    """What outcome.json says of how long the job has trained, once it has."""

    def __init__(
        self, settings: S, runtime: Runtime, metrics: Mapping[str, Metric], script: str = DEFAULT
    ) -> None:
        self.settings, self.runtime, self.metrics, self.script = settings, runtime, metrics, script
        self.id = identity.job_id(settings, script)
        self.label = f"job {self.id}"
        self.runs_root = _resolved(runtime.runs_root)
        self.root = self.runs_root / self.id
        self.interruption = Interruption()
        attempts.name_input(self.id, settings, script)

    @property
    def name(self) -> str:
        """The settings that differ from their defaults, in one line; before them the script, if it
        is not run.py."""
        words = identity.as_words(self.settings)
        return words if self.script == DEFAULT else f"{self.script} {words}"

    # Which attempt it is, and what has changed since.

    @cached_property
    def code(self) -> Fingerprint:
        """The code that the job's results would depend on now."""
        return attempts.present_code(self.settings, self.script, self.runs_root)

    @cached_property
    def places(self) -> Places:
        """Where the job's data lies."""
        return Places(self.runtime.data_root.expanduser().absolute(), self.root.parent)

    @cached_property
    def path(self) -> Path:
        """The folder of the attempt with the present data and the present code, or code accepted as
        the same; with --continue-anyway, the folder of the last attempt that was stopped, if there
        is no other. A failed one in the folder of this code is started over there."""
        own = self.root / attempts.name(self.code.digest)
        if attempts.begun(own) and not self.compare(own).change:
            return own  # as of most jobs, whose others need not be looked for
        newest_first = attempts.all_of(self.root)[::-1]
        found: Iterator[Path] = (path for path in newest_first if not self.compare(path).change)
        if self.runtime.continue_anyway:
            found = chain(found, filter(attempts.can_go_on, newest_first))
        return next(found, None) or (own if attempts.left_nothing(own) else attempts.free(own))

    @property
    def begun(self) -> bool:
        """Whether the attempt has left results or something to continue from."""
        return attempts.begun(self.path)

    @property
    def latest(self) -> Path | None:
        """The folder of the attempt or, if it has not begun, of the last one; of several that have
        finished, of the one whose code differs least: a reverted experiment is not what counted."""
        if self.begun:
            return self.path
        newest_first = attempts.all_of(self.root)[::-1]
        if len(newest_first) < 2 or attempts.status_of(newest_first[0]) != "finished":
            return next(iter(newest_first), None)
        finished = [path for path in newest_first if attempts.status_of(path) == "finished"]
        return min(finished, key=lambda path: code_evidence.distance(path, self.code))

    def compare(self, attempt: Path, tags: Mapping[str, str] | None = None) -> Evidence:
        """Compare an attempt, or its run in the store, with the present code and data."""
        return attempts.compare(attempt, self.code, self.places, tags)

    @property
    def evidence(self) -> Evidence:
        """Whether the latest attempt, if there is one, has the present code and data."""
        return self.compare(self.latest) if self.latest else Evidence()

    @property
    def starts_over(self) -> bool:
        """Whether the code or the data has changed since an attempt that cannot be continued."""
        if not self.latest or not self.evidence.change:
            return False
        return self.outcome().get("status") != "finished" and not attempts.can_go_on(self.latest)

    @property
    def redone(self) -> bool:
        """Whether the attempt has begun anew, and has not finished since."""
        return self._has(layout.BEFORE)

    @property
    def adopted(self) -> bool:
        """Whether the attempt was done in another project."""
        return self._has(layout.ADOPTED)

    def _has(self, name: str) -> bool:
        """Whether the attempt has a file that those of few jobs have."""
        try:  # for thousands of jobs: finding the attempt, or a glob, takes longer
            folders = os.listdir(self.root)
        except OSError:
            return False
        some = any(os.path.exists(f"{self.root}/{each}/{name}") for each in folders)
        return some and (self.path / name).exists()

    def outcome(self) -> dict[str, Any]:
        """Return how the latest attempt ended; empty if it has not, or the record is damaged."""
        return record_of(self.latest, layout.OUTCOME) if self.latest else {}

    def finished(self) -> bool:
        """Return whether the attempt finished the job, with undamaged journal and records."""
        outcome = record_of(self.path, layout.OUTCOME)
        if outcome.get("status") != "finished" or not record_of(self.path, layout.SETTINGS):
            return False
        with suppress(OSError, JobError):
            return len(journal.lines_of(self.path)) == int(outcome["lines"])
        return False

    @property
    def drawn(self) -> dict[str, Any]:
        """Which draw of which `search` in run.sh the job is; empty if it is none."""
        found = read_record(self.root / layout.DRAWN)
        return dict(found["draw"]) if found.get("id") == self.id else {}

    # An attempt, from its lock to its outcome, in this order.

    def make(self) -> None:
        """Make sure that the job can write; raises SettingsError if it cannot."""
        old = self.latest if self.starts_over else None
        try:
            if old and attempts.status_of(old) != "diverged":
                attempts.replace(old, self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            os.close(locks.opened(self.path / layout.LOCK))
        except OSError as error:
            line = f"--runs-root: cannot write in {self.path}: {error.strerror}"
            raise SettingsError(line) from error

    def take(self) -> None:
        """Become the job's owner on this disk; raises Elsewhere if another process is."""
        if self.owner:
            return
        lock = locks.take(self.path / layout.LOCK)
        if lock is None:
            held = read_record(self.path / layout.LOCK)
            who = f"process {held['pid']} on {held['host']}" if held else "its lock says not where"
            raise Elsewhere(f"is already running ({who})")
        self._lock = lock
        finalize(self, lock.close)
        self.owner = _owner(lock, self.path)
        self._since_the_last = self.evidence, self.starts_over

    def note_reads(self) -> None:
        """From now on, record which files this process reads, besides those already recorded."""
        if self.runtime.force or self.starts_over:
            data_evidence.forget(self.path)
        inputs = attempts.inputs_of(self.settings, self.runs_root)
        data_evidence.begin(self.path, self.places, inputs)

    def discard(self) -> None:
        """Remove the folders again if they are empty."""
        lock = self.path / layout.LOCK
        if [file for file in self.path.iterdir() if not file.match(layout.DATA_FILES)] == [lock]:
            lock.unlink()
            data_evidence.forget(self.path)
            self.path.rmdir()
            with suppress(OSError):  # there are other attempts
                self.root.rmdir()

    def open(self) -> None:
        """Begin, or continue what an earlier attempt left; with --force, start over. Raises Damaged
        if the journal is not whole; other damaged files are written again, as the log says."""
        self._open_log()
        evidence, anew = self._since_the_last
        if self.runtime.force or anew:
            attempts.put_aside(self.path)
        if anew:
            line = "starting over, since the %s has changed (%s)"
            log.info(line, evidence.changed, evidence.change)
        code, self._data = code_evidence.digest(self.path), data_evidence.digest(self.path)
        begun = self.begun
        if not begun:
            # Before there is a journal: an attempt that has begun without its code fits no code.
            code = code_evidence.keep(self.path, self.code)
            self._note_settings(code=code)
            for advice in self.code.advice:
                log.info("%s", advice)
        self.journal = Journal(self.path, self.runtime.log_every)
        self._warn_of_damage()
        if begun and evidence.unchecked:
            log.warning("continuing: %s", evidence.unchecked)
        if begun and evidence.code:
            code = code_evidence.MIXED
        elif begun and evidence.data:
            self._data = data_evidence.MIXED
        elif not code_evidence.parts(self.path):
            log.warning("the record of the code was damaged; it is written again")
            code = code_evidence.keep(self.path, self.code)
        (self.path / layout.OUTCOME).unlink(missing_ok=True)
        if self.runtime.log_every not in ("auto", self.journal.log_every):
            line = "--log-every stays %s, the value that this job began with"
            log.warning(line, self.journal.log_every)
        copies = {} if self.runtime.scratch else provenance.keep_copies(self.root.parent)
        self._note_settings(code=code, data=self._data, journal=self.journal.start, **copies)
        changes, diff = self.path / "changes.diff", provenance.version()["changes"]
        write_text(changes, diff) if diff else changes.unlink(missing_ok=True)
        self._ran = fingerprint.begin(CODE)
        if STOPPED in self.journal.tags_before:
            self.journal.tags({STOPPED: "false"})

    def close(self, status: str, said: str) -> None:
        """Write down how the job ended, and its last line."""
        self._widen_code()
        for name, where in self.code.unseen.items():
            if data_evidence.note_unseen(name):
                log.info("%s: %s reads files without Python; declare: job.data(path)", where, name)
        self._data, changed, own = data_evidence.keep(self.path, self.places, self._data)
        if changed:
            log.warning("the data has changed while the job ran (%s changed)", changed)
        if own:
            line = "it is unknown whether %s changes, since the job has changed it itself; "
            log.info(line + "if it is not data: not-data in pyproject.toml", own)
        if self._data:
            self.journal.tags({"data": self._data})
        in_mlflow = {"finished": "FINISHED", "interrupted": "KILLED", "paused": "KILLED"}
        self.journal.close(in_mlflow.get(status, "FAILED"))
        outcome = {
            "schema": 1,
            "id": self.id,
            "status": status,
            "said": said,
            "code": code_evidence.digest(self.path),
            "data": self._data,
            "data_root": portable(self.places.data_root),
            "pause_after": self.runtime.pause_after,
            "journal": self.journal.start["journal"],
            "lines": self.journal.lines,
            **self.trained,
        }
        write_record(self.path / layout.OUTCOME, outcome)
        data_evidence.forget(self.path)
        if status == "finished":
            shutil.rmtree(self.path / layout.BEFORE, ignore_errors=True)

    def note_stop(self, where: str) -> bool:
        """Note that a search has stopped the job, in its outcome and its journal; return whether
        that is new. A job that is running or whose journal is damaged is left alone."""
        outcome = record_of(self.path, layout.OUTCOME)
        if (outcome.get("status"), outcome.get("said")) == ("stopped", where):
            return False
        with suppress(OSError, JobError):
            if lock := locks.take(self.path / layout.LOCK):
                with lock:
                    if record_of(self.path, layout.OUTCOME) != outcome:
                        return False  # it has just ended in another way
                    noted = Journal(self.path, "auto")
                    noted.tags({STOPPED: where})
                    noted.close("KILLED")
                    about = {"schema": 1, "id": self.id, **outcome, "lines": noted.lines}
                    about |= {"status": "stopped", "said": where, "journal": noted.start["journal"]}
                    write_record(self.path / layout.OUTCOME, about)
                    return True
        return False

    def _open_log(self) -> None:
        file = logging.FileHandler(self.path / layout.LOG, encoding="utf-8")
        file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.handlers = [file] if self.runtime.quiet else [file, Terminal()]
        log.setLevel(logging.INFO)
        # A full disk is reported once, without a trace for each log line.
        logging.raiseExceptions = False

    def _warn_of_damage(self) -> None:
        for name in (layout.SETTINGS, layout.OUTCOME):
            if (self.path / name).exists() and not record_of(self.path, name):
                log.warning("%s was damaged; it is written again", name)
        for file in filter(data_evidence.damaged, self.path.glob(layout.DATA_FILES)):
            line = "%s was damaged; some of the data that the job has read cannot be checked"
            log.warning(line, file.name)

    def note(self, **about: Any) -> None:
        """Write something down in settings.json, beside what it says already."""
        path = self.path / layout.SETTINGS
        write_record(path, record_of(self.path, path.name) | about)

    def _note_settings(self, **about: Any) -> None:
        given = {name: getattr(self.runtime, name) for name in MATTER}
        if found := attempts.inputs_of(self.settings, attempts.runs_root(self.runs_root)):
            about["inputs"] = {path.parent.name: path.name for path in found}
        self.note(
            schema=1,
            id=self.id,
            name=self.name,
            script=self.script,
            settings=identity.identity(self.settings),
            runtime={k: v for k, v in given.items() if v != getattr(Runtime, k)},
            metrics=as_plain(self.metrics),
            owner=self.owner,
            **about,
        )

    def _widen_code(self) -> None:
        code, names = code_evidence.widen(self.path, self.code, self.script, self._ran)
        if names:
            log.warning("added to the job's fingerprint, since it ran: %s", ", ".join(names))
            self.note(code=code)
            self.journal.tags({"code": code})


@cache  # once for thousands of jobs
def _resolved(path: Path) -> Path:
    return path.expanduser().resolve()


def owner_of(folder: Path) -> str:
    """Return the owner of an attempt whose lock this process does not hold; empty if none yet."""
    about = record_of(folder, layout.LOCK) or record_of(folder, layout.SETTINGS)
    return str(about.get("owner", ""))


def _owner(lock: TextIO, folder: Path) -> str:
    """The word that identifies the folder, made once; the lock file says who holds the lock now. If
    it is damaged, settings.json has the word too."""
    file = lock.fileno()
    held = opened(os.pread(file, WIDTH, 0).rstrip(b" "))
    if held.get("id") != folder.parent.name:
        held = record_of(folder, layout.SETTINGS)
    owner = str(held.get("owner") or uuid4().hex)
    now = {"id": folder.parent.name, "owner": owner, "pid": os.getpid(), "host": platform.node()}
    # Replaced as a whole: a reader never sees half of it.
    os.pwrite(file, record(now).ljust(WIDTH), 0)
    os.fsync(file)
    return owner
