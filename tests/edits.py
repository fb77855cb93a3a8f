"""What students do to a project in its first week, as changes of the text of its own files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from faults import Project, job_of, succeeded
from test_recipes import blocks

SETTINGS, DATA, MODELS, RUN = (f"{name}.py" for name in ("settings", "data", "models", "run"))


@dataclass(frozen=True)
class Edit:
    """A change of a project's own files: (file, text, text in its place)."""

    changes: tuple[tuple[str, str, str], ...]
    flags: tuple[str, ...] = ()
    """Those of the job that is then run."""
    example: str = "plain"
    prepare: Callable[[Path], object] = lambda root: None
    """Makes what is not text."""
    check: Callable[[Project, str], object] = lambda project, job: None
    """Asserts what must be true of the job."""

    def make(self, project: Project) -> None:
        """Change the files; each text must be there."""
        for change in self.changes:
            project.edit(*change)
        self.prepare(project.root)


def measure(root: Path) -> None:
    """Write a table of 400 examples, in which the largest of 64 numbers tells the class."""
    chance = np.random.default_rng(0)
    inputs = chance.random((400, 64))
    (root / "data").mkdir()
    np.save(root / "data/measured.npy", np.column_stack([inputs, inputs[:, :10].argmax(1)]))


def no_validation(project: Project, job: str) -> None:
    """The last weights are kept, and nothing is called a validation result."""
    assert not [name for name in project.journalled(job) if name.startswith("val_")]
    assert project.tensors(job)["best"]["step"] == project.journalled(job)["lr"][-1][0]


def both_losses(project: Project, job: str) -> None:
    """Each is a curve, in training and in evaluation."""
    curves = project.journalled(job)
    assert {"train_spread", "val_spread", "test_spread"} <= curves.keys()


def growing(project: Project, job: str) -> None:
    """Later epochs have fewer steps."""
    ends = [step for step, _ in project.journalled(job)["epoch"]]
    assert ends[1] - ends[0] > ends[-1] - ends[-2]


def frozen(project: Project, job: str) -> None:
    """With another learning rate, the first layer is the same and the last is not."""
    one, other = (project.weights(j) for j in (job, project.finish(*SHORT, "--lr", "0.01")))
    assert torch.equal(one["layers.0.weight"], other["layers.0.weight"])
    assert not torch.equal(one["layers.4.weight"], other["layers.4.weight"])


def add_analysis(project: Project) -> None:
    """Add the script of the recipe, its settings, and the one that draws its figure."""
    settings, script, figure = blocks("A script of your own")
    project.edit("settings.py", "import Metric,", "import JobId, Metric,")
    project.edit("settings.py", "@dataclass(", f"{settings}\n\n@dataclass(")
    (project.root / "analyse.py").write_text(script)
    (project.root / "plot_analyses.py").write_text(figure)


def analysed(project: Project, job: str) -> None:
    """The second script compares jobs of the first, is checked and drawn, and runs once."""
    inputs = ("--first", job, "--second", project.finish(*SHORT, "--seed", "1"))
    analysis = job_of(succeeded(project.do("python", "analyse.py", *inputs)))
    again = succeeded(project.do("python", "analyse.py", *inputs))
    assert "already finished" in again.stdout + again.stderr
    assert project.stored(analysis)["distance"]
    done = succeeded(project.do("python", "analyse.py", "--check", *inputs))
    assert "nothing found; analyse.py does not train" in done.stdout
    succeeded(project.do("python", "plot_analyses.py", "--format", "png"))
    assert (project.root / "figures/distances.png").exists()


def ranked(project: Project, job: str) -> None:
    """The metrics of torchmetrics are curves, one of them of each interval's training steps."""
    curves = project.journalled(job)
    assert len(curves["val_auc"]) == len(curves["train_auc"]) == len(curves["val_loss"])
    assert 0.9 < curves["test_auc"][-1][1] <= 1


def undefined_at_first(project: Project, job: str) -> None:
    """The kept weights are of the best evaluation in which it was defined, and none diverged."""
    values = [value for _, value in project.journalled(job)["val_sureness"]]
    assert np.isnan(values[0]) and np.isfinite(values[-1])
    assert project.tensors(job)["best"]["metrics"]["val_sureness"] == np.nanmax(values)


