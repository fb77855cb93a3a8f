"""A job from its command line to its exit status (exit_status.py).

`begin` does what needs no torch: help, wrong settings, finished jobs, and the start of the courier,
which imports MLflow while the script imports torch. `run` of what it returns does the rest.
"""

import json
import multiprocessing
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from labjobs import exit_status, installation, layout, locks, machine
from labjobs import settings as declared
from labjobs.cli.parser import parse
from labjobs.distributed import ranks
from labjobs.distributed.ranks import ALONE, STOPPED, First, Other
from labjobs.errors import Diverged, JobError, SettingsError, cause, first_line
from labjobs.files import CODE, PROJECT, shown
from labjobs.job import (
    attempts,
    code_evidence,
    data_evidence,
    identity,
    provenance,
    runtime,
    terminal,
)
from labjobs.job.attempts import Evidence
from labjobs.job.data_evidence import Places
from labjobs.job.folder import JobFolder
from labjobs.job.journal import Journal
from labjobs.job.runtime import ON_HOST, PLACE, Runtime
from labjobs.job.terminal import Interrupted, Interruption, Stopped, leave, log
from labjobs.settings import Metric, as_plain
from labjobs.sources import fault
from labjobs.tracking import costs, mlflow_client, mlflow_store, stored_jobs
from labjobs.tracking.courier import IMPATIENCE, PATIENCE, Courier
from labjobs.tracking.mlflow_store import LEASE

if TYPE_CHECKING:
    from labjobs.distributed.collectives import Processes
    from labjobs.training import loop

if not multiprocessing.parent_process():  # one that a job starts imports the script again
    data_evidence.listen()  # before the script imports settings.py


def begin(kind: type[Any], metrics: Mapping[str, Metric]) -> "Attempt | Check":
    """Read the command line of a job script; ends the process if there is nothing else to do.
    Returns an object with a method `run(main, check)`: an attempt at the job or, for --check, the
    test of the guarantees. Sweeps read these arguments from the script's source (job/identity.py).
    """
    terminal.prepare_streams()
    terminal.handle_signals(signal.SIG_DFL)
    if os.environ.get(ON_HOST):
        machine.end_with_parent()
    ranks.translate()
    script = Path(sys.argv[0]).name
    # Absolute, for all processes that are started.
    os.environ["MLFLOW_TRACKING_URI"] = mlflow_client.store_uri()

    def folder() -> JobFolder[Any]:
        declared.check(metrics)
        settings, runtime = parse(kind, Runtime, sys.argv[1:])
        data_evidence.listen(False)  # what the engine reads from here on is not for the job
        return JobFolder(settings, runtime, metrics, Path(script).stem)

    try:
        if ranks.mine() != ALONE:
            return _of_several(folder, script)
        own = folder()
        terminal.handle_signals(partial(_leave_early, own))
        ranks.check(own.settings, own.runtime, 1)
        if place := os.environ.pop(PLACE, ""):
            from labjobs import away

            sys.exit(away.run(own, [script, *sys.argv[1:]], place))
        if own.runtime.check:
            return Check(own)
        return Scratch(own) if own.runtime.scratch else Attempt(own)
    except SettingsError as error:
        sys.exit(leave(exit_status.WRONG, f"{script}: {error}"))


def _leave_early(folder: JobFolder[Any], number: int, _frame: object) -> None:
    """End the process by a signal before its job listens to signals."""
    line = f"interrupted {Interrupted(number)} before it began; the same command starts it"
    os._exit(leave(exit_status.SIGNALLED + number, f"{folder.label} {line}"))


