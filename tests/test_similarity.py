"""The example that compares networks: CKA, the features of layers, its jobs and its figures."""

import csv
import subprocess
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torchvision
from faults import Project, job_of, jobs_of, one_line, succeeded
from numpy.typing import NDArray
from repository import imported
from sweeps import write_lines
from torch import Tensor, nn

Array = NDArray[np.float64]

similarity = imported("similarity", "similarity")


# CKA, compared with NumPy


def u_centred(features: Array) -> Array:
    """The Gram matrix of features (n, p), U-centred as by Székely and Rizzo 2014
    (doi.org/10.1214/14-AOS1255)."""
    gram, n = features @ features.T, len(features)
    np.fill_diagonal(gram, 0)
    rows = gram.sum(1, keepdims=True) / (n - 2)
    centred = gram - rows - rows.T + gram.sum() / ((n - 1) * (n - 2))
    np.fill_diagonal(centred, 0)
    return centred


def reference(one: Array, other: Array) -> float:
    """The debiased CKA of features (n, p) and (n, q): the cosine of their U-centred matrices."""
    a, b = u_centred(one), u_centred(other)
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def cka(*layers: Array, block: int) -> Array:
    """The CKA that the example computes, with `block` examples at a time."""
    tensors = [torch.from_numpy(np.ascontiguousarray(layer)).double() for layer in layers]
    parts = [*zip(*(layer.split(block) for layer in tensors), strict=True)]
    found: Array = similarity.debiased_cka(parts.__getitem__, len(parts)).numpy()
    return found


def draw(seed: int, n: int, p: int) -> Array:
    return np.random.default_rng(seed).standard_normal((n, p))


@pytest.mark.parametrize("other", [0, 20, 36])
def test_a_layer_in_which_at_most_one_example_differs_has_none(other):
    """Whichever it is: no rounding error passes for a value."""
    each = draw(0, 37, 5), draw(1, 37, 60) + 3
    constant = np.full((37, 4), 0.1)  # which no floating-point number is
    lonely = constant.copy()
    lonely[other] = draw(9, 1, 4)
    found = cka(*each, constant, lonely, np.eye(37), block=10)
    assert np.isnan(found[-3:]).all() and np.isnan(found[:, -3:]).all()
    assert found[:-3, :-3] == pytest.approx(cka(*each, block=37))


# The features of layers


class Gives(nn.Module):
    """A layer that gives what a function makes of its tokens."""

    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, tokens: Tensor) -> object:
        return self.function(tokens)


class Odd(nn.Module):
    """A network with all that layers may do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.twice = nn.Identity()
        self.never = nn.Identity()
        self.lengths = Gives(lambda tokens: {"length": tokens.shape[1]})
        self.sums = Gives(lambda tokens: tokens.sum(0))
        self.infinite = Gives(lambda tokens: tokens / 0)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.stem(images).flatten(2).transpose(1, 2)
        tokens, _ = self.attention(tokens, tokens, tokens)
        for layer in (self.lengths, self.sums, self.infinite):
            layer(tokens)
        pooled: Tensor = self.twice(self.twice(tokens.mean(1)))
        return pooled


@pytest.fixture(scope="module")
def odd():
    torch.manual_seed(0)
    return Odd().eval()


IMAGES = torch.rand(5, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def features(network: nn.Module, *names: str, spatial: str = "flatten") -> list[Tensor]:
    chosen = similarity.layers(network, names, "--layers")
    with torch.no_grad():
        found: list[Tensor] = similarity.features(network, chosen, IMAGES, spatial)
    return found


def test_features_are_what_layers_give(odd):
    """Of attention the first of two; of a layer before one that works in place its own."""
    convolved, rectified, attended = features(odd, "attention", "stem.*")
    with torch.no_grad():
        wanted = odd.stem[0](IMAGES)
        tokens = wanted.relu().flatten(2).transpose(1, 2)
        outputs, _ = odd.attention(tokens, tokens, tokens)
    assert torch.equal(convolved, wanted.flatten(1).double()) and (convolved < 0).any()
    assert torch.equal(rectified, wanted.relu().flatten(1).double())
    assert torch.allclose(attended, outputs.flatten(1).double())
    assert {each.dtype for each in (convolved, rectified, attended)} == {torch.float64}
    averaged, _, over_tokens = features(odd, "attention", "stem.*", spatial="average")
    assert torch.allclose(averaged, wanted.double().mean((2, 3)))
    assert torch.allclose(over_tokens, outputs.double().mean(1))
    assert not odd.stem[0]._forward_hooks


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("twice", "layer twice is run more than once; name the layer that it is part of"),
        ("never", "layer never is not run; leave it out"),
        ("lengths", "layer lengths gives dict, not a tensor with a row for each image"),
        ("sums", "layer sums gives (16, 4), not a tensor with a row for each image"),
        ("infinite", "layer infinite gives numbers that are not finite"),
    ],
)
def test_a_layer_without_features_is_refused(odd, name, said):
    with pytest.raises(similarity.JobError) as caught:
        features(odd, name)
    assert str(caught.value) == said


# The jobs


@pytest.fixture(scope="module")
def project(make):
    project = Project(make(example="similarity"))
    write_lines(
        project.root,
        "a=$(job --epochs 1 --seed 0)",
        "b=$(job --epochs 1 --seed 1 --model convnet)",
        'job compare.py --first "$a" --second "$b" --second-layers "layers.[0-4]"',
    )
    assert "no finished job of compare.py" in one_line(project.do("python", "plot_compare.py"), 1)
    succeeded(project.do("bash", "run.sh"))
    return project


def compare(project: Project, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    first, _ = jobs_of(project)
    return project.do("python", "compare.py", "--first", first, "--quiet", *flags, **env)


def logged(project: Project, job: str) -> dict[tuple[str, str], float]:
    """The CKA that a job has logged, by the names of the layers."""
    (file,) = project.folder(job).glob("logged/cka-*.csv")
    with file.open(newline="") as rows:
        found = [*csv.DictReader(rows)]
    return {(row["first_layer"], row["second_layer"]): float(row["cka"]) for row in found}


OUTPUTS = """
import sys
from pathlib import Path
import numpy as np
import data, jobs

