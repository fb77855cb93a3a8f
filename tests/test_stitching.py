"""The example that stitches networks: its parts, its fit by L-BFGS, its jobs, and its figures."""

import subprocess
from copy import deepcopy

import numpy as np
import pytest
import torch
import torchvision
from faults import Project, job_of, jobs_of, one_line, silent, succeeded
from numpy.typing import NDArray
from repository import imported
from sweeps import write_lines
from torch import Tensor, nn

Array = NDArray[np.float64]

stitching = imported("stitching", "stitching")


# The ridge regression, compared with NumPy


def reference(x: Array, y: Array, strength: float) -> tuple[Array, Array]:
    """Weights and biases of a ridge regression as a least squares problem with more rows."""
    n, p = x.shape
    root = np.sqrt(strength * n * x.var(0).mean())
    rows = np.block([[x, np.ones((n, 1))], [root * np.eye(p), np.zeros((p, 1))]])
    solution, *_ = np.linalg.lstsq(rows, np.vstack([y, np.zeros((p, y.shape[1]))]), rcond=None)
    return solution[:-1].T, solution[-1]


def test_a_constant_layer_is_refused():
    said = "--layer: its output is the same for all examples"
    with pytest.raises(stitching.JobError, match=said):
        stitching.ridge([(torch.ones(9, 3), torch.rand(9, 2))], 1e-3)


# The halves of networks


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
        self.twice = nn.ReLU()
        self.never = nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        stem = self.stem(inputs)
        outputs: Tensor = self.twice(self.twice(stem + self.inner(stem)))
        return outputs


class Choosy(nn.Module):
    """A layer that makes no graph."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if inputs.sum() > 0 else -inputs


def transformer() -> nn.Module:
    return torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 32)


@pytest.mark.parametrize(
    ("make_network", "layers"),
    [
        (torchvision.models.resnet18, ("layer1", "layer2.1", "avgpool")),
        (transformer, ("encoder.layers.encoder_layer_0", "encoder")),
        (torchvision.models.mobilenet_v3_small, ("features.4",)),  # with activations in place
    ],
)
def test_two_halves_are_the_network(make_network, layers):
    torch.manual_seed(0)
    network, images = make_network().train(), torch.rand(2, 3, 32, 32)
    for layer in layers:
        first, second = stitching.halves(network, layer, "--layer")
        with torch.no_grad():
            features = first(images)
            kept = features.clone()
            logits = deepcopy(network).eval()(images)
            assert torch.equal(second(features.clone()), logits)
        assert torch.equal(first(images), kept)
        assert not any(p.requires_grad for half in (first, second) for p in half.parameters())
        names = {module for module, _ in second.named_modules()}
        assert not names & {"conv1", "conv_proj", "features.0"}, "the second half has the first"


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ("steam", "--layer steam: the network has no such layer; did you mean stem?"),
        ("inner", "--layer inner: something bypasses this layer; name the block around it"),
        ("inner.0", "--layer inner.0: something bypasses this layer; name the block around it"),
        ("twice", "--layer twice: is run more than once; name the layer that it is part of"),
        ("never", "--layer never: is not run"),
    ],
)
def test_a_network_is_cut_only_where_all_goes_through(layer, said):
    with pytest.raises((stitching.JobError, stitching.SettingsError)) as caught:
        stitching.halves(Odd(), layer, "--layer")
    assert str(caught.value) == said
    stitching.halves(Odd(), "stem", "--layer")


def test_a_network_without_a_graph_is_refused_in_one_line():
    with pytest.raises(stitching.JobError) as caught:
        stitching.halves(nn.Sequential(nn.Linear(4, 4), Choosy()), "0", "--layer")
    assert str(caught.value).startswith("--layer 0: torch.fx cannot follow this network (")
    assert "\n" not in str(caught.value)


# The jobs


def stitch(project: Project, *flags: str) -> subprocess.CompletedProcess[str]:
    first, second = jobs_of(project)
    return project.do("python", "stitch.py", "--front", first, "--back", second, "--quiet", *flags)


SHORT = "--val-fraction 0.7 --epochs 10"
"""A job with few training examples."""

LAST = ("--layer", "layers.4")
"""The layer before the last one of an mlp: all that follows is linear."""


@pytest.fixture(scope="module")
def made(make):
    """A project whose grid has trained two networks and stitched them."""
    project = Project(make(example="stitching"))
    write_lines(
        project.root,
        *(f"{half}=$(job {SHORT} --seed {seed})" for seed, half in enumerate("ab")),
        'job stitch.py --front "$a" --back "$b" --layer layers.4 --steps 12',
    )
    succeeded(project.do("bash", "run.sh"))
    return project


@pytest.fixture
def copy(made, tmp_path):
    return made.clone(tmp_path / "copy")


AGAIN = """
import sys
from pathlib import Path
import numpy as np
import data, jobs, stitching

