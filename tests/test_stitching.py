"""The example that stitches networks: its parts, its fit by L-BFGS, its jobs, and its figures."""

import importlib.util
import json
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from faults import Project, job_of, one_line, silent, succeeded
from numpy.typing import NDArray
from repository import REPOSITORY
from sweeps import write_grid
from torch import Tensor, nn

INNER = REPOSITORY / "{{cookiecutter.project_slug}}"
EXAMPLE = REPOSITORY / "examples" / "stitching"

Array = NDArray[np.float64]


def imported(name: str) -> ModuleType:
    """A module of the example, with its own settings and the template's other modules."""
    mine = {"settings": EXAMPLE / "settings.py", name: EXAMPLE / f"{name}.py"}
    others = ("models", "jobs")
    kept = {module: sys.modules.pop(module, None) for module in ("settings", *others)}
    sys.path.insert(0, str(INNER))
    try:
        for module, file in mine.items():
            spec = importlib.util.spec_from_file_location(module, file)
            assert spec and spec.loader
            sys.modules[module] = made = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(made)
        return made
    finally:
        sys.path.remove(str(INNER))
        for module in kept:
            sys.modules.pop(module, None)
        sys.modules.update({module: old for module, old in kept.items() if old})


stitching = imported("stitching")


# The ridge regression, compared with NumPy


