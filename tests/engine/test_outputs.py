"""What a job keeps of each test example: of any form, written as it comes, read as a table."""

import re
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from labjobs.data.splits import split
from labjobs.distributed.collectives import Processes
from labjobs.errors import JobError, SettingsError
from labjobs.results import tables
from labjobs.results.metrics import NoResults
from labjobs.training.outputs import Outputs, save_split
from torch.utils.data import Subset, TensorDataset
from toy import DATA, TRAIN, VAL, Loop

CPU = torch.device("cpu")


def test_parts_that_share_examples_are_refused(tmp_path):
    parts = {"train": Subset(DATA, range(8)), "val": Subset(DATA, [7, 8, 9]), "test": None}
    parts["probe"] = Subset(DATA, [0, 1])  # no results are those on this
    with pytest.raises(JobError, match="train and val share examples"):
        save_split(tmp_path, parts)
    parts["val"] = Subset(DATA, [8, 9])
    assert save_split(tmp_path, parts)["examples"] == {"train": 8, "val": 2, "probe": 2}


class Keeping(Loop):
    """Keeps what a function makes of each batch of the test, which is on the validation data."""

    def __init__(self, make, part=VAL, shuffle=False):
        super().__init__()
        self.make, self.part, self.shuffle = make, part, shuffle

    def evaluate(self, model, job, forward, val, part):
        if part != "test":
            return super().evaluate(model, job, forward, val, part)
        for batch in job.batches(self.part, 8, shuffle=self.shuffle):
            self.keep(job, self.make(*batch))
        return {}

    def keep(self, job, values):
        job.keep_outputs(**values)


class Measuring(Keeping):
    """Keeps what was measured, without other values."""

    def keep(self, job, values):
        job.keep_outputs(values)


def read(done, *names):
    """The outputs of a job as a table."""
    assert done.status == 0, done.said
    folder = done.folder
    about = {"job_id": folder.parent.name, "run_id": "", "job_folder": str(folder), "lr": 0.1}
    return tables.outputs(pd.DataFrame([about | {"diverged": False}]), *names, settings=["lr"])


def kept(toy, make, *names, **how):
    """The outputs of a job that keeps what a function makes of its points and labels."""
    return read(toy.run(loop=Keeping(make, **how), epochs=1), *names)


POINTS, LABELS = VAL[:]
EACH = "needs a value for each example, but has "


def spread(labels):
    return labels.byte().view(-1, 1, 1, 1).expand(-1, 3, 4, 5)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda points, labels: labels == 1, LABELS == 1),
        (lambda points, labels: points.double().t().contiguous().t(), POINTS.double()),
        (lambda points, labels: points.bfloat16(), POINTS.bfloat16().float()),
        (lambda points, labels: points.requires_grad_() * 2, POINTS * 2),
        (lambda points, labels: spread(labels), spread(LABELS)),
        (lambda points, labels: points[:, :0], POINTS[:, :0]),
    ],
)
def test_tensors_of_any_kind_come_back_as_they_were(toy, make, wanted):
    table = kept(toy, lambda points, labels: {"value": make(points, labels)})
    assert [*table.columns] == ["job_id", "lr", "index", "value"]
    values = np.stack(table["value"].to_list())
    assert values.dtype == wanted.numpy().dtype
    assert np.array_equal(values, wanted.numpy())
    assert table["job_id"].nunique() == 1 and {*table["lr"]} == {0.1}


def test_values_of_different_lengths_come_back_one_by_one(toy):
    def boxes(points, labels):
        return {"boxes": [point.expand(n, -1) for point, n in zip(points, labels, strict=True)]}

    table = kept(toy, boxes)
    assert [*table.columns] == ["job_id", "lr", "index", "boxes"] and len(table) == len(VAL)
    for found, point, n in zip(table["boxes"], POINTS, LABELS, strict=True):
        assert np.array_equal(found, point.expand(n, -1).numpy())


def test_what_is_changed_afterwards_is_kept_as_it_was(toy):
    scratch = torch.zeros(8)

    def make(points, labels):
        scratch[: len(labels)] = labels.float()
        return {"value": scratch[: len(labels)]}

    assert kept(toy, make)["value"].tolist() == LABELS.tolist()


def test_the_place_of_each_example_is_known(toy):
    def make(points, labels):
        return {"first": points[:, 0]}

    table = kept(toy, make)
    assert table["index"].tolist() == list(range(len(TRAIN), len(DATA)))

    shuffled = read(toy.run("shuffled", Keeping(make, shuffle=True), epochs=1))
    places = shuffled["index"].tolist()
    assert places != sorted(places) == table["index"].tolist()
    assert shuffled["first"].tolist() == DATA[:][0][places, 0].tolist()


