"""A project whose training examples are a stream of dictionaries of different lengths."""

from pathlib import Path

import pytest
from edits import DATA, MODELS, RUN, Edit
from faults import Project, ended, job_of, kill, learnt, one_line, same, wait_until

FLAGS = ("--model", "bag", "--steps", "120", "--eval-every", "40", "--lr", "0.03", "--quiet")
OFTEN = ("--checkpoint-minutes", "0.0001")

STREAM = '''def pixels(examples):
    """Return digits as the numbers of their dark pixels: as many as there are."""
    found = []
    for image, label in examples:
        dark = image.flatten().gt(128).nonzero().squeeze(1)
        found.append({"pixels": dark, "label": int(label), "name": f"a {label}"})
    return found


def pad(examples):
    """Return a batch: pixels (B, L), as long as the longest, labels (B,) and names."""
    return {
        "pixels": pad_sequence([each["pixels"] for each in examples], True, 64),
        "label": torch.tensor([each["label"] for each in examples]),
        "name": [each["name"] for each in examples],
    }


class Stream(IterableDataset):
    """Examples one after another, each pass in another order."""

    def __init__(self, examples, shards=1):
        self._examples, self.num_shards = examples, shards
        self._pass = self._done = 0

    def set_epoch(self, number):
        self._pass = number

    def shard(self, num_shards, index):
        return Stream(self._examples[index::num_shards])

    def __iter__(self):
        order = list(range(len(self._examples)))
        random.Random(self._pass).shuffle(order)
        for index in order[self._done :]:
            self._done += 1
            yield self._examples[index]
        self._done = 0


'''
STATE = """    def state_dict(self):
        return {"done": self._done}

    def load_state_dict(self, state):
        self._done = state["done"]

"""
NORMALIZED = (
    "    return Normalized(network, spec.shape, spec.mean, spec.std) if spec.mean else network\n"
)
BAG = '''class Bag(nn.Module):
    """The mean of a vector for each dark pixel."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(65, len(spec.classes), mode="mean", padding_idx=64)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return logits (B, K) of pixels (B, L)."""
        return self.bag(pixels)


def make('''


def streamed(project: Project, shards: int, has_state: bool) -> Project:
    """Have a project train on a stream of dictionaries."""
    stream = STREAM
    if has_state:
        stream = STREAM.replace("    def __iter__", f"{STATE}    def __iter__")
    parts = f"Stream(pixels(train), {shards}), pixels(val), pixels(test)"
    collate = "settings.batch_size, collate=data.pad)"
    Edit(
        (
            (DATA, "import torch\nfrom", "import random\n\nimport torch\nfrom"),
            (DATA, "import Dataset, ", "import Dataset, IterableDataset, "),
            (
                DATA,
                "from torch import Tensor\n",
                "from torch import Tensor\nfrom torch.nn.utils.rnn import pad_sequence\n",
            ),
            (DATA, "def load(", f"{stream}def load("),
            (DATA, "return Splits(train, val, test, ", f"return Splits({parts}, "),
            (MODELS, NORMALIZED, "    return network\n"),
            (
                MODELS,
                "from torch import Tensor, nn\n",
                "import torch\nfrom torch import Tensor, nn\n",
            ),
            (MODELS, "def make(", BAG),
            (MODELS, '    "mlp": ', '    "bag": lambda settings, spec: Bag(spec),\n    "mlp": '),
            (RUN, "inputs, labels = batch", 'inputs, labels = batch["pixels"], batch["label"]'),
            (RUN, "label=batch[1]", 'label=batch["label"]'),
            (RUN, "settings.batch_size, shuffle=True)", collate),
            (
                RUN,
                "job.batches(splits.val, settings.batch_size)",
                f"job.batches(splits.val, {collate}",
            ),
            (
                RUN,
                "job.batches(splits.test, settings.batch_size)",
                f"job.batches(splits.test, {collate}",
            ),
        )
    ).make(project)
    return project


def checkpoints(project: Project) -> dict[Path, int]:
    """The checkpoints, with the times of their last change."""
    return {path: path.stat().st_mtime_ns for path in project.root.glob("runs/*/*/last.pt")}


def killed(project: Project, *flags: str) -> None:
    """Kill a job once it has made a checkpoint."""
    before, job = checkpoints(project), project.start(*flags)
    wait_until(lambda: job.poll() is not None or checkpoints(project) != before)
    kill(job.pid)
    done = ended(job)
    assert done.returncode == -9, done


@pytest.mark.full
@pytest.mark.parametrize(
    ("shards", "has_state"), [(1, True), pytest.param(4, False, marks=pytest.mark.alike)]
)
def test_killed_it_goes_on_where_it_was_with_any_number_of_processes(
    make, tmp_path, shards, has_state
):
    parts = streamed(Project(make()), shards, has_state)
    whole = parts.copy(tmp_path / "whole")
    undisturbed = whole.start(*FLAGS)
    killed(parts, *FLAGS, *OFTEN, "--workers", "0")
    killed(parts, *FLAGS, *OFTEN, "--workers", "2")
    done, again = ended(undisturbed), parts.run(*FLAGS)
    assert (done.returncode, again.returncode) == (0, 0), (done, again)
    job = job_of(done)
    assert same(learnt(parts, job), learnt(whole, job))
    assert parts.journalled(job) == whole.journalled(job) == parts.stored(job)
    (first, *_, last) = (float(value) for _, value in whole.journalled(job)["train_loss"])
    assert last < 0.9 * first
    said = (parts.folder(job) / "log.txt").read_text()
    assert has_state != ("examples were read again and skipped in" in said)


def test_what_a_stream_cannot_have_is_refused_in_one_line(make):
    project = streamed(Project(make()), shards=1, has_state=True)
    steps = ("--model", "bag", "--steps", "10")
    often = (*steps, "--eval-every", "5")
    for flags, said in {
        ("--model", "bag"): "--epochs: this data has no epochs; use --steps or --minutes",
        steps: "--eval-every: this data has no epochs; give a number of steps, such as 500",
        (*often, "--warmup", "1e"): "1e: this training data has no epochs",
        (*often, "--loader", "resident"): "--loader resident: not for a stream",
    }.items():
        assert said in one_line(project.run(*flags, "--quiet"), 2)
    accumulated = one_line(project.run(*often, "--accumulate", "2", "--quiet"), 1)
    assert "--accumulate: this batch cannot be split into parts" in accumulated
