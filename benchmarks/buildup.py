"""The same training as the guides build it up: fp32, TF32, bf16, compiled, and everything on.

    python benchmarks/buildup.py > benchmarks/buildup.md                # resnet18
    python benchmarks/buildup.py --gpt > benchmarks/buildup-gpt.md      # GPT-2's size, on a GPU

Each setting is a job, `python run.py --profile N`, and a loop by hand with the same options
(by_hand.py), one after another in each round. On the CPU the networks are cut to a size that fits.
"""

import argparse
import re
import shutil
import tempfile
from pathlib import Path

import torch
from pages import machine, page, spread
from projects import add, make, run

BY_HAND = Path(__file__).resolve().parent / "by_hand.py"

IMAGES = """

def _random(_root: Path, _size: int | None) -> Source:
    count = 100_000 if torch.cuda.is_available() else 400
    images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(10, (count,))
    return Source(TensorDataset(images, labels), [str(label) for label in range(10)])


DATASETS["random-images"] = _random
"""
TOKENS = """

def _tokens(_settings: Settings, _root: Path) -> list[Text]:
    import random

    import torch

    return [random.Random(0).randbytes(2_500_000 if torch.cuda.is_available() else 100_000)]


DATASETS["random-tokens"] = _tokens
"""
EVERYTHING = "--clip-norm 1 --ema 0.999 --warmup 0.1e --log-every 1"
ALL = "and clipping, EMA, schedule, each step's loss and accuracy logged"
ON_A_GPU = {
    "fp32": "--precision fp32 --compile off",
    "TF32": "--precision tf32 --compile off",
    "bf16": "--precision bf16 --compile off",
    "bf16, compiled": "--precision bf16 --compile on",
    ALL: f"--precision bf16 --compile on {EVERYTHING}",
}
ON_THE_CPU = {
    "fp32": "--precision fp32 --compile off",
    "fp32, compiled": "--precision fp32 --compile on",
    ALL: f"--precision fp32 --compile on {EVERYTHING}",
    "bf16": "--precision bf16 --compile off",
}


def job(gpt: bool, gpu: bool) -> list[str]:
    """The network, the data and the batch."""
    if gpt:
        network = "gpt2 --context 1024" if gpu else "gpt-small --context 64"
        return f"--model {network} --dataset random-tokens --batch-size 16".split()
    size = "1024" if gpu else "8"
    return f"--model resnet18 --dataset random-images --batch-size {size} --optimizer adamw".split()


def by_run_py(project: Path, words: list[str]) -> dict[str, float]:
    """Milliseconds a step and MiB at most, by the job's own profile."""
    steps = "20" if torch.cuda.is_available() else "12"
    run(project, "run.py", *words, "--epochs", "1", "--profile", steps, "--force", "--quiet")
    (path,) = project.glob("runs/*/*/profile.txt")
    report = path.read_text()
    shutil.rmtree(path.parent)
    found = {
        "ms": r"([\d.e+]+) ms a step",
        "mib": r"([\d,.]+) MiB of memory at most",
    }
    matches = {key: re.search(pattern, report) for key, pattern in found.items()}
    return {key: float(match[1].replace(",", "")) for key, match in matches.items() if match}


def by_hand(project: Path, words: list[str]) -> float:
    """Milliseconds a step."""
    return float(run(project, str(BY_HAND), *words).splitlines()[-1])


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpt", action="store_true")
    arguments = parser.parse_args()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    settings = ON_A_GPU if gpu else ON_THE_CPU
    if not gpu and not arguments.gpt:
        settings.pop("bf16")  # a dozen times as long, where a processor has no instructions for it
    base = job(arguments.gpt, bool(gpu))
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
        f"{machine('torch', 'mlflow', gpu=gpu)}; `{' '.join(base)}`; n = {len(rounds)} rounds, "
        "all in turn; median (least to most). A step's time by run.py is a ratio to that in fp32 "
        "in the same round, and to the time by a loop by hand with the same options. `python "
        f"benchmarks/buildup.py{' --gpt' if arguments.gpt else ''}` makes this page."
    )
    head = ["", "to fp32", "to the loop by hand"] + (["ms", "MiB"] if gpu else [])
    rows = []
    for name in settings:
        ours = [each[name][0] for each in rounds]
        to_fp32 = [each[name][0]["ms"] / each["fp32"][0]["ms"] for each in rounds]
        to_hand = [each[name][0]["ms"] / each[name][1] for each in rounds]
        more = [spread([one.get(key, 0) for one in ours], 1) for key in ("ms", "mib")]
        rows.append([name, spread(to_fp32), spread(to_hand), *(more if gpu else [])])
    page("The same training, built up", about, head, rows)


if __name__ == "__main__":
    main()
