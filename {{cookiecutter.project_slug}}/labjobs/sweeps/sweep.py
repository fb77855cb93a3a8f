"""Plans a sweep: looks at all jobs together before any of them starts.

run.sh starts `python -m labjobs.sweeps.sweep FOLDER FLAGS`, with the sweep's folder and its own
flags. Once the grid is complete (grid.py), every job is read, the code is copied, and the jobs that
are left are checked; then they run (queue.py) or are submitted to Slurm. Of the project, this
process imports only settings.py, and it does not import torch.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from labjobs import exit_status, files, installation, layout, settings
from labjobs.cli.flags import of as settings_flags
from labjobs.distributed import ranks
from labjobs.errors import SettingsError, cause
from labjobs.files import PROJECT
from labjobs.job import attempts, identity, provenance, terminal
from labjobs.job.terminal import leave
from labjobs.sweeps import gpus, grid, halving, slurm, states
from labjobs.sweeps.grid import STARTED, Entry
from labjobs.sweeps.options import Flags, read
from labjobs.sweeps.queue import Queue
from labjobs.sweeps.starter import Starter
from labjobs.tracking import mlflow_client


def run(folder: Path, words: list[str]) -> int:
    """Plan a sweep and run it, or do what the flags say instead; returns the exit status. Raises
    SettingsError before anything is started."""
    flags, sbatch = read(words)
    lock = states.lock_snapshot(folder)
    grid.answer(folder)
    _leave_when_asked()
    waiting = _confirm(folder, grid.confirmations(folder / "grid"))
    while True:
        status, before = _run(folder, flags, sbatch, lock), len(waiting)
        if not waiting or status or flags.list or flags.watch or flags.slurm:
            return status
        _leave_when_asked()
        waiting = _confirm(folder, waiting)
        if len(waiting) == before:
            return leave(status, "confirm waits until all jobs before it have results")


def _confirm(folder: Path, wanted: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Add the jobs that confirm what was chosen to the grid, for each `confirm` whose jobs have
    ended; return the others."""
    left = []
    for count, before in wanted:
        if not count.isdecimal() or not int(count):
            raise SettingsError(f"confirm {count}: expects a number of seeds, such as confirm 5")
        entries = grid.entries(folder / "grid")[:before]
        _read_jobs(entries)
        ended = {entry.job.id for entry, _ in grid.stopped(entries)}
        of_run = {entry.job.id for entry in entries if entry.script == identity.DEFAULT}
        asked = json.dumps({"count": int(count), "ids": sorted(of_run - ended)})
        command = [sys.executable, "-m", "labjobs.commands.confirm"]
        how: dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "cwd": PROJECT}
        done = subprocess.run(command, input=asked, **how)
        if done.returncode:
            raise SettingsError(mlflow_client.last_line(done.stderr))
        jobs = json.loads(done.stdout)
        grid.add(folder / "grid", jobs)
        left += [] if jobs else [(count, before)]
    return left


