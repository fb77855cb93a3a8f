"""What `run.sh --list --cost` forecasts against what four sweeps really took.

    python benchmarks/costs.py > benchmarks/costs.md
    python benchmarks/costs.py FOLDER               # the same with the sweeps' projects kept there

Each sweep runs to its end in a project of its own. Then all but the first 0, 1 or 10 jobs that have
finished are put aside, and the forecast for the others is compared with the time that they took.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import median

from pages import machine, page
from projects import make, run

FINISHED = (0, 1, 10)
JOBS = 16

WIDTH = '''    width: int = setting(32, at_least=1)
    """Channels of the first block of the convnet."""

    pretrained: bool'''

COMMON = "--device cpu --eval-every 1e"
SWEEPS = {
    "lengths": [
        f"job --epochs {epochs} --lr {lr} --seed {seed}"
        for epochs, lr, seed in product((10, 30, 60, 90), (1e-3, 1e-2), (0, 1))
    ],
    "batch sizes": [
        f"job --epochs 30 --batch-size {size} --seed {seed}"
        for size, seed in product((32, 16, 64, 128), range(4))
    ],
    "widths": [
        f"job --epochs 6 --model convnet --width {width} --lr {lr} --seed {seed}"
        for width, lr, seed in product((16, 24, 32, 48), (1e-3, 1e-2), (0, 1))
    ],
    "a search": [
        f"search {JOBS} --lr 'log 1e-4 1e-1' --weight-decay 'log 1e-5 1e-1' --width 'choice 16 48' "
        "-- --epochs 6 --model convnet"
    ],
}
"""Lines of the grid, 16 jobs each."""


def project(folder: Path, name: str) -> Path:
    """Return a project with one of the sweeps, which has run."""
    made = folder / name.replace(" ", "-")
    if not made.exists():
        shutil.copytree(folder / "my_project", made)
        for file, old, new in (
            ("settings.py", "    pretrained: bool", WIDTH),
            (
                "models.py",
                'len(spec.classes)),\n    "convnet-sep',
                'len(spec.classes), settings.width),\n    "convnet-sep',
            ),
        ):
            text = (made / file).read_text()
            assert text.count(old) == 1, file
            (made / file).write_text(text.replace(old, new))
        head, rest = (made / "run.sh").read_text().split("grid() {\n")
        body = "".join(f"  {line} {COMMON}\n" for line in SWEEPS[name])
        tail = rest.split("\n}\n", 1)[1]
        (made / "run.sh").write_text(f"{head}grid() {{\n{body}}}\n{tail}")
    sweep(made)
    return made


def sweep(project: Path, *flags: str, **env: str) -> str:
    """Return what run.sh prints."""
    env = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "", **env}
    command = ["bash", "run.sh", *flags]
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


QUIET = """
import json, os, sys
from pathlib import Path
from labjobs.files import read_record, write_record
from labjobs.job import journal

