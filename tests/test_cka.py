"""The example that compares networks: CKA as it computes it, and the features of layers."""

import importlib.util
from types import ModuleType

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from repository import REPOSITORY
from torch import Tensor, nn

EXAMPLE = REPOSITORY / "examples" / "similarity"

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


def test_it_is_the_cosine_of_u_centred_gram_matrices():
    each = layers()
    wanted = [[reference(one, other) for other in each] for one in each]
    assert cka(*each) == pytest.approx(np.array(wanted), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("block", [1, 2, 7, 36, 37])
def test_the_size_of_the_blocks_changes_nothing(block):
    """A mean over minibatches, as by Nguyen et al. 2021, would differ."""
    each = layers()
    assert cka(*each, block=block) == pytest.approx(cka(*each), rel=1e-11, abs=1e-13)


def test_a_layer_that_is_constant_has_none():
    each = layers()
    constant = np.full((37, 4), 0.1)  # which no floating-point number is
    found = cka(*each, constant, block=10)
    assert np.isnan(found[-1]).all() and np.isnan(found[:, -1]).all()
    assert found[:-1, :-1] == pytest.approx(cka(*each))


@pytest.mark.parametrize("other", [0, 20, 36])
def test_a_layer_in_which_only_one_example_differs_has_none(other):
    """Whichever it is: no rounding error passes for a value."""
    each = layers()
    lonely = np.full((37, 4), 0.1)
    lonely[other] = draw(9, 1, 4)
    found = cka(*each, lonely, np.eye(37), block=10)
    assert np.isnan(found[-2:]).all() and np.isnan(found[:, -2:]).all()
    assert found[:-2, :-2] == pytest.approx(cka(*each))


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
