"""What it takes to get a batch: the project's loaders, torch's DataLoader, and bare indexing.

    python benchmarks/loading.py > benchmarks/loading.md

50,000 images of 32 by 32 in colour, as CIFAR-10 has, in batches of 256, with nothing done to them.
Each way reads an epoch, one after another in each round; on a GPU that includes the way there.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "{{cookiecutter.project_slug}}"))

import torch
from labjobs import devices
from labjobs.data import batches
from labjobs.machine import cores
from pages import machine, page, spread
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

COUNT, BATCH = 50_000, 256
Epoch = Iterator[tuple[Tensor, Tensor]]


class OneByOne(Dataset[tuple[Tensor, Tensor]]):
    """The same images, handed out one by one, as those of files are."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._images[index], self._labels[index]


def ways(device: torch.device) -> dict[str, Callable[[int], Epoch]]:
    """What reads an epoch, by name."""
    images = torch.randint(256, (COUNT, 3, 32, 32), dtype=torch.uint8)
    memory = TensorDataset(images, torch.randint(10, (COUNT,)))
    apart = OneByOne(*memory.tensors)
    there = tuple(tensor.to(device) for tensor in memory.tensors)
    cuda = device.type == "cuda"

    def bare(_number: int) -> Epoch:
        """Yield the batches of an epoch by plain indexing."""
        for batch in torch.randperm(COUNT, device=device).split(BATCH):
            yield there[0][batch], there[1][batch]

    def ours(
        kind: str, dataset: Dataset[tuple[Tensor, Tensor]], workers: int
    ) -> Callable[[int], Epoch]:
        """Return the epochs of the engine's batches, by number."""
        made = batches.make(Subset(dataset, range(COUNT)), device, BATCH, kind, workers, seed=0)
        return lambda number: made.epoch(number, 0)

    def theirs(dataset: Dataset[tuple[Tensor, Tensor]], workers: int) -> Callable[[int], Epoch]:
        """Return the epochs of torch's DataLoader, by number."""
        more = {"persistent_workers": workers > 0, "pin_memory": cuda}
        loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, **more)
        return lambda _: (tuple(x.to(device, non_blocking=True) for x in batch) for batch in loader)

    two = min(8, max(1, cores()))
    return {
        "bare indexing": bare,
        "`--loader resident`": ours("resident", memory, 0),
        f"`--loader workers --workers {two}`, images in memory": ours("workers", memory, two),
        f"DataLoader, {two} workers, images in memory": theirs(memory, two),
        f"`--loader workers --workers {two}`, one by one": ours("workers", apart, two),
        f"DataLoader, {two} workers, one by one": theirs(apart, two),
        "DataLoader in the same process": theirs(memory, 0),
    }


def milliseconds(epoch: Epoch, device: torch.device) -> float:
    """Of a batch, in an epoch."""
    begun = time.perf_counter()
    count = sum(1 for _ in epoch)
    devices.wait(device)
    return 1000 * (time.perf_counter() - begun) / count


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_num_threads(1)
    reads = ways(device)
    rounds = [
        {way: milliseconds(read(number), device) for way, read in reads.items()}
        for number in range(arguments.rounds + 1)
    ][1:]  # the first starts the reading processes
    gpu = devices.describe(device) if device.type == "cuda" else ""
    about = (
        f"{machine('torch', gpu=gpu)}; one thread; n = {len(rounds)} epochs of each, in turn. "
        "Time of a batch of 256 images of 32 by 32 as a ratio to bare indexing in the same "
        "round: median (least to most). In images in memory, a batch is read by one index; one by "
        "one, by 256. `python benchmarks/loading.py` makes this page."
    )
    rows = [[way, spread([each[way] / each["bare indexing"] for each in rounds])] for way in reads]
    page("What it takes to get a batch", about, ["", "ratio"], rows)


if __name__ == "__main__":
    main()
