"""The command `python run.py --check`."""

import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Generic, TypeVar

from labjobs import attempt, exit_status
from labjobs.errors import JobError, SettingsError
from labjobs.job import attempts
from labjobs.job.folder import JobFolder
from labjobs.job.terminal import Interrupted, Interruption, counted, duration, leave

S = TypeVar("S")

SLOW = 5.0
"""Seconds of the first run from which it is said how long the others will take."""

MORE = 6.0
"""How many times as long as the first run the others take; measured were 5.6 to 6.7."""


class Check(Generic[S]):
    """The test of a project's own code. No attempt is made: nothing of it is left."""

    def __init__(self, folder: JobFolder[S]) -> None:
        self._folder = folder
        # Before torch is imported: a process in which OpenMP has threads could not be forked.
        os.environ.setdefault("OMP_NUM_THREADS", "1")

    def run(self, main: attempt.Main, check: attempt.Check) -> int:
        """Print an answer for each guarantee; returns the exit status, 1 if one is broken."""
        try:
            attempts.begin_with_inputs(self._folder.settings, self._folder.runs_root)
            Interruption().listen()
            with TemporaryDirectory(prefix="check-") as temporary:
                return self._run(main, check, Path(temporary))
        except Interrupted as stop:
            return leave(
                exit_status.SIGNALLED + stop.number, f"check ended {stop}; nothing was kept"
            )
        except SettingsError as error:
            return leave(exit_status.WRONG, f"{self._folder.script}.py: {error}")
        except JobError as error:
            return leave(exit_status.FAILED, f"check failed: {error}")

    def _run(self, main: attempt.Main, check: attempt.Check, temporary: Path) -> int:
        from labjobs.checks.trials import Trials, answers  # torch, which the script has imported

        began = time.monotonic()
        trials = Trials(self._folder, main, check, temporary, smaller=True)
        failure = trials.whole.failure
        if failure and trials.whole.smaller and not isinstance(failure.error, SettingsError):
            whole = Trials(self._folder, main, check, temporary, smaller=False)
            if not whole.whole.failure:
                print(f"batches: whole, since smaller ones fail ({failure.error})", flush=True)
                trials, failure = whole, None
        if failure:
            print(failure.trace, end="", file=sys.stderr)
            raise failure.error
        seconds = time.monotonic() - began
        if seconds > SLOW:
            print(f"1 of 5 runs took {seconds:.0f} s; {duration(MORE * seconds)} to go", flush=True)
        found, trains = 0, trials.whole.resumed_at is not None
        for guarantee, answer in answers(trials):
            if trains or not answer.unknown:
                found += len(answer.findings)
                for line in answer.lines(guarantee):
                    print(line, flush=True)
        said = counted(found, "finding") if found else "nothing found"
        said += "" if trains else f"; {self._folder.script}.py does not train, so that is all"
        return leave(int(found > 0), f"check finished: {said}")
