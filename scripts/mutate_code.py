"""Random changes of the template's code: how many that change a tiny job's result go unnoticed.

    python scripts/mutate_code.py [--count 1000] [--seed 0]

Each change is made to the syntax tree of one of the template's own files. Then a tiny job runs with
it in this process, and its weights and metrics are compared bit for bit with those of before.
"""

import argparse
import ast
import contextlib
import io
import json
import logging
import os
import random
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDERS = ("tests", "tests/engine", "{{cookiecutter.project_slug}}")
sys.path[:0] = [str(REPOSITORY / folder) for folder in FOLDERS]

import repository  # noqa: E402, F401  (the engine takes the inner folder for its project)
import settings  # noqa: E402, F401  (which the mutants replace for a moment)
from attempts import Here, plain  # noqa: E402
from code_edits import student_files, write  # noqa: E402
from labjobs.evidence.fingerprint import Project  # noqa: E402
from labjobs.job.folder import JobFolder  # noqa: E402
from labjobs.job.identity import identity  # noqa: E402
from labjobs.job.runtime import Runtime  # noqa: E402
from mutants import code_in, mutate  # noqa: E402

FILES = student_files()

MODULES = ("settings", "models", "data", "optimizers", "run")
"""In an order in which they can be imported."""

SETTINGS = {
    "dataset": "digits",
    "augment": "crop-flip",
    "steps": 3,
    "eval_every": "2",
    "batch_size": 16,
    "accumulate": 2,
    "optimizer": "adamw",
    "weight_decay": 0.01,
    "schedule": "step",
    "warmup": "1",
    "label_smoothing": 0.1,
    "clip_norm": 1.0,
    "ema": 0.9,
    "patience": 5,
    "val_fraction": 0.5,
}
"""A tiny job that has nearly everything switched on."""


def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(FILES[f"{name}.py"]) for name in MODULES}


def mutant(chance: random.Random) -> tuple[str, str, str]:
    """Return a module's name, its source after a random change, and what was changed."""
    while True:
        name = chance.choice(MODULES)
        tree = trees()[name]
        node = chance.choice([n for s in tree.body for n in _code_in(name, s)])
        before = ast.unparse(node)
        if mutate(node, chance):
            ast.fix_missing_locations(tree)
            source = ast.unparse(tree)
            return name, source, f"{name}.py: {before[:60]!r} became {ast.unparse(node)[:60]!r}"


def _code_in(module: str, statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes of a statement that are code; of settings.py, those in functions."""
    if isinstance(statement, ast.If):  # the lines that begin and end run.py
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef) or module != "settings":
            yield from code_in(node)


def settings_of(model: str) -> Any:
    """Return the tiny job's settings, from the settings.py that is imported."""
    module = sys.modules["settings"]
    spans = {name: module.Span(SETTINGS[name]) for name in ("eval_every", "warmup")}
    return module.Settings(**{**SETTINGS, **spans, "model": model})


def result(changed: Mapping[str, str], model: str, root: Path) -> Any:
    kept = {name: sys.modules.get(name) for name in MODULES}
    try:
        for name in MODULES:
            source = changed.get(name) or FILES[f"{name}.py"]
            module = sys.modules[name] = types.ModuleType(name)
            exec(compile(source, f"{name}.py", "exec"), module.__dict__)
        return _job(model, root)
    except Exception:
        return None
    finally:
        for name, module_before in kept.items():
            sys.modules.pop(name, None)
            if module_before:
                sys.modules[name] = module_before


def _job(model: str, root: Path) -> Any:
    run, metrics = sys.modules["run"], sys.modules["settings"].METRICS
    runtime = Runtime(device="cpu", runs_root=root, quiet=True)
    folder = JobFolder(settings_of(model), runtime, metrics)
    try:
        status = Here(folder).run(run.main, run.check)
        if status:
            return None
        best = torch.load(folder.path / "best.pt", weights_only=True)
        said = json.loads((folder.path / "outcome.json").read_text())["said"]
    finally:
        folder._lock.close()
    return plain([best["models"], best["metrics"], best["step"]]), said


class Mutations:
    """Mutants of the template's code, against the code as it is."""

    def __init__(self, root: Path, model: str) -> None:
        self._root, self._model = root, model
        self._settings = identity(settings_of(model))
        self._digest = self._fingerprint(FILES)
        self._result = self.result({})

    def _fingerprint(self, files: Mapping[str, str]) -> str:
        with tempfile.TemporaryDirectory(dir=self._root) as folder:
            return Project(write(Path(folder), files)).fingerprint(self._settings).digest

    def result(self, changed: Mapping[str, str]) -> Any:
        with tempfile.TemporaryDirectory(dir=self._root) as folder:
            return result(changed, self._model, Path(folder))

    def is_noticed(self, module: str, source: str) -> bool:
        return self._fingerprint({**FILES, f"{module}.py": source}) != self._digest

    def changes_result(self, module: str, source: str) -> bool:
        """Return whether the tiny job has another result; a job that fails has none."""
        return self.result({module: source}) not in (self._result, None)


def main() -> int:
    """Print the counts, and each change that went unnoticed; returns 1 if there is any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    os.fsync = lambda file: None  # type: ignore[assignment]  # no power is cut here
    logging.disable()
    counts: Counter[tuple[bool, bool]] = Counter()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as root:
        jobs = {}
        for model in ("mlp", "convnet"):
            with contextlib.redirect_stdout(io.StringIO()):
                jobs[model] = Mutations(Path(root), model)
        for _ in range(arguments.count):
            name, source, what = mutant(chance)
            job = jobs[chance.choice(list(jobs))]
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                kind = job.changes_result(name, source), job.is_noticed(name, source)
            counts[kind] += 1
            if kind == (True, False):
                print(f"unnoticed: {what}", flush=True)
    noticed, unnoticed = counts[True, True], counts[True, False]
    print(f"{arguments.count} changes, of which {noticed + unnoticed} change the result")
    print(f"  of these, {noticed} are noticed and {unnoticed} are not")
    print(f"{counts[False, True]} others are flagged too: no other result, or the job fails")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
