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

from labjobs.settings import Metric, SettingsError, Span, Weights, added, setting

METRICS = {  # by the names under which run.py measures them
    "return": Metric(better="higher", range=(0, 500), target=450),
    "length": Metric(better="higher", label="episode length", unit="steps", range=(1, 500)),
    "entropy": Metric(better="higher", unit="nats", range=(0, None)),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a job. Raises SettingsError if they contradict each other."""

    # Environment
    environment: str = setting("balance", names="data.ENVIRONMENTS")
    """Environment to act in."""

    environments: int = setting(32, at_least=1, at_most=1_000_000)
    """Number of copies of the environment that run at once."""

    rollout: int = setting(64, at_least=1)
    """Number of steps in each copy of the environment before the policy is trained on them."""

    discount: float = setting(0.99, at_least=0, below=1)
    """Factor by which a reward counts less for each step that it comes later."""

    # Model
    model: str = setting("mlp", names="models.MODELS")
    """The policy, with a critic."""

    init_from: Weights | None = added(None, neutral=None)
    """Id of the job whose best weights this one starts from. With :last after the id, continue the
    training of that shorter job; with :fork, under other settings. none: new weights."""

    # Length (one of steps, minutes)
    steps: int = setting(1500, at_least=1)
    """Optimizer steps. Each optimizer step trains on --batch-size of the steps in the
    environment."""

    minutes: float = setting(0.0, at_least=0, at_most=1_000_000, replaces="steps")
    """Minutes of training, instead of --steps. 0: use --steps."""

    eval_every: Span = setting(Span("200"), above=0)
    """Optimizer steps between two evaluations."""

    # Optimization
    passes: int = setting(4, at_least=1)
    """How often each step in the environment is trained on."""

    batch_size: int = setting(512, at_least=1, at_most=1_000_000)
    """Steps in the environment per optimizer step."""

    accumulate: int = setting(1, at_least=1)
    """Parts into which each batch is split to save memory; they are computed one after another."""

    gae_lambda: float = setting(0.95, at_least=0, at_most=1)
    """λ of generalised advantage estimation (GAE): 0 trusts only the critic, 1 only the rewards
    received."""

    ratio_clip: float = setting(0.2, above=0)
    """PPO's clipping: the fraction by which an action's probability may move away from its value in
    the policy that acted."""

    entropy_weight: float = setting(0.003, at_least=0)
    """Weight of the policy's entropy in the loss, which rewards higher entropy."""

    value_weight: float = setting(1.0, at_least=0)
    """Weight of the critic's squared error in the loss."""

    optimizer: str = setting("adam", names="optimizers.OPTIMIZERS")
    """The optimizer. Its fixed options, such as sgd's momentum, are in optimizers.py."""

    lr: float = setting(1e-3, above=0)
    """Highest learning rate."""

    lr_for_batch: int = added(0, neutral=0, at_least=0)
    """Batch size that --lr was chosen for. With another --batch-size, the rate is scaled by the
    ratio of the two for sgd, and by its square root for other optimizers. 0: not scaled."""

    weight_decay: float = setting(0.0, at_least=0)
    """Weight decay of matrices and kernels; biases and norms have none."""

    schedule: str = setting("cosine", names="optimizers.SCHEDULES")
    """Learning rate schedule after the warm-up."""

    warmup: Span = Span("0")
    """Optimizer steps over which the learning rate first rises linearly from 0."""

    clip_norm: float = setting(0.5, at_least=0)
    """Largest allowed norm of the gradient over all weights; logged as train_gradient_norm. 1e9:
    only log it. 0: no clipping."""

    ema: float = setting(0.0, at_least=0, below=1)
    """Decay per step of an exponential moving average (EMA) of the weights, such as 0.99; the EMA
    is evaluated and kept, the weights themselves act in training. 0: use the weights themselves."""

    # Best weights
    monitor: str = setting("val_return", metric=METRICS)
    """Metric that decides which evaluation's weights are the best. none: the last weights."""

    patience: int = setting(0, at_least=0)
    """Evaluations without a better --monitor after which the job stops early. 0: never."""

    # Variant
    seed: int = setting(0, at_least=0)
    """Seed of the initial weights, the starting states, the actions and the batches."""

    note: str = ""
    """Free text, to distinguish jobs whose other settings are equal."""

    def __post_init__(self) -> None:
        if self.accumulate > self.batch_size:
            raise SettingsError(
                f"--accumulate {self.accumulate}: must be at most --batch-size {self.batch_size}"
            )
        if self.environments * self.rollout % self.batch_size:
            raise SettingsError(
                f"--batch-size {self.batch_size}: must divide --environments times --rollout, "
                f"{self.environments * self.rollout}"
            )
        if self.monitor == "none" and self.patience:
            raise SettingsError(f"--patience {self.patience}: needs a --monitor")
