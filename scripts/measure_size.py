"""What a maintainer has to own: files of a project, the engine's size, and files in its five flows.

    python scripts/measure_size.py > docs/size.md

A file counts in a flow if one of its functions is called in any process of the flow.
"""

import ast
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from merge import REPOSITORY, TEMPLATE, names

ENGINE = TEMPLATE / "labjobs"
PACKAGE = f"{ENGINE.name}."

# Imported by each Python process of a flow. LABJOBS_SEEN names the file that it appends to, with
# one system call for a name, so that processes that are killed have told all the same.
# LABJOBS_WITHIN, a regular expression: only what is called within such a function counts.
RECORDER = """
import os, re, sys, threading

seen = os.open(os.environ["LABJOBS_SEEN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
within = re.compile(os.environ.get("LABJOBS_WITHIN") or ".*")
known, depth = set(), threading.local()


def record(frame, event, _argument):
    code = frame.f_code
    file = code.co_filename
    if "/labjobs/" not in file or not code.co_flags & 1:  # 1: a function, not a module or a class
        return
    name = file.rpartition("/labjobs/")[2]
    root = within.fullmatch(f"{name}:{code.co_qualname}")
    if event == "return":
        depth.value = getattr(depth, "value", 0) - bool(root)
        return
    if event == "call":
        depth.value = getattr(depth, "value", 0) + bool(root)
    if getattr(depth, "value", 0) > 0 and (name, os.getpid()) not in known:
        known.add((name, os.getpid()))
        os.write(seen, (name + "\\n").encode())


threading.setprofile(record)
sys.setprofile(record)
"""

FLOWS = {
    "`python run.py`, to the first step": 101,
    "the same, finished before: the answer": 54,
    "a metric: `job.log`, and all of the courier": 30,
    "the fingerprint of the code": 24,
    "killed, and continued": 102,
    "`bash run.sh`, two jobs": 130,
}
"""The five flows of an engine of 272 modules, and the files that were executed in each of them."""


def modules() -> dict[str, Path]:
    """Return the engine's modules by their full names; a package's `__init__` is left out."""
    files = [file for file in sorted(ENGINE.rglob("*.py")) if file.name != "__init__.py"]
    return {".".join((ENGINE.name, *f.relative_to(ENGINE).with_suffix("").parts)): f for f in files}


