"""Random changes of the template's code: how many that change a tiny job's result go unnoticed.

    python scripts/mutate_code.py [--count 1000] [--seed 0]

Each change is made to the syntax tree of one of the template's own files. Then a tiny job runs with
it in this process, and its weights and metrics are compared bit for bit with those of before.
"""

import argparse
import contextlib
import io
import logging
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDERS = ("tests", "tests/engine", "{{cookiecutter.project_slug}}")
sys.path[:0] = [str(REPOSITORY / folder) for folder in FOLDERS]

import repository  # noqa: E402, F401  (the engine takes the inner folder for its project)


def main() -> int:
    """Print the counts, and each change that went unnoticed; returns 1 if there is any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    import torch
    from mutations import Mutations, mutant

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
