"""The command `jobs.py cluster check`: a job of a minute on a cluster, and what worked there.

It goes the way of a sweep's jobs: submitted, started, warned before its limit, put back. The job
writes a line about each thing into `found`, in a folder below .sweeps/.
"""

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TextIO

from labjobs import files, layout
from labjobs.commands import gpu
from labjobs.commands.gpu import NOT, OK, Line
from labjobs.commands.inventory import Project
from labjobs.errors import SettingsError, cause, few
from labjobs.files import PROJECT
from labjobs.job import provenance
from labjobs.job.terminal import WARNINGS, Interruption
from labjobs.sweeps import arrays, containers, grid, options, states
from labjobs.sweeps.clusters import Array, Cluster, expanded
from labjobs.tracking import mlflow_store, stored_jobs

LIMIT = "0:02:00"  # Slurm counts in minutes, and warns a minute before the end
LOOK = 2.0  # seconds between two looks at the job
FOUND, WARNING, AGAIN = "found", "warning: ", "started again"


def check(_: Project, given: Namespace) -> int:
    """Submit a job to a cluster and print what works there; returns the exit status."""
    cluster = replace(options.cluster(given.name), time=LIMIT)
    Interruption().listen()
    folder = PROJECT / layout.SWEEPS / f"check-{os.getpid()}"
    folder.mkdir(parents=True)
    states.lock_snapshot(folder)
    data = PROJECT / expanded(cluster.data or "data")
    files.write_json(folder / layout.SUBMITTED, {"cluster": vars(cluster), "data": _names(data)})
    array, lines = "", list[str]()
    try:
        script = arrays.script(cluster, PROJECT, "labjobs.commands.cluster", folder)
        array = cluster.batch.submit(cluster, Array(script, folder, 1))
        with redirect_stdout(sys.stderr) if given.json else nullcontext():
            print(f"submitted to {cluster.batch.title} as {array}", flush=True)
            for line in _results(cluster, array, folder):
                print(line, flush=True)
                lines.append(line)
    finally:
        if array and array in cluster.batch.tasks():
            cluster.batch.cancel([array])
        shutil.rmtree(folder, ignore_errors=True)
    known = [
        (mark, line.removeprefix(mark))
        for line in lines
        for mark in (OK, NOT)
        if line.startswith(mark)
    ]
    if given.json:
        found = [{"works": mark == OK, "said": said} for mark, said in known]
        print(files.json_of({"task": array, "found": found}))
    return int(any(mark == NOT for mark, _ in known))


def _results(cluster: Cluster, array: str, folder: Path) -> Iterator[str]:
    """Yield a line about each thing that works or does not, once that is known."""
    begun, told, state, found = time.monotonic(), 0, "", ""
    while True:
        before, state = state, cluster.batch.tasks().get(array, {}).get(0, "")
        found = (folder / FOUND).read_text("utf-8") if (folder / FOUND).exists() else ""
        if found and not told:
            yield f"{OK}started after {time.monotonic() - begun:.0f} s"
        yield from found.splitlines()[told:]
        told = len(found.splitlines())
        if not state or AGAIN in found or (WARNING in found and state.startswith("PENDING")):
            break
        if not told and state != before:
            yield f"     {state}"
        time.sleep(LOOK)
    if WARNING not in found:
        said = grid.last_line(next(folder.glob("*.txt"), folder))
        yield f"{NOT}ended early: {said or 'without output; do nodes share the folder?'}"
    elif cluster.put_back:
        yield f"{OK if state or AGAIN in found else NOT}put back into the queue"
    sign = PROJECT / expanded(cluster.runs or "runs") / folder.name
    yield f"{OK if sign.exists() else NOT}runs: what the job writes into {sign.parent} arrives here"
    sign.unlink(missing_ok=True)


def _names(data: Path) -> list[str]:
    return os.listdir(data) if data.is_dir() else []


def main(folder: Path, *inside: str) -> int:
    """Tell what works in this task, and `inside` its container; returns the exit status that puts
    it back into the queue."""
    about = files.read_json(folder / layout.SUBMITTED)
    cluster = Cluster(**about["cluster"])
    array, own, node, _ = cluster.batch.this_task()
    if inside:
        for line in _lines(f"in {os.environ[provenance.IMAGE]}", cluster, about["data"]):
            print(line, flush=True)
        return 0
    asked: list[int] = []
    for number in arrays.SIGNALS:
        signal.signal(number, lambda number, _: asked.append(number))
    with (folder / FOUND).open("a", encoding="utf-8", buffering=1) as found:
        if found.tell():
            print(f"{OK}{AGAIN}", file=found)
            return 0
        if cluster.container:
            _tell_from_container(cluster.container, folder, found)
        else:
            for line in _lines(f"on {node}", cluster, about["data"]):
                print(line, file=found)
        runs = PROJECT / expanded(cluster.runs or "runs")
        runs.mkdir(parents=True, exist_ok=True)
        (runs / folder.name).touch()
        end = time.monotonic() + 200
        while not asked and time.monotonic() < end:
            time.sleep(0.1)
        warned = asked[:1] and asked[0] in WARNINGS
        print(f"{OK if warned else NOT}{WARNING}it came before the limit", file=found)
    return int(cluster.put_back(array, own, 0)) if cluster.put_back else 0


def _tell_from_container(container: str, folder: Path, found: TextIO) -> None:
    try:
        python = containers.python(containers.digested(container), PROJECT)
        words = [*python, "-m", "labjobs.commands.cluster", str(folder), "inside"]
        done = subprocess.run(words, stdout=found, stderr=subprocess.PIPE)
        if done.returncode:
            said = done.stderr.decode(errors="replace")
            print(NOT + said.strip().rpartition("\n")[2], file=found)
    except (OSError, SettingsError) as error:
        print(f"{NOT}{cause(error)}", file=found)


def _lines(where: str, cluster: Cluster, names: list[str]) -> Iterator[Line]:
    """What jobs have and need there, each with what is wrong with it."""
    python = f"Python {platform.python_version()} in {sys.prefix}"
    yield Line(where, f"{python}, labjobs {provenance.engine()}")
    import_module("torch")  # whose memory each job needs
    if cluster.gpus:
        hint = "; write gpus = 0 into cluster.toml if jobs are to train on the CPU there"
        for line in gpu.found():
            no_gpu = line.name == "GPU" and not line.works
            yield line._replace(found=line.found + hint) if no_gpu else line
    problem = stored_jobs.known(mlflow_store.experiment_name()).problem
    yield Line("store", ": ".join(filter(None, [mlflow_store.shown(), problem])), not problem)
    data = PROJECT / expanded(cluster.node_data or cluster.data or "data")
    missing = few(sorted({*names} - {*_names(data)}), 3)
    said = f"{missing} missing" if missing else f"{len(names)} names, as where jobs are submitted"
    yield Line("data", f"{data}: {said}", not missing)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
