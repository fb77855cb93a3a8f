"""A sweep's jobs as Slurm arrays: submitted, looked up in its queue, run there, and put back.

In the sweep's folder, `submitted.json` has the jobs in their order, and `slurm` lists the arrays:
an id and the index of the first job, a line each. Sources: slurm.schedmd.com/sbatch.html,
squeue.html, scontrol.html.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from labjobs import exit_status, files, layout
from labjobs.errors import SettingsError, cause
from labjobs.files import PROJECT
from labjobs.job.terminal import counted, leave
from labjobs.sweeps import grid
from labjobs.sweeps.grid import Entry
from labjobs.sweeps.options import Flags
from labjobs.sweeps.starter import PAUSE, Running, Starter
from labjobs.tracking.mlflow_client import experiment_name

OPTIONS = ("--parsable", "--signal=B:USR1@60", "--requeue", "--open-mode=append")
"""Default options of sbatch: USR1 is sent 60 s before the end, as a warning."""


def submit(
    folder: Path,
    left: Sequence[Entry],
    queued: Mapping[str, str],
    since: int,
    flags: Flags,
    sbatch: Sequence[str],
) -> str:
    """Submit the jobs of a sweep, each behind its inputs, as run.sh's flags and the words for
    sbatch say; returns a line that says so. Raises SettingsError.

    The jobs were checked at `since`, in ns: what was written before belongs to an earlier sweep.
    """
    arrays = [*_arrays_to_make(left, queued, _largest_array())]
    jobs = [(str(entry.job.path), entry.words) for entries, _ in arrays for entry in entries]
    files.write_json(folder / layout.SUBMITTED, {"since": since, "jobs": jobs})
    always = [f"--job-name={experiment_name()}", f"--gres=gpu:{flags.gpus_per_job}", *OPTIONS]
    always.append("--output=" + str(folder).replace("%", "%%") + "/slurm-%A_%a.txt")
    limit = f"%{flags.at_most}" if flags.at_most else ""
    ids: list[str] = []
    tasks: dict[str, str] = {}  # of the jobs that are submitted
    for entries, waits in arrays:
        first = len(tasks)
        words = [f"--array=0-{len(entries) - 1}{limit}", *always]
        # What is in the queue may end, in whatever way, before Slurm is told to wait for it.
        after = [
            f"afterok:{tasks[job]}" if job in tasks else f"afterany:{queued[job].split()[0]}"
            for job in waits
        ]
        if flags.at_most and ids:  # a limit holds within one array
            after.append(f"afterany:{ids[-1]}")
        if after:
            words += [f"--dependency={','.join(after)}", "--kill-on-invalid-dep=yes"]
        script = _script(folder, first, flags.gpus_per_job)
        try:
            printed = _ask("sbatch", *words, *sbatch, f"--wrap={script}")
            if not (found := re.fullmatch(r"(\d+)(;.*)?", printed.strip())):
                raise SettingsError("sbatch: has submitted nothing")
        except SettingsError as error:
            of = f"{first} of {counted(len(left), 'job')}"
            rest = f"; {of} were submitted, and the same command submits the rest"
            raise SettingsError(f"{error}{rest if ids else ''}") from error
        ids.append(found[1])
        tasks |= {entry.job.id: f"{ids[-1]}_{number}" for number, entry in enumerate(entries)}
        with (folder / "slurm").open("a", encoding="utf-8") as file:
            print(ids[-1], first, file=file)
    submitted = f"{counted(len(left), 'job')} submitted to Slurm as {', '.join(ids)}"
    return f"{submitted}; --list shows them"


def _arrays_to_make(
    left: Sequence[Entry], queued: Mapping[str, str], size: int
) -> Iterator[tuple[list[Entry], list[str]]]:
    """The jobs of each array, and the jobs that they all wait for."""
    own = {entry.job.id for entry in left}
    alike: dict[tuple[str, ...], list[Entry]] = {}
    for entry in left:  # those without inputs come first
        waits = tuple(job for job in entry.inputs if job in own or job in queued)
        alike.setdefault(waits, []).append(entry)
    for waits, entries in alike.items():
        for first in range(0, len(entries), size):
            yield entries[first : first + size], [*waits]


def _script(folder: Path, first: int, processes: int) -> str:
    """The script of an array's tasks: it starts `main` below. A signal that arrives before Python
    handles it must not end the script."""
    module = [sys.executable, "-m", "labjobs.sweeps.slurm", str(folder)]
    command = shlex.join(["env", f"PROJECT_FOLDER={PROJECT}", *module, str(first), str(processes)])
    return f"trap '' USR1 TERM; cd {shlex.quote(str(folder / 'code'))} && exec {command}"


def was_given(folder: Path) -> bool:
    """Whether Slurm has been given a sweep's jobs."""
    return (folder / "slurm").exists()


def has(folder: Path) -> bool:
    """Whether Slurm still has any of a sweep's jobs, or cannot be asked."""
    try:
        tasks = _tasks()
    except SettingsError:
        return True
    return any(array in tasks for array, _ in _arrays(folder))


