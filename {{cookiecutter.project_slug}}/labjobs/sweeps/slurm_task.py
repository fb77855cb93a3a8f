"""A Slurm task: runs the jobs of a chunk one after another; if there are several, as forks of
servers.

Slurm starts `python -m labjobs.sweeps.slurm_task FOLDER FIRST PROCESSES` in the sweep's copy of the
code, with the sweep's folder, the number of the array's first chunk, and how many processes, each
with a GPU, train a job. Slurm's warning (USR1, before the time limit or preemption) or TERM makes
the running job write a checkpoint and stop. The task then goes back into Slurm's queue; when it
starts again, it skips the jobs that have ended.

Exit status: 0 if all jobs have finished, or else the status of the first job that has not.
"""

import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from labjobs import files
from labjobs.errors import SettingsError, cause
from labjobs.job.terminal import leave
from labjobs.sweeps import chunks, plan, slurm
from labjobs.sweeps.chunks import Given
from labjobs.sweeps.plan import Row
from labjobs.sweeps.running import KILLED, PAUSE, Running
from labjobs.sweeps.starter import Starter

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)

INTERRUPTED = [128 + number for number in SIGNALS]
"""Exit statuses of a job that was asked to stop, and of its task."""

FINISHED = (0, 3)
"""Exit statuses of a finished job; after 3 the store lacks some of its results."""


class Chunk:
    """The jobs of a task, as submitted by a sweep. Remembers signals that arrive."""

    def __init__(self, jobs: Sequence[Given], since: int, task: str) -> None:
        self._jobs, self._since, self._task = jobs, since, task
        self._asked = 0
        for number in SIGNALS:
            signal.signal(number, self._ask)

    def _ask(self, number: int, *_: object) -> None:
        self._asked = number

    def run(self, starter: Starter) -> int:
        """Run the jobs that are left, until a signal; return the task's exit status."""
        result = 0
        for job in self._jobs:
            status = plan.ended(job.folder, self._since)
            if status is None:
                status = self._run(job, starter)
            if status in INTERRUPTED:
                return status
            if status not in FINISHED:
                result = result or status
        return result

    def _run(self, job: Given, starter: Starter) -> int:
        """Run a job, unless a signal has come; return its exit status."""
        if self._asked:
            return 128 + self._asked
        words = self._words(job)
        print(f"job {job.id} started: {shlex.join(words)}", flush=True)
        task, row = plan.Task(0, words, ()), Row("", "", job.id, job.folder)
        try:
            running = Running(task, row, self._task, starter)
        except OSError as error:
            return leave(1, f"job {job.id} cannot be started: {cause(error)}")
        status = self._wait(running)
        print(running.ending(status), flush=True)
        if (
            status == KILLED and self._asked
        ):  # the server got the signal too, and the real status is lost
            return 128 + self._asked
        return status

    def _wait(self, running: Running) -> int:
        """Wait for a job to end, and pass the signal on to it; return its exit status."""
        passed_on = 0
        while (status := running.status()) is None:
            if self._asked and not passed_on:
                passed_on = self._asked
                running.stop(passed_on)
            time.sleep(PAUSE)
        return status

    def _words(self, job: Given) -> list[str]:
        """A job's words, without --force if it has already started over, so that it continues."""
        begun = Path(job.folder) / "settings.json"
        if begun.exists() and begun.stat().st_mtime_ns > self._since:
            return [word for word in job.words if word != "--force"]
        return job.words


def main(folder: Path, first: int, processes: int) -> int:
    """Run this task's jobs; returns the exit status."""
    array, number = os.environ["SLURM_ARRAY_JOB_ID"], int(os.environ["SLURM_ARRAY_TASK_ID"])
    node, task = os.environ["SLURMD_NODENAME"], f"{array}_{number}"
    given, since = chunks.read(folder)
    jobs = given[first + number]
    chunk = Chunk(jobs, since, f"{node} (Slurm {task})")
    if not os.environ.get("OMP_NUM_THREADS"):  # Slurm may not confine jobs to their cores
        cores = int(os.environ["SLURM_CPUS_ON_NODE"])
        os.environ["OMP_NUM_THREADS"] = str(max(1, cores // processes))
    scripts = dict.fromkeys(job.words[0] for job in jobs)
    warm = len(jobs) > 1 and processes == 1
    starter = Starter(folder / "code", scripts, at_once=1, warm=warm, processes=processes)
    starter.learn(files.read_json(folder / "checked.json")["modules"])
    status = chunk.run(starter)
    if status in INTERRUPTED:
        try:
            slurm.requeue(task)
        except SettingsError as error:
            leave(status, f"{task} cannot be put back into the queue: {error}")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
