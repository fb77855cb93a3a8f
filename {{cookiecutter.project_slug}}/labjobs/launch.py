"""A job from its command line to its exit status (exit_status.py).

`begin` does what needs no torch: help, wrong settings, finished jobs, and the start of the courier,
which imports MLflow while the script imports torch. `run` of what it returns does the rest.
"""

import gc
import multiprocessing
import os
import platform
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labjobs import exit_status, machine
from labjobs import settings as declared
from labjobs.attempt import Attempt, Scratch
from labjobs.distributed import ranks
from labjobs.distributed.ranks import ALONE, STOPPED, Other
from labjobs.errors import JobError, SettingsError, cause, first_line
from labjobs.job import attempts, data_evidence, terminal
from labjobs.job.data_evidence import Places
from labjobs.job.folder import JobFolder
from labjobs.job.identity import ON_HOST, PLACE
from labjobs.job.journal import Journal
from labjobs.job.terminal import Interrupted, Interruption, Stopped, leave
from labjobs.settings import Metric
from labjobs.tracking import mlflow_store

if TYPE_CHECKING:
    from labjobs.distributed.collectives import Processes
    from labjobs.training import loop

if not multiprocessing.parent_process():  # one that a job starts imports the script again
    data_evidence.listen()  # before the script imports settings.py
data_evidence.join_by_environment()  # workers of pools import the script before they work


def begin(kind: type[Any], metrics: Mapping[str, Metric]) -> "Attempt | Check":
    """Read the command line of a job script; ends the process if there is nothing else to do.
    Returns an object with a method `run(main, check)`: an attempt at the job or, for --check, the
    test of the guarantees. Sweeps read these arguments from the script's source (job/identity.py).
    """
    # Until `run`: looking through all that torch makes, again and again, would take a second.
    gc.disable()
    # For sets of texts to have the same order in the process that continues a job, and in others.
    terminal.begin_again("PYTHONHASHSEED", "0")
    terminal.prepare_streams()
    terminal.handle_signals(signal.SIG_DFL)
    if os.environ.get(ON_HOST):
        machine.end_with_parent()
    ranks.translate()
    script = Path(sys.argv[0]).name
    # Absolute, for all processes that are started.
    os.environ["MLFLOW_TRACKING_URI"] = mlflow_store.store_uri()

    def folder() -> JobFolder[Any]:
        declared.check(metrics)
        settings, runtime = attempts.read(kind, Path(script).stem, sys.argv[1:])
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
    line = f"interrupted {Interrupted(number)} while it was starting; the same command starts it"
    os._exit(leave(exit_status.SIGNALLED + number, f"{folder.label} {line}"))


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
        data_evidence.join(notes, self._places)

    def _open(self) -> None:
        self.folder.journal = Journal(self.folder.path, self.folder.runtime.log_every)

    def _close(self, status: str, said: str) -> None:
        """Leave it to process 0."""

    def _refused(self, error: SettingsError) -> int:
        return self._failed(error)

    def _failed(self, error: BaseException) -> int:
        if self._is_lost(error):
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
        gc.enable()
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
            longer = "longer if a step is thousands of small operations"
            line = f"about {terminal.duration(MORE * seconds)} to go, {longer}"
            print(f"1 of 5 runs took {seconds:.0f} s; {line}", flush=True)
        found, trains = 0, trials.whole.resumed_at is not None
        for guarantee, answer in answers(trials):
            if trains or not answer.unknown:
                found += len(answer.findings)
                for line in answer.lines(guarantee):
                    print(line, flush=True)
        said = terminal.counted(found, "finding") if found else "nothing found"
        said += "" if trains else f"; {self.folder.script}.py does not train, so that is all"
        return leave(int(found > 0), f"check finished: {said}")
