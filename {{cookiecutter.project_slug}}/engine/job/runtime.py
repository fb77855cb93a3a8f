"""How a job runs: flags of the engine that change no result, and so are no part of a job's id."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.cli import Span, setting
from engine.paths import PROJECT


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The engine's flags, beside the project's settings."""

    # How it runs (the same job, whatever these are)
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""

    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile; auto: on a CUDA GPU, for jobs long enough to earn it back."""

    loader: Literal["auto", "resident", "workers"] = "auto"
    """resident = all data on the device; workers = read in the background; auto: by size."""

    workers: int | Literal["auto"] = setting("auto", at_least=0, at_most=1024)
    """Processes that read data for --loader workers; auto: by this job's fraction of the cores."""

    threads: int | Literal["auto"] = setting("auto", at_least=1, at_most=1024)
    """Threads that torch computes with on the CPU; auto: this job's fraction of the cores."""

    data_root: Path = PROJECT / "data"
    """Folder of the datasets."""

    runs_root: Path = PROJECT / "runs"
    """Folder of the jobs' folders."""

    log_every: int | Literal["auto"] = setting("auto", at_least=1)
    """Optimizer steps between two points of the training metrics, each the mean over these steps;
    auto: about 1,000 points a job."""

    checkpoint_minutes: float = setting(10.0, above=0, at_most=10_000)
    """Minutes between two checkpoints; one is also made when the job is interrupted."""

    pause_after: Span | None = setting(None, above=0)
    """Pause the job here, in steps (500) or epochs (2e) from its beginning; the same command
    without this flag continues it."""

    deterministic: bool = False
    """Only operations that give the same bits each time, on a GPU too; slower."""

    profile: int = setting(0, at_least=0, at_most=10_000, alone=20)
    """Steps to watch, 20 if no number is given; profile.txt in the job's folder then tells where
    their time goes and what to change. 0: none."""

    quiet: bool = False
    """Print nothing but the last line."""

    # Actions
    force: bool = False
    """Start over, though the job is finished."""

    scratch: bool = False
    """Try it out: no job, and nothing is left behind."""

    sync: bool = False
    """Train nothing: upload what the tracking store lacks of all jobs in --runs-root."""
