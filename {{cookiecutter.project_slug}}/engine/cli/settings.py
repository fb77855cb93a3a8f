"""A job's settings: the flags of `python run.py`, the parameters in MLflow, the job's identity.

The same settings are the same job. Its id is a hash over the settings that change what is learnt;
those in `Runtime` only change how it runs. A setting added later declares a neutral value (what the
code did before it existed) and is left out of the hash while it has it, so old jobs keep their ids.

Each group below is a heading of `--help`, each field a flag, its docstring the flag's help. Fields
may be `bool`, `int`, `float`, `str`, `Path`, a `Literal` of words, or a union of these.
"""

import hashlib
import json
import math
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from engine.errors import require
from engine.paths import PROJECT


def added(default: Any, *, neutral: Any) -> Any:
    """A setting that came after the first jobs had run.

    `neutral` is the value that does what the code did before: `dropout: float = added(0.1,
    neutral=0.0)`. It must never change again.
    """
    return field(default=default, metadata={"neutral": neutral})


def count(*, alone: int) -> Any:
    """A number that is 0 unless its flag is there; a flag without a number stands for `alone`."""
    return field(default=0, metadata={"alone": alone})


@dataclass(frozen=True, kw_only=True)
class Data:
    """Data"""

    dataset: str = "digits"
    """What to learn from, a name in data.py: digits, mnist, fashion-mnist, cifar10, cifar100,
    image-folder (in --data-root, a folder of images a class; tell two such apart by --note),
    random-tokens (for --model gpt: to measure speed on)."""

    image_size: int | Literal["auto"] = "auto"
    """Side that images are scaled to, in pixels; auto: the dataset's own, 224 for image-folder."""

    val_fraction: float = 0.1
    """Share of the training examples held out for validation."""

    split_seed: int = 0
    """Seed of the train / validation / test split."""

    augment: Literal["none", "crop", "crop-flip"] = "none"
    """Random changes to training images: crop = shifts up to an eighth of the side; flip =
    left-right mirroring."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """Model"""

    model: str = "mlp"
    """The network, a name in models.py (mlp, convnet; gpt for tokens) or any torchvision classifier
    (resnet18)."""

    pretrained: bool = False
    """Start a torchvision classifier from its published weights."""


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """Optimization"""

    epochs: int = 30
    """Passes over the training examples."""

    batch_size: int = 64
    """Examples per optimizer step."""

    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """Optimizer; sgd has Nesterov momentum of 0.9."""

    lr: float = 1e-3
    """Learning rate at the schedule's highest point."""

    weight_decay: float = 0.0
    """Weight decay of matrices and kernels; biases and norms have none."""

    schedule: Literal["constant", "cosine", "step", "plateau"] = "cosine"
    """Course of the learning rate after the warm-up: constant; cosine = down to 0; step = a tenth
    after each third of the job; plateau = a tenth after 5 epochs without a better --monitor."""

    warmup: float = 0.0
    """Epochs over which the learning rate first rises linearly from 0."""

    label_smoothing: float = 0.0
    """Share of each label spread evenly over all classes, in the training loss."""

    clip_norm: float = added(0.0, neutral=0.0)
    """Largest norm of the gradient, of all weights together; a larger one is cut down. 0: none."""

    ema: float = added(0.0, neutral=0.0)
    """Share that an exponential moving average of the weights keeps at each step, such as 0.999;
    the average is what is evaluated and kept. 0: none."""

    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Number format of the forward pass; auto: bf16 on a GPU that has it, else fp32."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Selection of the weights"""

    monitor: Literal["val_loss", "val_accuracy"] = "val_loss"
    """Validation metric that says which epoch's weights are best."""

    patience: int = 0
    """Epochs without a better --monitor after which the job stops early; 0: never."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Variant"""

    seed: int = 0
    """Seed of the first weights, the order of the examples and the augmentation."""

    note: str = ""
    """Free words that tell apart what the other settings cannot, such as a change in the code."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """How it runs (the same job, whatever these are)"""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""

    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile; auto: on a CUDA GPU, for jobs long enough to earn it back."""

    loader: Literal["auto", "resident", "workers"] = "auto"
    """resident = all data on the device; workers = read beside training; auto: by size."""

    workers: int | Literal["auto"] = "auto"
    """Processes that read data for the workers loader; auto: by this job's share of
    the cores."""

    data_root: Path = PROJECT / "data"
    """Folder of the datasets."""

    runs_root: Path = PROJECT / "runs"
    """Folder of the jobs' folders."""

    log_every: int | Literal["auto"] = "auto"
    """Optimizer steps per logged train_loss (their mean); auto: about 1,000 points a job."""

    checkpoint_minutes: float = 10.0
    """Minutes between two checkpoints; one is also made when the job is interrupted."""

    deterministic: bool = False
    """Only operations that give the same bits each time, on a GPU too; slower."""

    eval_beside: int = count(alone=1)
    """Epochs' weights that are evaluated at once beside training, 1 if no number is given; results
    come as many epochs later, so --patience stops later. 0: evaluated between epochs."""

    profile: int = count(alone=20)
    """Steps to watch, 20 if no number is given; profile.txt in the job's folder then tells where
    their time goes and what to change. 0: none."""

    force: bool = False
    """Run again though finished."""

    sync: bool = False
    """Train nothing: send what the tracking store has not got of all jobs in --runs-root."""

    quiet: bool = False
    """Print nothing but the last line."""


