"""The example that compares networks: CKA as it computes it, and the features of layers."""

import importlib.util
from itertools import permutations
from types import ModuleType

import numpy as np
import pytest
import torch
import torchvision
from numpy.typing import NDArray
from repository import REPOSITORY
from torch import Tensor, nn

EXAMPLE = REPOSITORY / "{{cookiecutter.project_slug}}" / ".examples" / "similarity"

Array = NDArray[np.float64]


def imported(name: str) -> ModuleType:
    """A module of the example."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


similarity = imported("similarity")


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


def biased(one: Array, other: Array) -> float:
    """The linear CKA of Kornblith et al. 2019, with the biased estimator."""
    x, y = one - one.mean(0), other - other.mean(0)
    norms = [np.linalg.norm(each.T @ each) for each in (x, y)]
    return float(np.linalg.norm(x.T @ y) ** 2 / np.prod(norms))


def cka(*layers: Array, block: int = 1000) -> Array:
    """The CKA that the example computes, with `block` examples at a time."""
    tensors = [torch.from_numpy(np.ascontiguousarray(layer)).double() for layer in layers]
    parts = [*zip(*(layer.split(block) for layer in tensors), strict=True)]
    found: Array = similarity.debiased_cka(parts.__getitem__, len(parts)).numpy()
    return found


def draw(seed: int, n: int, p: int) -> Array:
    return np.random.default_rng(seed).standard_normal((n, p))


def layers(n: int = 37) -> list[Array]:
    """Features of four layers, more and fewer than examples, that have something in common."""
    common = draw(0, n, 5)
    rectified = np.maximum(common @ draw(1, 5, 200), 0)
    return [common, rectified, common[:, :2] + draw(2, n, 2), draw(3, n, 60) + 3]


def test_it_is_the_cosine_of_u_centred_gram_matrices() -> None:
    each = layers()
    wanted = [[reference(one, other) for other in each] for one in each]
    assert cka(*each) == pytest.approx(np.array(wanted), rel=1e-12, abs=1e-12)


def test_hsic_is_the_mean_over_all_quadruples_of_examples() -> None:
    """Its definition as a U-statistic (Song et al. 2012), counted one by one."""
    one, other = draw(0, 6, 3), draw(1, 6, 2)
    k, l = (each @ each.T for each in (one, other))  # noqa: E741 # as in the paper

    def hsic(k: Array, l: Array) -> float:  # noqa: E741
        terms = [
            k[i, j] * (l[i, j] + l[q, r] - 2 * l[i, q]) for i, j, q, r in permutations(range(6), 4)
        ]
        return float(np.mean(terms))

    wanted = hsic(k, l) / np.sqrt(hsic(k, k) * hsic(l, l))
    assert cka(one, other)[0, 1] == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("block", [1, 2, 7, 36, 37])
def test_the_size_of_the_blocks_changes_nothing(block: int) -> None:
    """A mean over minibatches, as by Nguyen et al. 2021, would differ."""
    each = layers()
    assert cka(*each, block=block) == pytest.approx(cka(*each), rel=1e-11, abs=1e-13)


def test_rotations_scales_and_shifts_change_nothing_and_other_maps_do() -> None:
    one, other = layers()[1], draw(4, 37, 30)
    rotation, _ = np.linalg.qr(draw(5, 30, 30))
    value = cka(one, other)[0, 1]
    for changed in (other @ rotation, other[:, ::-1], 1e-3 * other, other + 50):
        assert cka(one, changed)[0, 1] == pytest.approx(value, rel=1e-9)
    stretched = other * np.logspace(0, 1, 30)  # invertible
    assert abs(cka(other, stretched)[0, 1] - 1) > 0.05
    assert abs(cka(one, stretched)[0, 1] - value) > 1e-3


def test_layers_that_are_the_same_have_one() -> None:
    each = layers()
    assert np.diag(cka(*each)) == pytest.approx(1)
    assert cka(each[1], each[1].copy())[0, 1] == pytest.approx(1)


def test_independent_features_have_about_none_however_many_they_are() -> None:
    """30 examples with 300 features: the biased CKA is near 1, and the debiased one near 0."""
    pairs = [(draw(seed, 30, 300), draw(1000 + seed, 30, 300)) for seed in range(50)]
    debiased = np.array([cka(*pair)[0, 1] for pair in pairs])
    error = debiased.std(ddof=1) / np.sqrt(len(pairs))
    assert abs(debiased.mean()) < 4 * error < 0.05
    assert debiased.min() < 0
    assert np.mean([biased(*pair) for pair in pairs]) > 0.85


def test_a_layer_that_is_constant_has_none() -> None:
    each = layers()
    constant = np.full((37, 4), 0.1)  # which no floating-point number is
    found = cka(*each, constant, block=10)
    assert np.isnan(found[-1]).all() and np.isnan(found[:, -1]).all()
    assert found[:-1, :-1] == pytest.approx(cka(*each))


@pytest.mark.parametrize("other", [0, 20, 36])
def test_a_layer_in_which_only_one_example_differs_has_none(other: int) -> None:
    """Whichever it is: no rounding error passes for a value."""
    each = layers()
    lonely = np.full((37, 4), 0.1)
    lonely[other] = draw(9, 1, 4)
    found = cka(*each, lonely, np.eye(37), block=10)
    assert np.isnan(found[-2:]).all() and np.isnan(found[:, -2:]).all()
    assert found[:-2, :-2] == pytest.approx(cka(*each))


def test_a_value_does_not_depend_on_which_example_is_first() -> None:
    """Even if it is far from all others."""
    one, other = (each.copy() for each in layers()[:2])
    one[5] *= 1e4
    order = np.random.default_rng(0).permutation(37)
    order = np.concatenate([[5], order[order != 5]])
    value = cka(one[order], other[order], block=10)[0, 1]
    assert value == pytest.approx(cka(one, other, block=10)[0, 1], rel=1e-6)
    assert value == pytest.approx(reference(one, other), rel=1e-6)


def test_large_means_hide_nothing() -> None:
    """In float32, and without centring in float64 too, nothing would be left of the features."""
    one, other = layers()[:2]
    assert cka(one + 2.0**26, other)[0, 1] == pytest.approx(cka(one, other)[0, 1], rel=1e-6)


def test_three_examples_are_too_few() -> None:
    with pytest.raises(ValueError, match="3 examples are too few; at least 4 are needed"):
        cka(draw(0, 3, 2))


# The features of layers


class Odd(nn.Module):
    """A network with all that layers may do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.twice = nn.Identity()
        self.never = nn.Identity()
        self.lengths = Lengths()
        self.sums = Sums()
        self.infinite = Infinite()

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.stem(images).flatten(2).transpose(1, 2)
        tokens, _ = self.attention(tokens, tokens, tokens)
        self.lengths(tokens)
        self.sums(tokens)
        self.infinite(tokens)
        pooled: Tensor = self.twice(self.twice(tokens.mean(1)))
        return pooled


