"""What is launched on a GPU in a training step, counted on the tests' stand-in for a GPU.

    python benchmarks/launches.py > benchmarks/launches.md

Needs a torch that is built for CUDA, on a machine without a GPU.
"""

import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from best_steps import project
from gpu_steps import record_step
from pages import machine, page
from projects import TEMPLATE

STAND_IN = TEMPLATE / "tests" / "gpu_stand_in"
STEPS = 16
JOBS = {
    "perceptron": "--model mlp --batch-size 64",
    "resnet18": "--model resnet18 --dataset random-images --batch-size 8",
    "GPT": "--model gpt-small --dataset random-tokens --context 64 --batch-size 8 --warmup 0 "
    "--clip-norm 0",
}
WAYS = {
    "perceptron": (
        "--precision fp32",
        "--precision bf16",
        "--precision bf16 --ema 0.999",
        "--precision bf16 --optimizer muon",
    ),
    "resnet18": ("--precision fp32", "--precision bf16"),
    "GPT": ("--precision fp32", "--precision bf16"),
}
NO_LAUNCH = {
    *("_fused_sdp_choice", "_unsafe_view", "detach", "empty", "empty_like", "empty_strided"),
    *("new_empty", "new_empty_strided", "record_stream"),
}
"""Operations that compute nothing, beside those that return a view."""


class Counted(Counter[str]):
    """What a job tells a GPU, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[str, int]] = []

    def end_step(self) -> None:
        self.steps.append(dict(self))
        self.clear()


def count(words: list[str]) -> None:
    """Run a job in its project, and print what was counted; with the stand-in on PYTHONPATH."""
    import torch
    from labjobs.training.loop import Job
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    counted = Counted()

    class Launches(TorchDispatchMode):
        """Counts operations on a GPU."""

        def __torch_dispatch__(self, op: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = op(*args, **(kwargs or {}))
            view = any(each.alias_info and not each.alias_info.is_write for each in returned(op))
            if not (view or op.overloadpacket.__name__ in NO_LAUNCH):
                tensors = (each for each in tree_leaves((args, kwargs, result)) if is_tensor(each))
                if any(each.is_cuda for each in tensors):
                    capturing = torch.cuda.is_current_stream_capturing()
                    counted["in the graph" if capturing else "launches"] += 1
            return result

    def is_tensor(value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def returned(op: Any) -> list[Any]:
        return op._schema.returns  # type: ignore[no-any-return]

    def replay(graph: Any) -> None:
        counted["launches"] += 1
        replayed(graph)

    def steps(job: Any, *args: Any, **more: Any) -> Iterator[Any]:
        for batch in stepped(job, *args, **more):
            yield batch
            counted.end_step()

    stepped, Job.steps = Job.steps, steps  # type: ignore[method-assign]
    replayed, torch.cuda.CUDAGraph.replay = torch.cuda.CUDAGraph.replay, replay
    sys.argv = ["run.py", *words]
    with Launches():
        try:
            runpy.run_path("run.py", run_name="__main__")
        except SystemExit as ended:
            assert ended.code == 0, ended.code
    print(json.dumps(counted.steps))


def counts(made: Path, words: str) -> tuple[int, int]:
    """The launches of a step, and the operations of the graph that is among them; of none, 0."""
    path = os.pathsep.join(map(str, (STAND_IN, made)))
    env = os.environ | {"PYTHONPATH": path, "STAND_IN_GPUS": "1"}
    flags = ("--steps", str(STEPS), "--eval-every", str(STEPS), "--compile", "off", "--scratch")
    command = [sys.executable, __file__, "count", *words.split(), *flags]
    done = subprocess.run(command, cwd=made, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = json.loads(done.stdout.splitlines()[-1])
    print(words, steps, file=sys.stderr)
    launches = [step["launches"] for step in steps[STEPS // 2 :]]
    recorded = [step.get("in the graph", 0) for step in steps]
    return round(statistics.median(launches)), max(recorded)


def rows(folder: Path) -> Iterator[list[str]]:
    """A row for each job and its flags: run.py as it is, and with its step as one graph."""
    for name, ways in WAYS.items():
        made = project(folder / name, name)
        plain = [counts(made, f"{JOBS[name]} {way}")[0] for way in ways]
        record(made)
        for way, launches in zip(ways, plain, strict=True):
            as_graph, recorded = counts(made, f"{JOBS[name]} {way} --graph on")
            yield [name, f"`{way}`", *map(str, (launches, as_graph, recorded))]


def record(made: Path) -> None:
    """Have a project give its step to job.graphed; texts are not augmented."""
    record_step(made)
    run = made / "run.py"
    if "augment = " not in run.read_text():
        run.write_text(run.read_text().replace("augment(batch)", "batch"))


def main() -> None:
    """Print the page."""
    about = (
        f"{machine('torch')}. Operations that run.py tells a GPU in a training step, counted on "
        "the tests' stand-in for a GPU; views and empty tensors are left out. A real GPU may need "
        "several kernels for an operation, or one for several. Attention is made of plain "
        "operations here; gradients are not clipped, which the stand-in does tensor by tensor, "
        "and a GPU does not. With `--graph on`, and run.py edited as the recipe says, a step is a "
        "replay of the graph, copies of the batch and the learning rate into its memory, and one "
        "of what was measured out of it. A number is the median over the last "
        f"{STEPS // 2} of {STEPS} steps; nothing is timed. Jobs: "
        f"{'; '.join(f'{name}, `{flags}`' for name, flags in JOBS.items())}. "
        "`python benchmarks/launches.py` makes this page."
    )
    head = ["job", "flags", "launches a step", "with `--graph on`", "operations in the graph"]
    with tempfile.TemporaryDirectory() as folder:
        page("What is launched on a GPU in a training step", about, head, rows(Path(folder)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["count"]:
        count(sys.argv[2:])
    else:
        main()