def imported(file: Path) -> Iterator[str]:
    """Yield the full names that a file imports, those of modules and those in them."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def importers() -> Counter[str]:
    """Return how many other files import each module: the engine's, its door, the student's."""
    every = modules()
    doors = [*ENGINE.glob("__init__.py*"), *TEMPLATE.glob("*.py")]
    files = [*every.values(), *(file for file in ENGINE.rglob("__init__.py")), *doors]
    found = Counter({name: 0 for name in every})
    for file in dict.fromkeys(files):
        own = {name for name, path in every.items() if path == file}
        found.update(set(imported(file)) & set(every) - own)
    return found


def generate(folder: Path, example: str = "classification", engine: str = "package") -> Path:
    """Return a fresh project."""
    flags = ["--no-input", "--default-config", "--output-dir", str(folder)]
    command = [sys.executable, "-m", "cookiecutter", str(REPOSITORY), *flags]
    answers = [f"example={example}", f"engine={engine}"]
    subprocess.run([*command, *answers], check=True, stdout=subprocess.DEVNULL)
    return folder / "my_project"


def files_of(project: Path) -> int:
    """Return what `git ls-files | wc -l` prints once all of a project is added."""
    git = ["git", "-C", str(project)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    return len(subprocess.check_output([*git, "ls-files"], text=True).splitlines())


class Flows:
    """The five flows, traced in one project."""

    def __init__(self, folder: Path) -> None:
        self._project = generate(folder, engine="source")
        (folder / "recorder").mkdir()
        (folder / "recorder" / "sitecustomize.py").write_text(RECORDER)
        self._seen = folder / "seen.txt"
        self._env = {
            **os.environ,
            "PYTHONPATH": str(folder / "recorder"),
            "LABJOBS_SEEN": str(self._seen),
            "PYTHON": sys.executable,
            "CUDA_VISIBLE_DEVICES": "",
        }

    def counts(self) -> list[int]:
        """Return the number of files in each flow, in the order of FLOWS."""
        one = ["run.py", "--epochs", "1", "--lr", "1e-3"]
        long = ["run.py", "--epochs", "900", "--log-every", "1", "--checkpoint-minutes", "0.01"]
        log = r"training/loop\.py:(Job|.*)\.log(_epoch)?|tracking/courier\.py:.*"
        evidence = r"evidence/fingerprint\.py:Project\.(__init__|fingerprint)"
        self.files(one)
        first = self.files(long, until=lambda: self._has("metrics.jsonl", b"train_loss"))
        finished = self.files(one)
        metric = self.files([*one, "--seed", "2"], log)
        fingerprint = self.files([*one, "--seed", "3"], evidence)
        self.files(long, until=lambda: self._has("last.pt", b""))
        before = self._steps()
        continued = self.files(long, until=lambda: self._steps() > before)
        self._write_grid("job --epochs 1 --seed 4\n  job --epochs 1 --seed 5")
        return [
            first,
            finished,
            metric,
            fingerprint,
            continued,
            self.files(["run.sh"], command="bash"),
        ]

    def files(
        self,
        words: Sequence[str],
        within: str = "",
        command: str = sys.executable,
        until: Callable[[], bool] | None = None,
    ) -> int:
        """Run a command, killed as soon as `until` holds; return the number of files executed."""
        self._seen.unlink(missing_ok=True)
        env = {**self._env, "LABJOBS_WITHIN": within}
        process = subprocess.Popen(
            [command, *words],
            cwd=self._project,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        while until and process.poll() is None:
            if until():
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.05)
        _, told = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), told
        return len(set(self._seen.read_text().splitlines()))

    def _unfinished(self, name: str) -> list[Path]:
        """Return the files of this name of jobs that have not ended."""
        found = self._project.glob(f"runs/*/*/{name}")
        return [path for path in found if not (path.parent / "outcome.json").exists()]

    def _has(self, name: str, content: bytes) -> bool:
        return any(content in path.read_bytes() for path in self._unfinished(name))

    def _steps(self) -> int:
        """Return how many points the journal of the job that has not ended has."""
        return sum(
            path.read_bytes().count(b"train_loss") for path in self._unfinished("metrics.jsonl")
        )

    def _write_grid(self, jobs: str) -> None:
        script = self._project / "run.sh"
        text = re.sub(
            r"(?s)grid\(\) \{\n.*?\n\}\n", f"grid() {{\n  {jobs}\n}}\n", script.read_text()
        )
        script.write_text(text)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    return "\n".join(
        f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)
    )


def main() -> None:
    """Print the page."""
    lines = sum(len(file.read_text().splitlines()) for file in ENGINE.rglob("*.py"))
    last = Counter(name.rpartition(".")[2] for name in modules())
    inits = len(list(ENGINE.rglob("__init__.py")))
    rows = [
        ("lines", "30,663", f"{lines:,}"),
        ("modules, `__init__` included", 272, len(modules()) + inits),
        ("names used by two modules or more", 22, sum(count > 1 for count in last.values())),
        ("modules imported by exactly one file", 82, sum(n == 1 for n in importers().values())),
    ]
    with tempfile.TemporaryDirectory() as folder:
        flows = Flows(Path(folder)).counts()
    projects = []
    for example in ("classification", *names()):
        with tempfile.TemporaryDirectory() as folder:
            projects.append((example, files_of(generate(Path(folder), example))))
    print("# The size of the engine and of a project\n")
    print("`python scripts/measure_size.py` makes this page. The earlier numbers are those of the")
    print("engine that was copied into each project.\n")
    print(table(["the engine", "before", "now"], rows), "\n")
    print("Files of the engine of which a function is called, in all processes:\n")
    both = [(flow, FLOWS[flow], now) for flow, now in zip(FLOWS, flows, strict=True)]
    print(table(["flow", "before", "now"], both), "\n")
    print("Files of a fresh project, by its example (324 before, for classification):\n")
    print(table(["example", "files"], projects))


if __name__ == "__main__":
    main()
