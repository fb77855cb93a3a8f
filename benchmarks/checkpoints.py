"""What a checkpoint costs: saved beside training, as jobs do, against saved in line.

    python benchmarks/checkpoints.py > benchmarks/checkpoints.md

Three kinds of the same training, one after another in each round: without a checkpoint, with one
saved beside training, and with one saved in line.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "{{cookiecutter.project_slug}}"))

import torch
import torchvision
from engine.cli import parser as cli
from engine.cli.settings import JobSettings
from engine.job.folder import Job
from engine.training import checkpoints, optimizers
from engine.training.training_state import TrainingState
from pages import machine, page, spread
from torch import nn
from torch.nn.functional import cross_entropy


class Training:
    """Steps of a network on random images (N, 3, 32, 32)."""

    def __init__(self, model: nn.Module, batch_size: int, device: torch.device) -> None:
        self.model = model.to(device)
        self.optimizer = optimizers.make(model, "adamw", 1e-4, 0.0)
        self.images = torch.randn(batch_size, 3, 32, 32, device=device)
        self.labels = torch.randint(10, (batch_size,), device=device)
        self.device = device

    def delay(self, steps: int, save: Callable[[], object]) -> float:
        """By how many steps' time one save makes so many steps longer; the save is in their midst.

        A step's time is the median of those before the save.
        """
        times = []
        for step in range(steps):
            begun = time.perf_counter()
            cross_entropy(self.model(self.images), self.labels).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if step == steps // 2:
                save()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        usual = statistics.median(times[: steps // 2])
        return sum(times[steps // 2 :]) / usual - len(times[steps // 2 :])

    def save_in_line(self, folder: Path) -> None:
        """Write the same as `TrainingState` does, at once."""
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        checkpoints.save(folder / "last.pt", checkpoints.on_host(parts), folder / "previous.pt")


def one_round(training: Training, steps: int) -> tuple[float, float, float]:
    """The delay in steps by nothing, which tells the noise, by a save beside, by one in line."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(cli.parse(JobSettings, ["--runs-root", folder, "--quiet"]))
        job.make_folder()
        job.take()
        job.open()
        nothing = training.delay(steps, lambda: None)
        with TrainingState(job, 1e-9, model=training.model, optimizer=training.optimizer) as state:
            beside = training.delay(steps, lambda: save_beside(state))
        return nothing, beside, training.delay(steps, lambda: training.save_in_line(job.folder))


def save_beside(state: TrainingState) -> None:
    """Have the state saved, now."""
    assert state._writer.idle, "the last one is still being written: take more steps"
    state.step()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_num_threads(1)
    networks = {
        "mlp": (nn.Sequential(nn.Flatten(), nn.Linear(3072, 256), nn.ReLU(), nn.Linear(256, 10))),
        "resnet18": torchvision.models.resnet18(num_classes=10),
    }
    rows = []
    for label, steps, batch_size in (("mlp", 100, 64), ("resnet18", 24, 8)):
        training = Training(networks[label], batch_size, device)
        found = [one_round(training, steps) for _ in range(arguments.rounds + 1)][
            1:
        ]  # warm by then
        size = sum(p.nbytes for p in networks[label].parameters()) * 3 / 1e6
        delays = [spread([each[kind] for each in found], 1) for kind in range(3)]
        rows.append([f"{label}, {size:.0f} MB", str(steps // 2), *delays])
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else ""
    about = (
        f"{machine('torch', gpu=gpu)}; one thread; n = {arguments.rounds} rounds, the three kinds "
        "in turn; median (least to most), in units of a training step. `python "
        "benchmarks/checkpoints.py` makes this page."
    )
    head = ["network, checkpoint", "steps looked at", "no checkpoint", "saved beside", "in line"]
    page("What a checkpoint costs", about, head, rows)


if __name__ == "__main__":
    main()