def _run(folder: Path, flags: Flags, sbatch: list[str], lock: int) -> int:
    """Run the jobs of the grid, or do what the flags say instead; return the exit status."""
    entries = grid.entries(folder / "grid")
    if not entries:
        raise SettingsError("the grid has no jobs")
    _read_jobs(entries)
    if flags.list or flags.watch:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `--list | head` prints no trace
        states.watch(entries) if flags.watch else states.show(entries, as_json=flags.json)
        return exit_status.DONE
    if flags.slurm and any(entry.halving for entry in entries):
        raise SettingsError("--slurm: not with halving, whose jobs wait for each other")
    states.clear_snapshots(folder)
    on_slurm, per_job = flags.slurm, flags.gpus_per_job
    places = [] if on_slurm else gpus.on_gpus(flags.gpus, flags.per_gpu or 1, per_job)
    view = states.View()
    view.warn()
    left = _left(entries, view, flags)
    if not left and flags.slurm:
        count = Counter(entry.state for entry in entries)
        held = ", ".join(f"{n} {state}" for state, n in sorted(count.items()))
        leave(exit_status.DONE, f"nothing submitted to Slurm: {held}")
        return _name_left_out(entries)
    if not left:
        return _end(entries)
    _check_left(left, entries, flags)
    if not (folder / "code").exists():
        states.take_snapshot(folder / "code")
    on_gpus = bool(places)
    if not places:
        most = min(gpus.at_once(entry.job.runtime.threads) for entry in left)
        places = [gpus.Gpu({}) for _ in range(flags.per_gpu or max(1, most // per_job))]
    numbers = [entry.number for entry in left]
    files.write_json(folder / layout.LEFT, {"numbers": numbers, "on_slurm": on_slurm})
    starter = Starter(folder / "code", min(len(left), len(places)), [lock], per_job)
    if starter.check(folder):
        return exit_status.WRONG
    since = (folder / layout.CHECKED).stat().st_mtime_ns
    grid.each(left, Entry.make)
    if not provenance.version()["commit"]:
        print("no git repository here, so no commit is recorded", flush=True)
    if problem := installation.problem(PROJECT):
        print(problem, flush=True)
    if on_slurm:
        status = _submit(folder, left, view, since, flags, sbatch)
        submitted = {*left}
        return status or _name_left_out([entry for entry in entries if entry not in submitted])
    if not (on_gpus or flags.per_gpu or files.read_json(folder / layout.CHECKED)["on_cpu"]):
        # The jobs take a GPU that nvidia-smi does not know, and all cores.
        places = places[:1]
        starter = Starter(folder / "code", 1, [lock], per_job)
    queue = Queue(left, len(entries), places, starter, flags, since)
    queue.run()
    return _end(entries, queue.status)


def _end(entries: list[Entry], status: int = 0) -> int:
    """Note which jobs halving has stopped, and print the results; return the exit status."""
    stopped = [] if status else grid.stopped(entries)
    noted = [e.job.runs_root for e, rung in stopped if e.job.note_stop(f"at {rung}")]
    for runs_root in {*noted}:  # if the store is away, `jobs.py sync` sends it
        send = "import sys, pathlib; from labjobs.tracking import courier; "
        send += "courier.sync(pathlib.Path(sys.argv[1]))"
        command = [sys.executable, "-c", send, str(runs_root)]
        subprocess.run(command, cwd=PROJECT, capture_output=True)
    return grid.summary(entries, status)


def _read_jobs(entries: list[Entry]) -> None:
    """Find out which jobs they are. Raises SettingsError."""
    for name in {entry.script for entry in entries}:
        try:
            script = identity.read(name)
        except SettingsError:  # reported for each of its jobs
            continue
        settings_flags(script.settings)  # a mistake in settings.py is reported only once
        settings.check(script.metrics)
    grid.each(entries, Entry.read)
    _join(entries)


def _join(entries: list[Entry]) -> None:
    """Find out which jobs a halving compares; one that is named outside of any as well runs to its
    end. Raises SettingsError."""
    halved = [(entry.halving, entry.job) for entry in entries if entry.halving]
    kept = {entry.job.id for entry in entries if not entry.halving}

    def check(entry: Entry) -> None:
        if entry.halving:
            halving.check(entry.halving, entry.job)
        for job in {*entry.inputs} & ({job.id for _, job in halved} - kept):
            raise SettingsError(f"its input {job} may be stopped by halving: name that elsewhere")

    grid.each(entries, check)
    brackets = halving.brackets(halved)
    for entry in entries:
        entry.bracket = None if entry.job.id in kept else brackets.get(entry.job.id)


def _left(entries: list[Entry], view: states.View, flags: Flags) -> list[Entry]:
    """Find the state of each job (`repeated` if it is earlier in the grid too, `skipped` because of
    --only); return the jobs that are left to run, inputs first."""
    to_run = {*STARTED}
    if not flags.slurm:
        to_run.add("running")  # wait for it; on Slurm, waiting would block a GPU
    if view.known.problem:
        to_run.remove("unsent")
    if flags.redo_stale:
        to_run.add("stale")
    seen: set[str] = set()
    for entry in entries:
        entry.state, entry.about = view.of(entry)
        if entry.job.id in seen:
            entry.state = "repeated"
        elif flags.only and entry.state in to_run - {flags.only}:
            entry.state = "skipped"
        seen.add(entry.job.id)
    left = {entry.job.id: entry for entry in entries if entry.state in to_run}
    if left and not flags.only:  # those that are compared with them may train on
        left |= {e.job.id: e for e in entries if e.bracket and e.state == "paused"}
    settings = {job: entry.job.settings for job, entry in left.items()}
    return [left[job] for job in attempts.inputs_first(settings)]


def _check_left(left: list[Entry], entries: list[Entry], flags: Flags) -> None:
    """Look for the inputs of the jobs that are left, in the grid or finished before, and check that
    the number of processes suits them. Raises SettingsError."""
    named = {entry.job.id for entry in entries}

    def act(entry: Entry) -> None:
        attempts.check_inputs(entry.job.settings, entry.job.runs_root, named)
        ranks.check(entry.job.settings, entry.job.runtime, flags.gpus_per_job)

    grid.each(left, act)


def _submit(
    folder: Path, left: list[Entry], view: states.View, since: int, flags: Flags, sbatch: list[str]
) -> int:
    """Hand the jobs that are left to Slurm; returns the exit status."""
    terminal.handle_signals(signal.SIG_IGN)  # or Slurm could get jobs whose folder is removed
    try:
        line = slurm.submit(folder, left, view.queued, since, flags, sbatch)
    except SettingsError as error:
        failed = exit_status.FAILED if slurm.was_given(folder) else exit_status.WRONG
        return leave(failed, f"run.sh: {error}")
    return leave(exit_status.DONE, line)


def _name_left_out(entries: list[Entry]) -> int:
    """Name the stale and the diverged jobs, which Slurm is not given; returns the exit status."""
    grid.name(entries, {"stale", "diverged"})
    return int(any(entry.state == "stale" for entry in entries))


def _leave_when_asked() -> None:
    """End the process by a signal, until the queue begins."""
    for number, status in (signal.SIGUSR1, 130), (signal.SIGTERM, 143):
        signal.signal(number, partial(_leave_early, status))


def _leave_early(status: int, *_: object) -> NoReturn:
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(leave(status, "run.sh: nothing was started"))


def main(folder: Path, words: list[str]) -> int:
    """Run a sweep; returns the exit status."""
    terminal.prepare_streams()
    terminal.handle_signals(signal.SIG_DFL)
    ranks.forget()
    sys.argv[0] = "run.sh"
    for number in (signal.SIGINT, signal.SIGHUP):  # run.sh forwards them, once
        signal.signal(number, signal.SIG_IGN)
    # Absolute, for all that is started.
    os.environ["MLFLOW_TRACKING_URI"] = mlflow_client.store_uri()
    try:
        return run(folder, words)
    except SettingsError as error:
        return leave(exit_status.WRONG, f"run.sh: {error}")
    except OSError as error:
        return leave(exit_status.FAILED, f"run.sh: {cause(error)}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
