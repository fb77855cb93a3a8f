"""Mistakes as a student makes them, each an edit of a fresh project's own files, and what
`--check` must say of it: which guarantee is broken, and the line, by a text that is in it.
"""

from dataclasses import dataclass
from pathlib import Path

from faults import Project

SETTINGS, DATA, MODELS, RUN = "settings.py", "data.py", "models.py", "run.py"


Changes = tuple[tuple[str, str, str], ...]
"""(file, text, text in its place) of each change; the text must be there."""


@dataclass(frozen=True)
class Mistake:
    """Changes of a project, the guarantee that they break, and the file and a text of the line to
    be named."""

    changes: Changes
    guarantee: str
    file: str
    text: str
    example: str = "classification"
    cure: str = ""
    """What is said to do about it."""
    flags: tuple[str, ...] = ()

    def make(self, project: Project) -> None:
        for change in self.changes:
            project.edit(*change)

    def line(self, root: Path) -> int:
        """Return the number of the line, once the mistake is made."""
        lines = (root / self.file).read_text().splitlines()
        return next(number for number, line in enumerate(lines, 1) if self.text in line)


RESUME, TWICE, WAITS = "exact resume", "the same bits twice", "waits for the device"
EVALUATION, GRADIENTS, STATE = "evaluation", "gradients", "parts of the state"
MEASUREMENTS, START, FLAGS = "measurements", "loss at the start", "settings"

STEP = "            ema.update()\n"
LOG = "                job.log(measured, lr=lr)  # stays on the device and is written later\n"
OPTIMIZER = "    optimizer = optimizers.make(model, settings)\n"
NONE = '    """Change nothing."""\n    return batch\n'
RESULT = '    return {f"{split}_{name}": value for name, value in means.read().items()}\n'
POSITION = 'position(self) -> dict[str, int]:\n        """Return the position'
LAYERS = "        self.layers = nn.Sequential(\n            nn.Flatten(),"
FIRST = "        logits: Tensor = self.layers(images)\n        return logits\n\n\ndef block("


def in_steps(line: str) -> Changes:
    """Return changes by which each step does something after it has logged."""
    return ((RUN, LOG, f"{LOG}                {line}\n"),)


def augmented(body: str, above: str = "") -> Changes:
    """Return changes by which the augmentation `none` does something."""
    done = f'    """Change nothing."""\n    images, labels = batch\n    {body}\n'
    imported = "from collections.abc import Callable, Sequence\n"
    return (
        (DATA, NONE, done),
        (DATA, "def none(batch: Batch)", f"{above}def none(batch: Batch)"),
        (DATA, imported, f"import random\nimport time\n{imported}"),
    )


FREEZE = '    freeze: Literal["none", "backbone"]'
DROPOUT = '    dropout: float = added(0.0, neutral=0.0)\n    """How much is dropped."""\n\n'

NOISY = '''RANDOM = np.random.default_rng(0)


class Noisy(Dataset[Any]):
    """Digits with noise."""

    def __init__(self, *digits: Any) -> None:
        self.digits = TensorDataset(*digits)

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> Any:
        image, label = self.digits[index]
        return image + int(RANDOM.integers(2)), label


def digits('''

MISTAKES = {
    "EMA not in job.resume": Mistake(
        ((RUN, "scaler=scaler, ema=ema, ", "scaler=scaler, "),),
        *(STATE, RUN, "ema = EMA("),
        flags=("--ema", "0.9"),
    ),
    "number carried from step to step": Mistake(
        (
            (RUN, OPTIMIZER, OPTIMIZER + "    weight = 1.0\n"),
            (RUN, STEP, STEP + "            weight *= 0.9\n"),
            (RUN, "scaler.scale(loss).backward", "scaler.scale(loss * weight).backward"),
        ),
        *(RESUME, RUN, "weight = 1.0"),
        cure="weight changes while training and is not restored; keep it in an object with state",
    ),
    "clock in the augmentation": Mistake(
        augmented("return images + time.time_ns() // 1000 % 9, labels"),
        *(TWICE, DATA, "time.time_ns()"),
    ),
    "random numbers in a dataset": Mistake(
        ((DATA, "def digits(", NOISY), (DATA, "TensorDataset(images, ", "Noisy(images, ")),
        *(TWICE, DATA, "def __getitem__(self, index"),
    ),
    "item": Mistake(in_steps("total = loss.item()"), WAITS, RUN, "total = loss.item()"),
    "NumPy in forward": Mistake(
        ((RUN, "predicted == labels", "torch.from_numpy(predicted.cpu().numpy()) == labels"),),
        *(WAITS, RUN, "predicted.cpu().numpy()"),
    ),
    "mask": Mistake(in_steps("right = loss.expand(3)[loss.expand(3) > 0]"), WAITS, RUN, "right ="),
    "dropout in evaluation": Mistake(
        ((MODELS, FIRST, FIRST.replace("images)", "nn.functional.dropout(images, 0.5))")),),
        *(EVALUATION, RUN, "_, measured = forward("),
    ),
    "evaluation draws random numbers after its loop": Mistake(
        ((RUN, RESULT, f"    chosen = torch.randperm(9)\n{RESULT}"),),
        *(EVALUATION, RUN, "chosen = torch.randperm(9)"),
    ),
    "evaluation changes weights after its loop": Mistake(
        ((RUN, RESULT, f"    list(model.parameters())[0].data.mul_(1.1)\n{RESULT}"),),
        *(EVALUATION, RUN, "@torch.no_grad()"),
    ),
    "stream without a state": Mistake(
        (
            (DATA, 'state_dict(self) -> dict[str, int]:\n        """Return the position', POSITION),
            (DATA, "num_shards = 8", "shards = 8"),
        ),
        *(RESUME, RUN, "job.resume("),
        example="graphs",
        cure="if it has none, is something other than the epoch that set_epoch() gets",
    ),
    "unused layer": Mistake(
        ((MODELS, LAYERS, f"        self.unused = nn.Linear(3, 3)\n{LAYERS}"),),
        *(GRADIENTS, MODELS, "self.unused = "),
    ),
    "column minus row": Mistake(
        ((RUN, "errors = predicted - targets", "errors = predicted[:, None] - targets"),),
        *(MEASUREMENTS, RUN, "errors = predicted"),
        "regression",
    ),
    "a metric that is misspelt": Mistake(
        ((RUN, '"accuracy": predicted', '"acuracy": predicted'),),
        *(MEASUREMENTS, RUN, "job.log(measured, lr=lr)"),
    ),
    "a setting that nothing reads": Mistake(
        ((SETTINGS, FREEZE, DROPOUT + FREEZE),), FLAGS, SETTINGS, "    dropout: float = "
    ),
    "logits that are too large": Mistake(
        ((RUN, "losses = cross_entropy(logits, ", "losses = cross_entropy(50 * logits, "),),
        *(START, RUN, "job.resume("),
    ),
}