@dataclass(frozen=True, kw_only=True)
class JobSettings(Runtime, Variant, Selection, Optimization, Model, Data):  # the last come first
    """All settings that come with the template. Raises SettingsError for a value out of range."""

    def __post_init__(self) -> None:
        require(0 < self.lr < math.inf, "--lr", self.lr, "a number above 0")
        require(self.epochs >= 1, "--epochs", self.epochs, "1 or more")
        require(self.batch_size >= 1, "--batch-size", self.batch_size, "1 or more")
        require(0 <= self.weight_decay < math.inf, "--weight-decay", self.weight_decay, "0 or more")
        require(
            0 <= self.warmup < self.epochs, "--warmup", self.warmup, "at least 0, below --epochs"
        )
        require(
            0 <= self.label_smoothing < 1, "--label-smoothing", self.label_smoothing, "in [0, 1)"
        )
        require(0 <= self.clip_norm < math.inf, "--clip-norm", self.clip_norm, "0 or more")
        require(0 <= self.ema < 1, "--ema", self.ema, "in [0, 1)")
        require(
            self.checkpoint_minutes > 0,
            "--checkpoint-minutes",
            self.checkpoint_minutes,
            "a number above 0",
        )
        require(0 < self.val_fraction < 1, "--val-fraction", self.val_fraction, "between 0 and 1")
        require(self.profile >= 0, "--profile", self.profile, "0 or more")
        beside, apart = self.eval_beside, self.schedule != "plateau"
        require(beside >= 0, "--eval-beside", beside, "0 or more")
        require(apart or not beside, "--eval-beside", beside, "0 for --schedule plateau")
        require(self.patience >= 0, "--patience", self.patience, "0 or more")
        for flag, seed in (("--seed", self.seed), ("--split-seed", self.split_seed)):
            require(0 <= seed < 2**63, flag, seed, "from 0 to 2**63 - 1")
        for flag, value, least in (
            ("--image-size", self.image_size, 1),
            ("--workers", self.workers, 0),
            ("--log-every", self.log_every, 1),
        ):
            require(value == "auto" or value >= least, flag, value, f"auto, or {least} or more")


def identity(settings: JobSettings) -> dict[str, Any]:
    """The settings that make a job what it is, as plain values."""
    runtime = {f.name for f in fields(Runtime)}
    named = [f.name for f in fields(settings) if f.name not in runtime]
    return {name: _plain(getattr(settings, name)) for name in named}


def job_id(settings: JobSettings) -> str:
    """12 hex digits: SHA-256 of the identity as JSON, without later settings at neutral values."""
    without = neutral(settings)
    hashed = {k: v for k, v in identity(settings).items() if v != without.get(k, MISSING)}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:12]


def neutral(settings: JobSettings) -> dict[str, Any]:
    """What jobs had that are older than a setting, by the names of those that were added later."""
    later = [f for f in fields(settings) if "neutral" in f.metadata]
    return {f.name: _plain(f.metadata["neutral"]) for f in later}


def as_words(settings: JobSettings) -> str:
    """The identity settings that differ from their defaults, in one line: `lr=0.01 seed=2`."""
    defaults = {f.name: _plain(f.default) for f in fields(settings)}
    changed = {k: v for k, v in identity(settings).items() if v != defaults[k]}
    text = " ".join(f"{name}={value}" for name, value in changed.items())
    return " ".join(text.split()) or "defaults"


def _plain(value: Any) -> Any:
    """One form for each value: 1.0 is 1, -0.0 is 0, a path is its text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return str(value) if isinstance(value, Path) else value
