"""What students do to a project in its first week, as changes of the text of their own files.

Each edit says what it changes, the flags of the job that is then run, and what must be true of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from faults import Project, one_line

EPOCHS = ("--epochs", "8")
BEFORE = (*EPOCHS, "--lr", "0.003")
"""A job that ran before the edit."""

Check = Callable[[Project, str, str], None]
"""Asserts what must be true: of a project, its job, and the job that ran before the edit."""


@dataclass(frozen=True)
class Edit:
    """A change of a project's own files: (file, text, text in its place)."""

    changes: tuple[tuple[str, str, str], ...]
    flags: tuple[str, ...] = BEFORE
    check: Check = lambda project, job, before: None

    def make(self, project: Project) -> None:
        """Change the files; each text must be there once."""
        for name, old, new in self.changes:
            path = project.root / name
            text = path.read_text()
            assert text.count(old) == 1, (name, old)
            path.write_text(text.replace(old, new))


def same_job(project: Project, job: str, before: str) -> None:
    """The job is the one that ran before."""
    assert job == before


def another_job(project: Project, job: str, before: str) -> None:
    """The job is a new one, and the one that ran before is still there by the flags of then."""
    assert job != before


def renamed(project: Project, job: str, before: str) -> None:
    """The id is that of the former flag, which is refused with the name that it has now."""
    assert job == before
    assert "--lr: is now --learning-rate" in one_line(project.run(*BEFORE), 2)


def deleted(project: Project, job: str, before: str) -> None:
    """Jobs with the value that the code amounts to are the same; the flag is gone."""
    assert job == before
    assert "--label-smoothing" in one_line(project.run("--label-smoothing", "0.1"), 2)


def neutral(project: Project, job: str, before: str) -> None:
    """At its neutral value the new setting leaves a job what it was; the default does not."""
    assert job == before
    other = one_line(project.run(*BEFORE, "--dropout", "2"), 2)
    assert other.endswith("--dropout 2: must be at least 0 and below 1")


def lowest(project: Project, job: str, before: str) -> None:
    """The best weights are those of the evaluation with the lowest value."""
    curve = project.journalled(job)["val_brier"]
    step, _ = min(curve, key=lambda point: point[1])
    assert project.tensors(job)["best"]["step"] == step


def learns(project: Project, job: str, before: str) -> None:
    """The loss falls."""
    losses = [value for _, value in project.journalled(job)["train_loss"]]
    assert float(losses[-1]) < 0.5 * float(losses[0])  # type: ignore[arg-type]
    assert job != before


