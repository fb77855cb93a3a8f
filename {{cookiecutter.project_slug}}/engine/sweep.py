"""A sweep's jobs, looked at together before any of them starts: `python run.py --grid FOLDER`.

The folder holds a file for each job, its words ended by NUL bytes. Printed is a line a job, in the
order of the files: its state (`finished`, `pending`, or `repeated` if an earlier line is the same
job), its id and its folder. sweep.sh does the rest.
"""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from engine import cli, reading, store
from engine.job import Job, cause, leave
from engine.settings import PROJECT, JobSettings, SettingsError

S = TypeVar("S", bound=JobSettings)


class Grid(Generic[S]):
    """All jobs of a sweep; ends the process if one is wrong (status 2) or none is left to run."""

    def __init__(self, kind: type[S], folder: Path) -> None:
        self._commands = [
            file.read_text().split("\0")[:-1] for file in sorted(folder.iterdir(), key=_number)
        ]
        self._jobs: list[Job[S]] = []

        def add(words: list[str]) -> None:
            if {"-h", "--help", "--sync"} & set(words):
                raise SettingsError("this is no job")
            self._jobs.append(Job(cli.parse(kind, words)))

        self._each(add, self._commands)
        self._states = self._ask_states()
        if "pending" not in self._states:
            self._print()
            sys.exit(0)
        # Many jobs that open a new store at once would crash it, so it is made ready here, once.
        command = [sys.executable, "-m", "engine.store"]
        self._store = subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True)

    def run(self, check: Callable[[S], None], _main: Any) -> int:
        """Check the jobs that are left, now that torch can be asked; the exit status."""
        left = [job if state == "pending" else None for job, state in self._rows()]
        self._each(lambda job: check(job.settings) if job else None, left)
        self._each(lambda job: job.make_folder() if job else None, left)
        _, errors = self._store.communicate()
        if self._store.returncode:  # no reason not to train: the couriers will try again
            why = errors.strip().splitlines()[-1]
            leave(
                1, f"run.sh: the tracking store is away ({why}); results wait in the jobs' folders"
            )
        self._print()
        return 0

    def _each(self, act: Callable[[Any], Any], items: list[Any]) -> None:
        """Act on every job's item; name all that are wrong, then leave."""
        wrong = 0
        for number, (words, item) in enumerate(zip(self._commands, items, strict=True), start=1):
            try:
                act(item)
            except Exception as error:
                wrong += 1
                leave(2, f"job {number} ({shlex.join(words)}): {cause(error)}")
        if wrong:
            sys.exit(leave(2, f"run.sh: {wrong} wrong of {len(items)} jobs; nothing was started"))

    def _ask_states(self) -> list[str]:
        try:
            finished = reading.known(store.experiment_name()).finished
        except ConnectionError as error:
            leave(1, f"run.sh: {error}; going by the jobs' folders alone")
            finished = {job.id for job in self._jobs if job.outcome().get("status") == "finished"}
        seen: set[str] = set()
        states = []
        for job in self._jobs:
            done = job.id in finished and not job.settings.force
            states.append("repeated" if job.id in seen else "finished" if done else "pending")
            seen.add(job.id)
        return states

    def _rows(self) -> list[tuple[Job[S], str]]:
        return list(zip(self._jobs, self._states, strict=True))

    def _print(self) -> None:
        for job, state in self._rows():
            print(state, job.id, job.folder, sep="\t")


def _number(file: Path) -> int:
    return int(file.name)
