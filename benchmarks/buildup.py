"""The same training as the guides build it up: fp32, compiled, everything on, bf16.

    python benchmarks/buildup.py > benchmarks/buildup.md                # resnet18
    python benchmarks/buildup.py --gpt > benchmarks/buildup-gpt.md      # a small GPT

Each setting is a job, `python run.py --profile N`, and a loop by hand with the same options
(by_hand.py), one after another in each round, on the CPU. gpu_steps.py does so on a GPU.
"""

import argparse
import re
import shutil
import tempfile
from pathlib import Path

from pages import machine, page, spread
from projects import add, make, run

BY_HAND = Path(__file__).resolve().parent / "by_hand.py"

IMAGES = """

def _random(_root: Path, _size: int | None) -> Source:
    images = torch.randint(256, (400, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(10, (400,))
    return Source(TensorDataset(images, labels), [str(label) for label in range(10)])


DATASETS["random-images"] = _random
"""
TOKENS = """

def _tokens(_settings: Settings, _root: Path) -> list[Text]:
    import random

    return [random.Random(0).randbytes(100_000)]


DATASETS["random-tokens"] = _tokens
"""
EVERYTHING = "--clip-norm 1 --ema 0.999 --warmup 0.1e --log-every 1"
ALL = "and clipping, EMA, schedule, each step's loss and accuracy logged"
SETTINGS = {
    "fp32": "--precision fp32 --compile off",
    "fp32, compiled": "--precision fp32 --compile on",
    ALL: f"--precision fp32 --compile on {EVERYTHING}",
    "bf16": "--precision bf16 --compile off",
}


def job(gpt: bool) -> list[str]:
    """The network, the data and the batch."""
    if gpt:
        words = "--model gpt-small --context 64 --dataset random-tokens --batch-size 16"
    else:
        words = "--model resnet18 --dataset random-images --batch-size 8 --optimizer adamw"
    return f"{words} --device cpu".split()


def by_run_py(project: Path, words: list[str]) -> float:
    """Milliseconds a step, by the job's own profile."""
    run(project, "run.py", *words, "--epochs", "1", "--profile", "12", "--force", "--quiet")
    (path,) = project.glob("runs/*/*/profile.txt")
    found = re.search(r"([\d.e+]+) ms a step", path.read_text())
    shutil.rmtree(path.parent)
    assert found
    return float(found[1])


def by_hand(project: Path, words: list[str]) -> float:
    """Milliseconds a step."""
    return float(run(project, str(BY_HAND), *words).splitlines()[-1])


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpt", action="store_true")
    arguments = parser.parse_args()
    settings = dict(SETTINGS)
    if not arguments.gpt:
        settings.pop("bf16")  # a dozen times as long, where a processor has no instructions for it
    base = job(arguments.gpt)
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder, "language" if arguments.gpt else "classification")
        add(project, data=TOKENS if arguments.gpt else IMAGES)
        every = {name: base + words.split() for name, words in settings.items()}
        rounds = [
            {
                name: (by_run_py(project, words), by_hand(project, words))
                for name, words in every.items()
            }
            for _ in range(arguments.rounds)
        ]
    about = (
        f"{machine('torch', 'mlflow')}; `{' '.join(base)}`; n = {len(rounds)} rounds, "
        "all in turn; median (least to most). A step's time by run.py is a ratio to that in fp32 "
        "in the same round, and to the time by a loop by hand with the same options. `python "
        f"benchmarks/buildup.py{' --gpt' if arguments.gpt else ''}` makes this page."
    )
    head = ["", "to fp32", "to the loop by hand"]
    rows = []
    for name in settings:
        to_fp32 = [each[name][0] / each["fp32"][0] for each in rounds]
        to_hand = [each[name][0] / each[name][1] for each in rounds]
        rows.append([name, spread(to_fp32), spread(to_hand)])
    page("The same training, built up", about, head, rows)


if __name__ == "__main__":
    main()
