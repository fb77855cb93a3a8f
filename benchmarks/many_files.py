"""What data of many files costs the commands that say whether finished jobs still count.

    python benchmarks/many_files.py > benchmarks/many-files.md

Two projects have the same jobs, whose data.py reads a folder of files: one, or very many. Their
commands take turns. Each looks at the size and the times of every file; "after a copy", when the
files have other times, it reads them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pages import machine, page, spread
from projects import add, make, run

READS = """
from pathlib import Path

FOUND = [path.read_bytes() for path in sorted(Path("data").glob("*/*"))]
"""

SHORT = ("--epochs", "1", "--batch-size", "256", "--quiet")
GRID = 'grid() {\n  for seed in 0 1 2 3; do job --seed "$seed" ' + " ".join(SHORT) + "; done\n}\n"
COMMANDS = {
    "`python run.py` of a finished job": (sys.executable, "run.py", "--seed", "0", *SHORT),
    "`bash run.sh --list` of four": ("bash", "run.sh", "--list"),
    "`python jobs.py stale` of four": (sys.executable, "jobs.py", "stale"),
}


def project_with(files: int, folder: str) -> Path:
    """Return a project with four finished jobs that have read so many files, 1,000 a folder."""
    project = make(folder)
    add(project, data=READS)
    for number in range(files):
        path = project / "data" / f"{number // 1000:03d}" / f"{number:06d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}\n" * 100)
    text = (project / "run.sh").read_text()
    begin, end = text.index("grid() {"), text.index("\n}\n", text.index("grid() {")) + 3
    (project / "run.sh").write_text(text[:begin] + GRID + text[end:])
    for seed in range(4):
        run(project, "run.py", "--seed", str(seed), *SHORT)
    return project


def seconds(project: Path, words: tuple[str, ...]) -> float:
    """How long a command takes."""
    begun = time.perf_counter()
    subprocess.run(words, cwd=project, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as many:
        projects = project_with(1, one), project_with(given.files, many)
        found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in COMMANDS}
        for _ in range(given.rounds):
            for name, words in COMMANDS.items():
                for times, project in zip(found[name], projects, strict=True):
                    times.append(seconds(project, words))
        for path in projects[1].glob("data/*/*"):
            os.utime(path)
        words = COMMANDS["`python run.py` of a finished job"]
        copied = [seconds(projects[1], words) for _ in range(2)]
        (listed,) = projects[1].glob("runs/.data/*.jsonl")
        size = listed.stat().st_size / 1e6
    about = (
        f"{machine('torch', 'mlflow')}; seconds, {given.rounds} rounds, in turns; median (least to "
        f"most). Four jobs share the list of their files, which has {size:.1f} MB. Each command "
        "looks at the size and the times of each file, since a folder has the same times after a "
        "file in it was edited. `python benchmarks/many_files.py` makes this page."
    )
    rows = [[name, *(spread(times) for times in pair)] for name, pair in found.items()]
    first, next_one = (f"{each:.2f}" for each in copied)
    rows.append(
        ["`python run.py`, the first after a copy, and the next", "", f"{first}, {next_one}"]
    )
    page("Data of many files", about, ["", "one file", f"{given.files:,} files"], rows)


if __name__ == "__main__":
    main()
