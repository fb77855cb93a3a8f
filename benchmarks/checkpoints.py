"""What a checkpoint costs: saved in the background, as jobs do, against synchronously.

    python benchmarks/checkpoints.py > benchmarks/checkpoints.md

Three kinds of the same training, one after another in each round: without a checkpoint, with one
saved in the background, and with a synchronous one.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "{{cookiecutter.project_slug}}"))

import torch
import torchvision
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import Runtime
from labjobs.training import checkpoints
from labjobs.training.checkpoints import TrainingState
from pages import machine, page, spread
from torch import nn
from torch.nn.functional import cross_entropy


@dataclass(frozen=True)
class Nothing:
    """The settings of a job that has none."""


class Training:
    """Steps of a network on random images (N, 3, 32, 32)."""

    def __init__(self, model: nn.Module, batch_size: int, device: torch.device) -> None:
        self.model = model.to(device)
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
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

    def save_at_once(self, folder: Path) -> None:
        """Write the same as `TrainingState` does, at once."""
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        checkpoints.save(folder / "last.pt", checkpoints.on_host(parts), folder / "previous.pt")


def one_round(training: Training, steps: int) -> tuple[float, float, float]:
    """The delay in steps by nothing (the noise), by a save in the background, by one that waits."""
    with tempfile.TemporaryDirectory() as folder:
        job = JobFolder(Nothing(), Runtime(runs_root=Path(folder), quiet=True), {})
        job.make()
        job.take()
        job.open()
        parts = {"model": training.model, "optimizer": training.optimizer}
        state = TrainingState(job.path, job.journal, 1e-9, parts)
        nothing = training.delay(steps, lambda: None)
        background = training.delay(steps, lambda: save(state))
        state.close()
        return nothing, background, training.delay(steps, lambda: training.save_at_once(job.path))


def save(state: TrainingState) -> None:
    """Have the state saved by its thread, now."""
    assert state.due, "the last one is still being written: take more steps"
    state.save()


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
    head = [
        "network, checkpoint",
        "steps looked at",
        "no checkpoint",
        "in the background",
        "synchronous",
    ]
    page("What a checkpoint costs", about, head, rows)


if __name__ == "__main__":
    main()