SHORT = ("--epochs", "30", "--batch-size", "128", "--log-every", "1", "--quiet")

FORWARD = '    return losses.mean(), {"loss": losses, "accuracy": logits.argmax(-1) == labels}\n'
MEASURED = '    measured = {"loss": losses, "accuracy": logits.argmax(-1) == labels}\n'
BACKWARD = "            loss.backward()\n"
RESUME = "optimizer=optimizer, stopping=stopping)"
TRAINED = "job.batches(splits.train, settings.batch_size, shuffle=True)"
ACCURACY = '    "accuracy": Metric('

USUAL = '''class Usual(Stateful):
    """The loss that batches usually have: a running mean over the steps."""

    kept = ("loss",)

    def __init__(self, device: torch.device) -> None:
        self.loss = torch.ones((), device=device)


def load('''

OWN_DATASET = '''class Digits(Dataset[tuple[Tensor, int]]):
    """Digits, one by one."""

    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self.pixels, self.labels = pixels, labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.pixels[index], self.labels[index]


def digits('''

GROWING = '''def growing(settings: Settings, count: int, epoch: int, random: Any) -> list[Tensor]:
    """Return the examples of each batch of an epoch, which has all of them once."""
    size = settings.batch_size * 2 ** (3 * epoch // settings.epochs)
    return list(torch.randperm(count, generator=random).split(size))


def digits('''