class Lengths(nn.Module):
    """Gives no tensor."""

    def forward(self, tokens: Tensor) -> dict[str, int]:
        return {"length": tokens.shape[1]}


class Sums(nn.Module):
    """Gives a tensor without a row for each example."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.sum(0)


class Infinite(nn.Module):
    """Divides by zero."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens / 0


@pytest.fixture(scope="module")
def odd() -> nn.Module:
    torch.manual_seed(0)
    return Odd().eval()


IMAGES = torch.rand(5, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def features(network: nn.Module, *names: str, spatial: str = "flatten") -> list[Tensor]:
    chosen = similarity.layers(network, names, "--layers")
    with torch.no_grad():
        found: list[Tensor] = similarity.features(network, chosen, IMAGES, spatial)
    return found


def test_features_are_what_layers_give(odd: nn.Module) -> None:
    """Of attention the first of two; of a layer before one that works in place its own."""
    convolved, rectified, attended = features(odd, "attention", "stem.*")
    with torch.no_grad():
        wanted = odd.stem[0](IMAGES)  # type: ignore[index, operator]
        tokens = wanted.relu().flatten(2).transpose(1, 2)
        outputs, _ = odd.attention(tokens, tokens, tokens)  # type: ignore[operator]
    assert torch.equal(convolved, wanted.flatten(1).double()) and (convolved < 0).any()
    assert torch.equal(rectified, wanted.relu().flatten(1).double())
    assert torch.allclose(attended, outputs.flatten(1).double())
    assert {each.dtype for each in (convolved, rectified, attended)} == {torch.float64}
    averaged, _, over_tokens = features(odd, "attention", "stem.*", spatial="average")
    assert torch.allclose(averaged, wanted.double().mean((2, 3)))
    assert torch.allclose(over_tokens, outputs.double().mean(1))
    assert not odd.stem[0]._forward_hooks  # type: ignore[index]


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
def test_a_layer_without_features_is_refused(odd: nn.Module, name: str, said: str) -> None:
    with pytest.raises(similarity.JobError) as caught:
        features(odd, name)
    assert str(caught.value) == said


def test_layers_are_named_by_patterns() -> None:
    network = torchvision.models.resnet18()

    def chosen(*patterns: str) -> list[str]:
        return [*similarity.layers(network, patterns, "--layers")]

    assert chosen("layer*", "fc", "fc") == ["layer1", "layer2", "layer3", "layer4", "fc"]
    assert chosen("layer[34].*.conv1") == [f"layer{n}.{m}.conv1" for n in (3, 4) for m in (0, 1)]
    for wrong, line in (
        ("layer5", "--layers layer5: the network has no such layer; did you mean layer4?"),
        (
            "layer1.0.con1",
            "--layers layer1.0.con1: the network has no such layer; did you mean layer1.0.conv1?",
        ),
        ("?", "--layers ?: the network has no such layer; known: conv1, bn1, relu, maxpool, layer"),
    ):
        with pytest.raises(similarity.SettingsError) as caught:
            chosen("layer1", wrong)
        assert str(caught.value).startswith(line) and len(str(caught.value)) < 150
