"""What a checkpoint costs: saved beside training, as jobs do, against saved in line.

    python benchmarks/checkpoints.py > benchmarks/checkpoints.md

Three kinds of the same training, one after another in each round: without checkpoints, with them
saved beside training, and with them saved in line. The delay of a checkpoint is the time that a
training with checkpoints takes longer, divided by their number.
"""

import argparse
import datetime
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "{{cookiecutter.project_slug}}"))

import torch
import torchvision
from engine import checkpoints, cli, optimizers
from engine.job import Job
from engine.settings import JobSettings
from engine.training_state import TrainingState
from torch import nn
from torch.nn.functional import cross_entropy

SAVES = 3
"""Checkpoints in a training."""


class Training:
    """Steps of a network on random images (N, 3, 32, 32)."""

    def __init__(self, model: nn.Module, batch_size: int, device: torch.device) -> None:
        self.model = model.to(device)
        self.optimizer = optimizers.make(model, "adamw", 1e-4, 0.0)
        self.images = torch.randn(batch_size, 3, 32, 32, device=device)
        self.labels = torch.randint(10, (batch_size,), device=device)
        self.device = device

    def seconds(self, steps: int, save: Callable[[], object]) -> float:
        """Time of a training with a save in the middle of each of SAVES equal parts of it."""
        begun = time.perf_counter()
        for step in range(1, SAVES * steps + 1):
            cross_entropy(self.model(self.images), self.labels).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if step % steps == steps // 2:
                save()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    def save_in_line(self, folder: Path) -> None:
        """Write the same as `TrainingState` does, at once."""
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        checkpoints.save(folder / "last.pt", checkpoints.on_host(parts), folder / "previous.pt")


def delays(training: Training, steps: int, rounds: int) -> list[tuple[float, float, float]]:
    """In each round: seconds without checkpoints; delay of one beside, and of one in line."""
    return [one_round(training, steps) for _ in range(rounds + 1)][1:]  # the first warms up


def one_round(training: Training, steps: int) -> tuple[float, float, float]:
    """The three kinds of training, in a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(cli.parse(JobSettings, ["--runs-root", folder, "--quiet"]))
        job.make_folder()
        job.take()
        job.open()
        without = training.seconds(steps, lambda: None)
        with TrainingState(job, 1e-9, model=training.model, optimizer=training.optimizer) as state:
            beside = training.seconds(steps, lambda: save_beside(state))
        in_line = training.seconds(steps, lambda: training.save_in_line(job.folder))
        return without, (beside - without) / SAVES, (in_line - without) / SAVES


def save_beside(state: TrainingState) -> None:
    """Have the state saved, now."""
    assert state._writer.idle, "the last one is still being written: take more steps"
    state.step()


def shown(values: list[float]) -> str:
    """Median, and the least and the most."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_num_threads(1)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()}"
    machine = name if device.type == "cuda" else f"CPU, {name} thread, {platform.machine()}"
    print("# What a checkpoint costs\n")
    print(f"{machine}; torch {torch.__version__}; {datetime.date.today()}; n = {arguments.rounds}")
    print(f"rounds of {SAVES} checkpoints, interleaved; median (least to most). `python")
    print("benchmarks/checkpoints.py` makes this page.\n")
    print("| network, checkpoint | steps apart | delay beside / step | in line / step | ratio |")
    print("|---|---|---|---|---|")
    networks = {
        "mlp": (nn.Sequential(nn.Flatten(), nn.Linear(3072, 256), nn.ReLU(), nn.Linear(256, 10))),
        "resnet18": torchvision.models.resnet18(num_classes=10),
    }
    for label, steps, batch_size in (("mlp", 400, 64), ("resnet18", 30, 16)):
        training = Training(networks[label], batch_size, device)
        found = delays(training, steps, arguments.rounds)
        step = statistics.median(without / steps / SAVES for without, *_ in found)
        size = sum(p.nbytes for p in networks[label].parameters()) * 3 / 1e6
        print(
            f"| {label}, {size:.0f} MB | {steps}",
            shown([beside / step for _, beside, _ in found]),
            shown([in_line / step for *_, in_line in found]),
            shown([beside / in_line for _, beside, in_line in found]) + " |",
            sep=" | ",
        )


if __name__ == "__main__":
    main()