# An attempt at the job.

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
        known = stored_jobs.known(mlflow_client.experiment_name())
        self._store_is_away = known.problem
        if not folder.runtime.force:
            self._leave_if_over(known)
        attempts.begin_with_inputs(folder.settings, folder.runs_root)
        folder.make()
        identity.project_id()  # makes it, unless the job has been refused by now
        folder.take()
        if host := known.host(folder, folder.owner):
            line = f"is running already (on {host}, says the tracking store)"
            retry = f"if it is not, try again in {LEASE:.0f} s"
            self._leave(exit_status.ELSEWHERE, f"{line}; {retry}")
        folder.note_reads()
        self._courier = None if runtime.is_fetched() else Courier()

    def _leave_if_over(self, known: stored_jobs.Known) -> None:
        """End the process if the job needs no attempt, or may not have one."""
        folder = self.folder
        evidence = folder.evidence
        last = {} if evidence.change else folder.outcome()
        here = last.get("status") == "finished"
        line = f"already finished: {self._results(last['said']) if here else 'see MLflow'}"
        if (found := known.evidence(folder, "finished")) and not folder.redone:
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
        if change and folder.latest and locks.held(folder.latest / layout.LOCK):
            line = f"is running already, with other {changed} ({change})"
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
        failure: Exception | None = None
        try:
            from labjobs.training.loop import Job  # torch, which the script has imported by now

            job = Job(self.folder, processes=self.processes, shared=self.place[0])
            check(job)
        except SettingsError as error:
            return self._refused(error)
        except Exception as error:  # a mistake in the project's code: its trace goes to the log
            failure = error
        try:
            self.folder.interruption.listen()
            self._open()
            if failure:
                raise failure
            said = self._result(job, main)
        except Exception as error:
            # With several processes, torchrun stops all of them once one has ended.
            terminal.handle_signals(signal.SIG_IGN if self.processes else signal.SIG_DFL)
            if self._first and self._is_lost(error):
                line = f"the processes of this job cannot reach each other ({first_line(error)})"
                return self._failed(JobError(self._first.lost(NOTICE) or line))
            return self._failed(error)
        except Stopped as stop:
            if self._first and self._first.fault:  # torchrun has stopped the others
                return self._failed(JobError(self._first.fault))
            return self._stopped(stop)
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
        if runtime.purpose():
            about[runtime.TAG] = os.environ[runtime.VARIABLE]
        folder.journal.tags(provenance.tags() | mlflow_store.tags(folder) | about)
        folder.journal.flush()
        if self._store_is_away:
            log.warning("%s; results wait in the job's folder", self._store_is_away)
        if CODE == PROJECT and (engine := installation.problem(PROJECT)):
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
        if runtime.is_fetched():  # a courier would have measured it
            self.folder.journal.cost(costs.of_this_process())
        self.folder.close(status, said)

    # How it ends: its last line and its exit status.

    def _refused(self, error: SettingsError) -> int:
        if self._first:
            self._first.ending = True  # the others have found the same
        self._missing(IMPATIENCE)
        self.folder.discard()
        return leave(exit_status.WRONG, f"{self.folder.script}.py: {error}")

    def _failed(self, error: Exception) -> int:
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
        line = f"{status}: {stop}; the same command{flag} continues it"
        return self._ended(exit_status.of(stop), line)

    def _ended(self, code: int, line: str) -> int:
        problem = self._missing(IMPATIENCE)
        if self._courier and self._courier.displaced:  # the signal that interrupted it
            return leave(exit_status.ELSEWHERE, f"{self.folder.label} {problem}")
        return leave(code, f"{self.folder.label} {line}")

    def _missing(self, seconds: float) -> str:
        return self._courier.finish(seconds) if self._courier else ""

    def _delivered(self, line: str) -> int:
        """The exit status of a finished job; prints what the store lacks."""
        self.folder.interruption.listen()
        try:
            problem = self._missing(IMPATIENCE if self._store_is_away else PATIENCE)
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

    def _failed(self, error: Exception) -> int:
        if not isinstance(error, SettingsError | JobError):
            traceback.print_exception(error)  # the log with the trace is removed
        return leave(exit_status.of(error), f"scratch failed: {cause(error)}")

    def _stopped(self, stop: Stopped) -> int:
        return leave(exit_status.of(stop), f"scratch ended {stop}; nothing was kept")


# A job of several processes, which torchrun or srun has started. Process 0 makes the attempt, as
# the only process of a job would: it has the lock, the folder, the journal and the courier, and
# prints all messages. The others train along and end with the same status.


def _of_several(folder: Callable[[], JobFolder[Any]], script: str) -> Attempt:
    from labjobs.distributed.collectives import Processes  # torch, which one process imports later

    try:
        processes = Processes(ranks.mine())
    except Exception as error:  # of many kinds; there is no process 0 yet to say it for all
        line = f"the processes of this job cannot reach each other ({first_line(error)})"
        sys.exit(leave(exit_status.FAILED, f"{script}: {line}"))
    first, words = processes.rank.number == 0, [script, *sys.argv[1:]]
    if any(other != words for other in processes.everyones(words)):
        line = "the processes of this job have different flags; use an srun for each job"
        sys.exit(leave(exit_status.WRONG, f"{script}: {line}") if first else exit_status.WRONG)
    made = _leading(folder, processes) if first else _following(folder, processes)
    made.processes, processes.label = processes, made.folder.label
    return made


def _leading(folder: Callable[[], JobFolder[Any]], processes: "Processes") -> Attempt:
    try:
        own = folder()
        if own.runtime.check:
            raise SettingsError("--check: works with one process; leave torchrun out")
        ranks.check(own.settings, own.runtime, processes.rank.size)
        made = Scratch(own) if own.runtime.scratch else Attempt(own)
    except BaseException as error:
        left = error.code if isinstance(error, SystemExit) else exit_status.of(error)
        processes.tell((None, left))
        raise
    processes.tell((made.place, None))
    return made


def _following(folder: Callable[[], JobFolder[Any]], processes: "Processes") -> Attempt:
    # Process 0 prints everything. Errors that end Python itself still reach the terminal.
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 # as long as the process
    warnings.simplefilter("ignore")
    place, status = processes.tell(None)
    if place is None:
        sys.exit(status)
    assert processes.other
    if not place[0].is_dir():
        unseen = f"there is no {place[0]} on {platform.node()}; all machines need the same folders"
        processes.other.fail(unseen)
        sys.exit(processes.other.follow())
    return Following(folder(), processes, *place)