for attempt in Path("runs").glob("*/*"):
    cost = read_record(attempt / "sent.json")
    if "processes" not in cost:
        continue
    seed = journal.seed_of(cost["journal"])
    (used,) = cost["processes"].values()
    ratio, used["seconds"] = used["cpu_seconds"] / used["seconds"], used["cpu_seconds"]
    times = os.stat(attempt / "metrics.jsonl")
    lines = (attempt / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    for place, line in enumerate(lines):
        found = journal.decoded(line, seed)
        if "elapsed_seconds" in found.get("metrics", {}):
            found["metrics"]["elapsed_seconds"] *= ratio
            number = found.pop("line")
            found.pop("crc")
            lines[place] = journal.encoded(number, json.dumps(found), seed)
    (attempt / "metrics.jsonl").write_bytes(b"".join(lines))
    os.utime(attempt / "metrics.jsonl", ns=(times.st_atime_ns, times.st_mtime_ns))
    write_record(attempt / "sent.json", cost)
"""


def quiet(project: Path) -> Path:
    """Return a copy in which all jobs took their CPU time, as on a machine with nothing else to do
    (about: processes wait for the disk, too)."""
    copy = project.with_name(f"{project.name}-quiet")
    if not copy.exists():
        shutil.copytree(project, copy)
        run(copy, "-c", QUIET)
    return copy


@contextmanager
def only(project: Path, count: int) -> Iterator[set[str]]:
    """Put all but the first jobs aside that have finished; yield the ids of the others."""
    ended = sorted(project.glob("runs/*/*/outcome.json"), key=lambda path: path.stat().st_mtime)
    assert len(ended) == JOBS
    others = [path.parents[1] for path in ended[count:]]
    aside = project / "aside"
    aside.mkdir()
    for job in others:
        job.rename(aside / job.name)
    try:
        yield {job.name for job in others}
    finally:
        for job in others:
            (aside / job.name).rename(job)
        aside.rmdir()


def took(project: Path, job: str) -> float:
    """Return the seconds of a job's process."""
    (path,) = project.glob(f"runs/{job}/*/sent.json")
    return sum(each["seconds"] for each in json.loads(path.read_text())["processes"].values())


def compared(project: Path, count: int) -> str:
    """Return a cell: the forecast over the truth, for all jobs that are known, with its range."""
    with only(project, count) as others:
        store = f"sqlite:///{project}/empty.db"  # knows nothing of the jobs that are put aside
        listed = json.loads(sweep(project, "--list", "--cost", "--json", MLFLOW_TRACKING_URI=store))
    found = {row["id"]: row["cost"] for row in listed if row["id"] in others and row["cost"]}
    if not found:
        return "nothing is known"
    truth = sum(took(project, job) for job in found)
    ratios = [sum(cost["seconds"][part] for cost in found.values()) / truth for part in range(3)]
    alike = sum(cost["alike"] for cost in found.values())
    held = sum(
        cost["seconds"][1] <= took(project, job) <= cost["seconds"][2]
        for job, cost in found.items()
    )
    ratio = "{:.2f} ({:.2f} to {:.2f})".format(*ratios)
    return f"{ratio}; {alike} of {len(found)} comparable, {held} in range"


def repeats(project: Path) -> list[float]:
    """Return the ratios of the longest to the shortest of jobs that differ in their seeds alone."""
    times: dict[str, list[float]] = {}
    for path in project.glob("runs/*/*/settings.json"):
        settings = json.loads(path.read_text())["settings"]
        alike = str({k: v for k, v in settings.items() if k != "seed"})
        times.setdefault(alike, []).append(took(project, path.parents[1].name))
    return [max(each) / min(each) for each in times.values() if len(each) > 1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    given = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as temporary:
        folder = given or Path(temporary)
        if not (folder / "my_project").exists():
            make(str(folder))
        rows, noise = [], []
        for name in SWEEPS:
            made = project(folder, name)
            for clock, at in (("", made), (", CPU time", quiet(made))):
                rows.append([f"{name}{clock}", *(compared(at, count) for count in FINISHED)])
            noise += repeats(made)
    about = (
        f"{machine('torch')}; {JOBS} jobs in each sweep, of the digits. A cell compares what `bash "
        "run.sh --list --cost` forecasts for the jobs that are left with the time that they took: "
        "the forecast for all of them, divided by that time, and its range; how many of them "
        "are comparable to jobs that have run; and for how many the time is within the range of "
        "their own forecast. The forecast is made from none, the first and the first ten jobs that "
        "had finished, in the order of the grid, in which the longest jobs and the largest "
        "networks come last. The machine had much other work to do, which changed while the sweeps "
        "ran: jobs took many times their CPU time, and among jobs that differ only in the seed the "
        f"longest took up to {max(noise):.2f} times as long as the shortest (median: "
        f"{median(noise):.2f}). So the second row of each sweep has the same jobs with their CPU "
        "time in place of the elapsed time, both in the journals and in the time that they took. "
        "`python benchmarks/costs.py` makes this page."
    )
    head = ["sweep", *(f"from {count}" for count in FINISHED)]
    page("What sweeps cost: forecast and actual", about, head, rows)


if __name__ == "__main__":
    main()