def scheduled(project: Project, job: str, before: str) -> None:
    """The learning rate rests, then falls to nothing over the last half."""
    rates = [float(value) for _, value in project.journalled(job)["lr"]]  # type: ignore[arg-type]
    assert rates[: len(rates) // 2] == [0.003] * (len(rates) // 2)
    assert rates == sorted(rates, reverse=True) and rates[-1] == pytest.approx(0.003 / 84)


def grouped(project: Project, job: str, before: str) -> None:
    """Each group of parameters has its own rate, by one schedule."""
    groups: list[dict[str, Any]] = project.tensors(job)["last"]["parts"]["optimizer"][
        "param_groups"
    ]
    first, last = (group["lr"] for group in groups)
    assert first == pytest.approx(last / 10) and last > 0


def in_steps(project: Project, job: str, before: str) -> None:
    """The job has that length, and --epochs is no part of its id."""
    assert [step for step, _ in project.journalled(job)["val_loss"]] == [50, 100, 150]
    (line,) = project.run().stdout.splitlines()
    assert line.startswith(f"job {job} already finished")


SETTINGS, DATA, MODELS, OPTIMIZERS, RUN = (
    f"{name}.py" for name in ("settings", "data", "models", "optimizers", "run")
)

FOCAL = """    certain = torch.softmax(logits, -1).gather(-1, labels[:, None]).squeeze(-1)
    losses = losses * (1 - certain) ** 2
    return losses.mean(), measured"""

BRIER = """    right = torch.nn.functional.one_hot(labels, logits.shape[-1])
    measured["brier"] = (logits.softmax(-1) - right).square().sum(-1)
    return losses.mean(), measured"""

SIGN_SGD = '''class SignSGD(Optimizer):
    """Steps of one size by the sign of a running mean of the gradient."""

    def __init__(self, groups: Groups, lr: float) -> None:
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Take a step."""
        for group in self.param_groups:
            for weight in group["params"]:
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                mean.lerp_(weight.grad, 0.1)
                weight.sub_(group["lr"] * mean.sign())


OPTIMIZERS: '''

NOISE = '''def noise(batch: Batch) -> Batch:
    """Add noise to each pixel."""
    images, labels = batch
    noisy = images + 8 * torch.randn(images.shape, device=images.device)
    return noisy.clamp(0, 255).to(torch.uint8), labels


AUGMENTATIONS: '''

TWO_RATES = """    *first, last = [p for p in model.parameters() if p.requires_grad]
    rates = [{"params": first, "lr": settings.lr / 10}, {"params": [last], "lr": settings.lr}]
    optimizer = OPTIMIZERS[settings.optimizer](rates, settings)
"""

EDITS = {
    "default": Edit(
        ((SETTINGS, "lr: float = setting(1e-3", "lr: float = setting(3e-3"),), EPOCHS, same_job
    ),
    "new flag": Edit(
        (
            (
                SETTINGS,
                "    pretrained: bool = False\n",
                "    dropout: float = added(0.1, neutral=0.0, at_least=0, below=1)\n"
                '    """Fraction of the first layer that is left out."""\n\n'
                "    pretrained: bool = False\n",
            ),
            (
                MODELS,
                '"mlp": lambda settings, spec: MLP(spec.shape, len(spec.classes)),',
                '"mlp": lambda settings, spec: nn.Sequential(\n'
                "        nn.Dropout(settings.dropout), MLP(spec.shape, len(spec.classes))\n    ),",
            ),
        ),
        (*BEFORE, "--dropout", "0"),
        neutral,
    ),
    "renamed flag": Edit(
        (
            (
                SETTINGS,
                "    lr: float = setting(1e-3, above=0)",
                '    learning_rate: float = setting(1e-3, above=0, formerly="lr")',
            ),
            (
                OPTIMIZERS,
                "Adam(groups, settings.lr, fused",
                "Adam(groups, settings.learning_rate, fused",
            ),
            (
                OPTIMIZERS,
                "AdamW(groups, settings.lr, fused",
                "AdamW(groups, settings.learning_rate, fused",
            ),
            (
                OPTIMIZERS,
                "groups, settings.lr, momentum",
                "groups, settings.learning_rate, momentum",
            ),
        ),
        (*EPOCHS, "--learning-rate", "0.003"),
        renamed,
    ),
    "deleted flag": Edit(
        (
            (
                SETTINGS,
                "    label_smoothing: float = setting(0.0, at_least=0, below=1)\n"
                '    """Fraction of each label\'s probability spread over all classes, in the '
                'training loss."""\n',
                '    FORMER: ClassVar[dict[str, object]] = {"label_smoothing": 0.0}\n',
            ),
            (SETTINGS, "import Literal", "import ClassVar, Literal"),
            (RUN, "    smoothing = settings.label_smoothing if model.training else 0.0\n", ""),
            (RUN, ", label_smoothing=smoothing", ""),
        ),
        BEFORE,
        deleted,
    ),
    "own loss": Edit(((RUN, "    return losses.mean(), measured", FOCAL),)),
    "second metric": Edit(
        (
            (
                SETTINGS,
                '    "accuracy": Metric(',
                '    "brier": Metric(better="lower", label="Brier score", range=(0, 2)),\n'
                '    "accuracy": Metric(',
            ),
            (RUN, "    return losses.mean(), measured", BRIER),
        ),
        (*BEFORE, "--monitor", "val_brier"),
        lowest,
    ),
    "own optimizer": Edit(
        (
            (OPTIMIZERS, "OPTIMIZERS: ", SIGN_SGD),
            (
                OPTIMIZERS,
                '    "adamw": lambda',
                '    "sign-sgd": lambda groups, settings: SignSGD(groups, settings.lr),\n'
                '    "adamw": lambda',
            ),
            (OPTIMIZERS, "from torch import nn\n", "import torch\nfrom torch import nn\n"),
        ),
        (*EPOCHS, "--optimizer", "sign-sgd", "--lr", "0.001"),
        learns,
    ),
    "own schedule": Edit(
        (
            (
                OPTIMIZERS,
                '    "constant": lambda',
                '    "rest-then-fall": lambda at: min(1.0, 2 * (1 - at.done)),\n'
                '    "constant": lambda',
            ),
        ),
        (*BEFORE, "--schedule", "rest-then-fall"),
        scheduled,
    ),
    "own augmentation": Edit(
        (
            (DATA, "AUGMENTATIONS: ", NOISE),
            (DATA, '    "none": none,\n', '    "none": none,\n    "noise": noise,\n'),
        ),
        (*BEFORE, "--augment", "noise"),
        another_job,
    ),
    "two learning rates": Edit(
        (
            (
                OPTIMIZERS,
                "    optimizer = OPTIMIZERS[settings.optimizer](parts, settings)\n",
                TWO_RATES,
            ),
        ),
        (*BEFORE, "--schedule", "constant"),
        grouped,
    ),
    "steps for epochs": Edit(
        (
            (SETTINGS, "    steps: int = setting(0,", "    steps: int = setting(150,"),
            (
                SETTINGS,
                'eval_every: Span = setting(Span("1e")',
                'eval_every: Span = setting(Span("50")',
            ),
        ),
        (),
        in_steps,
    ),
    "third setting in the grid": Edit(
        (
            (
                "run.sh",
                'job --model "$model" --lr "$lr" --seed "$seed"',
                'job --epochs 2 --model "$model" --lr "$lr" --weight-decay "$decay" --seed "$seed"',
            ),
            ("run.sh", "for model in mlp convnet; do", "for model in mlp; do"),
            ("run.sh", "for lr in 1e-3 1e-2; do", "for lr in 1e-3; do for decay in 0 0.01; do"),
            ("run.sh", "for seed in 0 1 2; do", "for seed in 0 1; do"),
            ("run.sh", "      done\n", "      done; done\n"),
        ),
    ),
}
