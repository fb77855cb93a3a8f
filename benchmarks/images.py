"""What it takes to read photographs: decoded each time, and from the cache of decoded images.

    python benchmarks/images.py > benchmarks/images.md

20,000 JPEGs of 500 by 375 pixels, a usual size in ImageNet, are made, and read in batches of 64 at
224 by 224, by as many processes as there are cores.
"""

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "{{cookiecutter.project_slug}}"))

import numpy as np
import torch
from labjobs.data import batches
from labjobs.data.vision import ImageFolder
from labjobs.machine import cores
from pages import machine, page, spread
from PIL import Image

WIDTH, HEIGHT, SIDE, BATCH = 500, 375, 224, 64


def photograph(folder: Path, number: int) -> None:
    """Write a JPEG that takes about as many bytes as a photograph: smooth, with some noise."""
    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), dtype=float)
    pixels = (smooth + random.normal(0, 12, smooth.shape)).clip(0, 255).astype(np.uint8)
    path = folder / str(number % 10) / f"{number}.jpg"
    Image.fromarray(pixels).save(path, quality=90)


def epoch(folder: Path) -> float:
    """Seconds of an epoch of a job that begins: its processes start, and read all images once."""
    dataset = ImageFolder(folder, SIDE)
    made = batches.make(dataset, torch.device("cpu"), BATCH, "workers", cores(), seed=0)
    begun = time.perf_counter()
    read = sum(len(labels) for (_, labels), _ in made.from_position(0, 0))
    took = time.perf_counter() - begun
    made.close()
    assert read == len(dataset)
    return took


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    took: dict[str, list[float]] = {"decoded each time": [], "first job": [], "second job": []}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "images"
        for label in range(10):
            (folder / str(label)).mkdir(parents=True)
        with ProcessPoolExecutor(cores()) as pool:
            for _ in pool.map(partial(photograph, folder), range(arguments.images), chunksize=100):
                pass
        size = sum(file.stat().st_size for file in folder.glob("*/*.jpg")) / arguments.images
        for number in range(arguments.rounds):
            os.environ["IMAGE_CACHE"] = str(Path(root) / f"cache-{number}")
            os.environ["IMAGE_CACHE_GIB"] = "0"
            took["decoded each time"].append(epoch(folder))
            os.environ["IMAGE_CACHE_GIB"] = "64"
            took["first job"].append(epoch(folder))
            took["second job"].append(epoch(folder))
    about = (
        f"{machine('torch', 'torchvision', 'pillow')}; n = {arguments.rounds} rounds. An epoch of "
        f"{arguments.images:,} JPEGs of {WIDTH} by {HEIGHT} pixels ({size / 1000:.0f} kB each) at "
        f"{SIDE} by {SIDE}, read by {cores()} processes, as a ratio to decoding them in the same "
        "round: median (least to most). The first job decodes and keeps them, the second finds "
        "them; the files of both are in the memory of the operating system. `python "
        "benchmarks/images.py` makes this page."
    )
    base = took["decoded each time"]
    rows = [
        [way, spread([one / of for one, of in zip(seconds, base, strict=True)])]
        for way, seconds in took.items()
    ]
    page("Images in files", about, ["", "time of an epoch"], rows)


if __name__ == "__main__":
    main()