EDITS = {
    "own data by default": Edit(
        (
            (
                DATA,
                "    pixels, labels = digits()\n",
                '    table = torch.from_numpy(np.load(data_root / "measured.npy"))\n'
                "    pixels, labels = table[:, :-1].float(), table[:, -1].long()\n",
            ),
        ),
        prepare=measure,
    ),
    "no validation part": Edit(
        (
            (SETTINGS, 'setting("val_loss", metric', 'setting("none", metric'),
            (DATA, "    val: Examples\n", "    val: Examples | None\n"),
            (DATA, "    rest, test = split(", "    train, test = split("),
            (
                DATA,
                "    train, val = split(rest, settings.val_fraction, settings.split_seed)\n",
                "",
            ),
            (DATA, "Splits(train, val, test", "Splits(train, None, test"),
            (RUN, "Batches, Batches, Batches]", "Batches, Batches | None, Batches]"),
            (RUN, "batches: Batches, val: Batches\n", "batches: Batches, val: Batches | None\n"),
            (RUN, "batches: Batches, split: str", "batches: Batches | None, split: str"),
            (
                RUN,
                "    model.eval()\n",
                "    if batches is None:\n        return {}\n    model.eval()\n",
            ),
            (
                SETTINGS,
                "    val_fraction: float = setting(0.1, above=0, below=1)\n"
                '    """Fraction of the training examples held out for validation."""\n\n',
                "",
            ),
        ),
        check=no_validation,
    ),
    "two losses": Edit(
        (
            (
                SETTINGS,
                ACCURACY,
                f'    "spread": Metric(better="lower", range=(0, None)),\n{ACCURACY}',
            ),
            (
                RUN,
                FORWARD,
                f"    spread = logits.square().mean(-1)\n{MEASURED}"
                '    return losses.mean() + 0.01 * spread.mean(), measured | {"spread": spread}\n',
            ),
        ),
        check=both_losses,
    ),
    "carried state": Edit(
        (
            (RUN, "Job, Means\n", "Job, Means, Stateful\n"),
            (RUN, "def load(", USUAL),
            (
                RUN,
                "    # What a checkpoint",
                "    usual = Usual(job.device)\n    # What a checkpoint",
            ),
            (RUN, RESUME, RESUME.replace(")", ", usual=usual)")),
            (
                RUN,
                BACKWARD,
                "            usual.loss = usual.loss.lerp(loss.detach(), 0.1)\n"
                "            (loss / usual.loss).backward()\n",
            ),
        ),
    ),
    "changing batch size": Edit(
        (
            (DATA, "def digits(", GROWING),
            (RUN, "import sys\n", "import sys\nfrom functools import partial\n"),
            (
                RUN,
                TRAINED,
                "job.batches(splits.train, partial(data.growing, settings), shuffle=True)",
            ),
        ),
        check=growing,
    ),
    "frozen parts": Edit(
        (
            (
                MODELS,
                "    return MLP(spec.inputs, settings.width, spec.classes)\n",
                "    network = MLP(spec.inputs, settings.width, spec.classes)\n"
                "    network.layers[0].requires_grad_(False)\n"
                "    return network\n",
            ),
            (
                RUN,
                "Adam(model.parameters(),",
                "Adam([p for p in model.parameters() if p.requires_grad],",
            ),
        ),
        check=frozen,
    ),
    "float64": Edit(
        (
            (DATA, "[:, :-1].float() / 16", "[:, :-1] / 16"),
            (RUN, "model(inputs).float()", "model(inputs)"),
            (MODELS, "settings.width, spec.classes)", "settings.width, spec.classes).double()"),
            (MODELS, "spec.inputs)", "spec.inputs, dtype=torch.float64)"),
        ),
    ),
    "a data set of one's own class": Edit(
        (
            (DATA, "def digits(", OWN_DATASET),
            (DATA, "split(TensorDataset(", "split(Digits("),
            (DATA, "Dataset, TensorDataset", "Dataset"),
        ),
    ),
    "a second script": Edit(
        (),
        prepare=lambda root: add_analysis(Project(root)),
        check=analysed,
    ),
    "torchmetrics": Edit(
        (
            (
                SETTINGS,
                ACCURACY,
                f'    "auc": Metric(better="higher", range=(0, 1)),\n{ACCURACY}',
            ),
            (
                RUN,
                "from torch.optim import Adam\n",
                "from torch.optim import Adam\n"
                "from torchmetrics.classification import MulticlassAUROC\n",
            ),
            (
                RUN,
                FORWARD,
                f'{MEASURED}    measured["scores"] = logits.softmax(-1)\n'
                "    return losses.mean(), measured\n",
            ),
            (
                RUN,
                "    # What a checkpoint",
                "    seen = MulticlassAUROC(10, thresholds=50).to(job.device)\n"
                "    seen.persistent(True)\n    # What a checkpoint",
            ),
            (RUN, RESUME, RESUME.replace(")", ", seen=seen)")),
            (
                RUN,
                "            job.log(measured, lr=lr)",
                '            seen.update(measured.pop("scores").detach(), batch[1])  # waits\n'
                "            job.log(measured, lr=lr)",
            ),
            (
                RUN,
                "        job.log_epoch(metrics)\n",
                '        job.log_epoch(metrics | {"train_auc": seen.compute().item()})\n'
                "        seen.reset()\n",
            ),
            (
                RUN,
                "    means = Means()\n",
                "    means = Means()\n"
                "    auc = MulticlassAUROC(10, validate_args=False).to(job.device)\n",
            ),
            (
                RUN,
                "        means.add(measured)\n",
                '        auc.update(measured.pop("scores"), batch[1])\n'
                "        means.add(measured)\n",
            ),
            (
                RUN,
                "value in means.read().items()}",
                'value in {**means.read(), "auc": auc.compute().item()}.items()}',
            ),
        ),
        check=ranked,
    ),
    "a metric that is undefined at first": Edit(
        (
            (
                SETTINGS,
                ACCURACY,
                f'    "sureness": Metric(better="higher", range=(0, 1)),\n{ACCURACY}',
            ),
            (SETTINGS, 'setting("val_loss", metric', 'setting("val_sureness", metric'),
            (
                RUN,
                FORWARD,
                f"    sure = logits.softmax(-1).amax(-1) > 0.9\n{MEASURED}"
                '    measured["sureness"] = (sure & measured["accuracy"], sure)\n'
                "    return losses.mean(), measured\n",
            ),
        ),
        check=undefined_at_first,
    ),
    "tied weights": Edit(
        (
            (
                MODELS,
                "        self.layers = nn.Sequential(\n",
                "        first, second = nn.Linear(width, width), nn.Linear(width, width)\n"
                "        second.weight = first.weight\n"
                "        self.layers = nn.Sequential(\n",
            ),
            (
                MODELS,
                "            nn.Linear(width, width),\n",
                "            first,\n            nn.ReLU(),\n            second,\n",
            ),
        ),
    ),
}
