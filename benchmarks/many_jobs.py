"""What `jobs.py` takes with many finished jobs: seconds and memory.

    python benchmarks/many_jobs.py > benchmarks/many-jobs.md

One job of each network is trained; the others are copies of it with other notes, on disk and in the
store. All of them are published in one folder.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from pages import machine, page
from projects import make, run

COPY = Path(__file__).resolve().parent / "copied_jobs.py"

MODELS = ("mlp", "convnet")
SHORT = ("--epochs", "1", "--batch-size", "256", "--quiet")
HEADLESS = ("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom")
COMMANDS = ("list", "list --json", "disk", "clean --dry-run", "clean", "publish")


EVIDENCE = ("settings.json", "outcome.json", "changes.diff", "data*.jsonl")
"""The files of a job that say what it was, with which code and data."""


def megabytes(paths: Iterable[Path]) -> str:
    """Return the size of files, as if no two were links to one."""
    return f"{sum(path.stat().st_size for path in paths) / 1e6:.1f} MB"


def taken(project: Path, *words: str) -> list[str]:
    """Return the seconds that a command takes, and the most memory of a process of it in MB."""
    begun, nothing = time.perf_counter(), subprocess.DEVNULL
    process = subprocess.Popen(words, cwd=project, stdout=nothing, stderr=nothing)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, words[:3]
    return [f"{time.perf_counter() - begun:.1f}", f"{used.ru_maxrss * 1024 / 1e6:,.0f}"]


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    each = parser.parse_args().jobs // len(MODELS)
    with tempfile.TemporaryDirectory() as folder:
        project, published = make(folder), Path(folder) / "published"
        for model in MODELS:
            run(project, "run.py", *SHORT, "--model", model)
        run(project, str(COPY), str(each))
        jobs = [path.name for path in (project / "runs").glob("[0-9a-f]*")]
        assert len(jobs) == each * len(MODELS)
        words = {name: (sys.executable, "jobs.py", *name.split()) for name in COMMANDS}
        words["publish"] += (*jobs, str(published))
        taken(project, *words["list"])  # which reads all of it for the first time
        rows = [[f"`jobs.py {name}`", *taken(project, *each)] for name, each in words.items()]
        if browser := shutil.which("chromium"):
            opened = (browser, *HEADLESS, f"file://{published}/index.html")
            rows.append(["the published page in Chromium", *taken(project, *opened)])
        own = [path for name in EVIDENCE for path in project.glob(f"runs/[0-9a-f]*/*/{name}")]
        shared = [path for path in project.glob("runs/.*/*") if path.is_file()]
        files = len([*project.glob(f"runs/{jobs[0]}/*/*")])
        evidence = (
            f"Of the {files} files of a job, {len(own) / len(jobs):g} say what it was, and with "
            f"which code and data: {megabytes(own)} of all jobs, and {megabytes(shared)} that they "
            "share."
        )
        index = (published / "index.html").stat().st_size / 1e6
    about = (
        f"{machine('torch', 'mlflow')}; {len(jobs):,} finished jobs, once, in a sqlite store. The "
        f"published page, `index.html`, has {index:.1f} MB. {evidence} "
        f"`{' '.join(['python benchmarks/many_jobs.py', *sys.argv[1:]])}` makes this page."
    )
    page("Many finished jobs", about, ["", "seconds", "memory (MB)"], rows)


if __name__ == "__main__":
    main()
