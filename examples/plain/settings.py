"""What a job of this project is: its settings, and what it measures.

Each field of Settings is a flag of `python run.py`, a parameter in MLflow and part of the job's id:
the same settings are the same job. The text below a field is its --help, a comment such as `# Data`
a heading there. Change, add, rename and delete fields as you like; `python jobs.py docs
settings` says what to write so that old jobs keep their ids. How a job runs (--device, --workers,
…) is not here: those flags belong to the engine and change no result beyond rounding.

The engine knows what some names mean, where they exist: epochs, steps, minutes, eval_every,
batch_size, accumulate, seed, fold, split_seed, val_fraction, dataset, model, optimizer, precision,
monitor, schedule, init_from and note. Everything imports this file, so it imports nothing slow.
"""

from dataclasses import dataclass
from typing import Literal

from labjobs.settings import Metric, SettingsError, Span, setting

METRICS = {  # by the names under which run.py measures them
    "loss": Metric(better="lower", range=(0, None)),
    "accuracy": Metric(better="higher", range=(0, 1)),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a job. Raises SettingsError if they contradict each other."""

    # Data
    val_fraction: float = setting(0.1, above=0, below=1)
    """Fraction of the training examples held out for validation."""

    split_seed: int = setting(0, at_least=0)
    """Seed of the split into training, validation and test examples."""

    # Model
    width: int = setting(256, at_least=1)
    """Units in each hidden layer."""

    # Length
    epochs: int = setting(30, at_least=1, at_most=1_000_000)
    """Passes over the training examples."""

    eval_every: Span = setting(Span("1e"), above=0)
    """Steps (500) or epochs (2e) between two evaluations on the validation examples."""

    # Optimization
    batch_size: int = setting(64, at_least=1, at_most=1_000_000)
    """Examples per optimizer step."""

    lr: float = setting(1e-3, above=0)
    """Learning rate at the start; it falls to zero along half a cosine."""

    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    """Number format of the forward pass. auto: bf16 on a GPU that has it, else fp32."""

    # Best weights
    monitor: str = setting("val_loss", metric=METRICS)
    """Metric that decides which evaluation's weights are the best. none: the last weights."""

    patience: int = setting(0, at_least=0)
    """Evaluations without a better --monitor after which the job stops early. 0: never."""

    # Variant
    seed: int = setting(0, at_least=0)
    """Seed of the initial weights and of the order of the examples."""

    note: str = ""
    """Free text, to distinguish jobs whose other settings are equal."""

    def __post_init__(self) -> None:
        if self.monitor == "none" and self.patience:
            raise SettingsError(f"--patience {self.patience}: needs a --monitor")