class Following(Attempt):
    """The attempt of process 0, seen from another process."""

    def __init__(
        self, folder: JobFolder[Any], processes: "Processes", shared: Path, places: Places
    ) -> None:
        self.processes, self._shared, self._places = processes, shared, places
        super().__init__(folder)
        self.place = shared, places

    def _begin(self) -> None:
        folder = self.folder
        folder.runtime = replace(folder.runtime, quiet=True, profile=0)
        self._temporary = Path(tempfile.mkdtemp(prefix="process-"))
        folder.root = self._shared.parent
        folder.path = self._temporary  # for the messages that process 0 writes to the log
        attempts.begin_with_inputs(folder.settings, folder.runs_root)
        assert self.processes
        notes = self._shared / data_evidence.of_process(self.processes.rank.number)
        data_evidence.join((notes, self._places))

    def _open(self) -> None:
        self.folder.journal = Journal(self.folder.path, self.folder.runtime.log_every)

    def _close(self, status: str, said: str) -> None:
        """Leave it to process 0."""

    def _refused(self, error: SettingsError) -> int:
        return self._failed(error)

    def _failed(self, error: Exception) -> int:
        if self.processes and self.processes.lost(error):
            return self._other.follow()
        self._other.fail(cause(error))
        if isinstance(error, SettingsError):  # which process 0 finds too, and says
            return self._other.follow()
        return exit_status.FAILED

    def _stopped(self, stop: Stopped) -> int:
        self._other.fail(f"{STOPPED} {stop}")
        return self._other.follow()

    def _delivered(self, line: str) -> int:
        return self._other.follow()

    @property
    def _other(self) -> Other:
        assert self.processes and self.processes.other
        return self.processes.other


# `--check`: the guarantees on this project's own code, tested in processes of their own.

SLOW = 5.0  # seconds of the first run from which it is said how long the others will take
MORE = 6.0  # times as long as the first run the others take; measured were 5.6 to 6.7


class Check:
    """The test of a project's own code. No attempt is made: nothing of it is left."""

    def __init__(self, folder: JobFolder[Any]) -> None:
        self.folder = folder
        # Before torch is imported: a process in which OpenMP has threads could not be forked.
        os.environ.setdefault("OMP_NUM_THREADS", "1")

    def run(self, main: "loop.Main", check: "loop.Check") -> int:
        """Print an answer for each guarantee; returns the exit status, 1 if one is broken."""
        try:
            attempts.begin_with_inputs(self.folder.settings, self.folder.runs_root)
            Interruption().listen()
            self._look_at_gpus()
            with tempfile.TemporaryDirectory(prefix="check-") as temporary:
                return self._run(main, check, Path(temporary))
        except Interrupted as stop:
            return leave(exit_status.of(stop), f"check ended {stop}; nothing was kept")
        except SettingsError as error:
            return leave(exit_status.WRONG, f"{self.folder.script}.py: {error}")
        except JobError as error:
            return leave(exit_status.FAILED, f"check failed: {error}")

    def _look_at_gpus(self) -> None:
        """Print what the GPUs can do that the job would see."""
        from labjobs.commands import gpu  # which no other job waits for
        from labjobs.sweeps import gpus

        if self.folder.runtime.device != "cpu" and gpus.nvidia_smi("-L"):
            for line in gpu.found():
                print(line, flush=True)

    def _run(self, main: "loop.Main", check: "loop.Check", temporary: Path) -> int:
        from labjobs.checks.trials import Trials, answers  # torch, which the script has imported

        began = time.monotonic()
        trials = Trials(self.folder, main, check, temporary, smaller=True)
        failure = trials.whole.failure
        if failure and trials.whole.smaller and not isinstance(failure.error, SettingsError):
            whole = Trials(self.folder, main, check, temporary, smaller=False)
            if not whole.whole.failure:
                print(f"batches: whole, since smaller ones fail ({failure.error})", flush=True)
                trials, failure = whole, None
        if failure:
            print(failure.trace, end="", file=sys.stderr)
            raise failure.error
        seconds = time.monotonic() - began
        if seconds > SLOW:
            print(
                f"1 of 5 runs took {seconds:.0f} s; {terminal.duration(MORE * seconds)} to go",
                flush=True,
            )
        found, trains = 0, trials.whole.resumed_at is not None
        for guarantee, answer in answers(trials):
            if trains or not answer.unknown:
                found += len(answer.findings)
                for line in answer.lines(guarantee):
                    print(line, flush=True)
        said = terminal.counted(found, "finding") if found else "nothing found"
        said += "" if trains else f"; {self.folder.script}.py does not train, so that is all"
        return leave(int(found > 0), f"check finished: {said}")