def queued(sweeps: Path) -> dict[str, str]:
    """The jobs in Slurm's queue that have not ended, by job id: their tasks and Slurm's words for
    their states, such as `17_3 PENDING, Priority`. Raises SettingsError if Slurm does not answer.
    """
    found: dict[str, str] = {}
    folders = [folder for folder in sorted(sweeps.glob("*")) if was_given(folder)]
    tasks = _tasks() if folders else {}
    for folder in folders:
        with suppress(FileNotFoundError):  # removed in the meantime, so Slurm has none of its jobs
            jobs, since = _submitted(folder)
            for array, start in _arrays(folder):
                for task, state in tasks.get(array, {}).items():
                    attempt, _ = jobs[start + task]
                    if grid.ended(attempt, since) is None:
                        found[attempt.parent.name] = f"{array}_{task} {state}"
    return found


def _submitted(folder: Path) -> tuple[list[tuple[Path, list[str]]], int]:
    """The attempt and the words of each job that was submitted; when they were checked, in ns."""
    found = json.loads((folder / layout.SUBMITTED).read_bytes())
    return [(Path(attempt), words) for attempt, words in found["jobs"]], found["since"]


def _arrays(folder: Path) -> Iterator[tuple[str, int]]:
    for line in (folder / "slurm").read_text("utf-8").splitlines():
        array, start = line.split()
        yield array, int(start)


def _tasks() -> dict[str, dict[int, str]]:
    """The state of each task in Slurm's queue, with the reason if it waits, by array."""
    found: dict[str, dict[int, str]] = {}
    mine = ("squeue", f"--user={os.getuid()}")
    for line in _ask(*mine, "--noheader", "--array", "--format=%F %K %T %r").splitlines():
        array, task, state, reason = line.split(maxsplit=3)
        if task.isdecimal():
            waits = f", {reason}" if state == "PENDING" and reason != "None" else ""
            found.setdefault(array, {})[int(task)] = state + waits
    return found


def _largest_array() -> int:
    """How many tasks an array can have; their numbers begin at 0."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _ask("scontrol", "show", "config"), re.M)
    return int(found[1]) if found else 1001


def _ask(*command: str) -> str:
    """What a command of Slurm's prints."""
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    except FileNotFoundError as error:
        raise SettingsError(f"there is no {command[0]} on this machine") from error
    if done.returncode:
        said = "; ".join(done.stderr.strip().splitlines()) or f"status {done.returncode}"
        raise SettingsError(f"{command[0]}: {said.removeprefix(f'{command[0]}: ')}")
    return done.stdout


# A task of Slurm, which runs one job.
#
# Slurm starts `python -m labjobs.sweeps.slurm FOLDER FIRST PROCESSES` in the sweep's copy of the
# code, with the sweep's folder, the index of the array's first job, and how many processes, each
# with a GPU, train the job. Slurm's warning (USR1, before the time limit or preemption) or TERM
# makes the job write a checkpoint and stop; then the task goes back into Slurm's queue. Its exit
# status is the job's, but 0 for a finished job whose results are not all uploaded: jobs that are
# derived from it can start.

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


def main(folder: Path, first: int, processes: int) -> int:
    """Run this task's job; returns the exit status."""
    asked: list[int] = []
    for number in SIGNALS:
        signal.signal(number, lambda number, _: asked.append(number))
    task = "{SLURM_ARRAY_JOB_ID}_{SLURM_ARRAY_TASK_ID}".format_map(os.environ)
    jobs, since = _submitted(folder)
    attempt, words = jobs[first + int(os.environ["SLURM_ARRAY_TASK_ID"])]
    status = grid.ended(attempt, since)  # in an earlier run of this task
    if status is None:
        if not os.environ.get("OMP_NUM_THREADS"):  # Slurm may not confine jobs to their cores
            cores = int(os.environ["SLURM_CPUS_ON_NODE"])
            os.environ["OMP_NUM_THREADS"] = str(max(1, cores // processes))
        starter = Starter(folder / "code", 1, processes=processes, warm=False)
        begun = attempt / layout.SETTINGS
        if begun.exists() and begun.stat().st_mtime_ns > since:  # it has started over already
            words = [word for word in words if word != "--force"]
        place = f"{os.environ['SLURMD_NODENAME']} (Slurm {task})"
        status = _run(attempt, words, starter, place, asked)
    if status in [128 + number for number in SIGNALS]:
        try:  # unless Slurm has ended the task, as after scancel
            if _ask("squeue", "--noheader", f"--job={task}", "--format=%T").strip() == "RUNNING":
                _ask("scontrol", "requeue", task)
        except SettingsError as error:
            leave(status, f"{task} cannot be put back into the queue: {error}")
    return exit_status.DONE if status == exit_status.NOT_UPLOADED else status


def _run(
    attempt: Path, words: Sequence[str], starter: Starter, place: str, asked: Sequence[int]
) -> int:
    """Run a job, and pass on a signal that arrives; return its exit status."""
    if asked:
        return 128 + asked[0]
    job = f"job {attempt.parent.name}"
    print(f"{job} started: {shlex.join(words)}", flush=True)
    try:
        running = Running(attempt, words, place, starter)
    except OSError as error:
        return leave(exit_status.FAILED, f"{job} cannot be started: {cause(error)}")
    while (status := running.status()) is None:
        if asked:  # it ignores further ones
            running.send_signal(asked[0])
        time.sleep(PAUSE)
    print(running.ending(status), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
