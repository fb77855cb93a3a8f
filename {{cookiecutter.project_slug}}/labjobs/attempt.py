"""An attempt at a job: whether it may begin, its course, its last line and its exit status."""

import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from labjobs import exit_status, layout, locks
from labjobs.distributed.ranks import First
from labjobs.errors import Diverged, JobError, SettingsError, cause, first_line
from labjobs.files import CODE, PROJECT, shown
from labjobs.job import attempts, code_evidence, identity, provenance, terminal
from labjobs.job.attempts import Evidence
from labjobs.job.folder import JobFolder
from labjobs.job.terminal import Interrupted, Stopped, leave, log
from labjobs.settings import as_plain
from labjobs.sources import fault
from labjobs.tracking import copies, costs, mlflow_store, stored_jobs
from labjobs.tracking.courier import IMPATIENCE, PATIENCE, Courier
from labjobs.tracking.mlflow_store import LEASE

if TYPE_CHECKING:
    from labjobs.distributed.collectives import Processes
    from labjobs.training import loop


NOTICE = 2.0  # seconds within which the processes of a job learn which of them has ended


class Attempt:
    """An attempt at a job, from `python run.py FLAGS`.

    Ends the process if the job is finished already, or running elsewhere.
    """

    processes: "Processes | None" = None  # the processes of a job that has several
    _temporary: Path | None = None  # a folder that is removed at the end
    _courier: Courier | None = None  # what uploads the results, unless the job is not stored

    def __init__(self, folder: JobFolder[Any]) -> None:
        self.folder = folder
        self._store_is_away = ""
        try:
            self._begin()
        except (JobError, OSError) as error:
            self._leave(exit_status.of(error), cause(error))
        self.place = folder.path, folder.places  # of the attempt and its data

    @property
    def _first(self) -> First | None:
        return self.processes.first if self.processes else None

    def _is_lost(self, error: BaseException) -> bool:
        """Whether an error says that another process of this job cannot be reached."""
        return self.processes is not None and self.processes.lost(error)

    def run(self, main: "loop.Main", check: "loop.Check") -> int:
        """Check the job and do it; returns the exit status, the same in all of its processes."""
        gc.enable()
        try:
            status = self._run(main, check)
        finally:
            if self._temporary:
                shutil.rmtree(self._temporary, ignore_errors=True)
        if self._first:
            self._first.end(status)
        return status

    def _leave(self, status: int, line: str) -> NoReturn:
        sys.exit(leave(status, f"{self.folder.label} {line}"))

    # Before torch is imported.

    def _begin(self) -> None:
        folder = self.folder
        identity.share_with_group(folder.runtime.runs_root)
        known = stored_jobs.known(mlflow_store.experiment_name())
        self._store_is_away = known.problem
        before = folder.outcome()
        if not folder.runtime.force:
            self._leave_if_over(known)
        attempts.begin_with_inputs(folder.settings, folder.runs_root)
        folder.make()
        identity.project_id()  # makes it, unless the job has been refused by now
        folder.take()
        if not folder.runtime.force and folder.outcome() != before:  # its owner has just ended it
            self._leave_if_over(known)
        if host := known.host(folder, folder.owner):
            line = f"is already running (on {host}, says the tracking store)"
            retry = f"if it is not, try again in {LEASE:.0f} s"
            self._leave(exit_status.ELSEWHERE, f"{line}; {retry}")
        self._prepare()

    def _prepare(self) -> None:
        self.folder.note_reads()
        self._courier = None if identity.is_fetched() else Courier()

    def _leave_if_over(self, known: stored_jobs.Known) -> None:
        """End the process if the job needs no attempt, or may not have one."""
        folder = self.folder
        evidence = folder.evidence
        last = {} if evidence.change else folder.outcome()
        here = last.get("status") == "finished"
        line = f"already finished: {self._results(last['said']) if here else 'see MLflow'}"
        found = known.evidence(folder, "finished")
        if found and not folder.redone and not copies.lacking(folder.path):
            self._leave(exit_status.DONE, line + _in_brackets(found.unchecked))
        if not folder.latest:
            others = known.of(folder.id, "finished")
            evidence = next((stored_jobs.evidence(folder, run) for run in others), evidence)
        self._leave_if_stale(evidence)
        elsewhere = not folder.latest and known.evidence(folder, "diverged")
        if last.get("status") == "diverged" or elsewhere:
            line = f"diverged before: {last.get('said', 'see MLflow')}; --force starts it over"
            self._leave(exit_status.FAILED, line)
        if folder.finished():  # but the store lacks something
            folder.take()
            self._courier = Courier()
            self._courier.carry(folder.path)
            sys.exit(self._delivered(line + _in_brackets(evidence.unchecked)))

    def _leave_if_stale(self, evidence: Evidence) -> None:
        """End the process if the job has finished, runs or would go on with other code or data."""
        folder, change, changed = self.folder, evidence.change, evidence.changed
        last = folder.latest if change and not folder.owner else None
        if last and locks.held(last / layout.LOCK):
            line = f"is already running, with other {changed} ({change})"
            self._leave(exit_status.ELSEWHERE, f"{line}; --force runs it with this {changed}, too")
        if folder.starts_over:
            return
        if change and (folder.outcome().get("status") == "finished" or not folder.latest):
            line = f"was finished with other {changed} ({change})"
            line += f"; --force runs it again with this {changed}"
            self._leave(exit_status.OTHER_CODE, line)
        if change and not folder.runtime.continue_anyway:
            line = f"was begun with other {changed} ({change}); --force starts it over"
            go_on = f"--continue-anyway continues it with this {changed}"
            self._leave(exit_status.OTHER_CODE, f"{line}, {go_on}")

    # Once the script has imported torch.

    def _run(self, main: "loop.Main", check: "loop.Check") -> int:
        failure: BaseException | None = None
        try:
            from labjobs.training.loop import Job  # torch, which the script has imported by now

            job = Job(self.folder, processes=self.processes, shared=self.place[0])
            check(job)
        except SettingsError as error:
            return self._refused(error)
        except (Exception, SystemExit) as error:  # a mistake: its trace goes to the log
            failure = error
        try:
            self.folder.interruption.listen()
            self._open()
            if failure:
                raise failure
            said = self._result(job, main)  # sys.exit() in it finishes no job
        except Stopped as stop:
            if self._first and self._first.fault:  # torchrun has stopped the others
                return self._failed(JobError(self._first.fault))
            return self._stopped(stop)
        except (Exception, SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # With several processes, torchrun stops all of them once one has ended.
            terminal.handle_signals(signal.SIG_IGN if self.processes else signal.SIG_DFL)
            if self._first and self._is_lost(error):
                line = f"the processes of this job cannot reach each other ({first_line(error)})"
                return self._failed(JobError(self._first.lost(NOTICE) or line))
            return self._failed(error)
        return self._delivered(f"finished: {self._results(said)}")

    def _open(self) -> None:
        folder = self.folder
        folder.open()
        if self._courier:
            self._courier.carry(folder.path)
        changes = identity.since(type(folder.settings))
        about = {
            **{name: json.dumps(found) for name, found in changes.items() if found},
            "metrics": json.dumps(as_plain(folder.metrics)),
            "script": folder.script,
            "code": code_evidence.digest(folder.path),
            "diverged": "false",
        }
        if identity.purpose():
            about[identity.TAG] = os.environ[identity.PURPOSE]
        folder.journal.tags(provenance.tags() | mlflow_store.tags(folder) | about)
        folder.journal.flush()
        if self._store_is_away:
            log.warning("%s; results wait in the job's folder", self._store_is_away)
        if CODE == PROJECT and (engine := provenance.other_engine(PROJECT)):
            log.warning(engine)

    def _result(self, job: "loop.Job[Any]", main: "loop.Main") -> str:
        """Do the job; returns its results in one line."""
        try:
            job.start()
            said = terminal.as_line(job.finish(main(job)))
            terminal.handle_signals(signal.SIG_IGN)
        except BaseException as error:
            job.stop(save=isinstance(error, Stopped))
            known = isinstance(error, SettingsError) or self._is_lost(error)
            if isinstance(error, Exception) and not known:
                _check_finite(job, error)
            raise
        finally:
            job.close()
        self._close("finished", said)
        return said

    def _results(self, said: str) -> str:
        tested = f"python jobs.py show {self.folder.id} prints its test results"
        return terminal.parts_of(said) or tested

    def _close(self, status: str, said: str) -> None:
        if identity.is_fetched():  # a courier would have measured it
            self.folder.journal.cost(costs.of_this_process())
        self.folder.close(status, said)

    # How it ends: its last line and its exit status.

    def _refused(self, error: SettingsError) -> int:
        if self._first:
            self._first.ending = True  # the others have found the same
        self._missing(IMPATIENCE)
        self.folder.discard()
        return leave(exit_status.WRONG, f"{self.folder.script}.py: {error}")

    def _failed(self, error: BaseException) -> int:
        why, status = cause(error), "diverged" if isinstance(error, Diverged) else "failed"
        log.error("%s: %s", status, why, exc_info=error)
        with suppress(OSError, AttributeError):  # a full disk; a job that could not be opened
            if status == "diverged":
                self.folder.journal.tags({"diverged": "true"})
            self._close(status, why)
        at = f"{place}; " if (place := fault(error)) else ""
        trace = f"{at}full trace: {shown(self.folder.path)}/log.txt"
        return self._ended(exit_status.of(error), f"{status}: {why} ({trace})")

    def _stopped(self, stop: Stopped) -> int:
        status = "interrupted" if isinstance(stop, Interrupted) else "paused"
        log.info("%s: %s", status, stop, extra={"said_last": True})
        with suppress(OSError, AttributeError):
            self._close(status, str(stop))
        flag = " without --pause-after" if status == "paused" else ""
        does = "continues it" if attempts.has_checkpoint(self.folder.path) else "begins it again"
        line = f"{status}: {stop}; the same command{flag} {does}"
        return self._ended(exit_status.of(stop), line)

    def _ended(self, code: int, line: str = "") -> int:
        problem = self._missing(IMPATIENCE)
        if self._courier and self._courier.displaced:  # the signal that interrupted it
            return leave(exit_status.ELSEWHERE, f"{self.folder.label} {problem}")
        return leave(code, f"{self.folder.label} {line}") if line else code

    def _missing(self, seconds: float) -> str:
        return self._courier.finish(seconds) if self._courier else ""

    def _delivered(self, line: str) -> int:
        """The exit status of a finished job; prints what the store lacks."""
        self.folder.interruption.listen()
        try:
            problem = self._missing(IMPATIENCE if self._store_is_away else PATIENCE)
            terminal.handle_signals(signal.SIG_IGN)  # nothing is left to stop
        except Interrupted as stop:
            problem = f"interrupted {stop}"
        if problem:
            line += f"; not everything has been uploaded ({problem}): "
            line += "python jobs.py sync uploads what is left"
            return leave(exit_status.NOT_UPLOADED, f"{self.folder.label} {line}")
        attempts.drop_checkpoints(self.folder.path)
        return leave(exit_status.DONE, f"{self.folder.label} {line}")


def _in_brackets(remark: str) -> str:
    return f" ({remark})" if remark else ""


def _check_finite(job: "loop.Job[Any]", error: Exception) -> None:
    """Raise Diverged if what a job depends on was not finite when this error was raised."""
    try:
        job.check_finite()
    except Diverged as diverged:
        if not isinstance(error, Diverged):
            raise Diverged(f"{diverged}; it led to {cause(error)}") from error
    except Exception as second:  # such as a GPU that answers no more: the first error counts
        log.info("the weights could not be looked at: %s", first_line(second))


class Scratch(Attempt):
    """A trial run for --scratch, in a temporary folder and without a store; nothing is left."""

    def _begin(self) -> None:
        folder = self.folder
        folder.label = "scratch"
        attempts.begin_with_inputs(folder.settings, folder.runs_root)
        self._temporary = Path(tempfile.mkdtemp(prefix="scratch-"))
        folder.root = self._temporary / folder.id
        folder.make()
        folder.take()

    def _failed(self, error: BaseException) -> int:
        if not isinstance(error, SettingsError | JobError):
            traceback.print_exception(error)  # the log with the trace is removed
        return leave(exit_status.of(error), f"scratch failed: {cause(error)}")

    def _stopped(self, stop: Stopped) -> int:
        return leave(exit_status.of(stop), f"scratch ended {stop}; nothing was kept")