a, b = (jobs.load(job) for job in sys.argv[1:3])
splits = data.load(a.settings, Path("data"))
kept = {}
for part in ("train", "val", "test"):
    images, labels = (tensor for tensor in getattr(splits, part)[:])
    kept[f"{part}_labels"] = labels.numpy()
    value = (images / 255 - a.model.mean) / a.model.std
    kept[f"{part}_a"] = a.model.network.layers[:5](value).detach().double().numpy()
    value = (images / 255 - b.model.mean) / b.model.std
    kept[f"{part}_b"] = b.model.network.layers[:5](value).detach().double().numpy()
    kept[f"{part}_whole"] = b.model(images).detach().double().numpy()
last = b.model.network.layers[5]
kept |= {"last_weight": last.weight.detach().double(), "last_bias": last.bias.detach().double()}
model = stitching.load(sys.argv[3])
kept["loaded"] = model(images).detach().double().numpy()
kept |= {"weight": model.stitch.weight.detach(), "bias": model.stitch.bias.detach()}
np.savez("arrays.npz", **kept)
"""


def loss_of(logits: Array, labels: NDArray[np.int64]) -> float:
    """The cross-entropy."""
    chances = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return float(-chances[np.arange(len(labels)), labels].mean())


@pytest.mark.full
def test_results_are_those_of_the_halves_and_the_map(made):
    """Computed again in NumPy, from the layers' features."""
    (fitted,) = jobs_of(made, "stitch")
    again, tested = made.arrays(AGAIN, *jobs_of(made), fitted), made.tested(fitted)

    def logits_of(part: str, weight: Array, bias: Array) -> Array:
        """What the second network's last layer makes of mapped features of the first."""
        mapped = again[f"{part}_a"] @ weight.T + bias
        logits: Array = mapped @ again["last_weight"].T + again["last_bias"]
        return logits

    labels, ridge = again["test_labels"], reference(again["train_a"], again["train_b"], 1e-3)
    own, of_ridge = logits_of("test", again["weight"], again["bias"]), logits_of("test", *ridge)
    for name, each in {"": own, "ridge_": of_ridge, "back_": again["test_whole"]}.items():
        accuracy = float((each.argmax(1) == labels).mean())
        assert tested[f"{name}accuracy"] == pytest.approx(accuracy)
        assert tested[f"{name}loss"] == pytest.approx(loss_of(each, labels), rel=1e-3)
    assert again["loaded"] == pytest.approx(own, abs=1e-3)
    assert np.array_equal(made.outputs(fitted)["predicted"], own.argmax(1))
    assert tested["penalty"] == pytest.approx(tested["back_accuracy"] - tested["accuracy"])
    curves = made.stored(fitted)
    curve = [value for _, value in curves["objective"]]
    assert curve == sorted(curve, reverse=True), "a line search never takes a larger loss"
    wanted = loss_of(logits_of("val", *ridge), again["val_labels"])
    assert curves["val_loss"][0][1] == pytest.approx(wanted, rel=1e-3)


@pytest.mark.full
def test_networks_of_other_splits_and_shapes_are_refused(copy):
    first, _ = jobs_of(copy)
    others = {
        "--split-seed 1": "split_seed is 0 and 1",
        "--model convnet": "give (256,) and (32, 4",
    }
    for flags, said in others.items():
        other = job_of(succeeded(copy.run(*SHORT.split(), *flags.split(), "--quiet")))
        words = ("--front", first, "--back", other, "--back-layer", "layers.1", "--quiet")
        assert said in one_line(copy.do("python", "stitch.py", *words), 1)


@pytest.mark.full
def test_networks_of_different_kinds_are_stitched_and_drawn(copy):
    """From the hidden layer of a perceptron to the pooled channels of a convolutional network."""
    first, _ = jobs_of(copy)
    other = job_of(copy.run("--model", "convnet", *SHORT.split(), "--quiet"))
    words = ("--front", first, "--back", other, *LAST, "--back-layer", "layers.6", "--steps", "8")
    done = succeeded(copy.do("python", "stitch.py", *words, "--quiet"))
    assert copy.tested(job_of(done))["accuracy"] > 0.9
    silent(copy.do("python", "plot_stitch.py", "--format", "png"))
