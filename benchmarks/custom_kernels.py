"""The kernels of the example `kernels`, compared with plain torch and torch.compile.

    python benchmarks/custom_kernels.py > benchmarks/custom-kernels.md

A call is forward and backward. The ways take turns, so that a busy machine slows all of them down.
Where there is a GPU, RMSNorm in Triton is measured on it; the C++ operation is for the CPU.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pages import machine, page, spread
from projects import make, run

HERE = Path(__file__).resolve()
SHAPES = ((64, 256), (1024, 1024), (4096, 4096))
OPERATIONS = {"relu_squared": "bias + squared ReLU", "rms_norm": "RMSNorm"}
HEAD = ["operation", "shape", "plain torch, µs", "torch.compile", "our kernel"]
NOT_RUN = "not run on a GPU"


def seconds(call: Callable[[], object], device: str) -> float:
    """Return the mean time of a call in seconds, over about 50 ms of calls."""
    import torch

    def many(count: int) -> float:
        """Return the seconds that `count` calls take; on a GPU, until they are done."""
        begun = time.perf_counter()
        for _ in range(count):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    count = max(1, int(0.05 / max(many(3) / 3, 1e-6)))
    return many(count) / count


def rows(rounds: int) -> Iterator[list[str]]:
    """Yield the rows of the table; runs in a project made from the example."""
    import kernels
    import torch

    torch.set_num_threads(1)  # several wait for each other where other programs run
    kernels.prepare()
    for name, title in OPERATIONS.items():
        on_gpu = name == "rms_norm" and torch.cuda.is_available()
        device = "cuda" if on_gpu else "cpu"
        plain, own = getattr(kernels, f"plain_{name}"), getattr(kernels, name)
        ways = {"plain": plain, "compiled": torch.compile(plain, dynamic=False)}
        if name == "relu_squared" or on_gpu:
            ways["own"] = own
        for shape in SHAPES:
            x = torch.randn(shape, device=device, requires_grad=True)
            weight = torch.rand(shape[-1], device=device, requires_grad=True)
            gradient = torch.randn(shape, device=device)
            calls = {
                way: lambda f=f, x=x, w=weight, g=gradient: torch.autograd.grad(f(x, w), (x, w), g)
                for way, f in ways.items()
            }
            for call in calls.values():  # compiles
                call()
            found = [
                {way: seconds(call, device) for way, call in calls.items()} for _ in range(rounds)
            ]
            base = statistics.median(each["plain"] for each in found)
            ratios = {way: spread([each[way] / each["plain"] for each in found]) for way in calls}
            size = "×".join(map(str, shape))  # noqa: RUF001
            last = ratios.get("own", NOT_RUN)
            yield [title, size, f"{1e6 * base:.0f}", ratios["compiled"], last]


def main() -> None:
    """Make a project from the example, and measure in it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.inside:
        with tempfile.TemporaryDirectory() as folder:
            project = make(folder, "kernels")
            words = (str(HERE), "--inside", "--rounds", str(arguments.rounds))
            print(run(project, *words), end="")
        return
    import torch

    found = [*rows(arguments.rounds)]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    about = (
        f"{machine('torch', gpu=gpu)}; 1 thread; float32; n = "
        f"{arguments.rounds} rounds, all ways in turn. Forward and backward of one operation. The "
        "last two columns are ratios to plain torch in the same round, median (least to most): "
        f"below 1 is faster. The machine's load was {os.getloadavg()[0]:.0f}. `python "
        "benchmarks/custom_kernels.py` makes this page."
    )
    page("Custom kernels", about, HEAD, found)


if __name__ == "__main__":
    main()