def draw(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


def reference(x: Array, y: Array, strength: float) -> tuple[Array, Array]:
    """Weights and biases of a ridge regression as a least squares problem with more rows."""
    n, p = x.shape
    root = np.sqrt(strength * n * x.var(0).mean())
    rows = np.block([[x, np.ones((n, 1))], [root * np.eye(p), np.zeros((p, 1))]])
    solution, *_ = np.linalg.lstsq(rows, np.vstack([y, np.zeros((p, y.shape[1]))]), rcond=None)
    return solution[:-1].T, solution[-1]


SHAPES = {"features": (), "tokens": (3,), "images": (3, 2)}
"""Dimensions of features beside examples and channels."""


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("strength", [1e-3, 1.0])
def test_the_start_is_a_ridge_regression_over_all_examples_and_places(kind, strength):
    x, y = draw(0, 20, *SHAPES[kind], 7) + 5, draw(1, 20, *SHAPES[kind], 4) - 3
    wanted = reference(
        x.double().flatten(0, -2).numpy(), y.double().flatten(0, -2).numpy(), strength
    )
    if kind == "images":  # as layers give them
        x, y = x.movedim(-1, 1), y.movedim(-1, 1)
    batches = [*zip(x.split(6), y.split(6), strict=True)]
    weight, bias = stitching.ridge(iter(batches), strength)
    assert weight.numpy() == pytest.approx(wanted[0], abs=1e-9)
    assert bias.numpy() == pytest.approx(wanted[1], abs=1e-8)
    stitch = stitching.Stitch(7, 4)
    with torch.no_grad():
        stitch.weight.copy_(weight)
        stitch.bias.copy_(bias)
        mapped = stitch(x)
    assert mapped.shape == y.shape


def test_a_constant_layer_is_refused():
    with pytest.raises(
        stitching.JobError, match="--layer: its output is the same for all examples"
    ):
        stitching.ridge([(torch.ones(9, 3), draw(0, 9, 2))], 1e-3)


# The halves of networks


class Odd(nn.Module):
    """A network with all that layers may do."""

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
    """A network that has no graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return outputs if outputs.sum() > 0 else -outputs


def transformer() -> nn.Module:
    """A small vision transformer."""
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
        stitching.halves(Choosy(), "layer", "--layer")
    assert str(caught.value).startswith("--layer layer: torch.fx cannot follow this network (")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("front", "back", "said"),
    [
        ((2, 3, 4, 4), (2, 5, 2, 2), r"give \(3, 4, 4\) and \(5, 2, 2\); only the number of cha"),
        ((2, 3, 4, 4), (2, 5), r"give \(3, 4, 4\) and \(5,\); only the number of channels may"),
        ((2,), (2, 5), r"--layer: gives \(2,\), not \(B, C\)"),
    ],
)
def test_layers_that_do_not_fit_are_refused(front, back, said):
    with pytest.raises(stitching.JobError, match=said):
        stitching.check_fit(torch.zeros(front), torch.zeros(back))


# The jobs


def stitch(project: Project, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    first, second = trained(project)
    words = ("--front", first, "--back", second, "--quiet", *flags)
    return project.do("python", "stitch.py", *words, **env)


def trained(project: Project) -> list[str]:
    """The ids of the first two jobs of run.py, by their seed."""
    found = {}
    for file in project.root.glob("runs/*/*/settings.json"):
        about = json.loads(file.read_text())
        if about["script"] == "run":
            found[about["settings"]["seed"]] = file.parent.parent.name
    return [found[0], found[1]]


SHORT = "--val-fraction 0.7 --epochs 10"
"""A job with few training examples."""

LAST = ("--layer", "layers.4")
"""The layer before the last one of an mlp: all that follows is linear."""


@pytest.fixture(scope="module")
def made(make):
    """A project whose grid has trained two networks and stitched them."""
    project = Project(make(example="stitching"))
    write_grid(project.root, f"{SHORT} --seed 0")
    run_sh = project.root / "run.sh"
    lines = [f"  {half}=$(job {SHORT} --seed {seed})" for seed, half in enumerate("ab")]
    lines.append('  job stitch.py --front "$a" --back "$b" --layer layers.4 --steps 12')
    text = run_sh.read_text()
    old = f"  job {SHORT} --seed 0\n"
    assert text.count(old) == 1
    run_sh.write_text(text.replace(old, "\n".join(lines) + "\n"))
    succeeded(project.do("bash", "run.sh"))
    return project


@pytest.fixture(scope="module")
def fitted(made):
    """The id of the job that stitched them."""
    files = made.root.glob("runs/*/*/settings.json")
    found = {file.parent.parent.name: json.loads(file.read_text()) for file in files}
    wanted = {"steps": 12, "optimizer": "lbfgs"}  # other tests add further jobs
    (job,) = (job for job, about in found.items() if wanted.items() <= about["settings"].items())
    return job


@pytest.fixture
def copy(made, tmp_path):
    """That project with its jobs and their store, to change."""
    return Project(Path(shutil.copytree(made.root, tmp_path / "copy")))


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
np.savez("again.npz", **kept)
"""


@pytest.fixture(scope="module")
def again(made, fitted):
    """Features of the job's networks, computed layer by layer, and its classifier, loaded."""
    made.printed(AGAIN, *trained(made), fitted)
    with np.load(made.root / "again.npz") as kept:
        found = dict(kept)
    (made.root / "again.npz").unlink()
    return found


def logits_of(again: dict[str, Any], part: str, weight: Array, bias: Array) -> Array:
    """What the second network's last layer makes of mapped features of the first."""
    mapped = again[f"{part}_a"] @ weight.T + bias
    logits: Array = mapped @ again["last_weight"].T + again["last_bias"]
    return logits


def loss_of(logits: Array, labels: NDArray[np.int64]) -> float:
    """The cross-entropy."""
    chances = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return float(-chances[np.arange(len(labels)), labels].mean())


def test_results_are_those_of_the_halves_and_the_map(made, fitted, again):
    """Computed again in NumPy, from the layers' features."""
    tested, labels = made.stored(fitted), again["test_labels"]
    ridge = reference(again["train_a"], again["train_b"], 1e-3)
    logits = {
        "": logits_of(again, "test", again["weight"], again["bias"]),
        "ridge_": logits_of(again, "test", *ridge),
        "back_": again["test_whole"],
    }
    for name, each in logits.items():
        ((_, accuracy),) = tested[f"test_{name}accuracy"]
        ((_, loss),) = tested[f"test_{name}loss"]
        assert accuracy == pytest.approx(float((each.argmax(1) == labels).mean()))
        assert loss == pytest.approx(loss_of(each, labels), rel=1e-3)
    assert again["loaded"] == pytest.approx(logits[""], abs=1e-3)
    kept = made.outputs(fitted)
    assert np.array_equal(kept["predicted"], logits[""].argmax(1))
    ((_, penalty),) = tested["test_penalty"]
    ((_, back),), ((_, own),) = tested["test_back_accuracy"], tested["test_accuracy"]
    assert penalty == pytest.approx(back - own)
    curve = [value for _, value in tested["objective"]]
    assert curve == sorted(curve, reverse=True), "a line search never takes a larger loss"
    (_, start), *_ = tested["val_loss"]
    wanted = loss_of(logits_of(again, "val", *ridge), again["val_labels"])
    assert start == pytest.approx(wanted, rel=1e-3)


@pytest.mark.full
@pytest.mark.parametrize(
    ("old", "new", "guarantee"),
    [
        ("optimizer=optimizer, ", "", "exact resume: stitch.py:"),
    ],
)
def test_what_is_left_out_is_found(copy, old, new, guarantee):
    copy.edit("stitch.py", old, new)
    done = stitch(copy, "--check")
    assert done.returncode == 1
    assert any(line.startswith(guarantee) for line in done.stdout.splitlines()), done


@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        ("--layer layers.9", 2, "--layer layers.9: the network has no such layer; did you mean"),
        ("--back-layer layer.4", 2, "--back-layer layer.4: the network has no such layer; did"),
        ("--layer layers.0 --back-layer layers.9", 2, "--back-layer layers.9: the network has no"),
        ("--evaluations 1", 2, "stitch.py: --evaluations 1: must be at least 2 and at most 10,000"),
        ("--monitor none --patience 3", 2, "--patience 3: needs a --monitor"),
        ("--monitor val_los", 2, "--monitor val_los: "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(made, flags, status, said):
    assert said in one_line(stitch(made, *flags.split()), status)


@pytest.mark.full
def test_networks_of_other_splits_and_shapes_are_refused(copy):
    first, _ = trained(copy)
    others = {
        "--split-seed 1": "split_seed is 0 and 1",
        "--model convnet": "give (256,) and (32, 4",
    }
    for flags, said in others.items():
        other = job_of(copy.run(*SHORT.split(), "--epochs", "1", *flags.split(), "--quiet"))
        words = ("--front", first, "--back", other, "--back-layer", "layers.1", "--quiet")
        assert said in one_line(copy.do("python", "stitch.py", *words), 1)


@pytest.mark.full
def test_networks_of_different_kinds_are_stitched_and_drawn(copy):
    """From the hidden layer of a perceptron to the pooled channels of a convolutional network."""
    first, _ = trained(copy)
    other = job_of(copy.run("--model", "convnet", *SHORT.split(), "--quiet"))
    words = ("--front", first, "--back", other, *LAST, "--back-layer", "layers.6", "--steps", "8")
    done = succeeded(copy.do("python", "stitch.py", *words, "--quiet"))
    ((_, accuracy),) = copy.stored(job_of(done))["test_accuracy"]
    assert accuracy > 0.9
    silent(copy.do("python", "plot_stitch.py", "--format", "png"))
