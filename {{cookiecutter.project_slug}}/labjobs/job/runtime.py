"""How a job runs: flags that do not change results beyond rounding, and so are not in its id."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labjobs.files import PROJECT
from labjobs.settings import JobId, Span, setting

Compile = Literal[
    "auto", "on", "off", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
]

LENGTHS = ("epochs", "steps", "minutes")
"""Settings of jobs that train: scripts without any have no flags of a training loop."""

BATCHES = (*LENGTHS, "batch_size")
"""Settings of jobs that read batches: scripts without any have no flags of a loader."""

MATTER = ("compile", "deterministic", "loader", "workers")
"""Flags that can change the last bits of a result on some device. settings.json records them, so
that a job can be repeated; so does the journal with the device and the number of threads."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The engine's flags, beside the project's settings."""

    # Runtime (not part of the job's id)
    device: str = "auto"
    """Device to train on: auto, cpu, cuda, cuda:1 or mps. auto: a GPU if there is one."""

    compile: Compile = setting("auto", only_with=BATCHES)
    """Whether to use torch.compile. auto: on a CUDA GPU, if the network is large and the job long
    enough for compiling to pay off. reduce-overhead: use CUDA graphs in training, for small
    networks on a GPU. max-autotune: use CUDA graphs, and try several kernels to find the fastest,
    which takes long. max-autotune-no-cudagraphs: the same without CUDA graphs."""

    graph: Literal["auto", "on", "off"] = setting("auto", only_with=LENGTHS)
    """Whether a step that run.py gives to job.graphed is one CUDA graph: on a GPU, for small
    networks. auto: on a CUDA GPU, in jobs of one process."""

    loader: Literal["auto", "resident", "workers"] = setting("auto", only_with=BATCHES)
    """How batches are read. resident: all data is kept on the device; workers: processes read it in
    the background; auto: chosen by the size of the data."""

    workers: int | Literal["auto"] = setting("auto", at_least=0, at_most=1024, only_with=BATCHES)
    """Processes that read data with --loader workers. auto: chosen from this job's fraction of the
    cores."""

    shard: bool = setting(False, only_with=BATCHES)
    """Divide the weights and the optimizer's state among the processes that torchrun has started,
    for a network that does not fit on one GPU. See `python jobs.py docs several-gpus`."""

    threads: int | Literal["auto"] = setting("auto", at_least=1, at_most=1024)
    """CPU threads that torch uses. auto: as many as this job's fraction of the cores, or as it had
    before."""

    data_root: Path = PROJECT / "data"
    """Folder that contains the datasets."""

    runs_root: Path = PROJECT / "runs"
    """Folder for the jobs: it has a folder for each job, with a folder for each attempt."""

    log_every: int | Literal["auto"] = setting("auto", at_least=1, only_with=LENGTHS)
    """Optimizer steps between two logged points of the training metrics; each point is the mean
    over these steps. auto: about 1,000 points per job."""

    checkpoint_minutes: float = setting(10.0, above=0, at_most=10_000, only_with=LENGTHS)
    """Minutes between two checkpoints. One is also written when the job is interrupted."""

    pause_after: Span | None = setting(None, above=0, only_with=LENGTHS)
    """Pause the job after this many steps (500) or epochs (2e), counted from its beginning. The
    same command without this flag continues it."""

    deterministic: bool = False
    """Use only deterministic operations, so that a GPU gives the same bits each time. Slower."""

    profile: int = setting(0, at_least=0, at_most=10_000, alone=20, only_with=LENGTHS)
    """Steps to profile, 20 if no number is given. profile.txt in the job's folder then shows where
    the time goes and what to change. 0: off."""

    quiet: bool = False
    """Print only the last line."""

    # Actions
    like: JobId | None = None
    """Take the settings of this job, of the same script; flags in the command replace its own."""

    force: bool = False
    """Start over, even if the job is finished or diverged. The files of the earlier attempt are
    kept until the new one has finished."""

    continue_anyway: bool = setting(False, only_with=LENGTHS)
    """Continue the last attempt, even if the code has changed since it began. Its results then
    belong to no version of the code."""

    check: bool = False
    """Test whether the engine's guarantees hold for this project's own code, in a few steps with
    few examples: that a job continues exactly, that training steps do not wait for the device, and
    more. Each finding is one line, with the file and the line number. Leaves nothing behind."""

    scratch: bool = False
    """Run without a job id and leave nothing behind."""