def test_the_group_of_each_example_is_known_if_the_dataset_was_split_by_groups(toy):
    copy = TensorDataset(*DATA[:])
    patients = [f"p{place // 3}" for place in range(len(copy))]
    _, part = split(copy, 0.3, 0, groups=patients)
    table = kept(toy, labels_alone, part=part)
    assert table["group"].tolist() == [place // 3 for place in table["index"]]


class OnItsOwn(Keeping):
    """Tests on batches that the engine did not make."""

    def evaluate(self, model, job, forward, val, part):
        if part != "test":
            return super().evaluate(model, job, forward, val, part)
        for first in range(0, len(VAL), 8):
            job.keep_outputs(**self.make(*VAL[first : first + 8]))
        return {}


def labels_alone(points, labels):
    return {"label": labels}


@pytest.mark.parametrize(
    "loop",
    [
        OnItsOwn(labels_alone),
        Keeping(lambda points, labels: {"token": points.flatten()}),
        Keeping(lambda points, labels: {"label": labels[:3]}),
    ],
    ids=["batches of its own", "tokens", "some"],
)
def test_the_place_is_not_said_where_it_is_not_certain(toy, loop):
    assert "index" not in read(toy.run(loop=loop, epochs=1))


def test_measurements_with_a_value_for_each_example_are_kept(toy):
    loop = Measuring(lambda p, y: {"first": p[:, 0], "all": p, "mean": p.mean()})
    table = read(toy.run(loop=loop, epochs=1))
    assert "first" in table and not {"all", "mean"} & {*table}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p, y: {"label": y, "predicted": y[1:]}, f"{EACH}8 of label, 7 of predicted"),
        (lambda p, y: {"label": y, "boxes": [p[0]]}, f"{EACH}8 of label, 1 of boxes"),
        (lambda p, y: {"loss": p.mean()}, "loss must be a tensor (B, …), or a list with a tensor"),
        (lambda p, y: {"count": len(y)}, "count must be a tensor (B, …), or a list with a tensor"),
        (lambda p, y: {"labels" if len(y) < 8 else "label": y}, "labels, after label of another"),
        (lambda p, y: {"value": p[:, : len(y)]}, "value of an example is (4,) float32, after (6,)"),
        (lambda p, y: {}, "nothing has a value for each example; give one, such as label=batch[1]"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(toy, make, said):
    done = toy.run(loop=Keeping(make), epochs=1)
    assert done.status == 1
    assert f"failed: job.keep_outputs: {said}" in done.said
    assert not (done.folder / "predictions.npz").exists()


class InEach(Keeping):
    """Keeps the outputs of every evaluation."""

    def evaluate(self, model, job, forward, val, part):
        return super().evaluate(model, job, forward, val, "test") or {"val_loss": 1.0}


def test_outputs_of_an_evaluation_in_training_are_refused(toy):
    """Otherwise, each evaluation would add its validation examples to those of the test."""
    done = toy.run(loop=InEach(lambda points, labels: {"label": labels}), epochs=2)
    assert done.status == 1
    assert "failed: job.keep_outputs: keeps test examples, once training has ended" in done.said
    assert "epoch 1/2" not in done.said


class Twice(Keeping):
    """Tests two models, one after the other, on the same batches."""

    def evaluate(self, model, job, forward, val, part):
        for _ in range(1 if part == "val" else 2):
            found = Loop.evaluate(self, model, job, forward, val, part)
        return found


def test_a_second_pass_over_the_test_examples_is_refused(toy):
    """Otherwise, each of them would be in the file twice."""
    done = toy.run(loop=Twice(labels_alone), epochs=1)
    assert done.status == 1
    assert "failed: job.keep_outputs: a second pass over the same batches" in done.said


def anonymous():
    """Bytes of memory of this process that no file is behind."""
    (line,) = re.findall(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(line)


def test_the_host_does_not_hold_what_is_kept(tmp_path):
    keeping, batch = Outputs(tmp_path, CPU, Processes()), torch.ones(4, 1 << 18)
    before, whole = anonymous(), 50 * batch.nbytes
    for _ in range(50):
        keeping.add({"embedding": batch})
    assert anonymous() - before < whole / 4
    tracemalloc.start()
    keeping.save()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < whole / 4
    assert [*tmp_path.iterdir()] == [tmp_path / "predictions.npz"]


def jobs_with(tmp_path, **values):
    """A table of jobs, with what each has kept, by its id."""
    rows = []
    for name, arrays in values.items():
        folder = tmp_path / name
        folder.mkdir()
        if arrays is not None:
            np.savez(folder / "predictions.npz", **arrays)
        about = {"job_id": name, "run_id": "", "job_folder": str(folder), "diverged": False}
        rows.append(about | {"seed": len(rows)})
    return pd.DataFrame(rows)


def test_what_cannot_be_read_is_said_in_one_line(tmp_path):
    jobs = jobs_with(tmp_path, a={"label": [0, 1]}, b=None)
    with pytest.raises(NoResults, match=r"^no outputs of the job b can be read \(.+\); see job\."):
        tables.outputs(jobs)
    with pytest.raises(NoResults, match=r"the job a can be read .+loss is not a file"):
        tables.outputs(jobs[:1], "loss")
    with pytest.raises(SettingsError, match=r"the jobs have no setting sede; did you mean seed\?"):
        tables.outputs(jobs[:1], settings=["sede"])
    with pytest.raises(NoResults, match="none of the jobs has finished"):
        tables.outputs(jobs.assign(diverged=True))
    (tmp_path / "a" / "predictions.npz").write_bytes(b"damaged")
    with pytest.raises(NoResults, match=r"^no outputs of the job a can be read \(.+\); see job\."):
        tables.outputs(jobs[:1])
