"""What is left of a search for settings when everything is killed in the middle: halving-kills.md.

    pip install optuna 'ray[tune]' syne-tune psutil
    python benchmarks/halving_kills.py > benchmarks/halving-kills.md

Nine jobs below halving, one at a time. Ours are jobs of a fresh project; those of Optuna, Ray Tune
and Syne Tune report losses that were measured before (killed_searches.py), an epoch each second.
After 10, 20 or 30 epochs all processes get SIGKILL, as if the machine had lost its power. Then the
search is started again as its documentation says.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
from halving_jobs import PROBLEMS
from killed_searches import EPOCHS, FACTOR, JOBS, OTHERS, PACE, RUNGS, Epoch
from pages import machine, page
from projects import make

SEARCHES = Path(__file__).resolve().parent / "killed_searches.py"
KILLED_AFTER = (10, 20, 30)  # epochs
OURS = "run.sh"

HEAD = ("", "epochs", "trained again", "lost", "jobs of another length")
READING = """
`bash run.sh` is typed again. Of Optuna, a study in sqlite is loaded (`load_if_exists`), until none
of its trials is waiting. The trial that was running stays in that state for ever and has no result,
although its losses are still in the file; with a heartbeat it is tried again, from its first epoch:
checkpoints are left to the objective function. Ray Tune has `Tuner.restore` and a checkpoint of
each epoch, but writes at most every ten seconds how far jobs are. Of Syne Tune, the tuner is loaded
from its folder, where it is written every ten seconds, as its example launch_resume_tuning.py does;
the job that was running then is not continued.
"""


def about() -> str:
    """What the page says before its table."""
    return (
        f"{machine('torch', 'optuna', 'ray', 'syne-tune')}. {JOBS} jobs of {EPOCHS} epochs on "
        f"scikit-learn's digits, one at a time; one in {FACTOR} trains on after 1, 3 and 9 epochs. "
        f"run.sh has them in a fresh project, by `search {JOBS}` below `halving`, with "
        "`--checkpoint-minutes 0.001`; the jobs of the others report losses that were measured "
        "before. An epoch takes a second. Each search is left alone once, which takes as many "
        "epochs as the first column says. Then it is killed after 10, 20 and 30 epochs, each time "
        "from a new beginning: it and all that it has started get SIGKILL, just when an epoch has "
        "ended, and ten seconds later it is started again. Of each of the three kills: epochs that "
        "were trained again; epochs from before the kill that are in no result of the search in "
        "the end; and jobs that end after another number of epochs than without a kill. `python "
        "benchmarks/halving_kills.py` makes this page."
    )


class Running(NamedTuple):
    """A search: its folder, its command, and where that runs."""

    folder: Path
    command: list[str]
    project: Path

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, or start it again."""
        env = os.environ | {"PYTHON": sys.executable, "TRAINED": str(self.folder / "trained")}
        with (self.folder / "output").open("a") as file:
            command, cwd = self.command, self.project
            return subprocess.Popen(command, cwd=cwd, env=env, stdout=file, stderr=file)

    def trained(self) -> list[Epoch]:
        """The epochs that were trained, in their order."""
        path = self.folder / "trained"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(job, int(epoch)) for job, epoch in map(str.split, lines)]

    def known(self) -> set[Epoch]:
        """What the search knows, now that it has ended."""
        if self.command[0] != "bash":
            return {(job, epoch) for job, epoch in json.loads((self.folder / "known").read_text())}
        found = set[Epoch]()
        for path in self.project.glob("runs/*/*/metrics.jsonl"):
            lines = map(json.loads, path.read_text().splitlines())
            measured = [line["metrics"] for line in lines if "val_loss" in line.get("metrics", {})]
            found |= {(path.parts[-3], round(each["epoch"])) for each in measured}
        return found

    def ends(self) -> dict[str, int]:
        """How many epochs of each job the search knows."""
        return dict(sorted(self.known()))


def make_search(way: str, folder: Path, losses: list[list[float]]) -> Running:
    """A search that has not begun."""
    folder.mkdir(parents=True)
    if way != OURS:
        (folder / "losses.json").write_text(json.dumps(losses))
        return Running(folder, [sys.executable, str(SEARCHES), way, str(folder)], folder)
    project = make(str(folder))
    path = project / "run.py"
    count = "        time.sleep(PACE)\n"
    count += '        with open(os.environ["TRAINED"], "a") as file:\n'
    count += "            print(job._folder.id, job.step // len(batches), file=file)\n\n"
    place = "        metrics = evaluate(job, forward, ema.model, val"
    text = path.read_text().replace(place, count.replace("PACE", str(PACE)) + place)
    path.write_text(text.replace("import sys\n", "import os\nimport sys\nimport time\n", 1))
    flags = "--optimizer sgd --schedule constant --device cpu --checkpoint-minutes 0.001"
    halving = f"halving {FACTOR} {' '.join(f'{rung}e' for rung in RUNGS)}"
    search = f"search {JOBS} --lr 'log 1e-4 1' -- --epochs {EPOCHS} {flags}"
    script = project / "run.sh"
    grid = f"grid() {{\n  {halving}\n  {search}\n}}"
    script.write_text(re.sub(r"grid\(\) \{.*?\n\}", grid, script.read_text(), flags=re.S))
    return Running(folder, ["bash", "run.sh", "--per-gpu", "1"], project)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it has started, at once."""
    parent = psutil.Process(process.pid)
    every = [parent, *parent.children(recursive=True)]
    for act in (psutil.Process.suspend, psutil.Process.kill):
        for each in every:
            with suppress(psutil.NoSuchProcess):
                act(each)
    process.wait()


def run(search: Running, killed_after: int) -> set[Epoch]:
    """Let a search end, killed once after a number of epochs, or never if that is 0; return what
    was trained before the kill."""
    process, before = search.start(), set[Epoch]()
    if killed_after:
        while len(search.trained()) < killed_after:
            assert process.poll() is None, (search.folder / "output").read_text()
            time.sleep(0.1)
        kill(process)
        before = {*search.trained()}
        time.sleep(10 * PACE)
        process = search.start()
    assert process.wait() == 0, (search.folder / "output").read_text()
    return before


def row(way: str, folder: Path, losses: list[list[float]]) -> list[str]:
    """What a search has lost after each of the kills."""
    searches = [make_search(way, folder / f"{after}", losses) for after in (0, *KILLED_AFTER)]
    before = [*map(run, searches, (0, *KILLED_AFTER))]
    ends = [search.ends() for search in searches]
    again = [len(trained) - len({*trained}) for trained in map(Running.trained, searches)]
    lost = [len(was - search.known()) for was, search in zip(before, searches, strict=True)]
    others = [sum(ends[0].get(job) != own.get(job) for job in {*ends[0], *own}) for own in ends]
    listed = (", ".join(map(str, each[1:])) for each in (again, lost, others))
    return [way, str(len(searches[0].trained())), *listed]


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", nargs="+", default=[OURS, *OTHERS], choices=[OURS, *OTHERS])
    given = parser.parse_args()
    problem = PROBLEMS["digits"]
    losses = [problem.measured(job) for job in problem.drawn(0)[:JOBS]]
    with tempfile.TemporaryDirectory() as folder:
        rows = (row(way, Path(folder, str(n)), losses) for n, way in enumerate(given.ways))
        page("Searches that were killed", about(), HEAD, rows)
    print(f"\n{textwrap.fill(READING.strip(), 100)}")


if __name__ == "__main__":
    main()
