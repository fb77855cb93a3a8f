"""The example for contrastive learning: what it measures, its views, and where labels come in."""

import json

import numpy as np
import pytest
from faults import one_line, same
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsClassifier

EXAMPLE = "contrastive"
SHORT = ("--steps", "60", "--eval-every", "30", "--quiet")


# What is measured


OUTPUTS = """
import sys
import numpy as np, torch
import data, jobs
from pathlib import Path

job = jobs.load(sys.argv[1])
splits = data.load(job.settings, Path("data"))
images, labels = (torch.stack(each) for each in zip(*splits.test))
known, classes = (torch.stack(each) for each in zip(*(splits.labelled[i] for i in range(10))))
random = torch.Generator().manual_seed(0)
views = data.augmentation(job.settings)((images, labels), random)
with torch.no_grad():
    np.savez(
        "arrays.npz",
        labels=labels, classes=classes,
        features=job.model.features(images),
        known=torch.stack([job.model.features(each) for each in known]),
        points=torch.stack([job.model(view) for view in views]),
    )
"""


@pytest.mark.full
def test_metrics_are_those_of_the_test_images(project):
    """All test images are in one batch, so everything can be computed again."""
    job = project.finish(*SHORT, "--batch-size", "359", "--temperature", "0.3")
    found = project.arrays(OUTPUTS, job)
    wanted = contrasted(found["points"].astype(float), 0.3)
    wanted |= probed(found["known"], found["classes"], found["features"], found["labels"])
    tested = project.tested(job)
    assert tested == pytest.approx(wanted, abs=2e-3)
    assert 0.5 < wanted["knn_accuracy"] < 1 and 0.5 < wanted["probe_accuracy"] < 1
    kept = project.outputs(job)
    assert np.array_equal(kept["label"], found["labels"])
    assert kept["features"] == pytest.approx(found["features"], abs=1e-4)
    assert kept["probes_right"].mean() == pytest.approx(tested["probe_accuracy"])


def contrasted(points: np.ndarray, temperature: float) -> dict[str, float]:
    """NT-Xent, alignment and uniformity of the points of two views (2, B, P), one by one."""
    first, second = points / np.linalg.norm(points, axis=2, keepdims=True)
    both, count, losses, matched, kernel = [*first, *second], len(first), [], [], []
    for i, point in enumerate(both):
        partner = (i + count) % (2 * count)
        others = [j for j in range(2 * count) if j != i]
        similar = np.array([point @ both[j] for j in others]) / temperature
        losses.append(np.log(np.exp(similar).sum()) - similar[others.index(partner)])
        matched.append(others[similar.argmax()] == partner)
        different = [both[j] for j in others if j != partner]
        kernel += [np.exp(-2 * ((point - other) ** 2).sum()) for other in different]
    return {
        "loss": float(np.mean(losses)),
        "matched": float(np.mean(matched)),
        "alignment": float(((first - second) ** 2).sum(1).mean()),
        "uniformity": float(np.log(np.mean(kernel))),
    }


def probed(known, classes, features, labels) -> dict[str, float]:
    """The accuracies of scikit-learn's ridge regression and nearest neighbours, over the draws."""
    linear, nearest = [], []
    for points, names in zip(known.astype(float), classes, strict=True):
        scale = np.sqrt(points.var(0).mean())
        ridge = Ridge(alpha=30).fit(points / scale, np.eye(10)[names])
        linear.append((ridge.predict(features / scale).argmax(1) == labels).mean())
        neighbour = KNeighborsClassifier(1, metric="cosine").fit(points, names)
        nearest.append(neighbour.score(features, labels))
    return {"probe_accuracy": float(np.mean(linear)), "knn_accuracy": float(np.mean(nearest))}


# Labels


DRAWN = """
import json, sys
import data
from labjobs.data.order import underlying
from pathlib import Path
from settings import Settings

splits = data.load(Settings(probe_labels=3, split_seed=int(sys.argv[1])), Path("data"))
everything = underlying(splits.train)[0].tensors[0]
place = {image.numpy().tobytes(): number for number, image in enumerate(everything)}
train = [place[image.numpy().tobytes()] for image, _ in splits.train]
drawn = [splits.labelled[number] for number in range(len(splits.labelled))]
print(json.dumps([
    train,
    [[place[image.numpy().tobytes()] for image in images] for images, _ in drawn],
    [labels.tolist() for _, labels in drawn],
]))
"""


@pytest.mark.full
def test_probes_learn_from_few_training_images_of_each_class(project):
    both = []
    for seed in ("0", "1"):
        train, drawn, labels = json.loads(*project.printed(DRAWN, seed))
        assert len(drawn) == 10 and len({tuple(sorted(each)) for each in drawn}) == 10
        for images, names in zip(drawn, labels, strict=True):
            assert {*images} <= {*train} and len({*images}) == 30
            assert sorted(names) == sorted(3 * [*range(10)])
        both.append(drawn)
    assert both[0] != both[1]


@pytest.mark.long
def test_training_uses_no_labels(project, fresh):
    """With the labels of other images, the last weights and the training curve are the same."""
    fresh.edit("data.py", "(images, rows[:, -1].long())", "(images, rows[:, -1].long().roll(500))")
    flags = (*SHORT, "--monitor", "none")
    jobs = [(each, each.finish(*flags)) for each in (project, fresh)]
    one, other = (each.tensors(job)["best"]["models"] for each, job in jobs)
    assert same(one, other)
    one, other = (each.stored(job) for each, job in jobs)
    assert one["train_loss"] == other["train_loss"] and one["val_loss"] == other["val_loss"]
    assert one["test_probe_accuracy"][-1][1] > other["test_probe_accuracy"][-1][1] + 0.3


# Datasets and flags


def test_more_labels_than_there_are_is_said_in_one_line(project):
    said = one_line(project.run("--probe-labels", "500"), 2)
    assert "--probe-labels 500: the class 0 has 1" in said
