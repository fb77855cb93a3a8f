"""A refactor of run.py with thousands of finished jobs: what one types, reads and waits for.

    python benchmarks/refactor.py > benchmarks/refactor.md

One job of each network is trained; the others are copies of it with other notes, on disk and in the
store. Then a function is split off in run.py.
"""

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

from pages import machine
from projects import make, run

COPY = Path(__file__).resolve().parent / "copied_jobs.py"

FLAGS = '--epochs 1 --batch-size 256 --model "$model" --note "$note"'
MODELS = ("mlp", "convnet")
BEFORE = "    predicted = logits.argmax(-1)\n"
AFTER = "    predicted = classes(logits)\n"
FUNCTION = '''def classes(logits: Tensor) -> Tensor:
    """Return the predicted class of each example, (B,)."""
    return logits.argmax(-1)


'''
COMMANDS = (
    "bash run.sh",
    "python jobs.py stale",
    'python jobs.py accept --verify --because "classes() split off"',
    "bash run.sh",
)


def write_grid(project: Path, each: int) -> None:
    """Write a grid with `each` jobs of each network into run.sh."""
    script = project / "run.sh"
    head, _, rest = script.read_text().partition("grid() {\n")
    _, _, tail = rest.partition("\n}\n")
    loops = (
        f"  for model in {' '.join(MODELS)}; do\n  for ((note = 0; note < {each}; note++)); do\n"
    )
    script.write_text(f"{head}grid() {{\n{loops}  job {FLAGS}\n  done\n  done\n}}\n{tail}")


def split_function_off(project: Path) -> None:
    """Change run.py, but no result."""
    script = project / "run.py"
    text = script.read_text()
    assert BEFORE in text
    text = text.replace(BEFORE, AFTER).replace("def forward(", f"{FUNCTION}def forward(", 1)
    script.write_text(text)


def typed(project: Path, command: str) -> tuple[float, str]:
    """Return how many seconds a command takes, and what it prints."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    begun = time.perf_counter()
    done = subprocess.run(
        ["bash", "-c", f"{command} 2>&1"], cwd=project, env=env, capture_output=True, text=True
    )
    return time.perf_counter() - begun, done.stdout.strip()


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=5000)
    each = parser.parse_args().jobs // len(MODELS)
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder)
        write_grid(project, 1)
        typed(project, "bash run.sh")
        run(project, str(COPY), str(each))
        write_grid(project, each)
        typed(project, "bash run.sh")  # reads all of it for the first time
        split_function_off(project)
        told = [(command, *typed(project, command)) for command in COMMANDS]
    print("# A refactor with thousands of finished jobs\n")
    print(f"{machine('torch', 'mlflow')}; {each * len(MODELS):,} finished jobs, once.")
    print("In run.py, `logits.argmax(-1)` became a function of its own.")
    print("`python benchmarks/refactor.py` makes this page.")
    for command, seconds, printed in told:
        lines = printed.splitlines()
        shown = lines if len(lines) <= 8 else [*lines[:4], "…", *lines[-3:]]
        print(f"\n## {seconds:.0f} s\n```\n$ {command}")
        print("\n".join(shown).replace(str(project), "."), end="\n```\n")


if __name__ == "__main__":
    main()