both = [jobs.load(job).model for job in sys.argv[1:3]]
images = data.load(jobs.load(sys.argv[1]).settings, Path("data")).test[:][0]
found = {}
for part, model in zip("ab", both):
    value = (images / 255 - model.mean) / model.std
    for number, layer in enumerate(model.network.layers):
        value = layer(value)
        found[f"{part}{number}"] = value.detach().flatten(1).double().numpy()
np.savez("arrays.npz", **found)
"""


@pytest.mark.full
def test_a_job_s_values_are_those_of_its_layers_and_are_drawn(project):
    """Computed again, layer by layer, on all 359 test images, in NumPy."""
    first, second = jobs_of(project)
    outputs = project.arrays(OUTPUTS, first, second)
    assert len(outputs["a0"]) == 359
    done = compare(project, "--second", second, "--batch-size", "100")
    values = logged(project, job_of(done))
    assert len(values) == 6 * 8
    for (one, other), value in values.items():
        wanted = reference(outputs[f"a{one[-1]}"], outputs[f"b{other[-1]}"])
        assert value == pytest.approx(wanted, abs=1e-5)
    last = values["layers.5", "layers.7"]
    assert f"finished: last_cka {last:.4g}" in done.stdout
    averaged = logged(project, job_of(compare(project, "--second", second, "--spatial", "average")))
    assert averaged["layers.5", "layers.0"] != values["layers.5", "layers.0"]
    drawn = project.do("python", "plot_compare.py", "--format", "png")
    assert one_line(drawn, 0).startswith("left out corresponding-layers: none of the compared")
    assert (project.root / "figures" / "layer-maps.png").exists()


@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "compare.py: --second, --model: give one of them"),
        ("--first-model mlp --model mlp", "compare.py: --first, --first-model: give one of them"),
        ("--model mlp --dataset mnist", "compare.py: --dataset: is for --first-model; a job has"),
        ("--model mlp --layers nosuch", "--layers nosuch: the network has no such layer; known:"),
        ("--second {} --pretrained", "compare.py: --pretrained: is for --model, not for --second"),
        ("--model mlp --pretrained", "--pretrained: no weights are published for this project"),
        ("--model resnet18 --second-layers layer1,fcc", "--second-layers fcc: the network has no"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(project, flags, said):
    words = flags.format(jobs_of(project)[1]).split()
    assert said in one_line(compare(project, *words), 2)


# Networks of torchvision


@pytest.mark.long
def test_published_weights_are_compared_to_their_last_layer(project, tmp_path):
    """In the true format, read from torch's cache."""
    env = {"TORCH_HOME": str(tmp_path / "torch")}
    flags = ("--model", "resnet18", "--pretrained", "--image-size", "64", "--layers", "layers.1")
    flags += ("--second-layers", "layer*,fc", "--batch-size", "200")
    url = torchvision.models.get_model_weights("resnet18").DEFAULT.url
    file = tmp_path / "torch" / "hub" / "checkpoints" / url.split("/")[-1]
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(torchvision.models.resnet18().state_dict(), file)
    values = logged(project, job_of(succeeded(compare(project, *flags, **env))))
    assert [name for _, name in values] == ["layer1", "layer2", "layer3", "layer4", "fc"]
    assert all(0 < value < 1 for value in values.values())
    flags = ("--first-model", "resnet18", "--model", "resnet18", "--pretrained", "--quiet")
    flags += ("--image-size", "64", "--layers", "layer*,fc")
    both = succeeded(project.do("python", "compare.py", *flags, **env))
    values = logged(project, job_of(both))
    assert len(values) == 25 and all(values[n, n] == pytest.approx(1) for n, _ in values)
