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

from labjobs.settings import Metric, SettingsError, Span, Weights, added, setting

METRICS = {  # by the names under which run.py measures them
    "loss": Metric(better="lower"),
    "iou": Metric(better="higher", label="mean IoU", range=(0, 1), target=0.5),
    "pixel_accuracy": Metric(better="higher", range=(0, 1)),
}

FOLDS = 5  # number of folds of the training examples, for --fold


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a job. Raises SettingsError if they contradict each other."""

    # Data
    dataset: str = setting("scenes", names="data.DATASETS")
    """Dataset to train on."""

    image_size: int | Literal["auto"] = setting("auto", at_least=1, at_most=10_000)
    """Width and height that images in files are scaled to, in pixels. auto: 224."""

    val_fraction: float = setting(0.1, at_least=0, below=1)
    """Fraction of the training examples held out for validation. 0: none."""

    fold: int = added(0, neutral=0, at_least=0, at_most=FOLDS, replaces="val_fraction")
    """Fold of the training examples to validate on, from 1 to FOLDS, instead of --val-fraction. 0:
    use --val-fraction."""

    split_seed: int = setting(0, at_least=0)
    """Seed of the split into training, validation and test examples."""

    augment: str = setting("none", names="data.AUGMENTATIONS")
    """Random changes to the training batches."""

    # Model
    model: str = setting("unet", names="models.MODELS")
    """The network."""

    init_from: Weights | None = added(None, neutral=None)
    """Id of the job whose best weights this one starts from. With :last after the id, continue the
    training of that shorter job; with :fork, under other settings. none: new weights."""

    # Length (one of epochs, steps, minutes)
    epochs: int = setting(20, at_least=1, at_most=1_000_000)
    """Passes over the training examples."""

    steps: int = setting(0, at_least=0, replaces="epochs")
    """Optimizer steps, instead of --epochs. 0: use --epochs."""

    minutes: float = setting(0.0, at_least=0, at_most=1_000_000, replaces="epochs")
    """Minutes of training, instead of --epochs. 0: use --epochs."""

    eval_every: Span = setting(Span("1e"), above=0)
    """Steps (500) or epochs (2e) between two evaluations on the validation examples."""

    # Optimization
    batch_size: int = setting(8, at_least=1, at_most=1_000_000)
    """Examples per optimizer step."""

    accumulate: int = setting(1, at_least=1)
    """Parts into which each batch is split to save memory; they are computed one after another."""

    optimizer: str = setting("adam", names="optimizers.OPTIMIZERS")
    """The optimizer. Its fixed options, such as sgd's momentum, are in optimizers.py."""

    lr: float = setting(1e-2, above=0)
    """Highest learning rate."""

    lr_for_batch: int = added(0, neutral=0, at_least=0)
    """Batch size that --lr was chosen for. With another --batch-size, the rate is scaled by the
    ratio of the two for sgd, and by its square root for other optimizers. 0: not scaled."""

    weight_decay: float = setting(0.0, at_least=0)
    """Weight decay of matrices and kernels; biases and norms have none."""

    schedule: str = setting("cosine", names="optimizers.SCHEDULES")
    """Learning rate schedule after the warm-up."""

    warmup: Span = Span("0")
    """Steps (500) or epochs (2e) over which the learning rate first rises linearly from 0."""

    label_smoothing: float = setting(0.0, at_least=0, below=1)
    """Fraction of each label's probability spread over all classes, in the training loss."""

    clip_norm: float = setting(0.0, at_least=0)
    """Largest allowed norm of the gradient over all weights; logged as train_gradient_norm. 1e9:
    only log it. 0: no clipping."""

    ema: float = setting(0.0, at_least=0, below=1)
    """Decay per step of an exponential moving average (EMA) of the weights, such as 0.999; the
    EMA is evaluated and kept. 0: use the weights themselves."""

    compare_ema: bool = added(False, neutral=False)
    """With --ema, also evaluate the weights themselves, as val_weights_loss and so on."""

    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Number format of the forward pass. auto: bf16 on a GPU that has it, else fp32."""

    # Best weights
    monitor: str = setting("val_iou", metric=METRICS)
    """Metric that decides which evaluation's weights are the best. none: the last weights."""

    patience: int = setting(0, at_least=0)
    """Evaluations without a better --monitor after which the job stops early. 0: never."""

    # Variant
    seed: int = setting(0, at_least=0)
    """Seed of the initial weights, the order of the examples and the augmentation."""

    note: str = ""
    """Free text, to distinguish jobs whose other settings are equal."""

    def __post_init__(self) -> None:
        if self.accumulate > self.batch_size:
            raise SettingsError(
                f"--accumulate {self.accumulate}: must be at most --batch-size {self.batch_size}"
            )
        if self.monitor == "none" and self.patience:
            raise SettingsError(f"--patience {self.patience}: needs a --monitor")
        if self.compare_ema and not self.ema:
            raise SettingsError("--compare-ema: needs --ema, such as --ema 0.999")
        if self.optimizer == "muon" and self.precision == "fp16":
            raise SettingsError("--optimizer muon: does not work with --precision fp16; use bf16")
